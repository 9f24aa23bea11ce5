//! The real directory: what is let in, what is refused, and that nothing foreign is touched.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use highwater_lock::{Domain, FencingToken};

use crate::storage::{
    END_OF_TOKENS, Record, RestoreError, StorageError, open, restore_as_new_domain,
};

fn names(path: &Path) -> Vec<String> {
    let entries = fs::read_dir(path).unwrap();
    let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name();
    let mut names: Vec<_> = entries
        .map(|entry| name(entry).to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

fn record(bound: u64) -> Record {
    Record {
        domain: Domain::from_bytes([7; 32]),
        bound: FencingToken::new(bound).unwrap(),
        horizon: Duration::from_secs(30),
        closed: false,
    }
}

/// A directory with this record in it.
fn directory(bound: u64) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("deep/in/there");
    let (mut store, found, _) = open(&path).unwrap();
    assert_eq!(found, None);
    store.commit(&record(bound)).unwrap();
    (folder, path)
}

#[test]
fn what_is_stored_is_there_for_the_next_one() {
    let (_folder, path) = directory(5);
    assert_eq!(names(&path), ["README.txt", "lock", "state"]);
    let (mut store, found, lock) = open(&path).unwrap();
    assert_eq!(found, Some(record(5)));
    store.commit(&record(6)).unwrap();
    drop((store, lock));
    assert_eq!(open(&path).unwrap().1, Some(record(6)));
    assert_eq!(names(&path), ["README.txt", "lock", "state"]);
}

#[cfg(unix)]
#[test]
fn others_cannot_look_into_a_directory_that_was_made() {
    use std::os::unix::fs::MetadataExt as _;
    let (_folder, path) = directory(5);
    assert_eq!(fs::metadata(path).unwrap().mode() & 0o777, 0o700);
}

#[test]
fn the_second_one_is_refused_for_as_long_as_the_first_lives_in_any_part() {
    let (_folder, path) = directory(5);
    let refused = || matches!(open(&path), Err(StorageError::InUse { .. }));
    let (store, _, lock) = open(&path).unwrap();
    assert!(refused());
    let restored = restore_as_new_domain(&path, None);
    assert!(matches!(
        restored,
        Err(RestoreError::Storage(StorageError::InUse { .. }))
    ));
    drop(store);
    assert!(refused(), "the server may still be granting");
    drop(lock);
    assert!(!refused());
    let (store, _, lock) = open(&path).unwrap();
    drop(lock);
    assert!(refused(), "something may still be written");
    drop(store);
    assert!(!refused());
}

#[test]
fn a_directory_of_others_is_refused_and_left_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    fs::write(path.join("shop.db"), "precious").unwrap();
    let refused = open(path).unwrap_err();
    assert!(
        matches!(&refused, StorageError::Foreign { name, .. } if name == "shop.db"),
        "{refused}"
    );
    assert_eq!(names(path), ["shop.db"]);

    fs::write(path.join("state"), "of something else").unwrap();
    let refused = open(path).unwrap_err();
    assert!(
        matches!(refused, StorageError::NotAState { .. }),
        "{refused}"
    );
    assert_eq!(names(path), ["shop.db", "state"]);
}

#[test]
fn an_empty_directory_and_one_cut_off_before_its_first_state_are_fine() {
    let folder = tempfile::tempdir().unwrap();
    assert!(open(folder.path()).unwrap().1.is_none());
    fs::write(folder.path().join("state.new"), "half a st").unwrap();
    assert!(open(folder.path()).unwrap().1.is_none());
}

#[test]
fn damage_and_loss_are_refused_and_nothing_is_repaired() {
    let (_folder, path) = directory(5);
    let state = path.join("state");
    let whole = fs::read(&state).unwrap();
    for damaged in [&whole[..40], &[]] {
        fs::write(&state, damaged).unwrap();
        let refused = open(&path).unwrap_err();
        assert!(matches!(refused, StorageError::Damaged { .. }), "{refused}");
        assert!(
            refused.to_string().contains("restore --new-domain"),
            "{refused}"
        );
        assert_eq!(fs::read(&state).unwrap(), damaged);
    }
    fs::remove_file(&state).unwrap();
    let refused = open(&path).unwrap_err();
    assert!(
        matches!(refused, StorageError::StateGone { .. }),
        "{refused}"
    );
    fs::create_dir(&state).unwrap();
    let refused = open(&path).unwrap_err();
    assert!(matches!(refused, StorageError::Io { .. }), "{refused}");
}

#[test]
fn a_path_that_is_no_directory_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let refused = open(&file).unwrap_err();
    assert!(
        matches!(refused, StorageError::NotADirectory { .. }),
        "{refused}"
    );
    let below = open(&file.join("below")).unwrap_err();
    assert!(matches!(below, StorageError::Io { .. }), "{below}");
}

#[test]
fn a_domain_without_tokens_is_at_its_end() {
    let (_folder, path) = directory(END_OF_TOKENS.get());
    let refused = open(&path).unwrap_err();
    assert!(
        matches!(refused, StorageError::TokensUsedUp { .. }),
        "{refused}"
    );
}

#[test]
fn a_restored_copy_is_another_domain_with_higher_tokens() {
    let (_folder, path) = directory(5);
    let restored = restore_as_new_domain(&path, None).unwrap();
    assert_eq!(restored.old_domain, record(5).domain);
    assert_ne!(restored.new_domain, restored.old_domain);
    // The system clock is further than that.
    assert!(restored.first_token > record(1_000_000_000_000_000).bound);
    assert_eq!(restored.old_leases, record(5).horizon);
    let found = open(&path).unwrap().1.unwrap();
    assert_eq!(found.domain, restored.new_domain);
    assert_eq!(found.bound, restored.first_token);

    let high = FencingToken::new(9_000_000_000_000_000_000).unwrap();
    let again = restore_as_new_domain(&path, Some(high)).unwrap();
    assert_eq!(again.first_token, high);
    assert_ne!(again.new_domain, restored.new_domain);
    // Never lower than the copy.
    let third = restore_as_new_domain(&path, Some(FencingToken::MIN)).unwrap();
    assert_eq!(third.first_token, high);
}

#[test]
fn nothing_is_restored_where_nothing_is() {
    let folder = tempfile::tempdir().unwrap();
    let refused = restore_as_new_domain(folder.path(), None).unwrap_err();
    assert!(
        matches!(refused, RestoreError::NothingThere { .. }),
        "{refused}"
    );
    let missing = folder.path().join("missing");
    assert!(restore_as_new_domain(&missing, None).is_err());
    assert!(!missing.exists());
}

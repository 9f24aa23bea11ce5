//! `highwater fence` on SQLite; `fence_servers` has the other databases.

mod walk;

#[test]
fn every_command_on_sqlite() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("shop.db");
    let operator = walk::Operator::new(format!("sqlite://{}?mode=rwc", path.display()));
    walk::every_command(&operator);
}

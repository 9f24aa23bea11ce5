//! The data directory of `highwater serve` as a user sees it.
#![cfg(unix)]

mod serving;

use std::fs;
use std::path::Path;

use nix::sys::signal::Signal;

use self::serving::{Server, highwater, refuses, run, stderr};

fn serve(folder: &Path, more: &[&str]) -> std::process::Command {
    let mut command = highwater(&["serve", "--no-auth", "--listen", "127.0.0.1:0"]);
    command.arg("--data-dir").arg(folder).args(more);
    command
}

/// Ends a server in order; its log.
fn end(server: Server) -> String {
    server.signal(Signal::SIGTERM);
    let (code, log) = server.end();
    assert_eq!(code, Some(0), "{log}");
    log
}

/// The first token of a start, which its log shows.
fn first_token(log: &str) -> u64 {
    let shown = log.split_once("first_token=").expect("it is logged").1;
    let shown: String = shown.chars().take_while(char::is_ascii_digit).collect();
    shown.parse().expect("a number")
}

#[test]
fn a_restart_is_the_same_domain_and_goes_on_with_the_tokens() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("made/by the server");
    let server = Server::start(&mut serve(&path, &[]));
    let domain = server.domain.clone();
    let log = end(server);
    assert!(log.contains("a new domain"), "{log}");
    assert!(!log.contains("in memory"), "{log}");
    let first = first_token(&log);

    // In order: nothing was given out, so nothing is left out.
    let server = Server::start(&mut serve(&path, &[]));
    assert_eq!(server.domain, domain);
    let mut server = server;
    server.process.kill().expect("a process of ours");
    let (_, log) = server.end();
    assert_eq!(first_token(&log), first);

    // After a crash: what may have been given out is left out.
    let server = Server::start(&mut serve(&path, &[]));
    assert_eq!(server.domain, domain);
    assert_eq!(first_token(&end(server)), first + 1_048_576);
}

#[test]
fn the_first_token_only_raises() {
    let folder = tempfile::tempdir().expect("a folder");
    let start = |more: &[&str]| first_token(&end(Server::start(&mut serve(folder.path(), more))));
    let high = 9_000_000_000_000_000_000;
    let first = start(&[]);
    assert_eq!(start(&["--first-token", "5"]), first);
    assert_eq!(start(&["--first-token", &high.to_string()]), high);
    assert_eq!(start(&[]), high);
}

#[test]
fn two_servers_do_not_get_one_directory() {
    let folder = tempfile::tempdir().expect("a folder");
    let first = Server::start(&mut serve(folder.path(), &[]));
    refuses(
        &mut serve(folder.path(), &[]),
        "is in use by another lock server",
    );
    let mut restore = highwater(&["restore", "--new-domain", "--data-dir"]);
    refuses(restore.arg(folder.path()), "is in use");
    end(first);
    end(Server::start(&mut serve(folder.path(), &[])));
}

#[test]
fn what_is_not_a_whole_data_directory_is_refused_with_what_to_do() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("data");
    end(Server::start(&mut serve(&path, &[])));
    let state = path.join("state");
    let whole = fs::read(&state).expect("the state");

    fs::write(&state, &whole[..99]).expect("writes");
    refuses(&mut serve(&path, &[]), "highwater restore --new-domain");
    let mut newer = whole.clone();
    newer[17] = 9;
    fs::write(&state, newer).expect("writes");
    refuses(&mut serve(&path, &[]), "has format 9");
    fs::write(&state, "[settings]").expect("writes");
    refuses(&mut serve(&path, &[]), "is not the state of a lock server");
    fs::remove_file(&state).expect("removes");
    refuses(&mut serve(&path, &[]), "the file `state` is gone");

    let foreign = folder.path().join("foreign");
    fs::create_dir(&foreign).expect("makes");
    fs::write(foreign.join("orders.csv"), "").expect("writes");
    refuses(&mut serve(&foreign, &[]), "choose an empty directory");
    refuses(
        &mut serve(&foreign.join("orders.csv"), &[]),
        "is not a directory",
    );

    fs::write(&state, whole).expect("writes");
    end(Server::start(&mut serve(&path, &[])));
}

#[test]
fn a_restored_directory_becomes_a_new_domain() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(&mut serve(folder.path(), &[]));
    let old = server.domain.clone();
    end(server);
    let restore = |more: &[&str]| {
        let mut command = highwater(&["restore", "--data-dir"]);
        command.arg(folder.path()).args(more);
        command
    };
    refuses(&mut restore(&[]), "--new-domain");
    let high = "9000000000000000000";
    let output = run(&mut restore(&["--new-domain", "--first-token", high]));
    assert!(output.status.success(), "{}", stderr(&output));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();

    let server = Server::start(&mut serve(folder.path(), &[]));
    assert_ne!(server.domain, old);
    let adopt = format!("--from {old} --to {} --floor {high}", server.domain);
    assert!(said.contains(&adopt), "{said}");
    assert_eq!(first_token(&end(server)).to_string(), high);

    let empty = tempfile::tempdir().expect("a folder");
    let mut nothing = highwater(&["restore", "--new-domain", "--data-dir"]);
    refuses(nothing.arg(empty.path()), "holds no state");
}

#[test]
fn in_memory_and_a_data_directory_exclude_each_other() {
    let folder = tempfile::tempdir().expect("a folder");
    for more in [
        &["--in-memory"][..],
        &["--in-memory", "--after-restart", "trust-fencing"],
        &["--in-memory", "--token-block", "5"],
    ] {
        refuses(&mut serve(folder.path(), more), "cannot be used with");
    }
    refuses(&mut serve(folder.path(), &["--token-block", "0"]), "0");
    let left = fs::read_dir(folder.path()).expect("reads").count();
    assert_eq!(left, 0, "nothing was made");
}

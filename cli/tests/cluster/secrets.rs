//! Real processes with more than one peer secret.

use super::*;

const OLD: &str = "peer.secret";
const NEW: &str = "peer.secret.new";

/// Has the cluster file name these secrets.
fn name(file: &Path, secrets: &[&str]) {
    let lines = read(file);
    let lines = lines.lines().map(|line| match line.split_once(" = ") {
        Some((name @ "peer-secret-file", _)) => format!("{name} = {secrets:?}\n"),
        _ => format!("{line}\n"),
    });
    std::fs::write(file, lines.collect::<String>()).expect("a file");
}

fn make_new(folder: &Path) {
    let mut token = highwater(&["token", "new", "--out"]);
    let made = token.arg(folder.join(NEW)).status().expect("runs");
    assert!(made.success());
}

/// What `cluster status` says of each node.
fn status(nodes: &Nodes) -> Vec<String> {
    let mut command = highwater(&["cluster", "status", "--cluster"]);
    let output = command.arg(nodes.path()).output().expect("runs");
    let said = String::from_utf8_lossy(&output.stdout);
    said.lines().map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_sees_who_knows_the_new_peer_secret_and_who_proves_another() {
    let mut nodes = Nodes::begun().await;
    let path = nodes.path();
    make_new(&nodes.folder.path().join("files"));
    let client = nodes.client().await;
    let kept = client.acquire(&key("kept"), options()).await.expect("free");

    name(&path, &[OLD, NEW]);
    nodes.kill(0);
    nodes.start(0);
    nodes.leader().await;
    let said = status(&nodes);
    assert!(
        said.iter().all(|line| line.contains("generation 1")),
        "{said:?}"
    );
    assert!(
        !said.iter().any(|line| line.contains("other secrets")),
        "{said:?}"
    );
    // Only the first node knows the new one, with which the command proves itself now.
    name(&path, &[NEW, OLD]);
    let said = status(&nodes);
    let [first, others @ ..] = &said[..] else {
        panic!("{said:?}");
    };
    assert!(first.contains("other secrets 1"), "{said:?}");
    let refused = |line: &String| line.contains("the peer secrets or the cluster files differ");
    assert!(others.len() == 2 && others.iter().all(refused), "{said:?}");

    name(&path, &[OLD, NEW]);
    for slot in 1..3 {
        nodes.kill(slot);
        nodes.start(slot);
        nodes.leader().await;
    }
    assert_eq!(kept.release().await, Ok(Release::Released));
}

#[test]
fn peer_secrets_that_cannot_be_safe_are_refused_with_the_reason() {
    let folder = tempfile::tempdir().expect("a folder");
    let files = folder.path().join("files");
    let mut new = highwater(&["cluster", "new"]);
    new.arg(&files);
    for node in [
        "127.0.0.1:1,127.0.0.1:2",
        "127.0.0.1:3,127.0.0.1:4",
        "127.0.0.1:5,127.0.0.1:6",
    ] {
        new.args(["--node", node]);
    }
    assert!(new.output().expect("runs").status.success());
    make_new(&files);
    let path = files.join("cluster.toml");
    let with = |arguments: &[&str], token: &str| {
        let mut command = highwater(arguments);
        command
            .args(["--cluster-slot", "0", "--cluster"])
            .arg(&path);
        command.arg("--data-dir").arg(folder.path().join("data"));
        command.args(["--listen", "127.0.0.1:0", "--peer-listen", "127.0.0.1:0"]);
        command.arg("--client-token-file").arg(files.join(token));
        command
    };
    name(&path, &[OLD, NEW]);
    let checked = with(&["config", "check"], "client.token").output();
    let checked = checked.expect("runs");
    assert!(checked.status.success(), "{checked:?}");
    for token in [OLD, NEW] {
        let reason = "a client token is the same as a peer secret";
        refuses(&mut with(&["serve"], token), reason);
    }
    name(&path, &[OLD, NEW, OLD]);
    let reason = "peer.secret holds a peer secret that is there already";
    refuses(&mut with(&["serve"], "client.token"), reason);
    let mut status = highwater(&["cluster", "status", "--cluster"]);
    refuses(status.arg(&path), reason);
    let many: Vec<String> = (0..5).map(|number| format!("{number}.secret")).collect();
    for name in &many {
        let content = format!("a peer secret of a test: {name}");
        std::fs::write(files.join(name), content).expect("a file");
    }
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    name(&path, &many);
    refuses(
        &mut with(&["serve"], "client.token"),
        "there are more than 4 peer secrets",
    );
}

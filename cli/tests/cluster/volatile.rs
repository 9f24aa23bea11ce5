//! Real processes that keep nothing on disk.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

/// What `cluster status` prints, and whether it says that somebody leads.
fn status(nodes: &Nodes) -> (String, String, bool) {
    let mut command = highwater(&["cluster", "status", "--cluster"]);
    let output = command.arg(nodes.path()).output().expect("runs");
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    let (said, wrong) = (text(&output.stdout), text(&output.stderr));
    (said, wrong, output.status.success())
}

async fn wait_for(nodes: &Nodes, what: &str, is_there: impl Fn(&str, &str) -> bool) {
    let begun = Instant::now();
    loop {
        let (said, wrong, _) = status(nodes);
        if is_there(&said, &wrong) {
            return;
        }
        assert!(begun.elapsed() < LIMIT, "{what}: {said}{wrong}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// As an operator's script does it.
async fn whole(nodes: &Nodes) {
    wait_for(nodes, "not whole", |said, _| {
        said.lines().any(|line| line.ends_with(" whole"))
    })
    .await;
}

/// Takes one lock again and again, each time with a higher token, until it is told to stop.
async fn cycle(client: Client, stop: Arc<AtomicBool>) -> u32 {
    let mut cycles = 0;
    let mut highest = None;
    while !stop.load(Ordering::Relaxed) {
        let short = options().lease(Duration::from_secs(2));
        match client.acquire(&key("load"), short).await {
            Ok(ticket) => {
                assert!(Some(ticket.token()) > highest, "{:?}", ticket.token());
                highest = Some(ticket.token());
                // Nobody may know of it, but nobody else can have it meanwhile.
                let _ = ticket.release().await;
                cycles += 1;
            }
            Err(AcquireError::Indeterminate) => {}
            Err(error) => panic!("{error}"),
        }
    }
    cycles
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_restart_one_after_the_other_under_load_and_nothing_is_lost() {
    let mut nodes = Nodes::begun_with(&["--volatile"]).await;
    let client = nodes.client().await;
    let kept = client.acquire(&key("kept"), options()).await.expect("free");
    let stop = Arc::new(AtomicBool::new(false));
    let load = tokio::spawn(cycle(nodes.client().await, Arc::clone(&stop)));
    for round in 0..2 {
        for slot in 0..3 {
            whole(&nodes).await;
            if round == 0 {
                let process = nodes.processes[slot].as_mut().expect("it runs");
                let pid = Pid::from_raw(process.id().try_into().expect("a process id"));
                kill(pid, Signal::SIGTERM).expect("a process of ours");
                assert!(process.wait().expect("a process of ours").success());
                nodes.processes[slot] = None;
            } else {
                nodes.kill(slot);
            }
            nodes.start(slot);
            let new = format!("slot {slot} generation {} ", round + 2);
            wait_for(&nodes, &new, |said, _| said.contains(&new)).await;
        }
    }
    whole(&nodes).await;
    stop.store(true, Ordering::Relaxed);
    let cycles = load.await.expect("it goes on to the end");
    println!("lock cycles during six restarts: {cycles}");
    assert!(cycles > 0);
    let taken = client
        .acquire(&key("kept"), options().wait(Duration::ZERO))
        .await;
    assert_eq!(taken.err(), Some(AcquireError::TimedOut));
    assert_eq!(kept.release().await, Ok(Release::Released));
    // Nothing lies on the disk but what was there, and the marks.
    let folder = std::fs::read_dir(nodes.folder.path()).expect("a folder");
    assert_eq!(folder.count(), 1);
    let files = std::fs::read_dir(nodes.folder.path().join("files")).expect("a folder");
    assert_eq!(files.count(), 3 + 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_has_lost_its_memory_says_so_and_does_not_begin_again() {
    let mut nodes = Nodes::begun_with(&["--volatile"]).await;
    whole(&nodes).await;
    for slot in 0..2 {
        nodes.kill(slot);
    }
    for slot in 0..2 {
        nodes.start(slot);
    }
    wait_for(&nodes, "not dead", |said, wrong| {
        let dead = said.lines().filter(|line| line.ends_with(" dead"));
        dead.count() == 3 && wrong.contains("the cluster is dead")
    })
    .await;
    assert!(!status(&nodes).2);
    for slot in ["0", "2"] {
        let mut command = highwater(&["cluster", "init", "--slot", slot, "--cluster"]);
        refuses(command.arg(nodes.path()), "was used here before");
    }
}

#[test]
fn a_volatile_node_is_given_nothing_to_keep_its_memory_in() {
    let folder = tempfile::tempdir().expect("a folder");
    let files = folder.path().join("files");
    let mut new = highwater(&["cluster", "new", "--volatile"]);
    new.arg(&files);
    for port in [1, 3, 5] {
        let node = format!("127.0.0.1:{port},127.0.0.1:{}", port + 1);
        new.args(["--node", &node]);
    }
    assert!(new.output().expect("runs").status.success());
    let serve = |more: &[&str]| {
        let mut command = highwater(&["serve", "--no-auth", "--cluster-slot", "0"]);
        command.args(["--listen", "127.0.0.1:0", "--peer-listen", "127.0.0.1:0"]);
        command.arg("--cluster").arg(files.join("cluster.toml"));
        command.args(more);
        command
    };
    let data = folder.path().join("data");
    let data = data.to_str().expect("a path of this test");
    let reason = "the cluster file says that nodes keep nothing";
    refuses(&mut serve(&["--data-dir", data]), reason);
    refuses(&mut serve(&["--cluster-generation", "2"]), reason);
    refuses(
        &mut serve(&["--in-memory"]),
        "what a node keeps is said by its cluster file",
    );
}

/// The commands that an operator gives, and nothing else: which nodes are let in is left to the cluster.
#[tokio::test(flavor = "multi_thread")]
async fn three_processes_become_five_and_three_again_under_load() {
    let mut nodes = Nodes::begun_with(&["--volatile"]).await;
    nodes.know_five().await;
    let client = nodes.client().await;
    let kept = client.acquire(&key("kept"), options()).await.expect("free");
    let stop = Arc::new(AtomicBool::new(false));
    let load = tokio::spawn(cycle(nodes.client().await, Arc::clone(&stop)));
    let mut grow = highwater(&["cluster", "grow", "--cluster"]);
    grow.arg(nodes.path()).stdout(Stdio::piped());
    let mut grow = grow.spawn().expect("starts");
    let mut lines = BufReader::new(grow.stdout.take().expect("a pipe")).lines();
    for slot in [3, 4] {
        let line = lines.next().expect("a line").expect("text");
        assert_eq!(line, format!("start the new node of slot {slot}"));
        nodes.start(slot);
    }
    let line = lines.next().expect("a line").expect("text");
    assert_eq!(line, "five nodes vote");
    assert!(grow.wait().expect("a process of ours").success());
    let mut again = highwater(&["cluster", "grow", "--cluster"]);
    let again = again.arg(nodes.path()).output().expect("runs");
    assert!(again.status.success(), "{again:?}");
    assert_eq!(again.stdout, b"five nodes vote\n");
    whole(&nodes).await;

    // The one that leads and one that does not.
    let leader = nodes.leader().await;
    let gone = [leader, (leader + 3) % 5];
    let mut remove = highwater(&["cluster", "remove", "--cluster"]);
    remove.arg(nodes.path());
    for slot in gone {
        remove.args(["--slot", &slot.to_string()]);
    }
    let output = remove.output().expect("runs");
    assert!(output.status.success(), "{output:?}");
    for slot in gone {
        let mut process = nodes.processes[slot].take().expect("it runs");
        assert!(process.wait().expect("a process of ours").success());
        nodes.start(slot);
        let refused = "this slot is not part of the cluster";
        wait_for(&nodes, refused, |said, _| {
            let line = said
                .lines()
                .find(|line| line.starts_with(&format!("slot {slot} ")));
            line.is_some_and(|line| line.contains(refused))
        })
        .await;
        nodes.kill(slot);
    }
    whole(&nodes).await;
    stop.store(true, Ordering::Relaxed);
    let cycles = load.await.expect("it goes on to the end");
    println!("lock cycles meanwhile: {cycles}");
    assert!(cycles > 0);
    let taken = client
        .acquire(&key("kept"), options().wait(Duration::ZERO))
        .await;
    assert_eq!(taken.err(), Some(AcquireError::TimedOut));
    assert_eq!(kept.release().await, Ok(Release::Released));
}

//! `highwater locks`, `highwater release`, `highwater token` and what shells get, as a user runs them.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use highwater_client::{AcquireOptions, Client, Key, Release};
use highwater_server::{Admin, AdminToken, Server};

const TOKEN: &str = "a token for operators";

struct Base {
    server: Server,
    client: Client,
}

impl Base {
    async fn new(admin: impl FnOnce(Admin) -> Admin) -> Self {
        let listener = admin(Admin::on(([127, 0, 0, 1], 0).into()));
        let builder = Server::builder().in_memory().no_auth().admin(listener);
        let server = builder.listen(([127, 0, 0, 1], 0).into()).start().await;
        let server = server.expect("starts");
        let client = Client::builder(server.local_addr()).connect().await;
        Self {
            server,
            client: client.expect("connects"),
        }
    }

    async fn run(&self, words: &[&str], token: Option<&str>) -> Output {
        let admin = self.server.admin_addr().expect("has one").to_string();
        let mut command = highwater(words);
        command.args(["--admin", &admin]);
        if let Some(token) = token {
            command.env("HIGHWATER_ADMIN_TOKEN", token);
        }
        tokio::task::spawn_blocking(move || command.output())
            .await
            .expect("no panic")
            .expect("runs")
    }

    async fn lines(&self, words: &[&str]) -> Vec<String> {
        let output = self.run(words, None).await;
        assert!(output.status.success(), "{}", said(&output));
        let text = String::from_utf8(output.stdout).expect("text");
        text.lines().map(str::to_owned).collect()
    }
}

fn highwater(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_highwater"));
    command
        .args(words)
        .env_remove("HIGHWATER_ADMIN_TOKEN")
        .stdin(Stdio::null());
    command
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn key(name: &str) -> Key {
    Key::new(name).expect("a key")
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_held_is_listed_shown_and_ended() {
    let base = Base::new(|admin| admin).await;
    let names = ["a/1", "a/2", "b/é 1"].map(|name| name.replace(' ', "_"));
    let mut tickets = Vec::new();
    for name in &names {
        let ticket = base.client.acquire(&key(name), AcquireOptions::new()).await;
        tickets.push(ticket.expect("is free"));
    }

    let all = base.lines(&["locks"]).await;
    assert_eq!(all.len(), 4, "{all:?}");
    let token = tickets[0].token().to_string();
    let words: Vec<&str> = all[1].split_whitespace().collect();
    assert_eq!(words[..2], ["a/1", token.as_str()], "{all:?}");
    assert_eq!(words.last(), Some(&"held"), "{all:?}");
    let some = base.lines(&["locks", "--prefix", "a/"]).await;
    assert_eq!(some.len(), 3, "{some:?}");
    let first = base.lines(&["locks", "--limit", "1"]).await;
    assert!(
        first.last().expect("a line").starts_with("There are more"),
        "{first:?}"
    );
    let json = base.lines(&["locks", "--json"]).await.join("\n");
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["locks"].as_array().expect("a list").len(), 3);
    assert_eq!(json["more"], false);

    let shown = base.lines(&["locks", &names[2]]).await;
    assert_eq!(shown[0], format!("{}: 0 in the queue", names[2]));
    assert!(
        shown[2].contains(&tickets[2].token().to_string()),
        "{shown:?}"
    );
    let free = base.run(&["locks", "free"], None).await;
    assert!(!free.status.success());
    assert!(said(&free).contains("404"), "{}", said(&free));

    // Not by accident.
    let unforced = base.run(&["release", "a/1"], None).await;
    assert_eq!(unforced.status.code(), Some(2));
    let ended = base.lines(&["release", "--force", "a/1"]).await;
    assert_eq!(ended[0], format!("ended: token {token} on a/1"));
    let burned: u64 = ended[1]
        .strip_prefix("burned: token ")
        .expect("it")
        .parse()
        .expect("a number");
    let domain = base.server.domain();
    let raise = format!("  highwater fence raise --domain {domain} --floor {burned} --key 'a/1'");
    assert_eq!(ended[3], raise);
    let released = tickets.remove(0).release().await;
    assert_eq!(released, Ok(Release::NotCurrent));
    let next = base
        .client
        .acquire(&key("a/1"), AcquireOptions::new())
        .await;
    assert!(next.expect("is free").token().get() > burned);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_no_token_is_told_so() {
    let token = AdminToken::from_file_content("pager", TOKEN.replace(' ', "-")).expect("a token");
    let base = Base::new(|admin| admin.token(token)).await;
    for (token, says) in [
        (None, "401"),
        (Some("another token"), "401"),
        (Some("no\u{1}token"), "visible ASCII"),
    ] {
        let output = base.run(&["locks"], token).await;
        assert!(!output.status.success());
        assert!(said(&output).contains(says), "{}", said(&output));
    }
    let right = TOKEN.replace(' ', "-");
    let output = base.run(&["locks"], Some(&right)).await;
    assert!(output.status.success(), "{}", said(&output));
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("token");
    std::fs::write(&path, format!("{right}\n")).expect("writes");
    let file = path.to_str().expect("text");
    let output = base.run(&["locks", "--admin-token-file", file], None).await;
    assert!(output.status.success(), "{}", said(&output));
    let both = base
        .run(&["locks", "--admin-token-file", file], Some(&right))
        .await;
    assert!(said(&both).contains("decide for one"), "{}", said(&both));
}

#[test]
fn a_new_token_is_random_and_its_file_private() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("token");
    let make = |path: &Path| {
        highwater(&["token", "new", "--out", path.to_str().expect("text")])
            .output()
            .expect("runs")
    };
    let made = make(&path);
    assert!(
        made.status.success() && made.stdout.is_empty(),
        "{}",
        said(&made)
    );
    let content = std::fs::read_to_string(&path).expect("is there");
    assert_eq!(content.trim_end().len(), 64);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        let mode = std::fs::metadata(&path)
            .expect("is there")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
    }
    // It may be in use.
    assert!(!make(&path).status.success());
    assert_eq!(std::fs::read_to_string(&path).expect("is there"), content);
    let other = highwater(&["token", "new"]).output().expect("runs");
    assert_ne!(other.stdout, content.as_bytes());
}

#[test]
fn shells_and_man_know_every_command() {
    let text = |words: &[&str]| {
        let output = highwater(words).output().expect("runs");
        assert!(output.status.success(), "{}", said(&output));
        String::from_utf8(output.stdout).expect("text")
    };
    let help = text(&["--help"]);
    let commands = help
        .lines()
        .skip_while(|line| !line.starts_with("Commands:"));
    let commands = commands.skip(1).take_while(|line| !line.is_empty());
    let commands: Vec<&str> = commands
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert!(commands.contains(&"lock"), "{commands:?}");
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let completions = text(&["completions", shell]);
        for command in &commands {
            assert!(completions.contains(command), "{command} in {shell}");
        }
    }
    let man = text(&["man"]);
    for command in &commands {
        assert!(man.contains(&format!("highwater\\-{command}")), "{command}");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let into = folder.path().to_str().expect("text");
    text(&["man", "--into", into]);
    for command in commands.iter().filter(|command| **command != "help") {
        let page = folder.path().join(format!("highwater-{command}.1"));
        assert!(page.is_file(), "{}", page.display());
    }
}

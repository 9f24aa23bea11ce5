//! One walk through every subcommand of `highwater fence`, for each database.

use std::io::Write as _;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

const OLD: &str = "name:old";
const NEW: &str = "name:new";
const TABLE: &str = "highwater_walk";

/// The command on one database.
pub(crate) struct Operator {
    url: String,
}

impl Operator {
    pub(crate) fn new(url: String) -> Self {
        Self { url }
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_highwater"));
        command.args(words).env("DATABASE_URL", &self.url);
        // Another program may use the default table of the same database.
        if !words.contains(&"--table") {
            command.args(["--table", TABLE]);
        }
        command
    }

    #[track_caller]
    pub(crate) fn says(&self, words: &[&str]) -> String {
        let output = self.command(words).output().expect("runs");
        assert!(output.status.success(), "{words:?}: {}", stderr(&output));
        String::from_utf8(output.stdout).expect("text")
    }

    #[track_caller]
    fn json(&self, words: &[&str]) -> Value {
        serde_json::from_str(&self.says(&[words, &["--json"]].concat())).expect("JSON")
    }

    #[track_caller]
    fn refuses(&self, words: &[&str], reason: &str) -> Output {
        let output = self.command(words).output().expect("runs");
        assert!(!output.status.success(), "{words:?}");
        let said = stderr(&output);
        assert!(said.contains(reason), "{said}");
        assert!(!said.contains(&self.url), "the URL is shown: {said}");
        output
    }

    fn makes(&self, domain: &str, floor: &str, keys: &str) {
        let words = [
            "fence",
            "raise",
            "--domain",
            domain,
            "--floor",
            floor,
            "--keys-from",
            "-",
        ];
        let mut command = self.command(&words);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("runs");
        let mut stdin = process.stdin.take().expect("a pipe");
        stdin.write_all(keys.as_bytes()).expect("writes");
        drop(stdin);
        let output = process.wait_with_output().expect("ends");
        assert!(output.status.success());
    }

    /// Key, domain and token of every mark.
    fn marks(&self) -> Vec<(String, String, String)> {
        let listed = self.json(&["fence", "list"]);
        let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
        let marks = listed["marks"].as_array().expect("a list").iter();
        marks
            .map(|mark| {
                (
                    text(&mark["key"]),
                    text(&mark["domain_name"]),
                    text(&mark["token"]),
                )
            })
            .collect()
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn mark(key: &str, domain: &str, token: &str) -> (String, String, String) {
    (key.to_owned(), domain.to_owned(), token.to_owned())
}

/// Everything an operator can say, on a database without a table of marks.
pub(crate) fn every_command(operator: &Operator) {
    operator.refuses(&["fence", "list"], "run `highwater migrate");
    operator.says(&["migrate"]);
    assert!(operator.says(&["fence", "floor"]).contains("No marks"));
    assert_eq!(operator.json(&["fence", "floor"])["highest"], Value::Null);
    operator.refuses(&["fence", "show", "stock/apple"], "has no mark");

    // What should have listed the keys may have failed.
    let nothing = ["fence", "raise", "--domain", OLD, "--floor", "7"];
    let nothing = [&nothing[..], &["--keys-from", "/dev/null"]].concat();
    operator.refuses(&nothing, "has no keys");
    operator.makes(OLD, "7", "stock/apple\nstock/cherry\nwarehouse\n");
    operator.makes("name:third", "9007199254740993", "lane\n");
    let text = operator.says(&["fence", "list", "--prefix", "stock/"]);
    let lines: Vec<Vec<&str>> = text
        .lines()
        .map(|l| l.split_whitespace().collect())
        .collect();
    assert_eq!(lines[0], ["KEY", "TOKEN", "STEP", "UPDATED", "DOMAIN"]);
    assert_eq!(lines.len(), 3, "{text}");
    assert_eq!(lines[1][..3], ["stock/apple", "7", "0"]);
    assert_eq!(lines[1][4], OLD);
    let page = operator.says(&["fence", "list", "--limit", "2"]);
    assert!(
        page.contains("There are more: --after stock/apple"),
        "{page}"
    );
    let page = operator.json(&["fence", "list", "--limit", "1", "--after", "lane"]);
    assert_eq!(page["marks"][0]["key"], "stock/apple");
    assert_eq!(page["more_after_hex"], "73746f636b2f6170706c65");
    let digits = ["fence", "list", "--hex", "--prefix", "6c61"];
    assert!(operator.says(&digits).contains("6c616e65"));
    let none = operator.says(&["fence", "list", "--domain", "name:nobody"]);
    assert_eq!(none.lines().count(), 1);

    let shown = operator.says(&["fence", "show", "stock/apple"]);
    assert!(shown.contains("token   7\n"), "{shown}");
    let shown = operator.json(&["fence", "show", "--hex", "6c616e65"]);
    assert_eq!(shown["key"], "lane");
    assert_eq!(shown["token"], "9007199254740993", "not rounded");

    let floor = operator.says(&["fence", "floor"]);
    assert!(floor.contains("--first-token 9007199254740994"), "{floor}");
    let floor = operator.json(&["fence", "floor"]);
    assert_eq!(floor["domains"][1]["domain_name"], "old");
    assert_eq!(floor["domains"][1]["highest"], "7");
    assert_eq!(floor["domains"][1]["marks"], 3);

    let adopt = ["fence", "adopt", "--to", NEW, "--floor"];
    let with = |words: &[&'static str]| [&adopt[..], words].concat();
    operator.refuses(&with(&["20"]), "which marks?");
    operator.refuses(&with(&["0", "--all"]), "a token is a number from 1 to");
    operator.refuses(&with(&["20", "--all"]), "a mark is never lowered");
    operator.refuses(&with(&["7", "--from", OLD]), "not below the floor 7");
    let before = operator.marks();
    let dry = operator.says(&with(&["20", "--from", OLD, "--dry-run"]));
    assert!(
        dry.contains("stock/cherry: token 7, domain name:old"),
        "{dry}"
    );
    assert!(
        dry.contains("would be moved to domain name:new at token 20: 3"),
        "{dry}"
    );
    assert_eq!(operator.marks(), before);
    let moved = operator.says(&with(&["20", "--from", OLD, "--prefix", "stock/"]));
    assert_eq!(moved, "marks moved to domain name:new at token 20: 2\n");
    let moved = operator.json(&with(&["20", "--key", "warehouse"]));
    assert_eq!(moved["before"][0]["token"], "7");
    let after = [
        mark("lane", "third", "9007199254740993"),
        mark("stock/apple", "new", "20"),
        mark("stock/cherry", "new", "20"),
        mark("warehouse", "new", "20"),
    ];
    assert_eq!(operator.marks(), after);

    let raise = ["fence", "raise", "--domain", NEW, "--floor", "30"];
    let raised = operator.says(&[&raise[..], &["--prefix", "ware"]].concat());
    assert_eq!(raised, "marks raised to token 30: 1\n");
    let named = [&raise[..], &["--key", "lane", "--key", "young"]].concat();
    let left = operator.refuses(&named, "1 of the named marks belong to another domain");
    let left = String::from_utf8(left.stdout).expect("text");
    assert!(
        left.contains("lane: belongs to domain name:third, left alone"),
        "{left}"
    );
    assert!(left.contains("marks made at that token: 1"), "{left}");
    operator.says(&raise);
    let after = [
        mark("lane", "third", "9007199254740993"),
        mark("stock/apple", "new", "30"),
        mark("stock/cherry", "new", "30"),
        mark("warehouse", "new", "30"),
        mark("young", "new", "30"),
    ];
    assert_eq!(operator.marks(), after);

    operator.refuses(&["fence", "prune"], "none can be forgotten safely");
    let other = ["fence", "floor", "--table", "highwater_nowhere"];
    operator.refuses(&other, "table highwater_nowhere does not exist");
}

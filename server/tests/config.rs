//! The configuration, from all its sources.

#![expect(
    clippy::unwrap_used,
    reason = "in a test a panic is the failure report"
)]

use std::path::Path;
use std::time::Duration;

use highwater_server::config::{
    ConfigErrors, Effective, LogFormat, Origin, SECRETS, Sources, ValueKind, Watch, settings,
};

const SECRET: &str = "a shared client token";

/// What a server needs at least, so that tests can be about something else.
fn enough() -> Sources {
    let mut sources = Sources::default();
    sources.flag("in-memory", ["true"]);
    sources.flag("no-auth", ["true"]);
    sources
}

/// The errors as they are shown, one on each line.
#[track_caller]
fn wrong(sources: Sources) -> Vec<String> {
    lines(&sources.read().unwrap_err())
}

fn lines(errors: &ConfigErrors) -> Vec<String> {
    assert!(!errors.errors().is_empty());
    errors.to_string().lines().map(str::to_owned).collect()
}

fn from_file(text: &str) -> Result<Effective, ConfigErrors> {
    let mut sources = enough();
    sources.file("conf/server.toml", text);
    sources.read()
}

#[test]
fn command_line_goes_before_environment_before_file_before_default() {
    let origin_of = |flag: Option<&str>, variable: Option<&str>, file: Option<&str>| {
        let mut sources = enough();
        if let Some(value) = flag {
            sources.flag("max-connections", [value]);
        }
        if let Some(value) = variable {
            sources.variable("HIGHWATER_MAX_CONNECTIONS", value);
        }
        if let Some(value) = file {
            sources.file("a.toml", format!("\n\nmax-connections = {value}"));
        }
        let read = sources.read().unwrap();
        let origin = read.origin("max-connections").to_string();
        (read.config().limits.connections, origin)
    };
    let flag = (1, "--max-connections".to_owned());
    let variable = (2, "HIGHWATER_MAX_CONNECTIONS".to_owned());
    let file = (3, "a.toml:3".to_owned());
    assert_eq!(origin_of(Some("1"), Some("2"), Some("3")), flag);
    assert_eq!(origin_of(Some("1"), None, Some("3")), flag);
    assert_eq!(origin_of(None, Some("2"), Some("3")), variable);
    assert_eq!(origin_of(None, Some(""), Some("3")), file);
    assert_eq!(origin_of(None, None, None), (10_000, "default".to_owned()));
}

#[test]
fn everything_that_is_wrong_is_told_at_once_with_its_place() {
    let mut sources = Sources::default();
    let file = "\
        listen = 'nowhere'\n\
        max-conections = 7\n\
        max-keys = '7'\n\
        frame-time = 5\n\
        in-memory = 'true'\n\
        client-token = 'a shared client token'\n\
        [limits]\n\
        keys = 7\n";
    sources.file("server.toml", file);
    sources.variable("HIGHWATER_MAX_SLOTS", "none");
    sources.variable("HIGHWATER_LISTN", "127.0.0.1:1");
    sources.variable("HIGHWATER_CLIENT_TOKEN", "too short");
    sources.variable("HIGHWATER_ADMIN_TOKEN_PREVIOUS", "0123456789abcdef");
    sources.flag("drain-limit", ["soon"]);
    sources.flag("admin-tls", ["true"]);
    let said = wrong(sources);
    let expected = [
        "listen (server.toml:1): \"nowhere\" is not an address",
        "max-conections (server.toml:2): there is no such option; is max-connections meant?",
        "max-keys (server.toml:3): it is a text, and must be a number",
        "frame-time (server.toml:4): it is a number, and must be a text in quotes",
        "in-memory (server.toml:5): it is a text, and must be true or false",
        "client-token (server.toml:6): a secret is no option; use client-token-file",
        "limits (server.toml:7): there is no such option",
        "client token (HIGHWATER_CLIENT_TOKEN): a secret has at least 16 bytes",
        "HIGHWATER_ADMIN_TOKEN_PREVIOUS (HIGHWATER_ADMIN_TOKEN_PREVIOUS): it is set without",
        "max-slots (HIGHWATER_MAX_SLOTS): \"none\" is not a whole number from 1 to 4294967295",
        "HIGHWATER_LISTN (HIGHWATER_LISTN): there is no such variable; is HIGHWATER_LISTEN meant?",
        "drain-limit (--drain-limit): \"soon\" is not a time like",
        "client-token-file: who may connect?",
        "admin-tls (--admin-tls): it needs tls-cert",
        "admin-tls (--admin-tls): it needs admin",
    ];
    for start in expected {
        let found = said.iter().any(|line| line.starts_with(start));
        assert!(found, "{start:?} is not in\n{}", said.join("\n"));
    }
    for line in &said {
        assert!(
            !line.contains(SECRET) && !line.contains("too short"),
            "{line}"
        );
    }
}

#[test]
fn values_of_other_types_and_ranges_are_refused() {
    let cases = [
        (
            "max-connections = 0",
            "\"0\" is not a whole number from 1 to 1000000",
        ),
        ("max-connections = -1", "\"-1\" is not a whole number"),
        ("max-connections = 1.5", "it is a number with a fraction"),
        (
            "max-connections = 0x10",
            "it is a number that is not decimal",
        ),
        (
            "max-connections = [1]",
            "it is a list, and must be a number",
        ),
        (
            "max-keys = 4294967296",
            "is not a whole number from 1 to 4294967295",
        ),
        ("output-bytes = 65535", "is not a whole number from 65536"),
        ("max-lease = '0s'", "\"0s\" is shorter than 1s"),
        ("handshake-time = '999us'", "is shorter than 1ms"),
        ("no-auth = 1", "it is a number, and must be true or false"),
        (
            "listen = 5225",
            "it is a number, and must be a text in quotes",
        ),
        ("listen = ':5225'", "is not an address to listen on"),
        (
            "client-token-file = [1]",
            "it is a number, and must be a text in quotes or a list",
        ),
        (
            "first-token = 0",
            "a token is a number from 1 to 9223372036854775807",
        ),
        (
            "first-token = '9223372036854775808'",
            "a token is a number from 1 to",
        ),
        (
            "after-restart = 'never'",
            "\"never\" is neither wait nor trust-fencing",
        ),
        (
            "token-block = 0",
            "\"0\" is not a whole number from 1 to 4294967295",
        ),
        ("log-format = 'xml'", "\"xml\" is neither text nor json"),
        ("admin = 'x'", "is not an address to listen on"),
        (
            "admin-page = 10001",
            "is not a whole number from 1 to 10000",
        ),
        ("drain-limit = 1979-05-27", "it is a date"),
        ("listen = { host = 'x' }", "it is a table"),
    ];
    for (text, expected) in cases {
        let said = lines(&from_file(text).unwrap_err()).join("\n");
        assert!(said.contains("(conf/server.toml:1)"), "{said}");
        assert!(said.contains(expected), "{text}: {said}");
    }
    let good = from_file("max-connections = 1_000\nfirst-token = 9_000\nmax-lease = '1s'").unwrap();
    assert_eq!(good.config().limits.connections, 1_000);
    assert_eq!(good.config().first_token.unwrap().get(), 9_000);
    assert_eq!(good.config().limits.locks.lease, Duration::from_secs(1));
}

#[test]
fn a_file_that_is_no_toml_is_told_by_line_and_nothing_is_guessed() {
    let said = lines(&from_file("listen = '127.0.0.1:1'\nmax-keys = = 2\n").unwrap_err());
    for line in &said {
        assert!(
            line.starts_with("configuration file (conf/server.toml:2): "),
            "{line}"
        );
    }
    let said = lines(&from_file("max-keys = 1\nmax-keys = 2\n").unwrap_err());
    assert!(said[0].contains("(conf/server.toml:2)"), "{said:?}");
}

#[test]
fn other_variables_of_the_prefix_are_left_alone() {
    let mut sources = enough();
    for name in [
        "HIGHWATER_TEST_POSTGRES_URL",
        "HIGHWATER_SEED",
        "HIGHWATER_KEY",
        "HIGHWATER_TLS_CA",
        "HIGHWATER_SERVER",
        "HIGHWATER_LOCK_KEY",
        "HIGHWATER_FENCING_TOKEN",
        "HIGHWATER_FENCING_DOMAIN",
        "HIGHWATER_BENCH_REDIS_URL",
        "PATH",
        "LISTEN",
    ] {
        sources.variable(name, "anything");
    }
    sources.read().unwrap();
}

#[test]
fn options_that_need_or_exclude_each_other_are_told() {
    let in_memory = || {
        let mut sources = Sources::default();
        sources.flag("in-memory", ["true"]);
        sources
    };
    for (name, value) in [
        ("data-dir", "x"),
        ("after-restart", "trust-fencing"),
        ("token-block", "5"),
    ] {
        let mut sources = enough();
        sources.flag(name, [value]);
        let said = wrong(sources);
        assert_eq!(
            said,
            [format!(
                "{name} (--{name}): it cannot be used with in-memory: decide for one"
            )]
        );
    }
    let mut sources = Sources::default();
    sources.flag("no-auth", ["true"]);
    sources.state_folder("somewhere");
    let read = sources.clone().read().unwrap();
    assert_eq!(
        read.config().data_dir.as_deref(),
        Some(Path::new("somewhere"))
    );
    assert_eq!(read.origin("data-dir"), Origin::Default);
    sources.flag("data-dir", ["elsewhere"]);
    let read = sources.read().unwrap();
    assert_eq!(
        read.config().data_dir.as_deref(),
        Some(Path::new("elsewhere"))
    );
    let mut sources = in_memory();
    sources.variable("HIGHWATER_CLIENT_TOKEN", SECRET);
    sources.flag("client-token-file", ["x"]);
    assert!(wrong(sources)[0].contains("decide for one"));
    let mut sources = in_memory();
    sources.variable("HIGHWATER_CLIENT_TOKEN", SECRET);
    sources.flag("no-auth", ["true"]);
    assert!(wrong(sources)[0].contains("decide for one"));
    let mut sources = in_memory();
    sources.flag("client-token-file", ["x"]);
    sources.flag("no-auth", ["true"]);
    assert!(wrong(sources)[0].contains("cannot be used with"));
    for (one, other) in [("tls-cert", "tls-key"), ("tls-key", "tls-cert")] {
        let mut sources = enough();
        sources.flag(one, ["x"]);
        assert_eq!(
            wrong(sources),
            [format!("{one} (--{one}): it needs {other}")]
        );
    }
    for name in ["admin-token-file", "admin-open-probes"] {
        let mut sources = enough();
        sources.flag(name, ["true"]);
        assert!(wrong(sources)[0].starts_with(&format!("{name} (--{name}): it needs admin,")));
    }
    let mut sources = in_memory();
    sources.flag("no-auth", ["true"]);
    sources.flag("no-auth", ["false"]);
    assert!(wrong(sources)[0].contains("who may connect?"));
}

#[test]
fn a_list_is_a_list_in_each_source() {
    let mut sources = enough();
    sources.flag("admin", ["127.0.0.1:0"]);
    sources.variable(
        "HIGHWATER_ADMIN_TOKEN_FILE",
        std::env::join_paths(["a", "b c"]).unwrap(),
    );
    let read = sources.read().unwrap();
    assert_eq!(
        read.config().admin_token_files,
        [Path::new("a"), Path::new("b c")]
    );
    let read = from_file("admin = 'x:1'\nadmin-token-file = ['a', 'b']").unwrap();
    assert_eq!(
        read.config().admin_token_files,
        [Path::new("a"), Path::new("b")]
    );
    let read = from_file("admin = 'x:1'\nadmin-token-file = 'a'").unwrap();
    assert_eq!(read.config().admin_token_files, [Path::new("a")]);
    let mut sources = enough();
    sources.file("f", "admin = 'x:1'\nadmin-token-file = ['a', 'b']");
    sources.flag("admin-token-file", ["c", "d"]);
    let read = sources.read().unwrap();
    assert_eq!(
        read.config().admin_token_files,
        [Path::new("c"), Path::new("d")]
    );
}

#[test]
fn what_is_printed_can_be_read_again_and_has_no_secret() {
    let mut sources = Sources::default();
    sources.flag("in-memory", ["true"]);
    sources.variable("HIGHWATER_CLIENT_TOKEN", SECRET);
    sources.variable("HIGHWATER_ADMIN_TOKEN", "an-admin-token-0");
    sources.flag("admin", ["localhost:1"]);
    sources.flag("admin-token-file", ["with \"quotes\" and \\", "two\nlines"]);
    sources.flag("log-format", ["json"]);
    sources.flag("drain-limit", ["90s"]);
    let read = sources.read().unwrap();
    let printed = read.to_toml();
    assert!(
        printed.contains("drain-limit = \"90s\" # --drain-limit\n"),
        "{printed}"
    );
    assert!(
        printed.contains("max-keys = 4000000 # default\n"),
        "{printed}"
    );
    assert!(
        printed.contains("# a secret comes from HIGHWATER_CLIENT_TOKEN\n"),
        "{printed}"
    );
    assert!(
        !printed.contains(SECRET) && !printed.contains("an-admin-token-0"),
        "{printed}"
    );
    let shown = format!("{read:?}");
    assert!(
        !shown.contains(SECRET) && !shown.contains("an-admin-token-0"),
        "{shown}"
    );

    let mut again = Sources::default();
    again.variable("HIGHWATER_CLIENT_TOKEN", SECRET);
    again.file("printed.toml", printed);
    let again = again.read().unwrap();
    for setting in settings() {
        let values = (setting.show(again.config()), setting.show(read.config()));
        assert_eq!(values.0, values.1, "{}", setting.name());
    }
    assert_eq!(again.config().log_format, LogFormat::Json);
    assert!(matches!(again.origin("admin"), Origin::File { .. }));
}

#[test]
fn further_conditions_are_told_with_the_others() {
    let mut sources = Sources::default();
    sources.flag("no-auth", ["true"]);
    sources.flag("log-level", ["loud"]);
    sources.check("log-level", |value| Err(format!("{value} is no level")));
    let said = wrong(sources);
    assert_eq!(said[0], "log-level (--log-level): loud is no level");
    assert!(
        said[1].starts_with("data-dir: there is no folder"),
        "{said:?}"
    );
}

#[tokio::test]
async fn files_and_addresses_are_told_with_everything_else() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("short"), "short").unwrap();
    std::fs::write(path("spaced"), "not a bearer token at all").unwrap();
    let mut sources = Sources::default();
    sources.flag("in-memory", ["true"]);
    sources.flag("max-keys", ["x"]);
    sources.flag("client-token-file", [path("missing"), path("short")]);
    sources.flag("admin", ["0.0.0.0:0"]);
    sources.flag("admin-token-file", [path("spaced")]);
    sources.flag("tls-cert", [path("no-cert")]);
    sources.flag("tls-key", [path("no-key")]);
    sources.flag("listen", ["no-such-host.invalid:1"]);
    let said = lines(&sources.prepare().unwrap_err());
    let expected = [
        "max-keys (--max-keys): ".to_owned(),
        format!(
            "client-token-file (--client-token-file): {}: it cannot be read: ",
            path("missing")
        ),
        format!(
            "client-token-file (--client-token-file): {}: a secret has at least 16 bytes",
            path("short")
        ),
        format!(
            "admin-token-file (--admin-token-file): {}: an admin token consists of visible",
            path("spaced")
        ),
        format!("tls-cert (--tls-cert): {} cannot be used", path("no-cert")),
        "listen (--listen): no-such-host.invalid:1 is not an address to listen on".to_owned(),
    ];
    assert_eq!(said.len(), expected.len(), "{said:#?}");
    for start in expected {
        assert!(
            said.iter().any(|line| line.starts_with(&start)),
            "{start} not in {said:#?}"
        );
    }
    for (name, address) in [("no-auth", "listen"), ("admin", "admin")] {
        let mut sources = enough();
        sources.flag(address, ["0.0.0.0:0"]);
        let said = lines(&sources.prepare().unwrap_err());
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(
            said[0].starts_with(name) && said[0].contains("not a loopback address"),
            "{said:?}"
        );
    }
    let mut sources = enough();
    sources.flag("listen", ["localhost:0"]);
    sources.flag("max-connections", ["7"]);
    let prepared = sources.prepare().unwrap();
    let server = prepared.builder.start().await.unwrap();
    assert!(server.local_addr().ip().is_loopback());
}

#[test]
fn a_watch_notices_what_changes_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, SECRET).unwrap();
    let mut sources = Sources::default();
    sources.flag("in-memory", ["true"]);
    sources.flag("client-token-file", [token.to_str().unwrap()]);
    let effective = sources.read().unwrap();
    let mut watch = Watch::new(&effective);
    assert!(!watch.changed());
    std::fs::write(&token, "another client token, longer").unwrap();
    assert!(watch.changed());
    assert!(!watch.changed());
    std::fs::remove_file(&token).unwrap();
    assert!(watch.changed());
    assert!(!watch.changed());
    assert!(effective.credentials().is_err());
    // Put in place as a whole, with the length of the one before.
    let new = folder.path().join("new");
    std::fs::write(&token, SECRET).unwrap();
    assert!(watch.changed());
    std::fs::write(&new, SECRET.to_uppercase()).unwrap();
    std::fs::rename(&new, &token).unwrap();
    assert!(watch.changed());
    assert_eq!(effective.credentials().unwrap().client_tokens.len(), 1);
}

#[test]
fn the_documentation_has_every_option_and_no_other() {
    let documented = include_str!("../../docs/server.md");
    let (_, table) = documented.split_once("## All options").unwrap();
    let (table, secrets) = table.split_once("## Secrets").unwrap();
    let rows = table.lines().filter(|line| line.starts_with("| `"));
    let defaults = highwater_server::config::Config::default();
    let expected = settings().iter().map(|setting| {
        let (name, help) = (setting.name(), setting.help());
        let value = match setting.kind() {
            ValueKind::Flag => "true or false".to_owned(),
            ValueKind::List(word) => format!("{word}s"),
            _ => setting.value_name().to_owned(),
        };
        let default = setting.show(&defaults).map(|value| format!("`{value}`"));
        let default = default.unwrap_or_default();
        format!("| `{name}` | {value} | {default} | {help} |").replace("|  |", "| |")
    });
    let expected: Vec<String> = expected.collect();
    let rows: Vec<&str> = rows.collect();
    assert_eq!(
        rows,
        expected,
        "the rows should be\n{}\n",
        expected.join("\n")
    );
    for secret in SECRETS {
        let row = format!("| `{}` | {} |", secret.name, secret.help);
        assert!(secrets.contains(&row), "{row}");
    }
}

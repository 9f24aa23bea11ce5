//! The table of all options.
//!
//! One row is an option: its name, what its value is, what it does, and how it is put into and
//! read from a [`Config`](super::Config). Command line, environment, file, help and documentation come from here.

use std::num::{NonZeroU32, NonZeroU64};
use std::path::PathBuf;
use std::time::Duration;

use highwater_lock::FencingToken;

use super::LogFormat;
use super::settings::{Setting, Shown, ValueKind};
use super::value::{self, Wrong, show_span};
use crate::storage::AfterRestart;

/// The last one given, which there always is.
fn one(values: &[String]) -> &str {
    values.last().map_or("", String::as_str)
}

fn put<T>(place: &mut T, value: Result<T, Wrong>) -> Result<(), Wrong> {
    *place = value?;
    Ok(())
}

fn paths(values: &[String]) -> Vec<PathBuf> {
    values.iter().map(PathBuf::from).collect()
}

fn shown(value: impl ToString) -> Option<Shown> {
    Some(Shown::One(value.to_string()))
}

fn show_path(path: &Option<PathBuf>) -> Option<Shown> {
    path.as_ref().and_then(|path| shown(path.display()))
}

fn show_paths(paths: &[PathBuf]) -> Option<Shown> {
    let list: Vec<String> = paths
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    (!list.is_empty()).then_some(Shown::List(list))
}

fn token(text: &str) -> Result<Option<FencingToken>, Wrong> {
    let number = text
        .parse()
        .ok()
        .filter(|number| *number <= i64::MAX as u64);
    let token = number.and_then(FencingToken::new);
    token.map(Some).ok_or_else(|| {
        format!(
            "{text:?} is no token: a token is a number from 1 to {}",
            i64::MAX
        )
    })
}

fn after_restart(text: &str) -> Result<AfterRestart, Wrong> {
    match text {
        "wait" => Ok(AfterRestart::WaitForOldLeases),
        "trust-fencing" => Ok(AfterRestart::TrustFencing),
        _ => Err(format!("{text:?} is neither wait nor trust-fencing")),
    }
}

fn log_format(text: &str) -> Result<LogFormat, Wrong> {
    match text {
        "text" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        _ => Err(format!("{text:?} is neither text nor json")),
    }
}

macro_rules! row {
    ($name:literal, $kind:expr, $help:literal, $set:expr, $show:expr) => {
        Setting {
            name: $name,
            kind: $kind,
            help: $help,
            set: $set,
            show: $show,
        }
    };
}

macro_rules! flag {
    ($name:literal, $help:literal, $($place:ident).+) => {
        row!(
            $name, ValueKind::Flag, $help,
            |config, values| put(&mut config.$($place).+, value::flag(one(values))),
            |config| shown(config.$($place).+)
        )
    };
}

macro_rules! number {
    ($name:literal, $range:expr, $help:literal, $($place:ident).+) => {
        row!(
            $name, ValueKind::Number, $help,
            |config, values| put(&mut config.$($place).+, value::number(one(values), $range)),
            |config| shown(config.$($place).+)
        )
    };
}

macro_rules! span {
    ($name:literal, $least:expr, $help:literal, $($place:ident).+) => {
        row!(
            $name, ValueKind::Text("TIME"), $help,
            |config, values| put(&mut config.$($place).+, value::span(one(values), $least)),
            |config| shown(show_span(config.$($place).+))
        )
    };
}

macro_rules! file_or_folder {
    ($name:literal, $word:literal, $help:literal, $place:ident) => {
        row!(
            $name,
            ValueKind::Text($word),
            $help,
            |config, values| put(&mut config.$place, Ok(Some(one(values).into()))),
            |config| show_path(&config.$place)
        )
    };
}

macro_rules! files {
    ($name:literal, $help:literal, $place:ident) => {
        row!(
            $name,
            ValueKind::List("FILE"),
            $help,
            |config, values| put(&mut config.$place, Ok(paths(values))),
            |config| show_paths(&config.$place)
        )
    };
}

const MOMENT: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// All options, in the order in which they are documented.
pub(super) static SETTINGS: &[Setting] = &[
    row!(
        "listen",
        ValueKind::Text("ADDR"),
        "The address for clients. Port 0 takes a free one.",
        |config, values| put(&mut config.listen, value::address(one(values))),
        |config| shown(&config.listen)
    ),
    file_or_folder!(
        "data-dir",
        "DIR",
        "Where the domain and the count of tokens are kept. Made if it is not there; it has to be on a local file system and is used by one server at a time. Without it /var/lib/highwater for root, and otherwise $XDG_STATE_HOME/highwater or ~/.local/state/highwater. A copy of it needs `highwater restore --new-domain`.",
        data_dir
    ),
    flag!(
        "in-memory",
        "Keep everything in memory: every start is a new domain, which databases refuse until their marks are moved to it.",
        in_memory
    ),
    row!(
        "after-restart",
        ValueKind::Text("WHAT"),
        "What to do about leases that an earlier start gave out and that may still be running. wait grants nothing until they are over: after a crash for as long as the longest lease that was given out, after an orderly end for what really remained. trust-fencing grants at once; only the fence keeps the writes of old holders out.",
        |config, values| put(&mut config.after_restart, after_restart(one(values))),
        |config| shown(match config.after_restart {
            AfterRestart::WaitForOldLeases => "wait",
            AfterRestart::TrustFencing => "trust-fencing",
        })
    ),
    row!(
        "token-block",
        ValueKind::Number,
        "How many tokens to reserve with one write to the data directory. After a crash what is left of a block is never given out.",
        |config, values| put(
            &mut config.token_block,
            value::number(one(values), NonZeroU32::MIN..=NonZeroU32::MAX)
        ),
        |config| shown(config.token_block)
    ),
    row!(
        "first-token",
        ValueKind::Text("TOKEN"),
        "Start the tokens at this number at least. For databases whose marks are higher than the tokens of this start would be: give one more than `highwater fence floor` shows. It only raises: a new domain starts at the system time in microseconds if that is higher, and a data directory goes on from its own count. Marks of another domain have to be moved all the same, with `highwater fence adopt`.",
        |config, values| put(&mut config.first_token, token(one(values))),
        |config| config.first_token.and_then(shown)
    ),
    file_or_folder!(
        "cluster",
        "FILE",
        "The cluster file that `highwater cluster new` has made: this server is then one of its nodes, keeps its part of the log in the data directory unless the file says that the cluster is volatile, and listens where the file says, unless listen says something else.",
        cluster
    ),
    row!(
        "cluster-slot",
        ValueKind::Text("SLOT"),
        "Which of the nodes in the cluster file this is, from 0 up.",
        |config, values| put(
            &mut config.cluster_slot,
            value::number(one(values), 0..=4).map(Some)
        ),
        |config| config.cluster_slot.and_then(shown)
    ),
    row!(
        "cluster-generation",
        ValueKind::Text("N"),
        "What `highwater cluster replace` has told for a node that takes a slot over from one that is gone, or `highwater cluster grow` for one that joins. Only needed for its first start; afterwards its data directory says so.",
        |config, values| put(
            &mut config.cluster_generation,
            value::number(one(values), NonZeroU64::MIN..=NonZeroU64::MAX).map(Some)
        ),
        |config| config.cluster_generation.and_then(shown)
    ),
    row!(
        "peer-listen",
        ValueKind::Text("ADDR"),
        "The address for the other nodes of the cluster, if it is not the one that the cluster file tells them.",
        |config, values| put(
            &mut config.peer_listen,
            value::address(one(values)).map(Some)
        ),
        |config| config.peer_listen.as_ref().and_then(shown)
    ),
    file_or_folder!(
        "peer-tls-ca",
        "FILE",
        "The authorities, in PEM, that have signed the certificates of the other nodes. Needed with TLS.",
        peer_tls_ca
    ),
    files!(
        "client-token-file",
        "A file that holds a client token, 16 to 1024 bytes. Of several, each is valid.",
        client_token_files
    ),
    flag!(
        "no-auth",
        "Let everybody in. Only possible on a loopback address.",
        no_auth
    ),
    file_or_folder!(
        "tls-cert",
        "FILE",
        "The server's certificate chain in PEM, leaf first. Turns TLS on.",
        tls_cert
    ),
    file_or_folder!(
        "tls-key",
        "FILE",
        "The key of the certificate in PEM.",
        tls_key
    ),
    span!(
        "reload-interval",
        Duration::ZERO,
        "How often to look whether a file of a token or certificate has changed, and read it again. 0s never looks; SIGHUP reads them at any time.",
        reload_interval
    ),
    number!(
        "max-connections",
        1..=1_000_000,
        "Open connections, those still setting up included. One more is closed before the hello.",
        limits.connections
    ),
    span!(
        "handshake-time",
        MOMENT,
        "The time for the whole set-up of a connection: TLS, challenge and answer.",
        limits.handshake_time
    ),
    span!(
        "frame-time",
        MOMENT,
        "The time for the rest of a frame once its first byte is there.",
        limits.frame_time
    ),
    number!(
        "output-bytes",
        65_536..=1_073_741_824,
        "The bytes of replies that may wait for one slow reader. One byte more ends its connection.",
        limits.output_bytes
    ),
    span!(
        "output-stall-time",
        MOMENT,
        "How long a reader may take nothing at all while replies wait for it.",
        limits.output_stall_time
    ),
    span!(
        "drain-limit",
        Duration::ZERO,
        "How long SIGTERM lets holders go on before their connections are closed.",
        limits.drain_time
    ),
    number!(
        "max-keys",
        1..=u32::MAX,
        "Keys that are held or queued for; an N-slot name counts as N. One more is busy.",
        limits.locks.keys
    ),
    number!(
        "max-waiters",
        0..=u32::MAX,
        "Requests in all queues. One more is busy.",
        limits.locks.waiters
    ),
    number!(
        "max-waiters-per-key",
        0..=u32::MAX,
        "Requests in the queue of one key. One more is busy.",
        limits.locks.waiters_per_key
    ),
    number!(
        "max-waiters-per-connection",
        0..=u32::MAX,
        "Queued requests of one connection. One more is busy.",
        limits.locks.waiters_per_connection
    ),
    number!(
        "max-slots",
        1..=u32::MAX,
        "Slots of one name. More are an error.",
        limits.locks.slots
    ),
    span!(
        "max-lease",
        SECOND,
        "The longest lease that can be asked for. A longer one is an error.",
        limits.locks.lease
    ),
    span!(
        "max-wait",
        Duration::ZERO,
        "The longest time in a queue that can be asked for. A longer one is an error, or busy for a client that knows no such error.",
        limits.locks.wait
    ),
    span!(
        "max-minimum-hold",
        Duration::ZERO,
        "The longest minimum hold that can be asked for. A longer one is an error.",
        limits.locks.minimum_hold
    ),
    number!(
        "expiries-per-step",
        1..=1_000_000,
        "How many leases end in one step, before other requests get their turn.",
        limits.locks.expiries_per_apply
    ),
    row!(
        "admin",
        ValueKind::Text("ADDR"),
        "The address for operators: health, metrics, the list of locks, force-release. None without it. Off the loopback it needs an admin token.",
        |config, values| put(&mut config.admin, value::address(one(values)).map(Some)),
        |config| config.admin.as_ref().and_then(shown)
    ),
    files!(
        "admin-token-file",
        "A file that holds an admin token, 16 to 1024 visible ASCII characters. Of several, each is valid; the log calls a bearer by the name of the file.",
        admin_token_files
    ),
    flag!(
        "admin-tls",
        "Speak TLS on the admin address too, with the same certificate.",
        admin_tls
    ),
    flag!(
        "admin-open-probes",
        "Answer /healthz and /readyz without an admin token.",
        admin_open_probes
    ),
    number!(
        "admin-max-connections",
        1..=100_000,
        "Open admin connections. One more is closed at once.",
        admin_limits.connections
    ),
    span!(
        "admin-request-time",
        MOMENT,
        "The time for the head of an admin request, and as much again for its body; also how long an admin connection may wait for its next request.",
        admin_limits.request_time
    ),
    span!(
        "admin-stall-time",
        MOMENT,
        "How long a reader of the admin listener may take nothing at all while an answer waits for it.",
        admin_limits.stall_time
    ),
    span!(
        "admin-connection-time",
        MOMENT,
        "How long an admin connection may live.",
        admin_limits.connection_time
    ),
    number!(
        "admin-page",
        1..=10_000,
        "The most locks in one answer of the list.",
        admin_limits.page
    ),
    row!(
        "log-format",
        ValueKind::Text("FORMAT"),
        "How log lines look: text, or json with one object on each line.",
        |config, values| put(&mut config.log_format, log_format(one(values))),
        |config| shown(match config.log_format {
            LogFormat::Text => "text",
            LogFormat::Json => "json",
        })
    ),
    row!(
        "log-level",
        ValueKind::Text("FILTER"),
        "What is logged: error, warn, info, debug or trace, or a filter of tracing. Without it RUST_LOG says so, and without that it is info.",
        |config, values| put(&mut config.log_level, Ok(Some(one(values).to_owned()))),
        |config| config.log_level.as_ref().and_then(shown)
    ),
];

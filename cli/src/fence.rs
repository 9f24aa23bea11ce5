//! `highwater fence`: looks at the marks of a database, moves them and raises them.
//!
//! What is safe to do is decided in `highwater_fencing::operate`; here are words and output.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use highwater_fencing::operate::{Changes, MarkRow, Marks, OperateError, Selection};
use highwater_fencing::{Domain, FenceKey, FencingToken, TableName};
use serde_json::{Value, json};
use sqlx::{MySql, Postgres, Sqlite};

use crate::database::{Dialect, UrlError, open};
use crate::words::{bytes, digits, domain, key, name_of, show_domain, show_key, table, token};

/// Inspect and move the marks of a database.
///
/// A mark is the highest fencing token that was admitted for a key, and the domain (the lock
/// service) that it belongs to. docs/operations.md has the procedures that these commands are for.
#[derive(Args)]
#[command(after_help = "\
Examples:
  export DATABASE_URL=postgres://…
  highwater fence list --prefix stock/
  highwater fence show stock/apple --json
  highwater fence floor
  highwater fence adopt --from OLD --to NEW --floor TOKEN --dry-run
  highwater fence raise --domain DOMAIN --floor TOKEN --key stock/apple")]
pub(crate) struct Options {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    common: Common,
}

#[derive(Args)]
struct Common {
    /// The database: postgres://…, mysql://…, mariadb://… or sqlite://…
    ///
    /// A URL with a password should come from the environment instead: other users of the machine
    /// can read arguments.
    // Not `required`: `prune` only talks.
    #[arg(
        long,
        value_name = "URL",
        env = "DATABASE_URL",
        hide_env_values = true,
        global = true
    )]
    database_url: Option<String>,
    /// The table, or schema.table, if not the default one.
    #[arg(long, value_name = "NAME", default_value_t, global = true)]
    table: TableName,
    /// Keys and prefixes are hexadecimal digits, in arguments and in the output.
    #[arg(long, global = true)]
    hex: bool,
    /// Write JSON. Tokens and steps are strings, because some readers round large numbers.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand)]
enum Command {
    /// List marks in the order of their keys.
    List {
        /// Only keys that begin with this.
        #[arg(long, value_name = "PREFIX")]
        prefix: Option<String>,
        /// Only marks of this domain: 64 digits, or name:NAME.
        #[arg(long, value_parser = domain)]
        domain: Option<Domain>,
        /// Begin behind this key.
        #[arg(long, value_name = "KEY")]
        after: Option<String>,
        /// The most marks to list.
        #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
        limit: u32,
    },
    /// Show the mark of one key.
    ///
    /// A key without a mark is an error: whoever comes first will be admitted for it.
    Show {
        /// The key.
        key: String,
    },
    /// Print the highest token of every domain.
    ///
    /// A lock service whose tokens are to be admitted has to start above it, see
    /// `highwater serve --first-token`. The service may have given out higher tokens that have not
    /// written yet.
    Floor,
    /// Move marks to another domain, after a lock service was rebuilt.
    ///
    /// The token of each mark becomes the floor, so give a floor that every token of the old
    /// service is below, also those that did not write yet, and that no token of the new one is
    /// below: the first token of the new service, which its log shows. All marks are moved or none;
    /// none is if one of them is not below the floor.
    ///
    /// It takes the locks of the marks, so no running fenced transaction overlaps it. Writers of
    /// the old domain are refused from then on, those of the new one admitted.
    #[command(after_help = "\
Example:
  highwater fence adopt --from 1f…e0 --to 9c…41 --floor 1796002494554888 --dry-run")]
    Adopt {
        /// Only marks of this domain: 64 digits, or name:NAME.
        #[arg(long, value_name = "DOMAIN", value_parser = domain)]
        from: Option<Domain>,
        /// Only the mark of this key.
        #[arg(long, value_name = "KEY")]
        key: Option<String>,
        /// Only marks whose keys begin with this.
        #[arg(long, value_name = "PREFIX")]
        prefix: Option<String>,
        /// All marks of the table, whatever domain they belong to.
        #[arg(long, conflicts_with_all = ["from", "key", "prefix"])]
        all: bool,
        /// The new domain: 64 digits as `highwater serve` prints them, or name:NAME.
        #[arg(long, value_name = "DOMAIN", value_parser = domain)]
        to: Domain,
        /// Above every token of the old service, and not above any of the new one.
        #[arg(long, value_name = "TOKEN", value_parser = token)]
        floor: FencingToken,
        #[command(flatten)]
        how: How,
    },
    /// Raise marks, so that lower tokens are refused.
    ///
    /// After a backup was restored, or a lock was taken away by force. The present holder is
    /// refused too if its token is lower. Marks that are as high already stay as they are.
    #[command(after_help = "\
Examples:
  highwater fence raise --domain 9c…41 --floor 5001
  highwater fence raise --domain 9c…41 --floor 5001 --keys-from keys.txt")]
    Raise {
        /// The domain that the floor belongs to: 64 digits, or name:NAME. Marks of others are left
        /// alone.
        #[arg(long, value_parser = domain)]
        domain: Domain,
        /// The lowest token that is still admitted.
        #[arg(long, value_name = "TOKEN", value_parser = token)]
        floor: FencingToken,
        /// Only marks whose keys begin with this.
        #[arg(long, value_name = "PREFIX", conflicts_with_all = ["key", "keys_from"])]
        prefix: Option<String>,
        /// Only the mark of this key, which is made if it is missing. Can be repeated.
        #[arg(long, value_name = "KEY")]
        key: Vec<String>,
        /// Only the marks of the keys in this file, one per line, which are made if missing; `-` is
        /// standard input.
        #[arg(long, value_name = "FILE")]
        keys_from: Option<PathBuf>,
        #[command(flatten)]
        how: How,
    },
    /// Why marks are not removed.
    Prune,
}

#[derive(Args)]
struct How {
    /// How long to wait for each mark that a running transaction has locked, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    wait: u32,
    /// Only say what would be changed.
    #[arg(long)]
    dry_run: bool,
}

/// Runs the command and prints what it gives.
pub(crate) fn run(options: Options) -> Result<(), FenceError> {
    if let Command::Prune = options.command {
        return Err(FenceError::Prune);
    }
    let url = options.common.database_url.as_deref();
    let url = url.ok_or(FenceError::NoUrl)?;
    let done = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(FenceError::Runtime)?
        .block_on(execute(options.command, &options.common, url))?;
    // A reader that goes away, such as `head`, is no reason to hide the exit status.
    let _ = std::io::Write::write_all(&mut std::io::stdout(), done.text.as_bytes());
    match done.foreign {
        0 => Ok(()),
        count => Err(FenceError::Foreign { count }),
    }
}

/// What a command has to say.
struct Done {
    text: String,
    /// Named marks that belong to another domain.
    foreign: usize,
}

async fn execute(command: Command, common: &Common, url: &str) -> Result<Done, FenceError> {
    let hex = common.hex;
    let key = |text: &str| key(text, hex).map_err(FenceError::Key);
    let narrow = |selection: Selection, prefix: Option<String>| -> Result<_, FenceError> {
        match prefix {
            None => Ok(selection),
            Some(prefix) => Ok(selection.prefix(bytes(&prefix, hex).map_err(FenceError::Key)?)),
        }
    };
    // What is wrong with the words is said before a database is asked.
    let text = match command {
        Command::List {
            prefix,
            domain,
            after,
            limit,
        } => {
            let mut selection = narrow(Selection::all(), prefix)?;
            if let Some(domain) = domain {
                selection = selection.domain(domain);
            }
            let after = after.as_deref().map(key).transpose()?;
            let marks = marks(common, url).await?;
            // One more shows whether there are more.
            let mut found = marks.list(&selection, after.as_ref(), limit + 1).await?;
            let more = found.len() > limit as usize;
            found.truncate(limit as usize);
            list(&found, more, common)
        }
        Command::Show { key: text } => {
            let key = key(&text)?;
            let found = marks(common, url).await?.show(&key).await?;
            let found = found.ok_or(FenceError::NoMark { key })?;
            show(&found, common)
        }
        Command::Floor => floor(&marks(common, url).await?, common).await?,
        Command::Adopt {
            from,
            key: named,
            prefix,
            all,
            to,
            floor,
            how,
        } => {
            let mut selection = narrow(Selection::all(), prefix)?;
            if let Some(from) = from {
                selection = selection.domain(from);
            }
            if let Some(named) = named {
                selection = selection.key(key(&named)?);
            }
            if !all && selection == Selection::all() {
                return Err(FenceError::NoSelection);
            }
            let marks = how.apply(marks(common, url).await?);
            let changes = marks.adopt(&selection, to, floor).await?;
            let domain = show_domain(to);
            let goal = format!("moved to domain {domain} at token {floor}");
            return Ok(changed(&changes, &goal, how.dry_run, common));
        }
        Command::Raise {
            domain,
            floor,
            prefix,
            key: named,
            keys_from,
            how,
        } => {
            let mut keys = BTreeSet::new();
            for named in &named {
                keys.insert(key(named)?);
            }
            let by_name = !named.is_empty() || keys_from.is_some();
            if let Some(path) = keys_from {
                let read = read_keys(&path, hex)?;
                if read.is_empty() {
                    return Err(FenceError::NoKeys { path });
                }
                keys.extend(read);
            }
            let selection = narrow(Selection::all(), prefix)?;
            let marks = how.apply(marks(common, url).await?);
            let changes = if by_name {
                marks.raise_keys(&keys, domain, floor).await?
            } else {
                marks.raise(&selection, domain, floor).await?
            };
            let goal = format!("raised to token {floor}");
            return Ok(changed(&changes, &goal, how.dry_run, common));
        }
        Command::Prune => return Err(FenceError::Prune),
    };
    Ok(Done { text, foreign: 0 })
}

impl How {
    fn apply(&self, marks: Marks) -> Marks {
        let wait = Duration::from_secs(self.wait.into());
        marks.wait_for(wait).dry_run(self.dry_run)
    }
}

async fn marks(common: &Common, url: &str) -> Result<Marks, FenceError> {
    let marks = match Dialect::of_url(url)? {
        Dialect::Postgres => Marks::new(open::<Postgres>(url).await?),
        Dialect::Mysql => Marks::new(open::<MySql>(url).await?),
        Dialect::Sqlite => Marks::new(open::<Sqlite>(url).await?),
    };
    Ok(marks.table(common.table.clone()))
}

/// Keys, one per line. A line may be empty only at the end.
fn read_keys(path: &std::path::Path, hex: bool) -> Result<Vec<FenceKey>, FenceError> {
    let text = if path.as_os_str() == "-" {
        std::io::read_to_string(std::io::stdin())
    } else {
        std::fs::read_to_string(path)
    };
    let text = text.map_err(|source| FenceError::Keys {
        path: path.to_owned(),
        source,
    })?;
    let lines = text.lines().enumerate();
    lines
        .map(|(at, line)| {
            key(line, hex).map_err(|error| FenceError::Key(format!("line {}: {error}", at + 1)))
        })
        .collect()
}

fn list(marks: &[MarkRow], more: bool, common: &Common) -> String {
    let last = marks.last().filter(|_| more);
    if common.json {
        let after = last.map(|mark| digits(mark.key.as_bytes()));
        let marks: Vec<Value> = marks.iter().map(mark_json).collect();
        return lines(&json!({ "marks": marks, "more_after_hex": after }));
    }
    let rows = marks.iter().map(|mark| {
        [
            show_key(&mark.key, common.hex),
            mark.token.to_string(),
            mark.step.to_string(),
            mark.updated_at.clone(),
            show_domain(mark.domain),
        ]
    });
    let mut text = table(
        ["KEY", "TOKEN", "STEP", "UPDATED", "DOMAIN"],
        rows.collect(),
    );
    if let Some(last) = last {
        let digits = digits(last.key.as_bytes());
        let again = if common.hex {
            digits
        } else {
            format!("{} (or --hex {digits})", show_key(&last.key, false))
        };
        writeln!(text, "There are more: --after {again}").expect("a string");
    }
    text
}

fn show(mark: &MarkRow, common: &Common) -> String {
    if common.json {
        return lines(&mark_json(mark));
    }
    format!(
        "key     {}\ndomain  {}\ntoken   {}\nstep    {}\nupdated {}\n",
        show_key(&mark.key, common.hex),
        show_domain(mark.domain),
        mark.token,
        mark.step,
        mark.updated_at,
    )
}

async fn floor(marks: &Marks, common: &Common) -> Result<String, FenceError> {
    let floors = marks.floors().await?;
    if common.json {
        let domains = floors.iter().map(|floor| {
            json!({
                "domain": floor.domain.to_string(),
                "domain_name": name_of(floor.domain),
                "highest": floor.highest.to_string(),
                "marks": floor.marks,
            })
        });
        let domains: Vec<Value> = domains.collect();
        let highest = floors.first().map(|floor| floor.highest.to_string());
        return Ok(lines(&json!({ "domains": domains, "highest": highest })));
    }
    let rows = floors.iter().map(|floor| {
        [
            floor.highest.to_string(),
            floor.marks.to_string(),
            show_domain(floor.domain),
        ]
    });
    let mut text = table(["HIGHEST", "MARKS", "DOMAIN"], rows.collect());
    match floors.first().map(|floor| floor.highest.get()) {
        None => text.push_str("No marks: tokens may start anywhere.\n"),
        Some(highest) if i64::try_from(highest) == Ok(i64::MAX) => {
            text.push_str("No token is higher that a database could store.\n");
        }
        Some(highest) => {
            let first = highest + 1;
            writeln!(
                text,
                "A rebuilt lock service starts above all of them: --first-token {first}"
            )
            .expect("a string");
        }
    }
    Ok(text)
}

fn changed(changes: &Changes, goal: &str, dry_run: bool, common: &Common) -> Done {
    let foreign = changes.foreign.len();
    if common.json {
        let of = |marks: &[MarkRow]| -> Vec<Value> { marks.iter().map(mark_json).collect() };
        let created = changes.created.iter().map(key_json);
        let text = lines(&json!({
            "dry_run": dry_run,
            "before": of(&changes.changed),
            "created": created.collect::<Vec<Value>>(),
            "foreign": of(&changes.foreign),
        }));
        return Done { text, foreign };
    }
    let mut text = String::new();
    if dry_run {
        for mark in &changes.changed {
            let (key, domain) = (show_key(&mark.key, common.hex), show_domain(mark.domain));
            writeln!(text, "{key}: token {}, domain {domain}", mark.token).expect("a string");
        }
        for key in &changes.created {
            writeln!(text, "{}: no mark", show_key(key, common.hex)).expect("a string");
        }
    }
    for mark in &changes.foreign {
        let (key, domain) = (show_key(&mark.key, common.hex), show_domain(mark.domain));
        writeln!(text, "{key}: belongs to domain {domain}, left alone").expect("a string");
    }
    let verb = if dry_run { "would be " } else { "" };
    let (changed, created) = (changes.changed.len(), changes.created.len());
    writeln!(text, "marks {verb}{goal}: {changed}").expect("a string");
    if created > 0 {
        writeln!(text, "marks {verb}made at that token: {created}").expect("a string");
    }
    Done { text, foreign }
}

fn key_json(key: &FenceKey) -> Value {
    json!({
        "key": std::str::from_utf8(key.as_bytes()).ok(),
        "key_hex": digits(key.as_bytes()),
    })
}

fn mark_json(mark: &MarkRow) -> Value {
    let mut value = key_json(&mark.key);
    value["domain"] = json!(mark.domain.to_string());
    value["domain_name"] = json!(name_of(mark.domain));
    value["token"] = json!(mark.token.to_string());
    value["step"] = json!(mark.step.to_string());
    value["updated_at"] = json!(mark.updated_at);
    value
}

fn lines(value: &Value) -> String {
    format!("{value:#}\n")
}

/// Why the command did not do it. No variant shows the URL, which may hold a password.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FenceError {
    #[error("which database? Give --database-url or set DATABASE_URL")]
    NoUrl,
    #[error(transparent)]
    Url(#[from] UrlError),
    #[error("not a key: {0}")]
    Key(String),
    #[error("{} cannot be read", path.display())]
    Keys {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("{} has no keys, so nothing was raised", path.display())]
    NoKeys { path: PathBuf },
    #[error("key {key} has no mark: whoever comes first will be admitted, under any token")]
    NoMark { key: FenceKey },
    #[error("which marks? Give --from, --key or --prefix, or --all for every mark of the table")]
    NoSelection,
    #[error("{count} of the named marks belong to another domain and were left alone")]
    Foreign { count: usize },
    #[error(
        "marks are not pruned, because none can be forgotten safely. Without a mark a key admits \
         whoever comes first, so a stale holder too; and no idle time is long enough, since a \
         suspended virtual machine can wake up after any time, with a connection to open and an \
         old token to write under. A mark takes about as much space as its key and 100 bytes. If \
         a key will never be written again under any token, delete its row by hand"
    )]
    Prune,
    #[error(transparent)]
    Operate(#[from] OperateError),
    #[error("the system refuses what the command needs")]
    Runtime(#[source] std::io::Error),
}

//! Brings command line, environment and file together.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use super::Config;
use super::credentials::{self, Credentials, EnvironmentSecrets, SECRETS};
use super::error::{Complaints, ConfigErrors, Origin};
use super::file;
use super::settings::{self, Setting, ValueKind, settings};
use super::value::nearest;
use crate::builder::Builder;

/// What somebody said, before it is judged.
///
/// Only what concerns a server counts: variables of other names are left alone, except one that
/// is nearly an option's, which is an error.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    flags: Vec<(String, Vec<String>)>,
    environment: Vec<(String, OsString)>,
    file: Option<(PathBuf, String)>,
    checks: Vec<(&'static str, Check)>,
    state_folder: Option<PathBuf>,
}

/// A further condition for a value: what is wrong with it, if something is.
type Check = fn(&str) -> Result<(), String>;

/// A configuration of which everything was looked at.
#[derive(Debug)]
#[non_exhaustive]
pub struct Prepared {
    /// The values and where they came from.
    pub effective: Effective,
    /// The secrets and certificates.
    pub credentials: Credentials,
    /// A server that has all this and only needs to be started.
    pub builder: Builder,
}

/// A configuration that makes sense so far as can be seen without looking at files, with the
/// origin of every value.
#[derive(Debug)]
pub struct Effective {
    config: Config,
    origins: BTreeMap<&'static str, Origin>,
    pub(super) secrets: EnvironmentSecrets,
}

impl Sources {
    /// An option of the command line, by its name without dashes, with its values. Of an option
    /// that is no list the last value counts.
    pub fn flag<V: Into<String>>(
        &mut self,
        name: impl Into<String>,
        values: impl IntoIterator<Item = V>,
    ) {
        let values = values.into_iter().map(Into::into).collect();
        self.flags.push((name.into(), values));
    }

    /// A variable of the environment. One without a value counts as not there.
    pub fn variable(&mut self, name: impl Into<String>, value: impl Into<OsString>) {
        let value = value.into();
        if !value.is_empty() {
            self.environment.push((name.into(), value));
        }
    }

    /// The content of a configuration file, and its path for errors.
    pub fn file(&mut self, path: impl Into<PathBuf>, content: impl Into<String>) {
        self.file = Some((path.into(), content.into()));
    }

    /// Where the data directory is if nobody says anything; the platform's place for the state of
    /// programs, say.
    pub fn state_folder(&mut self, path: impl Into<PathBuf>) {
        self.state_folder = Some(path.into());
    }

    /// A further condition for the value of an option, as it is shown; for what only the program
    /// knows.
    pub fn check(&mut self, name: &'static str, check: fn(&str) -> Result<(), String>) {
        self.checks.push((name, check));
    }

    /// Brings everything together, without a look at files.
    ///
    /// # Errors
    /// Everything that is wrong: names that are no options, values that are none, options that
    /// exclude or need each other. What stands in files is checked by [`Effective::credentials`].
    pub fn read(self) -> Result<Effective, ConfigErrors> {
        let (effective, complaints) = self.merge();
        complaints.unless_any(effective)
    }

    /// Brings everything together, reads secrets and certificates and looks addresses up, which
    /// can block for a while.
    ///
    /// # Errors
    /// As [`Sources::read`], and what is wrong with files and addresses, all at once.
    pub fn prepare(self) -> Result<Prepared, ConfigErrors> {
        let (effective, mut complaints) = self.merge();
        let credentials = effective.read_credentials(&mut complaints);
        let builder = effective.build(&credentials, &mut complaints);
        complaints.unless_any(Prepared {
            effective,
            credentials,
            builder,
        })
    }

    fn merge(self) -> (Effective, Complaints) {
        let mut reader = Reader::default();
        if let Some((path, text)) = &self.file {
            match file::read(path, text, &mut reader.complaints) {
                Some(entries) => entries.into_iter().for_each(|entry| reader.entry(entry)),
                None => reader.unclear = true,
            }
        }
        let secrets = EnvironmentSecrets::read(&self.environment, &mut reader.complaints);
        for (name, value) in self.environment {
            reader.variable(name, value);
        }
        for (name, values) in self.flags {
            let origin = Origin::Flag { name: name.clone() };
            match settings::find(&name) {
                Some(setting) => reader.take(setting, origin, values),
                None => reader.unknown(&name, &origin),
            }
        }
        if !reader.config.in_memory && reader.config.data_dir.is_none() {
            reader.config.data_dir = self.state_folder;
        }
        for (name, check) in self.checks {
            reader.check(name, check);
        }
        reader.finish(secrets)
    }
}

/// Values in the order from the weakest source to the strongest.
#[derive(Default)]
struct Reader {
    config: Config,
    origins: BTreeMap<&'static str, Origin>,
    complaints: Complaints,
    /// The file could not be read as TOML, so nobody knows what it says.
    unclear: bool,
}

impl Reader {
    fn entry(&mut self, entry: file::Entry) {
        let (name, origin) = (entry.name.clone(), entry.origin.clone());
        let Some(setting) = settings::find(&name) else {
            return self.unknown(&name, &origin);
        };
        match entry.values(setting) {
            Ok(values) => self.take(setting, origin, values),
            Err(wrong) => self.complaints.add(name, &origin, wrong),
        }
    }

    fn variable(&mut self, variable: String, value: OsString) {
        let known = settings()
            .iter()
            .map(|setting| (setting.variable(), setting));
        let known: Vec<(String, &Setting)> = known.collect();
        let found = known.iter().find(|(known, _)| *known == variable);
        let origin = Origin::Environment {
            variable: variable.clone(),
        };
        if let Some((_, setting)) = found {
            let Ok(text) = value.into_string() else {
                let message = "its value is not UTF-8";
                return self.complaints.add(setting.name(), &origin, message);
            };
            let values = match setting.kind() {
                ValueKind::List(_) => std::env::split_paths(&text)
                    .map(|path| path.to_string_lossy().into_owned())
                    .collect(),
                _ => vec![text],
            };
            return self.take(setting, origin, values);
        }
        // Other programs have variables of this prefix, so only a slip of the pen is one.
        let is_ours = variable.starts_with("HIGHWATER_");
        let is_secret = SECRETS.iter().any(|secret| secret.name == variable);
        if is_secret || !is_ours || OF_OTHER_PARTS.contains(&&*variable) {
            return;
        }
        let names = known.iter().map(|(known, _)| &**known);
        let names = names.chain(SECRETS.iter().map(|secret| secret.name));
        if let Some(near) = nearest(&variable, names) {
            let message = format!("there is no such variable; is {near} meant?");
            self.complaints.add(variable, &origin, message);
        }
    }

    fn take(&mut self, setting: &'static Setting, origin: Origin, values: Vec<String>) {
        match (setting.set)(&mut self.config, &values) {
            Ok(()) => {}
            Err(wrong) => self.complaints.add(setting.name(), &origin, wrong),
        }
        self.origins.insert(setting.name(), origin);
    }

    fn unknown(&mut self, name: &str, origin: &Origin) {
        let names = settings().iter().map(Setting::name);
        let message = if let Some(instead) = credentials::instead(name) {
            format!("a secret is no option; {instead}")
        } else if let Some(near) = nearest(name, names) {
            format!("there is no such option; is {near} meant?")
        } else {
            "there is no such option".to_owned()
        };
        self.complaints.add(name, origin, message);
    }

    fn check(&mut self, name: &'static str, check: Check) {
        let value = settings::find(name).and_then(|setting| setting.show(&self.config));
        if let Some(Err(wrong)) = value.as_deref().map(check) {
            let origin = self.origins.get(name).cloned().unwrap_or_default();
            self.complaints.add(name, &origin, wrong);
        }
    }

    fn finish(mut self, secrets: EnvironmentSecrets) -> (Effective, Complaints) {
        if !self.unclear {
            self.check_whole(&secrets);
        }
        let effective = Effective {
            config: self.config,
            origins: self.origins,
            secrets,
        };
        (effective, self.complaints)
    }

    /// What options mean for each other.
    fn check_whole(&mut self, secrets: &EnvironmentSecrets) {
        let config = &self.config;
        let mut wrong = Vec::new();
        if !config.in_memory && config.data_dir.is_none() && config.cluster.is_none() {
            wrong.push((
                "data-dir",
                "there is no folder for the state of programs (no HOME): give a directory, or in-memory",
            ));
        }
        let default = Config::default();
        wrong.extend(in_cluster(config, &default));
        for name in ["data-dir", "after-restart", "token-block"] {
            let value = |config| settings::find(name).and_then(|setting| setting.show(config));
            if config.in_memory && value(config) != value(&default) {
                wrong.push((name, "it cannot be used with in-memory: decide for one"));
            }
        }
        let from_files = !config.client_token_files.is_empty();
        match (secrets.has_client_token(), from_files, config.no_auth) {
            (false, false, false) => wrong.push((
                "client-token-file",
                "who may connect? Give a file, or set HIGHWATER_CLIENT_TOKEN; on a loopback \
                 address no-auth lets everybody in",
            )),
            (true, true, _) => wrong.push((
                "client-token-file",
                "HIGHWATER_CLIENT_TOKEN is set too: decide for one",
            )),
            (true, _, true) => wrong.push((
                "no-auth",
                "HIGHWATER_CLIENT_TOKEN is set too: decide for one",
            )),
            (_, true, true) => {
                wrong.push((
                    "no-auth",
                    "it cannot be used with client-token-file: decide for one",
                ));
            }
            _ => {}
        }
        match (&config.tls_cert, &config.tls_key) {
            (Some(_), None) => wrong.push(("tls-cert", "it needs tls-key")),
            (None, Some(_)) => wrong.push(("tls-key", "it needs tls-cert")),
            (None, None) if config.admin_tls => wrong.push(("admin-tls", "it needs tls-cert")),
            _ => {}
        }
        let for_admin = [
            ("HIGHWATER_ADMIN_TOKEN", secrets.has_admin_token()),
            ("admin-token-file", !config.admin_token_files.is_empty()),
            ("admin-tls", config.admin_tls),
            ("admin-open-probes", config.admin_open_probes),
        ];
        for (name, given) in for_admin {
            if given && config.admin.is_none() {
                wrong.push((name, "it needs admin, the address for operators"));
            }
        }
        // Of a value that could not be read nobody knows what it would mean for others.
        wrong.retain(|(name, _)| !self.complaints.is_about(name));
        for (name, message) in wrong {
            let origin = self.origins.get(name).cloned().unwrap_or_default();
            self.complaints.add(name, &origin, message);
        }
    }
}

/// What the options of a cluster need, and what a node of one cannot have.
fn in_cluster(config: &Config, default: &Config) -> Vec<(&'static str, &'static str)> {
    let mut wrong = Vec::new();
    if config.cluster.is_none() {
        let given = [
            ("cluster-slot", config.cluster_slot.is_some()),
            ("cluster-generation", config.cluster_generation.is_some()),
            ("peer-listen", config.peer_listen.is_some()),
            ("peer-tls-ca", config.peer_tls_ca.is_some()),
        ];
        let given = given.into_iter().filter(|(_, given)| *given);
        wrong.extend(given.map(|(name, _)| (name, "it needs cluster, the cluster file")));
        return wrong;
    }
    if !cfg!(feature = "cluster") {
        wrong.push(("cluster", "this program was built without clusters"));
    }
    if config.cluster_slot.is_none() {
        wrong.push((
            "cluster",
            "it needs cluster-slot: which of its nodes is this?",
        ));
    }
    if config.in_memory {
        wrong.push(("in-memory", "what a node keeps is said by its cluster file"));
    }
    if config.tls_cert.is_some() && config.peer_tls_ca.is_none() {
        wrong.push(("tls-cert", "on a node of a cluster it needs peer-tls-ca"));
    }
    if config.tls_cert.is_none() && config.peer_tls_ca.is_some() {
        wrong.push(("peer-tls-ca", "it needs tls-cert"));
    }
    for name in OF_THE_CLUSTER {
        let value = |config| settings::find(name).and_then(|setting| setting.show(config));
        if value(config) != value(default) {
            wrong.push((
                name,
                "it is the same on all nodes of a cluster and cannot be changed",
            ));
        }
    }
    for name in ["after-restart", "token-block", "drain-limit"] {
        let value = |config| settings::find(name).and_then(|setting| setting.show(config));
        if value(config) != value(default) {
            wrong.push((name, "it means nothing on a node of a cluster"));
        }
    }
    wrong
}

/// Options that decide what a command does, of which all nodes must think the same.
const OF_THE_CLUSTER: &[&str] = &[
    "first-token",
    "max-keys",
    "max-waiters",
    "max-waiters-per-key",
    "max-waiters-per-connection",
    "max-slots",
    "max-lease",
    "max-wait",
    "max-minimum-hold",
    "expiries-per-step",
];

/// Variables that mean something to another part of the command.
const OF_OTHER_PARTS: &[&str] = &[
    "HIGHWATER_ADMIN",
    "HIGHWATER_ADMIN_TOKEN",
    "HIGHWATER_ADMIN_TOKEN_FILE",
    "HIGHWATER_BENCH_REDIS_URL",
    "HIGHWATER_CLIENT_TOKEN_FILE",
    "HIGHWATER_CONFIG",
    "HIGHWATER_FENCING_DOMAIN",
    "HIGHWATER_FENCING_TOKEN",
    "HIGHWATER_LOCK_KEY",
    "HIGHWATER_SERVER",
    "HIGHWATER_TLS_CA",
];

impl Effective {
    /// The values.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Where the value of an option came from.
    pub fn origin(&self, name: &str) -> Origin {
        self.origins.get(name).cloned().unwrap_or_default()
    }

    /// The variables that secrets come from, without the secrets.
    pub fn secret_variables(&self) -> Vec<&'static str> {
        self.secrets.variables()
    }

    /// All values as a configuration file, each with its origin. No secret is in it.
    pub fn to_toml(&self) -> String {
        let mut text = String::new();
        for setting in settings() {
            let (name, origin) = (setting.name(), self.origin(setting.name()));
            let line = match setting.toml(&self.config) {
                Some(value) => format!("{name} = {value} # {origin}\n"),
                None => format!("# {name} has no value\n"),
            };
            text.push_str(&line);
        }
        for variable in self.secret_variables() {
            text.push_str(&format!("# a secret comes from {variable}\n"));
        }
        text
    }
}

//! The features that the tasks select: all of them, as far as this machine can build them.
//!
//! One thing is not in reach of Cargo: diesel speaks to MySQL and MariaDB through the client library
//! of the system. Without it the features that need it are left out, and that is said.

use std::collections::{BTreeMap, BTreeSet};

use cargo_metadata::Metadata;

use crate::run::Command;

/// What every run of Cargo over the workspace selects.
#[derive(Debug)]
pub(crate) struct Features {
    arguments: Vec<String>,
    left_out: Option<&'static str>,
}

impl Features {
    /// Looks at the manifests and at the machine.
    pub(crate) fn of(metadata: &Metadata) -> Self {
        if has_mysql_client() {
            return Self {
                arguments: vec!["--all-features".into()],
                left_out: None,
            };
        }
        let declared = metadata.workspace_packages().into_iter().map(|package| {
            let features = package.features.clone().into_iter().collect();
            (package.name.to_string(), features)
        });
        let list = without_mysql_client(&declared.collect());
        Self {
            arguments: vec!["--features".into(), list.join(",")],
            left_out: Some(LEFT_OUT),
        }
    }

    /// The arguments that select them.
    pub(crate) fn arguments(&self) -> impl Iterator<Item = String> {
        self.arguments.iter().cloned()
    }

    /// Whether diesel on MySQL and MariaDB is left out.
    pub(crate) fn lack_mysql_client(&self) -> bool {
        self.left_out.is_some()
    }

    /// Says what is left out, if something is.
    pub(crate) fn tell(&self) {
        if let Some(text) = self.left_out {
            println!("NOTE: {text}");
        }
    }
}

/// The adapters of `fencing` by feature, without the private ones. Read from the manifest, so that
/// a new one is not forgotten.
pub(crate) fn adapters(metadata: &Metadata) -> Vec<String> {
    let packages = metadata.workspace_packages();
    let fencing = packages
        .into_iter()
        .filter(|package| package.name.as_str() == FENCING);
    let features = fencing.flat_map(|package| package.features.keys().cloned());
    features
        .filter(|name| name != "default" && !name.starts_with("__"))
        .filter(|name| *name != MYSQL_CLIENT || has_mysql_client())
        .collect()
}

/// Looks where the build script of `mysqlclient-sys` looks.
fn has_mysql_client() -> bool {
    let answers = |program: &str, words: &[&str]| {
        let command = Command::new(program).args(words.iter().copied());
        command.output().is_some()
    };
    answers("pkg-config", &["--exists", "mysqlclient"])
        || answers("pkg-config", &["--exists", "libmariadb"])
        || std::env::var_os("MYSQLCLIENT_LIB_DIR").is_some()
        || answers("mysql_config", &["--version"])
}

/// The features of packages: what each of them enables, by name.
type Declared = BTreeMap<String, BTreeMap<String, Vec<String>>>;

/// All features as `package/feature` that do not lead to the client library.
fn without_mysql_client(declared: &Declared) -> Vec<String> {
    let all = declared.iter().flat_map(|(package, features)| {
        let named = move |(feature, enables)| (format!("{package}/{feature}"), package, enables);
        features.iter().map(named)
    });
    let all: Vec<(String, &String, &Vec<String>)> = all.collect();
    let mut needs = BTreeSet::from([format!("{FENCING}/{MYSQL_CLIENT}")]);
    loop {
        let leads = |package: &str, enables: &[String]| {
            enables.iter().any(|enabled| {
                needs.contains(&enabled.replace("?/", "/"))
                    || needs.contains(&format!("{package}/{enabled}"))
            })
        };
        let more: Vec<String> = all
            .iter()
            .filter(|(name, package, enables)| !needs.contains(name) && leads(package, enables))
            .map(|(name, ..)| name.clone())
            .collect();
        if more.is_empty() {
            break;
        }
        needs.extend(more);
    }
    let names = all.into_iter().map(|(name, ..)| name);
    names.filter(|name| !needs.contains(name)).collect()
}

const FENCING: &str = "highwater-fencing";
/// The feature of `fencing` that links to the client library.
const MYSQL_CLIENT: &str = "diesel-mysql";
const LEFT_OUT: &str = "diesel on MySQL and MariaDB is left out, because their client library is \
                        not installed (on Debian: apt-get install libmariadb-dev pkg-config)";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_that_leads_to_the_client_library_is_left_out() {
        let package = |features: &[(&str, &[&str])]| {
            let one = |(name, enables): &(&str, &[&str])| {
                let enables = enables.iter().map(|&word| word.to_owned()).collect();
                ((*name).to_owned(), enables)
            };
            features.iter().map(one).collect()
        };
        let declared = BTreeMap::from([
            (
                FENCING.to_owned(),
                package(&[("diesel-mysql", &["diesel/mysql"]), ("rusqlite", &[])]),
            ),
            (
                "proof".to_owned(),
                package(&[
                    ("default", &["rusqlite"]),
                    ("diesel-mysql", &["highwater-fencing/diesel-mysql"]),
                    ("rusqlite", &["highwater-fencing/rusqlite"]),
                ]),
            ),
            (
                "tests".to_owned(),
                package(&[
                    ("all", &["other", "diesel"]),
                    ("diesel", &["proof?/diesel-mysql"]),
                    ("other", &["proof/default"]),
                ]),
            ),
        ]);
        let rest = [
            "highwater-fencing/rusqlite",
            "proof/default",
            "proof/rusqlite",
            "tests/other",
        ];
        assert_eq!(without_mysql_client(&declared), rest);
    }
}

//! Rules about files and dependencies that no reviewer should have to remember.
//!
//! The same checks run as a test of this crate, so a plain `cargo test` sees them too.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use cargo_metadata::{DependencyKind, Metadata};

use crate::Result;
use crate::interop;
use crate::run::{Command, root};

/// Runs every check; the error lists each violation.
pub(crate) fn run() -> Result<()> {
    println!("\ntidy");
    let files = files()?;
    let mut broken = directions(&interop::metadata()?);
    broken.extend(clocks(&files)?);
    broken.extend(checker(&files)?);
    broken.extend(migrations()?);
    broken.extend(links(&files)?);
    broken.extend(places(&files)?);
    broken.extend(lints(&files)?);
    if broken.is_empty() {
        println!("{} files, no rule broken", files.len());
        return Ok(());
    }
    Err(format!("{} rules broken:\n{}", broken.len(), broken.join("\n")).into())
}

/// The files of the repository, relative to its root.
fn files() -> Result<Vec<PathBuf>> {
    let listed = Command::new("git").args(["ls-files", "-z"]).output();
    let listed = listed.ok_or("`git ls-files` does not work here")?;
    let names = listed.split('\0').filter(|name| !name.is_empty());
    Ok(names
        .map(PathBuf::from)
        .filter(|name| root().join(name).is_file())
        .collect())
}

fn read(file: &Path) -> Result<String> {
    let bytes = fs::read(root().join(file))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Who may depend on whom. Crates that are not named here may use everything.
const DIRECTIONS: &[(&str, &[&str])] = &[
    ("highwater-lock", &[]),
    ("highwater-protocol", &["highwater-lock"]),
    ("highwater-fencing", &["highwater-lock"]),
    ("highwater-history", &["highwater-lock"]),
    ("highwater-client-macros", &["highwater-lock"]),
    (
        "highwater-client",
        &[
            "highwater-client-macros",
            "highwater-lock",
            "highwater-protocol",
        ],
    ),
    (
        "highwater-server",
        &["highwater-lock", "highwater-protocol"],
    ),
    ("xtask", &[]),
];

fn directions(metadata: &Metadata) -> Vec<String> {
    let members = metadata.workspace_packages();
    let names: BTreeSet<&str> = members
        .iter()
        .map(|package| package.name.as_str())
        .collect();
    let mut broken = Vec::new();
    for (name, allowed) in DIRECTIONS {
        let Some(package) = members
            .iter()
            .find(|package| package.name.as_str() == *name)
        else {
            broken.push(format!("{name} is not a member of the workspace"));
            continue;
        };
        for dependency in &package.dependencies {
            let used = dependency.name.as_str();
            let is_ours = names.contains(used) && used != *name;
            if dependency.kind != DependencyKind::Development && is_ours && !allowed.contains(&used)
            {
                broken.push(format!("{name} must not depend on {used}"));
            }
        }
    }
    broken
}

/// The one file of a crate that reads a clock or the randomness of the system.
const CLOCKS: &[(&str, Option<&str>)] = &[
    ("lock/src", None),
    ("protocol/src", None),
    ("fencing/src", Some("fencing/src/retry.rs")),
    ("history/src", Some("history/src/bin/simulate.rs")),
    ("client/src", Some("client/src/system.rs")),
    ("client/macros/src", None),
    ("server/src", Some("server/src/system.rs")),
];

fn clocks(files: &[PathBuf]) -> Result<Vec<String>> {
    let words = [
        "Instant::now",
        "SystemTime::now",
        "clock_gettime",
        "getrandom::fill",
        "getrandom::u32",
        "getrandom::u64",
        "rand::rng",
        "rand::random",
        "OsRng",
    ];
    let mut broken = Vec::new();
    for (folder, allowed) in CLOCKS {
        let sources = files.iter().filter(|file| {
            file.starts_with(folder)
                && file.extension().is_some_and(|extension| extension == "rs")
                && file.file_stem().is_none_or(|stem| stem != "tests")
                && allowed.is_none_or(|allowed| *file != Path::new(allowed))
        });
        for file in sources {
            let text = read(file)?;
            // Unit tests stand at the end of a file.
            let product = text
                .split("#[cfg(test)]\nmod tests {")
                .next()
                .unwrap_or_default();
            for word in words.iter().filter(|word| product.contains(**word)) {
                let place = allowed.unwrap_or("the caller");
                broken.push(format!("{}: {word} belongs in {place}", file.display()));
            }
        }
    }
    Ok(broken)
}

/// What checks the lock core shares nothing with it: only the simulation, which runs it, names it.
fn checker(files: &[PathBuf]) -> Result<Vec<String>> {
    let mut broken = Vec::new();
    let sources = files.iter().filter(|file| {
        file.starts_with("history/src") && !file.starts_with("history/src/simulation")
    });
    for file in sources {
        if read(file)?.contains("highwater_lock") {
            let file = file.display();
            broken.push(format!("{file}: only the simulation names the lock core"));
        }
    }
    Ok(broken)
}

/// Each database has the same migrations, up and down, and the code has every one of them.
fn migrations() -> Result<Vec<String>> {
    let mut broken = Vec::new();
    let code = read(Path::new("fencing/src/migrate.rs"))?;
    let mut all: Vec<(&str, BTreeSet<String>)> = Vec::new();
    for database in ["postgres", "mysql", "sqlite"] {
        let mut names = BTreeSet::new();
        for entry in fs::read_dir(root().join("migrations").join(database))? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if !code.contains(&format!("migrations/{database}/{name}\"")) {
                broken.push(format!(
                    "migrations/{database}/{name} is not in fencing::migrate"
                ));
            }
            names.insert(name);
        }
        for name in &names {
            if let Some(up) = name.strip_suffix(".down.sql") {
                if !names.contains(&format!("{up}.up.sql")) {
                    broken.push(format!("migrations/{database}/{name} has no way up"));
                }
            } else if let Some(up) = name.strip_suffix(".up.sql") {
                if !names.contains(&format!("{up}.down.sql")) {
                    broken.push(format!("migrations/{database}/{name} has no way down"));
                }
            } else {
                broken.push(format!("migrations/{database}/{name}: neither up nor down"));
            }
        }
        all.push((database, names));
    }
    for pair in all.windows(2) {
        if pair[0].1 != pair[1].1 {
            broken.push(format!(
                "{} and {} have different migrations",
                pair[0].0, pair[1].0
            ));
        }
    }
    Ok(broken)
}

/// Relative links in Markdown lead to files.
fn links(files: &[PathBuf]) -> Result<Vec<String>> {
    let mut broken = Vec::new();
    let pages = files
        .iter()
        .filter(|file| file.extension().is_some_and(|is| is == "md"));
    for page in pages {
        let folder = page.parent().unwrap_or(Path::new(""));
        for target in targets(&read(page)?) {
            if !root().join(folder).join(&target).exists() {
                broken.push(format!("{}: nothing at {target}", page.display()));
            }
        }
    }
    Ok(broken)
}

/// What the inline links of a page point to, if that is a file; fenced code is not looked at.
fn targets(page: &str) -> Vec<String> {
    let mut code = false;
    let mut found = Vec::new();
    for line in page.lines() {
        if line.trim_start().starts_with("```") {
            code = !code;
        }
        let links = line.split("](").skip(1).filter(|_| !code);
        for target in links.filter_map(|rest| rest.split(')').next()) {
            let file = target.split('#').next().unwrap_or_default();
            if !file.is_empty() && !file.contains("://") && !file.starts_with("mailto:") {
                found.push(file.to_owned());
            }
        }
    }
    found
}

/// No path of one machine, and no host of a package registry. (The words are put together here, so
/// that this file does not contain them.)
fn places(files: &[PathBuf]) -> Result<Vec<String>> {
    let machine = ["work", "farm"].map(|folder| format!("/{folder}/"));
    let registries = ["debian", "crates", "pythonhosted", "npmjs"];
    let mut broken = Vec::new();
    for file in files.iter().filter(|file| !file.ends_with("Cargo.lock")) {
        for (number, line) in read(file)?.lines().enumerate() {
            let place = || format!("{}:{}", file.display(), number + 1);
            if let Some(word) = machine.iter().find(|word| line.contains(&***word)) {
                broken.push(format!("{}: {word} is a path of one machine", place()));
            }
            for rest in line.split("://").skip(1) {
                let host = rest.split('/').next().unwrap_or_default();
                if rest.contains('/') && registries.iter().any(|word| host.contains(word)) {
                    broken.push(format!("{}: {host} is the host of a registry", place()));
                }
            }
        }
    }
    Ok(broken)
}

/// Every crate takes the lints of the workspace, which forbid unsafe code.
fn lints(files: &[PathBuf]) -> Result<Vec<String>> {
    let mut broken = Vec::new();
    for file in files.iter().filter(|file| file.ends_with("Cargo.toml")) {
        let manifest = read(file)?;
        let is_member = manifest.contains("version.workspace = true");
        if is_member && !manifest.contains("[lints]\nworkspace = true") {
            broken.push(format!(
                "{}: does not take the workspace's lints",
                file.display()
            ));
        }
    }
    Ok(broken)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_repository_keeps_its_rules() {
        super::run().unwrap_or_else(|error| panic!("{error}"));
    }

    #[test]
    fn links_are_found_outside_of_code() {
        let page = "[a](x.md#part) [b](https://h/) [c](#here)\n```\n[d](y.md)\n```\n[e](z/w)";
        assert_eq!(super::targets(page), ["x.md", "z/w"]);
    }
}

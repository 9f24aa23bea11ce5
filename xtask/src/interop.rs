//! `cargo xtask interop`: the published client's own network tests against our server.
//!
//! Takes the package `ticketing` as the registry published it, copies it under the target folder
//! and runs its tests there, unchanged: those for a single server, and those for a cluster, while one
//! node after the other is replaced. That they pass, and that there were any, is the result; what they
//! check is that package's business.

mod cluster;

use std::error::Error;
use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use self::cluster::{Cluster, Mode};
use cargo_metadata::{CargoOpt, Metadata, MetadataCommand};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// How our server and the package's tests are compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Profile {
    /// As users run them.
    Release,
    /// As everything else that the tests run, so that the server is there already.
    Dev,
}

/// Runs all of them and prints one line for each.
///
/// # Errors
/// The package is missing, the server does not start, a test fails, or none was run.
pub(crate) fn run(profile: Profile) -> Result<()> {
    let metadata = metadata()?;
    let package = Package {
        folder: copy_package(&metadata)?,
        profile,
    };
    let server = match profile {
        Profile::Release => build_server(&metadata)?,
        Profile::Dev => program(&metadata, "debug"),
    };

    let plain = RunningServer::start(&server, FIXED_ADDRESS, None)?;
    let mut results = Vec::new();
    for test in ["nc_example_simple_test", "nc_bank_test", "nc_bench_test"] {
        results.push((test.to_owned(), package.test(test, &[])));
    }
    drop(plain);

    let guarded = RunningServer::start(&server, "127.0.0.1:0", Some(BENCH_TOKEN))?;
    let settings = [
        ("TICKETING_BENCH_ENDPOINTS", guarded.address.as_str()),
        ("TICKETING_BENCH_TOKEN", BENCH_TOKEN),
        ("TICKETING_BENCH_IDENTITY", ""),
        ("TICKETING_BENCH_MODE", "single"),
        ("TICKETING_BENCH_NAMESPACE", "interop"),
    ];
    let with_secret = package.test("nc_bench_test", &settings);
    results.push(("nc_bench_test with a secret".to_owned(), with_secret));
    drop(guarded);
    results.extend(on_clusters(&metadata, &package, &server)?);

    let mut failed = 0;
    for (name, result) in &results {
        match result {
            Ok(passed) => println!("interop: {name}: {passed} passed"),
            Err(error) => {
                failed += 1;
                println!("interop: {name}: FAILED: {error}");
            }
        }
    }
    match failed {
        0 => Ok(()),
        _ => Err(format!("{failed} of {} interop runs failed", results.len()).into()),
    }
}

/// The tests for a cluster: in calm, and while its nodes are replaced.
fn on_clusters(
    metadata: &Metadata,
    package: &Package,
    server: &Path,
) -> Result<Vec<(String, Result<u32>)>> {
    let folder = metadata.target_directory.join("interop/cluster");
    let mut results = Vec::new();
    for (mode, under_replacement) in [
        (
            Mode::Durable,
            &["nc_cluster_chaos_test", "nc_cluster_soak_test"][..],
        ),
        (Mode::Volatile, &["nc_cluster_chaos_test"]),
    ] {
        let mut cluster = Cluster::begin(server, folder.as_std_path(), mode)?;
        let (identity, token) = (cluster.identity.clone(), cluster.token.clone());
        let mut settings = vec![
            ("TICKETING_CLIENT_TOKEN", token.as_str()),
            ("TICKETING_IDENTITY_FINGERPRINT", identity.as_str()),
        ];
        settings.extend(BOUNDS);
        let mut note = |test: &str, result| results.push((format!("{test} ({mode:?})"), result));
        note(
            "nc_cluster_test",
            package.test("nc_cluster_test", &settings),
        );
        for test in under_replacement {
            let result = while_nodes_are_replaced(&mut cluster, || package.test(test, &settings));
            note(test, result);
        }
    }
    Ok(results)
}

/// Runs a test while one node after the other is replaced.
fn while_nodes_are_replaced(
    cluster: &mut Cluster,
    test: impl FnOnce() -> Result<u32>,
) -> Result<u32> {
    let stop = AtomicBool::new(false);
    let (ended, replaced) = std::thread::scope(|scope| {
        let replacing = scope.spawn(|| {
            let replaced = cluster.replace_until(&stop);
            replaced.map_err(|error| error.to_string())
        });
        let ended = test();
        stop.store(true, Ordering::Relaxed);
        (ended, replacing.join())
    });
    match replaced.unwrap_or_else(|_| Err("the replacing thread panicked".into()))? {
        0 => Err("no node was replaced".into()),
        count => {
            println!("interop: {count} nodes were replaced meanwhile");
            ended
        }
    }
}

/// What Cargo knows, for this platform only: other platforms' packages need not be there.
pub(crate) fn metadata() -> Result<Metadata> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = Command::new(rustc).arg("-vV").output()?;
    let version = String::from_utf8(version.stdout)?;
    let host = version
        .lines()
        .find_map(|line| line.strip_prefix("host: "))
        .ok_or("rustc does not tell its host")?;
    let options = ["--locked", "--filter-platform", host].map(str::to_owned);
    Ok(MetadataCommand::new()
        .features(CargoOpt::AllFeatures)
        .other_options(options)
        .exec()?)
}

fn copy_package(metadata: &Metadata) -> Result<PathBuf> {
    let package = metadata
        .packages
        .iter()
        .find(|package| package.name.as_str() == PACKAGE && package.version == PUBLISHED)
        .ok_or_else(|| format!("{PACKAGE} {PUBLISHED} is not among the dependencies"))?;
    let from = package
        .manifest_path
        .parent()
        .ok_or("a manifest has a folder")?;
    let target = metadata.target_directory.join("interop");
    let to = target
        .join(format!("{PACKAGE}-{PUBLISHED}"))
        .into_std_path_buf();
    if to.exists() {
        fs::remove_dir_all(&to)?;
    }
    copy_folder(from.as_std_path(), &to)?;
    // The versions that this workspace is built with are there already; the package allows them.
    fs::copy(
        metadata.workspace_root.join("Cargo.lock"),
        to.join("Cargo.lock"),
    )?;
    Ok(to)
}

fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

fn build_server(metadata: &Metadata) -> Result<PathBuf> {
    let built = cargo()
        .current_dir(&metadata.workspace_root)
        .args(["build", "--release", "--locked", "--package", "highwater"])
        .arg("--target-dir")
        .arg(&metadata.target_directory)
        .status()?;
    if !built.success() {
        return Err("the server does not build".into());
    }
    Ok(program(metadata, "release"))
}

/// Our server, where a build of this profile puts it.
fn program(metadata: &Metadata, folder: &str) -> PathBuf {
    let name = format!("highwater{}", std::env::consts::EXE_SUFFIX);
    metadata.target_directory.join(folder).join(name).into()
}

/// The published package, unpacked.
struct Package {
    folder: PathBuf,
    profile: Profile,
}

impl Package {
    /// Runs one of its test binaries; gives the number of passed tests, which is not zero.
    fn test(&self, test: &str, settings: &[(&str, &str)]) -> Result<u32> {
        let build = self.folder.with_file_name("build");
        let mut command = cargo();
        command
            .current_dir(&self.folder)
            .env("CARGO_TARGET_DIR", build)
            .envs(settings.iter().copied())
            .args(["test", "--features", "tracing", "--test", test]);
        if self.profile == Profile::Release {
            command.arg("--release");
        }
        if IGNORED_BY_DEFAULT.contains(&test) {
            command.args(["--", "--ignored", "--nocapture"]);
        }
        let run = command.stderr(Stdio::inherit()).output()?;
        let output = String::from_utf8_lossy(&run.stdout);
        print!("{output}");
        if !run.status.success() {
            return Err(format!("cargo test ended with {}", run.status).into());
        }
        match passed(&output) {
            0 => Err("no test ran".into()),
            passed => Ok(passed),
        }
    }
}

/// Adds up the summary lines of the test harness.
fn passed(output: &str) -> u32 {
    let summaries = output
        .lines()
        .filter_map(|line| line.strip_prefix("test result: ok. "));
    summaries
        .filter_map(|summary| summary.split(' ').next()?.parse::<u32>().ok())
        .sum()
}

fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")))
}

/// A server of ours in a process of its own; dropping it ends the process.
struct RunningServer {
    process: Child,
    address: String,
}

impl RunningServer {
    /// Starts one and waits until it says where it listens.
    fn start(program: &Path, listen: &str, secret: Option<&str>) -> Result<Self> {
        let mut command = Command::new(program);
        command.args(["serve", "--in-memory", "--listen", listen]);
        command.env_remove("HIGHWATER_CLIENT_TOKEN");
        match secret {
            Some(secret) => command.env("HIGHWATER_CLIENT_TOKEN", secret),
            None => command.arg("--no-auth"),
        };
        let mut process = command.stdout(Stdio::piped()).spawn()?;
        let stdout = process.stdout.take().ok_or("a pipe was asked for")?;
        // From here on the process is ended whatever happens.
        let mut server = Self {
            process,
            address: String::new(),
        };
        let (tell, told) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout)
                .lines()
                .map_while(std::io::Result::ok)
            {
                if tell.send(line).is_err() {
                    return;
                }
            }
        });
        let line = told
            .recv_timeout(START_TIME)
            .map_err(|_| format!("the server does not start on {listen}: is the port in use?"))?;
        server.address = line
            .split(' ')
            .find(|word| word.parse::<std::net::SocketAddr>().is_ok())
            .ok_or_else(|| format!("no address in {line:?}"))?
            .to_owned();
        Ok(server)
    }
}

impl Drop for RunningServer {
    fn drop(&mut self) {
        // It may have ended by itself; then there is nothing to do.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

const PACKAGE: &str = "ticketing";
const PUBLISHED: cargo_metadata::semver::Version = cargo_metadata::semver::Version::new(0, 4, 0);
/// Where the package's tests expect a server without authentication.
const FIXED_ADDRESS: &str = "127.0.0.1:5225";
/// Their default set contains no test of these; the bench is run without its diagnostic burst.
const IGNORED_BY_DEFAULT: [&str; 4] = [
    "nc_example_simple_test",
    "nc_cluster_test",
    "nc_cluster_chaos_test",
    "nc_cluster_soak_test",
];
/// For how long the two that last run; the second one never ends without it.
const BOUNDS: [(&str, &str); 2] = [("TICKETING_CHAOS_SECS", "25"), ("soak_secs", "15")];
/// Not a secret: it protects a server on loopback for the length of one test.
const BENCH_TOKEN: &str = "interop bench token";
const START_TIME: Duration = Duration::from_secs(10);

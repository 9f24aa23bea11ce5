//! Clocks that are wrong on purpose, so that tests with real processes see what is done about it.
//!
//! `HIGHWATER_TEST_CLOCK` names a file with two numbers: by how many millionths the monotonic clock of
//! this node runs too fast, and by how many milliseconds its wall clock is ahead. It is read again and
//! again; one that is not there or says something else means right clocks. A program that was built
//! for use, without debug assertions, does not start with this variable.

use std::path::{Path, PathBuf};
use std::time::Duration;

use highwater_server::Builder;
use highwater_server::cluster::ClockSkew;

/// The builder of a node whose clocks run as the file says, if there is to be one.
pub(crate) fn skewed(builder: Builder) -> Result<Builder, NotInUse> {
    let Some(path) = std::env::var_os(VARIABLE).filter(|path| !path.is_empty()) else {
        return Ok(builder);
    };
    if !cfg!(debug_assertions) {
        return Err(NotInUse);
    }
    let path = PathBuf::from(path);
    tracing::error!(
        path = %path.display(),
        "the clocks of this node run as a file says: only tests want that"
    );
    let skew = ClockSkew::none();
    let follower = skew.clone();
    std::thread::spawn(move || follow(&path, &follower));
    Ok(builder.clock_skew(skew))
}

fn follow(path: &Path, skew: &ClockSkew) {
    let mut last = (0, 0);
    loop {
        let now = read(path).unwrap_or((0, 0));
        if now != last {
            last = now;
            skew.set(now.0, now.1.saturating_mul(1_000));
        }
        std::thread::sleep(PERIOD);
    }
}

fn read(path: &Path) -> Option<(i32, i64)> {
    let text = std::fs::read_to_string(path).ok()?;
    let mut numbers = text.split_whitespace();
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Such a variable in the environment of a service is a mistake that must not go unnoticed.
#[derive(Debug, thiserror::Error)]
#[error(
    "{VARIABLE} makes clocks run wrong for tests, and this program was built for use: unset it"
)]
pub(crate) struct NotInUse;

const VARIABLE: &str = "HIGHWATER_TEST_CLOCK";
const PERIOD: Duration = Duration::from_millis(50);

//! A progress bar on a terminal, plain lines elsewhere.

use std::io::{IsTerminal, Write as _, stderr};
use std::sync::atomic::{AtomicUsize, Ordering};

use indicatif::{ProgressBar, ProgressStyle};

/// Counts the orders of one run.
pub(crate) struct Progress {
    title: &'static str,
    orders: usize,
    sold: AtomicUsize,
    bar: Option<ProgressBar>,
}

impl Progress {
    pub(crate) fn new(title: &'static str, orders: usize) -> Self {
        let bar = stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(orders as u64);
            if let Ok(style) = ProgressStyle::with_template("{msg} {bar:30} {pos}/{len} orders") {
                bar.set_style(style);
            }
            bar.set_message(title);
            bar
        });
        Self {
            title,
            orders,
            sold: AtomicUsize::new(0),
            bar,
        }
    }

    /// One more order is in the database.
    pub(crate) fn sold(&self) {
        let sold = self.sold.fetch_add(1, Ordering::Relaxed) + 1;
        match &self.bar {
            Some(bar) => bar.inc(1),
            None if sold == self.orders || sold.is_multiple_of((self.orders / 4).max(1)) => {
                tell(&format!("{}: {sold}/{} orders", self.title, self.orders));
            }
            None => {}
        }
    }

    /// A line above the bar.
    pub(crate) fn note(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.println(format!("  {line}")),
            None => tell(&format!("{}: {line}", self.title)),
        }
    }

    pub(crate) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Writes a line to standard error; where nobody reads it any more, the work goes on.
pub(crate) fn tell(line: &str) {
    let _ = writeln!(stderr(), "{line}");
}

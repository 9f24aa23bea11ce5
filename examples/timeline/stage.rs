//! The clock, the candidates, and the table of what happened to them.

use std::cell::RefCell;
use std::error::Error;
use std::fmt::Display;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};
use highwater_client::FencingToken;
use highwater_client::leader::{
    Events, InProcess, LeaderElector, LeaderGuard, LeaderOptionsBuilder, LeaseEnd, Occurrence,
    Standing,
};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};

/// What is led in every scenario.
pub(crate) const NAME: &str = "invoice/close";

/// One lock service, its candidates, and what happened so far.
pub(crate) struct Stage {
    service: InProcess,
    started: Instant,
    /// In the order in which their events of one tick are told.
    readers: RefCell<Vec<(LeaderElector, Events)>>,
    rows: RefCell<Vec<[String; 6]>>,
}

impl Stage {
    pub(crate) fn new() -> Self {
        Self {
            service: InProcess::new(),
            started: Instant::now(),
            readers: RefCell::default(),
            rows: RefCell::default(),
        }
    }

    /// Another candidate, whose events are told from now on.
    pub(crate) fn candidate(
        &self,
        node: &str,
        options: LeaderOptionsBuilder,
    ) -> Result<LeaderElector, Box<dyn Error>> {
        let elector = LeaderElector::new(self.service.clone(), options.node(node).build()?);
        let reader = (elector.clone(), elector.subscribe());
        self.readers.borrow_mut().push(reader);
        Ok(elector)
    }

    /// Lets time pass until a tick, given in seconds, and tells what happens on the way.
    pub(crate) async fn at(&self, seconds: u64) -> Result<(), Box<dyn Error>> {
        let until = Duration::from_secs(seconds);
        loop {
            self.look().await?;
            let next = self.tick() + TICK;
            sleep_until(self.started + next).await;
            if next >= until {
                return Ok(());
            }
        }
    }

    /// Notes what a script does, behind what the lock service made of it.
    pub(crate) async fn note(
        &self,
        elector: &LeaderElector,
        action: &str,
        token: Option<FencingToken>,
        result: impl Display,
    ) -> Result<(), Box<dyn Error>> {
        self.look().await?;
        self.row(elector, action, token, result.to_string()).await
    }

    /// The table, when everything has come to rest.
    pub(crate) async fn end(self) -> Result<String, Box<dyn Error>> {
        self.look().await?;
        let mut table = Table::new();
        table.load_style(presets::ASCII_MARKDOWN);
        table.set_header(["Tick", "Candidate", "Action", "Token", "TTL", "Result"]);
        for column in [0, 3, 4] {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        table.add_rows(self.rows.into_inner());
        let lines = table.lines().map(|line| line.trim_end().to_owned());
        Ok(lines.collect::<Vec<_>>().join("\n"))
    }

    /// Tells the events of this tick. A millisecond of virtual time passes only when nobody has
    /// anything to do any more, so none is missed.
    async fn look(&self) -> Result<(), Box<dyn Error>> {
        sleep(LOOK).await;
        let mut happened = Vec::new();
        for (elector, events) in self.readers.borrow_mut().iter_mut() {
            while let Some(event) = at_once(events.next()) {
                let event = event.ok_or("the elector is gone")??;
                happened.push((elector.clone(), event.what));
            }
        }
        for (elector, what) in happened {
            if let Some((action, token, result)) = told(what) {
                self.row(&elector, action, token, result).await?;
            }
        }
        Ok(())
    }

    async fn row(
        &self,
        elector: &LeaderElector,
        action: &str,
        token: Option<FencingToken>,
        result: String,
    ) -> Result<(), Box<dyn Error>> {
        let state = elector.state(NAME).await?;
        let holder = state
            .holders
            .iter()
            .find(|holder| Some(holder.token) == token);
        let left = match holder.map(|holder| holder.standing) {
            Some(Standing::Held { remaining }) => seconds(remaining),
            Some(Standing::Retained { remaining }) => format!("{} kept", seconds(remaining)),
            None => NONE.to_owned(),
        };
        self.rows.borrow_mut().push([
            seconds(self.tick()),
            elector.node().to_string(),
            action.to_owned(),
            token.map_or(NONE.to_owned(), |token| token.to_string()),
            left,
            result,
        ]);
        Ok(())
    }

    /// The tick that has begun.
    fn tick(&self) -> Duration {
        let ticks = self.started.elapsed().as_millis() / TICK.as_millis();
        TICK * u32::try_from(ticks).unwrap_or(u32::MAX)
    }
}

/// Stands for election in a task of its own, as another process would.
pub(crate) fn stands(elector: &LeaderElector) -> JoinHandle<Option<LeaderGuard>> {
    let elector = elector.clone();
    // A failing lock service is no part of these scenarios.
    tokio::spawn(async move { elector.try_acquire(NAME).await.ok().flatten() })
}

/// The row of an event.
fn told(what: Occurrence) -> Option<(&'static str, Option<FencingToken>, String)> {
    Some(match what {
        Occurrence::Elected { token, .. } => ("is elected", Some(token), "leads".to_owned()),
        Occurrence::Skipped => (
            "stood for election",
            None,
            "skipped: somebody else leads".to_owned(),
        ),
        Occurrence::Extended { token, .. } => ("extends", Some(token), "leads on".to_owned()),
        Occurrence::Revoked { token, reason } => (
            "is told of its loss",
            Some(token),
            format!("leads no more: {reason}"),
        ),
        Occurrence::Ended { token, end, .. } => ("gives the lease back", Some(token), ended(end)),
        other => ("", None, format!("{other:?}")),
    })
}

/// What came of a release.
pub(crate) fn ended(end: LeaseEnd) -> String {
    match end {
        LeaseEnd::Released => "free for others".to_owned(),
        LeaseEnd::Retained { .. } => "kept from everybody".to_owned(),
        LeaseEnd::NotHeld => "REFUSED: not held any more".to_owned(),
        other => format!("{other:?}"),
    }
}

/// Seconds without zeros at the end.
fn seconds(span: Duration) -> String {
    // A look is a millisecond late.
    let text = format!("{:.2}", span.as_secs_f64());
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// What a future gives if it is asked once.
fn at_once<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut context = Context::from_waker(Waker::noop());
    match pin!(tokio::task::unconstrained(future)).poll(&mut context) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

/// Every time in the scenarios is a multiple of it.
const TICK: Duration = Duration::from_millis(250);
/// How long after a tick its events are told.
const LOOK: Duration = Duration::from_millis(1);
const NONE: &str = "-";

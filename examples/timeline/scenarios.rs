//! The scenarios: who does what at which second. What comes of it is told by events.

use std::error::Error;
use std::pin::Pin;
use std::time::Duration;

use highwater_client::leader::{LeaderGuard, LeaderOptions, LeaderOptionsBuilder, RenewError};
use tokio::time::sleep;

use crate::ledger::Ledger;
use crate::stage::{NAME, Stage, ended, stands};

type Played<'a> = Pin<Box<dyn Future<Output = Result<(), Box<dyn Error>>> + 'a>>;

/// One script.
pub(crate) struct Scenario {
    pub(crate) title: &'static str,
    pub(crate) about: &'static str,
    pub(crate) play: for<'a> fn(&'a Stage) -> Played<'a>,
}

pub(crate) const ALL: [Scenario; 6] = [
    Scenario {
        title: "contention",
        about: "Who does not wait is skipped; who waits is next. Neither is an error.",
        play: |stage| Box::pin(contention(stage)),
    },
    Scenario {
        title: "auto-extend",
        about: "The work takes 14 s under a lease of 9 s, which is extended each time a third of it has passed.",
        play: |stage| Box::pin(auto_extend(stage)),
    },
    Scenario {
        title: "lease expiry with a stale owner",
        about: "node-a works past its lease of 10 s and does not listen. It is told half a second before \
                anybody else can be elected.",
        play: |stage| Box::pin(expiry(stage)),
    },
    Scenario {
        title: "minimum lease",
        about: "The work takes 1 s, the minimum lease is 5 s: until then nobody is elected, node-a neither.",
        play: |stage| Box::pin(minimum(stage)),
    },
    Scenario {
        title: "refused stale release",
        about: "node-a gives back what it lost. Its successor does not lose it by that.",
        play: |stage| Box::pin(stale_release(stage)),
    },
    Scenario {
        title: "refused stale database write",
        about: "node-a writes after its successor has written. The database compares the tokens.",
        play: |stage| Box::pin(stale_write(stage)),
    },
];

/// One try for a lease of so many seconds.
fn lease(seconds: u64) -> LeaderOptionsBuilder {
    let options = LeaderOptions::builder().wait(Duration::ZERO);
    options.lease(Duration::from_secs(seconds))
}

fn wait(seconds: u64, options: LeaderOptionsBuilder) -> LeaderOptionsBuilder {
    options.wait(Duration::from_secs(seconds))
}

fn led(guard: Option<LeaderGuard>) -> Result<LeaderGuard, Box<dyn Error>> {
    guard.ok_or_else(|| "it should have been elected".into())
}

async fn contention(stage: &Stage) -> Result<(), Box<dyn Error>> {
    let a = stage.candidate("node-a", lease(10))?;
    let b = stage.candidate("node-b", lease(10))?;
    let c = stage.candidate("node-c", wait(5, lease(10)))?;
    let leads = led(stands(&a).await?)?;
    stage.at(1).await?;
    stands(&b).await?;
    stage.at(2).await?;
    let waits = stands(&c);
    stage
        .note(&c, "waits for up to 5 s", None, "in the queue")
        .await?;
    stage.at(4).await?;
    leads.release().await;
    let leads = led(waits.await?)?;
    stage.at(6).await?;
    leads.release().await;
    Ok(())
}

async fn auto_extend(stage: &Stage) -> Result<(), Box<dyn Error>> {
    let a = stage.candidate("node-a", lease(9).auto_extend(true))?;
    let b = stage.candidate("node-b", lease(9))?;
    let work = tokio::spawn(async move {
        let work = |_| sleep(Duration::from_secs(14));
        a.run_if_leader(NAME, work).await
    });
    stage.at(10).await?;
    stands(&b).await?;
    stage.at(14).await?;
    work.await??;
    stage.at(16).await?;
    let leads = led(stands(&b).await?)?;
    stage.at(17).await?;
    leads.release().await;
    Ok(())
}

async fn expiry(stage: &Stage) -> Result<(), Box<dyn Error>> {
    let a = stage.candidate("node-a", lease(10))?;
    let b = stage.candidate("node-b", wait(5, lease(10)))?;
    let stale = led(stands(&a).await?)?;
    let token = Some(stale.token());
    stage.at(8).await?;
    let waits = stands(&b);
    stage
        .note(&b, "waits for up to 5 s", None, "in the queue")
        .await?;
    stage.at(11).await?;
    let leads = led(waits.await?)?;
    let told = stale.check().err().map(|told| told.to_string());
    let told = told.ok_or("it should be told")?;
    stage
        .note(&a, "asks whether it leads", token, format!("no: {told}"))
        .await?;
    stage.at(12).await?;
    let Err(RenewError::NotLeader(why)) = stale.extend(Duration::from_secs(10)).await else {
        return Err("it should not be extended".into());
    };
    stage
        .note(&a, "extends by hand", token, format!("REFUSED: {why}"))
        .await?;
    stage.at(13).await?;
    leads.check()?;
    leads.release().await;
    stage.at(14).await?;
    drop(stale);
    Ok(())
}

async fn minimum(stage: &Stage) -> Result<(), Box<dyn Error>> {
    let minimum = lease(10).min_lease(Duration::from_secs(5));
    let a = stage.candidate("node-a", minimum.clone())?;
    let b = stage.candidate("node-b", wait(5, minimum))?;
    let leads = led(stands(&a).await?)?;
    stage.at(1).await?;
    leads.release().await;
    stage.at(2).await?;
    stands(&a).await?;
    stage.at(3).await?;
    let waits = stands(&b);
    stage
        .note(&b, "waits for up to 5 s", None, "in the queue")
        .await?;
    stage.at(6).await?;
    let leads = led(waits.await?)?;
    stage.at(11).await?;
    leads.release().await;
    Ok(())
}

async fn stale_release(stage: &Stage) -> Result<(), Box<dyn Error>> {
    let a = stage.candidate("node-a", lease(5))?;
    let b = stage.candidate("node-b", wait(5, lease(10)))?;
    let c = stage.candidate("node-c", lease(5))?;
    let stale = led(stands(&a).await?)?;
    stage.at(3).await?;
    let waits = stands(&b);
    stage
        .note(&b, "waits for up to 5 s", None, "in the queue")
        .await?;
    stage.at(6).await?;
    let leads = led(waits.await?)?;
    let token = Some(stale.token());
    let end = stale.release().await.end;
    stage
        .note(&a, "gives the lease back", token, ended(end))
        .await?;
    stage.at(7).await?;
    stands(&c).await?;
    stage.at(8).await?;
    leads.check()?;
    stage
        .note(&b, "asks whether it leads", Some(leads.token()), "yes")
        .await?;
    stage.at(9).await?;
    leads.release().await;
    Ok(())
}

async fn stale_write(stage: &Stage) -> Result<(), Box<dyn Error>> {
    let a = stage.candidate("node-a", lease(5))?;
    let b = stage.candidate("node-b", wait(5, lease(10)))?;
    let mut ledger = Ledger::open()?;
    let stale = led(stands(&a).await?)?;
    stage.at(1).await?;
    let said = ledger.close(&stale.fence(), "node-a")?;
    stage.note(&a, "writes", Some(stale.token()), said).await?;
    stage.at(3).await?;
    let waits = stands(&b);
    stage
        .note(&b, "waits for up to 5 s", None, "in the queue")
        .await?;
    stage.at(6).await?;
    let leads = led(waits.await?)?;
    let said = ledger.close(&leads.fence(), "node-b")?;
    stage.note(&b, "writes", Some(leads.token()), said).await?;
    stage.at(7).await?;
    let said = ledger.close(&stale.fence(), "node-a")?;
    stage.note(&a, "writes", Some(stale.token()), said).await?;
    stage.at(8).await?;
    let said = ledger.close(&leads.fence(), "node-b")?;
    stage.note(&b, "writes", Some(leads.token()), said).await?;
    stage.at(9).await?;
    leads.release().await;
    drop(stale);
    Ok(())
}

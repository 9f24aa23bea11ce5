//! One of the processes: campaigns to be the leader, and runs the job again and again while it is.

use std::env;
use std::io::{self, Write as _, stdout};
use std::sync::Arc;
use std::time::Duration;

use highwater_client::Client;
use highwater_client::leader::{
    Events, Highwater, LeaderContext, LeaderElector, LeaderOptions, LossPolicy, Occurrence,
};
use highwater_fencing::sqlx::FenceError;
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::time::sleep;

use crate::Failure;
use crate::ledger::Ledger;

/// What a process is told by its environment.
pub(crate) mod setting {
    pub(crate) const NODE: &str = "HIGHWATER_EXAMPLE_NODE";
    pub(crate) const SERVER: &str = "HIGHWATER_EXAMPLE_SERVER";
    pub(crate) const DATABASE_URL: &str = "HIGHWATER_EXAMPLE_DATABASE_URL";
}

/// What is led.
const NAME: &str = "jobs/report";
/// So long after it falls silent, another one can be elected.
pub(crate) const LEASE: Duration = Duration::from_secs(2);
/// The pause between two runs.
const PERIOD: Duration = Duration::from_millis(100);

/// Works until standard input ends.
pub(crate) async fn work() -> Result<(), Failure> {
    let node = env::var(setting::NODE)?;
    let ledger = Ledger::open(&env::var(setting::DATABASE_URL)?).await?;
    let client = Client::builder(env::var(setting::SERVER)?)
        .connect()
        .await?;
    let options = LeaderOptions::builder()
        .node(&*node)
        .lease(LEASE)
        .auto_extend(true)
        // By default a lost lease cuts the job off where it awaits. This one is told and goes on, as
        // work does that nothing can cut off: it is the one that has to be refused.
        .on_loss(LossPolicy::Notify)
        .build()?;
    let elector = LeaderElector::new(Highwater::new(client), options);
    tokio::spawn(report(elector.subscribe()));
    let (answer, answers) = mpsc::channel(1);
    let answers = Arc::new(Mutex::new(answers));
    let job = |leader| job(leader, ledger.clone(), node.clone(), Arc::clone(&answers));
    say("ready")?;
    tokio::select! {
        ended = elector.campaign(NAME, job) => Ok(ended?),
        _ = hear(answer) => Ok(()),
    }
}

/// The periodic job, for as long as this process leads.
async fn job(
    leader: LeaderContext,
    ledger: Ledger,
    node: String,
    answers: Arc<Mutex<mpsc::Receiver<()>>>,
) {
    while leader.check().is_ok() {
        let (Some(fence), Some(token)) = (leader.fence(), leader.token()) else {
            return; // Only with the policy to fail open.
        };
        // Something slow, outside of any transaction: here, an answer over standard input. The process
        // may stand still here for longer than its lease, and cannot know it in the next line.
        if say(&format!("begins\t{token}")).is_err() || answers.lock().await.recv().await.is_none()
        {
            return;
        }
        // The database compares the tokens: whoever was replaced is refused.
        let said = match ledger.record(&fence, &node, token).await {
            Ok(()) => format!("written\t{token}"),
            Err(FenceError::Stale {
                offered, highest, ..
            }) => format!("refused\t{offered}\t{highest}"),
            Err(other) => format!("failed\t{other}"),
        };
        if say(&said).is_err() {
            return;
        }
        sleep(PERIOD).await;
    }
}

/// Tells what the elector is told.
async fn report(mut events: Events) {
    while let Some(Ok(event)) = events.next().await {
        let said = match event.what {
            Occurrence::Elected { token, .. } => say(&format!("elected\t{token}")),
            Occurrence::Revoked { token, reason } => say(&format!("told\t{token}\t{reason}")),
            _ => Ok(()),
        };
        if said.is_err() {
            return;
        }
    }
}

/// Passes answers on; what it gives completes when standard input ends.
fn hear(answer: mpsc::Sender<()>) -> oneshot::Receiver<()> {
    let (end, ended) = oneshot::channel();
    // A thread that waits for a line cannot be cancelled: it ends with the process.
    std::thread::spawn(move || {
        for _line in io::stdin().lines().map_while(Result::ok) {
            if answer.blocking_send(()).is_err() {
                break;
            }
        }
        drop(end);
    });
    ended
}

fn say(line: &str) -> io::Result<()> {
    let mut output = stdout().lock();
    writeln!(output, "{line}")?;
    output.flush()
}

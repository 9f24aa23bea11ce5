//! Accepts connections, counts them, and waits for their end.
//!
//! A connection beyond the limit is closed before the hello, which clients take as "try again".

use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::connection::{self, Phase, Shared};
use crate::system;

/// Accepts until the server drains, then waits until all connections are closed.
///
/// Dropping the future ends everything at once, and so does a lock machine that can no longer be
/// trusted: it is better to have no lock service than one that only seems to be there.
pub(crate) async fn accept(
    listener: TcpListener,
    shared: Arc<Shared>,
    mut phase: watch::Receiver<Phase>,
    _ended: watch::Sender<()>,
) {
    let mut connections = JoinSet::new();
    while *phase.borrow_and_update() == Phase::Running {
        tokio::select! {
            biased;
            changed = phase.changed() => {
                if changed.is_err() {
                    return;
                }
            }
            Some(_) = connections.join_next() => {
                if shared.desk.is_broken() {
                    tracing::error!("the lock machine broke an invariant: the server ends");
                    return;
                }
            }
            accepted = listener.accept() => match accepted {
                Ok((tcp, peer)) if connections.len() < shared.limits.connections => {
                    shared.traffic.accepted.add();
                    let served = connection::serve(Arc::clone(&shared), tcp, peer, phase.clone());
                    connections.spawn(served);
                }
                Ok((_, peer)) => {
                    shared.traffic.refused.add();
                    complain(&shared, &format!("no room for {peer}: too many connections"));
                }
                Err(error) => {
                    shared.traffic.accept_errors.add();
                    complain(&shared, &format!("a connection was not accepted: {error}"));
                    tokio::time::sleep(AFTER_ACCEPT_ERROR).await;
                }
            }
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

fn complain(shared: &Shared, what: &str) {
    if let Some(suppressed) = shared.complaints.admit(system::now()) {
        tracing::warn!(suppressed, "{what}");
    }
}

/// Out of file descriptors: trying again at once would only burn the processor.
const AFTER_ACCEPT_ERROR: Duration = Duration::from_millis(20);

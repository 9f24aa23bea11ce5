//! A server, and the published client connected to it.

use std::net::SocketAddr;
use std::time::Duration;

use highwater_server::{Builder, Limits, Server};
use ticketing::{TicketBroker, TicketBrokerBuilder};

pub(crate) const WAIT: Duration = Duration::from_secs(30);
pub(crate) const LEASE: Duration = Duration::from_secs(60);
/// What the client calls the least useful remaining lease.
pub(crate) const WORK: Duration = Duration::from_secs(1);
/// Longer than anything here takes; reaching it is a failure.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn builder() -> Builder {
    let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
    Server::builder().in_memory().listen(any_port)
}

pub(crate) async fn server() -> Server {
    server_with(Limits::default()).await
}

pub(crate) async fn server_with(limits: Limits) -> Server {
    let started = builder().no_auth().limits(limits).start().await;
    started.expect("starts")
}

pub(crate) async fn client(server: &Server) -> TicketBroker {
    ready(TicketBroker::connect_loopback([server
        .local_addr()
        .to_string()]))
    .await
}

pub(crate) fn client_builder(address: impl Into<String>) -> TicketBrokerBuilder {
    TicketBroker::builder().addrs([address.into()])
}

pub(crate) async fn ready(broker: TicketBroker) -> TicketBroker {
    assert!(
        broker.wait_ready(PATIENCE).await,
        "the client is not connected"
    );
    broker
}

/// Asks again and again until the condition holds.
pub(crate) async fn eventually(what: &str, condition: impl Fn() -> bool) {
    let asked = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let met = tokio::time::timeout(PATIENCE, asked).await;
    assert!(met.is_ok(), "not within {PATIENCE:?}: {what}");
}

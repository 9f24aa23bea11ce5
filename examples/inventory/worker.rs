//! A worker process: takes orders from standard input and sells them, one after the other.

use std::env;
use std::io;
use std::time::Duration;

use highwater_client::{AcquireError, AcquireOptions, Client};
use highwater_fencing::sqlx::FenceError;
use highwater_lock::Key;
use highwater_protocol::Secret;

use crate::Failure;
use crate::database::Shop;
use crate::orders::Order;
use crate::payment::Payment;
use crate::sale::{Sale, SellError};

/// What a worker is told by its environment: a database URL can hold a password, so none of it
/// stands on the command line.
pub(crate) mod setting {
    pub(crate) const WORKER: &str = "HIGHWATER_EXAMPLE_WORKER";
    pub(crate) const DATABASE_URL: &str = "HIGHWATER_EXAMPLE_DATABASE_URL";
    pub(crate) const SERVER: &str = "HIGHWATER_EXAMPLE_SERVER";
    pub(crate) const CLIENT_TOKEN: &str = "HIGHWATER_CLIENT_TOKEN";
    pub(crate) const KEY_PREFIX: &str = "HIGHWATER_EXAMPLE_KEY_PREFIX";
    pub(crate) const LEASE_SECONDS: &str = "HIGHWATER_EXAMPLE_LEASE_SECONDS";
    pub(crate) const FENCING: &str = "HIGHWATER_EXAMPLE_FENCING";
}

/// Works until standard input ends.
pub(crate) async fn work() -> Result<(), Failure> {
    let shop = Shop::connect(&required(setting::DATABASE_URL)?).await?;
    let server = required(setting::SERVER)?;
    let client = connect(&server, env::var(setting::CLIENT_TOKEN).ok()).await?;
    let prefix = required(setting::KEY_PREFIX)?;
    let lease: u64 = required(setting::LEASE_SECONDS)?
        .parse()
        .map_err(io::Error::other)?;
    let fencing = required(setting::FENCING)? == "on";
    // Long enough to see a frozen holder's lease end.
    let options = AcquireOptions::new()
        .lease(Duration::from_secs(lease))
        .wait(Duration::from_secs(lease + 10));

    let mut payment = Payment;
    payment.say("ready").await?;
    while let Some(line) = payment.hear().await? {
        let order = parse(&line)?;
        let key = Key::new(format!("{prefix}{}", order.sku)).map_err(io::Error::other)?;
        let sale = shop
            .sell(
                fencing,
                &client,
                options.clone(),
                &key,
                &order,
                &mut payment,
            )
            .await;
        payment.say(&answer(sale)).await?;
    }
    client.close().await;
    Ok(())
}

/// Connects to the lock server.
pub(crate) async fn connect(server: &str, token: Option<String>) -> Result<Client, Failure> {
    let mut client = Client::builder(server);
    if let Some(token) = token {
        client = client.token(Secret::new(token.into_bytes())?);
    }
    client.connect().await.map_err(|source| Failure::Client {
        server: server.to_owned(),
        source,
    })
}

fn answer(sale: Result<Sale, SellError>) -> String {
    match sale {
        Ok(Sale::Recorded { token }) => format!("recorded\t{token}"),
        Ok(Sale::AlreadyRecorded) => "already".to_owned(),
        Err(SellError::Fence(FenceError::Stale {
            offered, highest, ..
        })) => {
            format!("stale\t{offered}\t{highest}")
        }
        Err(SellError::Lock(AcquireError::TimedOut)) => "waited".to_owned(),
        Err(error) => format!("failed\t{}", error.to_string().replace(['\n', '\t'], " ")),
    }
}

fn parse(line: &str) -> io::Result<Order> {
    let fields: Vec<&str> = line.split('\t').collect();
    match fields[..] {
        ["sell", id, sku, quantity] => {
            let quantity = quantity.parse().map_err(io::Error::other)?;
            Ok(Order {
                line: 0,
                id: id.to_owned(),
                sku: sku.to_owned(),
                quantity,
            })
        }
        _ => Err(io::Error::other(format!("not an order: {line:?}"))),
    }
}

fn required(name: &'static str) -> Result<String, Failure> {
    env::var(name).map_err(|_| Failure::MissingSetting(name))
}

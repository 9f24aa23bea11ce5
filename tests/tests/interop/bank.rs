//! Money moves between accounts under set locks, and none is made or lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use ticketing::TicketError;

use crate::support::*;

const ACCOUNTS: usize = 6;
const TASKS: usize = 24;
const TRANSFERS_PER_TASK: usize = 40;
const OPENING_BALANCE: i64 = 1_000;

/// A row that is read and written back in two steps: only a lock makes that safe. It refuses
/// tokens as a fenced database does.
#[derive(Default)]
struct Account {
    balance: AtomicI64,
    highest_token: AtomicU64,
}

impl Account {
    async fn add(&self, amount: i64, token: u64) {
        let highest = self.highest_token.load(Ordering::SeqCst);
        assert!(token > highest, "token {token} after {highest}");
        let balance = self.balance.load(Ordering::SeqCst);
        // Whoever else is here would work on the same old balance.
        tokio::task::yield_now().await;
        self.balance.store(balance + amount, Ordering::SeqCst);
        self.highest_token.store(token, Ordering::SeqCst);
    }
}

/// A small generator of its own, so that a failure can be run again.
struct Draws(u64);

impl Draws {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn transfers_between_accounts_conserve_the_money() {
    let seed = 20_240_607;
    println!("seed {seed}");
    let server = server().await;
    let brokers = [client(&server).await, client(&server).await];
    let accounts: Arc<Vec<Account>> = Arc::new((0..ACCOUNTS).map(|_| Account::default()).collect());
    for account in accounts.iter() {
        account.balance.store(OPENING_BALANCE, Ordering::SeqCst);
    }

    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..TASKS {
        let broker = brokers[task % 2].clone();
        let accounts = Arc::clone(&accounts);
        let mut draws = Draws(seed + task as u64);
        tasks.spawn(async move {
            for _ in 0..TRANSFERS_PER_TASK {
                let from = draws.below(ACCOUNTS);
                let to = (from + 1 + draws.below(ACCOUNTS - 1)) % ACCOUNTS;
                let amount = draws.below(100) as i64;
                // In whatever order: both keys come at once, so there is no deadlock.
                let names = [format!("account-{from}"), format!("account-{to}")];
                let keys = [names[0].as_str(), names[1].as_str()];
                let ticket = broker.acquire_set(&keys, WAIT, LEASE, WORK).await?;
                accounts[from].add(-amount, ticket.token()).await;
                accounts[to].add(amount, ticket.token()).await;
                ticket.release().await?;
            }
            Ok::<(), TicketError>(())
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended
            .expect("no task saw another one at its accounts")
            .expect("served");
    }

    let balances = accounts
        .iter()
        .map(|account| account.balance.load(Ordering::SeqCst));
    assert_eq!(balances.sum::<i64>(), ACCOUNTS as i64 * OPENING_BALANCE);
    assert_eq!(server.counts().held_keys, 0);
    assert_eq!(server.counts().waiters, 0);
}

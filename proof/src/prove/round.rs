//! Plays one round: what happens to holder A, and what its successor B does meanwhile.
//!
//! Nothing here waits for a time to pass. That a lease is over shows in the lock server giving the
//! lock to B; that A has stopped, in the system saying so. Only that B waits for an open transaction
//! has no sign that every role can see; `inside` says what is done about it.

use std::net::SocketAddr;

use crate::adapter::Dialect;

use super::cell::Stage;
use super::count::Order;
use super::holder::{Holder, HolderError};
use super::inside::{Inside, Standing};
use super::plan::{Plan, Schedule};
use super::proxy::Proxy;
use super::words::{Answer, Command, How, Stop};

/// What the holders said. What is true is counted in the database.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Told {
    /// Writes of A after B had written.
    pub(super) stale_writes: u32,
    /// Those of them that the fence refused.
    pub(super) refused: u32,
    /// A stale write that ended otherwise than with success or a refusal.
    pub(super) other: Option<String>,
}

impl Told {
    /// B was let in while a fenced transaction of A was open.
    pub(super) fn let_in(&mut self) {
        self.stale_writes += 1;
        self.other = Some("the successor was let in beside an open transaction".to_owned());
    }
}

/// A shelf: what the lock of a round protects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shelf(pub(super) i64);

impl Shelf {
    /// What is on it before a round.
    pub(super) const FULL: i64 = 1_000;

    fn key(self) -> String {
        format!("shelf/{}", self.0)
    }

    fn order(self, number: i64, quantity: i64) -> Order {
        Order {
            id: self.0 * ORDERS_PER_SHELF + number,
            quantity,
        }
    }

    /// All orders of its round.
    pub(super) fn orders(self, plan: &Plan) -> Vec<Order> {
        let count = match plan.schedule {
            Schedule::Freeze | Schedule::Sever | Schedule::Kill => 1,
            Schedule::FreezeInside => 2,
            Schedule::Partition => 3,
        };
        let mut orders = vec![self.order(0, plan.of_b)];
        let of_a = (1..).zip(&plan.of_a).take(count);
        orders.extend(of_a.map(|(number, &quantity)| self.order(number, quantity)));
        orders
    }
}

/// Plays a round on its shelf.
pub(super) async fn play(
    stage: &Stage,
    dialect: Dialect,
    how: How,
    shelf: Shelf,
    plan: &Plan,
) -> Result<Told, HolderError> {
    let orders = shelf.orders(plan);
    let crew = &stage.crew;
    let mut round = Round {
        server: stage.server,
        how,
        shelf,
        of_b: orders[0],
        of_a: orders[1..].to_vec(),
        early: plan.early,
        open: orders,
        successor: crew.take().await?,
        standing: None,
        attempts: 0,
        told: Told::default(),
    };
    let holder = crew.take().await?;
    match plan.schedule {
        Schedule::Freeze => crew.give(round.freeze(holder).await?),
        Schedule::FreezeInside | Schedule::Sever => {
            // SQLite has no server that could end a session.
            let one_writer = dialect == Dialect::Sqlite;
            let severs = plan.schedule == Schedule::Sever && !one_writer;
            let inside = Inside {
                stop: plan.stop,
                severed_by: severs.then(|| stage.observer.clone()),
                one_writer,
            };
            round.freeze_inside(holder, inside).await?;
        }
        Schedule::Kill => round.kill(holder, plan.stop).await?,
        Schedule::Partition => round.partition(holder).await?,
    }
    round.finish().await?;
    crew.give(round.successor);
    Ok(round.told)
}

pub(super) struct Round {
    pub(super) server: SocketAddr,
    pub(super) how: How,
    pub(super) shelf: Shelf,
    pub(super) of_a: Vec<Order>,
    of_b: Order,
    early: bool,
    /// Orders that nobody has reported as recorded.
    open: Vec<Order>,
    pub(super) successor: Holder,
    /// A, if it is stopped inside its transaction.
    pub(super) standing: Option<Standing>,
    /// How many deductions were tried; it makes the ids of deductions unique.
    attempts: i64,
    pub(super) told: Told,
}

impl Round {
    /// A is stopped between reading and writing, and its write is waiting when it goes on.
    async fn freeze(&mut self, mut a: Holder) -> Result<Holder, HolderError> {
        let order = self.of_a[0];
        let token = acquire(&mut a, self.server, self.shelf).await?;
        self.read(&mut a, order).await?;
        a.freeze().await?;
        let write = self.write(order, Stop::Never);
        a.say(&write).await?;
        self.take_over(token).await?;
        a.wake()?;
        let answer = a.hear().await?;
        self.stale_write(order, answer);
        release(&mut a).await?;
        Ok(a)
    }

    /// A is killed somewhere in its writing transaction, or right after its commit.
    async fn kill(&mut self, mut a: Holder, stop: Stop) -> Result<(), HolderError> {
        let order = self.of_a[0];
        let token = acquire(&mut a, self.server, self.shelf).await?;
        self.read(&mut a, order).await?;
        let write = self.write(order, stop);
        match a.ask(&write).await? {
            Answer::Stopped { at, .. } if at == stop => a.kill().await?,
            other => return Err(HolderError::unexpected("write up to where it stops", other)),
        }
        self.take_over(token).await
    }

    /// A writes before its lease is over, and after it, and hears of nothing.
    async fn partition(&mut self, mut a: Holder) -> Result<(), HolderError> {
        let link = Proxy::start(self.server).await.map_err(HolderError::Link)?;
        let token = acquire(&mut a, link.address(), self.shelf).await?;
        link.partition();
        self.read(&mut a, self.of_a[0]).await?;
        let write = self.write(self.of_a[0], Stop::Never);
        match a.ask(&write).await? {
            Answer::Written => self.done(self.of_a[0]),
            other => {
                return Err(HolderError::unexpected(
                    "write while the lock was its own",
                    other,
                ));
            }
        }
        self.read(&mut a, self.of_a[1]).await?;
        self.take_over(token).await?;
        for order in [self.of_a[1], self.of_a[2]] {
            let write = self.write(order, Stop::Never);
            let answer = a.ask(&write).await?;
            self.stale_write(order, answer);
        }
        // Its client would spend a while on a server that does not answer: it ends here.
        a.kill().await
    }

    /// B gets the lock, so the lease of A is over; it sells, and gives the lock back.
    async fn take_over(&mut self, earlier: u64) -> Result<(), HolderError> {
        self.succeed(earlier).await?;
        self.sell_first().await
    }

    /// B gets the lock.
    pub(super) async fn succeed(&mut self, earlier: u64) -> Result<(), HolderError> {
        let later = acquire(&mut self.successor, self.server, self.shelf).await?;
        if later <= earlier {
            return Err(HolderError::TokenOrder { earlier, later });
        }
        Ok(())
    }

    /// B, who has the lock, carries out what it was told at first, and gives the lock back.
    pub(super) async fn sell_first(&mut self) -> Result<(), HolderError> {
        let mut orders = vec![self.of_b];
        if self.early {
            orders.extend(self.of_a.iter().filter(|order| self.open.contains(order)));
        }
        self.sell(&orders).await
    }

    /// What is still open goes to B, as a queue would do it.
    async fn finish(&mut self) -> Result<(), HolderError> {
        let open = self.open.clone();
        if open.is_empty() {
            return Ok(());
        }
        acquire(&mut self.successor, self.server, self.shelf).await?;
        self.sell(&open).await
    }

    /// B, who has the lock, carries orders out that nobody else has, and gives the lock back.
    async fn sell(&mut self, orders: &[Order]) -> Result<(), HolderError> {
        for &order in orders {
            let read = self.read_command(order);
            match self.ask_successor(&read).await? {
                Answer::Stock { .. } => {}
                Answer::Recorded => {
                    self.done(order);
                    continue;
                }
                other => {
                    return Err(HolderError::unexpected(
                        "read while the lock was its own",
                        other,
                    ));
                }
            }
            let write = self.write(order, Stop::Never);
            match self.ask_successor(&write).await? {
                Answer::Written => self.done(order),
                other => {
                    return Err(HolderError::unexpected(
                        "write while the lock was its own",
                        other,
                    ));
                }
            }
        }
        release(&mut self.successor).await
    }

    pub(super) async fn read(&self, a: &mut Holder, order: Order) -> Result<(), HolderError> {
        match a.ask(&self.read_command(order)).await? {
            Answer::Stock { .. } => Ok(()),
            other => Err(HolderError::unexpected(
                "read while the lock was its own",
                other,
            )),
        }
    }

    fn read_command(&self, order: Order) -> Command {
        Command::Read {
            how: self.how,
            order: order.id,
            sku: self.shelf.0,
        }
    }

    pub(super) fn write(&mut self, order: Order, stop: Stop) -> Command {
        self.attempts += 1;
        Command::Write {
            how: self.how,
            deduction: self.shelf.0 * DEDUCTIONS_PER_SHELF + self.attempts,
            order: order.id,
            sku: self.shelf.0,
            quantity: order.quantity,
            stop,
        }
    }

    pub(super) fn stale_write(&mut self, order: Order, answer: Answer) {
        self.told.stale_writes += 1;
        match answer {
            Answer::Stale { offered, highest } if offered < highest => self.told.refused += 1,
            Answer::Written => self.done(order),
            Answer::Failed { reason } => self.told.other = Some(reason),
            other => self.told.other = Some(format!("{other:?}")),
        }
    }

    pub(super) fn done(&mut self, order: Order) {
        self.open.retain(|open| *open != order);
    }
}

pub(super) async fn acquire(
    holder: &mut Holder,
    server: SocketAddr,
    shelf: Shelf,
) -> Result<u64, HolderError> {
    let acquire = Command::Acquire {
        server: server.to_string(),
        key: shelf.key(),
    };
    match holder.ask(&acquire).await? {
        Answer::Acquired { token } => Ok(token),
        other => Err(HolderError::unexpected("take the lock", other)),
    }
}

async fn release(holder: &mut Holder) -> Result<(), HolderError> {
    match holder.ask(&Command::Release).await? {
        Answer::Released => Ok(()),
        other => Err(HolderError::unexpected("release the lock", other)),
    }
}

const ORDERS_PER_SHELF: i64 = 10;
const DEDUCTIONS_PER_SHELF: i64 = 100;

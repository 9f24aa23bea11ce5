//! One row of the report: an adapter in one form on one isolation level, through all rounds.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::adapter::{Adapter, Dialect};

use super::choice::Resolved;
use super::count::Damage;
use super::holder::{Crew, HolderError};
use super::observer::{Observer, ObserverError, Version};
use super::plan::Plan;
use super::report::{Counts, Row, Verdict};
use super::round::{self, Shelf, Told};
use super::words::How;

/// What a row needs to be played.
#[derive(Clone)]
pub(super) struct Cell {
    /// Its place in the report.
    position: usize,
    pub(super) adapter: &'static dyn Adapter,
    how: How,
    plans: Arc<[Plan]>,
    /// The shelf of its first round; the others follow.
    first: i64,
}

/// All rows, in the order of the report: the control after what it is the control of.
pub(super) fn cells(choice: &Resolved, plans: &[Plan]) -> Vec<Cell> {
    let plans: Arc<[Plan]> = plans.into();
    let mut cells = Vec::new();
    for &level in &choice.levels {
        for &adapter in &choice.adapters {
            for form in choice.forms(adapter, level) {
                let position = cells.len();
                cells.push(Cell {
                    position,
                    adapter,
                    how: How { form, level },
                    plans: plans.clone(),
                    first: (position * plans.len()) as i64,
                });
            }
        }
    }
    cells
}

/// What all rows of an adapter share.
pub(super) struct Stage {
    pub(super) crew: Crew,
    pub(super) server: SocketAddr,
    /// How many rounds may run.
    pub(super) slots: Arc<Semaphore>,
    pub(super) observer: Arc<Observer>,
}

/// A row whose rounds are over.
pub(super) struct Played {
    cell: Cell,
    told: Result<Told, HolderError>,
}

/// Plays all rounds of a row.
pub(super) async fn play(stage: Arc<Stage>, cell: Cell) -> Played {
    let mut rounds = JoinSet::new();
    for number in 0..cell.plans.len() {
        let (stage, cell) = (stage.clone(), cell.clone());
        rounds.spawn(async move {
            // Nobody closes it.
            let _slot = stage.slots.acquire().await;
            let (shelf, plan) = (cell.shelf(number), &cell.plans[number]);
            round::play(&stage, cell.adapter.dialect(), cell.how, shelf, plan).await
        });
    }
    let mut told = Ok(Told::default());
    while let Some(round) = rounds.join_next().await {
        let round = round.unwrap_or(Err(HolderError::Ended));
        told = match (told, round) {
            (Ok(so_far), Ok(round)) => Ok(so_far.and(round)),
            // The first failure is the one to tell; the other rounds go on to their end.
            (Err(error), _) | (_, Err(error)) => Err(error),
        };
    }
    Played { cell, told }
}

impl Cell {
    fn shelf(&self, number: usize) -> Shelf {
        Shelf(self.first + number as i64)
    }
}

impl Played {
    /// Counts what is in the database, and judges.
    pub(super) async fn row(
        self,
        observer: &Observer,
        dialect: Dialect,
        version: &Version,
    ) -> Result<Row, ObserverError> {
        let cell = &self.cell;
        let (counts, reason) = match self.told {
            Err(error) => (None, Some(super::worker::chain(&error))),
            Ok(told) => {
                let mut damage = Damage::default();
                for (number, plan) in cell.plans.iter().enumerate() {
                    let shelf = cell.shelf(number);
                    damage += observer.damage(shelf, &shelf.orders(plan)).await?;
                }
                let counts = Counts {
                    stale_writes: told.stale_writes,
                    refused: told.refused,
                    lost: damage.lost,
                    doubled: damage.doubled,
                };
                (Some(counts), told.other)
            }
        };
        Ok(Row {
            position: cell.position,
            database: version.database(dialect).to_owned(),
            version: version.number.clone(),
            isolation: cell.how.level,
            adapter: cell.adapter.name().to_owned(),
            form: cell.how.form,
            rounds: cell.plans.len() as u32,
            counts,
            verdict: Verdict::of(cell.how.form, counts),
            reason,
        })
    }
}

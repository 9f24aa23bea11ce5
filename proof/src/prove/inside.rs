//! Plays the rounds in which A is stopped inside its writing transaction, behind the fence.
//!
//! Such a transaction holds the row of the mark, so a fenced B has to wait for its end, whatever its
//! token is. That a session waits is seen by privileged roles only, and not on every database. So B is
//! given a moment to answer: a fenced one that does was let in, and the row fails; and if it does
//! not, the transaction of A is brought to its end. On a slow machine B may not have come to its wait
//! by then: the round sees less then, but it is not wrong.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::count::Order;
use super::holder::{Holder, HolderError};
use super::observer::Observer;
use super::proxy::Proxy;
use super::round::{Round, acquire};
use super::words::{Answer, Command, Stop};

/// How A is stopped, and how that ends.
pub(super) struct Inside {
    pub(super) stop: Stop,
    /// Who ends A's session meanwhile, if somebody does.
    pub(super) severed_by: Option<Arc<Observer>>,
    /// The database has one writer at a time, so that a transaction that is open for the length of a
    /// lease would hold up all other rounds. The lease passes before it begins then.
    pub(super) one_writer: bool,
}

/// A, stopped inside its transaction.
pub(super) struct Standing {
    a: Holder,
    order: Order,
    /// The session to end, and by whom. Without it, A goes on.
    severed: Option<(Arc<Observer>, i64)>,
    is_open: bool,
}

impl Round {
    /// A is stopped inside its transaction, and B takes over.
    pub(super) async fn freeze_inside(
        &mut self,
        mut a: Holder,
        inside: Inside,
    ) -> Result<(), HolderError> {
        let link = Proxy::start(self.server).await.map_err(HolderError::Link)?;
        let order = self.of_a[0];
        let token = acquire(&mut a, link.address(), self.shelf).await?;
        self.read(&mut a, order).await?;
        if inside.one_writer {
            link.partition();
            self.succeed(token).await?;
        }
        let write = self.write(order, inside.stop);
        let session = match a.ask(&write).await? {
            Answer::Stopped { at, session } if at == inside.stop => session,
            other => return Err(HolderError::unexpected("write up to where it stops", other)),
        };
        a.freeze().await?;
        if !inside.one_writer {
            self.succeed(token).await?;
        }
        self.standing = Some(Standing {
            a,
            order,
            severed: inside.severed_by.zip(session),
            is_open: true,
        });
        self.sell_first().await?;
        // Beside a plain transaction B may have had nothing to wait for.
        self.end_transaction().await?;
        self.end_of_a().await
    }

    /// Asks B; what it waits for is brought to its end.
    pub(super) async fn ask_successor(&mut self, command: &Command) -> Result<Answer, HolderError> {
        self.successor.say(command).await?;
        if (self.standing.as_ref()).is_some_and(|standing| standing.is_open) {
            if let Ok(answer) = timeout(MOMENT, self.successor.hear()).await {
                if self.how.form.is_fenced() {
                    self.told.let_in();
                }
                return answer;
            }
            self.end_transaction().await?;
        }
        self.successor.hear().await
    }

    /// Ends the transaction in which A is stopped, if it is open.
    async fn end_transaction(&mut self) -> Result<(), HolderError> {
        let Some(standing) = self.standing.as_mut().filter(|standing| standing.is_open) else {
            return Ok(());
        };
        standing.is_open = false;
        match &standing.severed {
            Some((observer, session)) => {
                let ended = observer.end_session(*session).await;
                ended.map_err(HolderError::End)
            }
            None => self.go_on().await,
        }
    }

    /// A goes on to the end of its transaction.
    async fn go_on(&mut self) -> Result<(), HolderError> {
        let Some(Standing {
            a, order, severed, ..
        }) = &mut self.standing
        else {
            return Ok(());
        };
        let (order, severed) = (*order, severed.is_some());
        a.say(&Command::GoOn).await?;
        a.wake()?;
        match a.hear().await? {
            // Admitted before B, and B waited for it.
            Answer::Written if !severed => self.done(order),
            // It does not know what it did, or tried again too late: B will see.
            Answer::Failed { .. } | Answer::Stale { .. } if severed => {}
            other => self.stale_write(order, other),
        }
        Ok(())
    }

    /// What A does after B has sold.
    async fn end_of_a(&mut self) -> Result<(), HolderError> {
        if (self.standing.as_ref()).is_some_and(|standing| standing.severed.is_some()) {
            self.go_on().await?;
        }
        let Some(Standing { mut a, .. }) = self.standing.take() else {
            return Ok(());
        };
        if let Some(&order) = self.of_a.get(1) {
            let write = self.write(order, Stop::Never);
            let answer = a.ask(&write).await?;
            self.stale_write(order, answer);
        }
        // Its link to the lock server may be silent.
        a.kill().await
    }
}

/// How long B may take to answer while A stands in its transaction.
const MOMENT: Duration = Duration::from_millis(150);

//! A database with a fence: a mark per key, and rows in the order in which they were written.

use std::collections::BTreeMap;

use super::context::Context;
use super::mutant::Mutant;
use crate::{Answer, CallId, Event};

#[derive(Clone, Debug, Default)]
pub(crate) struct Database {
    marks: BTreeMap<String, u64>,
    rows: Vec<(String, u64, CallId)>,
}

impl Database {
    /// Executes a fenced transaction: the comparison and the row, or nothing.
    pub(crate) fn commit(
        &mut self,
        context: &mut Context,
        key: &str,
        token: u64,
        call: CallId,
    ) -> Answer {
        let mark = self.marks.entry(key.to_owned()).or_default();
        if token < *mark && !context.has(Mutant::StaleWriteAccepted) {
            return Answer::Stale { highest: *mark };
        }
        *mark = token.max(*mark);
        if context.has(Mutant::WriteLost) && context.random.happens(20) {
            return Answer::Committed;
        }
        self.rows.push((key.to_owned(), token, call));
        Answer::Committed
    }

    /// For a mutant: a row once more.
    pub(crate) fn repeat(&mut self, call: CallId) {
        let row = self.rows.iter().find(|(.., by)| *by == call);
        self.rows.extend(row.cloned());
    }

    /// Everything that is in it.
    pub(crate) fn dump(&self, context: &mut Context) {
        for (key, token, call) in self.rows.clone() {
            context.record(Event::Row { key, token, call });
        }
        context.record(Event::AllRows);
    }
}

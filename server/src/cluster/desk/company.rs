//! Whether it is worth a moment to wait for more requests before a batch is proposed.
//!
//! Clients that were answered together come back together. A batch that is proposed before they have
//! makes two groups of them, each of which waits for the batches of the other, and every batch costs
//! all nodes a sync and a message whatever is in it. So if many were answered by the last batch, most of
//! them are waited for; if they do not come, that is tried less and less often.

/// See the module's description.
#[derive(Debug, Default)]
pub(super) struct Company {
    /// Who was answered by the last batch and has not asked again.
    expected: usize,
    /// How often waiting has been in vain since it was not.
    misses: u32,
    /// How many batches go without waiting.
    spared: u32,
    /// Whether the next one has waited.
    waited: bool,
}

impl Company {
    /// A batch is applied.
    pub(super) fn begin(&mut self) {
        self.expected = 0;
    }

    /// A client has its answer.
    pub(super) fn answered(&mut self) {
        self.expected += 1;
    }

    /// A client asks for something.
    pub(super) fn asked(&mut self) {
        self.expected = self.expected.saturating_sub(1);
    }

    /// Whether to wait for others, with so many requests that could be proposed now.
    pub(super) fn is_worth_waiting(&mut self, wishes: usize) -> bool {
        let is_worth = self.spared == 0 && self.expected > FEW && self.expected * PART > wishes;
        self.waited |= is_worth;
        is_worth
    }

    /// Those who were waited for did not come.
    pub(super) fn missed(&mut self) {
        self.waited = false;
        self.misses = (self.misses + 1).min(MOST_MISSES);
        self.spared = 1 << self.misses;
    }

    /// A batch is proposed.
    pub(super) fn proposed(&mut self) {
        if std::mem::take(&mut self.waited) {
            self.misses = 0;
        }
        self.spared = self.spared.saturating_sub(1);
    }
}

/// So few are never waited for, and do not wait for a batch that is under way: it is latency that they feel, and
/// all they ask for in a second costs the nodes little.
pub(super) const FEW: usize = 8;
/// Those who are missing have to be more than this part of those who are there.
const PART: usize = 4;
const MOST_MISSES: u32 = 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(company: &mut Company, many: usize) {
        company.begin();
        (0..many).for_each(|_| company.answered());
    }

    #[test]
    fn those_who_were_answered_together_are_waited_for_until_most_are_back() {
        let mut company = Company::default();
        answer(&mut company, 64);
        assert!(company.is_worth_waiting(10));
        (0..51).for_each(|_| company.asked());
        assert!(company.is_worth_waiting(51));
        company.asked();
        assert!(!company.is_worth_waiting(52));
    }

    #[test]
    fn nobody_waits_for_a_few() {
        let mut company = Company::default();
        answer(&mut company, FEW);
        assert!(!company.is_worth_waiting(1));
    }

    #[test]
    fn waiting_in_vain_is_tried_less_and_less_often() {
        let mut company = Company::default();
        let mut waited = 0;
        for _ in 0..10_000 {
            answer(&mut company, 64);
            if company.is_worth_waiting(1) {
                waited += 1;
                company.missed();
            }
            company.proposed();
        }
        assert!((10..=20).contains(&waited), "{waited}");
        // Once they come again, they are waited for every time.
        while !company.is_worth_waiting(1) {
            company.proposed();
        }
        company.proposed();
        assert!(company.is_worth_waiting(1));
        company.missed();
        company.proposed();
        assert!(!company.is_worth_waiting(1));
        company.proposed();
        assert!(company.is_worth_waiting(1));
    }
}

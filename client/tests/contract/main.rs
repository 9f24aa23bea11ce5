//! The contract of leader elections, over the in-process backend and over one that was written for
//! nothing else than this contract, both in virtual time.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod forgetful;
mod here;
mod table;

mod in_process {
    use crate::here::Here;

    highwater_client::leader_contract! {
        #[tokio::test(start_paused = true)] =>
        Here::default()
    }
}

mod of_a_third {
    use crate::table::Table;

    highwater_client::leader_contract! {
        #[tokio::test(start_paused = true)] =>
        Table::default()
    }
}

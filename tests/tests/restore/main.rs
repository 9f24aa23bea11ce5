//! A database is backed up, goes on, and is restored: without the procedure of docs/operations.md a
//! stale holder is back in business, with it he is refused.
//!
//! With `pg_dump`, with `mariadb-dump` or `mysqldump` where the image has one of them, and with copies
//! of a SQLite file.

mod mysql;
mod postgres;
mod shop;
mod sqlite;

use highwater_fencing::FencingToken;
use highwater_fencing::operate::{Marks, Selection};
use highwater_fencing::sqlx::FenceError;

use shop::{Shop, domain, key};

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Who was in when the backup was made, the successor, and the one who slept in between.
const BEFORE: u64 = 7;
const STALE: u64 = 8;
const AFTER: u64 = 9;
/// What the lock service gives out next.
const NEXT: u64 = 10;

const APPLE: &str = "stock/apple";
/// Its first mark is younger than the backup.
const YOUNG: &str = "stock/young";

/// Backs the shop up between two holders and restores it twice, under these names, so that nobody from
/// before finds the way: once with the procedure, once without. Gives the one with.
async fn a_restored_backup_admits_a_stale_holder_until_the_marks_are_raised<B, R>(
    shop: Shop,
    backup: impl FnOnce(Shop) -> B,
    restore: impl Fn(&'static str) -> R,
) -> Outcome<Shop>
where
    B: Future<Output = Outcome<Shop>>,
    R: Future<Output = Outcome<Shop>>,
{
    shop.migrate().await?;
    shop.run("CREATE TABLE writes (name VARCHAR(60), token BIGINT)")
        .await?;
    shop.write(APPLE, BEFORE).await?;
    let shop = backup(shop).await?;
    shop.write(APPLE, AFTER).await?;
    shop.write(YOUNG, AFTER).await?;
    stale(shop.write(APPLE, STALE).await);

    let careless = restore("careless").await?;
    careless.write(APPLE, STALE).await?;
    careless.write(YOUNG, STALE).await?;

    let careful = restore("careful").await?;
    raise(&careful.marks()).await?;
    for key in [APPLE, YOUNG] {
        for token in [BEFORE, STALE, AFTER] {
            stale(careful.write(key, token).await);
        }
    }
    careful.write(APPLE, NEXT).await?;
    careful.write(YOUNG, NEXT + 1).await?;
    // The one before the backup, and those two.
    assert_eq!(careful.number("SELECT COUNT(*) FROM writes").await?, 3);
    Ok(careful)
}

/// `highwater fence raise`, first for all marks, then for the keys that the application knows. Naming
/// those that have a mark as well would hide it if the first did nothing.
async fn raise(marks: &Marks) -> Outcome<()> {
    let floor = FencingToken::new(NEXT).expect("not zero");
    let raised = marks.raise(&Selection::all(), domain(), floor).await?;
    assert_eq!(raised.changed.len(), 1);
    let known = [key(YOUNG)].into();
    let raised = marks.raise_keys(&known, domain(), floor).await?;
    assert_eq!(raised.created.len(), 1);
    Ok(())
}

#[track_caller]
fn stale(outcome: Result<(), FenceError>) {
    assert!(
        matches!(outcome, Err(FenceError::Stale { .. })),
        "{outcome:?}"
    );
}

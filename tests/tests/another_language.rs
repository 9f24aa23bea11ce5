//! A PostgreSQL server that answers in another language than English: what its errors mean must not
//! depend on their words. Over every adapter of the build that speaks PostgreSQL; diesel and
//! diesel-async get the words and no SQLSTATE.
//!
//! The language is made here, since images often come without any: a locale that is a copy of C, and
//! a catalogue with the messages that matter. Needs a Docker engine with the image named by
//! `HIGHWATER_TEST_POSTGRES_IMAGE`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use highwater_fencing::{
    Configured, Domain, Fence, FenceKey, FenceOptions, FencingToken, Isolation, Resolution,
    TableName,
};
use highwater_proof::adapter::{BoxError, Dialect, Source, Verdict, all, body};
use highwater_tests::databases::{Appliance, PASSWORD};
use highwater_tests::wait::eventually;
use tokio::sync::Barrier;

type Outcome<T> = Result<T, BoxError>;

/// What the server says in English, and here.
const WORDS: [(&str, &str); 10] = [
    (
        "%s can only be used in transaction blocks",
        "%s geht nur in Transaktionen",
    ),
    (
        "Process %d waits for %s on %s; blocked by process %d.",
        "Vorgang %d wartet auf %s an %s; im Weg steht Vorgang %d.",
    ),
    (
        "canceling statement due to lock timeout",
        "Befehl abgebrochen: die Sperre kam nicht rechtzeitig",
    ),
    (
        "could not serialize access due to concurrent update",
        "Zugriff nicht serialisierbar: gleichzeitig geschrieben",
    ),
    (
        "current transaction is aborted, commands ignored until end of transaction block",
        "die Transaktion ist hin, bis zu ihrem Ende geschieht nichts",
    ),
    ("deadlock detected", "Verklemmung entdeckt"),
    (
        "invalid input syntax for type %s: \"%s\"",
        "kein Wert vom Typ %s: >%s<",
    ),
    (
        "relation \"%s\" does not exist",
        "Relation >%s< gibt es nicht",
    ),
    (
        "savepoint \"%s\" does not exist",
        "Sicherungspunkt >%s< gibt es nicht",
    ),
    (
        "there is no transaction in progress",
        "es gibt keine Transaktion",
    ),
];

#[tokio::test]
async fn what_errors_mean_does_not_depend_on_their_words() -> Outcome<()> {
    let environment = [("POSTGRES_PASSWORD", PASSWORD)];
    let image = "HIGHWATER_TEST_POSTGRES_IMAGE";
    let arguments = ["-c", "fsync=off", "-c", "deadlock_timeout=100ms"];
    let server = Appliance::start(image, "postgres:17", &environment, &arguments, &[5432]).await?;
    let url = format!(
        "postgres://postgres:{PASSWORD}@127.0.0.1:{}/postgres",
        server.port(5432).await?
    );
    let adapters: Vec<_> = (all().into_iter())
        .filter(|adapter| adapter.dialect() == Dialect::Postgres)
        .collect();
    let patience = Duration::from_secs(60);
    let first = eventually("the server answers", patience, async || {
        adapters.first()?.open(&url, 1).await.ok()
    });
    let first = first.await;
    server.run(&learn()).await?;
    first
        .run("ALTER SYSTEM SET lc_messages = 'xx_XX.utf8'")
        .await?;
    first.run("SELECT pg_reload_conf()").await?;
    eventually("the server has learnt its words", patience, async || {
        let refused = first.run("SELECT 'x'::int").await.err()?;
        refused.to_string().contains("kein Wert").then_some(())
    })
    .await;
    first.migrate(&TableName::DEFAULT).await?;
    first
        .run("CREATE TABLE stock (sku TEXT PRIMARY KEY, quantity BIGINT NOT NULL)")
        .await?;
    for adapter in adapters {
        let name = adapter.name();
        first
            .run("DELETE FROM stock; INSERT INTO stock VALUES ('apple', 100), ('pear', 100)")
            .await?;
        let source = adapter.open(&url, 3).await?;
        let told = |what: &str, error: BoxError| format!("{name}: {what}: {error}");
        let done = a_deadlock_is_run_again(&source, name).await;
        done.map_err(|error| told("deadlock", error))?;
        let done = a_collision_is_run_again(&source, name).await;
        done.map_err(|error| told("collision", error))?;
        let done = a_mark_that_is_held_is_still_unknown(&source, name).await;
        done.map_err(|error| told("resolve", error))?;
        let done = an_aborted_transaction_is_rolled_back(&source, name).await;
        done.map_err(|error| told("aborted", error))?;
        source.close().await;
    }
    Ok(())
}

fn fence(key: &str, token: u64) -> Fence {
    let domain = Domain::named("language").expect("a name");
    let key = FenceKey::new(key).expect("a key");
    Fence::new(domain, key, FencingToken::new(token).expect("not zero"))
}

fn configured(key: &str, token: u64) -> Configured {
    FenceOptions::new().apply(fence(key, token))
}

/// Two transactions that want each other's row.
async fn a_deadlock_is_run_again(source: &Arc<dyn Source>, name: &str) -> Outcome<()> {
    let barrier = Arc::new(Barrier::new(2));
    let attempts = Arc::new(AtomicU32::new(0));
    let mut both = tokio::task::JoinSet::new();
    for (key, skus) in [("first", ["apple", "pear"]), ("second", ["pear", "apple"])] {
        let (barrier, attempts) = (barrier.clone(), attempts.clone());
        let take = body(move |tx| {
            let (barrier, attempts) = (barrier.clone(), attempts.clone());
            Box::pin(async move {
                let attempt = attempts.fetch_add(1, Ordering::SeqCst);
                tx.run(&take_ten(skus[0])).await?;
                // At first each holds one row before it wants the other.
                if attempt < 2 {
                    barrier.wait().await;
                }
                tx.run(&take_ten(skus[1])).await?;
                Ok(0)
            })
        });
        let (source, fence) = (source.clone(), configured(&format!("{name}/{key}"), 1));
        both.spawn(async move {
            let done = source.transaction(&fence, take).await;
            done.map_err(|error| error.to_string())
        });
    }
    while let Some(done) = both.join_next().await {
        done??;
    }
    let attempts = attempts.load(Ordering::SeqCst);
    assert!(attempts > 2, "{name}: there was no deadlock");
    Ok(())
}

/// A snapshot that has become too old for its write.
async fn a_collision_is_run_again(source: &Arc<dyn Source>, name: &str) -> Outcome<()> {
    let options = FenceOptions::new().isolation(Isolation::RepeatableRead);
    let fence = options.apply(fence(&format!("{name}/collision"), 1));
    let attempts = Arc::new(AtomicU32::new(0));
    let (other, counted) = (source.clone(), attempts.clone());
    let take = body(move |tx| {
        let (other, attempts) = (other.clone(), counted.clone());
        Box::pin(async move {
            tx.number("SELECT quantity FROM stock WHERE sku = 'apple'")
                .await?;
            if attempts.fetch_add(1, Ordering::SeqCst) == 0 {
                other.run(&take_ten("apple")).await?;
            }
            tx.run(&take_ten("apple")).await?;
            Ok(0)
        })
    });
    source.transaction(&fence, take).await?;
    assert_eq!(attempts.load(Ordering::SeqCst), 2, "{name}");
    Ok(())
}

/// A wait that is given up.
async fn a_mark_that_is_held_is_still_unknown(source: &Arc<dyn Source>, name: &str) -> Outcome<()> {
    let fence = fence(&format!("{name}/held"), 1).with_step(1.try_into()?);
    let options = FenceOptions::new().resolve_for(Duration::from_millis(200));
    let fence = options.apply(fence);
    let old = source.begin(&fence).await?;
    let answer = source.resolve(&fence).await?;
    assert_eq!(answer, Resolution::StillUnknown, "{name}");
    old.rollback().await?;
    let answer = source.resolve(&fence).await?;
    assert_eq!(answer, Resolution::NotApplied, "{name}");
    Ok(())
}

/// A commit that cannot be, because a statement failed whose error nobody looked at.
async fn an_aborted_transaction_is_rolled_back(
    source: &Arc<dyn Source>,
    name: &str,
) -> Outcome<()> {
    let fence = configured(&format!("{name}/aborted"), 1);
    let mut tx = source.begin(&fence).await?;
    tx.run_past(&take_ten("apple")).await?;
    let failed = tx.run_past("SELECT * FROM nowhere").await;
    assert!(failed.is_err_and(|error| error.to_string().contains("gibt es nicht")));
    let refused = tx.commit().await;
    assert!(
        matches!(
            refused,
            Err(Verdict::Database(_) | Verdict::Poisoned { .. })
        ),
        "{name}: {refused:?}"
    );
    // And one that was ended is not taken for one that failed.
    let mut tx = source.begin(&fence).await?;
    tx.run_past("COMMIT").await?;
    let ended = tx.commit().await;
    assert!(matches!(ended, Err(Verdict::Ended(_))), "{name}: {ended:?}");
    Ok(())
}

fn take_ten(sku: &str) -> String {
    format!("UPDATE stock SET quantity = quantity - 10 WHERE sku = '{sku}'")
}

/// The script that brings the language to the server.
fn learn() -> String {
    let catalogue: String = (catalogue().iter())
        .map(|byte| format!("\\0{byte:03o}"))
        .collect();
    format!(
        r#"cp -r /usr/lib/locale/C.utf8 /usr/lib/locale/xx_XX.utf8
folder=/usr/share/locale/xx/LC_MESSAGES
mkdir -p $folder
printf %b '{catalogue}' >$folder/postgres-$(ls /usr/lib/postgresql).mo"#
    )
}

/// A catalogue of GNU gettext (the format of MO files): a head, two tables of lengths and places, and
/// the texts, in the order of the originals.
fn catalogue() -> Vec<u8> {
    let mut words = WORDS;
    words.sort_unstable();
    let count = u32::try_from(words.len()).expect("few");
    let (originals, translations) = (HEAD, HEAD + 8 * count);
    let mut place = HEAD + 16 * count;
    let mut bytes = Vec::new();
    let mut put = |number: u32| bytes.extend(number.to_le_bytes());
    for number in [0x9504_12de, 0, count, originals, translations, 0, place] {
        put(number);
    }
    let texts = words.iter().map(|words| words.0);
    let texts: Vec<&str> = texts.chain(words.iter().map(|words| words.1)).collect();
    for text in &texts {
        let length = u32::try_from(text.len()).expect("short");
        put(length);
        put(place);
        place += length + 1;
    }
    for text in texts {
        bytes.extend(text.as_bytes());
        bytes.push(0);
    }
    bytes
}

const HEAD: u32 = 28;

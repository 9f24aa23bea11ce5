//! A measurement as a whole, against servers in this process.

use std::time::Duration;

use highwater_bench::{BenchError, Kind, Pattern, Settings, Target, echo, measure};
use highwater_server::Server;
use tokio::net::TcpListener;

async fn server() -> Server {
    let builder = Server::builder().in_memory().no_auth();
    let listening = builder.listen(([127, 0, 0, 1], 0).into());
    listening.start().await.expect("starts")
}

async fn echo() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let address = listener.local_addr().expect("has one").to_string();
    tokio::spawn(echo::serve(listener));
    address
}

fn settings() -> Settings {
    Settings {
        tasks: 8,
        keys: 2,
        patterns: vec![Pattern::Contended, Pattern::Uncontended],
        rounds: 2,
        time: Duration::from_millis(50),
        progress: false,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_target_has_a_row_for_every_pattern() {
    let server = server().await;
    let address = server.local_addr().to_string();
    let targets = vec![
        Target::highwater(Kind::Echo, &echo().await, None)
            .await
            .unwrap(),
        Target::highwater(Kind::Highwater, &address, None)
            .await
            .unwrap(),
    ];
    let report = measure(targets, &settings()).await.unwrap();
    let rows: Vec<_> = (report.rows.iter())
        .map(|row| (row.pattern, row.target))
        .collect();
    let expected = [Pattern::Contended, Pattern::Uncontended]
        .map(|pattern| [(pattern, Kind::Echo), (pattern, Kind::Highwater)]);
    assert_eq!(rows, expected.concat());
    for row in &report.rows {
        let latency = &row.figures.latency;
        assert!(row.figures.cycles_per_second > 0.0, "{row:?}");
        assert!(0.0 < latency.p50 && latency.p50 <= latency.p99, "{row:?}");
        assert!(latency.p99 <= latency.max, "{row:?}");
    }
    assert!(
        report
            .rows
            .iter()
            .step_by(2)
            .all(|row| row.throughput_ratio == 1.0)
    );
    // Nothing is left behind.
    assert_eq!(server.counts().held_keys, 0);
}

/// The checks would find a server that locks nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_target_that_lets_everybody_in_is_found() {
    let broken = Target::highwater(Kind::Highwater, &echo().await, None)
        .await
        .unwrap();
    let error = measure(vec![broken], &settings()).await.unwrap_err();
    assert!(matches!(error, BenchError::Cycle { .. }), "{error:?}");
}

#[tokio::test]
async fn nothing_to_measure_is_an_error() {
    let none = measure(Vec::new(), &settings()).await;
    assert!(matches!(none, Err(BenchError::Empty)));
    let target = Target::highwater(Kind::Echo, &echo().await, None)
        .await
        .unwrap();
    let no_time = Settings {
        time: Duration::ZERO,
        ..settings()
    };
    assert!(matches!(
        measure(vec![target], &no_time).await,
        Err(BenchError::Empty)
    ));
}

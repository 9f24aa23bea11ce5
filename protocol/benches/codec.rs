//! Encoding and decoding of frames, per frame.
#![expect(clippy::unwrap_used, reason = "a bench may panic")]

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use highwater_protocol::{
    FencingToken, Key, KeySet, LeaseSeconds, Reply, ReplyDecoder, Request, RequestDecoder,
    RequestNumber, Shape,
};

/// Frames per measured pass, as a busy connection's read would hold.
const BATCH: u64 = 64;

fn keys(count: usize) -> KeySet {
    KeySet::new((0..count).map(|index| Key::new(format!("inventory/sku-{index:05}")).unwrap()))
        .unwrap()
}

fn acquires(keys: &KeySet) -> Vec<Request> {
    (1..=BATCH)
        .map(|id| Request::Acquire {
            id: RequestNumber::new(id).unwrap(),
            keys: keys.clone(),
            wait_seconds: 5,
            lease: LeaseSeconds::new(30).unwrap(),
        })
        .collect()
}

fn requests(criterion: &mut Criterion) {
    for (name, count) in [("acquire", 1), ("acquire_set_of_16", 16)] {
        let requests = acquires(&keys(count));
        let mut group = criterion.benchmark_group(name);
        group.throughput(Throughput::Elements(BATCH));
        let mut bytes = Vec::new();
        group.bench_function("encode", |bencher| {
            bencher.iter(|| {
                bytes.clear();
                for request in black_box(&requests) {
                    request.encode(&mut bytes);
                }
                bytes.len()
            });
        });
        bytes.clear();
        requests
            .iter()
            .for_each(|request| request.encode(&mut bytes));
        group.bench_function("decode", |bencher| {
            let mut decoder = RequestDecoder::new();
            bencher.iter(|| {
                let mut chunk = black_box(&bytes[..]);
                while let Some(incoming) = decoder.next(&mut chunk).unwrap() {
                    black_box(incoming);
                }
            });
        });
        group.bench_function("decode_in_chunks_of_7", |bencher| {
            let mut decoder = RequestDecoder::new();
            bencher.iter(|| {
                for mut chunk in black_box(&bytes[..]).chunks(7) {
                    while let Some(incoming) = decoder.next(&mut chunk).unwrap() {
                        black_box(incoming);
                    }
                }
            });
        });
        group.finish();
    }
}

fn replies(criterion: &mut Criterion) {
    let replies: Vec<Reply> = (1..=BATCH)
        .map(|id| Reply::Granted {
            id: RequestNumber::new(id).unwrap(),
            shape: Shape::One,
            token: FencingToken::new(id).unwrap(),
        })
        .collect();
    let mut group = criterion.benchmark_group("granted");
    group.throughput(Throughput::Elements(BATCH));
    let mut bytes = Vec::new();
    group.bench_function("encode", |bencher| {
        bencher.iter(|| {
            bytes.clear();
            for reply in black_box(&replies) {
                reply.encode(&mut bytes);
            }
            bytes.len()
        });
    });
    bytes.clear();
    replies.iter().for_each(|reply| reply.encode(&mut bytes));
    group.bench_function("decode", |bencher| {
        let mut decoder = ReplyDecoder::new();
        bencher.iter(|| {
            let mut chunk = black_box(&bytes[..]);
            while let Some(reply) = decoder.next(&mut chunk).unwrap() {
                black_box(reply);
            }
        });
    });
    group.finish();
}

criterion_group!(codec, requests, replies);
criterion_main!(codec);

//! Measures publishing to a JetStream stream with async-nats: N messages with W in flight, from the first call to the
//! last ack.

use std::collections::VecDeque;
use std::time::Instant;

use async_nats::jetstream;
use async_nats::jetstream::context::PublishAckFuture;
use bytes::Bytes;
use peers::{CLIENT, Outcome, flag, run};

#[tokio::main]
async fn main() {
    run(publish()).await;
}

async fn publish() -> Outcome<String> {
    let subject: String = flag("subject", "bench")?;
    let (n, size, window): (u64, usize, usize) = (flag("n", "100000")?, flag("size", "100")?, flag("window", "4000")?);
    let client = async_nats::connect(flag::<String>("url", "nats://127.0.0.1:4222")?).await?;
    // Its own limit of acks in flight would wait in `publish` as well; here the oldest ack is awaited instead.
    let js = jetstream::new(client);
    let payload = Bytes::from(vec![b'x'; size]);
    let mut pending: VecDeque<PublishAckFuture> = VecDeque::with_capacity(window);
    let (mut acked, mut last) = (0_u64, 0_u64);
    let start = Instant::now();
    for _ in 0..n {
        if pending.len() == window {
            last = last.max(pending.pop_front().ok_or("nothing is pending")?.await?.sequence);
            acked += 1;
        }
        pending.push_back(js.publish(subject.clone(), payload.clone()).await?);
    }
    while let Some(ack) = pending.pop_front() {
        last = last.max(ack.await?.sequence);
        acked += 1;
    }
    let seconds = start.elapsed().as_secs_f64();
    let rate = acked as f64 / seconds;
    Ok(format!(
        r#"{{"client": "{CLIENT}", "n": {n}, "acked": {acked}, "last": {last}, "seconds": {seconds}, "acked_per_s": {rate}}}"#
    ))
}

//! Measures reading a JetStream stream with async-nats: N messages of a consumer that is there already, from the call
//! of `messages` to the last of them, and to its ack.

use std::time::Instant;

use async_nats::jetstream;
use async_nats::jetstream::consumer::PullConsumer;
use futures_util::StreamExt;
use peers::{CLIENT, Outcome, flag, run};

#[tokio::main]
async fn main() {
    run(consume()).await;
}

async fn consume() -> Outcome<String> {
    let (stream, name): (String, String) = (flag("stream", "bench")?, flag("consumer", "bench")?);
    let (n, size, window): (usize, usize, usize) = (flag("n", "100000")?, flag("size", "100")?, flag("window", "500")?);
    let ack: bool = flag("ack", "false")?;
    let client = async_nats::connect(flag::<String>("url", "nats://127.0.0.1:4222")?).await?;
    let js = jetstream::new(client.clone());
    let consumer: PullConsumer = js.get_consumer_from_stream(name, stream).await?;
    let start = Instant::now();
    let mut messages = consumer.stream().max_messages_per_batch(window).messages().await?;
    let (mut read, mut wrong) = (0, 0);
    while read < n {
        let message = messages.next().await.ok_or("the messages ended")??;
        read += 1;
        wrong += usize::from(message.payload.len() != size);
        if ack {
            message.ack().await?;
        }
    }
    // Flush only writes. The server answers the account query behind it after it has read the acks.
    client.flush().await?;
    js.query_account().await?;
    let seconds = start.elapsed().as_secs_f64();
    let rate = read as f64 / seconds;
    Ok(format!(
        r#"{{"client": "{CLIENT}", "n": {n}, "read": {read}, "wrong": {wrong}, "seconds": {seconds}, "messages_per_s": {rate}}}"#
    ))
}

"""Use a Liftbridge cluster from a script: publish, read, store the position, share a client among threads."""

from concurrent.futures import ThreadPoolExecutor

import liftenvelope
from liftenvelope import BlockingClient
from liftenvelope.errors import IncorrectOffsetError
from liftenvelope.testing import run_liftbridge


def publish(client: BlockingClient) -> None:
    client.create_stream("orders", "orders")
    client.create_stream("accounts", "accounts", optimistic_concurrency=True)

    # One message: the call returns when it is stored. Many: they are in flight together.
    ack = client.publish("orders", b"one tea", key=b"customer-8", headers={"shop": b"7"})
    print(f"offset {ack.offset if ack else None}")
    print(client.publish_many("orders", (b"order %d" % number for number in range(10_000))))

    # Errors are those of the async client.
    client.publish("accounts", b"opened", expected_offset=0)
    try:
        client.publish("accounts", b"opened again", expected_offset=0)
    except IncorrectOffsetError as error:
        print(f"refused, and not stored: {error}")


def read(client: BlockingClient, count: int) -> None:
    """Read some messages; the next reader continues after them."""
    with client.checkpointer("billing", "orders") as checkpoints:
        start = checkpoints.start(0)
        with client.subscribe("orders", start=start, stop="latest") as messages:
            for batch in messages.batches(count):
                checkpoints.processed(batch[-1])
                print(f"{len(batch):,} messages from offset {batch[0].offset:,}")
                break


def main() -> None:
    with run_liftbridge() as cluster, liftenvelope.connect_blocking(cluster.addresses) as client:
        publish(client)
        read(client, 5_000)
        read(client, 1_000)

        # One client serves any number of threads.
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda number: client.publish("orders", b"%d" % number), range(100)))
        print(f"{client.fetch_partition_metadata('orders').newest_offset + 1:,} messages in all")


if __name__ == "__main__":
    main()

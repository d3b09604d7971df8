"""A query with ``commitConsumer`` that notes its consumer's ack floor in each batch, and may kill itself.

Run by test_commit_consumers. The last argument is the moment of the kill: ``2 before`` or ``2 after`` the
work of that batch, ``2 committed`` as soon as Spark has written its commit, or ``never``.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import nats
from nats.js.errors import NotFoundError
from pyspark.sql import SparkSession

from liftenvelope.spark import recommended_conf, register

STREAM = "ORDERS"
CONSUMER = "query"
#: Rows of a batch.
BATCH = 10

LOCAL = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
}


def position(url: str) -> tuple[int, int]:
    """Return the ack floor of the consumer, and the messages behind it; both are 0 without a consumer.

    Its own count of pending messages must be that of the messages behind its ack floor.
    """

    async def ask() -> tuple[int, int]:
        nc = await nats.connect(url)
        js = nc.jetstream(timeout=30)
        try:
            newest = (await js.stream_info(STREAM)).state.last_seq
            info = await js.consumer_info(STREAM, CONSUMER)
        except NotFoundError:
            return 0, 0
        finally:
            await nc.close()
        assert info.ack_floor is not None
        assert info.num_pending == newest - info.ack_floor.stream_seq
        return info.ack_floor.stream_seq, info.num_pending

    return asyncio.run(ask())


def committed(checkpoint: Path) -> int:
    """Return the number of messages that Spark's checkpoint counts as processed."""
    batches = [int(path.name) for path in (checkpoint / "commits").glob("[0-9]*")]
    if not batches:
        return 0
    *_, offsets = (checkpoint / "offsets" / str(max(batches))).read_text().splitlines()
    end: int = json.loads(offsets)["offsets"][STREAM]["0"]
    return end


def kill() -> None:
    os.killpg(0, signal.SIGKILL)


def kill_when_there(path: Path) -> None:
    while not path.exists():
        time.sleep(0)
    kill()


def main(url: str, folder: str, moment: str) -> None:
    checkpoint, notes = Path(folder) / "checkpoint", Path(folder) / "notes"
    number, _, place = moment.partition(" ")
    if place == "committed":
        threading.Thread(target=kill_when_there, args=[checkpoint / "commits" / number], daemon=True).start()

    def write(frame: Any, batch: int) -> None:
        mine = place if str(batch) == number else ""
        if mine == "before":
            kill()
        before = committed(checkpoint)
        note = {"batch": batch, "committed": before, "position": position(url)}
        note["values"] = sorted(int(bytes(row.value)) for row in frame.select("value").collect())
        with open(notes, "a") as file:
            file.write(json.dumps(note) + "\n")
        if mine == "after":
            kill()

    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = SparkSession.builder.master("local[2]").config(map={**recommended_conf(), **LOCAL}).getOrCreate()
    register(spark)
    options = {"servers": url, "startingOffsets": "earliest", "maxOffsetsPerTrigger": str(BATCH)}
    rows = spark.readStream.format("jetstream").options(**options, commitConsumer=CONSUMER).load(STREAM)
    query = rows.writeStream.foreachBatch(write).option("checkpointLocation", str(checkpoint))
    query.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Publishers outside Spark, as many processes as a sink has tasks.

Each connects, says so, and begins when it is told to; what counts is from there until the last one is done.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from time import perf_counter
from typing import Any

import nats

import liftenvelope
from liftenvelope import bulk
from liftenvelope.nats import AckInbox, EnvelopePublisher

WINDOW = 4_000


def publish(kind: str, where: str, stream: str, count: int, size: int, tasks: int) -> float:
    """Publish so many messages of so many bytes from several processes; return how many seconds it took."""
    given = [kind, where, stream, str(count // tasks), str(size)]
    command = [sys.executable, "-m", "benchmarks.spark.publishers", *given]
    with ExitStack() as stack:
        running = [_start(command, stack) for _ in range(tasks)]
        for process in running:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        began = perf_counter()
        for process in running:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        for process in running:
            assert process.stdout is not None
            assert process.stdout.readline() == "done\n"
        return perf_counter() - began


def _start(command: list[str], stack: ExitStack) -> subprocess.Popen[str]:
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    stack.enter_context(process)
    stack.callback(process.kill)
    return process


def _started() -> None:
    print("ready", flush=True)
    sys.stdin.readline()


async def _publish_many(where: str, stream: str, count: int, value: bytes) -> None:
    async with await liftenvelope.connect([where]) as client:
        _started()
        await client.publish_many(stream, (value for _ in range(count)), max_in_flight=WINDOW)


async def _publish_batch(where: str, stream: str, count: int, value: bytes) -> None:
    async with await nats.connect(where) as nc, AckInbox(nc, max_outstanding=WINDOW) as inbox:
        publisher = EnvelopePublisher(nc, stream, inbox=inbox)
        _started()
        acks = await publisher.publish_batch([value] * count)
        assert acks is not None
        await acks


async def _bulk_write(where: str, stream: str, count: int, value: bytes) -> None:
    import pyarrow as pa

    table = pa.table({"value": pa.array([value] * count, pa.binary())})
    _started()
    bulk.write(where, stream, table, subject=stream, max_in_flight=WINDOW)


_KINDS: dict[str, Callable[[str, str, int, bytes], Coroutine[Any, Any, None]]] = {
    "publish_many": _publish_many,
    "publish_batch": _publish_batch,
    "bulk.write": _bulk_write,
}

if __name__ == "__main__":
    kind, where, stream, count, size = sys.argv[1:]
    asyncio.run(_KINDS[kind](where, stream, int(count), b"x" * int(size)))
    print("done", flush=True)

"""Memory of the monitor over time: ``python -m benchmarks.monitor_memory --seconds 600``.

``liftenvelope monitor`` watches streams that are all written each second, a consumer of each, a group whose
members come and go, and streams that are created and deleted. Pages are open, and some are opened and closed
again. Its memory is printed every ten seconds. Series are full after 600 samples: five minutes at this
interval.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Final

import aiohttp
import nats

from liftenvelope.group import Coordinator, GroupConsumer, JetStreamTopic
from liftenvelope.jetstream import ConsumerConfig, JetStream, StreamConfig
from liftenvelope.testing import run_nats_server

#: Growth in the second half of the run, in MiB.
TARGET: Final = 4.0


def _resident(pid: int) -> float:
    """Return the resident memory of a process in MiB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


@asynccontextmanager
async def _monitor(url: str) -> AsyncIterator[tuple[int, str]]:
    command = [sys.executable, "-m", "liftenvelope", "monitor", "--url", url, "--json"]
    process = await asyncio.create_subprocess_exec(
        *command, "--http", "127.0.0.1:0", "--interval", "500ms", stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        yield process.pid, str(json.loads(await process.stdout.readline())["url"])
    finally:
        process.terminate()
        await process.wait()


async def _create(js: JetStream, streams: int) -> None:
    for number in range(streams):
        name = f"stream-{number}"
        await js.create_stream(StreamConfig(name=name, subjects=(name,), max_msgs=1_000))
        await js.create_consumer(name, ConsumerConfig(durable_name="reader"))


async def _write(js: JetStream, streams: int) -> None:
    """Publish to every stream each second, and let further streams come and go."""
    for number in count():
        name = f"short-{number}"
        await js.create_stream(StreamConfig(name=name, subjects=(name,)))
        acks = [await js.publish_async(f"stream-{each}", b"x" * 100) for each in range(streams)]
        await asyncio.gather(*acks, asyncio.sleep(1.0))
        await js.delete_stream(name)


async def _join(url: str, topic: JetStreamTopic, name: str) -> None:
    """Join a group under new names, one after the other."""
    async with await nats.connect(url) as nc:
        for number in count():
            async with GroupConsumer(nc, "ledger", topic, consumer_id=f"{name}-{number}", timeout=60):
                await asyncio.sleep(5)


async def _look(url: str, path: str, seconds: float) -> None:
    """Keep a page open for some time, again and again."""
    async with aiohttp.ClientSession(url, timeout=aiohttp.ClientTimeout(None)) as session:
        while True:
            try:
                async with asyncio.timeout(seconds), session.get(f"api/events?{path}") as answer:
                    async for _ in answer.content:
                        pass
            except TimeoutError:
                pass


async def _measured(pid: int, seconds: float) -> float:
    """Print the memory until the end; return its growth in the second half, in MiB."""
    begun, first, last = time.monotonic(), 0.0, 0.0
    while (passed := time.monotonic() - begun) < seconds:
        last = _resident(pid)
        if not first and passed >= seconds / 2:
            first = last
        print(f"{passed:5.0f} s  {last:7.1f} MiB", flush=True)
        await asyncio.sleep(min(10.0, seconds / 20))
    return last - first


async def _run(seconds: float, streams: int) -> float:
    with run_nats_server(jetstream=True) as server:
        async with AsyncExitStack() as stack:
            nc = await stack.enter_async_context(await nats.connect(server.url))
            js = await stack.enter_async_context(JetStream(nc, timeout=60))
            await stack.enter_async_context(Coordinator(nc, timeout=60))
            await js.create_stream(StreamConfig(name="ledger", subjects=("ledger.*",)))
            topic = JetStreamTopic.of_stream("ledger", [f"ledger.{number}" for number in range(6)])
            await _create(js, streams)
            pid, url = await stack.enter_async_context(_monitor(server.url))
            work = [_write(js, streams), *(_join(server.url, topic, name) for name in ("ann", "bob"))]
            work += [_look(url, f"page={page}", 1e9) for page in ("streams", "readers", "group&name=ledger")]
            work += [_look(url, "page=stream&name=stream-1", 2.0), _look(url, "page=streams", 3.0)]
            tasks = [asyncio.create_task(one) for one in work]
            try:
                return await _measured(pid, seconds)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)


def main() -> int:
    """Print the memory over time; return 1 if it grew by more than the target."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=600.0, help="Length of the run.")
    parser.add_argument("--streams", type=int, default=200, help="Number of streams.")
    given = parser.parse_args()
    grown = asyncio.run(_run(given.seconds, given.streams))
    print(f"grown by {grown:.1f} MiB in the second half, to be at most {TARGET:g} MiB")
    return int(grown > TARGET)


if __name__ == "__main__":
    sys.exit(main())

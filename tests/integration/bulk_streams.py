"""Streams for the tests of bulk reads, and what an ordinary client reads of them."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.request import urlopen

import nats
import pyarrow as pa
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig

from liftenvelope.testing import NatsServer, run_nats_server
from tests.integration.conftest import keep_streams_folder

T = TypeVar("T")
#: Subject, payload, headers.
Item = tuple[str, bytes, dict[str, str] | None]


@contextmanager
def jetstream(**options: Any) -> Iterator[NatsServer]:
    with run_nats_server(jetstream=True, **options) as server:
        keep_streams_folder(server)
        yield server


@contextmanager
def monitored(**config: object) -> Iterator[NatsServer]:
    """A server that counts its connections."""
    with jetstream(config={"http": "127.0.0.1:-1", **config}) as server:
        yield server


def connections(server: NatsServer, key: str = "total_connections") -> int:
    """Connections that the server has had so far; with ``key="connections"``, those that are open."""
    address = re.findall(r"http monitor on (\S+)", server.log())[-1]  # a restart has another
    with urlopen(f"http://{address}/varz") as answer:
        return int(json.load(answer)[key])


def with_jetstream(url: str, work: Callable[[JetStreamContext], Awaitable[T]]) -> T:
    """Do something by nats-py, and return what it returns."""

    async def run() -> T:
        nc = await nats.connect(url)
        try:
            return await work(nc.jetstream(timeout=30))
        finally:
            await nc.close()

    return asyncio.run(run())


def make_stream(url: str, name: str, **config: Any) -> None:
    async def work(js: JetStreamContext) -> None:
        await js.add_stream(name=name, subjects=[f"{name}.>"], **config)

    with_jetstream(url, work)


def publish(url: str, items: Iterable[Item]) -> None:
    """Publish, a hundred at a time."""

    async def work(js: JetStreamContext) -> None:
        waiting: list[Item] = list(items)
        for begin in range(0, len(waiting), 100):
            part = waiting[begin : begin + 100]
            futures = [
                await js.publish_async(subject, payload, headers=headers)
                for subject, payload, headers in part
            ]
            await asyncio.gather(*futures)

    with_jetstream(url, work)


def numbered(name: str, count: int, size: int = 20) -> list[Item]:
    return [(f"{name}.{i % 3}", b"%d" % i + b"." * size, None) for i in range(count)]


def by_nats_py(url: str, name: str, count: int) -> list[tuple[int, str, bytes, dict[str, str]]]:
    """Read a stream with nats-py: offsets, subjects, payloads and headers."""

    async def work(js: JetStreamContext) -> list[tuple[int, str, bytes, dict[str, str]]]:
        config = ConsumerConfig(ack_policy=AckPolicy.NONE)
        consumer = await js.pull_subscribe(f"{name}.>", stream=name, config=config)
        found: list[tuple[int, str, bytes, dict[str, str]]] = []
        while len(found) < count:
            for msg in await consumer.fetch(min(1000, count - len(found)), timeout=20):
                sequence = msg.metadata.sequence.stream
                found.append((sequence - 1, msg.subject, msg.data, dict(msg.headers or {})))
        return found

    return with_jetstream(url, work)


def by_bulk(table: pa.Table) -> list[tuple[int, str, bytes, dict[str, str]]]:
    """The same of a table."""
    headers = [{name: value.decode() for name, value in row} for row in table["headers"].to_pylist()]
    columns = (table["offset"].to_pylist(), table["subject"].to_pylist(), table["value"].to_pylist())
    return list(zip(*columns, headers, strict=True))


class BulkThreads:
    """The threads of bulk reads that were started since this was made; its length is how many there are now.

    A test that failed before can have left others: its traceback keeps its readers.
    """

    def __init__(self) -> None:
        self._others = set(threading.enumerate())

    def __len__(self) -> int:
        mine = set(threading.enumerate()) - self._others
        return sum(thread.name == "liftenvelope-bulk" for thread in mine)

    def wait_until_gone(self) -> None:
        """Wait until all have ended."""
        wait_for("the end of the threads", lambda: not self)


def wait_for(what: str, condition: Callable[[], object], pause: float = 0.05) -> None:
    """Poll, with a deadline that a busy machine can keep."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(pause)


def offsets(table: pa.Table) -> list[int]:
    found: list[int] = table["offset"].to_pylist()
    return found

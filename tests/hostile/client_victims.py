"""Calls of clients that hostile servers attack, in a process of their own.

``python -m tests.hostile.client_victims`` reads ``[call, port]`` as lines of JSON, and prints how each call
ended: ``[error class, whether the error is one of the package's, text, MiB, seconds]``.
"""

from __future__ import annotations

import asyncio
import gc
import json
import re
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import nats
import nats.errors
import pyarrow as pa

import liftenvelope
from liftenvelope import bulk
from liftenvelope.bulk import Access
from liftenvelope.errors import LiftEnvelopeError
from liftenvelope.jetstream import JetStream
from liftenvelope.nats import AckInbox, accelerate

__all__ = ["CALLS"]

_TIMEOUT: Final = 2.0
#: Memory that the process may have, whatever a hostile server makes it do.
_ADDRESS_SPACE: Final = 6 << 30
_ACCESS: Final = Access(timeout=_TIMEOUT, connect_timeout=_TIMEOUT, reconnect_wait=1, stall_timeout=_TIMEOUT)


def _bulk_read(port: int) -> None:
    bulk.read(f"nats://127.0.0.1:{port}", "S", access=_ACCESS).read_all()


def _bulk_count(port: int) -> None:
    bulk.count(f"nats://127.0.0.1:{port}", "S", access=_ACCESS)


def _bulk_write(port: int) -> None:
    table = pa.table({"value": [b"x"] * 100})
    bulk.write(f"nats://127.0.0.1:{port}", "S", table, subject="s", access=_ACCESS)


def _bulk_liftbridge(port: int) -> None:
    bulk.read(f"liftbridge://127.0.0.1:{port}", "S", access=_ACCESS).read_all()


async def _connect_nats(port: int) -> Any:
    async def ignore(_: Exception) -> None:
        """nats-py prints what goes wrong on the connection."""

    return await nats.connect(
        f"nats://127.0.0.1:{port}",
        connect_timeout=int(_TIMEOUT),
        allow_reconnect=False,
        error_cb=ignore,
    )


async def _jetstream_info(port: int) -> None:
    nc = await _connect_nats(port)
    try:
        async with JetStream(nc, timeout=_TIMEOUT) as js:
            stream = await js.stream("S")
            await stream.info()
    finally:
        await nc.close()


async def _jetstream_publish(port: int) -> None:
    nc = await _connect_nats(port)
    try:
        async with JetStream(nc, timeout=_TIMEOUT) as js:
            await js.publish("s", b"x")
    finally:
        await nc.close()


async def _jetstream_fetch(port: int) -> None:
    nc = await _connect_nats(port)
    try:
        accelerate(nc)
        async with JetStream(nc, timeout=_TIMEOUT) as js:
            stream = await js.stream("S")
            consumer = await stream.consumer("C")
            await consumer.fetch(10, expires=_TIMEOUT)
    finally:
        await nc.close()


async def _inbox(port: int) -> None:
    nc = await _connect_nats(port)
    try:
        async with AckInbox(nc, timeout=_TIMEOUT) as inbox:
            await inbox.publish("s", b"x")
    finally:
        await nc.close()


def _client(port: int) -> liftenvelope.client.Client:
    return liftenvelope.connect(
        f"127.0.0.1:{port}",
        timeout=_TIMEOUT,
        ack_wait=_TIMEOUT,
        connect_timeout=_TIMEOUT,
        resubscribe_wait=_TIMEOUT,
    )


async def _client_metadata(port: int) -> None:
    async with _client(port) as client:
        await client.fetch_metadata()


async def _client_publish(port: int) -> None:
    async with _client(port) as client:
        await client.publish("S", b"x")


async def _client_subscribe(port: int) -> None:
    async with _client(port) as client, client.subscribe("S", start="earliest") as messages:
        async for _ in messages:
            pass


#: The calls by name; a coroutine function is run in an event loop of its own.
CALLS: Final[dict[str, Callable[[int], Any]]] = {
    "bulk.read": _bulk_read,
    "bulk.count": _bulk_count,
    "bulk.write": _bulk_write,
    "bulk.read of Liftbridge": _bulk_liftbridge,
    "jetstream info": _jetstream_info,
    "jetstream publish": _jetstream_publish,
    "jetstream fetch": _jetstream_fetch,
    "ack inbox": _inbox,
    "client metadata": _client_metadata,
    "client publish": _client_publish,
    "client subscribe": _client_subscribe,
}
#: A connection that the user makes with nats-py fails with the errors of nats-py.
_FOREIGN: Final = (nats.errors.Error, OSError)


def _mib(field: str) -> float:
    status = Path("/proc/self/status").read_text()
    found = re.search(rf"{field}:\s+(\d+)", status)
    assert found is not None
    return int(found[1]) / 1024


def _run(name: str, port: int) -> list[object]:
    call = CALLS[name]
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before, began = _mib("VmRSS"), time.monotonic()
    error, ours, text = "", True, ""
    try:
        if asyncio.iscoroutinefunction(call):
            asyncio.run(call(port))
        else:
            call(port)
    except Exception as exc:  # noqa: BLE001 - which class it has is what is asked
        error, text = type(exc).__name__, str(exc)[:200]
        ours = isinstance(exc, LiftEnvelopeError) or (
            name.startswith(("jet", "ack")) and isinstance(exc, _FOREIGN)
        )
    return [error, ours, text, _mib("VmHWM") - before, time.monotonic() - began]


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE, _ADDRESS_SPACE))
    for line in sys.stdin:
        print(json.dumps(_run(*json.loads(line))), flush=True)

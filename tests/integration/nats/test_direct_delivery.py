"""Messages handed over from where they are parsed: the same ones, in order, until the subscription ends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from liftenvelope.envelope import Ack, marshal_ack
from liftenvelope.nats import AckInbox
from liftenvelope.nats.link import Link
from liftenvelope.nats.receiving import DirectSubscription, deliver_directly
from tests.integration.conftest import until


async def _to_the_task(*_: object) -> None:
    raise AssertionError("nats-py's own way was taken")


async def test_in_order_and_accounted_for(nc: Client, name: str) -> None:
    seen: list[bytes] = []
    sub = await Link(nc).subscribe(name, _to_the_task)
    assert deliver_directly(sub, lambda msg: seen.append(msg.data))
    for i in range(5_000):
        await nc.publish(name, b"%d" % i)
    await until(lambda: len(seen) == 5_000)
    assert seen == [b"%d" % i for i in range(5_000)]
    assert (sub.pending_bytes, sub.pending_msgs, sub.delivered) == (0, 0, 5_000)
    await sub.drain()  # type: ignore[no-untyped-call]
    assert not nc._subs


async def test_other_subscriptions_are_not_affected(nc: Client, name: str) -> None:
    ours: list[Msg] = []
    others: list[Msg] = []

    async def other(msg: Msg) -> None:
        others.append(msg)

    sub = await Link(nc).subscribe(name, _to_the_task)
    await nc.subscribe(name, cb=other)
    deliver_directly(sub, ours.append)
    await nc.publish(name, b"x")
    await until(lambda: bool(ours and others))
    await sub.unsubscribe()
    await nc.publish(name, b"y")
    await until(lambda: len(others) == 2)
    assert [msg.data for msg in ours] == [b"x"]


async def test_a_handler_that_fails_costs_nobody_the_connection(nc: Client, name: str) -> None:
    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))

    def handler(msg: Msg) -> None:
        raise RuntimeError(msg.data)

    sub = await Link(nc).subscribe(name, _to_the_task)
    deliver_directly(sub, handler)
    for i in range(2):
        await nc.publish(name, b"%d" % i)
    await until(lambda: len(failures) == 2)
    assert [str(context["exception"]) for context in failures] == ["b'0'", "b'1'"]
    assert nc.is_connected


async def test_end_of_a_subscription_is_seen(nc: Client, name: str) -> None:
    ended = asyncio.Event()
    link = Link(nc)
    sub = await link.subscribe(name, _to_the_task)
    deliver_directly(sub, lambda _: None)
    watcher = link.when_ended(sub, ended.set)
    await nc.close()
    async with asyncio.timeout(60):
        await ended.wait()
    await watcher


async def test_acks_of_an_inbox_take_the_short_way(nc: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DirectSubscription, "on_payload", _to_the_task)
    async with AckInbox(nc, timeout=60) as inbox:
        future = inbox.expect()
        await nc.publish(inbox.subject, marshal_ack(Ack(correlation_id=future.correlation_id, offset=7)))
        assert (await future).offset == 7


@pytest.mark.parametrize("missing", ["_pending_queue", "_pending_size"])
async def test_another_inside(nc: Client, name: str, missing: str) -> None:
    sub = await Link(nc).subscribe(name, _to_the_task)
    kept = getattr(sub, missing)
    setattr(sub, missing, None)
    assert not deliver_directly(sub, lambda _: None)
    setattr(sub, missing, kept)

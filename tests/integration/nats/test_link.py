"""The adapter to nats-py: the private names that it uses, and the way without them."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from nats.aio.client import Client

import liftenvelope
from liftenvelope.errors import UsageError
from liftenvelope.jetstream.api import Api
from liftenvelope.nats import AckInbox, EnvelopePublisher
from liftenvelope.nats.link import _PRIVATE, Link
from liftenvelope.testing import FaultProxy, LiftbridgeCluster, run_nats_server
from tests.integration.conftest import connect
from tests.integration.nats.test_publisher import acked


async def test_nats_py_still_has_the_names_that_make_publishing_quick(nc: Client) -> None:
    """A failure means that nats-py has changed: adapt nats/link.py. Until then publishing is slow."""
    assert [name for name in _PRIVATE if not hasattr(nc, name)] == []
    assert Link(nc).direct
    assert nc._max_payload == nc.max_payload
    assert nc._err is nc.last_error
    assert isinstance(nc._pending, list)
    assert isinstance(nc._pending_data_size, int)
    assert isinstance(nc._flush_queue, asyncio.Queue)
    async with AckInbox(nc) as inbox:
        assert inbox._subscription is not None
        assert isinstance(inbox._subscription.subscription._wait_for_msgs_task, asyncio.Task)


@pytest.mark.parametrize("path", sorted(Path(liftenvelope.__file__).parent.rglob("*.py")), ids=str)
def test_private_names_stand_in_four_modules(path: Path) -> None:
    if (path.parent.name, path.name) in (
        ("nats", "link.py"),
        ("nats", "_internals.py"),
        ("nats", "receiving.py"),
        ("_native", "jet.py"),
    ):
        return
    found = re.findall(r"\bnc\._\w+|\b_nc\._\w+|\bsub(?:scription)?\._\w+|\b_remove_sub\b", path.read_text())
    assert found == []


@pytest.mark.parametrize(
    "bad", ["", "a b", "a\tb", "a\0", "a\r\nPUB stolen 0\r\n\r\n", "a\nPING\n", "a\x85b"]
)
async def test_subjects_that_would_inject_commands_never_reach_nats_py(nc: Client, bad: str) -> None:
    """nats-py before 2.16 sends them as they are."""
    link, api = Link(nc), Api(nc)

    async def ignore(_: object) -> None:
        """Take a message."""

    sent, subscriptions = nc.stats["out_msgs"], len(nc._subs)
    for call in (
        link.publish(bad, b""),
        link.subscribe(bad, None),
        link.subscribe("a", ignore, queue=bad or " "),
        api.ask(bad),
        api.send(bad, b""),
        api.send("a", b"", reply=bad or " "),
    ):
        with pytest.raises(UsageError, match="must have no white space and no control character"):
            await call
    assert (nc.stats["out_msgs"], len(nc._subs)) == (sent, subscriptions)


@pytest.fixture
def public_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if nats-py had renamed what it keeps to itself."""
    monkeypatch.setattr("liftenvelope.nats.link._PRIVATE", ("_gone",))


async def test_everything_works_through_public_methods(
    liftbridge_server: LiftbridgeCluster, lb_nc: Client, name: str, public_only: None
) -> None:
    liftbridge_server.create_stream(name, partitions=2)
    async with AckInbox(lb_nc, max_outstanding=50, timeout=60) as inbox:
        futures = [inbox.publish_nowait(name, b"%d" % i) for i in range(200)]
        assert [(await future).offset for future in futures] == list(range(200))
        publisher = EnvelopePublisher(lb_nc, name, inbox=inbox, partitions=2, partition_by="round_robin")
        summary = await acked(publisher, [b"b-%d" % i for i in range(300)])
        assert summary.ok
        assert sorted(summary.offsets[1::2]) == list(range(150))
    plain = EnvelopePublisher(lb_nc, name)
    await plain.publish(b"one")
    await plain.publish_batch([b"two", b"three"])
    await plain.flush()
    values = [bytes(message.value) for message in liftbridge_server.read(name, count=353)]
    assert values[-3:] == [b"one", b"two", b"three"]


async def test_a_cancelled_wait_for_room_is_cancelled() -> None:
    """nats-py's own inner flush swallows the cancellation."""
    with run_nats_server() as server, FaultProxy(server.url) as proxy:
        client = await connect(f"nats://{proxy.address}", pending_size=1000)
        proxy.stall()
        link = Link(client)
        while link.fits(0) or client._transport is None or not client.pending_data_size:
            link.write(b"PUB a 1000\r\n" + b"x" * 1000 + b"\r\n" * 1, 1, 1000)
            await asyncio.sleep(0)
            if client.stats["out_msgs"] > 50_000:
                break
        waiting = asyncio.create_task(link.room(0, float("inf")))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        proxy.resume()
        await client.close()


async def test_a_cancelled_barrier_does_not_cost_the_connection() -> None:
    """nats-py finds the future that waited for the PONG cancelled, and takes that for a fault."""
    with run_nats_server() as server, FaultProxy(server.url) as proxy:
        client = await connect(f"nats://{proxy.address}")
        link = Link(client)
        proxy.stall("to_client")
        waiting = asyncio.ensure_future(link.barrier(30))
        async with asyncio.timeout(60):
            while not client._pongs:
                await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        proxy.resume("to_client")
        await link.barrier(30)
        assert client.stats["reconnects"] == 0
        await client.close()

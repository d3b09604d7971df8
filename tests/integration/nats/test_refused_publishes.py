"""Publishes that nats-server refuses by the permissions of the user, on ack inboxes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import nullcontext

import nats
import pytest
from nats.aio.msg import Msg

from liftenvelope.envelope import Ack, marshal_ack, unmarshal_message
from liftenvelope.errors import PermissionDeniedError
from liftenvelope.jetstream import JetStream
from liftenvelope.nats import AckFuture, AckInbox, EnvelopePublisher, accelerate
from liftenvelope.nats.closing import close_connection
from liftenvelope.testing import LiftbridgeCluster, NatsServer, run_liftbridge, run_nats_server
from tests.handled import handled
from tests.integration.conftest import connect, reload_with

DENIED = PermissionDeniedError


@pytest.fixture(scope="module")
def cluster() -> Iterator[LiftbridgeCluster]:
    """A Liftbridge server on NATS, where ``ann`` may not publish on subjects that end in ``.No``."""
    permissions = {"publish": {"deny": ["*.No", "*.No.*"]}}
    users = [
        {"user": "ann", "password": "x", "permissions": permissions},
        {"user": "liftbridge", "password": "x"},
    ]
    config = {"authorization": {"users": users}, "no_auth_user": "liftbridge"}
    with run_nats_server(config=config) as server, run_liftbridge(nats_server=server) as cluster:
        yield cluster


@pytest.fixture(params=["plain", "accelerated", "public methods alone"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "public methods alone":
        monkeypatch.setattr("liftenvelope.nats.link._PRIVATE", ("_gone",))
    way: str = request.param
    return way


async def test_refused_publishes_fail_at_once_and_no_others(
    cluster: LiftbridgeCluster, name: str, way: str
) -> None:
    cluster.create_stream(name, subject=f"{name}.*")
    reports: list[Exception] = []

    async def keep(report: Exception) -> None:
        reports.append(report)

    nc = await connect(cluster.nats_url, user="ann", password="x", error_cb=keep)
    with accelerate(nc) if way == "accelerated" else nullcontext():
        async with asyncio.timeout(120), AckInbox(nc, timeout=10_000) as inbox:
            subjects = [f"{name}.{token}" for token in ("No", "no", "yes")] * 300
            futures = [inbox.publish_nowait(subject, b"v") for subject in subjects]
            outcomes = await asyncio.gather(*futures, return_exceptions=True)
            assert inbox.outstanding == len(inbox._pending) == 0
    assert "_process_err" not in vars(nc)  # reports reach nats-py as before
    await nc.close()
    assert len(reports) == 300
    assert [type(outcome) for outcome in outcomes] == [DENIED, Ack, Ack] * 300
    assert f"nats-server does not let this user publish on '{name}.No': the message is not" in str(
        outcomes[0]
    )


async def test_refused_rows_of_batches_fail_at_once(cluster: LiftbridgeCluster, name: str, way: str) -> None:
    """The refusals come while most of the rows wait for places in the window."""
    cluster.create_stream(name, subject=f"{name}.yes")
    nc = await connect(cluster.nats_url, user="ann", password="x")
    with accelerate(nc) if way == "accelerated" else nullcontext():
        async with asyncio.timeout(120), AckInbox(nc, max_outstanding=100) as inbox:
            allowed, refused = [
                EnvelopePublisher(nc, f"{name}.{token}", inbox=inbox, partitions=count, timeout=10_000)
                for token, count in (("yes", 1), ("No", 2))
            ]
            both = (publisher.publish_batch([b"v"] * 300) for publisher in (refused, allowed))
            summaries = [await acks for acks in await asyncio.gather(*both)]
            assert inbox.outstanding == len(inbox._pending) == 0
    await nc.close()
    assert [type(error) for error in summaries[0].failures.values()] == [DENIED] * 300
    assert sorted(summaries[1].offsets) == list(range(300))


@pytest.mark.parametrize("expected", [None, 2])
async def test_refused_publish_that_expects_several_acks_fails_at_once(
    cluster: LiftbridgeCluster, name: str, expected: int | None
) -> None:
    nc = await connect(cluster.nats_url, user="ann", password="x")
    async with asyncio.timeout(120), AckInbox(nc, timeout=10_000) as inbox:
        with pytest.raises(DENIED):
            await inbox.publish(f"{name}.No", b"v", expected=expected)
    await nc.close()


async def test_refused_publish_makes_room_for_the_next_one(cluster: LiftbridgeCluster, name: str) -> None:
    nc = await connect(cluster.nats_url, user="ann", password="x")
    async with asyncio.timeout(120), AckInbox(nc, timeout=10_000, max_outstanding=1) as inbox:
        for future in [inbox.publish_nowait(f"{name}.No", b"v") for _ in range(3)]:
            with pytest.raises(DENIED):
                await future
    await nc.close()


async def test_refusals_leave_envelopes_that_the_user_publishes_alone(
    cluster: LiftbridgeCluster, name: str
) -> None:
    nc = await connect(cluster.nats_url, user="ann", password="x")
    async with asyncio.timeout(120), AckInbox(nc, timeout=10_000) as inbox:
        own = inbox.expect()
        await nc.publish(f"{name}.No", b"v")
        with pytest.raises(DENIED):
            await inbox.publish(f"{name}.No", b"v")
        assert not own.done()
        own.cancel()
    await nc.close()


class SlowStream:
    """Takes messages in place of a stream with a slow leader, until ``ann`` may no longer publish on it."""

    def __init__(self, server: NatsServer, name: str) -> None:
        self._server = server
        self._name = name
        self.taken: asyncio.Queue[Msg] = asyncio.Queue()
        self.reports: asyncio.Queue[Exception] = asyncio.Queue()

    async def start(self) -> None:
        self._nc = await connect(self._server.url, user="stream", password="x")
        self.nc = await connect(self._server.url, user="ann", password="x", error_cb=self.reports.put)
        await self._nc.subscribe(self._name, cb=self.taken.put)
        await handled(self._nc)

    def revoke(self) -> None:
        reload_with(self._server, '"none"', f'"{self._name}"')

    async def answer(self, message: Msg) -> None:
        asked = unmarshal_message(message.data)
        ack = Ack(stream=self._name, correlation_id=asked.correlation_id, ack_inbox=asked.ack_inbox)
        await self._nc.publish(asked.ack_inbox, marshal_ack(ack))
        await self._nc.flush()


@pytest.fixture
async def slow(name: str) -> AsyncIterator[SlowStream]:
    users = [
        {"user": "ann", "password": "x", "permissions": {"publish": {"deny": ["none", f"{name}.never"]}}},
        {"user": "stream", "password": "x"},
    ]
    with run_nats_server(config={"authorization": {"users": users}}) as server:
        stream = SlowStream(server, name)
        await stream.start()
        yield stream


async def test_late_ack_of_before_a_change_of_permissions_outlives_refusals_of_other_inboxes(
    slow: SlowStream, name: str
) -> None:
    async with (
        asyncio.timeout(120),
        AckInbox(slow.nc, timeout=10_000) as first,
        AckInbox(slow.nc, timeout=10_000) as second,
        JetStream(slow.nc, timeout=10_000) as js,
    ):
        allowed = first.publish_nowait(name, b"allowed")
        message = await slow.taken.get()
        slow.revoke()
        refused = []
        while slow.reports.empty():  # until the server has read its configuration
            refused.append(second.publish_nowait(name, b"x"))
            await slow.nc.flush()
        refused += [second.publish_nowait(name, b"x"), first.publish_nowait(name, b"x")]
        other = await js.publish_async(name, b"x")
        with pytest.raises(DENIED):
            await second.publish(f"{name}.never", b"")  # compared at the same time as the others, or later
        assert not allowed.done()
        assert not other.done()
        await slow.answer(message)
        assert (await allowed).stream == name
        while not slow.taken.empty():
            await slow.answer(slow.taken.get_nowait())
        outcomes = await asyncio.gather(*refused, other, return_exceptions=True)
    denied = slow.reports.qsize() - 1  # one is that of the message on the other subject
    assert [type(outcome) for outcome in outcomes] == [Ack] * (len(outcomes) - denied) + [DENIED] * denied


@pytest.mark.parametrize("how", ["cancelled", "closed"])
async def test_late_ack_outlives_the_refusal_of_a_message_that_ended_before_it_came(
    slow: SlowStream, name: str, how: str
) -> None:
    async with asyncio.timeout(120), AckInbox(slow.nc, timeout=10_000) as inbox:
        allowed = inbox.publish_nowait(name, b"allowed")
        message = await slow.taken.get()
        slow.revoke()
        while slow.reports.empty():
            async with AckInbox(slow.nc, timeout=10_000) as other:
                ended = other.publish_nowait(name, b"x")
                if how == "cancelled":
                    ended.cancel()
                    await slow.nc.flush()
            assert isinstance(ended.exception(), Exception) if how == "closed" else ended.cancelled()
            await slow.nc.flush()
        with pytest.raises(DENIED):
            await inbox.publish(f"{name}.never", b"")  # compared at the same time as the others, or later
        assert not allowed.done()
        await slow.answer(message)
        assert (await allowed).stream == name


def test_future_can_be_cancelled_while_its_event_loop_does_not_run(nats_server: NatsServer) -> None:
    async def start() -> AckInbox:
        return await AckInbox(await nats.connect(nats_server.url)).start()

    async def publish(inbox: AckInbox) -> AckFuture:
        return inbox.publish_nowait("a", b"v")

    async def close(inbox: AckInbox) -> None:
        await inbox.close()
        await close_connection(inbox.nc)

    with asyncio.Runner() as runner:
        inbox = runner.run(start())
        future = runner.run(publish(inbox))
        assert future.cancel()
        assert inbox.outstanding == 0
        runner.run(close(inbox))

"""AckInbox against a real Liftbridge: what the server answers, and what it does not."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import pytest
from nats.aio.client import Client

from liftenvelope.correlation import Stray
from liftenvelope.envelope import Ack, AckError, AckPolicy, new_message
from liftenvelope.errors import (
    AckTimeoutError,
    EnvelopeTooLargeError,
    IncorrectOffsetError,
    MessageTooLargeError,
    PermissionDeniedError,
    TransportError,
    UsageError,
    UsageTypeError,
)
from liftenvelope.jetstream import Advisories, JetStream
from liftenvelope.nats import AckInbox, EnvelopePublisher
from liftenvelope.testing import LiftbridgeCluster, NatsServer, run_liftbridge, run_nats_server
from tests.integration.conftest import connect, until


def stored(cluster: LiftbridgeCluster, stream: str, count: int, partition: int = 0) -> list[bytes]:
    return [
        bytes(message.value) for message in cluster.read(stream, partition=partition, start=0, count=count)
    ]


@pytest.mark.parametrize("policy", [AckPolicy.LEADER, AckPolicy.ALL])
async def test_each_policy_that_acks(
    liftbridge_server: LiftbridgeCluster, lb_nc: Client, name: str, policy: AckPolicy
) -> None:
    liftbridge_server.create_stream(name)
    async with AckInbox(lb_nc, timeout=60) as inbox:
        ack = await inbox.publish(
            name, b"v", key=b"k", headers={"h": b"1"}, correlation_id="mine", ack_policy=policy
        )
    assert (ack.stream, ack.partition_subject, ack.msg_subject) == (name, name, name)
    assert (ack.offset, ack.error, ack.ack_policy) == (0, AckError.OK, policy)
    assert (ack.correlation_id, ack.ack_inbox) == ("mine", inbox.subject)
    assert 0 < ack.reception_timestamp_ns <= ack.commit_timestamp_ns
    message = liftbridge_server.read(name, count=1)[0]
    assert (message.key, message.value, message.headers["h"]) == (b"k", b"v", b"1")


async def test_policy_none_sends_no_ack_and_is_refused_where_one_is_awaited(
    liftbridge_server: LiftbridgeCluster, lb_nc: Client, name: str
) -> None:
    liftbridge_server.create_stream(name)
    async with AckInbox(lb_nc, timeout=60) as inbox:
        with pytest.raises(UsageError, match="NONE"):
            await inbox.publish(name, b"v", ack_policy=AckPolicy.NONE)
        silent = inbox.expect(timeout=0.3)
        envelope = new_message(
            b"silent",
            ack_inbox=inbox.subject,
            correlation_id=silent.correlation_id,
            ack_policy=AckPolicy.NONE,
        )
        await lb_nc.publish(name, envelope)
        with pytest.raises(AckTimeoutError, match="may be stored"):
            await silent
    with pytest.raises(UsageError, match="NONE"):
        EnvelopePublisher(lb_nc, name, inbox=inbox, ack_policy=AckPolicy.NONE)
    assert stored(liftbridge_server, name, 1) == [b"silent"]


async def test_without_an_inbox_the_message_is_stored_all_the_same(
    liftbridge_server: LiftbridgeCluster, lb_nc: Client, name: str
) -> None:
    liftbridge_server.create_stream(name)
    publisher = EnvelopePublisher(lb_nc, name)
    await publisher.publish(b"quiet")
    await publisher.publish_batch([b"a", b"b"])
    await publisher.flush()
    assert stored(liftbridge_server, name, 3) == [b"quiet", b"a", b"b"]


async def test_several_streams_on_one_subject(
    liftbridge_server: LiftbridgeCluster, lb_nc: Client, name: str
) -> None:
    for stream in (name, f"{name}-2"):
        liftbridge_server.create_stream(stream, subject=name)
    strays: list[tuple[str, Stray]] = []
    async with AckInbox(
        lb_nc, on_stray=lambda ack, kind: strays.append((ack.stream, kind)), timeout=60
    ) as inbox:
        both = await inbox.publish(name, b"1", expected=2)
        assert {ack.stream for ack in both} == {name, f"{name}-2"}
        collected, too_few = await asyncio.gather(
            inbox.publish(name, b"2", expected=None, timeout=5.0),
            inbox.publish(name, b"3", expected=3, timeout=5.0),
            return_exceptions=True,
        )
        assert not isinstance(collected, BaseException)
        assert {ack.stream for ack in collected} == {name, f"{name}-2"}
        assert isinstance(too_few, AckTimeoutError)
        assert str(too_few).startswith(f"2 of 3 acks came in time for the message on {name!r} (")
        assert "Usual causes: fewer streams record the subject than acks are expected" in str(too_few)
        assert "2 of 3 acks" in str(too_few)
        first = await inbox.publish(name, b"4")
        await until(lambda: bool(strays))
        other = ({name, f"{name}-2"} - {first.stream}).pop()
        assert strays == [(other, Stray.DUPLICATE)]


async def test_wildcard_subjects(liftbridge_server: LiftbridgeCluster, lb_nc: Client, name: str) -> None:
    liftbridge_server.create_stream(name, subject=f"{name}.*")
    async with AckInbox(lb_nc, timeout=60) as inbox:
        ack = await inbox.publish(f"{name}.a", b"v")
    assert (ack.partition_subject, ack.msg_subject) == (f"{name}.*", f"{name}.a")


async def test_optimistic_concurrency(liftbridge_server: LiftbridgeCluster, lb_nc: Client, name: str) -> None:
    liftbridge_server.create_stream(name, optimistic_concurrency=True)
    async with AckInbox(lb_nc, timeout=60) as inbox:
        assert (await inbox.publish(name, b"0", expected_offset=0)).offset == 0
        with pytest.raises(IncorrectOffsetError, match=name) as caught:
            await inbox.publish(name, b"0 again", expected_offset=0)
        assert caught.value.ack is not None
        assert caught.value.ack.error is AckError.INCORRECT_OFFSET
        publisher = EnvelopePublisher(lb_nc, name, inbox=inbox, timeout=60)
        acks = await publisher.publish_batch([b"1", b"x", b"2"], expected_offsets=[1, 7, 2])
        summary = await acks
    assert list(summary.offsets) == [1, -1, 2]
    assert list(summary.failures) == [1]
    with pytest.raises(ExceptionGroup, match="1 of 3") as group:
        summary.raise_for_failures()
    assert isinstance(group.value.exceptions[0], IncorrectOffsetError)
    assert group.value.exceptions[0].__notes__ == ["message 1 of the batch"]


async def test_too_large_for_the_server() -> None:
    with (
        run_nats_server(max_payload=4 * 1024 * 1024) as nats_server,
        run_liftbridge(nats_url=nats_server.url) as cluster,
    ):
        cluster.create_stream("big")
        client = await connect(nats_server.url)
        async with AckInbox(client) as inbox:
            with pytest.raises(MessageTooLargeError):
                await inbox.publish("big", b"x" * 1_100_000)
            assert (await inbox.publish("big", b"x" * 1_000_000)).offset == 0
            with pytest.raises(EnvelopeTooLargeError, match="4194304"):
                await inbox.publish("big", b"x" * 4 * 1024 * 1024)
        await client.close()


@pytest.mark.parametrize("state", ["paused", "read-only", "missing"])
async def test_ack_timeout_names_the_subject_and_the_usual_causes(
    liftbridge_server: LiftbridgeCluster, lb_nc: Client, name: str, state: str
) -> None:
    if state != "missing":
        liftbridge_server.create_stream(name)
    if state == "paused":
        liftbridge_server.pause_stream(name)
    if state == "read-only":
        liftbridge_server.set_stream_readonly(name)
    async with AckInbox(lb_nc, timeout=60) as inbox:
        with pytest.raises(AckTimeoutError, match="may be stored") as caught:
            await inbox.publish(name, b"v", timeout=0.3)
        assert caught.value.sent
        assert str(caught.value) == (
            f"no ack came in time for the message on {name!r} (correlation id "
            f"{caught.value.correlation_id!r}): the message may be stored, and publishing it again may store "
            "it twice. Usual causes: no stream records the subject; the stream is paused or read-only; the "
            "server is slow or unreachable"
        )
        publisher = EnvelopePublisher(lb_nc, name, inbox=inbox, timeout=60, partitions=2)
        acks = await publisher.publish_batch([b"a"] * 10, partitions=[0, 1] * 5, timeout=0.3)
        summary = await acks
        assert sorted(summary.failures) == list(range(10))
        subjects = [name, f"{name}.1"] * 5
        for row, subject in enumerate(subjects):
            assert f"for the message on {subject!r} (correlation id" in str(summary.failures[row])
        assert inbox.outstanding == 0


async def test_a_checksum_is_checked_by_the_server(
    liftbridge_server: LiftbridgeCluster, lb_nc: Client, name: str
) -> None:
    liftbridge_server.create_stream(name)
    async with AckInbox(lb_nc, timeout=60) as inbox:
        assert (await inbox.publish(name, b"sound", crc=True)).offset == 0
        broken = inbox.expect(timeout=0.3)
        envelope = new_message(
            b"broken", ack_inbox=inbox.subject, correlation_id=broken.correlation_id, crc=True
        )
        damaged = envelope[:-1] + bytes([envelope[-1] ^ 1])
        await lb_nc.publish(name, damaged)
        with pytest.raises(AckTimeoutError):
            await broken
        acks = await EnvelopePublisher(lb_nc, name, inbox=inbox, crc=True).publish_batch([b"batch"])
        assert list((await acks).offsets) == [2]
    assert stored(liftbridge_server, name, 3) == [b"sound", damaged, b"batch"]


# The inbox itself: places, cancellation, ends.


async def test_places_are_waited_for_and_nothing_is_dropped(
    liftbridge_server: LiftbridgeCluster, lb_nc: Client, name: str
) -> None:
    liftbridge_server.create_stream(name)
    async with AckInbox(lb_nc, max_outstanding=7, timeout=60) as inbox:
        futures = [inbox.publish_nowait(name, b"%d" % i) for i in range(500)]
        most = 0
        while not all(future.done() for future in futures):
            most = max(most, inbox.outstanding)
            await asyncio.sleep(0)
        assert most == 7
        assert [(await future).offset for future in futures] == list(range(500))
        assert await inbox.capacity(7) == 7
        with pytest.raises(UsageError, match="from 1 to max_outstanding"):
            await inbox.capacity(8)
        with pytest.raises(UsageTypeError, match="wanted must be an integer, got '1'"):
            await inbox.capacity("1")  # type: ignore[arg-type]
        with pytest.raises(UsageTypeError, match="timeout must be a number of seconds, got '1'"):
            await inbox.drain("1")  # type: ignore[arg-type]
    assert stored(liftbridge_server, name, 500) == [b"%d" % i for i in range(500)]


async def test_a_cancelled_publish_gives_its_place_back(nc: Client, name: str) -> None:
    async with AckInbox(nc, max_outstanding=1) as inbox:
        first = asyncio.create_task(inbox.publish(name, b"1"))
        await asyncio.sleep(0)
        second = inbox.publish_nowait(name, b"2")
        assert (inbox.outstanding, second.sent) == (1, False)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        await until(lambda: second.sent)
        assert second.cancel()
        assert not second.cancel()
        assert inbox.outstanding == 0
        assert inbox.stats.cancelled == 2


async def test_refused_permission_is_quoted_for_its_own_publish_alone(name: str) -> None:
    """Any later time-out quoted it, also one on another subject."""
    permissions = {"publish": {"deny": [f"{name}.denied"]}}
    users = [{"user": "worker", "password": "s3cret", "permissions": permissions}]
    with run_nats_server(config={"authorization": {"users": users}}) as server:
        nc = await connect(server.url, user="worker", password="s3cret")
        silent = await nc.subscribe(f"{name}.silent")
        async with AckInbox(nc, timeout=5.0) as inbox:
            own = inbox.expect()  # the inbox does not know the subject of the user's envelope
            await nc.publish(f"{name}.denied", b"v")
            refused = await asyncio.gather(
                own, JetStream(nc, timeout=5.0).api.ask(f"{name}.denied", b""), return_exceptions=True
            )
            said = f'; the server said: nats: permissions violation for publish to "{name}.denied"'
            assert [said in str(error) for error in refused] == [True] * 2
            assert isinstance(refused[0], AckTimeoutError)
            assert refused[0].sent
            assert "may be stored" in str(refused[0])
            others = await asyncio.gather(
                inbox.publish(f"{name}.silent", b"v"),
                inbox.expect(),
                JetStream(nc, timeout=5.0).api.ask(f"{name}.silent", b""),
                return_exceptions=True,
            )
            assert [isinstance(error, TimeoutError) for error in others] == [True] * 3
            assert ["the server said" in str(error) for error in others] == [False] * 3
        await silent.unsubscribe()
        await nc.close()


async def test_inbox_that_may_not_be_subscribed_to_fails_at_its_start() -> None:
    permissions = {"subscribe": {"deny": ["_INBOX.>"]}}
    users = [{"user": "worker", "password": "s3cret", "permissions": permissions}]
    with run_nats_server(config={"authorization": {"users": users}}) as server:
        nc = await connect(server.url, user="worker", password="s3cret")
        with pytest.raises(
            PermissionDeniedError, match=r"can't subscribe to _INBOX\..*permissions violation"
        ):
            await AckInbox(nc, timeout=60).start()
        async with AckInbox(nc, subject="acks.worker", timeout=60) as inbox:  # the refusal was of another one
            assert inbox.outstanding == 0
        await nc.close()


async def test_inboxes_that_start_at_once_each_notice_that_they_are_refused() -> None:
    """The connection keeps one error: the refusal of the last one."""
    permissions = {"subscribe": {"deny": ["acks.>", "_INBOX.>"]}}
    users = [{"user": "worker", "password": "s3cret", "permissions": permissions}]
    with run_nats_server(config={"authorization": {"users": users}}) as server:
        nc = await connect(server.url, user="worker", password="s3cret")
        starts = [AckInbox(nc, timeout=60).start() for _ in range(3)]
        events = Advisories(nc, prefix="acks").__aenter__()
        outcomes = await asyncio.gather(*starts, events, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [PermissionDeniedError] * 4
        await nc.close()


async def test_refused_inbox_is_noticed_among_other_reports() -> None:
    """The connection keeps one error: that of the publishes of another task."""
    permissions = {"subscribe": {"deny": ["acks.>", "_INBOX.>"]}, "publish": {"deny": ["no"]}}
    users = [{"user": "worker", "password": "s3cret", "permissions": permissions}]
    with run_nats_server(config={"authorization": {"users": users}}) as server:
        nc = await connect(server.url, user="worker", password="s3cret")

        async def publish() -> None:
            while True:
                await nc.publish("no", b"")
                await asyncio.sleep(0)

        publishing = asyncio.create_task(publish())
        await until(lambda: nc.last_error is not None)
        for starting in (AckInbox(nc, timeout=60).start, Advisories(nc, prefix="acks").__aenter__):
            with pytest.raises(PermissionDeniedError, match=r"can't subscribe to .*permissions violation"):
                await starting()
        publishing.cancel()
        await until(publishing.done)
        assert "_process_err" not in vars(nc)  # reports reach nats-py as before
        own: Any = nc._process_err
        vars(nc)["_process_err"] = own  # an application's
        with pytest.raises(PermissionDeniedError):
            await AckInbox(nc, timeout=60).start()
        assert vars(nc)["_process_err"] is own
        await nc.close()


async def test_inbox_may_be_subscribed_to_once_the_permission_is_granted() -> None:
    """The connection keeps its last error, the earlier refusal."""
    denied = 'authorization { users: [{user: u, password: p, permissions: {subscribe: {deny: ["acks.>"]}}}] }'
    with run_nats_server(config_text=denied) as server:
        nc = await connect(server.url, user="u", password="p")
        for inbox in (AckInbox(nc, subject="acks.a", timeout=60), Advisories(nc, prefix="acks")):
            with pytest.raises(PermissionDeniedError):
                await inbox.__aenter__()
        config = server._folder / "nats-server.conf"
        config.write_text(config.read_text().replace('deny: ["acks.>"]', 'deny: ["other.>"]'))
        assert server.pid is not None
        os.kill(server.pid, signal.SIGHUP)
        # Not "Reloaded: authorization users": the permissions of connections follow that line.
        await until(lambda: "Reloaded server configuration" in server.log() and nc.is_connected)
        async with AckInbox(nc, subject="acks.a", timeout=60), Advisories(nc, prefix="acks"):
            assert "acks" in str(nc.last_error)
        await nc.close()


async def test_what_was_never_sent_is_said_to_be_unsent(nc: Client, name: str) -> None:
    async with AckInbox(nc, max_outstanding=1) as inbox:
        first = inbox.publish_nowait(name, b"1", timeout=60)
        second = inbox.publish_nowait(name, b"2", timeout=0.1)
        with pytest.raises(AckTimeoutError, match="never sent") as caught:
            await second
        assert not caught.value.sent
        assert caught.value.correlation_id == second.correlation_id
        first.cancel()
        with pytest.raises(AckTimeoutError, match="may be stored"):
            await inbox.publish(name, b"3", timeout=0.3)


async def test_a_closed_connection_fails_all_at_once(nats_server: NatsServer, name: str) -> None:
    client = await connect(nats_server.url)
    async with AckInbox(client, max_outstanding=2, timeout=60) as inbox:
        futures = [inbox.publish_nowait(name, b"v") for _ in range(4)]
        feed = aiter(inbox)
        await client.close()
        async with asyncio.timeout(60):
            results = await asyncio.gather(*futures, return_exceptions=True)
            with pytest.raises(TransportError):
                await anext(feed)
        assert [type(result) for result in results] == [TransportError] * 4
        assert ["never sent" in str(result) for result in results] == [False, False, True, True]
        assert [getattr(result, "sent", None) for result in results] == [True, True, False, False]
        with pytest.raises(TransportError, match="closed"):
            await inbox.publish(name, b"v")
        with pytest.raises(TransportError, match="closed"):
            await inbox.capacity()


async def test_a_drained_connection_fails_all_at_once(nats_server: NatsServer, name: str) -> None:
    client = await connect(nats_server.url)
    async with AckInbox(client, timeout=60) as inbox:
        future = inbox.publish_nowait(name, b"v")
        async with asyncio.timeout(60):
            await client.drain()
            with pytest.raises(TransportError, match="may be stored"):
                await future
    with pytest.raises(TransportError, match="closed"):
        await AckInbox(client).start()


async def test_closing_the_inbox_leaves_the_connection_alone(nats_server: NatsServer, name: str) -> None:
    called: list[str] = []

    async def note() -> None:
        called.append("closed")

    client = await connect(nats_server.url, closed_cb=note)
    tasks = asyncio.all_tasks()
    inbox = AckInbox(client, timeout=60)
    async with inbox:
        future = inbox.publish_nowait(name, b"v")
        feed = aiter(inbox)
    with pytest.raises(TransportError, match="inbox was closed"):
        await future
    with pytest.raises(StopAsyncIteration):
        await anext(feed)
    await inbox.close()
    assert client.is_connected
    await until(lambda: asyncio.all_tasks() <= tasks)
    with pytest.raises(UsageError, match="started before"):
        await inbox.start()
    await client.close()
    assert called == ["closed"]


async def test_an_inbox_that_was_not_started_says_so(nc: Client, name: str) -> None:
    with pytest.raises(TransportError, match="async with"):
        await AckInbox(nc).publish(name, b"v")


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"max_outstanding": 0}, "max_outstanding"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": float("nan")}, "timeout"),
        ({"timeout": "5"}, "timeout"),
        ({"subject": "a b"}, "a b"),
        ({"subject": "a.*"}, "wildcard"),
        ({"subject": ""}, "empty"),
    ],
)
async def test_bad_options_of_the_inbox(nc: Client, options: dict[str, Any], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        AckInbox(nc, **options)


@pytest.mark.parametrize(
    ("subject", "options", "match"),
    [
        ("a b", {}, "a b"),
        ("a\r\nPUB x 0\r\n\r\n", {}, "white space"),
        ("a..b", {}, "empty token"),
        ("a.>", {}, "wildcard"),
        ("x" * 4000, {}, "at most 3500 bytes, got 4000"),
        ("a\ud800", {}, "surrogate"),
        (7, {}, "int"),
        ("a", {"timeout": -1}, "timeout"),
        ("a", {"expected": 0}, "expected"),
        ("a", {"headers": {"h" * 32_768: b""}}, "32768"),
        ("a", {"value": "text"}, "value"),
        ("a", {"correlation_id": ""}, "correlation"),
    ],
)
async def test_bad_calls_send_nothing(nc: Client, subject: Any, options: dict[str, Any], match: str) -> None:
    before = nc.stats["out_msgs"]
    async with AckInbox(nc) as inbox:
        with pytest.raises(ValueError, match=match):
            await inbox.publish(subject, options.pop("value", b"v"), **options)
        assert inbox.stats.outstanding == 0
    assert nc.stats["out_msgs"] == before


async def test_an_id_that_is_outstanding_is_refused(nc: Client, name: str) -> None:
    async with AckInbox(nc) as inbox:
        first = inbox.publish_nowait(name, b"v", correlation_id="same")
        with pytest.raises(UsageError, match="same"):
            await inbox.publish(name, b"v", correlation_id="same")
        first.cancel()


async def test_acks_can_be_correlated_by_hand(
    liftbridge_server: LiftbridgeCluster, lb_nc: Client, name: str
) -> None:
    liftbridge_server.create_stream(name)
    async with AckInbox(lb_nc, subject=f"{name}.acks", timeout=60) as inbox:
        feed = aiter(inbox)
        for i in range(3):
            await lb_nc.publish(name, new_message(b"v", ack_inbox=inbox.subject, correlation_id=f"own-{i}"))
        claimed = await inbox.publish(name, b"v")
        async with asyncio.timeout(60):
            acks = [await anext(feed) for _ in range(4)]
        assert [ack.correlation_id for ack in acks] == ["own-0", "own-1", "own-2", claimed.correlation_id]
        assert inbox.stats.unknown == 3


async def test_what_is_no_ack_is_counted(nc: Client, name: str) -> None:
    async with AckInbox(nc) as inbox:
        for junk in (b"", b"hello", new_message(b"not an ack")):
            await nc.publish(inbox.subject, junk)
        await until(lambda: inbox.malformed == 3)


async def test_a_failing_on_stray_costs_no_ack(
    liftbridge_server: LiftbridgeCluster, lb_nc: Client, name: str
) -> None:
    liftbridge_server.create_stream(name)
    reported: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))

    def fail(ack: Ack, _kind: Stray) -> None:
        raise ZeroDivisionError(ack.correlation_id)

    async with AckInbox(lb_nc, on_stray=fail, timeout=60) as inbox:
        await lb_nc.publish(name, new_message(b"v", ack_inbox=inbox.subject, correlation_id="nobody's"))
        assert (await inbox.publish(name, b"v")).offset == 1
    assert [str(error) for error in reported] == ["nobody's"]


async def test_drain_waits_for_every_outcome(
    liftbridge_server: LiftbridgeCluster, lb_nc: Client, name: str
) -> None:
    liftbridge_server.create_stream(name)
    async with AckInbox(lb_nc, timeout=60) as inbox:
        futures = [inbox.publish_nowait(name, b"v") for _ in range(50)]
        lonely = inbox.expect(timeout=0.2)
        await inbox.drain()
        assert all(future.done() for future in [*futures, lonely])
        with pytest.raises(AckTimeoutError):
            await lonely
        never = inbox.expect(timeout=60)
        with pytest.raises(TimeoutError):
            await inbox.drain(timeout=0.05)
        never.cancel()

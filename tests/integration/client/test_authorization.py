"""The client on a real Liftbridge server that authorises its clients: every call, allowed and refused.

Observed of Liftbridge 1.9.0: a refused unary call and Subscribe end with the status UNKNOWN and the text "The
client is not authorized to call X on resource Y". PublishAsync publishes the message first, and then answers
with PERMISSION_DENIED. Consumer group calls are not checked.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

import liftenvelope
from liftenvelope import AckPolicy, bulk
from liftenvelope._pb import api_pb2
from liftenvelope.bulk import Access
from liftenvelope.client.client import Client
from liftenvelope.errors import PermissionDeniedError
from liftenvelope.rpc.aio import Channel
from liftenvelope.rpc.status import RpcError, StatusCode
from liftenvelope.testing import LiftbridgeCluster, run_liftbridge
from tests.integration.certificates import Certificates

METHODS = (
    "CreateStream",
    "DeleteStream",
    "PauseStream",
    "SetStreamReadonly",
    "Subscribe",
    "FetchPartitionMetadata",
    "Publish",
    "PublishToSubject",
    "SetCursor",
    "FetchCursor",
)
STREAMS = ("open", "closed", "subject", "doomed", "__cursors", "__activity")
APP = (
    "p, app, *, FetchMetadata",
    "p, app, open, Publish",
    "p, app, open, Subscribe",
    "p, app, open, FetchPartitionMetadata",
    "p, app, open, SetCursor",
    "p, app, open, FetchCursor",
    "p, reader, *, FetchMetadata",
    "p, looker, *, FetchMetadata",
    "p, looker, open, FetchPartitionMetadata",
    "p, publisher, *, FetchMetadata",
    "p, publisher, open, Publish",
)
POLICY = "\n".join(
    [
        "p, admin, *, FetchMetadata",
        *(f"p, admin, {stream}, {method}" for stream in STREAMS for method in METHODS),
        *APP,
    ]
)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("authorization"))


@pytest.fixture(scope="module")
def cluster(certificates: Certificates) -> Iterator[LiftbridgeCluster]:
    config, tls = certificates.liftbridge_config, certificates.client("admin")
    with run_liftbridge(config=config, tls=tls, policy=POLICY) as cluster:
        for stream in ("open", "closed"):
            cluster.create_stream(stream)
        yield cluster


@asynccontextmanager
async def client_of(
    cluster: LiftbridgeCluster, certificates: Certificates, name: str
) -> AsyncIterator[Client]:
    tls = certificates.client(name)
    async with liftenvelope.connect(cluster.addresses, tls=tls, timeout=60.0, ack_wait=60.0) as client:
        yield client


async def stored(admin: Client, stream: str) -> list[bytes]:
    """The values of all messages of a stream."""
    async with admin.subscribe(stream, start="earliest") as messages:
        newest = (await admin.fetch_partition_metadata(stream)).newest_offset
        return [(await anext(messages)).value for _ in range(newest + 1)]


async def subscribed(client: Client, stream: str, **options: object) -> object:
    async with client.subscribe(stream, **options) as messages:  # type: ignore[call-overload]
        return await messages.next(60)


async def watched(client: Client) -> object:
    async with client.activity(start="earliest") as events:
        return await events.next(60)


async def iterated(client: Client) -> object:
    return [ack async for _, ack in client.publish_many("closed", [b"x"] * 5)]


async def published_later(client: Client) -> object:
    return await (await client.publish_async("closed", b"x"))


async def consumed(client: Client) -> object:
    async with client.consumer("group", ["closed"], auto_offset="earliest") as consumer:
        async for message in consumer:
            return message
    return None


REFUSED: dict[str, tuple[str, str, Callable[[Client], Awaitable[object]]]] = {
    "create_stream": ("CreateStream", "doomed", lambda c: c.create_stream("doomed", "doomed")),
    "delete_stream": ("DeleteStream", "open", lambda c: c.delete_stream("open")),
    "pause_stream": ("PauseStream", "open", lambda c: c.pause_stream("open")),
    "set_stream_readonly": ("SetStreamReadonly", "open", lambda c: c.set_stream_readonly("open")),
    "fetch_partition_metadata": (
        "FetchPartitionMetadata",
        "closed",
        lambda c: c.fetch_partition_metadata("closed"),
    ),
    "subscribe_new": ("FetchPartitionMetadata", "closed", lambda c: subscribed(c, "closed")),
    "subscribe_offset": ("Subscribe", "closed", lambda c: subscribed(c, "closed", start=0)),
    "subscribe_earliest": ("Subscribe", "closed", lambda c: subscribed(c, "closed", start="earliest")),
    "subscribe_to_latest": (
        "FetchPartitionMetadata",
        "closed",
        lambda c: subscribed(c, "closed", start="earliest", stop="latest"),
    ),
    "publish": ("Publish", "closed", lambda c: c.publish("closed", b"x")),
    "publish_all": ("Publish", "closed", lambda c: c.publish("closed", b"x", ack_policy=AckPolicy.ALL)),
    "publish_none": ("Publish", "closed", lambda c: c.publish("closed", b"x", ack_policy=AckPolicy.NONE)),
    "publish_ack_inbox": ("Publish", "closed", lambda c: c.publish("closed", b"x", ack_inbox="my.inbox")),
    "publish_async": ("Publish", "closed", published_later),
    "publish_many": ("Publish", "closed", lambda c: _awaited(c.publish_many("closed", [b"x"] * 5))),
    "publish_many_iterated": ("Publish", "closed", iterated),
    "publish_to_subject": ("PublishToSubject", "subject", lambda c: c.publish_to_subject("subject", b"x")),
    "publish_to_subject_none": (
        "PublishToSubject",
        "subject",
        lambda c: c.publish_to_subject("subject", b"x", ack_policy=AckPolicy.NONE),
    ),
    "set_cursor": ("SetCursor", "closed", lambda c: c.set_cursor("mine", "closed", 0, 1)),
    "set_cursor_without_the_right_to_store_it": (
        "SetCursor",
        "open",
        lambda c: c.set_cursor("mine", "open", 0, 1),
    ),
    "fetch_cursor": ("FetchCursor", "closed", lambda c: c.fetch_cursor("mine", "closed", 0)),
    "activity": ("__activity", "__activity", watched),
    "consumer": ("closed", "closed", consumed),
}


async def _awaited(found: Awaitable[object]) -> object:
    return await found


@pytest.mark.parametrize("name", REFUSED)
async def test_refused_call_is_permission_denied_and_nothing_is_done(
    cluster: LiftbridgeCluster, certificates: Certificates, name: str
) -> None:
    method, stream, call = REFUSED[name]
    async with (
        client_of(cluster, certificates, "app") as app,
        client_of(cluster, certificates, "admin") as admin,
    ):
        async with asyncio.timeout(60):
            with pytest.raises(PermissionDeniedError) as info:
                await call(app)
        assert method in str(info.value)
        assert stream in str(info.value)
        assert (info.value.sent, info.value.retriable) == (False, False)
        assert pickle.loads(pickle.dumps(info.value)).sent is False
        assert await stored(admin, "closed") == []
        assert set((await admin.fetch_metadata()).streams) == {"open", "closed", "__cursors", "__activity"}


async def test_allowed_calls_work(cluster: LiftbridgeCluster, certificates: Certificates) -> None:
    async with (
        client_of(cluster, certificates, "app") as app,
        client_of(cluster, certificates, "admin") as admin,
    ):
        before = len(await stored(admin, "open"))
        for policy in (AckPolicy.LEADER, AckPolicy.ALL):
            ack = await app.publish("open", b"one", ack_policy=policy)
            assert ack is not None
        assert (await app.publish_many("open", [b"many"] * 500)).acked == 500
        assert await app.publish("open", b"none", ack_policy=AckPolicy.NONE) is None
        assert await subscribed(app, "open", start="earliest") is not None
        assert await app.fetch_cursor("mine", "open", 0) is None
        last = await app.publish("open", b"last")
        assert last is not None
        assert last.offset == before + 503


async def test_client_that_may_do_nothing_can_not_connect(
    cluster: LiftbridgeCluster, certificates: Certificates
) -> None:
    with pytest.raises(PermissionDeniedError, match="FetchMetadata"):
        async with client_of(cluster, certificates, "stranger"):
            pass


async def test_client_that_may_only_publish_can_publish(
    cluster: LiftbridgeCluster, certificates: Certificates
) -> None:
    async with client_of(cluster, certificates, "publisher") as client:
        assert await client.publish("open", b"x") is not None


def test_blocking_client_is_refused_too(cluster: LiftbridgeCluster, certificates: Certificates) -> None:
    tls = certificates.client("app")
    with liftenvelope.connect_blocking(cluster.addresses, tls=tls, timeout=60.0) as client:
        with pytest.raises(PermissionDeniedError, match="Publish on resource closed"):
            client.publish("closed", b"x")
        with pytest.raises(PermissionDeniedError, match="DeleteStream on resource open"):
            client.delete_stream("open")
        refused = pytest.raises(PermissionDeniedError, match="Subscribe on resource closed")
        with refused, client.subscribe("closed", start=0) as messages:
            next(messages)
        assert client.publish("open", b"x") is not None


def read_all(url: str, stream: str, access: Access, **options: object) -> pa.Table:
    return bulk.read(url, stream, access=access, **options).read_all()  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["reader", "looker"])
@pytest.mark.parametrize("start", ["earliest", 0, datetime(2020, 1, 1, tzinfo=UTC)])
def test_bulk_read_is_refused(
    cluster: LiftbridgeCluster, certificates: Certificates, name: str, start: str | int | datetime
) -> None:
    app, access = certificates.client("app"), Access(tls=certificates.client(name), timeout=60.0)
    url = f"liftbridge://{cluster.addresses[0]}"
    with liftenvelope.connect_blocking(cluster.addresses, tls=app, timeout=60.0) as client:
        client.publish("open", b"x")  # an empty stream would be read without a Subscribe call
    with pytest.raises(PermissionDeniedError, match="on resource open"):
        read_all(url, "open", access, start=start)


@pytest.mark.parametrize("start", ["new", "earliest", "latest", 0, datetime(2020, 1, 1, tzinfo=UTC)])
async def test_client_that_may_not_read_is_refused_wherever_it_starts(
    cluster: LiftbridgeCluster, certificates: Certificates, start: str | int | datetime
) -> None:
    async with client_of(cluster, certificates, "looker") as client, asyncio.timeout(60):
        with pytest.raises(PermissionDeniedError, match="Subscribe on resource open"):
            await subscribed(client, "open", start=start)


def test_bulk_write_is_refused_and_nothing_is_stored(
    cluster: LiftbridgeCluster, certificates: Certificates
) -> None:
    url, table = f"liftbridge://{cluster.addresses[0]}", pa.table({"value": [b"x"] * 2000})
    access = Access(tls=certificates.client("app"), timeout=60.0)
    with pytest.raises(PermissionDeniedError, match="Publish on resource closed"):
        bulk.write(url, "closed", table, access=access)
    assert bulk.write(url, "open", table, access=access).acked == 2000
    assert cluster.partition_metadata("closed").newestOffset == -1


def test_bulk_write_needs_no_other_permission(cluster: LiftbridgeCluster, certificates: Certificates) -> None:
    access = Access(tls=certificates.client("publisher"), timeout=60.0)
    table = pa.table({"value": [b"x"] * 20})
    assert bulk.write(f"liftbridge://{cluster.addresses[0]}", "open", table, access=access).acked == 20


async def test_message_that_publish_async_refuses_is_stored(
    cluster: LiftbridgeCluster, certificates: Certificates
) -> None:
    """The behaviour of the server that the client works around: if this fails, a server has mended it."""
    async with client_of(cluster, certificates, "admin") as admin:
        await admin.create_stream("doomed", "doomed")
        request = api_pb2.PublishRequest(stream="doomed", value=b"x", correlationId="1")
        channel = await Channel.connect(cluster.addresses[0], tls=certificates.client("app"))
        async with channel, channel.bidi("/proto.API/PublishAsync") as call:
            await call.send([request.SerializeToString()])
            answer = api_pb2.PublishResponse.FromString(await anext(call))
            ack = api_pb2.PublishResponse.FromString(await anext(call))
        assert (answer.correlationId, answer.asyncError.code) == (
            "1",
            api_pb2.PublishAsyncError.PERMISSION_DENIED,
        )
        assert answer.asyncError.message == "The client is not authorized to call Publish on resource doomed"
        assert (ack.correlationId, ack.ack.offset) == ("1", 0)
        assert await stored(admin, "doomed") == [b"x"]
        await admin.delete_stream("doomed")


async def test_permission_request_never_publishes(
    cluster: LiftbridgeCluster, certificates: Certificates
) -> None:
    request = api_pb2.PublishRequest(stream="open", partition=-1, value=b"x").SerializeToString()
    before = cluster.partition_metadata("open").newestOffset
    channel = await Channel.connect(cluster.addresses[0], tls=certificates.client("app"))
    async with channel:
        with pytest.raises(RpcError, match="no such partition: -1") as info:
            await channel.unary("/proto.API/Publish", request, timeout=60.0)
    assert info.value.code == StatusCode.NOT_FOUND
    assert cluster.partition_metadata("open").newestOffset == before


async def test_permission_withdrawn_while_a_client_publishes(
    certificates: Certificates, tmp_path: Path
) -> None:
    """The policy is reloaded: a message in between may be stored, and its error says so; none follows it."""
    policy = tmp_path / "policy.csv"
    policy.write_text(POLICY)
    config = {**certificates.liftbridge_config, "tls.client.authz.policy": str(policy)}
    with run_liftbridge(config=config, tls=certificates.client("admin"), policy="") as cluster:
        cluster.create_stream("open")
        async with (
            client_of(cluster, certificates, "app") as app,
            client_of(cluster, certificates, "admin") as admin,
        ):
            assert (await app.publish("open", b"allowed")) is not None
            await reload(cluster, policy, POLICY.replace("p, app, open", "p, nobody, open"), app)
            with pytest.raises(PermissionDeniedError, match="may be stored") as info:
                await app.publish("open", b"in between")
            assert (info.value.sent, info.value.retriable) == (True, False)
            for _ in range(2):
                with pytest.raises(PermissionDeniedError) as info:
                    await app.publish("open", b"refused")
                assert info.value.sent is False
                with pytest.raises(PermissionDeniedError):
                    await app.publish_many("open", [b"refused"] * 10)
            assert await stored(admin, "open") == [b"allowed", b"in between"]
            policy.write_text(POLICY)
            os.kill(cluster.nodes[0].pid or 0, signal.SIGHUP)
            await until_allowed(app)
            assert (await app.publish("open", b"allowed again")) is not None


def test_permission_withdrawn_while_bulk_writes(certificates: Certificates, tmp_path: Path) -> None:
    """Rows that were refused may be stored: the error counts them as unknown."""
    policy = tmp_path / "policy.csv"
    policy.write_text(POLICY)
    config = {**certificates.liftbridge_config, "tls.client.authz.policy": str(policy)}
    with run_liftbridge(config=config, tls=certificates.client("admin"), policy="") as cluster:
        cluster.create_stream("open")
        url, tls = f"liftbridge://{cluster.addresses[0]}", certificates.client("app")
        table = pa.table({"value": [b"x"] * 30_000})

        def withdraw(progress: bulk.Progress) -> None:
            if policy.read_text() == POLICY:
                asyncio.run(withdraw_all())

        async def withdraw_all() -> None:
            async with client_of(cluster, certificates, "app") as app:
                await reload(cluster, policy, POLICY.replace("p, app, open", "p, nobody, open"), app)

        with pytest.raises(bulk.WriteFailedError, match="may be stored") as info:
            bulk.write(
                url, "open", table, max_in_flight=100, progress=withdraw, access=Access(tls=tls, timeout=60.0)
            )
        assert isinstance(info.value.__cause__, PermissionDeniedError)
        stored = cluster.partition_metadata("open").newestOffset + 1
        assert 0 < info.value.acked <= stored <= info.value.acked + info.value.unknown < 30_000
        later = pa.table({"value": [b"y"] * 30_000})
        with pytest.raises(PermissionDeniedError):
            bulk.write(url, "open", later, access=Access(tls=tls, timeout=60.0))
        # The server may still store rows of the first write.
        admin = Access(tls=certificates.client("admin"))
        assert set(bulk.read(url, "open", access=admin).read_all()["value"].to_pylist()) == {b"x"}


async def reload(cluster: LiftbridgeCluster, policy: Path, text: str, app: Client) -> None:
    """Have the server load a policy that forbids everything to the client; wait until it does."""
    policy.write_text(text)
    pid = cluster.nodes[0].pid
    assert pid is not None
    os.kill(pid, signal.SIGHUP)
    async with asyncio.timeout(60):
        while True:
            try:
                await app.fetch_partition_metadata("open")
            except PermissionDeniedError:
                return
            await asyncio.sleep(0.01)


async def until_allowed(app: Client) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                await app.fetch_partition_metadata("open")
            except PermissionDeniedError:
                await asyncio.sleep(0.01)
            else:
                return

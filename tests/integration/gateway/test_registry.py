"""The records that gateways keep of streams: made once, whatever each has heard, and found by their names."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import cast

import pytest
from nats.aio.msg import Msg

from liftenvelope.gateway._cluster import brokers as gateways
from liftenvelope.gateway._cluster import mirror
from liftenvelope.gateway._cluster import registry as streams
from liftenvelope.gateway._cluster.brokers import LiveBrokers
from liftenvelope.gateway._cluster.records import StreamRecord
from liftenvelope.gateway._cluster.registry import StreamRegistry
from liftenvelope.gateway._core import Core
from liftenvelope.gateway._protocol.names import encode_name, partition_stream
from liftenvelope.jetstream.bucket import Bucket
from liftenvelope.jetstream.context import JetStream
from liftenvelope.rpc.status import RpcError, StatusCode
from liftenvelope.testing import FaultProxy, NatsServer, run_nats_server
from tests.handled import handled
from tests.integration.conftest import connect, until


@pytest.fixture
async def js(jetstream_server: NatsServer) -> AsyncIterator[JetStream]:
    """JetStream."""
    async with JetStream(await connect(jetstream_server.url)) as context:
        yield context


async def registry(js: JetStream) -> StreamRegistry:
    made = StreamRegistry(js, lambda *_: None)
    await made.start()
    return made


def record(name: str, maker: str) -> StreamRecord:
    return StreamRecord(name=name, subject=name, id=maker, maker=maker)


async def test_one_that_another_gateway_has_made_unheard_of(js: JetStream, name: str) -> None:
    here, there = await registry(js), await registry(js)
    await here.close()  # it hears of nothing from now on
    await there.create(record(name, "there"))
    with pytest.raises(RpcError) as refused:
        await here.create(record(name, "here"))
    assert refused.value.code == StatusCode.ALREADY_EXISTS
    found = await here.find(name)
    assert found.maker == "there"
    await there.remove(found)
    await there.close()


async def test_one_that_another_gateway_has_removed_unheard_of(js: JetStream, name: str) -> None:
    here, there = await registry(js), await registry(js)
    await here.close()
    for _ in range(2):
        await there.create(record(name, "there"))
        # It thinks of one that is gone, then of one that was never there.
        with pytest.raises(RpcError):
            await here.create(record(name, "here"))
        await there.remove(record(name, "there"))
    await here.create(record(name, "here"))
    assert (await there.find(name)).maker == "here"
    await there.remove(record(name, "here"))
    await there.close()


async def test_one_that_came_and_went_unheard_of(js: JetStream, name: str) -> None:
    here, there = await registry(js), await registry(js)
    await here.close()
    await there.create(record(name, "there"))
    await there.remove(record(name, "there"))
    await here.create(record(name, "here"))
    assert (await here.find(name)).maker == "here"
    await there.remove(record(name, "here"))
    await there.close()


async def test_marker_of_a_removed_record_expires_and_its_name_is_free(
    js: JetStream, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "_MARKER_TTL", 5.0)
    here, there = await registry(js), await registry(js)
    await here.create(record(name, "here"))
    await until(lambda: there.known(name) is not None)
    await here.remove(record(name, "here"))
    await marker_expires(js, name)
    await there.create(record(name, "there"))
    assert (await here.find(name)).maker == "there"
    await here.remove(record(name, "there"))
    await here.close()
    await there.close()


@pytest.mark.parametrize("call", ["create", "remove", "change"])
async def test_gateway_cut_off_until_the_marker_has_expired_notices_the_removal(
    js: JetStream, name: str, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    monkeypatch.setattr(streams, "_MARKER_TTL", 1.0)
    told: list[tuple[StreamRecord | None, StreamRecord | None]] = []

    def note(before: StreamRecord | None, after: StreamRecord | None) -> None:
        if name in {found.name for found in (before, after) if found is not None}:
            told.append((before, after))  # streams that other tests left in the bucket are told too

    there, late = await registry(js), StreamRegistry(js, note)
    await late.start()
    gone = record(name, "there")
    await there.create(gone)
    await until(lambda: told)
    await late.close()
    before = (late.streams, late.partitions, late.changes)
    await there.remove(gone)
    await marker_expires(js, name)
    if call == "create":
        await late.create(record(name, "late"))
        assert told[1:] == [(gone, None), (None, record(name, "late"))]
        await late.remove(record(name, "late"))
    elif call == "remove":
        await late.remove(gone)
    else:
        with pytest.raises(RpcError, match="No such stream"):
            await late.change(name, lambda found: replace(found, group="other"))
    assert told[1] == (gone, None)
    assert late.known(name) is None
    assert (late.streams, late.partitions) == (before[0] - 1, before[1] - len(gone.partitions))
    assert late.changes > before[2]
    await there.close()


async def test_gateway_that_is_back_after_the_marker_has_expired_notices_the_removal(
    jetstream_server: NatsServer, js: JetStream, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "_MARKER_TTL", 1.0)
    told: list[tuple[StreamRecord | None, StreamRecord | None]] = []
    with FaultProxy(jetstream_server.address) as proxy:
        nc = await connect(f"nats://{proxy.address}")
        late = StreamRegistry(JetStream(nc), lambda *change: told.append(change))
        await late.start()
        there, gone, kept = await registry(js), record(f"{name}.gone", "there"), record(name, "there")
        for made in (gone, kept):
            await there.create(made)
        await until(lambda: late.known(name) is not None)
        proxy.refuse()
        proxy.cut()
        await there.remove(gone)
        await marker_expires(js, gone.name)
        # Their inactivity ends consumers long before a marker expires, whose life is a week.
        bucket = await js.stream(f"KV_{streams.BUCKET}")
        for consumer in [found async for found in bucket.consumer_names()]:
            await bucket.delete_consumer(consumer)
        told.clear()
        proxy.accept()
        await until(lambda: late.known(gone.name) is None)
        assert told == [(gone, None)]
        assert late.known(name) == kept
        await late.close()
        await nc.close()
    await there.remove(kept)
    await there.close()


async def marker_expires(js: JetStream, name: str) -> None:
    bucket = Bucket(js, streams.BUCKET)
    async with asyncio.timeout(240):
        while (await bucket.get(encode_name(name))).revision:
            await asyncio.sleep(0.05)


async def test_gateway_that_comes_late_removes_no_later_stream_of_the_name(js: JetStream, name: str) -> None:
    late, there = await registry(js), await registry(js)
    removed = record(name, "late")
    await late.create(removed)
    await late.close()  # taken for dead: another gateway removes the stream, and a client creates it again
    await there.remove(removed)
    await there.create(record(name, "there"))
    await late.remove(removed)
    assert (await there.refresh(name)) == record(name, "there")
    await there.remove(record(name, "there"))
    assert await there.refresh(name) is None
    await there.close()


async def test_deleted_streams_take_no_memory_for_ever(
    js: JetStream, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "_MOST_REMOVED", 3)
    monkeypatch.setattr(gateways, "_MOST_LEADERS", 3)
    here, there = await registry(js), await registry(js)
    nobody = partial(LiveBrokers, ttl=3.0, on_change=lambda: None, on_interrupted=lambda: None)
    brokers = nobody(js, "here", connections=())
    before = len(here._records)
    for number in range(10):
        one = record(f"{name}-{number}", "here")
        await here.create(one)
        brokers.leader(one.name, 0)
        await here.remove(one)
    assert len(here._records) <= before + 3
    assert len(brokers._leaders) <= 3
    again = record(f"{name}-0", "here")
    await here.create(again)
    await until(lambda: there.known(again.name) == again)
    assert len(there._records) <= before + 4
    await here.remove(again)
    await here.close()
    await there.close()


async def test_the_partition_that_a_stream_holds(js: JetStream, name: str) -> None:
    here = await registry(js)
    core = cast(Core, SimpleNamespace(registry=here))
    names = [name, f"{name}_1", f"{name}.\N{SNOWMAN}", name * 20]
    for one in names:
        assert Core.partition_of(core, partition_stream(one, 0)) is None
        await here.create(record(one, "here"))
    for one in names:
        for number in (0, 1, 12):
            found = Core.partition_of(core, partition_stream(one, number))
            assert found is not None
            assert (found[0].name, found[1]) == (one, number)
    for other in (name, f"lift_{name}", f"lift_{name}_00", f"lift_{name}_x", f"{name}_0", "_0", ""):
        assert Core.partition_of(core, other) is None
    for one in names:
        await here.remove(record(one, "here"))
    await here.close()


async def test_records_are_read_from_the_leader_of_the_bucket(js: JetStream, name: str) -> None:
    """Another replica may lag, and answer a conflict with the record that has caused it."""
    asked: list[str] = []

    async def note(msg: Msg) -> None:
        asked.append(msg.subject)

    here = await registry(js)
    for subject in ("$JS.API.STREAM.MSG.GET.KV_lift_streams", "$JS.API.DIRECT.GET.KV_lift_streams.>"):
        await js.api.nc.subscribe(subject, cb=note)
    with pytest.raises(RpcError, match="No such stream"):
        await here.find(name)
    await handled(js.api.nc)
    await until(lambda: asked)
    assert set(asked) == {"$JS.API.STREAM.MSG.GET.KV_lift_streams"}
    await here.close()


async def test_defect_that_ends_the_mirror_is_logged(
    js: JetStream, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Faked: there is no known defect."""
    here, there = await registry(js), await registry(js)

    def defect(_: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(here._mirror, "_on_entry", defect)
    await there.create(record(name, "there"))
    await until(lambda: not here.is_readable)
    await here.close()
    [line] = [one for one in caplog.records if "ended with a defect" in one.message]
    assert line.message == "the background task 'follow lift_streams' ended with a defect"
    assert line.exc_info is not None
    await there.remove(record(name, "there"))
    await there.close()


async def reads_of(js: JetStream) -> list[str]:
    """Return a list that gets the key of each record that is read from now on."""
    read: list[str] = []

    async def note(msg: Msg) -> None:
        read.append(json.loads(msg.data)["last_by_subj"].rpartition(".")[2])

    await js.api.nc.subscribe("$JS.API.STREAM.MSG.GET.KV_lift_streams", cb=note)
    return read


async def found(here: StreamRegistry, name: str, since: float | None = None) -> bool:
    try:
        return (await here.find(name, since)).name == name
    except RpcError as exc:
        if exc.code != StatusCode.NOT_FOUND:
            raise
        return False


async def test_calls_that_ask_for_a_record_at_the_same_time_share_a_read(js: JetStream, name: str) -> None:
    here, read = await registry(js), await reads_of(js)
    assert not any(await asyncio.gather(*(found(here, name) for _ in range(100))))
    await handled(js.api.nc)
    # The clock may tick while the calls ask: a read counts for those before it.
    assert 1 <= read.count(encode_name(name)) <= 2
    await here.close()


async def test_read_counts_for_what_was_asked_before_it_began_and_for_nothing_later(
    js: JetStream, name: str
) -> None:
    here, there, read = await registry(js), await registry(js), await reads_of(js)
    await here.close()  # it hears of nothing from now on
    since = asyncio.get_running_loop().time()
    for _ in range(10):
        assert not await found(here, name, since)
    await handled(js.api.nc)
    assert read == [encode_name(name)]
    early = asyncio.create_task(found(here, name))
    await until(lambda: here._reads[encode_name(name)].began > since)  # it is being read
    await there.create(record(name, "there"))
    assert await found(here, name)
    await early
    await there.remove(record(name, "there"))
    await there.close()


async def test_error_of_a_shared_read_reaches_all_who_wait_for_it(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with run_nats_server(jetstream=True) as server:
        nc = await connect(server.url)
        async with JetStream(nc) as js:
            here = await registry(js)
            await here.close()
            await js.delete_stream("KV_lift_streams")
            waiting = [asyncio.create_task(here.find(name)) for _ in range(3)]
            await asyncio.sleep(0)  # they run until they wait
            waiting[0].cancel()
            first, *others = await asyncio.gather(*waiting, return_exceptions=True)
        await nc.close()
    assert isinstance(first, asyncio.CancelledError)
    assert [one.code for one in others if isinstance(one, RpcError)] == [StatusCode.UNAVAILABLE] * 2
    assert not [record for record in caplog.records if record.name == "asyncio"]


async def test_names_without_a_stream_take_no_memory_for_ever(
    js: JetStream, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "_MOST_READS", 3)
    here = await registry(js)
    for number in range(10):
        assert not await found(here, f"{name}-{number}")
    assert len(here._reads) == 3
    await here.close()


async def test_deleted_bucket_is_named(name: str) -> None:
    with run_nats_server(jetstream=True) as server:
        nc = await connect(server.url)
        async with JetStream(nc) as js:
            here = await registry(js)
            await here.create(record(name, "here"))
            await js.delete_stream("KV_lift_streams")
            with pytest.raises(RpcError, match="does not exist any more: restore it") as caught:
                await here.find(f"{name}-unknown")
            assert caught.value.code == StatusCode.UNAVAILABLE
            assert (await here.find(name)).name == name  # known from the mirror
            await here.close()
        await nc.close()


async def test_deleted_bucket_is_logged_once_however_often_it_is_read_again(
    name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "_PAUSE", 0.01)
    asked = 0

    async def note(_: Msg) -> None:
        nonlocal asked
        asked += 1

    with run_nats_server(jetstream=True) as server:
        nc = await connect(server.url)
        async with JetStream(nc) as js:
            here = await registry(js)
            await js.delete_stream("KV_lift_streams")
            await nc.subscribe("$JS.API.STREAM.INFO.KV_lift_streams", cb=note)
            await until(lambda: asked >= 20)
            lines = [record for record in caplog.records if "lift_streams can't be read" in record.message]
            assert len(lines) == 1
            await here.close()
        await nc.close()


async def test_writes_to_deleted_bucket_name_it(name: str) -> None:
    with run_nats_server(jetstream=True) as server:
        nc = await connect(server.url)
        async with JetStream(nc) as js:
            here = await registry(js)
            await here.create(record(name, "here"))
            await js.delete_stream("KV_lift_streams")
            with pytest.raises(
                RpcError, match=r"lift_streams .* does not exist any more: restore it"
            ) as caught:
                await here.create(record(f"{name}-new", "here"))
            assert caught.value.code == StatusCode.UNAVAILABLE
            with pytest.raises(RpcError, match=r"lift_streams .* does not exist any more"):
                await here.change(name, lambda found: replace(found, group="other"))
            with pytest.raises(RpcError, match=r"lift_streams .* does not exist any more"):
                await here.remove(record(name, "here"))
            await here.close()
        await nc.close()

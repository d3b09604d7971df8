"""Offset keys on a real server: size, fencing, failover, upgrade, and deletion."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator

import pytest
from nats.aio.client import Client

from liftenvelope.errors import WrongLastSequenceError
from liftenvelope.group import (
    Coordinator,
    GroupUnavailableError,
    NotControllerError,
    StaleGenerationError,
    TopicPartition,
)
from liftenvelope.group._controller.host import GroupHost
from liftenvelope.group._controller.offsets import OffsetKeys
from liftenvelope.group._controller.store import GroupStore
from liftenvelope.group.directory import Definition
from liftenvelope.group.membership import Commit, Registration
from liftenvelope.group.state import Place, TopicSpec
from liftenvelope.group.wire import decode_group, decode_offsets, encode_group, encode_offsets
from liftenvelope.jetstream import JetStream

from .play import LONG, PATIENCE, coordinator

TOPIC = TopicSpec("orders", 3)


@pytest.fixture
async def store(nc: Client) -> AsyncIterator[GroupStore]:
    async with JetStream(nc) as js:
        made = GroupStore(js, "liftenvelope-groups", 1)
        await made.open(PATIENCE)
        yield made


@pytest.fixture
async def running(nc: Client) -> AsyncIterator[Coordinator]:
    async with coordinator(nc, lease=LONG) as coordinating:
        yield coordinating


async def joined(running: Coordinator, name: str, topic: TopicSpec = TOPIC) -> GroupHost:
    """Return a group with one member, ``anna``, which has all partitions, and no offsets."""
    await running.directory.create(Definition(name=name, session_timeout=LONG))
    host = await running.directory.host(name)
    await register(host, "anna", topic)
    return host


async def register(host: GroupHost, member: str, topic: TopicSpec = TOPIC) -> None:
    request = Registration(consumer_id=member, client_id=f"client of {member}", topics=(topic,))
    await host.run(lambda group, now: group.register(request, now))


async def commit(host: GroupHost, *offsets: int, generation: int | None = None) -> None:
    """Commit an offset of each partition, from 0 on."""
    commits = [Commit(TopicPartition("orders", number), offset) for number, offset in enumerate(offsets)]
    current = host.group.state.generation if generation is None else generation
    await host.run(lambda group, _: group.commit("anna", current, commits))


async def committed(running: Coordinator, name: str) -> list[int]:
    host = await running.directory.host(name)
    found = await host.run(lambda group, _: group.committed())
    return [offset for offset in found.values() if isinstance(offset, int) and offset != -1]


async def loaded_again(running: Coordinator, name: str) -> GroupHost:
    """Return the group after the coordinator has discarded it, as it does when a write has no answer."""
    await running.directory.drop_all(GroupUnavailableError("discarded"))
    return await running.directory.host(name)


async def test_commit_writes_one_small_key_and_not_the_record(
    running: Coordinator, store: GroupStore, name: str
) -> None:
    places = tuple(Place("ORDERS", f"orders.{number}") for number in range(10_000))
    host = await joined(running, name, TopicSpec("orders", 10_000, places))
    await commit(host, 0, 0, 0)
    before = await store.get(f"group.{name}")
    assert before.value is not None
    assert len(before.value) > 200_000
    await commit(host, 7, 8, 9)
    await commit(host, 8)
    assert (await store.get(f"group.{name}")).revision == before.revision
    keys = await store.under(f"offsets.{name}", 1)
    assert [entry.key for entry in keys] == [f"offsets.{name}.0"]
    assert keys[0].value is not None
    assert len(keys[0].value) < 100
    assert list(decode_offsets(keys[0].value).values()) == [8, 8, 9]


async def test_next_controller_reads_all_commits(nc: Client, name: str) -> None:
    async with coordinator(nc, coordinator_id="one", lease=LONG) as one:
        host = await joined(one, name)
        await commit(host, 0, 0)
        await commit(host, 5, 6)
        await register(host, "ben")  # the record includes the offsets now
        await commit(host, 5, 7)
    async with coordinator(nc, coordinator_id="two", lease=LONG) as two:
        assert await committed(two, name) == [5, 7]
        await commit(await two.directory.host(name), 9)
    async with coordinator(nc, coordinator_id="three", lease=LONG) as three:
        assert await committed(three, name) == [9, 7]


async def test_commit_of_a_replaced_controller_is_not_stored(
    running: Coordinator, store: GroupStore, name: str
) -> None:
    """Another coordinator writes the record while this one still believes to be the controller."""
    host = await joined(running, name)
    await commit(host, 0)
    await commit(host, 1)
    record = await store.get(f"group.{name}")
    assert record.value is not None
    state = decode_group(record.value)
    state.controller_id, state.controller_incarnation = "other", "x"
    await store.put(f"group.{name}", encode_group(state), record.revision)
    with pytest.raises(NotControllerError):
        await commit(host, 2)
    (key,) = await store.under(f"offsets.{name}", 1)
    assert key.value is not None
    assert decode_offsets(key.value) == {TopicPartition("orders", 0): 1}
    with pytest.raises(NotControllerError):
        await commit(host, 3)
    assert await committed(running, name) == [1]  # "other" has no lease, so the group is taken back


async def test_commit_that_arrives_late_is_not_stored_after_the_group_was_loaded_again(
    running: Coordinator, store: GroupStore, name: str
) -> None:
    host = await joined(running, name)
    await commit(host, 0, 0)
    await commit(host, 1)
    guard = (await store.get(f"group.{name}")).revision
    again = await loaded_again(running, name)
    await commit(again, 1, 5)
    late = OffsetKeys(store, name, f"group.{name}")
    with pytest.raises(WrongLastSequenceError):
        await late.write({TopicPartition("orders", 0): 2}, guard)
    await loaded_again(running, name)
    assert await committed(running, name) == [1, 5]


async def test_record_of_an_earlier_version_has_all_offsets(
    running: Coordinator, store: GroupStore, name: str
) -> None:
    """The earlier version took over from this one: the offset keys that it did not know are outdated."""
    host = await joined(running, name)
    await commit(host, 1, 1)
    await commit(host, 50, 60)
    record = await store.get(f"group.{name}")
    assert record.value is not None
    state = decode_group(record.value)
    state.offsets = {TopicPartition("orders", 0): 20}
    state.offsets_revision = 0  # the earlier version has no such field, and leaves it out
    await store.put(f"group.{name}", encode_group(state), record.revision)
    again = await loaded_again(running, name)
    assert await committed(running, name) == [20]
    await commit(again, 21, 10)
    await loaded_again(running, name)
    assert await committed(running, name) == [21, 10]


async def test_commits_count_after_revisions_have_begun_again(
    running: Coordinator, store: GroupStore, name: str
) -> None:
    """The bucket was copied, or its server has lost the last writes: the record names a revision to come."""
    host = await joined(running, name)
    await commit(host, 1, 1)
    record = await store.get(f"group.{name}")
    assert record.value is not None
    state = decode_group(record.value)
    state.offsets_revision = 10**9
    await store.put(f"group.{name}", encode_group(state), record.revision)
    again = await loaded_again(running, name)
    await commit(again, 51, 61)
    await loaded_again(running, name)
    assert await committed(running, name) == [51, 61]


async def test_record_has_the_offsets_of_the_last_change_of_members(
    running: Coordinator, store: GroupStore, name: str
) -> None:
    """An earlier version, which reads only the record, continues there: messages come twice, none is lost."""
    host = await joined(running, name)
    await commit(host, 50, 60)
    await register(host, "ben")
    await commit(host, 55)
    record = await store.get(f"group.{name}")
    assert record.value is not None
    assert list(decode_group(record.value).offsets.values()) == [50, 60]


async def test_record_has_the_start_of_each_partition_and_seeks_back(
    running: Coordinator, store: GroupStore, name: str
) -> None:
    """An earlier version must not choose another start, nor skip what the member wants to read again."""
    host = await joined(running, name)
    for offset, rewind, expected in ((10, False, 10), (20, False, 10), (5, True, 5), (9, False, 5)):
        one = Commit(TopicPartition("orders", 0), offset, rewind)
        generation = host.group.state.generation
        await host.run(lambda group, _, one=one, now=generation: group.commit("anna", now, [one]))  # type: ignore[misc]
        record = await store.get(f"group.{name}")
        assert record.value is not None
        assert list(decode_group(record.value).offsets.values()) == [expected]
    await loaded_again(running, name)
    assert await committed(running, name) == [9]


async def test_rewind_survives_a_takeover(running: Coordinator, name: str) -> None:
    host = await joined(running, name)
    await commit(host, 50, 60)
    await host.run(lambda group, _: group.rewind({TopicPartition("orders", 0): 3}))
    await loaded_again(running, name)
    assert await committed(running, name) == [3, 60]


async def test_commit_in_an_old_generation_is_not_stored(
    running: Coordinator, store: GroupStore, name: str
) -> None:
    host = await joined(running, name)
    await commit(host, 0)
    generation = host.group.state.generation
    again = Registration(
        consumer_id="anna", client_id="client of anna", topics=(TOPIC,), generation=generation
    )
    await register(host, "ben")
    await host.run(lambda group, now: group.register(again, now))
    ready = Registration(consumer_id="ben", client_id="client of ben", topics=(TOPIC,))
    await host.run(lambda group, now: group.register(ready, now))
    assert host.group.state.generation > generation
    with pytest.raises(StaleGenerationError, match=f"got {generation}: register it again"):
        await commit(host, 9, generation=generation)
    assert await store.under(f"offsets.{name}", 1) == []


async def test_deleted_group_leaves_no_key(running: Coordinator, store: GroupStore, name: str) -> None:
    odd = f"{name} of 1.2"
    host = await joined(running, odd)
    await commit(host, 0, 0, 0)
    await commit(host, 1, 2, 3)
    assert any(name in key for key in await store.all("offsets"))
    await host.run(lambda group, _: group.leave("anna"))
    await running.directory.delete(odd)
    assert not any(name in key for key in await store.all("offsets"))


async def test_new_group_ignores_offset_keys_of_a_deleted_one(
    running: Coordinator, store: GroupStore, name: str
) -> None:
    """The coordinator died after it had deleted the record, and before it deleted the key."""
    await store.put(f"offsets.{name}.0", encode_offsets({TopicPartition("orders", 0): 9}), 0)
    host = await joined(running, name)
    assert await committed(running, name) == []
    await commit(host, 4)
    await commit(host, 5)
    await loaded_again(running, name)
    assert await committed(running, name) == [5]


async def test_commit_that_leaves_no_room_in_the_record_is_written_with_it(
    running: Coordinator, store: GroupStore, name: str
) -> None:
    """Otherwise the commit would succeed, and the next change of the members would fail."""
    host = await joined(running, name)
    keys = OffsetKeys(store, name, f"group.{name}")
    one = {TopicPartition("orders", 0): 1}
    keys.measure(bytes(store.largest_value - 100), ["orders"])
    assert keys.has_room(one)
    keys.measure(bytes(store.largest_value - 50), ["orders"])
    assert not keys.has_room(one)
    await commit(host, 0)
    host._offsets.measure(bytes(store.largest_value), ["orders"])
    before = (await store.get(f"group.{name}")).revision
    await commit(host, 7)
    assert (await store.get(f"group.{name}")).revision > before
    await loaded_again(running, name)
    assert await committed(running, name) == [7]


async def test_server_that_checks_no_guards_gets_offsets_in_the_record(
    running: Coordinator, store: GroupStore, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fake of a server before 2.11: the coordinator is told that its server has no API level."""
    monkeypatch.setattr("liftenvelope.group._controller.store._API_LEVEL", "unknown before 2.11")
    host = await joined(running, name)
    await commit(host, 0, 0)
    await commit(host, 7, 8)
    assert await store.under(f"offsets.{name}", 1) == []
    await loaded_again(running, name)
    assert await committed(running, name) == [7, 8]


async def test_server_has_guards(store: GroupStore) -> None:
    assert store.has_guards
    guard = await store.put("group.a", b"", (await store.get("group.a")).revision)
    revision = await store.put("offsets.a.0", b"", guard, guard="group.a")
    with pytest.raises(WrongLastSequenceError):
        await store.put("offsets.a.0", b"", revision, guard="group.a")
    # Coordinators of other tests share the bucket.
    await store.delete("group.a", guard)


async def test_registration_that_can_not_be_stored_fails_once(
    running: Coordinator, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for the write and for the group to be stable. Nobody is left to see the second failure."""
    host = await joined(running, name)

    async def refuse(*_: object, **__: object) -> int:
        raise GroupUnavailableError("can't write: no leader")

    def registration(member: str, generation: int = -1) -> Registration:
        return Registration(
            consumer_id=member, client_id=f"client of {member}", topics=(TOPIC,), generation=generation
        )

    async def fail(generation: int) -> None:
        host = await running.directory.host(name)
        failures = await asyncio.gather(
            host.register(registration("ben", generation), PATIENCE),
            host.register(registration("carl"), PATIENCE),
            return_exceptions=True,
        )
        assert [type(failure) for failure in failures] == [GroupUnavailableError] * 2

    joining = await host.register(registration("ben"), 0)
    assert joining.rebalancing
    monkeypatch.setattr(running._store, "put", refuse)
    await fail(joining.generation)
    del host
    await asyncio.sleep(0)
    gc.collect()  # the event loop reports errors that nobody saw when their futures are collected

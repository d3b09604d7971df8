"""Bucket of the groups on a real server: conflicts pass, and failures of JetStream are group errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from liftenvelope.errors import WrongLastSequenceError
from liftenvelope.group._controller.store import GroupStore
from liftenvelope.group.errors import GroupLimitError, GroupUnavailableError
from liftenvelope.jetstream import JetStream
from liftenvelope.jetstream.bucket import BucketEntry
from liftenvelope.testing import NatsServer, run_nats_server
from tests.integration.conftest import connect

PATIENCE = 60.0


@pytest.fixture
async def js(jetstream_server: NatsServer) -> AsyncIterator[JetStream]:
    async with JetStream(await connect(jetstream_server.url)) as context:
        yield context


@pytest.fixture
async def store(js: JetStream, name: str) -> GroupStore:
    made = GroupStore(js, name, 1)
    await made.open(PATIENCE)
    return made


async def test_conflict_is_no_group_error(store: GroupStore) -> None:
    assert await store.put("group.a", b"1", 0) == 1
    with pytest.raises(WrongLastSequenceError):
        await store.put("group.a", b"2", 0)
    with pytest.raises(WrongLastSequenceError):
        await store.delete("group.a", 7)
    assert await store.get("group.a") == BucketEntry("group.a", b"1", 1)


async def test_value_beyond_the_maximum_payload_is_a_limit_error(store: GroupStore, js: JetStream) -> None:
    value = bytes(js.api.nc.max_payload + 1)
    with pytest.raises(GroupLimitError, match=r"the value of key 'group\.a' is too large"):
        await store.put("group.a", value, 0)


async def test_all_returns_the_keys_of_one_kind_by_the_rest(store: GroupStore) -> None:
    for key in ("group.a", "group.gone", "coordinator.b"):
        await store.put(key, b"x", 0)
    await store.delete("group.gone", 2)
    assert await store.all("group") == {"a": BucketEntry("group.a", b"x", 1)}
    assert await store.last_revision() == 4


async def test_every_call_without_jetstream_is_unavailable(nats_server: NatsServer) -> None:
    client = await connect(nats_server.url)
    async with JetStream(client, timeout=1) as js:
        store = GroupStore(js, "bucket", 1)
        for call in (
            store.open(0.0),
            store.get("a"),
            store.put("a", b"", 0),
            store.delete("a", 1),
            store.all("group"),
            store.last_revision(),
        ):
            with pytest.raises(GroupUnavailableError):
                await call
    await client.close()


async def test_account_that_requires_max_bytes_needs_a_bucket_made_before() -> None:
    users = 'users: [{user: "a", password: "a"}]'
    account = f"A {{ {users}, jetstream {{ max_file: 1GB, max_bytes_required: true }} }}"
    text = f"accounts {{ {account} }}\nno_auth_user: a"
    with run_nats_server(jetstream=True, config_text=text) as server:
        client = await connect(server.url)
        async with JetStream(client) as js:
            store = GroupStore(js, "bucket", 1)
            with pytest.raises(GroupUnavailableError, match=r"'bucket': .* create the bucket with max_bytes"):
                await store.open(0.0)
            await client.jetstream().create_key_value(bucket="bucket", max_bytes=1_000_000)
            await store.open(PATIENCE)
            assert await store.put("group.a", b"1", 0) == 1
        await client.close()


async def test_open_waits_until_jetstream_is_back() -> None:
    with run_nats_server(jetstream=True) as server:
        client = await connect(server.url)
        async with JetStream(client, timeout=1) as js:
            server.kill()
            opening = asyncio.create_task(GroupStore(js, "bucket", 1).open(PATIENCE))
            async with asyncio.timeout(PATIENCE):
                while client.is_connected:
                    await asyncio.sleep(0.01)
            server.start()
            await opening
        await client.close()


async def test_write_that_the_user_may_not_make_is_unavailable(name: str) -> None:
    permissions = {"publish": {"deny": [f"$KV.{name}.>"]}}
    users = [{"user": "ann", "password": "x", "permissions": permissions}]
    with run_nats_server(jetstream=True, config={"authorization": {"users": users}}) as server:
        client = await connect(server.url, user="ann", password="x")
        async with asyncio.timeout(PATIENCE), JetStream(client, timeout=10_000) as js:
            store = GroupStore(js, name, 1)
            await store.open(PATIENCE)
            with pytest.raises(GroupUnavailableError, match="does not let this user publish on"):
                await store.put("group.a", b"1", 0)
        await client.close()

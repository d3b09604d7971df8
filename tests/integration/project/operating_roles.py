"""Operations of each role of docs/operating.md on NATS, to be run with the permissions of that page.

Each role is a coroutine that does the role's main operations. Administrators make streams and consumers
before: see :func:`prepare`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from click.testing import CliRunner
from nats.aio.client import Client

import liftenvelope
from liftenvelope import bulk
from liftenvelope.archive import ArchiveDaemon, read_archive_config
from liftenvelope.bulk._snapshots import restoring
from liftenvelope.bulk.listing import open_lister
from liftenvelope.cli._root import root
from liftenvelope.client.activity import StreamDeleted
from liftenvelope.errors import IncorrectOffsetError, PermissionDeniedError
from liftenvelope.gateway import Gateway
from liftenvelope.group import Coordinator, GroupClient, GroupConsumer, JetStreamTopic
from liftenvelope.jetstream import (
    ConsumerConfig,
    JetStream,
    StreamConfig,
)
from liftenvelope.monitor._reading import JetStreamMessages, MessageQuery
from liftenvelope.monitor.jetstream import JetStreamSampler
from liftenvelope.nats import AckInbox, EnvelopePublisher
from liftenvelope.rpc.aio import Channel
from tests.handled import handled
from tests.integration.conftest import connect
from tests.integration.gateway.test_groups import Face

PASSWORD: Final = "s3cret"
STREAM, DURABLE, GROUP = "ORDERS", "packing", "billing"
SUBJECTS: Final = ("orders.0", "orders.1")
#: Metadata of a stream that a restore has not finished.
LEFT: Final = restoring._MARK
#: Request of ``doctor`` that only users of the system account may make.
OF_SYSTEM: Final = "$sys.req.server.ping.varz"


@dataclass
class Site:
    """A NATS account and one user of it whose permissions are tried.

    Attributes:
        url: The server.
        role: The user's role, which is the last token of its inbox prefix.
        user: The user's name.
        admin: The name of a user who may do everything.
        violations: What the server has refused the user so far.
        connections: What was connected here, to be closed at the end.
    """

    url: str
    role: str
    user: str
    admin: str
    violations: asyncio.Queue[str] = field(default_factory=asyncio.Queue)
    connections: list[Client] = field(default_factory=list)

    async def connect(self) -> Client:
        """Connect as the user."""

        async def note(error: Exception) -> None:
            if "permissions violation" in str(error).lower():
                self.violations.put_nowait(str(error))

        prefix = f"_INBOX.{self.role}"
        return await self._connect(self.user, inbox_prefix=prefix, error_cb=note)

    async def connect_admin(self, *, inbox_prefix: str = "_INBOX.admin") -> Client:
        """Connect as the user who may do everything."""
        return await self._connect(self.admin, inbox_prefix=inbox_prefix)

    async def _connect(self, user: str, **options: Any) -> Client:
        nc = await connect(self.url, user=user, password=PASSWORD, **options)
        self.connections.append(nc)
        return nc

    async def hear_all(self) -> None:
        """Wait until the server has reported what it refused so far."""
        for nc in self.connections:
            await handled(nc)

    async def close(self) -> None:
        """Close every connection that was made here."""
        for nc in self.connections:
            await nc.close()

    def access(self) -> bulk.Access:
        """The user's access for bulk."""
        return bulk.Access(user=self.user, password=PASSWORD, inbox_prefix=f"_INBOX.{self.role}")


async def prepare(admin: Client) -> None:
    """Make what administrators make: streams and durable consumers, and some messages."""
    async with JetStream(admin) as js:
        stream = await js.create_stream(
            StreamConfig(
                name=STREAM, subjects=("orders.*",), allow_direct=True, allow_atomic=True, allow_batched=True
            )
        )
        await stream.create_consumer(ConsumerConfig(durable_name=DURABLE))
        for number in range(20):
            await js.publish(SUBJECTS[number % 2], b"order %d" % number)


async def gateway(site: Site) -> None:
    """Serve clients and publishers on raw NATS, together with a second gateway of the same user."""
    nc, other, admin = await site.connect(), await site.connect(), await site.connect_admin()
    async with (
        Gateway(nc, id="first") as one,
        Gateway(other, id="second") as two,
        liftenvelope.connect([one.address, two.address]) as client,
    ):
        await use_streams(client)
        await use_checked_stream(client, admin)
        await client.set_cursor("audit", "payments", 0, 2)
        assert await client.fetch_cursor("audit", "payments", 0) == 2
        await join_by_each([one, two])
        for asking in ("member", "monitor"):
            await GroupClient(await site.connect_admin(inbox_prefix=f"_INBOX.{asking}")).list_groups()
        await until_compacted(admin)
        await lose_ack_consumer(admin, "lift_payments_0")
        await client.pause_stream("copy")
        await client.set_stream_readonly("copy")
        await client.delete_stream("copy")
        async with client.activity(start="earliest") as events:
            async for event in events:
                if isinstance(event, StreamDeleted):
                    break
        # Above 64 partitions the gateway lists all streams for their state.
        await client.create_stream("payments.wide", "wide", partitions=70)
        await client.fetch_metadata()
        await two.close(grace=5)


async def join_by_each(gateways: list[Gateway]) -> None:
    """Join a group and leave it by each gateway. Those that do not coordinate it ask the one that does."""
    for gateway in gateways:
        face = Face(gateway, await Channel.connect(gateway.address))
        await face.join(GROUP, f"member-{gateway.id}", "payments")
        await face.leave(GROUP, f"member-{gateway.id}")
        # A group goes with its last member.
        if gateway is gateways[0]:
            await face.join(GROUP, "stays", "payments")
        await face.channel.close()


async def use_streams(client: liftenvelope.Client) -> None:
    """Create streams of several kinds, publish to them, and read them."""
    await client.create_stream("payments.new", "payments")
    await client.create_stream("payments.new", "copy")
    await client.create_stream("payments.last", "compacted", compact_enabled=True, cleaner_interval=0.2)
    for stream in ("payments", "copy", "compacted"):
        for number in range(3):
            await client.publish(stream, b"%d" % number, key=b"k", partition=0)
    await client.publish_to_subject("payments.new", b"x")
    for start, reverse in (("earliest", False), ("latest", True)):
        async with client.subscribe(
            "payments", partition=0, start=start, stop=2, reverse=reverse
        ) as messages:
            assert [message.offset async for message in messages]


async def use_checked_stream(client: liftenvelope.Client, admin: Client) -> None:
    """Publish to a stream that checks offsets, by gRPC and on raw NATS. A gateway answers the latter."""
    await client.create_stream(
        "payments.checked", "checked", optimistic_concurrency=True, replication_factor=-1
    )
    await client.publish("checked", b"0", expected_offset=0)
    async with AckInbox(admin, subject="_INBOX.publisher.acks") as inbox:
        with pytest.raises(IncorrectOffsetError):
            await inbox.publish("payments.checked", b"1", expected_offset=7)
        await inbox.publish("payments.checked", b"1", expected_offset=1)
        await inbox.publish("payments.new", b"raw", expected=2)


async def lose_ack_consumer(admin: Client, name: str) -> None:
    """Replace the ack consumer of a partition, as another gateway would; wait until it is taken over."""
    other = "lift-acks-other"
    async with JetStream(admin) as js:
        stream = await js.stream(name)
        old = [one async for one in stream.consumer_names() if one.startswith("lift-acks-")]
        config = (await js.api.request(f"CONSUMER.INFO.{name}.{old[0]}"))["config"]
        config |= {"name": other, "durable_name": other, "deliver_subject": "_INBOX.gateway.other"}
        await js.api.request(f"CONSUMER.CREATE.{name}.{other}", {"stream_name": name, "config": config})
        for consumer in old:
            await stream.delete_consumer(consumer)
        while other in [one async for one in stream.consumer_names()]:
            await asyncio.sleep(0.05)


async def until_compacted(admin: Client) -> None:
    """Wait until the gateway has deleted what newer messages of the same key replace."""
    async with JetStream(admin) as js:
        stream = await js.stream("lift_compacted_0")
        while (await stream.info()).state.messages > 1:
            await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def serving(site: Site) -> AsyncIterator[None]:
    """A gateway with full rights and the stream ``payments``, where there is none yet."""
    admin = await site.connect_admin()
    async with Gateway(admin) as gateway, liftenvelope.connect([gateway.address]) as client:
        await client.create_stream("payments.new", "payments")
        yield


async def publisher(site: Site) -> None:
    """Publish envelopes of raw NATS, with acks from a gateway or Liftbridge."""
    async with serving(site):
        nc = await site.connect()
        async with AckInbox(nc) as inbox:
            await inbox.publish("payments.new", b"1", key=b"k")
            orders = EnvelopePublisher(nc, "payments.new", inbox=inbox)
            await orders.publish(b"2")


async def jetstream_publisher(site: Site) -> None:
    """Publish to a JetStream stream."""
    nc = await site.connect()
    async with JetStream(nc) as js:
        await js.publish("orders.0", b"1")
        await (await js.publish_async("orders.1", b"2"))


async def worker(site: Site) -> None:
    """Read by the durable consumer that an administrator has made, and ack."""
    nc = await site.connect()
    async with JetStream(nc) as js:
        consumer = await js.consumer(STREAM, DURABLE)
        for message in await consumer.fetch(2):
            await message.ack_sync()
        async with consumer.messages(max_messages=10) as messages:
            (await messages.next(timeout=30)).ack()
            (await messages.next(timeout=30)).nak()


async def ordered_reader(site: Site) -> None:
    """Read the stream with consumers of its own, and single messages without one."""
    nc = await site.connect()
    async with JetStream(nc) as js:
        stream = await js.stream(STREAM)
        assert len(await stream.ordered_consumer().fetch(5)) == 5
        one = stream.ordered_consumer(filter_subjects=[SUBJECTS[0]])
        assert len(await one.fetch(5)) == 5
        async with stream.ordered_consumer().messages() as messages:
            await messages.next(timeout=30)
        await stream.get_message(1)
        await stream.get_message(last_by_subject=SUBJECTS[0])
        await stream.get_message(1, direct=False)
        assert [message async for message in stream.get_messages(3)]


def bulk_reads(site: Site) -> None:
    url, access = site.url, site.access()
    with contextlib.closing(open_lister(url, access)) as lister:
        assert STREAM in lister.streams()
    assert bulk.read(url, STREAM, access=access).read_all().num_rows
    assert bulk.count(url, STREAM, access=access)


async def bulk_reader(site: Site) -> None:
    await asyncio.to_thread(bulk_reads, site)


def bulk_direct_reads(site: Site) -> None:
    url, access = site.url, site.access()
    start = datetime(2020, 1, 1, tzinfo=UTC)
    assert bulk.read(url, STREAM, access=access, via="direct", start=start).read_all().num_rows


async def bulk_direct_reader(site: Site) -> None:
    await asyncio.to_thread(bulk_direct_reads, site)


TABLE: Final = pa.table({"value": [str(number) for number in range(2_000)]})


def bulk_writes(site: Site) -> None:
    url, access = site.url, site.access()
    bulk.write(url, STREAM, TABLE, subject="orders.0", mode="pipelined", access=access)
    bulk.write(url, STREAM, TABLE, subject="orders.0", message_id="job", access=access)
    bulk.write(url, STREAM, TABLE, subject="orders.0", mode="atomic", access=access)
    bulk.write(url, STREAM, TABLE, subject="orders.0", mode="fast", access=access)


async def bulk_writer(site: Site) -> None:
    await asyncio.to_thread(bulk_writes, site)


async def coordinator(site: Site) -> None:
    """Coordinate a group whose members come and go."""
    nc, admin, other = await site.connect(), await site.connect_admin(), await site.connect()
    topic = JetStreamTopic.of_stream(STREAM, SUBJECTS)
    async with Coordinator(nc), Coordinator(other):
        async with GroupConsumer(admin, GROUP, topic, auto_offset="earliest") as consumer:
            async for message in consumer:
                await consumer.commit(message)
                break
        groups = GroupClient(admin)
        await groups.list_groups()
        await groups.rewind(GROUP, {(topic.spec.name, 0): 0})
        await groups.delete_group(GROUP)


async def follower(site: Site) -> None:
    """Start at new messages in the partitions of a stream, and read; then restart at the committed offset."""
    admin = await site.connect_admin()
    nc = await site.connect()
    topic = JetStreamTopic.of_stream(STREAM, SUBJECTS)
    async with Coordinator(admin), JetStream(admin) as js:
        for value in (b"new", b"later"):
            async with GroupConsumer(nc, GROUP, topic, auto_offset="new") as consumer:
                await js.publish(SUBJECTS[0], value)
                message = await anext(aiter(consumer))
                assert message.data == value
                await consumer.commit(message)
                await consumer.lag()


async def member(site: Site) -> None:
    """Join a group, read, commit, send heartbeats and leave."""
    admin = await site.connect_admin()
    nc = await site.connect()
    topic = JetStreamTopic.of_stream(STREAM, SUBJECTS)
    heartbeats = await admin.subscribe("liftenvelope.groups.at.*.Heartbeat")
    async with Coordinator(admin):
        async with GroupConsumer(nc, GROUP, topic, auto_offset="earliest", session_timeout=6.0) as consumer:
            async for message in consumer:
                await consumer.commit(message)
                break
            await consumer.lag()
            await heartbeats.next_msg(timeout=60)
        await GroupClient(nc).committed(GROUP)


async def watcher(site: Site) -> None:
    """Follow advisories and ask for the state of streams and consumers."""
    nc = await site.connect()
    admin = await site.connect_admin()
    async with JetStream(nc) as js:
        async with js.advisories(), JetStream(admin) as full:
            await (await full.stream(STREAM)).create_consumer(ConsumerConfig(durable_name="seen"))
        await js.account_info()
        async for info in js.streams():
            async for _ in (await js.stream(info.config.name)).consumers():
                pass


async def command(site: Site, *arguments: str) -> None:
    """Run a command as the user, by a context.

    Raises:
        PermissionDeniedError: The server refused something.
    """

    def run() -> None:
        with tempfile.TemporaryDirectory() as home:
            contexts = Path(home) / "nats" / "context"
            contexts.mkdir(parents=True)
            login = {"user": site.user, "password": PASSWORD, "inbox_prefix": f"_INBOX.{site.role}"}
            (contexts / "own.json").write_text(json.dumps({"url": site.url, **login}))
            done = CliRunner().invoke(
                root, [*arguments, "--context", "own", "--timeout", "5"], env={"XDG_CONFIG_HOME": home}
            )
        check_allowed(done.output, done.exit_code)

    await asyncio.to_thread(run)


def check_allowed(output: str, status: int) -> None:
    """Check that a command ended well.

    Raises:
        PermissionDeniedError: The server refused something.
    """
    for line in output.lower().splitlines():
        if "permissions violation" in line and OF_SYSTEM not in line:
            raise PermissionDeniedError(0, line)
    assert status == 0, output


async def monitor(site: Site) -> None:
    """Take samples, with a group whose partitions share a stream, and read messages; run the commands."""
    admin, nc = await site.connect_admin(), await site.connect()
    topic = JetStreamTopic.of_stream(STREAM, SUBJECTS)
    async with JetStream(admin) as full:
        await full.create_stream(StreamConfig(name="SINGLE", subjects=("single",)))
        await full.publish("single", b"1")
    async with (
        Coordinator(admin),
        GroupConsumer(admin, GROUP, topic, auto_offset="earliest") as consumer,
        JetStream(nc) as js,
    ):
        async for message in consumer:
            await consumer.commit(message)
            break
        snapshot = await JetStreamSampler(js).sample()
        if not snapshot.faults:
            assert all(one.lag is not None for one in snapshot.groups[GROUP].partitions)
        messages = JetStreamMessages(js)
        for stream in (STREAM, "SINGLE"):
            assert (await messages.read(MessageQuery(stream=stream))).messages
            assert (await messages.read(MessageQuery(stream=stream, start=0))).messages
        await command(site, "top", "--once")
        await command(site, "doctor")


async def archiver(site: Site) -> None:
    """Archive a stream as the command does; what is no JSON becomes a dead letter."""
    async with JetStream(await site.connect_admin()) as js:
        await js.create_stream(StreamConfig(name="DEAD", subjects=("dead.*",)))
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "archive.toml"
            file.write_text(ARCHIVE.format(url=site.url, user=site.user, password=PASSWORD, folder=folder))
            daemon = ArchiveDaemon(read_archive_config(str(file)))
            succeeded = await daemon.run(once=True)
        check_allowed("\n".join(state.error for state in daemon.states), 0 if succeeded else 1)
        assert (await (await js.stream("DEAD")).info()).state.messages == 20
        left = {one async for one in (await js.stream(STREAM)).consumer_names()} - {DURABLE}
        if left:  # what the server refuses at the end of a run is no failure of the run
            raise PermissionDeniedError(0, f"consumers are left: {left}")


async def backup(site: Site) -> None:
    """Back up a stream that is larger than what the server sends without an acknowledgement."""
    async with JetStream(await site.connect_admin()) as js:
        for _ in range(12):
            await js.publish(SUBJECTS[0], os.urandom(900_000))  # the server compresses
    with tempfile.TemporaryDirectory() as folder:
        await asyncio.to_thread(bulk.backup, site.url, STREAM, Path(folder) / "orders", access=site.access())


async def restore(site: Site) -> None:
    """Make a stream of a backup, in place of what a killed restore has left."""
    admin = bulk.Access(user=site.admin, password=PASSWORD)
    async with JetStream(await site.connect_admin()) as js:
        await js.create_stream(StreamConfig(name="RESTORED", subjects=("left",), metadata={LEFT: "x"}))

    def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "orders"
            bulk.backup(site.url, STREAM, path, access=admin)
            config = {"subjects": ["restored.*"]}
            restored = bulk.restore_backup(path, site.url, "RESTORED", config=config, access=site.access())
            assert restored.messages == 20

    await asyncio.to_thread(run)


ARCHIVE: Final = """
[[pipeline]]
name = "orders"
source = "{url}"
stream = "ORDERS"
payload = {{ format = "json", schema = {{ id = "int64" }} }}
on_bad = {{ stream = "DEAD", subject = "dead.orders" }}

[pipeline.access]
user = "{user}"
password = "{password}"
inbox_prefix = "_INBOX.archiver"

[pipeline.target]
path = "{folder}/orders"
"""


ROLES: Final[dict[str, Callable[[Site], Coroutine[Any, Any, None]]]] = {
    "gateway": gateway,
    "publisher": publisher,
    "jetstream_publisher": jetstream_publisher,
    "worker": worker,
    "reader": ordered_reader,
    "bulk_reader": bulk_reader,
    "bulk_direct_reader": bulk_direct_reader,
    "bulk_writer": bulk_writer,
    "coordinator": coordinator,
    "member": member,
    "watcher": watcher,
    "monitor": monitor,
    "archiver": archiver,
    "backup": backup,
    "restore": restore,
}

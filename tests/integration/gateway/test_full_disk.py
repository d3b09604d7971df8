"""JetStream has no room: that is said, nothing acked is lost, and what is stored can be read.

The limit is JetStream's own (``max_file_store``), which an ordinary user can set. A file system without space
makes JetStream answer nothing at all and tell its log alone: what is done about that is tested with lines
that nats-server 2.15 wrote on a full tmpfs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import liftenvelope
from liftenvelope.client import Client
from liftenvelope.errors import AckTimeoutError, JetStreamError, LiftEnvelopeError, PublishError
from liftenvelope.gateway import Gateway
from liftenvelope.gateway._cluster import brokers
from liftenvelope.gateway._cluster.brokers import LiveBrokers
from liftenvelope.gateway._cluster.lease import Lease
from liftenvelope.group.clock import time_since_boot
from liftenvelope.jetstream import JetStream
from liftenvelope.rpc.aio import Channel
from liftenvelope.testing import NatsServer, run_nats_server
from tests.integration.conftest import connect

from .test_health import CHECK, SERVING

ROOM = 20_000_000
VALUE = b"x" * 200_000
#: Seconds of a lease of which only its clock, not the machine, reaches the end.
LONG = 60.0


@pytest.fixture
def small_server(tmp_path: Path) -> Iterator[NatsServer]:
    """A NATS server whose JetStream has little room."""
    jetstream = {"max_file_store": ROOM, "store_dir": str(tmp_path)}
    with run_nats_server(jetstream=True, config={"jetstream": jetstream}) as server:
        yield server


async def fill(client: Client, name: str) -> tuple[int, LiftEnvelopeError]:
    """Publish until that fails; return how many messages were acked, and the error."""
    for number in range(ROOM // len(VALUE) + 1):
        try:
            await client.publish(name, VALUE, timeout=60)
        except LiftEnvelopeError as exc:
            return number, exc
    raise AssertionError("it is not full")


class Leases:
    """The clock of gateways' leases, which a test advances, and the parts that keep them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.advanced = 0.0
        self.made: list[LiveBrokers] = []
        assert Lease.__init__.__kwdefaults__ is not None
        monkeypatch.setitem(Lease.__init__.__kwdefaults__, "clock", self.now)
        monkeypatch.setattr(brokers, "time_since_boot", self.now)
        monkeypatch.setattr("liftenvelope.gateway._lifecycle.starting.LiveBrokers", self.new)

    def now(self) -> float:
        return time_since_boot() + self.advanced

    def new(self, *args: Any, **options: Any) -> LiveBrokers:
        self.made.append(LiveBrokers(*args, **options))
        return self.made[-1]


async def test_full_storage_is_said_and_stored_messages_stay_readable(
    small_server: NatsServer, name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    nc, leases = await connect(small_server.url), Leases(monkeypatch)
    async with (
        Gateway(nc, broker_ttl=LONG) as gateway,
        liftenvelope.connect([gateway.address]) as client,
        await Channel.connect(gateway.address) as channel,
    ):
        await client.create_stream(name, name)
        acked, error = await fill(client, name)
        assert isinstance(error, PublishError)
        assert f"stream {name!r}, partition 0" in str(error)
        assert "insufficient resources" in str(error)
        summary = await client.publish_many(name, [VALUE] * 20, on_error="collect", timeout=60)
        assert (summary.acked, len(summary.failures)) == (0, 20)
        assert all(f"stream {name!r}" in str(error) for error in summary.failures.values())
        # Its own beats find no room either. It goes on all the same, for longer than a lease.
        for _ in range(8):
            leases.advanced += LONG / 4
            with pytest.raises(JetStreamError, match="insufficient resources"):
                await leases.made[0]._beat()
            assert await channel.unary(CHECK, b"", timeout=60) == SERVING
        async with client.subscribe(name, start="earliest", stop="latest") as messages:
            assert [message.offset async for message in messages] == list(range(acked))
    told = [record for record in caplog.records if "stores no messages" in record.message]
    assert [record.levelno for record in told] == [logging.ERROR]
    assert f"stream {name}, partition 0" in told[0].message
    await nc.close()


async def test_publishing_goes_on_when_there_is_room_again(small_server: NatsServer, name: str) -> None:
    nc = await connect(small_server.url)
    async with (
        Gateway(nc, broker_ttl=LONG) as gateway,
        liftenvelope.connect([gateway.address]) as client,
    ):
        await client.create_stream(name, name)
        await client.create_stream(f"{name}-other", f"{name}-other")
        await client.publish(f"{name}-other", b"before")
        await fill(client, name)
        # The operator makes room. To delete the stream takes a change of its record, for which there is none.
        async with JetStream(nc) as js:
            await (await js.stream(f"lift_{name}_0")).purge()
        ack = await client.publish(f"{name}-other", b"after", timeout=60)
        assert ack is not None
        assert ack.offset == 1
    await nc.close()


async def test_log_of_full_disk_names_stream(
    jetstream_server: NatsServer, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A full file system: nats-server answers no publish, and writes such a line for each."""
    nc = await connect(jetstream_server.url)
    async with (
        Gateway(nc) as gateway,
        liftenvelope.connect([gateway.address]) as client,
    ):
        await client.create_stream(name, name)
        for number in range(3):
            gateway.read_server_log(
                f"[7] 2026/01/02 03:04:05.06 [ERR] JetStream failed to store a msg on stream "
                f"'$G > lift_{name}_0': write /data/msgs/{number}.blk: no space left on device\n"
            )
        assert caplog.text.count("stores no messages") == 1
        assert f"stream {name}, partition 0, and perhaps of others: no space left on device" in caplog.text
    await nc.close()


def test_error_of_unknown_outcome_keeps_its_class() -> None:
    """The cause is added to the text by which our client tells an unknown outcome from a refusal."""
    from liftenvelope.client.failures import publish_async_error

    text = "no ack came from JetStream in time; the message may be stored (stream 's', partition 0: full)"
    assert isinstance(publish_async_error(0, text, "s[0]", "id"), AckTimeoutError)

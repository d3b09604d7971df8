"""Ack readers that must all replace their consumers: how many of them ask JetStream at the same time."""

from __future__ import annotations

import pytest

import liftenvelope
from liftenvelope.envelope import new_message, unmarshal_ack
from liftenvelope.gateway import Gateway
from liftenvelope.gateway._acks import binding_slots
from liftenvelope.gateway._acks import reader as ack_reader
from liftenvelope.testing import FaultProxy, run_nats_server
from tests.integration.conftest import connect, until
from tests.integration.gateway.test_half_changes import Held

STREAMS = 20
#: The first request of a reader that replaces its consumer.
NAMES = "$JS.API.CONSUMER.NAMES."


@pytest.mark.parametrize(("longest", "asking"), [(10_000.0, 16), (0.0, STREAMS)])
async def test_readers_replace_their_consumers_in_turns(
    name: str, monkeypatch: pytest.MonkeyPatch, longest: float, asking: int
) -> None:
    """A reader whose partition does not answer gives up its slot after a while."""
    monkeypatch.setattr(binding_slots, "_LONGEST", longest)
    monkeypatch.setattr(ack_reader, "_ONE_REQUEST", 10_000.0)
    config = {"mappings": {f"{NAMES}*": f"held.{NAMES}$1"}, "jetstream": {"domain": "hub"}}
    with run_nats_server(jetstream=True, config=config) as server, FaultProxy(server.address) as proxy:
        other, nc = await connect(server.url), await connect(f"nats://{proxy.address}")
        held = await Held(other).start()
        async with (
            Gateway(nc, broker_ttl=60.0) as gateway,
            liftenvelope.connect([gateway.address], timeout=240) as client,
        ):
            assert gateway._running is not None
            leading = gateway._running.leading
            for number in range(STREAMS):
                await client.create_stream(f"{name}.{number}", f"{name}-{number}")
            await until(lambda: sum(reader.is_bound for *_, reader in leading.readers()) == STREAMS)
            held.hold()
            proxy.cut()
            await until(lambda: len(held.subjects) >= asking)
            # New streams do not wait for the slots.
            await client.create_stream(name, name)
            inbox = other.new_inbox()
            acks = await other.subscribe(inbox)
            await other.publish(name, new_message(b"x", ack_inbox=inbox))
            assert unmarshal_ack((await acks.next_msg(240)).data).stream == name
            assert len(set(held.subjects)) == len(held.subjects) == asking
        await nc.close()
        await other.close()

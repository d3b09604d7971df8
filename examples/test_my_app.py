"""Tests of your own app with liftenvelope's fixtures. Run them: pytest test_my_app.py

pytest finds ``liftbridge_server`` by itself once liftenvelope is installed. The tests use asyncio.run, so
they need no other plugin.
"""

import asyncio
import uuid

import nats
import pytest

from liftenvelope.errors import AckTimeoutError
from liftenvelope.nats import AckInbox
from liftenvelope.testing import FaultProxy, LiftbridgeCluster


async def place_orders(nats_url: str, subject: str, orders: list[bytes], timeout: float = 5.0) -> list[int]:
    """The app under test: store orders, and return their offsets."""
    async with await nats.connect(nats_url) as nc, AckInbox(nc, timeout=timeout) as inbox:
        return [(await inbox.publish(subject, order)).offset for order in orders]


@pytest.fixture
def stream(liftbridge_server: LiftbridgeCluster) -> str:
    """A stream that no other test uses: the server is shared by the whole run."""
    name = f"orders-{uuid.uuid4().hex}"
    liftbridge_server.create_stream(name)
    return name


def test_orders_are_stored(liftbridge_server: LiftbridgeCluster, stream: str) -> None:
    offsets = asyncio.run(place_orders(liftbridge_server.nats_url, stream, [b"tea", b"milk"]))
    assert offsets == [0, 1]
    stored = liftbridge_server.read(stream, count=2)
    assert [message.value for message in stored] == [b"tea", b"milk"]


def test_a_slow_network_only_costs_time(liftbridge_server: LiftbridgeCluster, stream: str) -> None:
    with FaultProxy(liftbridge_server.nats_url) as proxy:
        proxy.delay(0.05)
        assert asyncio.run(place_orders(f"nats://{proxy.address}", stream, [b"tea"])) == [0]


def test_a_lost_ack_leaves_the_outcome_unknown(liftbridge_server: LiftbridgeCluster, stream: str) -> None:
    async def place_while_acks_are_stuck() -> None:
        with FaultProxy(liftbridge_server.nats_url) as proxy:
            async with await nats.connect(f"nats://{proxy.address}") as nc, AckInbox(nc) as inbox:
                await nc.flush()
                proxy.stall("to_client")
                await inbox.publish(stream, b"tea", timeout=0.5)

    with pytest.raises(AckTimeoutError) as caught:
        asyncio.run(place_while_acks_are_stuck())
    assert caught.value.sent
    assert liftbridge_server.read(stream, count=1)[0].value == b"tea"  # it was stored

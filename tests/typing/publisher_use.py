"""Code of a user who publishes on a nats-py connection; mypy must see these types."""

from __future__ import annotations

from typing import assert_type

from nats.aio.client import Client

from liftenvelope import Ack
from liftenvelope.nats import AckInbox, BatchAcks, EnvelopePublisher


async def use(publisher: EnvelopePublisher) -> None:
    """The plain annotation is a publisher with an inbox."""
    assert_type(await publisher.publish(b"tea", key=b"7"), Ack)
    assert_type(await publisher.publish_batch([b"tea"]), BatchAcks)


async def make(nc: Client, inbox: AckInbox) -> None:
    await use(EnvelopePublisher(nc, "orders", inbox=inbox))
    without_acks: EnvelopePublisher[None, None] = EnvelopePublisher(nc, "orders")
    assert_type(await without_acks.publish(b"tea"), None)
    await use(without_acks)  # type: ignore[arg-type]

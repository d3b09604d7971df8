"""Acks of a batch as columns."""

from __future__ import annotations

from liftenvelope.errors import AckTimeoutError, TransportError
from liftenvelope.nats import BatchAcks


async def test_row_that_times_out_and_is_never_sent_counts_once() -> None:
    acks = BatchAcks(2, [b"a"], None)
    acks.settle(0, AckTimeoutError("no ack"))
    never_sent = TransportError("never sent")
    acks.settle(0, never_sent)
    assert (acks.left, acks.done()) == (1, False)
    acks.settle(1, never_sent)
    assert (await acks).failures == {0: never_sent, 1: never_sent}

"""Reads that a subscription may pause between: those that wait for more messages anyway."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, ClassVar, Literal

import pytest

import liftenvelope
from liftenvelope.rpc._read_pacing import ReadPacer
from liftenvelope.testing import LiftbridgeCluster


class NotingPacer(ReadPacer):
    """Notes the sizes of the reads that it rates."""

    sizes: ClassVar[list[int]] = []

    def received(self, size: int, now: float) -> None:
        self.sizes.append(size)
        super().received(size, now)


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    monkeypatch.setattr("liftenvelope.rpc.aio.ReadPacer", NotingPacer)
    NotingPacer.sizes.clear()
    return NotingPacer.sizes


@pytest.mark.parametrize("partition", [0, "all"])
@pytest.mark.parametrize(
    ("read", "pauses"),
    [
        (aiter, False),
        (lambda messages: messages.batches(max_wait=0), False),
        (lambda messages: messages.batches(max_wait=0.01), True),
        (lambda messages: messages.arrow_batches(max_wait=0.01), True),
    ],
    ids=["one by one", "lists at once", "lists", "arrow"],
)
async def test_reads_that_wait_for_more_are_paused(
    liftbridge_server: LiftbridgeCluster,
    name: str,
    sizes: list[int],
    read: Callable[[Any], AsyncIterator[object]],
    pauses: bool,
    partition: int | Literal["all"],
) -> None:
    async with await liftenvelope.connect(liftbridge_server.addresses, ack_wait=60) as client:
        await client.create_stream(name, name)
        async with client.subscribe(name, partition=partition, start="earliest") as messages:
            found = read(messages)
            for _ in range(2):  # a subscription to all partitions pauses after its first messages
                await client.publish(name, b"x", partition=0)
                await anext(found)
    assert bool(sizes) is pauses

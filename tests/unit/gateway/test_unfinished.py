"""Streams whose creation ended without an answer: when their removal begins, and under which locks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from liftenvelope.errors import CallTimeoutError
from liftenvelope.gateway._cluster.change_locks import ChangeLocks
from liftenvelope.gateway._cluster.records import PartitionRecord, StreamPhase, StreamRecord
from liftenvelope.gateway._streams import unfinished
from liftenvelope.gateway._streams.repairing import Repairs
from liftenvelope.gateway._streams.unfinished import UnfinishedStreams


def creating(number: str, subject: str = "a") -> StreamRecord:
    return StreamRecord(
        name="one",
        subject=subject,
        id=number,
        maker="me",
        state=StreamPhase.CREATING,
        partitions=(PartitionRecord(),),
    )


class FakeGateway:
    """The parts of a gateway that removals use; notes what was asked and removed."""

    def __init__(self) -> None:
        self.records: list[StreamRecord] = []
        self.asked: list[str] = []
        self.removed: list[str] = []
        self.removed_with_lock_of: list[str] = []
        # Set while JetStream answers questions about partitions.
        self.answers = asyncio.Event()
        self.answers.set()
        self.changing = ChangeLocks()
        core = SimpleNamespace(
            registry=self,
            storage=self,
            changing=self.changing,
            options=SimpleNamespace(id="me"),
        )
        self.streams = UnfinishedStreams(cast("Any", core), cast("Repairs", None))

    def unfinished(self) -> list[StreamRecord]:
        return list(self.records)

    async def refresh(self, name: str) -> StreamRecord | None:
        return next((record for record in self.records if record.name == name), None)

    async def id_of(self, stream: str) -> None:
        self.asked.append(stream)
        await self.answers.wait()

    async def delete(self, record: StreamRecord, number: int) -> None:
        self.removed.append(record.id)

    async def remove(self, record: StreamRecord) -> None:
        self.records.remove(record)

    def fail(self, record: StreamRecord) -> None:
        """End a creation without an answer."""
        self.records = [record]
        with pytest.raises(CallTimeoutError), self.streams.removed_after_errors(record):
            raise CallTimeoutError("no answer")


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


async def test_creation_that_fails_while_the_clean_up_waits_for_it_is_not_removed_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(unfinished, "OVERTAKEN", 0.2)
    gateway, record = FakeGateway(), creating("1")
    gateway.records = [record]
    async with gateway.changing.held("one", "a"):
        clean_up = asyncio.create_task(gateway.streams.finish_work(["me"], of_the_dead=True))
        await until(lambda: gateway.asked)
        gateway.fail(record)
    await clean_up
    assert gateway.removed == []
    await until(lambda: gateway.removed == ["1"])
    gateway.streams.close()


async def test_stream_is_not_removed_under_the_lock_of_an_earlier_one_of_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(unfinished, "OVERTAKEN", 0.0)
    gateway = FakeGateway()
    gateway.answers.clear()
    gateway.fail(creating("1", "a"))
    await until(lambda: gateway.asked)
    async with gateway.changing.held("another", "b"):
        gateway.fail(creating("2", "b"))
        gateway.answers.set()
        for _ in range(100):  # more steps than a removal has that does not wait for the lock of b
            await asyncio.sleep(0)
        assert gateway.removed == []
    await until(lambda: gateway.removed == ["2"])
    gateway.streams.close()


@pytest.mark.parametrize("is_made_anew", [False, True])
async def test_partitions_are_removed_although_another_gateway_has_removed_the_record(
    is_made_anew: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unfinished, "OVERTAKEN", 0.0)
    gateway = FakeGateway()
    gateway.fail(creating("1"))
    gateway.records = [creating("2")] if is_made_anew else []
    await until(lambda: gateway.removed == ["1"])
    assert [record.id for record in gateway.records] == ["2"] * is_made_anew
    gateway.streams.close()

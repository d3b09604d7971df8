"""A group that consumes while its coordinators, its members and the servers fail."""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import AsyncExitStack
from typing import Final

from liftenvelope.jetstream import JetStream
from tests.faults.children import Child
from tests.faults.ledger import UNORDERED
from tests.faults.publishing import publish_once
from tests.faults.running import Path, Run
from tests.faults.scenes import PATIENCE, connect_nats
from tests.integration.group.play import Delivery, Play, watching

__all__ = ["GROUP"]

_PARTITIONS: Final = 4
_PROGRAM: Final = "tests.integration.group.play"
#: Seconds between messages: members take some milliseconds for each.
_PACE: Final = 0.005


class _Deliveries:
    """Deliveries that members in other processes print."""

    def __init__(self) -> None:
        self.all: list[Delivery] = []
        self._member = ""

    def begin(self, member: str) -> None:
        """Take what comes for that of another member."""
        self._member = member

    def take(self, line: bytes) -> None:
        """Take one line: generation, partition, offset and payload."""
        if line != b"ready":
            generation, partition, offset, data = line.split(b" ", 3)
            self.all.append(Delivery(self._member, int(generation), int(partition), int(offset), data))

    def check(self, here: list[Delivery]) -> list[str]:
        """Return where two members were given messages of one partition in one generation.

        The order is checked with the member of this process: one that was stopped may come back in its old
        generation and begin anew at what was committed, and only that one tells when it was assigned.
        """
        found = []
        owners: dict[tuple[int, int], str] = {}
        for one in (*here, *self.all):
            owner = owners.setdefault((one.partition, one.generation), one.member)
            if owner != one.member:
                found.append(f"{one} in a generation in which {owner} has the partition")
        return found


async def _work(run: Run) -> None:
    url, there = run.scene.nats_urls[0], _Deliveries()

    def member(number: int) -> list[str]:
        there.begin(f"there-{number}")
        return _command("member", url, run.stream, str(_PARTITIONS), f"there-{number}")

    children = {
        "coordinator1": Child(lambda _: _command("coordinator", url, "one"), lambda _: None),
        "coordinator2": Child(lambda _: _command("coordinator", url, "two"), lambda _: None),
        "member": Child(member, there.take),
    }
    nc = await connect_nats(run.scene.nats_urls)
    play = Play(nc, run.stream, _PARTITIONS)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(nc.close)
        for name, child in children.items():
            stack.callback(child.kill)
            await asyncio.to_thread(child.start)
            run.processes[name] = child
        await stack.enter_async_context(play.member("here"))
        await stack.enter_async_context(watching(play))
        await _publish(run, play)
        await _until_read(run, play, there)
    try:
        play.log.check()
    except AssertionError as exc:
        run.violate(f"deliveries: {exc}")
    for text in there.check(play.log.entries):
        run.violate(text)


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", _PROGRAM, *arguments]


async def _publish(run: Run, play: Play) -> None:
    """Publish one message after the other, each until it is stored."""
    async with JetStream(play.nc, timeout=run.plan.timeout) as js:
        while not run.is_over():
            index = run.ledger.take(UNORDERED)
            ack = await publish_once(run, js, play.subjects[index % _PARTITIONS], index)
            run.ledger.stored(index, ack.sequence - 1)
            play.published.add(run.messages.value(index))
            await asyncio.sleep(_PACE)


async def _until_read(run: Run, play: Play, there: _Deliveries) -> None:
    """Wait until each message was somebody's."""
    began = time.monotonic()
    while missing := play.published - play.log.payloads - {one.data for one in there.all}:
        await asyncio.sleep(0.1)
        if time.monotonic() - began > 2 * PATIENCE:
            run.violate(f"{len(missing)} messages were given to no member, such as {sorted(missing)[:3]}")
            return
    run.note("reading by the group", time.monotonic() - began, 2 * PATIENCE)


GROUP: Final = Path(lambda run: run.in_event_loop(_work), text=True)

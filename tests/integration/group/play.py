"""Groups under test: streams to read, members that log what they are given, and what the log must show."""

from __future__ import annotations

import asyncio
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nats.aio.client import Client

from liftenvelope.errors import LiftEnvelopeError
from liftenvelope.group import (
    Coordinator,
    GroupClient,
    GroupConsumer,
    GroupEvent,
    JetStreamTopic,
    TopicPartition,
)
from liftenvelope.jetstream import JetStream, StreamConfig
from tests.integration.conftest import connect

#: Where something has to run out: short, so that the tests are, and longer than what lives ever hangs.
LEASE = 5.0
SESSION = 8.0
#: Where nothing may run out, however busy the machine is.
LONG = 30.0
#: For everything that has to happen sooner or later.
PATIENCE = 60.0


async def take(consumer: GroupConsumer, count: int) -> list[bytes]:
    """The next messages of a consumer."""
    async with asyncio.timeout(PATIENCE):
        return [(await anext(consumer)).data for _ in range(count)]


def quiet(_: GroupEvent) -> None:
    """Events that a test does not look at."""


async def eventually(condition: Callable[[], bool], patience: float = PATIENCE) -> None:
    async with asyncio.timeout(patience):
        while not condition():
            await asyncio.sleep(0.02)


@dataclass(frozen=True)
class Delivery:
    """Delivery of a message to a member."""

    member: str
    generation: int
    partition: int
    offset: int
    data: bytes


@dataclass
class Log:
    """All deliveries, in the order in which they happened.

    Before the first one after each assignment stands one without a message, at offset -1: a member that was
    cut off may come back in the generation that it was in, and then begins anew.
    """

    everything: list[Delivery] = field(default_factory=list)

    @property
    def entries(self) -> list[Delivery]:
        return [entry for entry in self.everything if entry.offset >= 0]

    def assigned(self, member: str, partitions: list[TopicPartition]) -> None:
        self.everything += [Delivery(member, -1, partition, -1, b"") for _, partition in partitions]

    def add(self, member: str, message: Any) -> None:
        self.everything.append(
            Delivery(member, message.generation, message.partition, message.offset, message.data)
        )

    @property
    def payloads(self) -> set[bytes]:
        return {entry.data for entry in self.entries}

    def by(self, member: str) -> list[Delivery]:
        return [entry for entry in self.entries if entry.member == member]

    def check(self) -> None:
        """No partition was two members' at once, and each was read in order in each generation."""
        newest: dict[int, tuple[int, str]] = {}
        last: dict[tuple[int, str], int] = defaultdict(lambda: -1)
        for entry in self.everything:
            place = entry.partition, entry.member
            if entry.offset < 0:
                last[place] = -1
                continue
            generation, member = newest.get(entry.partition, (0, ""))
            assert entry.generation >= generation, f"{entry} after generation {generation}"
            if entry.generation == generation:
                assert entry.member == member, f"{entry}: {member} has it in this generation"
            newest[entry.partition] = entry.generation, entry.member
            assert entry.offset > last[place], f"{entry} after offset {last[place]}"
            last[place] = entry.offset


class Play:
    """A stream with partitions, and what is published to it."""

    def __init__(self, nc: Client, name: str, partitions: int = 4, session: float = SESSION) -> None:
        self.nc = nc
        self.name = name
        self.js = JetStream(nc)
        self.partitions = partitions
        self.session = session
        self.subjects = [f"{name}.{number}" for number in range(partitions)]
        self.topic = JetStreamTopic.of_stream(name, self.subjects)
        self.client = GroupClient(nc, timeout=PATIENCE)
        self.log = Log()
        self.published: set[bytes] = set()

    async def create(self, replicas: int = 1) -> Play:
        config = StreamConfig(name=self.name, subjects=(f"{self.name}.*",), num_replicas=replicas)
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    await self.js.create_stream(config, timeout=5)  # nobody answers without a leader
                    return self
                except LiftEnvelopeError:
                    await asyncio.sleep(0.1)

    async def publish(self, count: int) -> None:
        """Publish so many more messages, in turn to the partitions; again until they are stored."""
        for _ in range(count):
            number = len(self.published)
            payload = b"%d" % number
            subject = self.subjects[number % self.partitions]
            async with asyncio.timeout(PATIENCE):
                while True:
                    try:
                        await self.js.publish(subject, payload, message_id=str(number), timeout=2)
                        break
                    except LiftEnvelopeError:
                        await asyncio.sleep(0.05)
            self.published.add(payload)

    def consumer(self, name: str, **options: Any) -> GroupConsumer:
        """A member of the group that is named after the stream."""
        settings: dict[str, Any] = {
            "consumer_id": name,
            "session_timeout": self.session,
            "auto_offset": "earliest",
            "auto_commit_interval": 0.2,
            "timeout": PATIENCE,
            "on_event": quiet,
            **options,
        }
        nc = settings.pop("nc", self.nc)
        return GroupConsumer(nc, self.name, self.topic, **settings)

    @asynccontextmanager
    async def member(
        self, name: str, *, pause: float = 0.002, **options: Any
    ) -> AsyncIterator[GroupConsumer]:
        """A member that logs what it is given, in a task of its own."""

        def told(partitions: list[TopicPartition]) -> None:
            self.log.assigned(name, partitions)

        consumer = await self.consumer(name, on_assigned=told, **options).open()

        async def work() -> None:
            async for message in consumer:
                self.log.add(name, message)
                await asyncio.sleep(pause)

        task = asyncio.create_task(work())
        try:
            yield consumer
        finally:
            await consumer.close()
            await task

    async def all_read(self) -> None:
        await eventually(lambda: self.published <= self.log.payloads)

    async def offsets(self) -> dict[TopicPartition, int]:
        """Return the committed offsets."""
        found = await self.client.committed(self.name)
        return {key: offset for key, offset in found.items() if isinstance(offset, int)}

    async def watch_offsets(self) -> None:
        """Check the committed offsets again and again: none may go back."""
        before: dict[TopicPartition, int] = {}
        while True:
            try:
                now = await self.offsets()
            except LiftEnvelopeError:
                now = before  # there is nobody to ask, or no group yet
            for key, offset in before.items():
                assert now.get(key, -1) >= offset, f"{key} went back from {offset} to {now.get(key)}"
            before = now
            await asyncio.sleep(0.05)


@asynccontextmanager
async def _meanwhile(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        assert not task.done(), task.exception()
        task.cancel()
        await asyncio.wait([task])


def watching(play: Play) -> AbstractAsyncContextManager[None]:
    """Have the offsets watched meanwhile."""
    return _meanwhile(play.watch_offsets())


def publishing(play: Play) -> AbstractAsyncContextManager[None]:
    """Have messages published meanwhile, so that whoever joins finds some in each partition."""

    async def publish() -> None:
        while True:
            await play.publish(1)
            await asyncio.sleep(0.01)

    return _meanwhile(publish())


def coordinator(nc: Client, **options: Any) -> Coordinator:
    return Coordinator(nc, **{"lease": LEASE, "timeout": PATIENCE, "on_event": quiet, **options})


@asynccontextmanager
async def process(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A coordinator or a member in a process of its own; see the end of this file."""
    root = Path(__file__).resolve().parents[3]
    running = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.integration.group.play",
        *arguments,
        cwd=root,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert running.stdout is not None
        async with asyncio.timeout(PATIENCE):
            assert (await running.stdout.readline()).strip() == b"ready"
        yield running
    finally:
        if running.returncode is None:
            running.kill()
        await running.wait()


async def deliveries(member: asyncio.subprocess.Process) -> AsyncIterator[tuple[str, bytes]]:
    """Yield the deliveries that a member in another process prints: its numbers, and the payload."""
    assert member.stdout is not None
    # Of one that is killed, the last line may be cut off: that message was not processed.
    while (line := await member.stdout.readline()).endswith(b"\n"):
        numbers, _, payload = line.strip().rpartition(b" ")
        yield numbers.decode(), payload


async def _coordinate(url: str, coordinator_id: str) -> None:
    nc = await connect(url)
    async with coordinator(nc, coordinator_id=coordinator_id):
        print("ready", flush=True)
        await asyncio.Event().wait()


async def _consume(url: str, stream: str, partitions: str, name: str) -> None:
    nc = await connect(url)
    play = Play(nc, stream, int(partitions))
    async with play.consumer(name) as consumer:
        print("ready", flush=True)
        async for message in consumer:
            numbers = f"{message.generation} {message.partition} {message.offset}"
            # In one piece, also where Python's output is unbuffered: it may be killed at any moment.
            print(f"{numbers} {message.data.decode()}\n", end="", flush=True)
            await asyncio.sleep(0.01)


def main(arguments: Iterable[str]) -> None:
    role, *rest = arguments
    roles: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {
        "coordinator": _coordinate,
        "member": _consume,
    }
    asyncio.run(roles[role](*rest))


if __name__ == "__main__":
    main(sys.argv[1:])

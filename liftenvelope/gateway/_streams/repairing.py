"""Makes JetStream record what the records of streams say, after a change that ended half-way."""

from __future__ import annotations

import asyncio
import logging
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from liftenvelope._deadlines import Deadline
from liftenvelope.errors import LiftEnvelopeError, StreamNotFoundError
from liftenvelope.gateway._cluster.records import StreamPhase
from liftenvelope.gateway._streams.handing_over import copies_of, hand_over, with_sources
from liftenvelope.rpc.status import RpcError, StatusCode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from liftenvelope.gateway._cluster.records import StreamRecord
    from liftenvelope.gateway._core import Core

__all__ = ["OVERTAKEN", "Repairs"]

_log: Final = logging.getLogger("liftenvelope.gateway")

#: Seconds for the server to execute the requests that it received before one that it has answered.
OVERTAKEN: Final = 1.0
#: Gateways of which two may change a stream at the same time.
_SEVERAL: Final = 2
#: Seconds between two looks at a partition that another gateway is pausing.
_LOOK: Final = 0.01


class Repairs:
    """Repairs streams, at once or in the background.

    Args:
        core: The gateway's parts.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        # Repairs in the background, by stream.
        self._tasks: dict[str, asyncio.Task[None]] = {}
        # Streams that need a repair which has not begun yet: those of changes that failed meanwhile, too.
        self._wanted: set[str] = set()
        self._is_closing = False

    def close(self) -> None:
        """End the repairs in the background. Streams that need one are repaired by the next start."""
        self._is_closing = True
        for task in self._tasks.values():
            task.cancel()

    async def repair(self, name: str) -> None:
        """Make JetStream record what a stream's record says: a gateway may have died during a change.

        After an error, the other partitions are repaired, then it is raised.

        Raises:
            RpcError: UNAVAILABLE: a copy has not yet received all messages of a partition that hands over
                its subject. FAILED_PRECONDITION: a partition's subject can't be recorded.
            StreamNotFoundError: The JetStream stream of a partition does not exist.
            LiftEnvelopeError: JetStream does not answer or fails.
        """
        errors: list[LiftEnvelopeError] = []
        record = self._core.registry.known(name)
        for number in range(0 if record is None else len(record.partitions)):
            try:
                await self._repair_partition(name, number)
            except LiftEnvelopeError as exc:
                errors.append(exc)
        if errors:
            raise next((error for error in errors if not isinstance(error, StreamNotFoundError)), errors[0])

    async def _repair_partition(self, name: str, number: int) -> None:
        record = self._core.registry.known(name)
        # JetStream does not answer for a partition without a leader. So the questions come before the lock:
        # the changes of clients must not wait for such a partition.
        if record is None or not record.has_partition(number) or await self._is_whole(record, number):
            return
        subject = record.subject
        async with self._core.changing.held(name, subject):
            record = self._core.registry.known(name)
            if record is None or record.subject != subject or not record.has_partition(number):
                return  # deleted meanwhile, and perhaps created again
            source = None
            if record.partitions[number].records:
                if await self._core.storage.is_recorded(record, number):
                    return
                source = await self._core.storage.attach(record, number)
            else:
                await hand_over(self._core, record, number, timeout=0)
            await self._core.registry.change(name, partial(with_sources, record, {number: source}))

    async def _is_whole(self, record: StreamRecord, number: int) -> bool:
        """Return whether a partition needs no repair. If it does, ask all streams that take part in that.

        Raises:
            RpcError: UNAVAILABLE: a copy has not yet received all messages.
            LiftEnvelopeError: One of the streams does not answer.
        """
        storage, part = self._core.storage, record.partitions[number]
        if part.records:
            if await storage.is_recorded(record, number):
                return True
            await storage.wait_copied([(record, number)], timeout=0)
            return False
        copies = copies_of(self._core, record, number)
        with suppress(StreamNotFoundError):
            if await storage.is_detached(record, number) and not copies and part.source is None:
                return True
        await storage.wait_copied(copies, timeout=0)
        return False

    @contextmanager
    def after_errors(self, record: StreamRecord) -> Iterator[None]:
        """Repair a stream and its copies later if the block ends with an error or is cancelled."""
        try:
            yield
        except (asyncio.CancelledError, LiftEnvelopeError):
            streams = {record.stream_of(number) for number in range(len(record.partitions))}
            for other in self._core.registry:
                if any(part.source in streams for part in other.partitions):
                    self.later(other.name)
            self.later(record.name)
            raise

    async def hand_over(self, record: StreamRecord, partition: int, timeout: float) -> None:
        """Hand the subject of a partition over to its copies; see :func:`hand_over`.

        If the copies lag, a deletion fails with UNAVAILABLE, because it would remove the messages that they
        lack. Other changes succeed, and the subject is handed over later.
        """
        try:
            await hand_over(self._core, record, partition, timeout)
        except RpcError as exc:
            if exc.code != StatusCode.UNAVAILABLE or record.state is not StreamPhase.READY:
                raise
            _log.warning("the subject of stream %s is not recorded for now: %s", record.name, exc)
            self.later(record.name)

    async def check(self, name: str, numbers: Iterable[int]) -> None:
        """Repair a stream later if other gateways may have changed it at the same time.

        Steps of two changes may interleave: one gateway stops recording a partition that the other has just
        resumed. Each checks after its last step, so the later one sees all that both have done.

        Args:
            name: Name of the stream.
            numbers: Numbers of the partitions that this gateway has changed.
        """
        if len(self._core.brokers.alive) < _SEVERAL:
            return
        try:
            record = await self._core.registry.refresh(name)
            if record is None or record.state is not StreamPhase.READY:
                return
            for number in filter(record.has_partition, numbers):
                if not await self._is_whole(record, number):
                    self.later(name)
                    return
        except LiftEnvelopeError:
            self.later(name)

    async def wait_detached(self, record: StreamRecord, numbers: Iterable[int]) -> None:
        """Wait until another gateway that pauses partitions has stopped recording them.

        It says so in the stream's record first. It may die before the next step, so this waits for
        ``OVERTAKEN`` seconds at most.

        Raises:
            LiftEnvelopeError: JetStream does not answer or fails.
        """
        if len(self._core.brokers.alive) < _SEVERAL:
            return
        deadline = Deadline(OVERTAKEN)
        for number in numbers:
            while not (deadline.is_over or await self._core.storage.is_detached(record, number)):
                await asyncio.sleep(_LOOK)

    def later(self, name: str) -> None:
        """Repair a stream in a second, with retries."""
        self._wanted.add(name)
        if not self._is_closing and name not in self._tasks:
            self._tasks[name] = asyncio.create_task(self._keep_repairing(name), name=f"repair {name}")

    async def _keep_repairing(self, name: str) -> None:
        """Repair a stream until that succeeds, and no gateway has changed the stream meanwhile."""
        try:
            while name in self._wanted:
                await asyncio.sleep(OVERTAKEN)
                self._wanted.discard(name)
                await self._try_to_repair(name)
        finally:
            self._tasks.pop(name, None)

    async def _try_to_repair(self, name: str) -> None:
        try:
            # Once this is answered, the server has received everything that was sent before.
            before = await self._core.registry.refresh(name)
            await self.repair(name)
            if await self._core.registry.refresh(name) != before:
                self._wanted.add(name)
        except StreamNotFoundError:
            return  # deleted meanwhile
        except LiftEnvelopeError as exc:
            _log.warning("could not check the subjects of stream %s, retrying: %s", name, exc)
            self._wanted.add(name)

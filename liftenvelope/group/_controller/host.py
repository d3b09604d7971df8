"""Controller of one group: runs calls one after another, and answers only after the change is stored.

One task changes the group. It takes all waiting calls, applies them to the :class:`Group` in memory, writes
the result with compare-and-set in one message, and only then answers. So no caller sees a state that could be
lost. If another coordinator has written the key, or the lease has ended, the host fails all calls and ends;
its memory is discarded, and the stored state is what counts.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from liftenvelope.consumers.tasks import cancel
from liftenvelope.errors import GroupError, WrongLastSequenceError
from liftenvelope.group._controller.offsets import OffsetKeys
from liftenvelope.group._controller.store import GroupStore
from liftenvelope.group.assignors import TopicPartition
from liftenvelope.group.errors import (
    CoordinatorDefectError,
    GroupLimitError,
    GroupUnavailableError,
    NotControllerError,
    UnknownGroupError,
)
from liftenvelope.group.membership import Group, Registered, Registration
from liftenvelope.group.state import GroupState, Phase, TopicSpec
from liftenvelope.group.wire import decode_group, encode_topics, group_parts

if TYPE_CHECKING:
    from liftenvelope.group.membership import Beat

__all__ = ["GroupHost"]

_T = TypeVar("_T")
#: Most calls that may wait for one group. More calls mean that JetStream is far too slow.
_MOST_WAITING: Final = 10_000
#: Seconds after which the task lets others run.
_LONGEST_TURN: Final = 0.01


@dataclass(slots=True)
class _GroupCall(Generic[_T]):
    do: Callable[[Group, float], _T]
    outcome: asyncio.Future[_T]
    #: Returns about how much the call has made the record grow, in bytes.
    growth: Callable[[], int]
    result: Any = None
    error: GroupError | None = None


@dataclass(slots=True, eq=False)
class _Waiter:
    """A registration that waits for the group to be stable."""

    consumer_id: str
    client_id: str
    outcome: asyncio.Future[Registered]
    growth: int = 0


def _no_growth() -> int:
    return 0


class GroupHost:
    """Runs the calls of a group that this coordinator controls.

    Args:
        group: The group.
        key: Its key in the store.
        revision: Revision of the stored group, which this coordinator has just written.
        store: The bucket.
        offsets: Offset keys of the group, which have been read.
        may_act: Returns True while the coordinator has its lease.
        on_stored: Called after each change of generation or phase was stored.
        on_expired: Called with group and consumer id after a silent member was removed.
        on_end: Called when the group is deleted or no longer controlled here.
    """

    def __init__(
        self,
        group: Group,
        key: str,
        revision: int,
        store: GroupStore,
        offsets: OffsetKeys,
        *,
        may_act: Callable[[], bool],
        on_stored: Callable[[GroupHost], None],
        on_expired: Callable[[str, str], object],
        on_end: Callable[[GroupHost], None],
    ) -> None:
        self.group = group
        self.name = group.state.name
        self._key = key
        self._revision = revision
        self._store = store
        self._offsets = offsets
        self._may_act = may_act
        self._on_stored = on_stored
        self._on_expired = on_expired
        self._on_end = on_end
        self._calls: deque[_GroupCall[Any]] = deque()
        self._waiters: dict[_Waiter, None] = {}
        self._turn_began = 0.0
        self._wake = asyncio.Event()
        self._end: GroupError | None = None
        self._topics: tuple[list[TopicSpec], bytes] = [], b""
        self._stored = b"".join(self._parts())
        self._snapshot: GroupState | None = None
        #: Revision of the last write, of the record or of an offset key.
        self._last_write = revision
        offsets.measure(self._stored, group.state.topics)
        self._told: tuple[int, Phase] = group.state.generation, group.state.phase
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._work())
        self._task.add_done_callback(self._has_ended)

    # Calls

    async def run(self, do: Callable[[Group, float], _T], growth: Callable[[], int] = _no_growth) -> _T:
        """Apply ``do`` to the group; return its result once the change is stored.

        Args:
            do: The change.
            growth: Returns about how much the change has made the group's record grow, in bytes.

        Raises:
            GroupError: The call was refused, or the change could not be stored.
        """
        if self._end is not None:
            raise self._end
        if len(self._calls) >= _MOST_WAITING:
            text = f"group {self.name!r}: {_MOST_WAITING} calls are waiting already; retry later"
            raise GroupUnavailableError(text)
        call: _GroupCall[_T] = _GroupCall(do, self._loop.create_future(), growth)
        self._calls.append(call)
        self._wake.set()
        return await call.outcome

    def heartbeat(self, consumer_id: str, generation: int, client_id: str) -> Beat:
        """Record that a member is alive. Nothing is stored, so the answer does not wait.

        Raises:
            GroupError: The member is fenced, or the coordinator has no valid lease.
        """
        if self._end is not None:
            raise self._end
        self._check_lease()
        return self.group.heartbeat(consumer_id, generation, self._loop.time(), client_id)

    async def register(self, registration: Registration, wait: float) -> Registered:
        """Register a consumer, and wait up to ``wait`` seconds for the group to be stable.

        Raises:
            GroupError: The registration was refused, or could not be stored.
        """
        waiter = _Waiter(registration.consumer_id, registration.client_id, self._loop.create_future())

        def do(group: Group, now: float) -> Registered:
            before = len(group.state.members), len(group.state.topics)
            registered = group.register(registration, now)
            if (len(group.state.members), len(group.state.topics)) != before:
                waiter.growth = len(registration.consumer_id) + len(registration.client_id)
                waiter.growth += sum(len(topic.name) + topic.partitions for topic in registration.topics)
            # A member that still has partitions must give them back first. Waiters are added in the same step
            # as the change, so that no change is missed.
            if registered.rebalancing and registered.generation == registration.generation:
                self._waiters[waiter] = None
            return registered

        try:
            registered = await self.run(do, lambda: waiter.growth)
            if waiter not in self._waiters and not waiter.outcome.done():
                return registered
            try:
                async with asyncio.timeout(wait):
                    return await waiter.outcome
            except TimeoutError:
                return registered
        finally:
            self._waiters.pop(waiter, None)

    def assignments(
        self, consumer_id: str, generation: int, client_id: str = ""
    ) -> dict[TopicPartition, int]:
        """Record a heartbeat and return the partitions: Liftbridge's FetchConsumerGroupAssignments.

        Raises:
            GroupError: As for :meth:`heartbeat`.
        """
        self.heartbeat(consumer_id, generation, client_id)
        return self.group.assignment_of(consumer_id)

    def stored(self) -> GroupState | None:
        """Return the group as last stored; None if the coordinator has no valid lease.

        Callers must not change it. Its offsets are those of the record, which may be older than the committed
        ones.
        """
        if self._end is not None or not self._may_act():
            return None
        if self._snapshot is None:
            self._snapshot = decode_group(self._stored)
        return self._snapshot

    def restart(self) -> None:
        """Restart the session timeout of every member: the coordinator could receive no heartbeats."""
        self.group.restart(self._loop.time())
        self._wake.set()

    async def close(self, error: GroupError) -> None:
        """Stop serving the group here. The stored state stays as it is."""
        self._finish(error)
        await cancel([self._task])

    # Task that changes the group

    async def _work(self) -> None:
        while self._end is None:
            await self._something_to_do()
            self._wake.clear()
            calls = list(self._calls)
            self._calls.clear()
            try:
                await self._do(calls)
            except GroupLimitError as exc:
                self._too_large(calls, exc)
            except GroupError as exc:
                self._finish(exc)
                _fail(calls, exc)
            finally:
                # On cancellation or a defect: no caller may wait forever.
                _fail(calls, GroupUnavailableError("the coordinator is closing; retry elsewhere"))

    def _too_large(self, calls: list[_GroupCall[Any]], error: GroupLimitError) -> None:
        """End with a record that is too large. Only the call that made it grow most is refused for good.

        All others, of members that have done nothing wrong, are repeated: the stored group is as before.
        """
        cause = max(calls, key=lambda call: call.growth(), default=None)
        if cause is None or not cause.growth():
            self._finish(error)
            _fail(calls, error)
            return
        _fail([cause], error)
        others = GroupUnavailableError(
            f"group {self.name!r}: the call of another client was too large; retry"
        )
        self._finish(others)
        _fail(calls, others)

    async def _something_to_do(self) -> None:
        while not self._wake.is_set():
            wait = self.group.next_deadline() - self._loop.time()
            if wait <= 0:
                if self._may_act():
                    return
                wait = 3600.0  # the lease keeper wakes this task when the lease is back
            try:
                async with asyncio.timeout(min(wait, 3600.0)):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _do(self, calls: list[_GroupCall[Any]]) -> None:
        self._check_lease()
        now = self._turn_began = self._loop.time()
        expired = self.group.expire(now)
        for call in calls:
            await self._yield()
            try:
                if self.group.gone:
                    raise UnknownGroupError(f"there is no group {self.name!r}: create it first")
                call.result = call.do(self.group, self._loop.time())
            except GroupError as exc:
                call.error = exc
        if self.group.is_due:
            for _ in self.group.deal():
                await self._yield()
        if self.group.changed:
            await self._yield()
            await self._persist()
        for consumer_id in expired:
            self._on_expired(self.name, consumer_id)
        for call in calls:
            if call.outcome.done():
                continue
            if call.error is not None:
                call.outcome.set_exception(call.error)
            else:
                call.outcome.set_result(call.result)
        if self.group.gone:
            self._finish(UnknownGroupError(f"there is no group {self.name!r}: create it first"))
        await self._tell()

    async def _yield(self) -> None:
        """Let other tasks run if this one has run for long, as in a group of a thousand members.

        Meanwhile heartbeats may read the state, which is not stored yet, and extend sessions. Nothing else
        changes the group, because only this task does.
        """
        if self._loop.time() - self._turn_began > _LONGEST_TURN:
            # Sockets are read after the first, and the tasks that this wakes run after the second.
            for _ in range(3):
                await asyncio.sleep(0)
            self._turn_began = self._loop.time()

    async def _persist(self) -> None:
        try:
            if self.group.gone:
                await self._store.delete(self._key, self._revision)
                await self._offsets.delete()
            elif self.group.only_commits and self._offsets.has_room(self.group.commits):
                self._last_write = await self._offsets.write(self.group.commits, self._revision)
            else:
                await self._persist_record()
        except WrongLastSequenceError:
            raise NotControllerError(
                f"group {self.name!r} was changed by another coordinator, which controls it now"
            ) from None
        self.group.changed = False

    async def _persist_record(self) -> None:
        state = self.group.state
        state.offsets_revision = self._last_write
        parts = []
        for part in self._parts():
            parts.append(part)
            await self._yield()
        value = b"".join(parts)
        self._last_write = self._revision = await self._store.put(self._key, value, self._revision)
        self._stored, self._snapshot = value, None
        self._offsets.included(value, state.topics)

    def _parts(self) -> Iterator[bytes]:
        """Return the record in parts; its topics are encoded again only if they have changed."""
        specs = list(self.group.state.topics.values())
        kept = self._topics[0]
        if len(kept) != len(specs) or any(one is not spec for one, spec in zip(kept, specs, strict=True)):
            self._topics = specs, encode_topics(specs)
        return group_parts(self.group.state, self._topics[1])

    async def _tell(self) -> None:
        """Answer waiting registrations, and report a new generation or phase."""
        state = self.group.state
        if (state.generation, state.phase) != self._told:
            self._told = state.generation, state.phase
            self._on_stored(self)
        self._turn_began = self._loop.time()
        for waiter in list(self._waiters):
            await self._yield()
            if waiter.outcome.done():
                continue
            try:
                registered = self.group.registered(waiter.consumer_id, waiter.client_id)
            except GroupError as exc:
                _refuse(waiter.outcome, exc)
            else:
                if registered.rebalancing:
                    continue
                waiter.outcome.set_result(registered)
            self._waiters.pop(waiter, None)

    def _check_lease(self) -> None:
        if not self._may_act():
            raise GroupUnavailableError("the coordinator has lost its lease, or could not renew it; retry")

    def _has_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (failure := task.exception()) is not None:
            self._finish(CoordinatorDefectError(f"group {self.name!r}: {failure!r}"))
            context = {"message": "a group's task failed", "exception": failure, "task": task}
            self._loop.call_exception_handler(context)

    def _finish(self, error: GroupError) -> None:
        if self._end is not None:
            return
        self._end = error
        self._on_end(self)
        _fail([*self._calls, *self._waiters], error)
        self._calls.clear()
        self._waiters.clear()


def _fail(waiting: list[Any], error: GroupError) -> None:
    for one in waiting:
        if not one.outcome.done():
            # A new object for each, because an exception keeps the traceback of its last raise.
            _refuse(one.outcome, type(error)(*error.args))


def _refuse(outcome: asyncio.Future[Any], error: GroupError) -> None:
    outcome.set_exception(error)
    # Retrieved: a registration whose call has failed does not look at its waiter.
    outcome.exception()

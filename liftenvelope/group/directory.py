"""The groups that there are, and those of them that this coordinator has."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from liftenvelope.errors import GroupError
from liftenvelope.group.assignors import Assignor
from liftenvelope.group.errors import (
    EphemeralGroupError,
    GroupExistsError,
    GroupNotEmptyError,
    GroupRequestError,
    GroupUnavailableError,
    NotControllerError,
    UnknownGroupError,
)
from liftenvelope.group.events import AssignorFailed, GroupEventHandler, GroupTaken, MemberExpired
from liftenvelope.group.host import GroupHost
from liftenvelope.group.keeping import LeaseKeeper
from liftenvelope.group.membership import Group
from liftenvelope.group.names import token_of
from liftenvelope.group.state import (
    GroupState,
    TopicSpec,
    check_id,
    check_session_timeout,
    check_topics,
)
from liftenvelope.group.store import Conflict, Entry, Store
from liftenvelope.group.wire import decode_group, encode_group

__all__ = ["KIND", "Definition", "Directory"]

_T = TypeVar("_T")
#: What the keys of groups begin with.
KIND: Final = "group"
#: How many groups are looked at, or taken, at once.
_AT_ONCE: Final = 32
#: How often a change is tried again that somebody else came before.
_TRIES: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """What a group is to be.

    Attributes:
        name: Its name.
        session_timeout: Seconds of silence after which members are taken for dead.
        topics: What is read.
        ephemeral: Whether it goes with its last member.
        assignor: What deals out the partitions.
        immediate: Whether partitions move without the members being asked first.
    """

    name: str
    session_timeout: float
    topics: tuple[TopicSpec, ...] = ()
    ephemeral: bool = False
    assignor: str = "sticky"
    immediate: bool = False

    def state(self) -> GroupState:
        """The group as it begins.

        Raises:
            GroupRequestError, GroupLimitError: The definition makes no sense.
        """
        return GroupState(
            name=check_id("group", self.name),
            session_timeout=check_session_timeout(self.session_timeout),
            topics=check_topics(self.topics),
            ephemeral=self.ephemeral,
            assignor=self.assignor,
            immediate=self.immediate,
        )


class Directory:
    """All groups in the bucket.

    Args:
        coordinator_id: Of this coordinator.
        store: The bucket.
        keeper: Its lease.
        assignors: What it can deal out partitions by.
        on_changed: Called when a group of this coordinator has changed, after it was stored.
        on_event: Where events go.
    """

    def __init__(
        self,
        coordinator_id: str,
        store: Store,
        keeper: LeaseKeeper,
        assignors: Mapping[str, Assignor],
        *,
        on_changed: Callable[[GroupState], None],
        on_event: GroupEventHandler,
    ) -> None:
        self._id = coordinator_id
        self._store = store
        self._keeper = keeper
        self._assignors = assignors
        self._on_changed = on_changed
        self._on_event = on_event
        self._hosts: dict[str, GroupHost] = {}
        self._opening: dict[str, asyncio.Task[GroupHost]] = {}
        self._looking: dict[str, asyncio.Task[GroupState | GroupError]] = {}

    @property
    def hosts(self) -> Mapping[str, GroupHost]:
        """The groups in this coordinator's hands that somebody has asked for, by name."""
        return self._hosts

    # One group

    async def host(self, name: str) -> GroupHost:
        """A group that is in this coordinator's hands, or falls to it now.

        Raises:
            UnknownGroupError: There is none.
            NotControllerError: It is in another's hands.
            GroupUnavailableError: That could not be found out.
        """
        if (host := self._hosts.get(name)) is not None:
            return host
        check_id("group", name)
        task = self._opening.get(name)
        if task is None:
            task = self._opening[name] = asyncio.create_task(self._open(name))
            task.add_done_callback(lambda done: self._opened(name, done))
        return await asyncio.shield(task)

    def _opened(self, name: str, task: asyncio.Task[GroupHost]) -> None:
        self._opening.pop(name, None)
        if not task.cancelled():
            task.exception()  # whoever asked has it; there may be nobody left

    async def _open(self, name: str) -> GroupHost:
        incarnation = self._keeper.incarnation
        state, revision = await self._own(name, incarnation)
        if incarnation != self._keeper.incarnation or not self._keeper.is_valid:
            raise GroupUnavailableError("the coordinator has lost its lease: ask again")
        group = Group(state, now=asyncio.get_running_loop().time(), assignors=self._assignors)
        host = self._hosts[name] = GroupHost(
            group,
            _key(name),
            revision,
            self._store,
            may_act=lambda: self._keeper.is_valid and incarnation == self._keeper.incarnation,
            on_stored=self._stored,
            on_expired=lambda group, consumer_id: self._on_event(MemberExpired(group, consumer_id)),
            on_end=self._ended,
        )
        return host

    async def _own(self, name: str, incarnation: str) -> tuple[GroupState, int]:
        """The group, once it is this coordinator's, and what it is stored as."""
        for _ in range(_TRIES):
            entry = await self._store.get(_key(name))
            state = self._read(name, entry)
            if (state.controller_id, state.controller_incarnation) == (self._id, incarnation):
                return state, entry.revision
            await self._check_free(state)
            before = state.controller_id
            state.controller_id, state.controller_incarnation = self._id, incarnation
            try:
                revision = await self._store.put(_key(name), encode_group(state), entry.revision)
            except Conflict:
                continue
            self._on_event(GroupTaken(name, self._id, before))
            return state, revision
        raise GroupUnavailableError(f"group {name!r} changes all the time: ask again")

    async def _check_free(self, state: GroupState) -> None:
        if await self._keeper.lives(state.controller_id, state.controller_incarnation):
            raise NotControllerError(
                f"the controller of group {state.name!r} is {state.controller_id!r}, not {self._id!r}"
            )
        if state.assignor not in self._assignors:
            raise GroupUnavailableError(
                f"the controller of group {state.name!r} is gone, and {self._id!r} has no assignor "
                f"{state.assignor!r}"
            )

    def _read(self, name: str, entry: Entry) -> GroupState:
        if entry.value is None:
            raise UnknownGroupError(f"there is no group {name!r}: create it first")
        return decode_group(entry.value)

    def _stored(self, host: GroupHost) -> None:
        state, failure = host.group.state, host.group.assignor_failure
        if failure is not None:
            host.group.assignor_failure = None
            self._on_event(AssignorFailed(state.name, state.assignor, failure))
        self._on_changed(state)

    def _ended(self, host: GroupHost) -> None:
        if self._hosts.get(host.name) is host:
            del self._hosts[host.name]

    # What clients ask for

    async def create(self, definition: Definition) -> GroupState:
        """Make a group, unless it is there and as it should be.

        Raises:
            GroupExistsError: It is defined otherwise.
            GroupRequestError: The definition makes no sense.
            GroupUnavailableError: It could not be stored.
        """
        if definition.assignor not in self._assignors:
            expected = ", ".join(map(repr, self._assignors))
            raise GroupRequestError(f"assignor={definition.assignor!r}: this coordinator has {expected}")
        for _ in range(_TRIES):
            state = definition.state()
            entry = await self._store.get(_key(definition.name))
            if entry.value is not None:
                return _same(decode_group(entry.value), definition)
            # Every generation is one write at least, so that no group of that name ever had a higher one.
            state.generation = await self._store.last_sequence()
            chosen = self._keeper.peers.choose(state.name, state.assignor)
            if chosen is None or chosen.id == self._id:
                state.controller_id, state.controller_incarnation = self._id, self._keeper.incarnation
            else:
                state.controller_id, state.controller_incarnation = chosen.id, chosen.incarnation
            try:
                await self._store.put(_key(state.name), encode_group(state), entry.revision)
            except Conflict:
                continue
            return state
        raise GroupUnavailableError(f"group {definition.name!r} changes all the time: ask again")

    async def list(self, names: Iterable[str]) -> dict[str, GroupState | GroupError]:
        """Groups by name, or why there is none; all groups if no names are given.

        Raises:
            GroupUnavailableError: The bucket could not be read.
        """
        wanted = list(dict.fromkeys(names))
        if not wanted:
            entries = await self._store.all(KIND)
            states = [decode_group(entry.value) for entry in entries.values() if entry.value is not None]
            return {state.name: state for state in sorted(states, key=lambda state: state.name)}
        found = await _at_once([lambda name=name: self._look(name) for name in wanted])  # type: ignore[misc]
        return dict(zip(wanted, found, strict=True))

    async def _look(self, name: str) -> GroupState | GroupError:
        """A group with a controller that lives, if any coordinator can be it."""
        host = self._hosts.get(name)
        if host is not None and (state := host.stored()) is not None:
            return state
        # Many members that look for their controller at once need not be looked for one by one.
        task = self._looking.get(name)
        if task is None:
            task = self._looking[name] = asyncio.create_task(self._look_up(name))
            task.add_done_callback(lambda _: self._looking.pop(name, None))
        return await asyncio.shield(task)

    async def _look_up(self, name: str) -> GroupState | GroupError:
        try:
            check_id("group", name)
            state = self._read(name, await self._store.get(_key(name)))
            is_mine = state.controller_id == self._id
            if not is_mine and await self._keeper.lives(state.controller_id, state.controller_incarnation):
                return state
            with contextlib.suppress(NotControllerError):  # where somebody else was quicker
                await self.host(name)
            return self._read(name, await self._store.get(_key(name)))
        except GroupError as exc:
            return exc

    async def delete(self, name: str) -> None:
        """Delete a group.

        Raises:
            GroupNotEmptyError: It has members.
            EphemeralGroupError: It goes by itself.
            UnknownGroupError, NotControllerError, GroupUnavailableError: As for :meth:`host`.
        """

        def remove(group: Group, _: float) -> None:
            if group.state.ephemeral:
                raise EphemeralGroupError(f"group {name!r} is ephemeral: it goes with its last member")
            if group.state.members:
                count = len(group.state.members)
                raise GroupNotEmptyError(f"group {name!r} has {count} members: they must leave first")
            group.gone = group.changed = True

        await (await self.host(name)).run(remove)

    # Other coordinators come and go

    async def adopt_orphans(self) -> None:
        """Take the groups whose controllers are gone, those that fall to this coordinator.

        Raises:
            GroupUnavailableError: The bucket could not be read.
        """
        orphans = []
        for entry in (await self._store.all(KIND)).values():
            assert entry.value is not None
            state = decode_group(entry.value)
            owner = state.controller_id, state.controller_incarnation
            is_mine = owner == (self._id, self._keeper.incarnation)
            if (is_mine and not state.members) or state.assignor not in self._assignors:
                continue  # nothing happens to it until somebody asks for it
            chosen = self._keeper.peers.choose(state.name, state.assignor)
            is_free = not self._keeper.peers.lives(*owner) and (chosen is None or chosen.id == self._id)
            if is_mine or is_free:
                orphans.append(state.name)
        await _at_once([lambda name=name: self._adopt(name) for name in orphans])  # type: ignore[misc]

    async def _adopt(self, name: str) -> None:
        try:
            await self.host(name)
        except (NotControllerError, UnknownGroupError):
            return  # somebody else was quicker

    def restart(self) -> None:
        """Give every member of every group a whole session timeout."""
        for host in self._hosts.values():
            host.restart()

    async def drop_all(self, error: GroupError) -> None:
        """End all groups here; they stay as they are stored."""
        opening: list[asyncio.Task[Any]] = [*self._opening.values(), *self._looking.values()]
        for task in opening:
            task.cancel()
        hosts = list(self._hosts.values())
        self._hosts.clear()
        for host in hosts:
            await host.close(error)
        if opening:
            await asyncio.wait(opening)


def _key(name: str) -> str:
    return f"{KIND}.{token_of(name)}"


def _same(state: GroupState, definition: Definition) -> GroupState:
    wanted = definition.state()
    for what in ("session_timeout", "ephemeral", "assignor", "immediate"):
        if getattr(state, what) != getattr(wanted, what):
            raise GroupExistsError(
                f"group {state.name!r} exists with {what}={getattr(state, what)!r}, "
                f"not {getattr(wanted, what)!r}"
            )
    for name, spec in wanted.topics.items():
        if state.topics.get(name) != spec:
            raise GroupExistsError(
                f"group {state.name!r} exists with topic {name!r} otherwise, or without it"
            )
    return state


async def _at_once(work: list[Callable[[], Awaitable[_T]]]) -> list[_T]:
    """Do many things, a few at a time; if one fails, the first failure is raised when all are done."""
    room = asyncio.Semaphore(_AT_ONCE)

    async def one(do: Callable[[], Awaitable[_T]]) -> _T:
        async with room:
            return await do()

    tasks = [asyncio.ensure_future(one(do)) for do in work]
    try:
        if tasks:
            await asyncio.wait(tasks)
    finally:
        for task in tasks:
            task.cancel()  # nothing, unless it was cancelled itself
    return [task.result() for task in tasks]

"""Directory of all groups in the bucket, and of those that this coordinator controls."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from liftenvelope.errors import GroupError, WrongLastSequenceError
from liftenvelope.group._controller.concurrency import at_once
from liftenvelope.group._controller.host import GroupHost
from liftenvelope.group._controller.keeping import LeaseKeeper
from liftenvelope.group._controller.offsets import OffsetKeys
from liftenvelope.group._controller.store import GroupStore
from liftenvelope.group._event_log import log
from liftenvelope.group.assignors import Assignor
from liftenvelope.group.errors import (
    CoordinatorDefectError,
    EphemeralGroupError,
    GroupExistsError,
    GroupNotEmptyError,
    GroupRequestError,
    GroupUnavailableError,
    NotControllerError,
    UnknownGroupError,
)
from liftenvelope.group.events import AssignorFailed, GroupEventHandler, GroupTaken, MemberExpired
from liftenvelope.group.membership import Group
from liftenvelope.group.names import token_of
from liftenvelope.group.state import (
    GroupState,
    TopicSpec,
    check_id,
    check_session_timeout,
    check_topics,
)
from liftenvelope.group.wire import decode_group, encode_group
from liftenvelope.jetstream.bucket import BucketEntry

__all__ = ["KIND", "Definition", "Directory"]

_T = TypeVar("_T")

#: First token of the keys of groups.
KIND: Final = "group"
#: Attempts of a change that loses against concurrent writers.
_TRIES: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """Definition of a group.

    Attributes:
        name: Name of the group.
        session_timeout: Default session timeout of members, in seconds.
        topics: Topics of the group.
        ephemeral: Delete the group when its last member leaves.
        assignor: Name of the assignor.
        immediate: Move partitions without asking the members first.
    """

    name: str
    session_timeout: float
    topics: tuple[TopicSpec, ...] = ()
    ephemeral: bool = False
    assignor: str = "sticky"
    immediate: bool = False

    def state(self) -> GroupState:
        """Return the initial state of the group.

        Raises:
            GroupRequestError, GroupLimitError: The definition is malformed or too large.
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
    """All groups in the bucket. Only the controller of a group changes the group's key.

    A group's key names its controller by id and incarnation. A coordinator takes a group over by writing its
    own id and incarnation with the revision that it read, and only if the previous controller's lease is
    gone. Compare-and-set lets one of several contenders win, and makes every later write of the previous
    controller fail.

    Args:
        coordinator_id: Id of this coordinator.
        store: The bucket.
        keeper: Keeper of this coordinator's lease.
        assignors: Assignors by name.
        on_changed: Called after a change of a group controlled here was stored.
        on_event: Handler of background events.
    """

    def __init__(
        self,
        coordinator_id: str,
        store: GroupStore,
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
        """Groups that this coordinator controls and has loaded, by name."""
        return self._hosts

    # One group

    async def host(self, name: str) -> GroupHost:
        """Return a group that this coordinator controls; take it over if it is free.

        Raises:
            UnknownGroupError: The group does not exist.
            NotControllerError: Another coordinator controls the group.
            GroupUnavailableError: The controller could not be determined.
        """
        if (host := self._hosts.get(name)) is not None:
            return host
        check_id("group", name)
        task = self._opening.get(name)
        if task is None:
            task = self._opening[name] = asyncio.create_task(self._open(name))
            task.add_done_callback(lambda done: self._opened(name, done))
        return await _result_of(task)

    def _opened(self, name: str, task: asyncio.Task[GroupHost]) -> None:
        self._opening.pop(name, None)
        if not task.cancelled():
            task.exception()  # retrieved here, because there may be no caller left to see it

    async def _open(self, name: str) -> GroupHost:
        incarnation = self._keeper.incarnation
        state, revision = await self._own(name, incarnation)
        offsets = OffsetKeys(self._store, token_of(name), _key(name))
        state.offsets |= await offsets.read(state.offsets_revision, revision)
        if incarnation != self._keeper.incarnation or not self._keeper.is_valid:
            raise GroupUnavailableError("the coordinator has lost its lease; retry")
        now = asyncio.get_running_loop().time()
        group = Group(state, now=now, assignors=self._assignors, deals_apart=True)
        host = self._hosts[name] = GroupHost(
            group,
            _key(name),
            revision,
            self._store,
            offsets,
            may_act=lambda: self._keeper.is_valid and incarnation == self._keeper.incarnation,
            on_stored=self._stored,
            on_expired=lambda group, consumer_id: self._on_event(MemberExpired(group, consumer_id)),
            on_end=self._ended,
        )
        return host

    async def _own(self, name: str, incarnation: str) -> tuple[GroupState, int]:
        """Return state and revision of a group, once this coordinator controls it.

        The record is always written, even if this coordinator controls the group already. After that, no
        write to an offset key that still has no answer can be stored.
        """
        for _ in range(_TRIES):
            entry = await self._store.get(_key(name))
            state = self._read(name, entry)
            before, is_mine = state.controller_id, self._controls(state, incarnation)
            if not is_mine:
                await self._check_free(state)
            state.controller_id, state.controller_incarnation = self._id, incarnation
            # A record without this number is of a version without offset keys. It has all offsets.
            # A number above the record's own is of another bucket, or of writes that the server has lost.
            state.offsets_revision = min(state.offsets_revision or entry.revision, entry.revision)
            try:
                revision = await self._store.put(_key(name), encode_group(state), entry.revision)
            except WrongLastSequenceError:
                continue
            if not is_mine:
                self._on_event(GroupTaken(name, self._id, before))
            return state, revision
        raise GroupUnavailableError(f"group {name!r} has too many concurrent changes; retry")

    def _controls(self, state: GroupState, incarnation: str) -> bool:
        return (state.controller_id, state.controller_incarnation) == (self._id, incarnation)

    async def _check_free(self, state: GroupState) -> None:
        if await self._keeper.lives(state.controller_id, state.controller_incarnation):
            raise NotControllerError(
                f"the controller of group {state.name!r} is {state.controller_id!r}, not {self._id!r}"
            )
        if state.assignor not in self._assignors:
            raise GroupUnavailableError(
                f"the controller of group {state.name!r} is gone, and {self._id!r} has no assignor "
                f"{state.assignor!r}; start a coordinator that has it"
            )

    def _read(self, name: str, entry: BucketEntry) -> GroupState:
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

    # Client calls

    async def create(self, definition: Definition) -> GroupState:
        """Create a group, or return the existing one if it has the same definition.

        Raises:
            GroupExistsError: The existing group has another definition.
            GroupRequestError: The definition is malformed.
            GroupUnavailableError: The group could not be stored.
        """
        if definition.assignor not in self._assignors:
            expected = ", ".join(map(repr, self._assignors))
            raise GroupRequestError(f"assignor must be one of {expected}, got {definition.assignor!r}")
        for _ in range(_TRIES):
            state = definition.state()
            entry = await self._store.get(_key(definition.name))
            if entry.value is not None:
                return _same(decode_group(entry.value), definition)
            # Each generation is at least one write, so no earlier group of this name had a higher generation.
            # For the same reason, offset keys that an earlier group left behind do not count.
            state.generation = state.offsets_revision = await self._store.last_revision()
            chosen = self._keeper.peers.choose(state.name, state.assignor)
            if chosen is None or chosen.id == self._id:
                state.controller_id, state.controller_incarnation = self._id, self._keeper.incarnation
            else:
                state.controller_id, state.controller_incarnation = chosen.id, chosen.incarnation
            try:
                await self._store.put(_key(state.name), encode_group(state), entry.revision)
            except WrongLastSequenceError:
                continue
            return state
        raise GroupUnavailableError(f"group {definition.name!r} has too many concurrent changes; retry")

    async def list(self, names: Iterable[str], *, stored: bool = False) -> dict[str, GroupState | GroupError]:
        """Return groups by name, each with its state or an error; all groups if no names are given.

        Args:
            names: Names of groups.
            stored: Return the stored state of named groups, as for all groups, also without a live
                controller. Otherwise a group that is free is taken over.

        Raises:
            GroupUnavailableError: The bucket could not be read.
        """
        wanted = list(dict.fromkeys(names))
        if not wanted:
            states = _readable(await self._store.all(KIND), self._id)
            return {state.name: state for state in sorted(states, key=lambda state: state.name)}
        look = self._stored_state if stored else self._look
        found = await at_once([partial(look, name) for name in wanted])
        return dict(zip(wanted, found, strict=True))

    async def _stored_state(self, name: str) -> GroupState | GroupError:
        """Return a group as it is stored."""
        try:
            check_id("group", name)
            return self._read(name, await self._store.get(_key(name)))
        except GroupError as exc:
            return exc

    async def _look(self, name: str) -> GroupState | GroupError:
        """Return a group with a live controller, if any coordinator can take the group."""
        host = self._hosts.get(name)
        if host is not None and (state := host.stored()) is not None:
            return state
        # Many members may look for their controller at once: one lookup serves them all.
        task = self._looking.get(name)
        if task is None:
            task = self._looking[name] = asyncio.create_task(self._look_up(name))
            task.add_done_callback(lambda _: self._looking.pop(name, None))
        return await _result_of(task)

    async def _look_up(self, name: str) -> GroupState | GroupError:
        try:
            check_id("group", name)
            state = self._read(name, await self._store.get(_key(name)))
            is_mine = state.controller_id == self._id
            if not is_mine and await self._keeper.lives(state.controller_id, state.controller_incarnation):
                return state
            with contextlib.suppress(NotControllerError):  # another coordinator was faster
                await self.host(name)
            return self._read(name, await self._store.get(_key(name)))
        except GroupError as exc:
            return exc

    async def delete(self, name: str) -> None:
        """Delete a group.

        Raises:
            GroupNotEmptyError: The group has members.
            EphemeralGroupError: The group is ephemeral and deletes itself.
            UnknownGroupError, NotControllerError, GroupUnavailableError: As for :meth:`host`.
        """

        def remove(group: Group, _: float) -> None:
            if group.state.ephemeral:
                raise EphemeralGroupError(f"group {name!r} is ephemeral: it is deleted with its last member")
            if group.state.members:
                count = len(group.state.members)
                who = "1 member, which" if count == 1 else f"{count} members, which"
                raise GroupNotEmptyError(f"group {name!r} has {who} must leave first")
            group.gone = group.changed = True

        await (await self.host(name)).run(remove)

    # Changes of the set of coordinators

    async def adopt_orphans(self) -> None:
        """Take over the groups whose controllers are gone and that fall to this coordinator.

        A group that can't be loaded, for example for a damaged offset key, is left out until a call needs it.

        Raises:
            GroupUnavailableError: The bucket could not be read, or not all groups could be taken over.
        """
        orphans = []
        for state in _readable(await self._store.all(KIND), self._id):
            owner = state.controller_id, state.controller_incarnation
            is_mine = owner == (self._id, self._keeper.incarnation)
            if (is_mine and not state.members) or state.assignor not in self._assignors:
                continue  # nothing is due in this group until a call needs it
            chosen = self._keeper.peers.choose(state.name, state.assignor)
            is_free = not self._keeper.peers.lives(*owner) and (chosen is None or chosen.id == self._id)
            if is_mine or is_free:
                orphans.append(state.name)
        await at_once([lambda name=name: self._adopt(name) for name in orphans])  # type: ignore[misc]

    async def _adopt(self, name: str) -> None:
        try:
            await self.host(name)
        except (NotControllerError, UnknownGroupError):
            return  # another coordinator was faster
        except GroupError as exc:
            if exc.retriable:
                raise
            _left_out(self._id, token_of(name), exc)

    def restart(self) -> None:
        """Restart the session timeout of every member of every group."""
        for host in self._hosts.values():
            host.restart()

    async def drop_all(self, error: GroupError) -> None:
        """Stop serving all groups here. Their stored state stays as it is."""
        opening: list[asyncio.Task[Any]] = [*self._opening.values(), *self._looking.values()]
        for task in opening:
            task.cancel()
        hosts = list(self._hosts.values())
        self._hosts.clear()
        for host in hosts:
            await host.close(error)
        if opening:
            await asyncio.wait(opening)


def _readable(entries: Mapping[str, BucketEntry], coordinator_id: str) -> list[GroupState]:
    """Return the groups of all records, but for those that can't be read, such as a later version's."""
    states = []
    for token, entry in entries.items():
        assert entry.value is not None
        try:
            states.append(decode_group(entry.value))
        except CoordinatorDefectError as exc:
            _left_out(coordinator_id, token, exc)
    return states


def _left_out(coordinator_id: str, token: str, error: GroupError) -> None:
    fault = {"coordinator_id": coordinator_id, "key": f"{KIND}.{token}", "error": str(error)}
    log.error("coordinator %(coordinator_id)s: left out %(key)s: %(error)s", fault, extra=fault)


async def _result_of(task: asyncio.Task[_T]) -> _T:
    """Wait for a task that several calls share.

    Raises:
        GroupUnavailableError: The coordinator has cancelled the task.
    """
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        current = asyncio.current_task()
        if task.cancelled() and current is not None and not current.cancelling():
            raise GroupUnavailableError("the coordinator has lost its lease, or is closing; retry") from None
        raise


def _key(name: str) -> str:
    return f"{KIND}.{token_of(name)}"


def _same(state: GroupState, definition: Definition) -> GroupState:
    wanted = definition.state()
    for what in ("session_timeout", "ephemeral", "assignor", "immediate"):
        if getattr(state, what) != getattr(wanted, what):
            raise GroupExistsError(
                f"group {state.name!r} exists with {what}={getattr(state, what)!r}, "
                f"not {getattr(wanted, what)!r}; use that, or another name"
            )
    for name, spec in wanted.topics.items():
        if state.topics.get(name) != spec:
            raise GroupExistsError(
                f"group {state.name!r} exists without topic {name!r}, or with another definition of the topic"
            )
    return state

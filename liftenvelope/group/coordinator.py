"""Coordinator: serves groups over NATS request/reply, alone or together with other coordinators."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Self
from uuid import uuid4

import nats.errors

from liftenvelope._checks import as_inboxes, as_seconds
from liftenvelope.errors import GroupError, UsageError, UsageTypeError
from liftenvelope.group._controller.keeping import LeaseKeeper
from liftenvelope.group._controller.leases import Peer
from liftenvelope.group._controller.store import GroupStore
from liftenvelope.group._event_log import log, logged
from liftenvelope.group._serving import GroupService
from liftenvelope.group._sources import TopicSource
from liftenvelope.group._topics import source_bounds
from liftenvelope.group.assignors import ASSIGNORS, Assignor
from liftenvelope.group.bounds import Bounds, jetstream_bounds
from liftenvelope.group.calls import DEFAULT_PREFIX
from liftenvelope.group.directory import Directory
from liftenvelope.group.errors import GroupUnavailableError
from liftenvelope.group.events import GroupEventHandler, LeaseLost, warn
from liftenvelope.group.names import changed_subject, check_prefix, check_token, controller_subject
from liftenvelope.group.state import GroupState, Phase, TopicSpec
from liftenvelope.jetstream import JetStream
from liftenvelope.nats.replies import ReplySubjects, inbox_prefix_of

if TYPE_CHECKING:
    from types import TracebackType

    from nats.aio.client import Client

__all__ = ["Coordinator"]

_DEFAULT_BUCKET: Final = "liftenvelope-groups"
#: Seconds between attempts to take orphaned groups.
_PAUSE: Final = 0.2


class Coordinator:
    """Serves consumer groups on your own NATS connection. Use it with ``async with``.

    Any number of coordinators may run. Each group has one of them as its controller. If a controller fails,
    the others share its groups. All state is in a KV bucket.

    Args:
        nc: A connected nats-py client.
        coordinator_id: Id of the coordinator, a subject token, unique among coordinators. Default: a new one.
        bucket: Name of the KV bucket. Default ``liftenvelope-groups``.
        prefix: Prefix of the subjects. Default ``liftenvelope.groups``.
        replicas: Replicas of the bucket, if this coordinator creates it. Default 1.
        lease: Seconds without a renewal after which other coordinators take over its groups. Default 2.
            Session timeouts should be three times as long, so that members outlive their controller.
        assignors: Custom assignors by name. Every coordinator that may control their groups needs them.
        sources: Topics outside JetStream, such as a :class:`LiftbridgeTopic`, so that rewinds are clamped to
            existing offsets. For any other topic outside JetStream every offset is accepted.
        bounds: Returns the offset bounds of partitions, in place of ``sources`` and JetStream.
        timeout: Seconds for one request to JetStream. Default 5.
        domain: JetStream domain of the bucket. Default: the server's own.
        on_event: Called with background events. Its exceptions go to the event loop's exception handler.
            Default: warns of assignors that fail.
        allowed_inboxes: Prefixes of the inboxes of members and clients, besides ``_INBOX.``, ``_INBOX_`` and
            the prefix of the inboxes of ``nc``. Needed if they connect with another
            ``nats.connect(inbox_prefix=...)``. A request with another reply subject is dropped, so that
            nobody publishes with the coordinator's permissions. ``">"`` allows every subject that is not
            internal. Default: none.

    Raises:
        UsageError: An argument is malformed.
        MissingExtraError: protobuf is not installed.

    Example::

        async with Coordinator(nc) as coordinator:
            print(coordinator.subject)
            await asyncio.Event().wait()
    """

    def __init__(
        self,
        nc: Client,
        *,
        coordinator_id: str | None = None,
        bucket: str = _DEFAULT_BUCKET,
        prefix: str = DEFAULT_PREFIX,
        replicas: int = 1,
        lease: float = 2.0,
        assignors: Mapping[str, Assignor] | None = None,
        sources: Iterable[TopicSource] = (),
        bounds: Bounds | None = None,
        timeout: float = 5.0,
        domain: str | None = None,
        on_event: GroupEventHandler | None = None,
        allowed_inboxes: Iterable[str] = (),
    ) -> None:
        self._nc = nc
        self._id = uuid4().hex if coordinator_id is None else check_token("coordinator_id", coordinator_id)
        self._prefix = check_prefix(prefix)
        self._timeout = as_seconds("timeout", timeout)
        self._assignors = {**ASSIGNORS, **_checked_assignors(assignors or {})}
        self._on_event = warn if on_event is None else on_event
        if not callable(self._on_event):
            raise UsageTypeError(f"on_event must be a function or None, got {on_event!r}")
        self._on_event = logged(self._on_event)
        if type(replicas) is not int or not 1 <= replicas <= 5:
            raise UsageError(f"replicas must be an int from 1 to 5, got {replicas!r}")
        self._js = JetStream(nc, domain=domain, timeout=min(self._timeout, 2 * as_seconds("lease", lease)))
        self._store = GroupStore(self._js, check_token("bucket", bucket), replicas)
        self._peer = Peer(self._id, "", float(lease), frozenset(self._assignors))
        if bounds is None:
            bounds = source_bounds(_checked_sources(sources), jetstream_bounds(self._js))
        elif sources:
            raise UsageError("sources and bounds exclude each other; leave one of them out")
        self._bounds = bounds
        self._allowed_inboxes = as_inboxes("allowed_inboxes", allowed_inboxes)
        self._keeper: LeaseKeeper | None = None
        self._directory: Directory | None = None
        self._service: GroupService | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        # Held during start and close.
        self._changing = asyncio.Lock()

    @property
    def id(self) -> str:
        """Id of the coordinator."""
        return self._id

    @property
    def subject(self) -> str:
        """Subject prefix for calls to this coordinator; the method follows after a dot."""
        return controller_subject(self._prefix, self._id)

    @property
    def has_lease(self) -> bool:
        """True while the lease is valid, so that the coordinator may act."""
        return self._keeper is not None and self._keeper.is_valid

    @property
    def groups(self) -> tuple[str, ...]:
        """Groups that this coordinator controls and has loaded, sorted."""
        return () if self._directory is None else tuple(sorted(self._directory.hosts))

    @property
    def directory(self) -> Directory:
        """Directory of groups, for a server in the same process with calls of its own.

        Raises:
            UsageError: The coordinator has not been started.
        """
        if self._directory is None:
            raise UsageError("the coordinator is not running; use it in an 'async with' block")
        return self._directory

    # Lifecycle

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Claim a lease and start serving.

        Raises:
            GroupUnavailableError: JetStream did not answer in time.
            CoordinatorIdInUseError: Another coordinator uses the id.
            JetStreamError: JetStream refused to create the bucket.
            TransportError: The connection was lost.
            UsageError: The coordinator was started before.
        """
        async with self._changing:
            await self._start()

    async def _start(self) -> None:
        if self._keeper is not None:
            raise UsageError("a coordinator can be started only once; create a new one")
        await self._store.open(self._timeout)
        keeper = self._keeper = LeaseKeeper(
            self._store,
            self._peer,
            self.subject,
            on_lost=self._lost,
            on_regained=self._regained,
            on_others_gone=lambda: self._spawn(self._adopt()),
        )
        self._directory = Directory(
            self._id,
            self._store,
            keeper,
            self._assignors,
            on_changed=self._changed,
            on_event=self._on_event,
        )
        replies = ReplySubjects((inbox_prefix_of(self._nc), *self._allowed_inboxes))
        self._service = GroupService(self._nc, self._prefix, self._id, self._directory, self._bounds, replies)
        try:
            await keeper.claim()
            await self._service.start()
            self._spawn(keeper.keep())
            log.info("coordinator %s: has its lease", self._id, extra={"coordinator_id": self._id})
        except BaseException:
            await self._close()
            raise

    async def close(self) -> None:
        """Stop serving and release the groups, so that others take them at once. Further calls do nothing.

        A call during :meth:`start` waits until the coordinator has started or failed.
        """
        async with self._changing:
            await self._close()

    async def _close(self) -> None:
        keeper, service, directory = self._keeper, self._service, self._directory
        if keeper is None or service is None or directory is None or not self._service:
            return
        self._service = None
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        # From the last to the first, each even if one before it fails or is cancelled.
        async with contextlib.AsyncExitStack() as steps:
            steps.push_async_callback(self._js.close)
            steps.push_async_callback(self._give_up, keeper)
            closing = GroupUnavailableError("the coordinator is closing; retry elsewhere")
            steps.push_async_callback(directory.drop_all, closing)
            steps.push_async_callback(service.stop)
            if tasks:
                await asyncio.wait(tasks)

    async def _give_up(self, keeper: LeaseKeeper) -> None:
        if not self._nc.is_closed:
            with contextlib.suppress(GroupUnavailableError):  # the lease expires by itself
                await keeper.give_up()

    # Callbacks of the lease keeper

    def _lost(self) -> None:
        self._on_event(LeaseLost(self._id))
        error = GroupUnavailableError("the coordinator has lost its lease; retry")
        self._spawn(self.directory.drop_all(error))

    def _regained(self) -> None:
        text = "coordinator %s: the lease had expired and is back"
        log.warning(text, self._id, extra={"coordinator_id": self._id})
        self.directory.restart()
        self._spawn(self._adopt())

    async def _adopt(self) -> None:
        while True:
            try:
                await self.directory.adopt_orphans()
            except GroupError:
                await asyncio.sleep(_PAUSE)  # until JetStream answers
            else:
                return

    def _changed(self, state: GroupState) -> None:
        """Nudge the members to ask at once. If the nudge is lost, their next heartbeat tells them."""
        if state.phase is Phase.STABLE:
            group = {"group": state.name, "generation": state.generation, "members": len(state.members)}
            members = "1 member" if len(state.members) == 1 else f"{len(state.members)} members"
            text = "group %s: generation %d has %s"
            log.info(text, state.name, state.generation, members, extra=group)
        self._spawn(self._nudge(state.name, b"%d %d" % (state.generation, state.phase)))

    async def _nudge(self, name: str, where: bytes) -> None:
        try:
            await self._nc.publish(changed_subject(self._prefix, name), where)
        except (nats.errors.Error, OSError):
            return

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # For a server in the same process

    async def set_topic(self, name: str, spec: TopicSpec | None) -> None:
        """Change a topic's number of partitions, or remove the topic (None), in all groups controlled here.

        Raises:
            GroupError: A group could not be changed. Others may have been.
        """
        for host in list(self.directory.hosts.values()):
            if name in host.group.state.topics:
                await host.run(lambda group, _: group.set_topic(name, spec))


def _checked_sources(sources: Iterable[TopicSource]) -> list[TopicSource]:
    checked = list(sources)
    for source in checked:
        if not isinstance(source, TopicSource):
            raise UsageTypeError(f"sources must be TopicSources, got {source!r}")
    return checked


def _checked_assignors(assignors: Mapping[str, Assignor]) -> dict[str, Assignor]:
    for name, assignor in assignors.items():
        check_token("assignors", name)
        if not callable(assignor):
            raise UsageTypeError(f"assignors: {name!r} must be a function, got {assignor!r}")
        if name in ASSIGNORS:
            raise UsageError(f"assignors: {name!r} is the name of a built-in assignor; use another name")
    return dict(assignors)

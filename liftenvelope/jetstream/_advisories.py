"""JetStream advisories, as typed events.

Servers publish an advisory when a client is pinned or unpinned, when a consumer is created, deleted, paused
or resumed, when a message is given up, and when a stream is changed or loses its quorum. A reader needs
permission to subscribe to ``$JS.EVENT.ADVISORY``.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from liftenvelope._checks import as_count
from liftenvelope.errors import ConnectionClosedError, TransportError, UsageError
from liftenvelope.jetstream._records import read_moment
from liftenvelope.jetstream.names import check_consumer_name, check_filter, check_stream_name
from liftenvelope.jetstream.watch import watch_of
from liftenvelope.nats.link import Link
from liftenvelope.nats.subscribing import Subscribing, subscribing_on

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

__all__ = [
    "Advisories",
    "Advisory",
    "ConsumerCreatedAdvisory",
    "ConsumerDeletedAdvisory",
    "ConsumerPausedAdvisory",
    "LostAdvisories",
    "MaxDeliveriesAdvisory",
    "MessageTerminatedAdvisory",
    "PinnedAdvisory",
    "UnpinnedAdvisory",
    "read_advisory",
]

_TYPE: Final = "io.nats.jetstream.advisory.v1."
#: Timeout in seconds for the server to confirm a subscription.
_BARRIER: Final = 5.0
#: Default maximum number of unread advisories.
_MAX_WAITING: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Advisory:
    """Advisory of a server. Base class, and the class of advisories without a class of their own.

    Attributes:
        type: Type of the advisory without its common prefix, such as ``consumer_group_pinned``.
        id: Id of the advisory.
        time: Time of the event in UTC, None if the advisory has no valid time.
        stream: Stream name, empty if the advisory has none.
        consumer: Consumer name, empty if the advisory has none.
        data: Complete JSON object of the advisory.
    """

    kinds: ClassVar[frozenset[str]] = frozenset()

    type: str
    id: str = ""
    time: datetime | None = None
    stream: str = ""
    consumer: str = ""
    data: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def own(cls, data: Mapping[str, Any]) -> dict[str, Any]:
        """Read the attributes specific to this class from the JSON object."""
        del data
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedAdvisory(Advisory):
    """A client of a priority group was pinned.

    Attributes:
        group: Priority group.
        pinned_id: Id of the pin.
    """

    kinds: ClassVar[frozenset[str]] = frozenset({"consumer_group_pinned"})

    group: str
    pinned_id: str

    @classmethod
    def own(cls, data: Mapping[str, Any]) -> dict[str, Any]:
        """Read the group and the pin id."""
        return {"group": str(data.get("group", "")), "pinned_id": str(data.get("pinned_id", ""))}


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpinnedAdvisory(Advisory):
    """A client of a priority group is no longer pinned.

    Attributes:
        group: Priority group.
        reason: ``admin`` after an unpin request, ``timeout`` if the client was inactive.
    """

    kinds: ClassVar[frozenset[str]] = frozenset({"consumer_group_unpinned"})

    group: str
    reason: str

    @classmethod
    def own(cls, data: Mapping[str, Any]) -> dict[str, Any]:
        """Read the group and the reason."""
        return {"group": str(data.get("group", "")), "reason": str(data.get("reason", ""))}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerCreatedAdvisory(Advisory):
    """A consumer was created."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerDeletedAdvisory(Advisory):
    """A consumer was deleted by request or because of inactivity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerPausedAdvisory(Advisory):
    """A consumer was paused or resumed.

    Attributes:
        paused: True if the consumer is now paused, false if it was resumed.
    """

    kinds: ClassVar[frozenset[str]] = frozenset({"consumer_pause"})

    paused: bool

    @classmethod
    def own(cls, data: Mapping[str, Any]) -> dict[str, Any]:
        """Read the paused state."""
        return {"paused": bool(data.get("paused"))}


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxDeliveriesAdvisory(Advisory):
    """A message reached ``max_deliver`` deliveries without an ack and is given up.

    Attributes:
        stream_sequence: Stream sequence of the message.
        deliveries: Number of deliveries.
    """

    kinds: ClassVar[frozenset[str]] = frozenset({"max_deliver"})

    stream_sequence: int
    deliveries: int

    @classmethod
    def own(cls, data: Mapping[str, Any]) -> dict[str, Any]:
        """Read the sequence and the number of deliveries."""
        return {
            "stream_sequence": int(data.get("stream_seq", 0)),
            "deliveries": int(data.get("deliveries", 0)),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageTerminatedAdvisory(Advisory):
    """A reader terminated a message, which is not redelivered.

    Attributes:
        stream_sequence: Stream sequence of the message.
        deliveries: Number of deliveries.
        reason: Reason given by the reader, empty if none.
    """

    kinds: ClassVar[frozenset[str]] = frozenset({"terminated"})

    stream_sequence: int
    deliveries: int
    reason: str

    @classmethod
    def own(cls, data: Mapping[str, Any]) -> dict[str, Any]:
        """Read the sequence, the number of deliveries and the reason."""
        return {
            "stream_sequence": int(data.get("stream_seq", 0)),
            "deliveries": int(data.get("deliveries", 0)),
            "reason": str(data.get("reason", "")),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class LostAdvisories(Advisory):
    """Marks a gap in the advisories. Created by the client, not by a server.

    Attributes:
        count: Number of advisories dropped because the reader was too slow. None if the connection was down,
            so that the number is unknown.
    """

    type: str = "lost"
    count: int | None = None


_CLASSES: Final[dict[str, type[Advisory]]] = {
    kind: each
    for each in (
        PinnedAdvisory,
        UnpinnedAdvisory,
        ConsumerPausedAdvisory,
        MaxDeliveriesAdvisory,
        MessageTerminatedAdvisory,
    )
    for kind in each.kinds
}
#: Creation and deletion share the type ``consumer_action`` and differ in the action.
_ACTIONS: Final[dict[str, type[Advisory]]] = {
    "create": ConsumerCreatedAdvisory,
    "delete": ConsumerDeletedAdvisory,
}


def read_advisory(payload: bytes) -> Advisory:
    """Parse the JSON of an advisory; an unknown type gives a plain :class:`Advisory`.

    Raises:
        UsageError: The payload is not an advisory.

    Example:
        >>> read_advisory(b'{"type":"io.nats.jetstream.advisory.v1.consumer_group_unpinned","stream":"S",'
        ...     b'"consumer":"C","group":"jobs","reason":"admin"}')
        UnpinnedAdvisory(type='consumer_group_unpinned', id='', time=None, stream='S', consumer='C', \
group='jobs', reason='admin')
    """
    try:
        data = json.loads(payload)
    except (ValueError, RecursionError):
        raise UsageError(f"an advisory must be JSON, got {payload[:60]!r}") from None
    if not isinstance(data, dict) or not isinstance(data.get("type"), str):
        raise UsageError(f"an advisory must have a type, got {payload[:60]!r}")
    kind = data["type"].removeprefix(_TYPE)
    chosen = _CLASSES.get(kind, Advisory)
    if kind == "consumer_action":
        chosen = _ACTIONS.get(str(data.get("action")), Advisory)
    try:
        own = chosen.own(data)
    except (TypeError, ValueError, OverflowError):  # a field has another type than this version expects
        chosen, own = Advisory, {}
    return chosen(
        type=kind,
        id=str(data.get("id", "")),
        time=_time_of(data.get("timestamp")),
        stream=str(data.get("stream", "")),
        consumer=str(data.get("consumer", "")),
        data=data,
        **own,
    )


def _time_of(text: object) -> datetime | None:
    """Parse RFC 3339; anything else gives None."""
    try:
        return read_moment(text) if isinstance(text, str) else None
    except ValueError:
        return None


class Advisories:
    """Iterates over advisories, about consumers or all, starting when the ``async with`` is entered.

    Servers have no backpressure for advisories. Up to ``max_waiting`` unread advisories are buffered. Beyond
    that the oldest ones are dropped, and the next one read is a :class:`LostAdvisories` with their number.
    After a lost connection the iterator yields a :class:`LostAdvisories` without a number.

    Args:
        nc: Connected nats-py client. The client is never closed here.
        stream: Stream to report on. Default: all streams.
        consumer: Consumer of the stream to report on. Default: all consumers.
        prefix: Subject prefix of the advisories. Default ``$JS.EVENT.ADVISORY``; accounts that import
            advisories may use another one.
        consumers_only: True, the default, for advisories about consumers. False for all: also about streams,
            snapshots, leaders and servers, and the audit of each API request.
        max_waiting: Maximum number of unread advisories. Default 10,000.

    Attributes:
        dropped: Number of advisories dropped so far.

    Raises:
        UsageError: A name is invalid, a consumer is given without its stream, or ``max_waiting`` is less
            than 1.
        PermissionDeniedError: On entering: the user may not subscribe to the advisories.

    Example::

        async with Advisories(nc, stream="orders") as advisories:
            async for advisory in advisories:
                if isinstance(advisory, PinnedAdvisory):
                    print(advisory.group, advisory.pinned_id)
    """

    def __init__(
        self,
        nc: Client,
        *,
        stream: str | None = None,
        consumer: str | None = None,
        prefix: str = "$JS.EVENT.ADVISORY",
        consumers_only: bool = True,
        max_waiting: int = _MAX_WAITING,
    ) -> None:
        if consumer is not None and stream is None:
            raise UsageError(f"stream must be given with consumer {consumer!r}, got None")
        self._stream = None if stream is None else check_stream_name(stream)
        self._consumer = None if consumer is None else check_consumer_name(consumer)
        self._max_waiting = as_count("max_waiting", max_waiting)
        self._nc = nc
        self._link = Link(nc)
        self._watch = watch_of(nc)
        self._subject = f"{check_filter(prefix)}.{'CONSUMER.' if consumers_only else ''}>"
        self._subscription: Subscription | None = None
        self._waiting: deque[Advisory] = deque()
        self._lost = 0
        self._arrived = asyncio.Event()
        self._ended = False
        self._error: ConnectionClosedError | None = None
        # Runs after a return of the connection until the server has the subscription again.
        self._returning: asyncio.Task[None] | None = None
        # Epoch of the last connection whose gap was told, or of the one that was up on entering.
        self._epoch = 0
        self.dropped = 0

    async def __aenter__(self) -> Self:
        async with subscribing_on(self._nc, self._subject) as subscribing:
            await self._start(subscribing)
        return self

    async def _start(self, subscribing: Subscribing) -> None:
        if self._subscription is not None or self._ended:
            raise UsageError("Advisories can be entered once, and was entered before: make a new one")
        self._link.check_open()
        self._epoch = self._link.epoch - (not self._link.is_connected)
        self._subscription = await self._link.subscribe(self._subject, self._take)
        try:
            self._watch.add(self)
            if self._link.is_connected:
                await self._link.barrier(_BARRIER)  # events from now on are received
                subscribing.check()
        except BaseException:
            await self.__aexit__()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._end(None)
        if self._subscription is not None:
            await self._link.unsubscribe(self._subscription)

    async def _take(self, msg: Msg) -> None:
        self._tell_gap()  # the server has the subscription
        advisory = read_advisory(msg.data)
        if self._stream is not None and advisory.stream != self._stream:
            return
        if self._consumer is not None and advisory.consumer != self._consumer:
            return
        self._add(advisory)

    def _add(self, advisory: Advisory) -> None:
        if len(self._waiting) >= self._max_waiting:
            self._waiting.popleft()
            self._lost += 1
            self.dropped += 1
        self._waiting.append(advisory)
        self._arrived.set()

    def lost(self) -> None:
        """Handle a lost connection: nothing to do until the connection is back."""

    def restored(self) -> None:
        """Handle a restored or replaced connection: report a gap once the server has the subscription again.

        What servers tell until then is lost as well.
        """
        if self._returning is not None:
            self._returning.cancel()
        self._returning = asyncio.create_task(self._await_subscription(), name="subscription of advisories")

    async def _await_subscription(self) -> None:
        epoch = self._link.epoch
        try:
            await self._link.barrier(_BARRIER)
        except TransportError:
            if self._link.epoch > epoch:
                return  # lost again: the gap is told once the connection is back
        self._tell_gap()

    def _tell_gap(self) -> None:
        """Report the gap that a lost connection left, unless it was told. Only while the connection is up."""
        if (epoch := self._link.epoch) > self._epoch and self._link.is_connected:
            self._epoch = epoch
            self._add(LostAdvisories())

    def gone(self, reason: str) -> None:
        """End the iteration with an error: the connection is closed or draining."""
        self._end(ConnectionClosedError(reason))

    def _end(self, error: ConnectionClosedError | None) -> None:
        if not self._ended:
            self._ended, self._error = True, error
            self._watch.remove(self)
            if self._returning is not None:
                self._returning.cancel()
            self._arrived.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Advisory:
        while not self._waiting:
            if self._error is not None:
                raise self._error
            if self._ended:
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()
        if self._lost:
            count, self._lost = self._lost, 0
            return LostAdvisories(count=count)
        return self._waiting.popleft()

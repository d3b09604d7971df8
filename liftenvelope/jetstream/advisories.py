"""What JetStream tells the world about its consumers, as typed events.

Servers publish an advisory when a client is pinned or unpinned, a consumer is made, deleted or paused, and
when a message is given up. Anyone with the right to subscribe to ``$JS.EVENT.ADVISORY`` can listen.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from liftenvelope.errors import ConnectionClosedError, UsageError
from liftenvelope.jetstream._names import check_consumer_name, check_filter, check_stream_name
from liftenvelope.jetstream._records import integer
from liftenvelope.jetstream._watch import watch_of
from liftenvelope.nats._link import Link

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
#: How long the server may take to note a subscription, in seconds.
_BARRIER: Final = 5.0
#: How many advisories wait for a reader at most, by default.
_MAX_WAITING: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Advisory:
    """What a server told; of a kind that has no class of its own, if it is of this one.

    Attributes:
        type: The kind in the server's words, such as ``consumer_group_pinned``.
        id: The advisory's own id.
        time: When it happened, in UTC.
        stream: The stream, empty if it names none.
        consumer: The consumer, empty if it names none.
        data: Everything that the server told.
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
        """The values of a kind's own attributes."""
        del data
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedAdvisory(Advisory):
    """A client of a priority group was pinned.

    Attributes:
        group: The priority group.
        pinned_id: The id of the pin.
    """

    kinds: ClassVar[frozenset[str]] = frozenset({"consumer_group_pinned"})

    group: str
    pinned_id: str

    @classmethod
    def own(cls, data: Mapping[str, Any]) -> dict[str, Any]:
        """The group and the id of the pin."""
        return {"group": str(data.get("group", "")), "pinned_id": str(data.get("pinned_id", ""))}


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpinnedAdvisory(Advisory):
    """A client of a priority group is no longer pinned.

    Attributes:
        group: The priority group.
        reason: ``admin`` if somebody asked for it, ``timeout`` if the client fell silent.
    """

    kinds: ClassVar[frozenset[str]] = frozenset({"consumer_group_unpinned"})

    group: str
    reason: str

    @classmethod
    def own(cls, data: Mapping[str, Any]) -> dict[str, Any]:
        """The group and the reason."""
        return {"group": str(data.get("group", "")), "reason": str(data.get("reason", ""))}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerCreatedAdvisory(Advisory):
    """A consumer was made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerDeletedAdvisory(Advisory):
    """A consumer was deleted, or removed for nobody used it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerPausedAdvisory(Advisory):
    """A consumer was paused, or goes on.

    Attributes:
        paused: Which of both.
    """

    kinds: ClassVar[frozenset[str]] = frozenset({"consumer_pause"})

    paused: bool

    @classmethod
    def own(cls, data: Mapping[str, Any]) -> dict[str, Any]:
        """Whether it is paused."""
        return {"paused": bool(data.get("paused"))}


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxDeliveriesAdvisory(Advisory):
    """A message was delivered as often as ``max_deliver`` allows, and is given up.

    Attributes:
        stream_sequence: The message's sequence in the stream.
        deliveries: How often it was delivered.
    """

    kinds: ClassVar[frozenset[str]] = frozenset({"max_deliver"})

    stream_sequence: int
    deliveries: int

    @classmethod
    def own(cls, data: Mapping[str, Any]) -> dict[str, Any]:
        """The sequence and the count."""
        return {
            "stream_sequence": int(data.get("stream_seq", 0)),
            "deliveries": int(data.get("deliveries", 0)),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageTerminatedAdvisory(Advisory):
    """A reader has given a message up.

    Attributes:
        stream_sequence: The message's sequence in the stream.
        deliveries: How often it was delivered.
        reason: What the reader said, empty if nothing.
    """

    kinds: ClassVar[frozenset[str]] = frozenset({"terminated"})

    stream_sequence: int
    deliveries: int
    reason: str

    @classmethod
    def own(cls, data: Mapping[str, Any]) -> dict[str, Any]:
        """The sequence, the count and the reason."""
        return {
            "stream_sequence": int(data.get("stream_seq", 0)),
            "deliveries": int(data.get("deliveries", 0)),
            "reason": str(data.get("reason", "")),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class LostAdvisories(Advisory):
    """No server tells this: some advisories did not get here, and would have come at this place.

    Attributes:
        count: How many were dropped, because nobody took them. None if nobody can tell, because the
            connection was down.
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
#: Two things are of one type, and told apart by their action.
_ACTIONS: Final[dict[str, type[Advisory]]] = {
    "create": ConsumerCreatedAdvisory,
    "delete": ConsumerDeletedAdvisory,
}


def read_advisory(payload: bytes) -> Advisory:
    """An advisory from its JSON; of a kind that this version does not know, a plain :class:`Advisory`.

    Raises:
        UsageError: It is none.

    Example:
        >>> read_advisory(b'{"type":"io.nats.jetstream.advisory.v1.consumer_group_unpinned","stream":"S",'
        ...     b'"consumer":"C","group":"jobs","reason":"admin"}')
        UnpinnedAdvisory(type='consumer_group_unpinned', id='', time=None, stream='S', consumer='C', \
group='jobs', reason='admin')
    """
    try:
        data = json.loads(payload)
    except (ValueError, RecursionError):
        raise UsageError(f"an advisory is JSON, unlike {payload[:60]!r}") from None
    if not isinstance(data, dict) or not isinstance(data.get("type"), str):
        raise UsageError(f"an advisory has a type, unlike {payload[:60]!r}")
    kind = data["type"].removeprefix(_TYPE)
    chosen = _CLASSES.get(kind, Advisory)
    if kind == "consumer_action":
        chosen = _ACTIONS.get(str(data.get("action")), Advisory)
    try:
        own = chosen.own(data)
    except (TypeError, ValueError):  # of a server that means something else by it
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
    """A moment of RFC 3339; digits after the microseconds are dropped."""
    if not isinstance(text, str):
        return None
    head, dot, tail = text.partition(".")
    digits = tail[: len(tail) - len(tail.lstrip("0123456789"))]
    try:
        return datetime.fromisoformat(head + dot + digits[:6] + tail[len(digits) :])
    except ValueError:
        return None


class Advisories:
    """The advisories about consumers, from when the ``async with`` is entered.

    Servers don't wait for readers. What nobody takes is kept up to ``max_waiting`` advisories; then the
    oldest are dropped, and the next one that is read is a :class:`LostAdvisories` with their number. After a
    lost connection one without a number comes.

    Args:
        nc: A connected nats-py client; it stays yours.
        stream: Only about this stream. Default: all.
        consumer: Only about this consumer of the stream. Default: all.
        prefix: Where they are published. Default ``$JS.EVENT.ADVISORY``; another one where an account
            imports them.
        max_waiting: How many may wait to be read. Default 10,000.

    Attributes:
        dropped: How many have been dropped so far.

    Raises:
        UsageError: A name can't be one, a consumer is given without its stream, or ``max_waiting`` is not
            positive.

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
        max_waiting: int = _MAX_WAITING,
    ) -> None:
        if consumer is not None and stream is None:
            raise UsageError(f"consumer {consumer!r} needs the stream that it is of")
        self._stream = None if stream is None else check_stream_name(stream)
        self._consumer = None if consumer is None else check_consumer_name(consumer)
        self._max_waiting = integer("max_waiting", max_waiting)
        if self._max_waiting < 1:
            raise UsageError(f"max_waiting must be at least 1, not {max_waiting}")
        self._nc = nc
        self._link = Link(nc)
        self._watch = watch_of(nc)
        self._prefix = check_filter(prefix)
        self._subscription: Subscription | None = None
        self._waiting: deque[Advisory] = deque()
        self._lost = 0
        self._arrived = asyncio.Event()
        self._ended = False
        self._error: ConnectionClosedError | None = None
        self.dropped = 0

    async def __aenter__(self) -> Self:
        if self._subscription is not None or self._ended:
            raise UsageError("this was entered before: make a new one")
        self._link.check_open()
        self._subscription = await self._link.subscribe(f"{self._prefix}.CONSUMER.>", self._take)
        try:
            self._watch.add(self)
            if self._link.is_connected:
                await self._link.barrier(_BARRIER)  # what happens from now on is told
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._end(None)
        if self._subscription is not None:
            await self._link.unsubscribe(self._subscription)

    async def _take(self, msg: Msg) -> None:
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
        """The connection is down: what happens now is not told."""

    def restored(self) -> None:
        """The connection is back, or another one is there already."""
        self._add(LostAdvisories())

    def gone(self, reason: str) -> None:
        """The connection is closed or draining."""
        self._end(ConnectionClosedError(reason))

    def _end(self, error: ConnectionClosedError | None) -> None:
        if not self._ended:
            self._ended, self._error = True, error
            self._watch.remove(self)
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

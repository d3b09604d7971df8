"""``next`` with ``prefetch``: one pull brings the messages of several calls.

Invariant: no message stays buffered for longer than half of the time after which the server would redeliver
it. Then all buffered messages are given back with a nak, which counts as a delivery of each. A caller too
slow for so many gets fewer at a time, so that few messages are ever given back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from liftenvelope._checks import as_count
from liftenvelope.errors import (
    CallTimeoutError,
    ConnectionClosedError,
    LiftEnvelopeError,
    TransportError,
    UsageError,
)
from liftenvelope.jetstream._consumer_config import ACK_WAIT, AckPolicy, ConsumerConfig, shortest_wait
from liftenvelope.jetstream._pulling.feed import PullFeed
from liftenvelope.jetstream._pulling.hooks import Hooks
from liftenvelope.jetstream._pulling.options import GroupOptions, PullPlan, consume_plan
from liftenvelope.jetstream._pulling.source import PullSource
from liftenvelope.jetstream.consuming import stop_feed
from liftenvelope.jetstream.watch import reason_of

if TYPE_CHECKING:
    from liftenvelope.jetstream.message import Message

__all__ = ["Prefetchers"]

#: Maximum number of sets of options.
_MOST: Final = 64


class Prefetchers:
    """Buffers of a consumer's calls of ``next``: one for each set of options.

    Args:
        source: Consumer to pull from.
        pins: Ids of the pins that fetches of the consumer hold, by group.
    """

    def __init__(self, source: PullSource, pins: dict[str, str]) -> None:
        self._source, self._pins = source, pins
        self._known: dict[str, _Prefetcher] = {}

    def of(self, config: ConsumerConfig, prefetch: int, group: GroupOptions) -> _Prefetcher:
        """Return the buffer for calls with these options.

        Args:
            config: Configuration of the consumer.
            prefetch: Messages to pull at a time.
            group: Options for the consumer's priority group.

        Raises:
            UsageError: An option is invalid, or the consumer does not redeliver what is given back.
        """
        key = f"{prefetch!r} {group!r}"
        known = self._known.get(key)
        if known is None or (known.config is not config and known.config != config):
            _check(config, prefetch)
            plan_of = partial(_plan, config, group)
            plan_of(prefetch)  # raises for wrong options
            if known is not None or len(self._known) >= _MOST:
                self.give_back()
            known = self._known[key] = _Prefetcher(self._source, self._pins, config, prefetch, plan_of)
        return known

    def give_back(self) -> int:
        """Stop pulling, and nak all buffered messages. Return their number."""
        known, self._known = self._known, {}
        return sum(one.give_back() for one in known.values())


def _check(config: ConsumerConfig, prefetch: int) -> None:
    """Check that a consumer redelivers what is given back."""
    as_count("prefetch", prefetch, 1, config.max_batch or None)  # servers send 0 for no limit
    if config.ack_policy is AckPolicy.NONE:
        raise UsageError(f"prefetch must be 1 for a consumer without acks, got {prefetch}")
    if config.max_deliver == 1:
        raise UsageError(f"prefetch must be 1 for a consumer with max_deliver=1, got {prefetch}")


def _plan(config: ConsumerConfig, group: GroupOptions, amount: int) -> PullPlan:
    """Return the plan of pulls of so many messages, each sent when the messages of the last are taken."""
    return consume_plan(config, max_messages=amount, threshold_messages=1, **group)


class _Prefetcher:
    """Buffer between the pulls and the calls of ``next`` with the same options.

    Args:
        source: Consumer to pull from.
        pins: As for :class:`Prefetchers`.
        config: Configuration of the consumer.
        prefetch: Messages to pull at a time, if the calls are fast enough.
        plan_of: Returns the plan of pulls of so many messages.

    Attributes:
        config: Configuration of the consumer.
    """

    def __init__(
        self,
        source: PullSource,
        pins: dict[str, str],
        config: ConsumerConfig,
        prefetch: int,
        plan_of: Callable[[int], PullPlan],
    ) -> None:
        self.config = config
        self._source, self._pins = source, pins
        self._prefetch = self._size = prefetch
        self._plan_of = plan_of
        self._hold = min(shortest_wait(config), ACK_WAIT) / 2
        self._feed: PullFeed | None = None
        #: Held by the call that waits for the feed; others wait behind it. The buffer is empty meanwhile.
        self._turn = asyncio.Lock()
        #: Loop time when the buffer was empty last, and messages taken since.
        self._empty_at = 0.0
        self._taken = 0
        self._timer: asyncio.TimerHandle | None = None

    async def next(self, timeout: float) -> Message:
        """Return the next message.

        Raises:
            CallTimeoutError: No message came in time.
            TransportError: The connection is down, or closed.
            LiftEnvelopeError: The consumer can't be pulled from.
        """
        nc = self._source.api.nc
        if reason := reason_of(nc):
            raise ConnectionClosedError(reason)
        feed = self._feed
        if feed is not None and feed.buffer and not self._turn.locked() and not self._is_over():
            message = feed.pop()
            self._count(feed)
            return message
        try:
            async with asyncio.timeout(timeout), self._turn:
                return await self._wait()
        except TimeoutError:
            if not nc.is_connected:
                raise TransportError(
                    "the NATS connection is down: nothing can be pulled until it is back"
                ) from None
            raise CallTimeoutError(f"no message came within {timeout} s") from None

    async def _wait(self) -> Message:
        while True:
            if self._is_over():
                self.give_back()
            feed = self._feed or await self._start()
            was_empty = not feed.buffer
            try:
                message = await feed.next()
            except StopAsyncIteration:  # given back meanwhile
                continue
            except LiftEnvelopeError:
                self._feed = None
                raise
            if was_empty:
                self._empty_at = asyncio.get_running_loop().time()
            self._count(feed)
            return message

    async def _start(self) -> PullFeed:
        feed = PullFeed(self._source, self._plan_of(self._size), Hooks(), self._pins)
        try:
            await feed.start()
        except BaseException:
            feed.stop()
            raise
        self._feed = feed
        self._empty_at, self._taken = asyncio.get_running_loop().time(), 0
        self._arm(self._hold)
        return feed

    def _count(self, feed: PullFeed) -> None:
        """Count a message that was taken; ask for more at a time if the calls are fast enough."""
        self._taken += 1
        if not feed.buffer:
            self._empty_at, self._taken = asyncio.get_running_loop().time(), 0
            if self._size < self._prefetch:
                self._size = min(self._prefetch, self._size + max(1, self._size // 8))
                feed.resize(self._size)

    def _is_over(self) -> bool:
        """Return True if buffered messages are too old to be handed out."""
        return asyncio.get_running_loop().time() - self._empty_at >= self._hold

    def _arm(self, seconds: float) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if self._feed is None:
            return
        now = asyncio.get_running_loop().time()
        if self._turn.locked():
            self._empty_at = now
        if (left := self._empty_at + self._hold - now) > 0:
            self._arm(left)
        else:
            self.give_back()

    def give_back(self) -> int:
        """Stop pulling, and nak the buffered messages. Return their number."""
        feed, self._feed = self._feed, None
        if feed is None:
            return 0
        if held := feed.buffered:
            self._size = max(1, self._taken)
        stop_feed(feed, nak=True, unpin=True)
        feed.release()
        return held

"""Fetches of an ordered consumer: each one continues after the last message of the previous one."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from liftenvelope._backoff import Backoff
from liftenvelope.errors import (
    CallTimeoutError,
    ConsumerDeletedError,
    ConsumerExistsError,
    ConsumerNotFoundError,
    LiftEnvelopeError,
    NoJetStreamError,
    StreamNotFoundError,
    TransportError,
    UsageError,
)
from liftenvelope.jetstream._consumer import Consumer
from liftenvelope.jetstream._consumer_config import ConsumerConfig
from liftenvelope.jetstream._ordered.places import OrderedPlaces
from liftenvelope.jetstream._pulling.fetching import Batch
from liftenvelope.jetstream._pulling.options import fetch_plan
from liftenvelope.nats.link import Link

if TYPE_CHECKING:
    from liftenvelope.jetstream.api import Api

__all__ = ["Amount", "OrderedFetches"]

#: Seconds between two checks that the connection of a fetch is still the same.
_LOOK: Final = 0.25
#: Minimum seconds for a request that starts just before the end of a fetch.
_LEAST: Final = 0.05
#: Seconds between heartbeats of the server: its consumer is on one server, whose loss nothing else shows.
_BEAT: Final = 2.0
#: Minimum of these seconds.
_LEAST_BEAT: Final = 0.5
#: Attempts after the end of a fetch at messages that were lost on their way.
_LATE: Final = 3
#: Transient errors: they pass by themselves or with another consumer.
_PASSING: Final = (
    CallTimeoutError,
    ConsumerDeletedError,
    ConsumerExistsError,
    ConsumerNotFoundError,
    NoJetStreamError,
    TransportError,
)


@dataclass(frozen=True, slots=True)
class Amount:
    """Limits of a fetch.

    Attributes:
        messages: Maximum number of messages, None if ``size`` is given.
        size: Maximum number of bytes.
        expires: Seconds to wait; None to take only messages available now.
        idle_heartbeat: Seconds between heartbeats of the server; None for 2, or less if the time is short.
    """

    messages: int | None = None
    size: int | None = None
    expires: float | None = None
    idle_heartbeat: float | None = None


class _OrderedReader:
    """Server-side consumer and the next consumer sequence expected from it."""

    def __init__(self, consumer: Consumer, epoch: int) -> None:
        self.consumer = consumer
        self.epoch = epoch
        self.expected = 1

    def portion(self, amount: Amount, have: int) -> int:
        """Return the number of messages to ask for, within the limit that the server has for one pull."""
        missing = (amount.messages or 0) - have
        most = self.consumer.cached_info.config.max_batch or 0
        return min(missing, most) if most > 0 else missing

    def take(self, batch: Batch, into: Batch) -> bool:
        """Append the messages up to the first gap; return true if the batch had no gap."""
        for message in batch:
            if message.metadata.consumer_sequence != self.expected:
                return False
            self.expected += 1
            into.append(message)
        return True


class OrderedFetches:
    """Runs the fetches of one ordered consumer and keeps their position in the stream.

    Invariant: messages are returned in stream order without a gap. Each message of a server-side consumer
    must carry the next consumer sequence. After a gap, an error or a reconnect, messages may be lost on their
    way. The consumer is then abandoned, and the next one starts after the last message returned.

    Args:
        api: Client for API requests.
        stream: Name of the stream.
        config: Configuration of every consumer, and start position of the first one.
    """

    def __init__(self, api: Api, stream: str, config: ConsumerConfig) -> None:
        self._api = api
        self._nc: Any = api.nc
        self._link = Link(api.nc)
        self._config = config
        self._places = OrderedPlaces(api, stream, config)
        self._reader: _OrderedReader | None = None
        self._sequence = 0
        self._busy = False

    async def fetch(self, amount: Amount) -> Batch:
        """Fetch a batch of messages.

        Raises:
            UsageError: An option is invalid, or another fetch is in progress.
            StreamNotFoundError: The stream does not exist.
            LiftEnvelopeError: As for :meth:`Consumer.fetch`.
        """
        fetch_plan(
            self._config,
            max_messages=amount.messages,
            max_bytes=amount.size,
            expires=amount.expires,
            idle_heartbeat=amount.idle_heartbeat,
        )
        if self._busy:
            raise UsageError(
                "another fetch of this ordered consumer is under way: await it before the next one"
            )
        self._busy = True
        whole = False
        try:
            batch = await self._fill(amount)
            whole = batch.error is None
        finally:
            self._busy = False
            if not whole:  # messages on their way are lost: restart after the last one returned
                self._leave()
        if batch:
            self._sequence = batch[-1].metadata.stream_sequence
        elif batch.error is not None:
            raise batch.error
        return batch

    async def _fill(self, amount: Amount) -> Batch:
        """Fetch until the batch is complete or the time is up; retry transient errors with a backoff."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (self._api.timeout if amount.expires is None else amount.expires)
        into, backoff, late = Batch(), Backoff(first=0.05, longest=2.0), 0
        while True:
            into.error = None
            try:
                if await self._fill_on(amount, into, deadline):
                    return into
                # A gap, or a reconnect: again, at once. Some gaps show only when the time is up.
                late += loop.time() >= deadline
                if late <= _LATE:
                    continue
                if not into:  # an empty batch without an error means that there is no message
                    into.error = CallTimeoutError("messages were lost on their way again and again")
                return into
            except _PASSING as exc:
                self._leave()
                into.error = exc
            except LiftEnvelopeError as exc:
                into.error = exc
                return into
            left = deadline - loop.time()
            if left <= 0 or self._nc.is_closed or self._nc.is_draining:
                return into
            if into and amount.size is not None:  # the bytes left are unknown
                return into
            await asyncio.sleep(min(backoff.next(), left))

    async def _fill_on(self, amount: Amount, into: Batch, deadline: float) -> bool:
        """Fetch from the current or a new consumer; return true if the fetch is complete."""
        reader = await self._ready(into, deadline)
        while True:
            asked = reader.portion(amount, len(into))
            asking = _ask(reader.consumer, amount, asked, deadline)
            batch = await self._unless_lost(asking, reader.epoch)
            if batch is None or not reader.take(batch, into):
                self._leave()
                return bool(into) and amount.size is not None  # the bytes left are unknown
            if batch.error is not None:
                raise batch.error
            if amount.size is not None or len(batch) < asked or len(into) == amount.messages:
                return True

    async def _ready(self, into: Batch, deadline: float) -> _OrderedReader:
        """Return the consumer to fetch from; create one if there is none or the connection is new."""
        if self._reader is not None and self._link.epoch > self._reader.epoch:
            self._leave()  # messages on their way are lost, and without acks the consumer cannot know
        if self._reader is None:
            self._link.check_open()
            if not self._nc.is_connected:
                raise TransportError("the NATS connection is down: nothing can be pulled until it is back")
            epoch = self._link.epoch
            sequence = into[-1].metadata.stream_sequence if into else self._sequence
            left = max(deadline - asyncio.get_running_loop().time(), _LEAST)
            consumer = await self._places.make(sequence, timeout=min(left, self._api.timeout))
            self._reader = _OrderedReader(consumer, epoch)
        return self._reader

    async def _unless_lost(self, work: Coroutine[Any, Any, Batch], epoch: int) -> Batch | None:
        """Await a fetch; return None if the connection is replaced before the fetch ends."""
        fetching = asyncio.ensure_future(work)
        try:
            while not fetching.done():
                await asyncio.wait({fetching}, timeout=_LOOK)
                if not fetching.done() and self._link.epoch > epoch and self._nc.is_connected:
                    return None
            return fetching.result()
        finally:
            fetching.cancel()
            await asyncio.wait({fetching})

    async def close(self) -> None:
        """Delete the current consumer, and wait for the answer.

        Raises:
            JetStreamError, CallTimeoutError, TransportError: The consumer may not be deleted yet.
        """
        reader, self._reader = self._reader, None
        if reader is not None:
            with suppress(ConsumerNotFoundError, StreamNotFoundError):
                await reader.consumer.delete()

    def _leave(self) -> None:
        """Abandon the current consumer; the next fetch creates another one."""
        reader, self._reader = self._reader, None
        if reader is not None:
            self._places.forget(reader.consumer)


def _ask(consumer: Consumer, amount: Amount, messages: int, deadline: float) -> Coroutine[Any, Any, Batch]:
    """Fetch a number of messages, or the bytes of the amount."""
    if amount.expires is None:
        return consumer.fetch_no_wait(messages)
    left = max(deadline - asyncio.get_running_loop().time(), _LEAST)
    wanted = min(_BEAT, left / 2) if amount.idle_heartbeat is None else amount.idle_heartbeat
    beat = wanted if _LEAST_BEAT <= wanted <= left / 2 else None
    if amount.size is not None:
        return consumer.fetch_bytes(amount.size, expires=left, idle_heartbeat=beat)
    return consumer.fetch(messages, expires=left, idle_heartbeat=beat)

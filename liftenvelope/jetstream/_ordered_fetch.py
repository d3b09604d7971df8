"""Fetches of an ordered consumer: each goes on where the last one ended, whatever is lost between."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from liftenvelope.errors import (
    CallTimeoutError,
    ConsumerDeletedError,
    ConsumerExistsError,
    ConsumerNotFoundError,
    LiftEnvelopeError,
    NoJetStreamError,
    TransportError,
    UsageError,
)
from liftenvelope.jetstream._ordered_places import Places
from liftenvelope.jetstream.consumer import Consumer
from liftenvelope.jetstream.consumer_config import ConsumerConfig
from liftenvelope.jetstream.fetching import Batch
from liftenvelope.jetstream.pull_options import fetch_plan
from liftenvelope.nats._link import Link

if TYPE_CHECKING:
    from liftenvelope.jetstream.api import Api

__all__ = ["Amount", "OrderedFetches"]

#: How often a fetch looks whether its connection is still the same, in seconds.
_LOOK: Final = 0.25
#: The first and the longest pause before another consumer is made, in seconds.
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 2.0
#: What goes away with another consumer, or by itself.
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
    """How much a fetch asks for.

    Attributes:
        messages: How many messages at most, None where bytes are given.
        size: How many bytes at most.
        expires: How long to wait, in seconds; None to take what is there.
        idle_heartbeat: How often the server says that it waits, in seconds.
    """

    messages: int | None = None
    size: int | None = None
    expires: float | None = None
    idle_heartbeat: float | None = None


class _Reader:
    """A consumer at the server, and what it delivers next."""

    def __init__(self, consumer: Consumer, epoch: int) -> None:
        self.consumer = consumer
        self.epoch = epoch
        self.expected = 1

    def take(self, batch: Batch, into: Batch) -> bool:
        """Take what is in order; returns whether everything was."""
        for message in batch:
            if message.metadata.consumer_sequence != self.expected:
                return False
            self.expected += 1
            into.append(message)
        return True


class OrderedFetches:
    """The place in the stream that the fetches of one ordered consumer share.

    Args:
        api: The way to the server.
        stream: The stream's name.
        config: What its consumers are like, and where the first one begins.
    """

    def __init__(self, api: Api, stream: str, config: ConsumerConfig) -> None:
        self._api = api
        self._nc: Any = api.nc
        self._link = Link(api.nc)
        self._config = config
        self._places = Places(api, stream, config)
        self._reader: _Reader | None = None
        self._sequence = 0
        self._busy = False

    async def fetch(self, amount: Amount) -> Batch:
        """Get messages.

        Raises:
            UsageError: An option makes no sense, or another fetch is under way.
            StreamNotFoundError: There is no such stream.
            LiftEnvelopeError: As for a fetch of any consumer.
        """
        fetch_plan(
            self._config,
            max_messages=amount.messages,
            max_bytes=amount.size,
            expires=amount.expires,
            idle_heartbeat=amount.idle_heartbeat,
        )
        if self._busy:
            raise UsageError("another fetch of this ordered consumer is under way: one may be at a time")
        self._busy = True
        whole = False
        try:
            batch = await self._fill(amount)
            whole = batch.error is None
        finally:
            self._busy = False
            if not whole:  # what was on its way is lost: begin after what was returned
                self._leave()
        if batch:
            self._sequence = batch[-1].metadata.stream_sequence
        elif batch.error is not None:
            raise batch.error
        return batch

    async def _fill(self, amount: Amount) -> Batch:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (self._api.timeout if amount.expires is None else amount.expires)
        into, pause = Batch(), _FIRST_PAUSE
        while True:
            into.error = None
            try:
                if await self._fill_on(amount, into, deadline):
                    return into
                continue
            except _PASSING as exc:
                self._leave()
                into.error = exc
            except LiftEnvelopeError as exc:
                into.error = exc
                return into
            left = deadline - loop.time()
            if left <= 0 or self._nc.is_closed or self._nc.is_draining:
                return into
            if into and amount.size is not None:  # how much was left is not known
                return into
            await asyncio.sleep(min(pause, left))
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def _fill_on(self, amount: Amount, into: Batch, deadline: float) -> bool:
        """Fetch from the present consumer, or a new one; returns whether that was all."""
        reader = await self._ready(into, deadline)
        batch = await self._unless_lost(_ask(reader.consumer, amount, len(into), deadline), reader.epoch)
        if batch is None or not reader.take(batch, into):
            self._leave()
            return bool(into) and amount.size is not None  # how much was left is not known
        if batch.error is not None:
            raise batch.error
        return True

    async def _ready(self, into: Batch, deadline: float) -> _Reader:
        """The consumer to fetch from."""
        if self._reader is not None and self._link.epoch > self._reader.epoch:
            self._leave()  # what was on its way is lost, of which it knows nothing: it waits for no acks
        if self._reader is None:
            self._link.check_open()
            if not self._nc.is_connected:
                raise TransportError("the NATS connection is down: nothing can be pulled until it is back")
            epoch = self._link.epoch
            sequence = into[-1].metadata.stream_sequence if into else self._sequence
            left = max(deadline - asyncio.get_running_loop().time(), _FIRST_PAUSE)
            consumer = await self._places.make(sequence, timeout=min(left, self._api.timeout))
            self._reader = _Reader(consumer, epoch)
        return self._reader

    async def _unless_lost(self, work: Coroutine[Any, Any, Batch], epoch: int) -> Batch | None:
        """What comes of a fetch, None if there is another connection before it has ended."""
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

    def _leave(self) -> None:
        """Use another consumer from now on."""
        reader, self._reader = self._reader, None
        if reader is not None:
            self._places.forget(reader.consumer)


def _ask(consumer: Consumer, amount: Amount, have: int, deadline: float) -> Coroutine[Any, Any, Batch]:
    """The fetch of what is missing."""
    messages = (amount.messages or 0) - have
    if amount.expires is None:
        return consumer.fetch_no_wait(messages)
    left = max(deadline - asyncio.get_running_loop().time(), _FIRST_PAUSE)
    beat = amount.idle_heartbeat
    if beat is not None and 2 * beat > left:
        beat = None
    if amount.size is not None:
        return consumer.fetch_bytes(amount.size, expires=left, idle_heartbeat=beat)
    return consumer.fetch(messages, expires=left, idle_heartbeat=beat)

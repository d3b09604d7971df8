"""Short-lived consumers of an ordered read: created at a stream position and deleted after use.

A position means nothing in a stream that was created again under the same name. Its first messages would be
skipped, without any error. A stream keeps the time of its creation for life: across restarts, changes of
leaders and of its configuration. So a read notes that time before it creates its first consumer, and goes on
only in a stream with the same time. The two times are compared for equality alone, because they may come from
the clocks of two servers.

A stream in memory keeps that time also when its servers have lost all of its messages by a restart. Its
sequences then begin anew, so it must also reach the position.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import nats.errors

from liftenvelope.errors import (
    CallTimeoutError,
    JetStreamError,
    NoJetStreamError,
    StreamNotFoundError,
)
from liftenvelope.jetstream._consumer import Consumer
from liftenvelope.jetstream._consumer_config import ConsumerConfig, DeliverPolicy
from liftenvelope.jetstream._consumer_requests import create_reader
from liftenvelope.jetstream.abandoned import created_or_removed, in_background
from liftenvelope.jetstream.errors import StreamReplacedError
from liftenvelope.jetstream.infos import StreamInfo
from liftenvelope.nats.reports import violation_in

if TYPE_CHECKING:
    from datetime import datetime

    from liftenvelope.jetstream.api import Api

__all__ = ["OrderedPlaces"]

#: Maximum seconds to wait for the age of a stream: a user may have no permission to ask for it.
_LOOK: Final = 2.0
#: Pauses before each look at a stream that ends before the position: a new leader may not have caught up yet.
_LAGS: Final = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6)


class OrderedPlaces:
    """Creates consumers that start where the previous one stopped.

    Args:
        api: Client for API requests.
        stream: Name of the stream.
        config: Configuration of every consumer, and start position of the first one.
        created: Time when the stream was created, if the caller has just asked for it. It saves a request
            before the first consumer.
    """

    def __init__(
        self, api: Api, stream: str, config: ConsumerConfig, created: datetime | None = None
    ) -> None:
        self._api = api
        self._nc: Any = api.nc
        self._stream = stream
        self._config = config
        self._question = f"STREAM.INFO.{stream}"
        #: Policies NEW and LAST only: stream sequence after which the first consumer started. Later consumers
        #: start after that sequence too. Otherwise they would skip messages stored between the two creations.
        self._began: int | None = None
        #: Time when the stream that is read was created; None if the server has not told.
        self._created: datetime | None = None
        #: The same from the caller, until the first consumer is created.
        self._told = created
        self._removal: asyncio.Task[None] | None = None

    async def make(self, sequence: int, *, timeout: float | None = None) -> Consumer:
        """Create a consumer.

        Args:
            sequence: Stream sequence to start after; 0 to start where the configuration says.
            timeout: Seconds to wait for the answer. Default: the timeout of the API.

        Raises:
            StreamNotFoundError: The stream does not exist.
            StreamReplacedError: It is another stream than the one that was read so far, or has lost its
                messages.
            JetStreamError, CallTimeoutError, TransportError: The consumer was not created, or the outcome is
                unknown. A consumer that is created nevertheless is deleted at once, or once it is inactive.
        """
        name = secrets.token_hex(8)
        config = replace(self._config, name=name)
        goes_on = bool(sequence) or self._began is not None
        known = self._created if goes_on else None
        if known is None:  # asked before: a consumer of an earlier stream would begin in this one
            told, self._told = self._told, None
            self._created = told or await self._creation(timeout)
        if goes_on:
            config = replace(
                config,
                deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
                opt_start_seq=max(sequence, self._began or 0) + 1,
                opt_start_time=None,
            )
        creating = create_reader(self._api, self._stream, config, timeout=timeout)
        info = await created_or_removed(creating, partial(self._remove, name))
        self._config = replace(self._config, inactive_threshold=info.config.inactive_threshold)
        if config.deliver_policy in (DeliverPolicy.NEW, DeliverPolicy.LAST):
            self._began = info.delivered.stream_seq
        consumer = Consumer(self._api, info)
        try:
            if known is not None:
                await self._check_same(known, max(sequence, self._began or 0), timeout)
        except BaseException:
            self.forget(consumer)
            raise
        return consumer

    async def _creation(self, timeout: float | None) -> datetime | None:
        """Return the time when the stream was created; None if the server does not tell.

        Raises:
            StreamNotFoundError: There is no such stream.
            TransportError: The connection is closed or draining, or was closed meanwhile.
        """
        try:
            return (await self._ask(timeout)).created
        except StreamNotFoundError:
            raise
        except (CallTimeoutError, JetStreamError):
            return None  # not permitted, or the server does not answer the creation of the consumer either

    async def _check_same(self, known: datetime, position: int, timeout: float | None) -> None:
        """Check that the stream is the one that was read so far, unless the server does not tell any more.

        Args:
            known: Time when the stream that was read was created.
            position: Sequence that the stream must have reached.
            timeout: Seconds to wait for each answer.

        Raises:
            StreamReplacedError: It is another one, or has lost its messages.
            StreamNotFoundError: It was deleted meanwhile.
            NoJetStreamError, CallTimeoutError, TransportError: There was no answer.
        """
        ends_at = 0
        for pause in _LAGS:
            await asyncio.sleep(pause)
            found = await self._found(timeout)
            if found is None:
                return
            if found.created != known:
                raise StreamReplacedError(
                    404,
                    f"the stream {self._stream!r} was deleted and created again while it was read: "
                    "read it anew",
                )
            ends_at = found.state.last_seq
            if ends_at >= position:
                return
        raise StreamReplacedError(
            404,
            f"the stream {self._stream!r} has lost messages that were read: it ends at {ends_at}, "
            f"before {position}: read it anew",
        )

    async def _found(self, timeout: float | None) -> StreamInfo | None:
        """Return the info of the stream; None if the server does not tell any more."""
        try:
            return await self._ask(timeout)
        except (StreamNotFoundError, NoJetStreamError):
            raise
        except CallTimeoutError as exc:
            if violation_in(str(exc)) is None:
                raise
            return None
        except JetStreamError:
            return None

    async def _ask(self, timeout: float | None) -> StreamInfo:
        seconds = min(self._api.seconds_of(timeout), _LOOK)
        return await self._api.request_as(StreamInfo.from_json, self._question, timeout=seconds)

    def forget(self, consumer: Consumer | None) -> None:
        """Delete a consumer ahead of its inactivity threshold; do not wait for the answer.

        While the connection is down, nats-py keeps the request and sends it on the next connection.
        """
        if consumer is not None and not self._nc.is_closed:
            self._removal = in_background(self._remove(consumer.name))

    async def forgotten(self) -> None:
        """Wait until the last request to delete a consumer is in the buffer of the connection."""
        if self._removal is not None:
            await asyncio.wait({self._removal})

    async def _remove(self, name: str) -> None:
        subject = f"{self._api.prefix}.CONSUMER.DELETE.{self._stream}.{name}"
        try:
            await self._nc.publish(subject, b"", reply=self._nc.new_inbox())
        except nats.errors.Error:
            return  # the connection is failing; the server deletes the consumer once it is inactive

"""Short-lived consumers of an ordered read: created at a stream position and deleted after use.

A position means nothing in a stream that was created again under the same name. Its first messages would be
skipped, without any error. So before a read goes on with another consumer, the stream must be older than a
consumer that the read had before. Both times are the server's.
"""

from __future__ import annotations

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
from liftenvelope.jetstream._consumer_requests import put_consumer
from liftenvelope.jetstream.abandoned import created_or_removed, in_background
from liftenvelope.jetstream.errors import StreamReplacedError
from liftenvelope.jetstream.infos import StreamInfo
from liftenvelope.nats.link import Link

if TYPE_CHECKING:
    from datetime import datetime

    from liftenvelope.jetstream.api import Api

__all__ = ["OrderedPlaces"]

#: Maximum seconds to wait for the age of a stream: a user may have no permission to ask for it.
_LOOK: Final = 2.0


class OrderedPlaces:
    """Creates consumers that start where the previous one stopped.

    Args:
        api: Client for API requests.
        stream: Name of the stream.
        config: Configuration of every consumer, and start position of the first one.
    """

    def __init__(self, api: Api, stream: str, config: ConsumerConfig) -> None:
        self._api = api
        self._nc: Any = api.nc
        self._stream = stream
        self._config = config
        #: Policies NEW and LAST only: stream sequence after which the first consumer started. Later consumers
        #: start after that sequence too. Otherwise they would skip messages stored between the two creations.
        self._began: int | None = None
        #: Time when a consumer of the stream that is read was created; None before the first one.
        self._since: datetime | None = None

    async def make(self, sequence: int, *, timeout: float | None = None) -> Consumer:
        """Create a consumer.

        Args:
            sequence: Stream sequence to start after; 0 to start where the configuration says.
            timeout: Seconds to wait for the answer. Default: the timeout of the API.

        Raises:
            StreamNotFoundError: The stream does not exist.
            StreamReplacedError: It is another stream than the one that was read so far.
            JetStreamError, CallTimeoutError, TransportError: The consumer was not created, or the outcome is
                unknown. A consumer that is created nevertheless is deleted at once, or once it is inactive.
        """
        name = secrets.token_hex(8)
        config = replace(self._config, name=name)
        goes_on = bool(sequence) or self._began is not None
        if goes_on:
            config = replace(
                config,
                deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
                opt_start_seq=max(sequence, self._began or 0) + 1,
                opt_start_time=None,
            )
        creating = put_consumer(self._api, self._stream, config, "create", timeout=timeout)
        info = await created_or_removed(creating, partial(self._remove, name))
        if config.deliver_policy in (DeliverPolicy.NEW, DeliverPolicy.LAST):
            self._began = info.delivered.stream_seq
        consumer = Consumer(self._api, info)
        try:
            if not goes_on or await self._is_the_same(timeout):
                self._since = info.created
        except BaseException:
            self.forget(consumer)
            raise
        return consumer

    async def _is_the_same(self, timeout: float | None) -> bool:
        """Return True if the stream is the one that was read so far, False if the server does not tell.

        Raises:
            StreamReplacedError: It is another one.
            StreamNotFoundError: It was deleted meanwhile.
            NoJetStreamError, CallTimeoutError, TransportError: There was no answer.
        """
        seconds = min(self._api.seconds_of(timeout), _LOOK)
        subject, link = f"STREAM.INFO.{self._stream}", Link(self._nc)
        before = link.report
        try:
            found = await self._api.request_as(StreamInfo.from_json, subject, timeout=seconds)
        except (StreamNotFoundError, NoJetStreamError):
            raise
        except CallTimeoutError:
            if not link.refusal(f"{self._api.prefix}.{subject}", since=before):
                raise
            return False  # not permitted: the next consumer is compared with the same time
        except JetStreamError:
            return False
        if found.created is not None and self._since is not None and found.created > self._since:
            text = (
                f"the stream {self._stream!r} was deleted and created again while it was read: read it anew"
            )
            raise StreamReplacedError(404, text)
        return True

    def forget(self, consumer: Consumer | None) -> None:
        """Delete a consumer now, ahead of its inactivity threshold; do not wait for the answer."""
        if consumer is not None and self._nc.is_connected:
            in_background(self._remove(consumer.name))

    async def _remove(self, name: str) -> None:
        subject = f"{self._api.prefix}.CONSUMER.DELETE.{self._stream}.{name}"
        try:
            await self._nc.publish(subject, b"", reply=self._nc.new_inbox())
        except nats.errors.Error:
            return  # the connection is failing; the server deletes the consumer once it is inactive

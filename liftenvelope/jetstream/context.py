"""``JetStream``: streams, consumers and publishing on one NATS connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final, Self

from liftenvelope._deadlines import Deadline
from liftenvelope.errors import JetStreamError, StreamNotFoundError, UsageTypeError
from liftenvelope.jetstream import _consumer_requests as requests
from liftenvelope.jetstream import listing
from liftenvelope.jetstream._advisories import Advisories
from liftenvelope.jetstream._consumer import Consumer
from liftenvelope.jetstream._consumer_config import ConsumerConfig
from liftenvelope.jetstream._publishing import Publishing
from liftenvelope.jetstream._records import check_kept
from liftenvelope.jetstream._stream import Stream
from liftenvelope.jetstream.api import MAX_LISTED, Api
from liftenvelope.jetstream.api import api_prefix as prefix_of
from liftenvelope.jetstream.infos import AccountInfo, StreamInfo
from liftenvelope.jetstream.names import check_stream_name
from liftenvelope.jetstream.stream_config import StreamConfig

if TYPE_CHECKING:
    from nats.aio.client import Client

    from liftenvelope.jetstream._consumer_requests import ConsumerAction

__all__ = ["JetStream"]

_STREAM_NOT_FOUND: Final = 10059
#: Error number of the answer to a creation that finds no folder for streams, and the seconds before each
#: further attempt. A moment after it has deleted the last stream of an account, nats-server removes the empty
#: folder, even while it makes a new stream there (server/stream.go, 2.10 to 2.15). Nothing is created then.
_NO_STORE: Final = 10049
_PAUSES: Final = (0.02, 0.1, 0.5)


class JetStream(Publishing):
    """Manages streams and consumers and publishes messages on an existing NATS connection.

    The connection stays the caller's: it is never closed, and its callbacks are not touched. Nothing runs in
    the background until the first publish, which creates one subscription for the acks. :meth:`close`, or
    the end of ``async with``, removes the subscription. Use a context from the event loop's thread only.

    Args:
        nc: A connected nats-py client.
        domain: JetStream domain. Default: the server's own.
        api_prefix: API prefix to use instead of a domain, such as ``$JS.hub.API`` or the prefix of an import
            from another account. Default ``$JS.API``.
        timeout: Default time to wait for a reply or an ack, in seconds; a call can override it. Default 5.
        max_outstanding: Number of messages that may be in flight without an ack; :meth:`publish_async` waits
            at the limit. Default 4,000.
        max_listed: Maximum number of streams, consumers or subjects in a listing, against a server that
            lists without end. Default 1,000,000.

    Raises:
        UsageError: An argument is invalid, or both a domain and a prefix are given.

    Example::

        async with JetStream(nc) as js:
            stream = await js.create_stream(StreamConfig(name="ORDERS", subjects=("orders.>",)))
            ack = await js.publish("orders.new", b"...")
            print(ack.sequence, (await stream.info()).state.messages)
    """

    def __init__(
        self,
        nc: Client,
        *,
        domain: str | None = None,
        api_prefix: str | None = None,
        timeout: float = 5.0,
        max_outstanding: int = 4_000,
        max_listed: int = MAX_LISTED,
    ) -> None:
        api = Api(nc, prefix=prefix_of(domain, api_prefix), timeout=timeout, max_listed=max_listed)
        super().__init__(api, timeout=timeout, max_outstanding=max_outstanding)

    async def close(self) -> None:
        """Remove the ack subscription and fail every publish that has no ack yet. The connection stays open.

        Publishing is no longer possible; all other methods still work. Idempotent.
        """
        await self._close_publishing()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # Streams

    async def create_stream(self, config: StreamConfig, *, timeout: float | None = None) -> Stream:
        """Create a stream. If the stream exists with the same configuration, return it.

        If the server lacks the folder of its streams, as for a moment after it has deleted the last one, the
        request is repeated.

        Args:
            config: Configuration of the stream.
            timeout: Seconds for the whole call. Default: the timeout of the context.

        Raises:
            StreamNameInUseError: The stream exists with another configuration.
            SubjectsOverlapError: Another stream records one of the subjects.
            InvalidConfigError: The server rejects the configuration.
            ResourcesExceededError: The server or the account has no room for the stream.
            UnsupportedByServerError: The server is too old for a setting of ``config``, and has ignored it:
                the stream exists without it.
        """
        deadline = Deadline(self.api.seconds_of(timeout))
        left = deadline.timeout
        for pause in _PAUSES:
            try:
                return await self._put_stream("CREATE", config, left)
            except JetStreamError as exc:
                if exc.err_code != _NO_STORE or deadline.left <= pause:
                    raise
            await asyncio.sleep(pause)
            left = deadline.left
        return await self._put_stream("CREATE", config, left)

    async def update_stream(self, config: StreamConfig, *, timeout: float | None = None) -> Stream:
        """Update a stream. Start from ``dataclasses.replace(stream.cached_info.config, ...)``.

        Raises:
            StreamNotFoundError: The stream does not exist.
            InvalidConfigError: The server rejects the change.
            UnsupportedByServerError: As for :meth:`create_stream`.
        """
        return await self._put_stream("UPDATE", config, timeout)

    async def create_or_update_stream(self, config: StreamConfig, *, timeout: float | None = None) -> Stream:
        """Update a stream, or create it if it does not exist.

        Raises:
            JetStreamError: As for :meth:`create_stream` and :meth:`update_stream`.
        """
        try:
            return await self.update_stream(config, timeout=timeout)
        except StreamNotFoundError:
            return await self.create_stream(config, timeout=timeout)

    async def _put_stream(self, verb: str, config: StreamConfig, timeout: float | None) -> Stream:
        if not isinstance(config, StreamConfig):
            raise UsageTypeError(f"config must be a StreamConfig, got {type(config).__name__}")
        found = await self.api.request_as(
            StreamInfo.from_json, f"STREAM.{verb}.{config.name}", config.to_json(), timeout=timeout
        )
        check_kept(config, found.config, f"stream {config.name!r}")
        return Stream(self.api, found)

    async def stream(self, name: str, *, timeout: float | None = None) -> Stream:
        """Look up a stream by its name.

        Raises:
            StreamNotFoundError: The stream does not exist.
        """
        return await Stream.find(self.api, name, timeout=timeout)

    async def delete_stream(self, name: str, *, timeout: float | None = None) -> None:
        """Delete a stream with its messages and its consumers.

        Raises:
            StreamNotFoundError: The stream does not exist.
        """
        await self.api.request(f"STREAM.DELETE.{check_stream_name(name)}", timeout=timeout)

    def streams(
        self, subject: str | None = None, *, timeout: float | None = None
    ) -> AsyncIterator[StreamInfo]:
        """Iterate over all streams, or over those that record a subject, one page at a time.

        Args:
            subject: Subject to filter by; wildcards are allowed. Default: all streams.
            timeout: Seconds to wait for each page. Default: the timeout of the context.

        Example::

            async for info in js.streams():
                print(info.config.name, info.state.messages)
        """
        return listing.stream_infos(self.api, subject, timeout)

    def stream_names(self, subject: str | None = None, *, timeout: float | None = None) -> AsyncIterator[str]:
        """Iterate over the names of all streams, or of those that record a subject: see :meth:`streams`."""
        return listing.stream_names(self.api, subject, timeout)

    async def stream_name_by_subject(self, subject: str, *, timeout: float | None = None) -> str:
        """Return the name of the stream that records a subject.

        Args:
            subject: Subject to look up; wildcards are allowed.
            timeout: Seconds to wait. Default: the timeout of the context.

        Raises:
            StreamNotFoundError: No stream records the subject.
        """
        async for name in self.stream_names(subject, timeout=timeout):
            return name
        raise StreamNotFoundError(404, f"no stream records the subject {subject!r}", _STREAM_NOT_FOUND)

    async def account_info(self, *, timeout: float | None = None) -> AccountInfo:
        """Request the usage and the limits of the account.

        Raises:
            NoJetStreamError: JetStream is disabled on the server or for the account.
        """
        return await self.api.request_as(AccountInfo.from_json, "INFO", timeout=timeout)

    # Consumers

    async def create_consumer(
        self, stream: str, config: ConsumerConfig, *, timeout: float | None = None
    ) -> Consumer:
        """Create a consumer of a stream: see :meth:`Stream.create_consumer`."""
        return await self._put_consumer(stream, config, "create", timeout)

    async def update_consumer(
        self, stream: str, config: ConsumerConfig, *, timeout: float | None = None
    ) -> Consumer:
        """Update a consumer of a stream: see :meth:`Stream.update_consumer`."""
        return await self._put_consumer(stream, config, "update", timeout)

    async def create_or_update_consumer(
        self, stream: str, config: ConsumerConfig, *, timeout: float | None = None
    ) -> Consumer:
        """Create or update a consumer of a stream: see :meth:`Stream.create_or_update_consumer`."""
        return await self._put_consumer(stream, config, "", timeout)

    async def _put_consumer(
        self, stream: str, config: ConsumerConfig, action: ConsumerAction, timeout: float | None
    ) -> Consumer:
        info = await requests.put_consumer(self.api, stream, config, action, timeout=timeout)
        return Consumer(self.api, info)

    async def consumer(self, stream: str, name: str, *, timeout: float | None = None) -> Consumer:
        """Look up a consumer by its name.

        Raises:
            ConsumerNotFoundError: The consumer does not exist.
            StreamNotFoundError: The stream does not exist.
        """
        info = await requests.consumer_info(self.api, stream, name, timeout=timeout)
        return Consumer(self.api, info)

    async def delete_consumer(self, stream: str, name: str, *, timeout: float | None = None) -> None:
        """Delete a consumer of a stream: see :meth:`Stream.delete_consumer`."""
        await requests.delete_consumer(self.api, stream, name, timeout=timeout)

    def advisories(
        self, stream: str | None = None, consumer: str | None = None, *, max_waiting: int = 10_000
    ) -> Advisories:
        """Receive the server's advisories about consumers as typed events, once ``async with`` is entered.

        Args:
            stream: Only advisories about this stream. Default: all.
            consumer: Only advisories about this consumer of the stream. Default: all.
            max_waiting: Number of unread advisories to buffer. Beyond it the oldest are dropped, and a
                :class:`~liftenvelope.jetstream.LostAdvisories` carries their number. Default 10,000.

        Raises:
            UsageError: A name is invalid, a consumer is given without its stream, or ``max_waiting`` is not
                positive.

        Example::

            async with js.advisories("ORDERS") as advisories:
                async for advisory in advisories:
                    print(advisory)
        """
        return Advisories(self.api.nc, stream=stream, consumer=consumer, max_waiting=max_waiting)

    def __repr__(self) -> str:
        return f"<JetStream {self.api.prefix!r}>"

"""JetStream, as one connection sees it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Self

from liftenvelope.errors import StreamNotFoundError, UsageTypeError
from liftenvelope.jetstream import consumer_requests as requests
from liftenvelope.jetstream import listing
from liftenvelope.jetstream._names import check_stream_name
from liftenvelope.jetstream.advisories import Advisories
from liftenvelope.jetstream.api import Api
from liftenvelope.jetstream.api import api_prefix as prefix_of
from liftenvelope.jetstream.consumer import Consumer
from liftenvelope.jetstream.consumer_config import ConsumerConfig
from liftenvelope.jetstream.infos import AccountInfo, StreamInfo
from liftenvelope.jetstream.publishing import Publishing
from liftenvelope.jetstream.stream import Stream
from liftenvelope.jetstream.stream_config import StreamConfig

if TYPE_CHECKING:
    from nats.aio.client import Client

    from liftenvelope.jetstream.consumer_requests import ConsumerAction

__all__ = ["JetStream"]

_STREAM_NOT_FOUND = 10059


class JetStream(Publishing):
    """Streams, consumers and publishing, on a NATS connection that you already have.

    The connection stays yours: it is never closed, and its callbacks are not touched. Until the first publish
    there is nothing in the background; from then on there is one subscription for the acks, which
    :meth:`close`, or the end of ``async with``, removes. Use it from the event loop's thread only.

    Args:
        nc: A connected nats-py client.
        domain: The JetStream domain to work in. Default: the server's own.
        api_prefix: The prefix of the API instead, such as ``$JS.hub.API`` or that of an import from another
            account. Default ``$JS.API``.
        timeout: How long to wait for an answer or an ack unless a call says otherwise, in seconds. Default 5.
        max_outstanding: How many messages may be without their ack; :meth:`publish_async` waits beyond that.
            Default 4,000.

    Raises:
        UsageError: An argument makes no sense, or both a domain and a prefix are given.

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
    ) -> None:
        api = Api(nc, prefix=prefix_of(domain, api_prefix), timeout=timeout)
        super().__init__(api, timeout=timeout, max_outstanding=max_outstanding)

    async def close(self) -> None:
        """Unsubscribe from the acks; what is without its ack fails. The connection stays open.

        Nothing can be published any more; everything else can be used on. May be called again.
        """
        await self._close_publishing()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # Streams

    async def create_stream(self, config: StreamConfig, *, timeout: float | None = None) -> Stream:
        """Make a stream. One that is there with the same configuration is taken.

        Args:
            config: Its configuration.
            timeout: How long to wait in seconds. Default: that of the context.

        Raises:
            StreamNameInUseError: There is one of that name with another configuration.
            SubjectsOverlapError: Another stream records one of the subjects.
            InvalidConfigError: The server takes no such configuration.
            ResourcesExceededError: There is no room for it.
        """
        return await self._put_stream("CREATE", config, timeout)

    async def update_stream(self, config: StreamConfig, *, timeout: float | None = None) -> Stream:
        """Change a stream: begin with ``dataclasses.replace(stream.cached_info.config, ...)``.

        Raises:
            StreamNotFoundError: There is none of that name.
            InvalidConfigError: The server makes no such change.
        """
        return await self._put_stream("UPDATE", config, timeout)

    async def create_or_update_stream(self, config: StreamConfig, *, timeout: float | None = None) -> Stream:
        """Change the stream of that name, or make it if there is none.

        Raises:
            JetStreamError: As for :meth:`create_stream` and :meth:`update_stream`.
        """
        try:
            return await self.update_stream(config, timeout=timeout)
        except StreamNotFoundError:
            return await self.create_stream(config, timeout=timeout)

    async def _put_stream(self, verb: str, config: StreamConfig, timeout: float | None) -> Stream:
        if not isinstance(config, StreamConfig):
            raise UsageTypeError(f"config must be a StreamConfig, not {type(config).__name__}")
        found = await self.api.request_as(
            StreamInfo.from_json, f"STREAM.{verb}.{config.name}", config.to_json(), timeout=timeout
        )
        return Stream(self.api, found)

    async def stream(self, name: str, *, timeout: float | None = None) -> Stream:
        """The stream of that name.

        Raises:
            StreamNotFoundError: There is none.
        """
        return await Stream.find(self.api, name, timeout=timeout)

    async def delete_stream(self, name: str, *, timeout: float | None = None) -> None:
        """Delete a stream with its messages and its consumers.

        Raises:
            StreamNotFoundError: There is none of that name.
        """
        await self.api.request(f"STREAM.DELETE.{check_stream_name(name)}", timeout=timeout)

    def streams(
        self, subject: str | None = None, *, timeout: float | None = None
    ) -> AsyncIterator[StreamInfo]:
        """All streams, or those that record a subject, a page at a time.

        Args:
            subject: The subject; wildcards are allowed. Default: all streams.
            timeout: How long to wait for each page in seconds. Default: that of the context.

        Example::

            async for info in js.streams():
                print(info.config.name, info.state.messages)
        """
        return listing.stream_infos(self.api, subject, timeout)

    def stream_names(self, subject: str | None = None, *, timeout: float | None = None) -> AsyncIterator[str]:
        """The names of all streams, or of those that record a subject, a page at a time: :meth:`streams`."""
        return listing.stream_names(self.api, subject, timeout)

    async def stream_name_by_subject(self, subject: str, *, timeout: float | None = None) -> str:
        """The name of the stream that records a subject; wildcards are allowed.

        Args:
            subject: The subject.
            timeout: How long to wait in seconds. Default: that of the context.

        Raises:
            StreamNotFoundError: None does.
        """
        async for name in self.stream_names(subject, timeout=timeout):
            return name
        raise StreamNotFoundError(404, f"no stream records the subject {subject!r}", _STREAM_NOT_FOUND)

    async def account_info(self, *, timeout: float | None = None) -> AccountInfo:
        """What the account uses, and may use.

        Raises:
            NoJetStreamError: JetStream is off, for the server or for the account.
        """
        return await self.api.request_as(AccountInfo.from_json, "INFO", timeout=timeout)

    # Consumers

    async def create_consumer(
        self, stream: str, config: ConsumerConfig, *, timeout: float | None = None
    ) -> Consumer:
        """Make a consumer of a stream: see :meth:`Stream.create_consumer`."""
        return await self._put_consumer(stream, config, "create", timeout)

    async def update_consumer(
        self, stream: str, config: ConsumerConfig, *, timeout: float | None = None
    ) -> Consumer:
        """Change a consumer of a stream: see :meth:`Stream.update_consumer`."""
        return await self._put_consumer(stream, config, "update", timeout)

    async def create_or_update_consumer(
        self, stream: str, config: ConsumerConfig, *, timeout: float | None = None
    ) -> Consumer:
        """Make a consumer of a stream or change it: see :meth:`Stream.create_or_update_consumer`."""
        return await self._put_consumer(stream, config, "", timeout)

    async def _put_consumer(
        self, stream: str, config: ConsumerConfig, action: ConsumerAction, timeout: float | None
    ) -> Consumer:
        info = await requests.put_consumer(self.api, stream, config, action, timeout=timeout)
        return Consumer(self.api, info)

    async def consumer(self, stream: str, name: str, *, timeout: float | None = None) -> Consumer:
        """The consumer of that name.

        Raises:
            ConsumerNotFoundError: There is none.
            StreamNotFoundError: There is no such stream.
        """
        info = await requests.consumer_info(self.api, stream, name, timeout=timeout)
        return Consumer(self.api, info)

    async def delete_consumer(self, stream: str, name: str, *, timeout: float | None = None) -> None:
        """Delete a consumer of a stream: see :meth:`Stream.delete_consumer`."""
        await requests.delete_consumer(self.api, stream, name, timeout=timeout)

    def advisories(
        self, stream: str | None = None, consumer: str | None = None, *, max_waiting: int = 10_000
    ) -> Advisories:
        """What the server tells of consumers, as typed events, from when the ``async with`` is entered.

        Args:
            stream: Only about this stream. Default: all.
            consumer: Only about this consumer of the stream. Default: all.
            max_waiting: How many may wait to be read; then the oldest are dropped, and a
                :class:`~liftenvelope.jetstream.LostAdvisories` says how many. Default 10,000.

        Raises:
            UsageError: A name can't be one, a consumer is given without its stream, or ``max_waiting`` is not
                positive.

        Example::

            async with js.advisories("ORDERS") as advisories:
                async for advisory in advisories:
                    print(advisory)
        """
        return Advisories(self.api.nc, stream=stream, consumer=consumer, max_waiting=max_waiting)

    def __repr__(self) -> str:
        return f"<JetStream {self.api.prefix!r}>"

"""The client: :func:`connect`, and :class:`Client`, which combines the mixins of this package."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self

from liftenvelope.client.activity import ActivityMixin
from liftenvelope.client.consuming import ConsumeMixin
from liftenvelope.client.health import HealthMixin
from liftenvelope.client.options import BrokerSelection, Options
from liftenvelope.client.publishing import PublishMixin

if TYPE_CHECKING:
    import ssl
    from types import TracebackType

    from liftenvelope.client.events import EventHandler

__all__ = ["Client", "connect"]


class Client(PublishMixin, ConsumeMixin, ActivityMixin, HealthMixin):
    """A client of a Liftbridge cluster. Made by :func:`connect`; it belongs to one event loop."""

    async def open(self) -> Self:
        """Connect to the cluster and fetch its brokers. ``async with`` and ``await`` do it.

        Raises:
            TransportError: No broker could be reached.
            CallTimeoutError: No broker answered in time.
        """
        await self._cluster.fetch([], deadline=self._deadline(None))
        return self

    def __await__(self) -> Generator[Any, None, Self]:
        return self.__aenter__().__await__()

    async def __aenter__(self) -> Self:
        try:
            return await self.open()
        except BaseException:
            await self.close()
            raise

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


def connect(
    addresses: str | Iterable[str],
    *,
    tls: ssl.SSLContext | bool | None = None,
    tls_server_name: str | Mapping[str, str] | None = None,
    timeout: float = 10.0,
    ack_wait: float = 5.0,
    resubscribe_wait: float = 30.0,
    connect_timeout: float = 5.0,
    max_conns_per_broker: int = 2,
    keep_alive_time: float = 30.0,
    ping_interval: float | None = 30.0,
    metadata_max_age: float = 60.0,
    max_message_bytes: int = 4 * 1024 * 1024,
    max_header_bytes: int = 64 * 1024,
    max_brokers: int = 1_000,
    max_partitions: int = 100_000,
    prefetch_bytes: int = 8 * 1024 * 1024,
    prefetch_messages: int | None = None,
    broker_selection: BrokerSelection = "random",
    address_map: Mapping[str, str] | None = None,
    on_event: EventHandler | None = None,
) -> Client:
    """Make a client of a Liftbridge cluster; ``async with`` or ``await`` connects it.

    Args:
        addresses: ``host:port`` of one or more seed brokers, with brackets around an IPv6 host. The client
            discovers the other brokers through these.
        tls: An :class:`ssl.SSLContext` for TLS (load a client certificate into it for mTLS), True for
            Python's default context, None for plain TCP.
        tls_server_name: Name to verify in the brokers' certificates, if it differs from the advertised host:
            one name for all brokers, or a mapping from ``host:port``, as the cluster advertises it, to a
            name. Default: the host of each address. Needs ``tls``.
        timeout: Seconds for a call including all retries, unless the call has its own timeout.
        ack_wait: Seconds to wait for the ack of a published message, unless the call has its own timeout.
        resubscribe_wait: Seconds to keep trying to restore a lost subscription; 0 disables resubscribing.
        connect_timeout: Seconds for one connection attempt.
        max_conns_per_broker: Maximum number of connections to each broker.
        keep_alive_time: Seconds after which an idle connection is closed.
        ping_interval: Seconds without data on a connection with open calls before the client sends a ping.
            The client pings less often where a Go server with default settings would close the connection.
            None disables pings.
        metadata_max_age: Seconds for which stream metadata is cached.
        max_message_bytes: Maximum message size in bytes. A larger message ends its call with
            RESOURCE_EXHAUSTED.
        max_header_bytes: Maximum size of a response header list in bytes. A larger list ends the connection.
        max_brokers: Maximum number of brokers in one metadata response. More raise ServerProtocolError.
        max_partitions: Maximum number of partitions in one metadata response, over all streams. More raise
            ServerProtocolError.
        prefetch_bytes: Flow-control window in bytes of each subscription: the server sends at most this far
            ahead of the reader.
        prefetch_messages: Maximum number of messages sent ahead of the reader; None for as many as
            ``prefetch_bytes`` holds. Servers limit bytes, so this grants 40 bytes (the smallest message) per
            message.
        broker_selection: Strategy to choose among several brokers that can answer: ``"random"``,
            ``"latency"`` (shortest connection time), ``"workload"`` (fewest partitions), or a function from a
            sequence of :class:`BrokerInfo` to one of these.
        address_map: Mapping from an advertised address to the address to connect to, for networks in which
            the advertised address is not reachable.
        on_event: Called with every :data:`ClientEvent`. By default, events that need attention are issued as
            Python warnings (:class:`LiftEnvelopeWarning`).

    Returns:
        The client, not connected yet.

    Raises:
        UsageError: An argument makes no sense; it is named.

    Example:
        >>> import asyncio, liftenvelope
        >>> from liftenvelope.testing import run_liftbridge
        >>> async def main(addresses):
        ...     async with liftenvelope.connect(addresses) as client:
        ...         await client.create_stream("greetings", "greetings")
        ...         ack = await client.publish("greetings", b"hello")
        ...         async with client.subscribe("greetings", start="earliest") as messages:
        ...             async for message in messages:
        ...                 return ack.offset, message.value
        >>> with run_liftbridge() as cluster:
        ...     asyncio.run(main(cluster.addresses))
        (0, b'hello')
    """
    options = Options(
        addresses=addresses,
        tls=tls,
        tls_server_name=tls_server_name,
        timeout=timeout,
        ack_wait=ack_wait,
        resubscribe_wait=resubscribe_wait,
        connect_timeout=connect_timeout,
        max_conns_per_broker=max_conns_per_broker,
        keep_alive_time=keep_alive_time,
        ping_interval=ping_interval,
        metadata_max_age=metadata_max_age,
        max_message_bytes=max_message_bytes,
        max_header_bytes=max_header_bytes,
        max_brokers=max_brokers,
        max_partitions=max_partitions,
        prefetch_bytes=prefetch_bytes,
        prefetch_messages=prefetch_messages,
        broker_selection=broker_selection,
        address_map=address_map or {},
        on_event=on_event,
    )
    return Client(options)

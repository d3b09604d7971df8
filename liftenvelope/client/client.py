"""The client: :func:`connect`, and the class whose parts are in the modules beside this one."""

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
        """Find the cluster. ``async with`` and ``await`` do it.

        Raises:
            TransportError: No broker could be reached.
            CallTimeoutError: None answered in time.
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
        addresses: ``host:port`` of one or more brokers, with brackets around an IPv6 host. The others are
            found through them.
        tls: An :class:`ssl.SSLContext` to speak TLS with (load a client certificate into it for mTLS), True
            for Python's default one, None for plain TCP.
        tls_server_name: Name that the brokers' certificates must have, where it is not the host that they
            advertise: one name for all brokers, or a mapping from ``host:port``, as the cluster names it, to
            a name. Default: the host of each address. Needs ``tls``.
        timeout: Seconds for a call with all its attempts, where the call names no other time.
        ack_wait: Seconds for the ack of a published message, where the call names no other time.
        resubscribe_wait: Seconds in which a subscription that was lost must stand again, 0 for not at all.
        connect_timeout: Seconds for one connection.
        max_conns_per_broker: How many connections to keep to each broker at most.
        keep_alive_time: Seconds after which a connection that nobody used is closed.
        ping_interval: Seconds of silence on a connection in use before the server is asked for a sign of
            life; less often where a default Go server would take offence. None for never.
        metadata_max_age: Seconds for which the answers about streams are used again.
        max_message_bytes: Longest message in bytes to accept. A longer one ends its call with
            RESOURCE_EXHAUSTED.
        max_header_bytes: Largest list of response headers in bytes to accept. A larger one ends the
            connection.
        max_brokers: Brokers to accept in one answer about the cluster. More raise ServerProtocolError.
        max_partitions: Partitions to accept in one answer about the cluster, over all streams. More raise
            ServerProtocolError.
        prefetch_bytes: How much a server may send ahead on each subscription. A reader that is slower holds
            the server back.
        prefetch_messages: How many messages may wait at most, None for as many as ``prefetch_bytes`` hold.
            Servers count bytes: it is kept by letting them send 40 bytes for each, the least that one takes.
        broker_selection: Which broker to ask where several can answer: ``"random"``, ``"latency"`` (the one
            that was connected to the quickest), ``"workload"`` (the one with the fewest partitions), or a
            function from a sequence of :class:`BrokerInfo` to one of them.
        address_map: Where to connect to instead of an address that a broker gives, for networks where that
            does not lead to it.
        on_event: Called with every :data:`ClientEvent`. By default those that need looking at are Python
            warnings (:class:`LiftEnvelopeWarning`).

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

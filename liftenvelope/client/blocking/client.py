"""Made of client/client.py by protos/generate_blocking.py. Don't edit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftenvelope.client.blocking._base import open_client
from liftenvelope.client.blocking.activity import BlockingActivity
from liftenvelope.client.blocking.consuming import BlockingConsume
from liftenvelope.client.blocking.health import BlockingHealth
from liftenvelope.client.blocking.publishing import BlockingPublish
from liftenvelope.client.client import connect

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterable, Mapping

    from liftenvelope.client.client import Client
    from liftenvelope.client.events import EventHandler
    from liftenvelope.client.options import BrokerSelection

__all__ = ["BlockingClient", "connect_blocking"]


class BlockingClient(BlockingPublish, BlockingConsume, BlockingActivity, BlockingHealth):
    """A client of a Liftbridge cluster. Made by :func:`connect_blocking`.

    Any number of threads may use it.
    """

    _async: Client


def connect_blocking(
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
    max_brokers: int = 1000,
    max_partitions: int = 100000,
    prefetch_bytes: int = 8 * 1024 * 1024,
    prefetch_messages: int | None = None,
    broker_selection: BrokerSelection = "random",
    address_map: Mapping[str, str] | None = None,
    on_event: EventHandler | None = None,
) -> BlockingClient:
    """Connect to a Liftbridge cluster. Close the client in the end: ``with`` does it.

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
        on_event: Called with every :data:`ClientEvent`, in the client's own thread: it can't call the
            client. By default those that need looking at are Python warnings (:class:`LiftEnvelopeWarning`).

    Returns:
        The client, connected.

    Raises:
        UsageError: An argument makes no sense; it is named.
        TransportError: No broker could be reached.
        CallTimeoutError: None answered in time.

    Example:
        >>> import liftenvelope
        >>> from liftenvelope.testing import run_liftbridge
        >>> def main(addresses):
        ...     with liftenvelope.connect_blocking(addresses) as client:
        ...         client.create_stream("greetings", "greetings")
        ...         ack = client.publish("greetings", b"hello")
        ...         with client.subscribe("greetings", start="earliest") as messages:
        ...             for message in messages:
        ...                 return ack.offset, message.value
        >>> with run_liftbridge() as cluster:
        ...     main(cluster.addresses)
        (0, b'hello')
    """
    return open_client(
        BlockingClient,
        lambda: connect(
            addresses,
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
            address_map=address_map,
            on_event=on_event,
        ),
    )

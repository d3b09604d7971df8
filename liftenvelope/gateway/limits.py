"""Limits of a gateway on the memory, storage and work that its clients may cause."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from liftenvelope._checks import as_inboxes
from liftenvelope.rpc.limits import ServerLimits, bounded

__all__ = ["Limits"]

#: Highest ``max_name_chars``. nats-server closes the gateway's connection on a line over 4,096 bytes.
_LONGEST_NAME: Final = 3_500


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits(ServerLimits):
    """Limits of a gateway on its clients, including those of its gRPC server.

    A client is identified by the common name of its certificate. All clients without a certificate count as
    one, but for ``max_pending_bytes_per_client`` and ``max_subscriptions_per_client`` each of their addresses
    is a client, of IPv6 each network of 64 bits.

    Attributes:
        max_message_bytes: Size of the largest envelope (value, key and headers) that a client may publish by
            gRPC, in bytes. The NATS server's ``max_payload`` applies as well. ``max_request_bytes`` is
            raised to 1 MiB above this limit if it is smaller. Default 1 MiB, as in Liftbridge.
        max_name_chars: Characters of a name, subject, id or ack inbox in a request. A longer one is refused
            with INVALID_ARGUMENT. Default 3,500, which is also the maximum.
        max_list_length: Names in one list of a request. A longer list is refused with INVALID_ARGUMENT.
            Default 10,000.
        max_partitions_per_stream: Partitions of a new stream. A larger number is refused with
            INVALID_ARGUMENT. Default 10,000, which is also the maximum.
        max_pending_publishes: Messages of one PublishAsync call that wait for JetStream's ack. Above this
            limit the gateway stops reading requests of the call. More of them make the acks of other clients
            wait longer. Default 4,096.
        max_pending_publishes_in_all: Messages of all clients that the gateway publishes one by one and that
            wait for JetStream's ack: those of Publish, PublishToSubject and SetCursor, and those of
            PublishAsync to streams that check offsets or partitions that copy from another stream. Above this
            limit, they wait. A connection waits once it has as many as are free: about half of the limit if
            it is the only one. As many as ``max_connections``, and at most a tenth of the limit, are kept for
            connections that have none. Messages on NATS to streams that check offsets are counted apart, and
            refused above this limit. Default 100,000.
        max_pull_bytes: Bytes that all subscriptions together request from JetStream. nats-server disconnects
            a client for which it buffers 64 MiB. A message larger than this limit is pulled alone. Default
            28 MiB.
        consumer_inactivity: Seconds after which JetStream removes the consumer of a subscription that was
            lost with its gateway or connection. Default 60.
        allowed_ack_inboxes: Prefixes of the ack inboxes that clients may name. ``">"`` allows every subject
            that is not internal (``$...``, ``_lift...``, ``liftenvelope.groups...``). An empty tuple allows
            none. A publish by gRPC with another inbox is refused with INVALID_ARGUMENT. An envelope published
            by NATS with another inbox is stored and gets no ack. Requests may not name the gateway's own
            inboxes, unless their prefix is ``_INBOX.`` or the beginning of an entry. Requests on NATS, such
            as those to group coordinators, are answered only at inboxes with these prefixes, with
            ``_INBOX.`` or ``_INBOX_``, and at the gateway's own. Default ``("_INBOX.",)``, the default prefix
            of NATS clients.
        max_streams_per_client: Streams that a client may own. Further ones are refused with
            RESOURCE_EXHAUSTED. Default 5,000.
        max_partitions_per_client: Total partitions of the streams that a client owns. Further ones are
            refused with RESOURCE_EXHAUSTED. Default 50,000.
        max_cursors_per_client: New cursors that a client may set at this gateway from its start on. Further
            ones are refused with RESOURCE_EXHAUSTED; cursors that exist can be set. Default 100,000.
        max_pending_bytes_per_client: Bytes of requests that a client may have pending at this gateway:
            requests without an answer, and published messages without JetStream's ack. Above this limit
            PublishAsync waits, and other requests are refused with RESOURCE_EXHAUSTED. A larger request is
            served if nothing else of the client is pending. All publishers on NATS to streams that check
            offsets count as one client; above the limit, their messages are refused. Default 128 MiB.
        max_pending_bytes: The same, of all clients together, without those publishers. Raise it to raise
            ``max_pending_bytes_per_client`` above it. Default 512 MiB.
        max_subscriptions_per_client: Open subscriptions of a client at this gateway. Further ones are refused
            with RESOURCE_EXHAUSTED. They are calls too, so ``max_calls_per_client`` bounds them as well.
            Default 7,500.
        max_metric_labels: Streams, and consumer groups, that have metrics with their names. The others count
            in the totals alone. It is also the number of partitions of groups that have a lag. Default 1,000;
            0 for none.
        max_http_connections: Connections open at once to the HTTP server of ``--http``. A further one closes
            the oldest of the address that has most. Default 100.
        max_http_request_bytes: Size of an HTTP request, in bytes. A larger one closes the connection. Default
            16 KiB.
        http_timeout: Seconds from the start of an HTTP connection to its end, whatever its client does.
            Default 10.

    The other attributes are inherited from ``liftenvelope.rpc.limits.ServerLimits``.

    Raises:
        UsageError: A limit is out of range.
        UsageTypeError: A limit has the wrong type.

    Example:
        >>> Limits(max_connections=50).max_connections, Limits().allowed_ack_inboxes
        (50, ('_INBOX.',))
    """

    max_message_bytes: int = bounded(1 << 20)
    max_name_chars: int = bounded(_LONGEST_NAME, most=_LONGEST_NAME)
    max_list_length: int = bounded(10_000)
    max_partitions_per_stream: int = bounded(10_000, most=10_000)
    max_pending_publishes: int = bounded(4_096)
    max_pending_publishes_in_all: int = bounded(100_000)
    max_pull_bytes: int = bounded(28 << 20, least=64 << 10, most=60 << 20)
    consumer_inactivity: float = bounded(60.0)
    allowed_ack_inboxes: tuple[str, ...] = ("_INBOX.",)
    max_streams_per_client: int = bounded(5_000)
    max_partitions_per_client: int = bounded(50_000)
    max_cursors_per_client: int = bounded(100_000)
    max_pending_bytes_per_client: int = bounded(128 << 20)
    max_pending_bytes: int = bounded(512 << 20)
    max_subscriptions_per_client: int = bounded(7_500)
    max_metric_labels: int = bounded(1_000, least=0)
    max_http_connections: int = bounded(100)
    max_http_request_bytes: int = bounded(16 << 10, least=1_024)
    http_timeout: float = bounded(10.0)

    def __post_init__(self) -> None:
        # No super(): slots=True creates a new class, and super() in this method still refers to the old one.
        ServerLimits.__post_init__(self)
        inboxes = as_inboxes("allowed_ack_inboxes", self.allowed_ack_inboxes)
        object.__setattr__(self, "allowed_ack_inboxes", inboxes)

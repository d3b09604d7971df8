"""Limits of a gateway: how much its clients may make it hold, store and do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from liftenvelope.errors import UsageError, UsageTypeError
from liftenvelope.rpc.limits import ServerLimits, bounded

__all__ = ["ANY_SUBJECT", "Limits"]

#: Stands in ``allowed_ack_inboxes`` for every subject that is not internal.
ANY_SUBJECT: Final = ">"
#: NATS takes no longer line than 4,096 bytes from the gateway, and cuts its connection for one.
_LONGEST_NAME: Final = 3_500


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits(ServerLimits):
    """Limits of a gateway on its clients, those of its gRPC server included.

    A client is known by the common name of its certificate. All clients without a certificate count as one.

    Attributes:
        max_message_bytes: Size of the largest envelope (value, key and headers) that a client may publish by
            gRPC, in bytes. The NATS server's ``max_payload`` is a limit as well. ``max_request_bytes`` is
            raised to 1 MiB more than this if it is less. Default 1 MiB, as in Liftbridge.
        max_name_chars: Characters of a name, subject, id or ack inbox in a request. A longer one is refused
            with INVALID_ARGUMENT. Default 3,500, which is also the most.
        max_list_length: Names in one list of a request. A longer one is refused with INVALID_ARGUMENT.
            Default 10,000.
        max_partitions_per_stream: Partitions of a new stream. More are refused with INVALID_ARGUMENT. Default
            10,000, which is also the most.
        max_pending_publishes: Messages of one PublishAsync call without JetStream's ack. With more the
            gateway reads no further requests of the call. Default 50,000.
        max_pending_publishes_in_all: The same for the messages of all clients that the gateway publishes one
            by one, of Publish, PublishToSubject and of streams that check offsets, and for its own records.
            Default 100,000.
        max_pull_bytes: Bytes that all subscriptions together ask JetStream for. nats-server cuts off a client
            for which it holds 64 MiB. A message larger than this is asked for alone. Default 28 MiB.
        consumer_inactivity: Seconds after which JetStream removes the consumer of a subscription that was
            lost with its gateway or connection. Default 60.
        allowed_ack_inboxes: What ack inboxes named by clients must begin with. ``">"`` allows every subject
            that is not internal (``$...``, ``_lift...``); nothing at all allows none. A publish by gRPC with
            another inbox is refused with INVALID_ARGUMENT, an envelope by NATS is stored and gets no ack.
            Default ``("_INBOX.",)``, which NATS clients use unless told otherwise.
        max_streams_per_client: Streams that a client may have created. More are refused with
            RESOURCE_EXHAUSTED. Default 5,000.
        max_partitions_per_client: Partitions of the streams that a client has created, together. More are
            refused with RESOURCE_EXHAUSTED. Default 50,000.
        max_subscriptions_per_client: Subscriptions of a client open at once at this gateway. More are refused
            with RESOURCE_EXHAUSTED. Default 10,000.

    The other attributes are those of :class:`~liftenvelope.rpc.limits.ServerLimits`.

    Raises:
        UsageError: A limit is out of its bounds.
        UsageTypeError: A limit has the wrong type.

    Example:
        >>> Limits(max_connections=50).max_connections, Limits().allowed_ack_inboxes
        (50, ('_INBOX.',))
    """

    max_message_bytes: int = bounded(1 << 20)
    max_name_chars: int = bounded(_LONGEST_NAME, most=_LONGEST_NAME)
    max_list_length: int = bounded(10_000)
    max_partitions_per_stream: int = bounded(10_000, most=10_000)
    max_pending_publishes: int = bounded(50_000)
    max_pending_publishes_in_all: int = bounded(100_000)
    max_pull_bytes: int = bounded(28 << 20, least=64 << 10, most=60 << 20)
    consumer_inactivity: float = bounded(60.0)
    allowed_ack_inboxes: tuple[str, ...] = ("_INBOX.",)
    max_streams_per_client: int = bounded(5_000)
    max_partitions_per_client: int = bounded(50_000)
    max_subscriptions_per_client: int = bounded(10_000)

    def __post_init__(self) -> None:
        # Not super(): a dataclass with slots is another class than the one that this method is compiled in.
        ServerLimits.__post_init__(self)
        inboxes: Any = self.allowed_ack_inboxes
        if isinstance(inboxes, str) or not all(isinstance(prefix, str) for prefix in inboxes):
            raise UsageTypeError(f"allowed_ack_inboxes must be a tuple of str, got {inboxes!r}")
        object.__setattr__(self, "allowed_ack_inboxes", tuple(inboxes))
        if "" in self.allowed_ack_inboxes:
            text = f'allowed_ack_inboxes must not hold an empty prefix, got {inboxes!r}: use ">" to allow any'
            raise UsageError(text)

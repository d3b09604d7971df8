"""Limits of a gRPC server on the memory, calls and time of its clients.

The fields of a limits class are declared with :func:`bounded`, which stores the bounds of each field with its
default. One loop checks all fields.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Final, TypeVar

from liftenvelope._checks import as_count, as_seconds
from liftenvelope.rpc.framing import DEFAULT_MAX_MESSAGE

__all__ = ["DEFAULT_LIMITS", "ServerLimits", "bounded"]

_T = TypeVar("_T", int, float)

#: HTTP/2's largest window and largest number of calls (RFC 9113, 6.9.1 and 6.5.2).
_LARGEST: Final = 2**31 - 1


def bounded(default: _T, *, least: int = 1, most: int | None = None) -> _T:
    """Return a dataclass field for a bounded number.

    Args:
        default: The default. An ``int`` restricts the field to integers, a ``float`` to positive numbers.
        least: Smallest value allowed for an ``int``.
        most: Largest value allowed, None for any.
    """
    made: Any = field(default=default, metadata={"least": least, "most": most})
    return made  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """Limits of a gRPC server on its clients. Every limit has a default.

    Attributes:
        max_request_bytes: Largest gRPC message of a client, in bytes. A larger one ends its call with
            RESOURCE_EXHAUSTED. Default 4 MiB.
        max_connections: Connections open at once, of all clients. There are fewer if they would leave the
            process fewer than 64 file descriptors. For a further one the client with most connections gives
            one up: one without a call, or, for an address with at least two fewer, the one on which the
            client has sent nothing for longest. If it has none to give, the further one is closed. A client
            is the subject of its certificate; without one, its address. Default 1,000.
        max_calls_per_connection: Calls open at once on one connection. HTTP/2 makes the client queue further
            calls. Default 1,000.
        max_calls: Calls open at once, of all clients; each takes about 9 KiB. Further calls end with
            RESOURCE_EXHAUSTED. Default 10,000.
        max_calls_per_client: Calls open at once, of one client: the subject of a certificate or, without one,
            an address. Further calls end with RESOURCE_EXHAUSTED. Below ``max_calls``, so that one client
            can't keep the others out. Default 8,000.
        max_unread_bytes_per_call: Bytes of requests that one call may hold unread. Flow control then stops
            the client. Default 1 MiB.
        max_unread_bytes_per_connection: Memory that requests of all calls of a connection may take unread:
            their bytes, 48 bytes for each message and 160 for each read. Beyond it the call that holds most
            ends with RESOURCE_EXHAUSTED. Default 16 MiB.
        max_unread_bytes: Memory that requests of all connections may take unread. Beyond it the call that
            holds most on the connection that holds most ends with RESOURCE_EXHAUSTED. Default 256 MiB.
        max_unsent_bytes_per_connection: Bytes of answers that the calls of a connection may hold because the
            client does not take them. Beyond it the call that holds most ends with RESOURCE_EXHAUSTED,
            without the rest of its answers. Subscriptions of a gateway do not count: each waits for its
            client once it holds 128 KiB. Default 32 MiB.
        max_unsent_bytes: Bytes of such answers that all connections may hold. Beyond it the call that holds
            most on the connection that holds most ends with RESOURCE_EXHAUSTED. Default 256 MiB.
        max_header_list_bytes: Size of the header list of a call, in bytes, plus 32 for each field (RFC 9113,
            6.5.2). A larger one ends the connection. Default 16 KiB.
        max_status_bytes: Size of a status text, which may quote the request, in bytes of UTF-8. Longer texts
            are cut. A gateway also cuts the errors of messages on PublishAsync. Default 1,024.
        control_frames_per_second: Sustained rate of control frames and resets of a connection, per second. A
            higher rate ends the connection with ENHANCE_YOUR_CALM. Two for each answer, and WINDOW_UPDATE of
            open calls, do not count. Default 250.
        control_frame_burst: Control frames and resets accepted at once. Default 1,000.
        handshake_timeout: Seconds for a client to finish the TLS handshake. Default 10.
        preface_timeout: Seconds from the handshake to the first HTTP/2 frame. Default 10.
        idle_timeout: Seconds without a call or a byte after which a connection is closed. Default 3,600.

    Raises:
        UsageError: A limit is out of its bounds.
        UsageTypeError: A limit is not a number.
    """

    max_request_bytes: int = bounded(DEFAULT_MAX_MESSAGE)
    max_connections: int = bounded(1_000)
    max_calls_per_connection: int = bounded(1_000, most=_LARGEST)
    max_calls: int = bounded(10_000)
    max_calls_per_client: int = bounded(8_000)
    max_unread_bytes_per_call: int = bounded(1 << 20, least=1_024, most=_LARGEST)
    max_unread_bytes_per_connection: int = bounded(16 << 20, least=1_024)
    max_unread_bytes: int = bounded(256 << 20, least=1_024)
    max_unsent_bytes_per_connection: int = bounded(32 << 20, least=1_024)
    max_unsent_bytes: int = bounded(256 << 20, least=1_024)
    max_header_list_bytes: int = bounded(16 << 10, least=1_024, most=_LARGEST)
    max_status_bytes: int = bounded(1_024, least=16)
    control_frames_per_second: int = bounded(250)
    control_frame_burst: int = bounded(1_000, least=10)
    handshake_timeout: float = bounded(10.0)
    preface_timeout: float = bounded(10.0)
    idle_timeout: float = bounded(3_600.0)

    def __post_init__(self) -> None:
        for one in fields(self):
            if "least" in one.metadata:
                _check(one.name, getattr(self, one.name), one.default, **one.metadata)


def _check(name: str, value: Any, default: Any, *, least: int, most: int | None) -> None:
    if isinstance(default, float):
        as_seconds(name, value)
    else:
        as_count(name, value, least, most)


DEFAULT_LIMITS: Final = ServerLimits()

"""Options of a client, checked when the client is made and before any I/O."""

from __future__ import annotations

import inspect
import ssl
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias

from liftenvelope._checks import as_choice, as_count, as_seconds
from liftenvelope.client._event_log import logged
from liftenvelope.client._events import EventHandler, warn
from liftenvelope.client.metadata import BrokerInfo
from liftenvelope.errors import UsageError, UsageTypeError
from liftenvelope.rpc.address import parse_address
from liftenvelope.rpc.tls import check_server_name

__all__ = [
    "LARGEST_MESSAGE",
    "MAX_REQUEST",
    "BrokerSelection",
    "Options",
    "check_address_map",
    "check_http2_sizes",
    "check_server_names",
    "server_name_of",
]

#: Largest gRPC message in bytes that Liftbridge accepts. A larger one ends the whole publish stream.
MAX_REQUEST: Final = 4 * 1024 * 1024
#: Broker selection: ``"random"``, ``"latency"``, ``"workload"``, or a function that picks one of the brokers.
BrokerSelection: TypeAlias = str | Callable[[Sequence[BrokerInfo]], BrokerInfo]

# Bytes of the smallest stored message on the wire: gRPC's prefix, the timestamp, the names of stream and
# subject, and the two headers that servers add.
_SMALLEST_MESSAGE = 40
_SELECTIONS = ("random", "latency", "workload")
_COUNTS = (
    "max_conns_per_broker",
    "max_brokers",
    "max_partitions",
)
#: Largest flow-control window of HTTP/2 in bytes (RFC 9113, 6.9.1).
_LARGEST_WINDOW = 2**31 - 1
#: Largest message of gRPC in bytes.
LARGEST_MESSAGE: Final = 2**32 - 1


def check_http2_sizes(options: _HttpSizes) -> None:
    """Check the sizes that are announced over HTTP/2.

    Raises:
        UsageError: A size is less than 1 or larger than HTTP/2's largest window.
        UsageTypeError: A size is not an int.
    """
    for name in ("prefetch_bytes", "max_header_bytes"):
        as_count(name, getattr(options, name), 1, _LARGEST_WINDOW)


class _HttpSizes(Protocol):
    """Size options of a connection over HTTP/2."""

    @property
    def prefetch_bytes(self) -> int:
        """Bytes that a server may send ahead on one call."""
        ...

    @property
    def max_header_bytes(self) -> int:
        """Largest list of response headers in bytes."""
        ...


def _addresses(addresses: str | Iterable[str]) -> tuple[str, ...]:
    if not isinstance(addresses, Iterable):
        raise UsageTypeError(f"addresses must be host:port strings, got {addresses!r}")
    given = [addresses] if isinstance(addresses, str) else list(addresses)
    if not given:
        raise UsageError("addresses must have at least one host:port, got none")
    return tuple(dict.fromkeys(_address("addresses", address) for address in given))


def _address(name: str, address: object) -> str:
    if not isinstance(address, str):
        raise UsageTypeError(f"{name} must be host:port strings, got {address!r}")
    return str(parse_address(address))


def check_address_map(addresses: Mapping[str, str]) -> dict[str, str]:
    """Check ``address_map`` and return it with normalized addresses.

    Raises:
        UsageError: An address is invalid.
        UsageTypeError: The value is not a mapping.
    """
    if not isinstance(addresses, Mapping):
        raise UsageTypeError(f"address_map must be a mapping of host:port to host:port, got {addresses!r}")
    return {_address("address_map", a): _address("address_map", b) for a, b in addresses.items()}


def check_server_names(
    names: str | Mapping[str, str] | None, *, is_secure: bool
) -> str | Mapping[str, str] | None:
    """Check ``tls_server_name`` and return it with normalized addresses.

    Args:
        names: One name for all brokers, or names by address.
        is_secure: Whether TLS is on.

    Raises:
        UsageError: A name or an address is invalid, or TLS is off.
        UsageTypeError: The value is neither a str nor a mapping.
    """
    if names is None:
        return None
    if not is_secure:
        raise UsageError(f"tls_server_name must be None without tls, got {names!r}")
    if not isinstance(names, Mapping):
        return check_server_name(names)
    return {_address("tls_server_name", one): check_server_name(name) for one, name in names.items()}


def server_name_of(names: str | Mapping[str, str] | None, address: str) -> str:
    """Return the name that the certificate at an advertised address must carry: its host, unless named.

    Raises:
        UsageError: The address is invalid.
    """
    given = names.get(address) if isinstance(names, Mapping) else names
    return given or parse_address(address).host


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of a client. The docstring of :func:`liftenvelope.connect` describes each option."""

    addresses: str | Iterable[str]
    tls: ssl.SSLContext | bool | None = None
    tls_server_name: str | Mapping[str, str] | None = None
    timeout: float = 10.0
    ack_wait: float = 5.0
    resubscribe_wait: float = 30.0
    connect_timeout: float = 5.0
    max_conns_per_broker: int = 2
    keep_alive_time: float = 30.0
    ping_interval: float | None = 30.0
    metadata_max_age: float = 60.0
    max_message_bytes: int = 4 * 1024 * 1024
    max_request_bytes: int = MAX_REQUEST
    max_header_bytes: int = 64 * 1024
    max_brokers: int = 1_000
    max_partitions: int = 100_000
    prefetch_bytes: int = 8 * 1024 * 1024
    prefetch_messages: int | None = None
    broker_selection: BrokerSelection = "random"
    address_map: Mapping[str, str] = field(default_factory=dict)
    on_event: EventHandler | None = None

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "addresses", _addresses(self.addresses))
        for name in ("timeout", "ack_wait", "connect_timeout", "keep_alive_time", "metadata_max_age"):
            put(self, name, as_seconds(name, getattr(self, name)))
        put(self, "resubscribe_wait", as_seconds("resubscribe_wait", self.resubscribe_wait, zero=True))
        if self.ping_interval is not None:
            as_seconds("ping_interval", self.ping_interval)
        for name in _COUNTS:
            as_count(name, getattr(self, name))
        for name in ("max_message_bytes", "max_request_bytes"):
            as_count(name, getattr(self, name), most=LARGEST_MESSAGE)
        if self.prefetch_messages is not None:
            as_count("prefetch_messages", self.prefetch_messages)
        check_http2_sizes(self)
        hook = self.on_event
        if hook is not None and (inspect.iscoroutinefunction(hook) or not callable(hook)):
            raise UsageTypeError(f"on_event must be a plain function or None, got {hook!r}")
        if not callable(self.broker_selection):
            as_choice("broker_selection", self.broker_selection, _SELECTIONS, extra=" or a function")
        put(self, "tls", self._context())
        names = check_server_names(self.tls_server_name, is_secure=self.context is not None)
        put(self, "tls_server_name", names)
        put(self, "address_map", check_address_map(self.address_map))

    def _context(self) -> ssl.SSLContext | None:
        if self.tls is None or isinstance(self.tls, ssl.SSLContext):
            return self.tls
        if self.tls is True:
            return ssl.create_default_context()
        if self.tls is False:
            return None
        raise UsageTypeError(f"tls must be an ssl.SSLContext, True, False or None, got {self.tls!r}")

    @property
    def seeds(self) -> tuple[str, ...]:
        """Addresses that the caller gave, checked, without duplicates."""
        return tuple(self.addresses)

    @property
    def context(self) -> ssl.SSLContext | None:
        """TLS context, None for plain TCP."""
        return self.tls if isinstance(self.tls, ssl.SSLContext) else None

    @property
    def window(self) -> int:
        """Bytes that a server may send ahead on one call.

        HTTP/2 limits bytes and not messages: each of ``prefetch_messages`` counts as 40 bytes, the smallest
        message, up to ``prefetch_bytes``.
        """
        if self.prefetch_messages is None:
            return self.prefetch_bytes
        return min(self.prefetch_bytes, self.prefetch_messages * _SMALLEST_MESSAGE)

    @property
    def notify(self) -> EventHandler:
        """Handler of the client's events: logs them, and calls ``on_event``, or else warns."""
        return logged(self.on_event or warn)

    def reachable(self, address: str) -> str:
        """Return the address to connect to for an address that a broker advertised."""
        return self.address_map.get(address, address)

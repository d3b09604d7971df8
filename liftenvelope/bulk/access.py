"""Server addresses and connection options, validated on construction, before any I/O."""

from __future__ import annotations

import secrets
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import urlsplit

from liftenvelope._checks import as_count, as_flag, as_seconds
from liftenvelope._secrets import without_secrets
from liftenvelope.bulk.idle import IdleConnections
from liftenvelope.client.binding import options_of
from liftenvelope.client.blocking import BlockingClient
from liftenvelope.client.client import Client
from liftenvelope.client.options import (
    LARGEST_MESSAGE,
    MAX_REQUEST,
    check_address_map,
    check_http2_sizes,
    check_server_names,
)
from liftenvelope.errors import UsageError, UsageTypeError
from liftenvelope.jetstream.api import api_prefix
from liftenvelope.nats.logins import login_in
from liftenvelope.nats.subjects import check_inbox_prefix
from liftenvelope.rpc.address import Address, parse_address

if TYPE_CHECKING:
    from liftenvelope.client.options import Options

__all__ = ["Access", "ServerKind", "Source", "Target", "find_target"]

#: A URL, several URLs, or a client whose servers to use.
Source: TypeAlias = "str | Iterable[str] | Client | BlockingClient"

#: Highest ``max_message_bytes``: with the bytes of a batch before it, a message fits into a column of Arrow.
_MOST_MESSAGE: Final = 1 << 30
#: Options that are logins, of which one may be given.
_LOGINS: Final = ("user", "token", "nkeys_seed", "user_credentials")
_NO_LOGIN: Final[Mapping[str, Any]] = dict.fromkeys((*_LOGINS, "password"))
_PORTS: Final = {"nats": 4222, "tls": 4222, "liftbridge": 9292}


class ServerKind(Enum):
    """Protocol of a server."""

    NATS = "nats"
    LIFTBRIDGE = "liftbridge"


@dataclass(frozen=True, kw_only=True)
class Access:
    """Connection options for the ``access`` argument of every function of this package.

    Attributes:
        tls: TLS context; True for the system's trusted authorities; None for plain TCP unless the URL begins
            with ``tls://`` or the NATS server requires TLS.
        tls_first: True to begin with TLS before a NATS server has said anything, for servers with
            ``handshake_first``. Default False. Liftbridge always begins with TLS, if it uses TLS.
        user: User for NATS. The user or token in a URL replaces this login, of any kind, for its server.
        password: Password of the user.
        token: Token for NATS.
        nkeys_seed: File with the seed of an nkey. Needs the package ``nkeys``.
        user_credentials: File with a JWT and the seed of its nkey. Needs the package ``nkeys``.
        domain: JetStream domain.
        api_prefix: Prefix of JetStream's API if not ``$JS.API``. Excludes ``domain``.
        inbox_prefix: First tokens of the reply subjects for NATS answers. If a user may subscribe only to an
            inbox prefix of its own, name that prefix. Default ``_INBOX``.
        connect_timeout: Seconds for making one connection.
        timeout: Seconds to wait for one answer of a server, or for the acks of a batch.
        reconnect_wait: Seconds to keep reconnecting without progress after a connection was lost.
        stall_timeout: Seconds without any data from a server after which its connection counts as lost.
        max_message_bytes: Longest message in bytes to accept from a server. Default 64 MiB, the longest
            message that NATS carries; at most 1 GiB.
        max_request_bytes: Largest publish request in bytes to send to a Liftbridge server. A row that is
            longer is refused with MessageTooLargeError. Default 4 MiB, which Liftbridge accepts; raise it for
            gateways that accept more.
        max_brokers: Brokers to accept in one answer, and NATS servers to remember. Default 1,000.
        max_partitions: Partitions to accept in one answer, over all streams, and streams in a listing.
            Default 100,000.
        max_subjects: Subjects of a JetStream stream to look at when a read chooses who filters. If more match
            a filter, the reader filters. Default 100,000, which one answer of a server lists.
        max_header_bytes: Largest list of response headers in bytes to accept from Liftbridge. Default 64 KiB.
        prefetch_bytes: Bytes that a Liftbridge server may send ahead on one call. Default 8 MiB.
        read_isr_replica: True to let any in-sync replica serve reads from Liftbridge, not only the leader.
            A replica may lag a little; the read waits for it.
        address_map: Address to connect to for each ``host:port`` that a Liftbridge broker advertises.
        tls_server_name: Name that the certificates of Liftbridge brokers must have if it is not the host that
            the brokers advertise: one name for all, or a mapping from ``host:port``. Needs ``tls``.
        idle: For the tasks of Spark: keeps the connections for requests when a read ends, for the next read
            with the same servers and options. Default: each read closes its connections.

    Raises:
        UsageError: A value is invalid, or two options exclude each other.
    """

    tls: ssl.SSLContext | bool | None = None
    tls_first: bool = False
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    nkeys_seed: str | Path | None = field(default=None, repr=False)
    user_credentials: str | Path | None = None
    domain: str | None = None
    api_prefix: str | None = None
    inbox_prefix: str = "_INBOX"
    connect_timeout: float = 5.0
    timeout: float = 10.0
    reconnect_wait: float = 30.0
    stall_timeout: float = 10.0
    max_message_bytes: int = 64 * 1024 * 1024
    max_request_bytes: int = MAX_REQUEST
    max_brokers: int = 1_000
    max_partitions: int = 100_000
    max_subjects: int = 100_000
    max_header_bytes: int = 64 * 1024
    prefetch_bytes: int = 8 * 1024 * 1024
    read_isr_replica: bool = False
    address_map: Mapping[str, str] = field(default_factory=dict)
    tls_server_name: str | Mapping[str, str] | None = None
    idle: IdleConnections | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("connect_timeout", "timeout", "stall_timeout"):
            as_seconds(name, getattr(self, name))
        as_seconds("reconnect_wait", self.reconnect_wait, zero=True)
        as_count("max_message_bytes", self.max_message_bytes, most=_MOST_MESSAGE)
        as_count("max_request_bytes", self.max_request_bytes, most=LARGEST_MESSAGE)
        for name in ("max_brokers", "max_partitions", "max_subjects"):
            as_count(name, getattr(self, name))
        check_http2_sizes(self)
        api_prefix(self.domain, self.api_prefix)
        check_inbox_prefix(self.inbox_prefix)
        given = [name for name in _LOGINS if getattr(self, name) is not None]
        if len(given) > 1:
            raise UsageError(f"{' and '.join(given)} exclude each other; leave one of them out")
        if self.password is not None and self.user is None:
            raise UsageError("user must be given with password, got None")
        if not (self.tls is None or isinstance(self.tls, bool | ssl.SSLContext)):
            raise UsageTypeError(f"tls must be an ssl.SSLContext, True, False or None, got {self.tls!r}")
        as_flag("tls_first", self.tls_first)
        object.__setattr__(self, "address_map", check_address_map(self.address_map))
        check_server_names(self.tls_server_name, is_secure=bool(self.tls))

    @property
    def has_login(self) -> bool:
        """True if the options have a login."""
        return any(getattr(self, name) is not None for name in _LOGINS)

    @property
    def context(self) -> ssl.SSLContext | None:
        """TLS context for secure connections; None if the options give none."""
        if self.tls is True:
            return ssl.create_default_context()
        return self.tls if isinstance(self.tls, ssl.SSLContext) else None

    def new_inbox(self) -> str:
        """Return a subject under the inbox prefix that no other connection uses."""
        return f"{self.inbox_prefix}.{secrets.token_hex(11)}"

    def reachable(self, address: str) -> str:
        """Return the address to connect to for an address that a broker advertises."""
        return self.address_map.get(address, address)


@dataclass(frozen=True)
class Target:
    """Servers of one kind.

    Attributes:
        kind: Protocol of the servers.
        addresses: Addresses of the servers.
        access: Connection options of the first server.
        secure: True if TLS is mandatory.
        logins: Connection options of each server, with the login of its own URL. Without one, that of the
            caller's options is taken, or else that of the first URL that has one. Servers that only the
            cluster names get those of the server that named them.
    """

    kind: ServerKind
    addresses: tuple[Address, ...]
    access: Access
    secure: bool = False
    logins: Mapping[Address, Access] = field(default_factory=dict, repr=False)

    def access_to(self, address: Address) -> Access:
        """Return the connection options for one of the servers."""
        return self.logins.get(address, self.access)


def find_target(source: Source, access: Access | None) -> Target:
    """Return the servers that a source stands for.

    Args:
        source: A URL such as ``nats://host:4222``, ``tls://host``, ``liftbridge://host:9292`` or the
            ``host:port`` of a Liftbridge server; several URLs separated by commas, or an iterable of URLs; or
            a Liftbridge client. Each URL may have its own login.
        access: Connection options. Must be None for a client, which has its own options.

    Raises:
        UsageError: A URL is invalid, the URLs mix NATS and Liftbridge, or ``access`` is given with a client.
        UsageTypeError: The source or ``access`` has a wrong type.
    """
    if access is not None and not isinstance(access, Access):
        raise UsageTypeError(f"access must be a bulk.Access, got {type(access).__name__}")
    if isinstance(source, Client | BlockingClient):
        return _client_target(options_of(source), access)
    if not isinstance(source, str | Iterable):
        raise UsageTypeError(
            f"source must be a URL, URLs, or a Liftbridge client, got {type(source).__name__}"
        )
    parts = source.split(",") if isinstance(source, str) else list(source)
    if not parts:
        raise UsageError("source must have at least one URL, got none")
    given = access or Access()
    found = [_parse_url(part, given) for part in parts]
    if len({target.kind for target in found}) > 1:
        raise UsageError(
            f"source must have servers of one kind, NATS or Liftbridge, got {without_secrets(source)}"
        )
    addresses = tuple(dict.fromkeys(address for target in found for address in target.addresses))
    secure = any(target.secure for target in found)
    first = next((target.access for target in found if target.access is not given), given)
    logins: dict[Address, Access] = {}
    for target in found:
        has_own = target.access is not given or given.has_login
        logins.setdefault(target.addresses[0], target.access if has_own else first)
    return Target(found[0].kind, addresses, logins[addresses[0]], secure, logins)


def _client_target(options: Options, access: Access | None) -> Target:
    if access is not None:
        raise UsageError("access must be None with a client, which has its own options")
    own = Access(
        tls=options.context,
        connect_timeout=options.connect_timeout,
        timeout=options.timeout,
        reconnect_wait=options.resubscribe_wait,
        max_message_bytes=options.max_message_bytes,
        max_request_bytes=options.max_request_bytes,
        max_brokers=options.max_brokers,
        max_partitions=options.max_partitions,
        max_header_bytes=options.max_header_bytes,
        prefetch_bytes=options.prefetch_bytes,
        address_map=options.address_map,
        tls_server_name=options.tls_server_name,
    )
    addresses = tuple(parse_address(seed) for seed in options.seeds)
    return Target(ServerKind.LIFTBRIDGE, addresses, own, options.context is not None)


def _parse_url(text: object, access: Access) -> Target:
    if not isinstance(text, str):
        raise UsageTypeError(f"a URL must be str, got {type(text).__name__}")
    url = text.strip()
    if "://" not in url:
        secure = access.context is not None
        return Target(ServerKind.LIFTBRIDGE, (parse_address(url),), access, secure)
    expected = "nats://host:port, tls://host:port or liftbridge://host:port"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise UsageError(f"a URL must be {expected}, got {without_secrets(url)!r}") from None
    if parts.scheme not in _PORTS or not parts.hostname or parts.path.strip("/") or parts.query:
        raise UsageError(f"a URL must be {expected}, got {without_secrets(url)!r}")
    address = Address(parts.hostname, port or _PORTS[parts.scheme])
    if parts.scheme == "liftbridge":
        if parts.username is not None:
            raise UsageError(f"a liftbridge:// URL must not have a user, got {without_secrets(url)!r}")
        return Target(ServerKind.LIFTBRIDGE, (address,), access, access.context is not None)
    secure = parts.scheme == "tls" or access.context is not None
    if login := login_in(parts):
        access = replace(access, **{**_NO_LOGIN, **login})
    return Target(ServerKind.NATS, (address,), access, secure)

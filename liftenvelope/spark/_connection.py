"""Connection options of sources and sinks.

Values are plain so that they can be pickled to tasks; the TLS context is created where it is used.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from liftenvelope._checks import with_options
from liftenvelope.bulk import Access
from liftenvelope.bulk.access import ServerKind, find_target
from liftenvelope.bulk.idle import IdleConnections
from liftenvelope.errors import UsageError
from liftenvelope.rpc.tls_files import client_context
from liftenvelope.spark._words import Words
from liftenvelope.spark.errors import OptionError

if TYPE_CHECKING:
    import ssl

__all__ = ["CONNECTION_OPTIONS", "FORMATS", "ConnectionSettings", "read_connection"]

#: Kind of server for each format.
FORMATS: Final = {"liftbridge": ServerKind.LIFTBRIDGE, "jetstream": ServerKind.NATS}
_SCHEMES: Final = {"liftbridge": ("liftbridge",), "jetstream": ("nats", "tls")}

_SHARED: Final = (
    "servers",
    "tls",
    "tlsCaFile",
    "tlsCertFile",
    "tlsKeyFile",
    "connectTimeout",
    "timeout",
    "reconnectWait",
    "stallTimeout",
)
#: Options by the fields of Access that they set.
_NATS_NAMES: Final = {
    "user": "user",
    "password": "password",
    "token": "token",
    "nkeys_seed": "nkeysSeedFile",
    "user_credentials": "credentialsFile",
    "domain": "domain",
    "api_prefix": "apiPrefix",
    "inbox_prefix": "inboxPrefix",
}
#: Options by the fields of Access that errors name.
_OPTIONS: Final = {
    **_NATS_NAMES,
    "max_message_bytes": "maxMessageBytes",
    "max_request_bytes": "maxRequestBytes",
}
#: Connection options of each format.
CONNECTION_OPTIONS: Final = {
    "liftbridge": (*_SHARED, "maxMessageBytes"),
    "jetstream": (*_SHARED, *_NATS_NAMES.values()),
}


@dataclass(frozen=True, kw_only=True)
class ConnectionSettings:
    """Connection settings as plain values.

    Attributes:
        format: ``"liftbridge"`` or ``"jetstream"``.
        servers: URLs.
        tls: Use TLS; None to follow the URLs and the server.
        ca_file: CA certificates to trust in place of the system's.
        cert_file: Client certificate.
        key_file: Private key, if it is not in ``cert_file``.
        access: All other settings.
    """

    format: str
    servers: tuple[str, ...] = field(repr=False)
    tls: bool | None
    ca_file: str | None
    cert_file: str | None
    key_file: str | None
    access: Access

    def open_in_task(self) -> Access:
        """Return the settings for a task: connections for requests stay open for later tasks of the process.

        Raises:
            OptionError: As for :meth:`open`.
        """
        return replace(self.open(), idle=_idle_of(self))

    def open(self) -> Access:
        """Return the access settings for bulk reads and writes.

        Raises:
            OptionError: A file can't be read, or holds no certificate.
        """
        if self.ca_file is None and self.cert_file is None:
            return _with_tls(self.access, self.tls)
        try:
            context = client_context(self.ca_file, self.cert_file, self.key_file)
        except OSError as exc:
            files = ", ".join(name for name in (self.ca_file, self.cert_file, self.key_file) if name)
            raise OptionError(f"TLS: {files} must be PEM files that every executor can read: {exc}") from exc
        return _with_tls(self.access, context)


#: Connections that the tasks of this process have kept, by all their connection options.
_IDLE: Final[deque[tuple[ConnectionSettings, IdleConnections]]] = deque(maxlen=16)
if sys.platform != "win32":
    # Two processes would read the answers of one connection.
    os.register_at_fork(after_in_child=_IDLE.clear)


def _idle_of(settings: ConnectionSettings) -> IdleConnections:
    for known, idle in [*_IDLE]:  # another thread may add one meanwhile
        if known == settings:
            return idle
    made = IdleConnections()
    _IDLE.append((settings, made))
    return made


def _with_tls(access: Access, tls: ssl.SSLContext | bool | None) -> Access:
    return replace(access, tls=tls)


def read_connection(format_: str, words: Words) -> ConnectionSettings:
    """Return the connection settings.

    Raises:
        OptionError: An option is malformed, or two conflict.
    """
    tls = words.truth("tls", default=False) if words.given("tls") else None
    files = words.given("tlsCaFile", "tlsCertFile", "tlsKeyFile")
    if tls is False and files:
        raise OptionError(f"tls=false and {files[0]} exclude each other; leave one of them out")
    if files and "tlsKeyFile" in files and "tlsCertFile" not in files:
        raise OptionError("tlsKeyFile needs tlsCertFile; give both")
    made = ConnectionSettings(
        format=format_,
        servers=_servers(format_, words),
        tls=tls,
        ca_file=words.text("tlsCaFile"),
        cert_file=words.text("tlsCertFile"),
        key_file=words.text("tlsKeyFile"),
        access=_access(format_, words),
    )
    try:
        find_target(made.servers, made.access)
    except UsageError as exc:
        raise OptionError(f"servers: {exc}") from exc
    return made


def _servers(format_: str, words: Words) -> tuple[str, ...]:
    schemes = _SCHEMES[format_]
    text = words.text("servers")
    if text is None:
        raise OptionError(f"servers must be given, such as {schemes[0]}://host:port")
    found = []
    for part in text.split(","):
        url = part.strip()
        scheme, separator, _ = url.partition("://")
        if separator and scheme not in schemes:
            raise OptionError(f"servers must be {schemes[0]}://host:port for {format_!r}, got {scheme}://...")
        found.append(url if separator else f"{schemes[0]}://{url}")
    return tuple(found)


def _access(format_: str, words: Words) -> Access:
    default = Access()
    values: dict[str, Any] = {
        "connect_timeout": words.seconds("connectTimeout", default.connect_timeout),
        "timeout": words.seconds("timeout", default.timeout),
        "reconnect_wait": words.seconds("reconnectWait", default.reconnect_wait),
        "stall_timeout": words.seconds("stallTimeout", default.stall_timeout),
    }
    if format_ == "liftbridge":
        values["max_message_bytes"] = words.number("maxMessageBytes") or default.max_message_bytes
        values["max_request_bytes"] = words.number("maxRequestBytes") or default.max_request_bytes
        values["read_isr_replica"] = words.truth("readISRReplica", default=False)
    else:
        values |= {name: words.text(option) for name, option in _NATS_NAMES.items()}
        values["inbox_prefix"] = values["inbox_prefix"] or default.inbox_prefix
    try:
        return Access(**values)
    except UsageError as exc:
        raise OptionError(with_options(str(exc), _OPTIONS.get, between="=")) from exc

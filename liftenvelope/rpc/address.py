"""Server addresses: ``host:port``."""

from __future__ import annotations

import socket
import time
from typing import Final, NamedTuple

from liftenvelope._secrets import without_secrets
from liftenvelope.errors import UsageError

__all__ = ["Address", "connect", "parse_address"]

_PORT_DIGITS: Final = 5
#: Characters of an address shown in an error: the address may come from a server.
_SHOWN: Final = 300
#: Seconds of the shortest attempt to connect. A time-out of 0 would make the socket non-blocking.
_SHORTEST: Final = 0.001


class Address(NamedTuple):
    """Host and port. ``str()`` returns ``host:port``, with brackets around an IPv6 host."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Parse a ``host:port`` address.

    Args:
        text: ``host:port``, or ``[host]:port`` for an IPv6 host.

    Raises:
        UsageError: ``text`` has neither form, or the port is not in 1 to 65535.

    >>> parse_address("127.0.0.1:9292")
    Address(host='127.0.0.1', port=9292)
    """
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise UsageError(
            f"address must have brackets, as in [::1]:9292, got {without_secrets(text)[:_SHOWN]!r}"
        )
    is_port = len(port) <= _PORT_DIGITS and port.isascii() and port.isdigit() and 1 <= int(port) <= 65535
    if not (colon and is_port and _is_host(host)):
        raise UsageError(f"address must be host:port, got {without_secrets(text)[:_SHOWN]!r}")
    return Address(host, int(port))


def connect(address: Address, timeout: float) -> socket.socket:
    """Connect to the first IP address of a host that accepts.

    ``socket.create_connection`` gives each IP address the whole time-out. Here all of them share it, so that
    an address that does not answer leaves time for the next ones.

    Args:
        address: Host and port.
        timeout: Seconds to connect. The lookup of the host counts, but is not interrupted.

    Returns:
        The connected socket, with a time-out.

    Raises:
        OSError: The host is unknown, or no address accepted: the error of the last one.
    """
    deadline = time.monotonic() + timeout
    found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)
    last = OSError(f"{address.host} has no IP address")
    for tried, (family, kind, protocol, _, target) in enumerate(found):
        connection = socket.socket(family, kind, protocol)
        try:
            connection.settimeout(max((deadline - time.monotonic()) / (len(found) - tried), _SHORTEST))
            connection.connect(target)
        except OSError as exc:
            connection.close()
            last = exc
        except BaseException:
            connection.close()
            raise
        else:
            return connection
    raise last


def _is_host(host: str) -> bool:
    """Return True if the resolver accepts the host: others make it raise UnicodeError or ValueError."""
    if not host or "@" in host or not host.isprintable() or any(character.isspace() for character in host):
        return False
    try:
        host.encode("idna")
    except UnicodeError:  # a label that is empty or longer than 63 characters
        return False
    return True

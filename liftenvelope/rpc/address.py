"""Server addresses: ``host:port``."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from liftenvelope._secrets import without_secrets
from liftenvelope.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["LONGEST_WAIT", "Address", "attempts", "connect", "connect_async", "is_loopback", "parse_address"]

_Found: TypeAlias = tuple[socket.AddressFamily, socket.SocketKind, int, str, Any]
_TCP: Final = socket.SOCK_STREAM

_PORT_DIGITS: Final = 5
#: Characters of an address shown in an error: the address may come from a server.
_SHOWN: Final = 300
#: Seconds of the shortest attempt to connect. A time-out of 0 would make the socket non-blocking.
_SHORTEST: Final = 0.001
#: Seconds of the longest single wait of a socket: poll() takes at most 24 days, and settimeout() 292 years.
LONGEST_WAIT: Final = 86_400.0


class Address(NamedTuple):
    """Host and port. ``str()`` returns ``host:port``, with brackets around an IPv6 host."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def is_loopback(host: str) -> bool:
    """Return True if a host is this machine.

    Example:
        >>> is_loopback("localhost"), is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("example.org")
        (True, True, True, False)
    """
    try:
        return ipaddress.ip_address(host.strip("[]").partition("%")[0]).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost"


def parse_address(text: str, *, any_port: bool = False) -> Address:
    """Parse a ``host:port`` address.

    Args:
        text: ``host:port``, or ``[host]:port`` for an IPv6 host.
        any_port: Whether port 0 is valid, which stands for any free port to listen on. Default false.

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
    is_number = len(port) <= _PORT_DIGITS and port.isascii() and port.isdigit()
    if not (colon and is_number and _is_host(host)):
        raise UsageError(f"address must be host:port, got {without_secrets(text)[:_SHOWN]!r}")
    least = 0 if any_port else 1
    if not least <= int(port) <= 65535:
        raise UsageError(f"address must have a port from {least} to 65535, got {text[:_SHOWN]!r}")
    return Address(host, int(port))


def connect(address: Address, timeout: float) -> socket.socket:
    """Connect to the first IP address of a host that accepts.

    Args:
        address: Host and port.
        timeout: Seconds to connect, for all IP addresses together; see :func:`attempts`. The lookup of the
            host counts, but is not interrupted.

    Returns:
        The connected socket, with a time-out.

    Raises:
        OSError: The host is unknown, or no address accepted: the error of the last one.
    """
    deadline = time.monotonic() + timeout
    last = OSError(f"{address.host} has no IP address")
    for connection, target, seconds in attempts(socket.getaddrinfo(*address, type=_TCP), deadline):
        try:
            connection.settimeout(min(seconds, LONGEST_WAIT))
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


async def connect_async(address: Address, timeout: float) -> socket.socket:
    """Connect like :func:`connect`, in the running event loop; return a non-blocking socket."""
    loop = asyncio.get_running_loop()
    deadline = time.monotonic() + timeout
    try:  # without a thread, if the host is an IP address
        found = socket.getaddrinfo(*address, type=_TCP, flags=socket.AI_NUMERICHOST)
    except OSError:
        found = await loop.getaddrinfo(*address, type=_TCP)
    last = OSError(f"{address.host} has no IP address")
    for connection, target, seconds in attempts(found, deadline):
        try:
            connection.setblocking(False)
            async with asyncio.timeout(seconds):
                await loop.sock_connect(connection, target)
        except OSError as exc:
            connection.close()
            last = exc
        except BaseException:
            connection.close()
            raise
        else:
            return connection
    raise last


def attempts(found: Sequence[_Found], deadline: float) -> Iterator[tuple[socket.socket, Any, float]]:
    """Yield a socket for each IP address of a host, the address, and the seconds to wait for it.

    The addresses share the time until the deadline, so that one which does not answer leaves time for the
    next ones. ``socket.create_connection`` gives each the whole time, and asyncio gives it to the first.

    Args:
        found: Result of ``getaddrinfo``.
        deadline: Deadline by ``time.monotonic()``.

    Raises:
        OSError: The system has no socket for the last address. Earlier ones of that kind are left out.
    """
    for tried, (family, kind, protocol, _, target) in enumerate(found):
        left = len(found) - tried
        try:
            connection = socket.socket(family, kind, protocol)
        except OSError:  # such as for IPv6 on a system without it
            if left == 1:
                raise
            continue
        yield connection, target, max((deadline - time.monotonic()) / left, _SHORTEST)


def _is_host(host: str) -> bool:
    """Return True if the resolver accepts the host: others make it raise UnicodeError or ValueError."""
    if not host or "@" in host or not host.isprintable() or any(character.isspace() for character in host):
        return False
    try:
        host.encode("idna")
    except UnicodeError:  # a label that is empty or longer than 63 characters
        return False
    return True

"""Chooses the connection that makes room for a new one when no place is free.

The client that holds most places gives one up, so that one client, whether hostile or leaking, can't keep the
others out. Among its connections without a call, those that never had one go first, then the one that has
been silent for longest, as nginx reuses idle connections. A connection with calls goes only if its client and
its address hold at least two places more than the newcomer's address: otherwise two clients of equal need
would take places from each other for ever. If any other client has an idle connection without a frame, that
one goes instead. Addresses are compared because a newcomer has no certificate yet. Each such exchange makes
the addresses more equal, so the exchanges end.

A client is the subject of its certificate. Without one it is its address, of IPv6 the network of 64 bits.
"""

from __future__ import annotations

import logging
import resource
import socket
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, Protocol

from liftenvelope._logs.throttle import Throttle

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Set

__all__ = ["ConnectionPlaces", "Occupant", "client_of", "place_to_free"]

_log: Final = logging.getLogger("liftenvelope.rpc")
#: File descriptors reserved for the rest of the process.
_RESERVED_DESCRIPTORS: Final = 64


class Occupant(Protocol):
    """A connection, or a handshake in progress.

    Attributes:
        client: Client of the connection, as from :func:`client_of`.
        address: The same without the certificate.
        active_at: Time of the last received bytes, in seconds of a monotonic clock.
    """

    client: str
    address: str
    active_at: float

    @property
    def is_idle(self) -> bool:
        """True while the connection has no call."""

    @property
    def standing(self) -> int:
        """0 until a frame of HTTP/2 came, 1 until the first call, 2 from then on."""

    def give_up(self) -> None:
        """Close the connection at once."""


def place_to_free(places: Iterable[Occupant], newcomer: str) -> Occupant | None:
    """Return the connection to close for a new one, None if the new one must be refused.

    Args:
        places: Open connections and handshakes in progress.
        newcomer: Address of the new connection, as from :func:`client_of` without a certificate.
    """
    found = list(places)
    held = Counter(place.client for place in found)
    most = max(held.values(), default=0)
    greediest = [place for place in found if held[place.client] == most]
    candidates = [place for place in greediest if place.is_idle]
    if not candidates:
        near = Counter(place.address for place in found)
        candidates = [place for place in greediest if min(most, near[place.address]) > near[newcomer] + 1]
        if candidates:
            silent = [place for place in found if place.is_idle and place.standing == 0]
            candidates = silent or candidates
    return min(candidates, key=lambda place: (place.standing, place.active_at), default=None)


class ConnectionPlaces:
    """Decides which connections stay open when no place is free.

    Args:
        links: Open connections, kept up to date by the caller.
        most: Most connections and handshakes at once.

    Attributes:
        refused: Number of connections that were closed because no place was free.
    """

    def __init__(self, links: Set[Occupant], most: int) -> None:
        self._links = links
        self._most = most
        self._throttle = Throttle()
        self.refused = 0

    def admits(self, address: str, opening: Collection[Occupant]) -> bool:
        """Return whether a new connection gets a place; close another one if it must.

        Args:
            address: Address of the new connection, as from :func:`client_of` without a certificate.
            opening: Handshakes in progress.
        """
        # The process needs spare descriptors, for example to reconnect to its own servers.
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        spared = max(descriptors - _RESERVED_DESCRIPTORS, descriptors // 2)
        if len(self._links) + len(opening) < min(self._most, spared):
            return True
        self.refused += 1
        if self._throttle.admits("full", time.monotonic()):
            _log.warning("a connection was closed: as many are open as the limits allow")
        if (place := place_to_free([*self._links, *opening], address)) is None:
            return False
        place.give_up()
        return True


def client_of(peer: Any, certificate: Mapping[str, Any] | None = None) -> str:
    """Return the client of a connection.

    Args:
        peer: Address of the socket's other end, as from ``getpeername``.
        certificate: Certificate of the client, as from ``ssl.SSLSocket.getpeercert``.

    Example:
        >>> client_of(("10.0.0.1", 4222)), client_of(("2001:db8::1", 4222, 0, 0))
        ('10.0.0.1', '2001:db8::')
    """
    if certificate and certificate.get("subject"):
        return str(certificate["subject"])
    host = str(peer[0]) if isinstance(peer, tuple) and peer else ""
    try:
        network = socket.inet_pton(socket.AF_INET6, host)[:8]
    except OSError:
        return host
    return socket.inet_ntop(socket.AF_INET6, network + bytes(8))

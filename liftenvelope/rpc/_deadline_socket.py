"""Socket of the blocking client: non-blocking calls, and waits with a deadline."""

from __future__ import annotations

import math
import select
import socket
import ssl
import time
from typing import TYPE_CHECKING, Final

from liftenvelope.errors import TransportError
from liftenvelope.rpc.address import LONGEST_WAIT, connect
from liftenvelope.rpc.tls import check_protocol, offer_http2

if TYPE_CHECKING:
    from liftenvelope.rpc.address import Address

__all__ = ["NOT_YET", "DeadlineSocket", "remaining"]

#: Errors of a non-blocking socket that has no data, or no room, yet.
NOT_YET: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_LATE: Final = "timed out"


def remaining(deadline: float | None) -> float | None:
    """Return the seconds to wait, at most ``LONGEST_WAIT``, or raise TimeoutError after ``deadline``."""
    if deadline is None:
        return None
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError(_LATE)
    return min(left, LONGEST_WAIT)


class DeadlineSocket:
    """Connected socket, after the TLS handshake if ``tls`` is given.

    The socket is non-blocking, so that a read that finds data is one system call. A socket with a timeout
    takes three: one to set the timeout, one to wait, and one to read.
    """

    def __init__(
        self, address: Address, tls: ssl.SSLContext | None, server_name: str | None, timeout: float
    ) -> None:
        self._socket = _connect(address, tls, server_name, timeout)
        self._socket.setblocking(False)
        self._readable, self._writable = select.poll(), select.poll()
        self._readable.register(self._socket, select.POLLIN)
        self._writable.register(self._socket, select.POLLOUT)

    def receive_into(self, buffer: memoryview) -> int:
        """Read what is there into the buffer; return its size, 0 at the end of the connection.

        Raises:
            OSError: The connection was lost, or one of ``NOT_YET``: nothing is there.
        """
        return self._socket.recv_into(buffer)

    def wait(self, error: Exception, deadline: float | None) -> None:
        """Wait until the call that raised this ``NOT_YET`` error can succeed.

        Raises:
            TimeoutError: The deadline has passed.
        """
        left = remaining(deadline)
        poll = self._writable if isinstance(error, ssl.SSLWantWriteError) else self._readable
        # The caller reads again, and waits again until the deadline has passed.
        poll.poll(None if left is None else math.ceil(left * 1000))

    def send(self, data: bytes, deadline: float | None) -> None:
        """Send all the data.

        Raises:
            OSError: The data was sent in part or not at all. TimeoutError: not before the deadline.
        """
        try:
            sent = self._socket.send(data)
        except NOT_YET:
            sent = 0
        if sent < len(data):
            self._socket.settimeout(remaining(deadline))
            try:
                self._socket.sendall(memoryview(data)[sent:])
            finally:
                self._socket.setblocking(False)

    def close(self) -> None:
        """Close the connection. Closing twice is fine."""
        self._socket.close()


def _connect(
    address: Address, tls: ssl.SSLContext | None, server_name: str | None, timeout: float
) -> socket.socket:
    deadline = time.monotonic() + timeout
    connection = connect(address, timeout)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is None:
            return connection
        offer_http2(tls)
        connection.settimeout(remaining(deadline))
        secured = tls.wrap_socket(connection, server_hostname=server_name or address.host)
    except BaseException:
        connection.close()
        raise
    try:
        check_protocol(secured, address)
    except TransportError:
        secured.close()
        raise
    return secured

"""Socket of the blocking client: the bounds of its waits."""

from __future__ import annotations

import socket
import threading
import time

from liftenvelope.rpc._deadline_socket import DeadlineSocket
from liftenvelope.rpc.address import Address


def test_send_with_a_deadline_in_centuries_waits_for_room() -> None:
    """``socket.settimeout`` takes at most 292 years."""
    data = b"x" * 16_000_000  # more than the buffers of both sockets hold
    received = 0

    def receive() -> None:
        nonlocal received
        accepted, _ = listening.accept()
        with accepted:
            while piece := accepted.recv(1_000_000):
                received += len(piece)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        receiving = threading.Thread(target=receive, daemon=True)
        receiving.start()
        sending = DeadlineSocket(Address("127.0.0.1", listening.getsockname()[1]), None, None, 60.0)
        sending.send(data, time.monotonic() + 1e10)
        sending.close()
        receiving.join(60)
    assert received == len(data)

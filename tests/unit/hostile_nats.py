"""FAKE, NOT REAL: NATS servers that attack their client.

A real server can't be made to send any of this. The greeting, the answers and the lines that an attack does
not name are those that nats-server 2.15.1 was seen to send (see bulk/test_scripted.py).
"""

from __future__ import annotations

import json
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

INFO = (
    b'INFO {"server_id":"NFAKE","server_name":"fake","version":"2.15.1","proto":1,"git_commit":"b2fd3ef",'
    b'"go":"go1.27.2","host":"127.0.0.1","port":4222,"headers":true,"max_payload":1048576,"jetstream":true,'
    b'"client_id":6,"client_ip":"127.0.0.1","api_lvl":5,"xkey":"XFAKE"} \r\n'
)
STREAM_INFO = {
    "type": "io.nats.jetstream.api.v1.stream_info_response",
    "config": {"name": "S", "subjects": ["s"], "retention": "limits", "max_msgs_per_subject": -1},
    "created": "2026-11-22T11:33:47.261543417Z",
    "state": {"messages": 5, "bytes": 100, "first_seq": 1, "last_seq": 5, "consumer_count": 0},
}
CONSUMER_INFO = {
    "type": "io.nats.jetstream.api.v1.consumer_create_response",
    "stream_name": "S",
    "name": "C",
    "created": "2026-11-22T11:33:48.69183133Z",
    "config": {"name": "C", "ack_policy": "none", "deliver_policy": "all", "replay_policy": "instant"},
    "delivered": {"consumer_seq": 0, "stream_seq": 0},
    "ack_floor": {"consumer_seq": 0, "stream_seq": 0},
    "num_ack_pending": 0,
    "num_redelivered": 0,
    "num_waiting": 0,
    "num_pending": 5,
}
#: What a subject is answered by, unless the test says otherwise.
USUAL = {
    b"STREAM.INFO.": STREAM_INFO,
    b"CONSUMER.CREATE.": CONSUMER_INFO,
    b"CONSUMER.DELETE.": {"success": True},
    b"STREAM.NAMES": {"total": 1, "offset": 0, "limit": 1024, "streams": ["S"]},
}
_PUB = re.compile(rb"H?PUB (\S+) (?:(\S+) )?(?:\d+ )?(\d+)")

#: Returns what the server sends for a subject, a reply subject and the number of a subscription.
Script = Callable[[bytes, bytes, int], bytes]


def msg(subject: bytes, sid: int, payload: bytes) -> bytes:
    return b"MSG %b %d %d\r\n%b\r\n" % (subject, sid, len(payload), payload)


def status(subject: bytes, sid: int, text: bytes) -> bytes:
    block = b"NATS/1.0 %b\r\n\r\n" % text
    return b"HMSG %b %d %d %d\r\n%b\r\n" % (subject, sid, len(block), len(block), block)


def usual(subject: bytes, reply: bytes, sid: int) -> bytes:
    """Return a server's answer to a request of the API; empty for other messages."""
    request = subject.removeprefix(b"$JS.API.")
    found = next((answer for start, answer in USUAL.items() if request.startswith(start)), None)
    return b"" if found is None else msg(reply, sid, json.dumps(found).encode())


@dataclass
class FakeNats:
    """A server on a port of its own, for any number of connections.

    Attributes:
        script: What it answers.
        greeting: What it sends first.
        first_answer: What it sends when a connection has said anything at all.
        after_connect: What it sends when it has read CONNECT and PING.
        endless: What it sends for ever after that, as fast as the client reads.
        context: To speak TLS after the greeting.
        received: What each connection has sent, in the order of the connections.
    """

    script: Script = usual
    greeting: bytes = INFO
    first_answer: bytes = b""
    after_connect: bytes = b"PONG\r\n"
    endless: bytes = b""
    context: ssl.SSLContext | None = None
    received: list[bytearray] = field(default_factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @contextmanager
    def running(self) -> Iterator[FakeNats]:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            self.port = listening.getsockname()[1]
            open_: list[socket.socket] = []
            threads: list[threading.Thread] = []

            def accept() -> None:
                while True:
                    try:
                        connection, _ = listening.accept()
                    except OSError:
                        return
                    open_.append(connection)
                    threads.append(threading.Thread(target=self._serve, args=(connection, open_)))
                    threads[-1].start()

            accepting = threading.Thread(target=accept)
            accepting.start()
            try:
                yield self
            finally:
                listening.shutdown(socket.SHUT_RDWR)
                accepting.join(60)
                for connection in open_:
                    try:
                        # Not the method of an SSLSocket: its thread may be reading.
                        socket.socket.shutdown(connection, socket.SHUT_RDWR)
                    except OSError:
                        continue  # the client has closed it, or TLS has taken it over
                for thread in threads:
                    thread.join(60)

    def _serve(self, connection: socket.socket, open_: list[socket.socket]) -> None:
        data = bytearray()
        self.received.append(data)
        try:
            with connection:
                connection.sendall(self.greeting)
                if self.context is None:
                    self._talk(connection, data)
                else:
                    with self.context.wrap_socket(
                        connection, server_side=True, do_handshake_on_connect=False
                    ) as secure:
                        open_.append(secure)
                        secure.do_handshake()
                        self._talk(secure, data)
        except OSError:
            return  # the client has had enough

    def _talk(self, connection: socket.socket, data: bytearray) -> None:
        at, sids = 0, dict[bytes, int]()
        while piece := connection.recv(65_536):
            if self.first_answer and not data:
                connection.sendall(self.first_answer)
            data += piece
            while (end := data.find(b"\r\n", at)) >= 0:
                line, found = bytes(data[at:end]), _PUB.fullmatch(bytes(data[at:end]))
                after = end + 2 + (int(found[3]) + 2 if found else 0)
                if len(data) < after:
                    break
                at = after
                if line == b"PING":
                    connection.sendall(self.after_connect)
                    while self.endless:
                        connection.sendall(self.endless)
                elif line.startswith(b"SUB "):
                    words = line.split()
                    sids[words[1].rpartition(b".")[0]] = sids[words[1]] = int(words[-1])
                elif found and found[2]:
                    sid = sids.get(found[2]) or sids.get(found[2].rpartition(b".")[0]) or 1
                    connection.sendall(self.script(found[1], found[2], sid))

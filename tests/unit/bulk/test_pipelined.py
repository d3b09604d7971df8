"""Pipelined writes on servers that are FAKE: the moments at which acks come can't be chosen on real ones."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from liftenvelope import bulk
from liftenvelope.bulk import Access, WriteFailedError
from liftenvelope.bulk._jetstream.nats_socket import NatsSocket
from liftenvelope.bulk._writes.publisher import WriteLink
from tests.unit.hostile_nats import FakeNats, msg, usual

#: Rows 10 to 29 are in flight when the first connection is lost.
ROWS, ACKED, IN_FLIGHT = 40, 10, 20


class LateAcks:
    """A server that loses the first connection with rows in flight.

    Args:
        ends_again: True to lose every other connection as well, at its first row. False to ack over the next
            one all rows that came over the first, once one of them comes again.
    """

    def __init__(self, *, ends_again: bool) -> None:
        self.server = FakeNats(self)
        self.ends_again = ends_again
        self.again: list[int] = []
        #: The connection that carried the newest row.
        self.carrier: NatsSocket | None = None
        self._is_heard = False

    def look(self, link: WriteLink, heard: Callable[[], bool]) -> None:
        """Do as ``WriteLink.look``, but wait for late acks after the first piece of the next connection."""
        if len(self.server.received) > 1 and self.carrier is link.socket and not self._is_heard:
            self._is_heard = True
            assert link.socket.fill(60)
            heard()
        while link.socket.fill(0):
            heard()

    def __call__(self, subject: bytes, reply: bytes, sid: int) -> bytes:
        if subject.startswith(b"$JS.API"):
            return usual(subject, reply, sid)
        inbox, _, word = reply.rpartition(b".")
        row = int(word)
        if len(self.server.received) == 1:
            if row == ACKED + IN_FLIGHT - 1:
                raise ConnectionResetError
            return acks(inbox, sid, row, row + 1) if row < ACKED else b""
        if self.ends_again:
            raise ConnectionResetError
        self.again.append(row)
        if row >= ACKED + IN_FLIGHT:
            return acks(inbox, sid, row, row + 1)
        return acks(inbox, sid, ACKED, ACKED + IN_FLIGHT) if row == ACKED else b""


def acks(inbox: bytes, sid: int, start: int, stop: int) -> bytes:
    rows = range(start, stop)
    return b"".join(msg(b"%b.%d" % (inbox, row), sid, b'{"stream":"S","seq":%d}' % (row + 1)) for row in rows)


def listen_to(late: LateAcks, monkeypatch: pytest.MonkeyPatch) -> None:
    def look(link: WriteLink, heard: Callable[[], bool]) -> None:
        late.look(link, heard)

    send = NatsSocket.send

    def sent(socket: NatsSocket, data: bytes, deadline: float | None = None) -> None:
        if b"PUB s " in data:
            late.carrier = socket
        send(socket, data, deadline)

    monkeypatch.setattr(WriteLink, "look", look)
    monkeypatch.setattr(NatsSocket, "send", sent)


def write(url: str, access: Access) -> bulk.Written:
    rows = pa.table({"value": [b"%d" % row for row in range(ROWS)]}).to_reader(10)
    options = {"subject": "s", "mode": "pipelined", "message_id": "job", "max_in_flight": IN_FLIGHT}
    return bulk.write(url, "S", rows, access=access, **options)  # type: ignore[arg-type]


def test_late_acks_of_the_lost_connection_count_over_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    late = LateAcks(ends_again=False)
    listen_to(late, monkeypatch)
    with late.server.running() as server:
        written = write(server.url, Access(timeout=60, reconnect_wait=60))
    assert (written.acked, written.offsets) == (ROWS, {0: (0, ROWS - 1)})
    assert late.again[0] == ACKED
    assert len(late.again) < ROWS - ACKED  # rows whose acks came late are not sent again


def test_rows_that_only_the_lost_connection_carried_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    late = LateAcks(ends_again=True)
    listen_to(late, monkeypatch)
    with late.server.running() as server, pytest.raises(WriteFailedError) as caught:
        write(server.url, Access(timeout=60, reconnect_wait=1))
    assert len(late.server.received) > 1
    assert (caught.value.acked, caught.value.unknown) == (ACKED, IN_FLIGHT)

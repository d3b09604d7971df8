"""A batch of fast ingest, against a server that keeps the rules of ADR-50.

The answers and their order are those of nats-server 2.15.1, but for its stream's name and its numbers.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftenvelope.bulk._writes.fast_batch import FastBatch
from liftenvelope.errors import JetStreamError, NoJetStreamError, WrongLastSequenceError, WrongStreamError

INBOX = b"_INBOX.a."
ERROR = {"code": 400, "err_code": 10071, "description": "wrong last sequence: 2"}
UNKNOWN = {"code": 400, "err_code": 10208, "description": "batch publish ID unknown"}


def make(rows: int = 1_000, flow: int = 500, **options: Any) -> FastBatch:
    return FastBatch(INBOX, "b-1", "S", 70, rows, flow, **options)


def answer(batch: FastBatch, number: int, said: Any, what: int = 1) -> None:
    batch.take(f"_INBOX.a.b-1.500.fail.{number}.{what}.$FI", None, json.dumps(said).encode())


def test_the_replies() -> None:
    batch = make()
    assert (batch.reply, batch.tail) == (b"_INBOX.a.b-1.500.fail.", b".0.$FI")
    batch.sent = 3
    assert batch.tail == b".1.$FI"
    assert batch.last_word() == b"_INBOX.a.b-1.500.fail.4.3.$FI"
    assert batch.question() == b"_INBOX.a.b-1.500.fail.3.4.$FI"
    assert make(1).tail == b".2.$FI"


def test_a_batch_is_stored() -> None:
    batch = make(600)
    assert batch.room == 498  # nothing is known of the server yet
    batch.sent = 498
    assert batch.room == 0
    answer(batch, 1, {"type": "ack", "seq": 0, "msgs": 500}, 0)
    assert (batch.stored, batch.room) == (0, 102)
    batch.sent = 600
    answer(batch, 500, {"type": "ack", "seq": 500, "msgs": 500})
    assert (batch.stored, batch.room, batch.has_ended, batch.count) == (500, 0, False, None)
    answer(batch, 601, {"stream": "S", "seq": 1_700, "batch": "b-1", "count": 600}, 3)
    assert (batch.has_ended, batch.count, batch.error) == (True, 600, None)
    assert batch.ack is not None
    assert batch.ack.sequence == 1_700


@pytest.mark.parametrize(("count", "is_cut_short"), [(600, False), (599, True), (0, True)])
def test_batch_that_ends_before_its_last_row_was_cut_short(count: int, is_cut_short: bool) -> None:
    batch = make(600)
    batch.sent = 600
    assert not batch.was_cut_short
    answer(batch, 601, {"stream": "S", "seq": 1_700, "batch": "b-1", "count": count}, 3)
    assert batch.was_cut_short is is_cut_short
    assert batch.stored == count


def test_batch_with_a_refused_row_was_not_cut_short() -> None:
    batch = make(600)
    batch.sent = 600
    answer(batch, 3, {"type": "err", "stream": "S", "seq": 3, "error": ERROR})
    answer(batch, 3, {"stream": "S", "seq": 1_102, "batch": "b-1", "count": 2})
    assert batch.error is not None
    assert not batch.was_cut_short


def test_fewer_at_a_time_where_others_publish_too() -> None:
    batch = make(step=10)
    assert batch.room == 30
    batch.sent = 30
    answer(batch, 30, {"type": "ack", "seq": 30, "msgs": 2})
    assert (batch.step, batch.room) == (2, 6)


def test_a_row_in_the_middle_is_refused() -> None:
    batch = make()
    batch.sent = 90
    answer(batch, 1, {"type": "ack", "seq": 0, "msgs": 500}, 0)
    answer(batch, 7, {"type": "err", "seq": 7, "error": ERROR})
    assert (batch.has_ended, batch.count) == (False, None)
    answer(batch, 7, {"stream": "S", "seq": 6, "batch": "b-1", "count": 6})
    answer(batch, 8, {"error": UNKNOWN, "stream": "S", "seq": 0})
    assert (batch.has_ended, batch.count) == (True, 6)
    assert batch.error is not None
    assert (batch.error[0], type(batch.error[1])) == (7, WrongLastSequenceError)


def test_a_gap_ends_the_batch() -> None:
    batch = make()
    batch.sent = 90
    answer(batch, 1, {"type": "ack", "seq": 0, "msgs": 1}, 0)
    answer(batch, 1, {"type": "ack", "seq": 1, "msgs": 2}, 0)
    answer(batch, 4, {"type": "gap", "last_seq": 2, "seq": 4})
    assert (batch.has_ended, batch.count) == (False, None)
    answer(batch, 4, {"stream": "S", "seq": 36, "batch": "b-1", "count": 1})
    answer(batch, 5, {"error": UNKNOWN, "stream": "S", "seq": 0})
    assert (batch.has_ended, batch.count, batch.error) == (True, 1, None)


def cut_at_the_gap() -> FastBatch:
    """A batch whose second row the stream did not get."""
    batch = make()
    batch.sent = 90
    answer(batch, 3, {"stream": "S", "seq": 36, "batch": "b-1", "count": 1})
    assert batch.was_cut_short
    assert batch.gap_question() == b"_INBOX.a.b-1.500.fail.2.4.$FI"
    return batch


@pytest.mark.parametrize("what", [1, 4], ids=["to the row", "to the question"])
def test_answer_of_another_stream_about_the_gap_refuses_the_row(what: int) -> None:
    batch = cut_at_the_gap()
    answer(batch, 2, {"error": UNKNOWN, "stream": "T", "seq": 0}, what)
    assert batch.error is not None
    assert (batch.error[0], type(batch.error[1])) == (2, WrongStreamError)
    assert (batch.count, batch.was_cut_short) == (1, False)


def test_subject_of_the_gap_that_no_stream_records_refuses_the_row() -> None:
    batch = cut_at_the_gap()
    batch.take("_INBOX.a.b-1.500.fail.2.4.$FI", (503, ""), b"")
    assert batch.error is not None
    assert (batch.error[0], type(batch.error[1]), batch.count) == (2, NoJetStreamError, 1)


def test_answer_of_the_stream_itself_about_the_gap_lets_the_row_be_sent_again() -> None:
    batch = cut_at_the_gap()
    answer(batch, 3, {"error": UNKNOWN, "stream": "S", "seq": 0})
    assert not batch.is_gap_ours
    answer(batch, 2, {"error": UNKNOWN, "stream": "S", "seq": 0}, 4)
    assert batch.is_gap_ours
    assert (batch.error, batch.count, batch.was_cut_short) == (None, 1, True)


def test_the_first_row_is_refused() -> None:
    batch = make()
    batch.sent = 90
    answer(batch, 1, {"type": "ack", "seq": 0, "msgs": 500}, 0)
    answer(batch, 1, {"error": ERROR, "stream": "S", "seq": 0}, 0)
    assert (batch.has_ended, batch.count) == (True, 0)
    answer(batch, 2, {"error": UNKNOWN, "stream": "S", "seq": 0})
    assert batch.error is not None
    assert (batch.error[0], batch.count) == (1, 0)


def test_the_first_row_is_stored_already() -> None:
    """Only a batch of one row is told so; in a longer one it counts as stored."""
    batch = make(1)
    batch.sent = 1
    answer(batch, 1, {"stream": "S", "seq": 1, "duplicate": True, "batch": "b-1", "count": 1}, 2)
    assert (batch.count, batch.ack and batch.ack.duplicate) == (1, True)


def test_another_stream() -> None:
    batch = make()
    batch.sent = 90
    answer(batch, 5, {"error": UNKNOWN, "stream": "OTHER", "seq": 0})
    assert not batch.is_unknown
    assert batch.error is not None
    assert (batch.error[0], type(batch.error[1])) == (5, WrongStreamError)


def test_a_server_that_has_forgotten() -> None:
    batch = make()
    batch.sent = 700
    answer(batch, 500, {"type": "ack", "seq": 500, "msgs": 500})
    answer(batch, 701, {"error": UNKNOWN, "stream": "S", "seq": 0}, 3)
    assert (batch.has_ended, batch.count, batch.stored, batch.error) == (True, None, 500, None)


@pytest.mark.parametrize("what", [3, 4])
def test_a_server_that_takes_no_more_of_it(what: int) -> None:
    """So it answers the end and a question, too, when the stream's config was changed half-way."""
    batch = make()
    batch.sent = 10
    answer(
        batch,
        10,
        {
            "error": {"code": 400, "err_code": 10205, "description": "batch publish is disabled"},
            "stream": "S",
            "seq": 0,
        },
        what,
    )
    assert (batch.has_ended, batch.count) == (True, None)
    assert batch.error is not None
    assert (batch.error[0], batch.error[1].err_code) == (0, 10205)


def test_statuses() -> None:
    batch = make()
    batch.sent = 90
    batch.take("_INBOX.a.b-1.500.fail.91.3.$FI", (503, ""), b"")  # of its end: to be said again
    assert (batch.error, batch.has_ended) == (None, False)
    batch.take("_INBOX.a.b-1.500.fail.5.1.$FI", (429, "Too Many Requests"), b"")
    assert (batch.is_lossy, batch.must_end, batch.error) == (True, True, None)
    batch.take("_INBOX.a.b-1.500.fail.6.1.$FI", (503, ""), b"")
    assert batch.error is not None
    assert batch.error[0] == 6
    assert isinstance(batch.error[1], NoJetStreamError)
    assert "row 75" in str(batch.error[1])


@pytest.mark.parametrize(
    "subject",
    ["_INBOX.a.b-2.500.fail.1.1.$FI", "_INBOX.a.b-1.x", "_INBOX.a.b-1.500.fail.x.1.$FI", "_INBOX.a.7"],
)
def test_answers_of_others(subject: str) -> None:
    batch = make()
    batch.take(subject, None, json.dumps({"error": ERROR, "stream": "S", "seq": 0}).encode())
    assert (batch.error, batch.has_ended) == (None, False)


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"7", b'{"type":"ack"}', b'{"type":"err","seq":"x"}', b"\xff", b"{"]
)
def test_what_makes_no_sense(data: bytes) -> None:
    batch = make()
    batch.sent = 90
    batch.take("_INBOX.a.b-1.500.fail.1.1.$FI", None, data)
    assert (batch.has_ended, batch.count) == (True, None)
    assert batch.error is not None
    assert isinstance(batch.error[1], JetStreamError)


class Server:
    """Model of a server that stores a batch without gaps and may answer late."""

    def __init__(self, refuses: int, step: int) -> None:
        self.refuses, self.step = refuses, step
        self.stored = self.told = 0
        self.began = self.is_over = False
        self.answers: list[tuple[int, int, Any]] = []

    def take(self, number: int, what: int) -> None:
        if self.is_over or (not self.began and number != 1):
            self._say(number, what, {"error": UNKNOWN, "stream": "S", "seq": 0})
        elif what == 3 or number != self.stored + 1:
            if number != self.stored + 1:
                self._say(number, what, {"type": "gap", "last_seq": self.stored + 1, "seq": number})
            self._end(number, what)
        elif number == self.refuses:
            self._refuse(number, what)
        else:
            self._store(number, what)

    def _refuse(self, number: int, what: int) -> None:
        if number == 1:
            self.is_over = True
            if what != 2:
                self._say(number, what, {"type": "ack", "seq": 0, "msgs": self.step})
            self._say(number, what, {"error": ERROR, "stream": "S", "seq": 0})
        else:
            self._say(number, what, {"type": "err", "seq": number, "error": ERROR})
            self._end(number, what)

    def _store(self, number: int, what: int) -> None:
        self.began, self.stored = True, number
        if what == 2:
            self._end(number, what)
        elif number == 1:
            self._say(number, what, {"type": "ack", "seq": 0, "msgs": self.step})
        if what != 2 and number - self.told >= self.step:
            self.told = number
            self._say(number, what, {"type": "ack", "seq": number, "msgs": self.step})

    def _end(self, number: int, what: int) -> None:
        self.is_over = True
        self._say(number, what, {"stream": "S", "seq": self.stored, "batch": "b-1", "count": self.stored})

    def _say(self, number: int, what: int, said: Any) -> None:
        self.answers.append((number, what, said))


@given(
    rows=st.integers(1, 40),
    flow=st.integers(1, 12),
    lost=st.sets(st.integers(1, 40), max_size=2),
    refuses=st.integers(0, 60),
    late=st.lists(st.integers(0, 4), min_size=1, max_size=10),
)
def test_whatever_is_lost_the_count_is_right(
    rows: int, flow: int, lost: set[int], refuses: int, late: list[int]
) -> None:
    server, batch = Server(refuses, flow), make(rows, flow)
    turn = 0
    while not batch.has_ended:
        turn += 1
        assert turn < 1_000
        if batch.room and batch.error is None and batch.sent < rows:
            what = int(batch.tail.split(b".")[1])
            batch.sent += 1
            if batch.sent not in lost:
                server.take(batch.sent, what)
        elif not server.answers:  # silence, or all is sent: the end, perhaps again
            server.take(batch.sent + 1, 3)
        if late[turn % len(late)] == 0 or not batch.room or batch.sent == rows:
            for number, what, said in server.answers:
                answer(batch, number, said, what)
            server.answers.clear()
        assert batch.stored <= server.stored
        assert batch.room <= rows - batch.sent
    if batch.count is not None:
        assert batch.count == server.stored
    else:
        assert server.stored == 0  # its first row was lost
    if batch.count == rows:
        assert batch.error is None

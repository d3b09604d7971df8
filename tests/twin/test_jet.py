"""Publishes to JetStream and their acks: what both twins do, that they do the same, and a model of it."""

from __future__ import annotations

import gc
import json
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftenvelope._native import _fastjet
from liftenvelope.errors import UsageError, UsageTypeError
from tests.twin import readable

TWINS = pytest.mark.parametrize("jet", [readable.jet, _fastjet], ids=["python", "cython"])
HEAD, INBOX = b"PUB a _INBOX.x.", "_INBOX.x."


class Ack(NamedTuple):
    """As PubAck, with fewer fields."""

    stream: str
    seq: int
    domain: str | None = None
    duplicate: bool = False


class Future:
    """Notes its end, which may come once."""

    def __init__(self, *, cancelled: bool = False) -> None:
        self.ends: list[Any] = ["cancelled"] if cancelled else []
        self.kept: Any = "message"

    def done(self) -> bool:
        return bool(self.ends)

    def set_result(self, result: Any, /) -> None:
        assert not self.ends
        self.ends.append(result)

    def set_exception(self, exception: Any, /) -> None:
        assert not self.ends
        self.ends.append(str(exception))


def read(data: bytes) -> Ack | ValueError:
    """Every ack, slowly."""
    try:
        return Ack(**json.loads(data))
    except (ValueError, TypeError):
        return ValueError(f"no ack: {data!r}")


def refused(_: Future, headers: Any) -> Exception:
    return ValueError(headers)


def table_of(jet: ModuleType) -> Any:
    return jet.PublishTable(INBOX, jet.AckReader(Ack, read), refused)


class TestAckReader:
    @TWINS
    def test_each_ack_is_its_own(self, jet: ModuleType) -> None:
        reader = jet.AckReader(Ack, read)
        forms = [
            b'{"stream":"S","seq":%d}',
            b'{"stream":"T", "seq":%d}',
            b'{"domain":"d","stream":"S","seq":%d}',
        ]
        acks = [reader(form % n) for n in (1, 10**17, 0) for form in forms]
        first = [Ack("S", 1), Ack("T", 1), Ack("S", 1, "d")]
        assert acks == [ack._replace(seq=n) for n in (1, 10**17, 0) for ack in first]
        assert {type(ack) for ack in acks} == {Ack}

    @TWINS
    def test_what_comes_before_the_sequence_counts(self, jet: ModuleType) -> None:
        reader = jet.AckReader(Ack, read)
        assert reader(b'{"duplicate":true,"stream":"S","seq":1}') == Ack("S", 1, None, True)
        assert reader(b'{"duplicate":true,"stream":"S","seq":2}') == Ack("S", 2, None, True)
        assert reader(b'{"duplicate":false,"stream":"S","seq":3}') == Ack("S", 3)
        assert reader(b'{"stream":"S","seq":4,"duplicate":true}') == Ack("S", 4, None, True)

    @TWINS
    @pytest.mark.parametrize(
        "tail",
        [
            *(
                b"",
                b"}",
                b"x}",
                b"1",
                b"1 }",
                b" 1}",
                b"1}}",
                b"1}\n",
                b"01}",
                b"00}",
                b"-1}",
                b"+1}",
                b"1.0}",
            ),
            *(b"1e3}", b"true}", b"null}", b'"1"}', b"1_0}", "\u0661}".encode(), b"1]", b"\xff}", b"1\x00}"),
            *(
                b"9" * 18 + b"}",
                b"9" * 19 + b"}",
                b"9" * 5_000 + b"}",
                b"1,}",
                b'1,"domain":"d"}',
                b'1,"seq":2}',
            ),
        ],
    )
    def test_the_quick_way_takes_nothing_else(self, jet: ModuleType, tail: bytes) -> None:
        reader, data = jet.AckReader(Ack, read), b'{"stream":"S","seq":' + tail
        assert reader(b'{"stream":"S","seq":5}') == Ack("S", 5)
        assert str(reader(data)) == str(read(data))
        assert str(reader(data)) == str(read(data))

    @TWINS
    def test_an_unusual_beginning(self, jet: ModuleType) -> None:
        reader = jet.AckReader(Ack, read)
        for data in (
            b'{"stream":"a\\"seq","seq":1}',
            b'{"stream":"a:1}","seq":1}',
            b'{"seq":1}',
            b"1}",
            b":1}",
            b"",
        ):
            for _ in range(2):
                assert str(reader(data)) == str(read(data))

    @given(
        st.lists(st.tuples(st.sampled_from("ST"), st.binary(max_size=6) | st.integers(0).map(b"%d}".__mod__)))
    )
    def test_as_the_slow_way(self, acks: list[tuple[str, bytes]]) -> None:
        twins = [jet.AckReader(Ack, read) for jet in (readable.jet, _fastjet)]
        for stream, tail in acks:
            data = f'{{"stream":"{stream}","seq":'.encode() + tail
            assert {str(reader(data)) for reader in twins} == {str(read(data))}

    @TWINS
    def test_many_forms(self, jet: ModuleType) -> None:
        reader = jet.AckReader(Ack, read)
        for i in range(3_000):
            assert reader(b'{"stream":"S%d","seq":%d}' % (i % 1_500, i)) == Ack(f"S{i % 1_500}", i)

    @TWINS
    def test_an_ack_that_holds_more_than_atoms(self, jet: ModuleType) -> None:
        """The Cython twin hides acks from the garbage collector, which must not cost it a cycle."""
        reader = jet.AckReader(Ack, read)
        for n in (1, 2):
            ack = reader(b'{"domain":["d"],"stream":"S","seq":%d}' % n)
            assert ack == Ack("S", n, ["d"])  # type: ignore[arg-type]
            assert gc.is_tracked(ack)

    @TWINS
    def test_what_the_reader_raises(self, jet: ModuleType) -> None:
        reader = jet.AckReader(Ack, json.loads)
        with pytest.raises(json.JSONDecodeError):
            reader(b"")
        assert reader(b'{"stream":"S","seq":1}') == {"stream": "S", "seq": 1}  # no Ack: not remembered
        assert reader(b'{"stream":"S","seq":2}') == {"stream": "S", "seq": 2}


class TestTable:
    @TWINS
    @pytest.mark.parametrize("block", [b"", b"NATS/1.0\r\nA: b\r\n\r\n"])
    @pytest.mark.parametrize("body", [b"", b"x", b"x" * 10, b"y" * 1_000_000])
    def test_frames(self, jet: ModuleType, block: bytes, body: bytes) -> None:
        table = table_of(jet)
        for i in range(1, 12):
            frame = table.enter(Future(), 5.0, HEAD, block, body)
            line, _, rest = frame.partition(b"\r\n")
            sizes = f"{len(block)} {len(block) + len(body)}" if block else f"{len(body)}"
            assert line.decode() == f"{'HPUB' if block else 'PUB'} a _INBOX.x.{i} {sizes}"
            assert rest == block + body + b"\r\n"
            assert table.token == str(i)
        assert len(table) == 11

    @TWINS
    def test_outcomes(self, jet: ModuleType) -> None:
        table = table_of(jet)
        stored, wrong, gone, cancelled, none = futures = [Future(cancelled=i == 3) for i in range(5)]
        for future in futures:
            table.enter(future, 5.0, HEAD, b"", b"")
        messages: list[tuple[str, bytes, bytes | None, bytes]] = [
            ("_INBOX.x.1", b"", None, b'{"stream":"S","seq":1}'),
            ("_INBOX.x.2", b"", None, b"?"),
            ("_INBOX.x.3", b"", b"503", b""),
            ("_INBOX.x.4", b"", None, b'{"stream":"S","seq":2}'),
        ]
        strays = (
            "",
            "_INBOX.x",
            "_INBOX.x.",
            "_INBOX.x.0",
            "_INBOX.x.05",
            "_INBOX.x.6",
            "_INBOX.x.1.5",
            "y" * 99,
        )
        messages += [(subject, b"", None, b"") for subject in strays]
        assert table.settle(messages) == 4
        assert table.settle(messages) == 0  # duplicates
        assert stored.ends == [Ack("S", 1)]
        assert [wrong.ends, gone.ends] == [["no ack: b'?'"], ["b'503'"]]
        assert (cancelled.ends, none.ends) == (["cancelled"], [])
        assert [future.kept for future in (stored, wrong, gone, none)] == [None, None, None, "message"]
        assert len(table) == 1

    @TWINS
    def test_withdrawn(self, jet: ModuleType) -> None:
        table, future = table_of(jet), Future()
        table.enter(future, 5.0, HEAD, b"", b"")
        assert table.withdraw("1")
        assert not table.withdraw("1")
        assert table.settle_one("_INBOX.x.1", None, b"") == 0
        assert (len(table), future.ends, table.next_expiry(), table.expire_all()) == (0, [], None, [])

    @TWINS
    def test_expiry(self, jet: ModuleType) -> None:
        table, futures = table_of(jet), [Future() for _ in range(4)]
        for future, deadline in zip(futures, (3.0, 1.0, 1.0, 2.0), strict=True):
            table.enter(future, deadline, HEAD, b"", b"")
        assert table.settle_one("_INBOX.x.3", {}, b'{"stream":"S","seq":1}') == 1
        assert 1.0 < table.next_expiry() < 1.06
        assert table.expire(1.0) == []
        assert table.expire(2.06) == [(futures[1], "2"), (futures[3], "4")]
        table.enter(futures[1], 3.0, HEAD, b"", b"")
        assert len(table) == 2
        assert table.expire_all() == [(futures[0], "1"), (futures[1], "5")]
        assert (len(table), table.next_expiry()) == (0, None)
        assert [future.ends for future in futures] == [[], [], [Ack("S", 1)], []]

    @TWINS
    def test_a_bucket_that_is_gone_takes_nothing(self, jet: ModuleType) -> None:
        """After each call that may drop the last publish's bucket, the next one finds a bucket of its own."""
        for what, value in (("next_expiry", None), ("expire", 9.0), ("expire_all", None)):
            table = table_of(jet)
            table.enter(Future(), 5.0, HEAD, b"", b"")
            table.settle_one("_INBOX.x.1", None, b"")
            step(table, what, value)
            table.enter(future := Future(), 5.0, HEAD, b"", b"")
            assert table.next_expiry() is not None
            assert table.expire_all() == [(future, "2")]

    @TWINS
    @pytest.mark.parametrize("deadline", [float("nan"), float("inf"), -float("inf"), 1.7e308])
    def test_odd_deadlines(self, jet: ModuleType, deadline: float) -> None:
        table = table_of(jet)
        for _ in range(2):
            with pytest.raises(UsageError, match="finite"):
                table.enter(Future(), deadline, HEAD, b"", b"")
        assert (len(table), table.token) == (0, "")

    @TWINS
    @pytest.mark.parametrize("wrong", [(None, b"", b""), (HEAD, bytearray(), b""), (HEAD, b"", "text")])
    def test_types(self, jet: ModuleType, wrong: tuple[Any, ...]) -> None:
        table = table_of(jet)
        with pytest.raises(UsageTypeError, match="must be bytes"):
            table.enter(Future(), 5.0, *wrong)
        assert len(table) == 0

    @TWINS
    def test_what_a_reader_raises_passes(self, jet: ModuleType) -> None:
        def fail(data: bytes) -> Any:
            raise OSError(data)

        table = jet.PublishTable(INBOX, fail, refused)
        table.enter(Future(), 5.0, HEAD, b"", b"")
        with pytest.raises(OSError, match="x"):
            table.settle([("_INBOX.x.1", b"", None, b"x")])
        assert len(table) == 0


class KeptFuture(Future):
    """Future with what a publish notes in it."""

    subject: str
    before: Exception | None

    def __init__(self, *, loop: Any) -> None:
        super().__init__()
        self.loop = loop


class Queue(list[object]):
    """Queue of nats-py's flusher."""

    def empty(self) -> bool:
        return not self

    def put_nowait(self, item: object) -> None:
        self.append(item)


class Connection:
    """The names of a nats-py connection that a publish reads and writes."""

    CONNECTED = 1

    def __init__(self) -> None:
        self._status = 1
        self._pending: list[bytes] = []
        self._pending_data_size = 0
        self._max_pending_size = 100
        self._max_payload = 10
        self._err = OSError("before")
        self._flush_queue = Queue()
        self.stats = {"out_msgs": 0, "out_bytes": 0}

    def create_future(self) -> object:
        """As the event loop, which the connection is here too."""
        return "wake"


class Timer:
    """Timer that notes how often it is set."""

    def __init__(self) -> None:
        self.at, self.rearmed = 9.0, 0

    def rearm(self) -> None:
        self.rearmed += 1
        self.at = 0.0


class Quick:
    """A quick sender and what it works on; the time is 2."""

    def __init__(self, jet: ModuleType) -> None:
        self.nc, self.timer, self.table = Connection(), Timer(), table_of(jet)
        self.retries: dict[Any, Any] = {}
        self.sender = jet.QuickSender(
            self.table,
            self.nc,
            KeptFuture,
            self.nc,
            self.timer,
            clock=lambda: 2.0,
            heads={"a": HEAD},
            retries=self.retries,
            max_outstanding=3,
        )

    def send(self, subject: Any = "a", body: bytes = b"x", block: bytes = b"", seconds: float = 5.0) -> Any:
        return self.sender.send(subject, body, block, seconds, 2, 0.25)


class TestQuickSender:
    @TWINS
    def test_publish_enters_the_table_and_the_buffer(self, jet: ModuleType) -> None:
        quick = Quick(jet)
        future, nc = quick.send(block=b"NATS", body=b"xyz"), quick.nc
        frame = HEAD.replace(b"PUB", b"HPUB") + b"1 4 7\r\nNATSxyz\r\n"
        assert (nc._pending, nc._pending_data_size) == ([frame], len(frame))
        assert nc.stats == {"out_msgs": 1, "out_bytes": 7}
        assert (future.subject, future.before, future.loop) == ("a", nc._err, nc)
        assert future.kept == (7.0, HEAD, b"NATS", b"xyz", 2, 0.25)
        assert quick.table.expire_all() == [(future, "1")]

    @TWINS
    def test_flusher_is_woken_once(self, jet: ModuleType) -> None:
        quick = Quick(jet)
        assert None not in (quick.send(), quick.send())
        assert quick.nc._flush_queue == ["wake"]

    @TWINS
    def test_timer_is_set_for_an_earlier_deadline_only(self, jet: ModuleType) -> None:
        quick = Quick(jet)
        for seconds, rearmed in ((8.0, 0), (6.0, 1), (6.0, 1)):
            assert quick.send(seconds=seconds) is not None
            assert quick.timer.rearmed == rearmed

    @TWINS
    def test_message_without_retries_is_not_kept(self, jet: ModuleType) -> None:
        assert Quick(jet).sender.send("a", b"x", b"", 5.0, 0, 0.25).kept is None

    @TWINS
    @pytest.mark.parametrize(
        ("names", "arguments"),
        [
            ({"_status": 4}, {}),
            ({"_pending_data_size": 100}, {}),
            ({"_max_payload": 1}, {"body": b"xy"}),
            ({"_max_payload": "10"}, {}),
            ({"_max_payload": None}, {}),
            ({"_max_payload": 1}, {"block": b"x"}),
            ({}, {"subject": "b"}),
            ({}, {"subject": None}),
            ({}, {"subject": []}),
        ],
    )
    def test_refused_publish_changes_nothing(
        self, jet: ModuleType, names: dict[str, Any], arguments: dict[str, Any]
    ) -> None:
        quick = Quick(jet)
        assert quick.send() is not None
        vars(quick.nc).update(names)
        before = {**vars(quick.nc), "_pending": list(quick.nc._pending), "stats": dict(quick.nc.stats)}
        assert quick.send(**arguments) is None
        assert (vars(quick.nc), len(quick.table), quick.table.token) == (before, 1, "1")

    @TWINS
    def test_retries_count_as_outstanding(self, jet: ModuleType) -> None:
        quick = Quick(jet)
        quick.retries["task"] = "future"
        assert [quick.send() is None for _ in range(3)] == [False, False, True]
        quick.retries.clear()
        assert quick.send() is not None

    @TWINS
    def test_deadline_that_is_not_finite_changes_nothing(self, jet: ModuleType) -> None:
        quick = Quick(jet)
        with pytest.raises(UsageError, match="finite"):
            quick.send(seconds=float("inf"))
        assert (quick.nc._pending, len(quick.table), quick.nc._flush_queue) == ([], 0, [])


#: What is done to both: a publish with its deadline, acks for tokens, a token taken back, time that passes.
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("enter"), st.integers(0, 40).map(lambda n: n / 8)),
        st.tuples(st.just("settle"), st.lists(st.integers(0, 12), max_size=4)),
        st.tuples(st.just("withdraw"), st.integers(0, 12)),
        st.tuples(st.just("expire"), st.integers(0, 40).map(lambda n: n / 8)),
        st.tuples(st.just("next_expiry"), st.none()),
        st.tuples(st.just("expire_all"), st.none()),
    ),
    max_size=40,
)


class Model:
    """A table too simple to be wrong: one dict of deadlines."""

    def __init__(self) -> None:
        self.deadlines: dict[str, float] = {}
        self.count = 0

    def step(self, what: str, value: Any) -> Any:
        if what == "enter":
            self.count += 1
            self.deadlines[str(self.count)] = value
            return None
        if what == "settle":
            return sum(self.deadlines.pop(str(number), None) is not None for number in value)
        if what == "withdraw":
            return self.deadlines.pop(str(value), None) is not None
        if what == "next_expiry":
            return min((_end(deadline) for deadline in self.deadlines.values()), default=None)
        now = float("inf") if what == "expire_all" else value
        due = [token for token, deadline in self.deadlines.items() if _end(deadline) <= now]
        due.sort(key=lambda token: _end(self.deadlines[token]))
        for token in due:
            del self.deadlines[token]
        return due


@TWINS
@pytest.mark.parametrize("headers", [{"Status": "503"}, b"NATS/1.0 503\r\n\r\n"])
def test_refused_publish_that_goes_on_elsewhere_leaves_the_table_without_an_end(
    jet: ModuleType, headers: Any
) -> None:
    told: list[Any] = []
    table = jet.PublishTable(INBOX, jet.AckReader(Ack, read), lambda *call: told.append(call))
    future = Future()
    table.enter(future, 5.0, b"PUB s " + INBOX.encode(), b"", b"")
    assert table.settle_one(INBOX + table.token, headers, b"") == 1
    assert (told, future.ends, future.kept, len(table)) == ([(future, headers)], [], "message", 0)
    table.enter(future, 5.0, b"PUB s " + INBOX.encode(), b"", b"")
    assert table.settle([(INBOX + table.token, b"", None, b'{"stream":"S","seq":1}')]) == 1
    assert (future.ends, future.kept) == ([Ack("S", 1)], None)


def _end(deadline: float) -> float:
    """The end of the slice of 0.05 s in which a deadline lies."""
    return (deadline / 0.05 // 1 + 1) * 0.05


def step(table: Any, what: str, value: Any) -> Any:
    if what == "enter":
        return table.enter(Future(), value, HEAD, b"", b"") and None
    if what == "settle":
        return table.settle([(f"{INBOX}{n}", b"", None, b'{"stream":"S","seq":%d}' % n) for n in value])
    if what == "withdraw":
        return table.withdraw(str(value))
    if what == "next_expiry":
        return table.next_expiry()
    expired = table.expire_all() if what == "expire_all" else table.expire(value)
    assert not any(future.ends for future, _ in expired)
    return [token for _, token in expired]


@given(STEPS)
def test_model(steps: list[tuple[str, Any]]) -> None:
    model, tables = Model(), [table_of(jet) for jet in (readable.jet, _fastjet)]
    for what, value in steps:
        wanted = model.step(what, value)
        for table in tables:
            assert step(table, what, value) == wanted
            assert len(table) == len(model.deadlines)

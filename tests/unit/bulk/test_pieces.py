"""The parts of bulk reads that do no I/O."""

from __future__ import annotations

import io
import json
import math
import os
import queue
import tarfile
import threading
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftenvelope import bulk
from liftenvelope._checks import as_local_path
from liftenvelope.bulk import Access
from liftenvelope.bulk._engine.crew import Crew, Outlet, Piece
from liftenvelope.bulk._jetstream.pulls import PENDING, Asked, PullsInFlight
from liftenvelope.bulk.access import ServerKind, find_target
from liftenvelope.bulk.files import from_lines, open_parquet, to_lines
from liftenvelope.bulk.ranges import Range, split_ranges
from liftenvelope.errors import InternalError, TransportError, UsageError
from liftenvelope.nats.logins import read_credentials
from liftenvelope.rpc.address import Address


class TestPulls:
    def test_two_are_in_flight(self) -> None:
        pulls = PullsInFlight()
        assert [pulls.due(-1) for _ in range(3)] == [(1, 1_000_000), (2, 1_000_000), None]
        pulls.ended(1)
        assert pulls.due(10) == (3, 10)
        assert pulls.due(10) is None

    def test_nothing_is_wanted(self) -> None:
        assert PullsInFlight().due(0) is None

    def test_a_pull_that_has_brought_all(self) -> None:
        pulls = PullsInFlight()
        pulls.due(3)
        pulls.due(3)
        pulls.arrived(4)
        assert pulls.due(2) == (3, 2)
        pulls.arrived(4)
        assert pulls.is_idle

    def test_pulls_before_an_ended_one_have_ended(self) -> None:
        pulls = PullsInFlight()
        pulls.due(-1)
        pulls.due(-1)
        pulls.ended(2)
        assert pulls.is_idle

    def test_few_requests_are_remembered_however_many_the_server_forgets(self) -> None:
        pulls, sent = PullsInFlight(), list[int]()
        for at in range(1_000):
            pulls.forget()
            while (due := pulls.due(-1)) is not None:
                pulls.sent(due[0], at, float(at))
                sent.append(due[0])
        assert [number for number in sent if pulls.asked(number) is not None] == sent[-16:]

    def test_request_that_is_sent_again_counts_as_new(self) -> None:
        pulls = PullsInFlight()
        for number in range(1, 15):
            pulls.sent(PENDING, number, 0.0)
            pulls.sent(number, number, 0.0)
            pulls.sent(-number, number, 0.0)
        assert pulls.asked(PENDING) == Asked(14, 0.0)

    def test_pause_grows_until_a_message_comes(self) -> None:
        pulls = PullsInFlight()
        assert pulls.paused_until == 0.0
        assert [pulls.fruitless(now) for now in (10.0, 11.0, 13.0)] == [0.0, 1.0, 3.0]
        assert pulls.paused_until > 13.0
        pulls.moved()
        assert pulls.paused_until == 0.0
        assert pulls.fruitless(20.0) == 0.0

    def test_pulls_are_widened_up_to_a_limit(self) -> None:
        pulls, sizes = PullsInFlight(), list[int]()
        pulls.begin(2**40)
        assert not pulls.widen()
        pulls = PullsInFlight()
        pulls.begin(1_000)
        while pulls.widen():
            sizes.append(pulls.request(1)["max_bytes"])
        assert sizes == [2**power for power in range(24, 31)]
        pulls.begin(1_000)
        assert pulls.request(1)["max_bytes"] == 2**30

    @given(st.lists(st.one_of(st.integers(0, 5), st.just("ended"), st.just("due"))))
    def test_pull_window_never_loses_count(self, steps: list[Any]) -> None:
        pulls, sent = PullsInFlight(), 0
        for step in steps:
            if step == "due":
                sent += pulls.due(3) is not None
            elif step == "ended":
                pulls.ended(sent)
                assert pulls.is_idle
            else:
                pulls.arrived(step)
            assert len(pulls._pulls) <= 2


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=4), st.integers(1, 9))
def test_ranges_are_divided_without_a_gap(spans: list[tuple[int, int]], parts: int) -> None:
    ranges = [Range(i, start, start + size) for i, (start, size) in enumerate(spans)]
    divided = split_ranges(ranges, parts)
    assert [(one.partition, offset) for one in divided for offset in range(one.start, one.stop)] == [
        (one.partition, offset) for one in ranges for offset in range(one.start, one.stop)
    ]
    assert len(divided) <= parts + len(ranges)


class TestTargets:
    @pytest.mark.parametrize(
        ("source", "kind", "addresses"),
        [
            ("nats://h", ServerKind.NATS, [("h", 4222)]),
            ("nats://h:5, tls://i", ServerKind.NATS, [("h", 5), ("i", 4222)]),
            (["liftbridge://h", "i:7"], ServerKind.LIFTBRIDGE, [("h", 9292), ("i", 7)]),
            ("nats://[::1]:5/", ServerKind.NATS, [("::1", 5)]),
        ],
    )
    def test_urls(self, source: Any, kind: ServerKind, addresses: list[tuple[str, int]]) -> None:
        target = find_target(source, None)
        assert (target.kind, list(target.addresses)) == (kind, [Address(*one) for one in addresses])

    def test_logins(self) -> None:
        assert find_target("nats://me:p%40ss@h", None).access.password == "p@ss"
        assert find_target("nats://t0ken@h", None).access.token == "t0ken"
        assert find_target("tls://h", None).secure
        assert find_target("h:1", Access(tls=True)).secure

    def test_each_url_has_its_own_login(self) -> None:
        target = find_target("nats://a,nats://ann:one@b,nats://t0ken@c,nats://bob:two@d", None)
        found = [target.access_to(address) for address in target.addresses]
        assert [one.user for one in found] == ["ann", "ann", None, "bob"]
        assert [one.password for one in found] == ["one", "one", None, "two"]
        assert found[2].token == "t0ken"
        assert target.access_to(Address("advertised", 4222)).user == "ann"

    def test_url_without_a_login_has_that_of_the_options(self) -> None:
        target = find_target("nats://a,nats://ann:one@b", Access(user="all", password="x"))
        assert [target.access_to(address).user for address in target.addresses] == ["all", "ann"]
        assert target.access_to(Address("advertised", 4222)).user == "all"

    @pytest.mark.parametrize(
        "options",
        [{"user": "all", "password": "x"}, {"token": "all"}, {"nkeys_seed": "a"}, {"user_credentials": "a"}],
    )
    @pytest.mark.parametrize(
        ("login", "own"), [("t0ken", (None, None, "t0ken")), ("ann:one", ("ann", "one", None))]
    )
    def test_login_of_a_url_replaces_that_of_the_options(
        self, options: dict[str, str], login: str, own: tuple[str | None, ...]
    ) -> None:
        target = find_target(f"nats://a,nats://{login}@b", Access(**options))  # type: ignore[arg-type]
        first, second = (target.access_to(address) for address in target.addresses)
        assert {name: getattr(first, name) for name in options} == options
        assert (second.user, second.password, second.token) == own
        assert second.nkeys_seed is second.user_credentials is None

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"timeout": 0}, "timeout must be a positive number of seconds, got 0"),
            ({"reconnect_wait": -1}, "reconnect_wait must be a finite number of seconds, 0 or more, got -1"),
            ({"user": "a", "token": "b"}, "user and token"),
            ({"password": "b"}, "user must be given with password"),
            ({"tls": 1}, "tls"),
            ({"domain": "a", "api_prefix": "b"}, "exclude each other"),
            ({"max_message_bytes": 0}, "max_message_bytes must be at least 1, got 0"),
            ({"max_request_bytes": 2**32}, "max_request_bytes must be at most 4294967295, got 4294967296"),
            ({"inbox_prefix": ""}, "inbox_prefix must be a subject without wildcards, got ''"),
            ({"inbox_prefix": "_INBOX.*"}, "inbox_prefix must be a subject without wildcards"),
            ({"inbox_prefix": "_INBOX.a\r\nPUB b"}, "inbox_prefix must be a subject without wildcards"),
        ],
    )
    def test_access(self, options: dict[str, Any], text: str) -> None:
        with pytest.raises(UsageError, match=text):
            Access(**options)

    def test_secrets_are_not_shown(self) -> None:
        with pytest.raises(UsageError) as caught:
            find_target("http://me:secret@h", None)
        assert "secret" not in str(caught.value)


def test_credentials() -> None:
    text = (
        "-----BEGIN NATS USER JWT-----\r\nabc\r\n------END NATS USER JWT------\r\n\r\n***\r\n"
        "-----BEGIN USER NKEY SEED-----\r\nSU1\r\n------END USER NKEY SEED------\r\n"
    )
    assert read_credentials(text, "x") == ("abc", "SU1")
    with pytest.raises(UsageError, match="must have blocks"):
        read_credentials(text[:60], "x")


def piece(number: int) -> Piece:
    return Piece(pa.record_batch({"n": [number]}), 0, 1, 1)


class TestLocalPaths:
    @pytest.mark.parametrize("url", ["ftp://me:secret@host/a", "https://h/a", "S3://b/a", Path("s3://b/a")])
    def test_an_archive_refuses_urls_of_other_schemes_before_it_connects(
        self, url: str | Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        with pytest.raises(
            UsageError, match=r"^path must be a local path, or a str with a URL of s3, gs, "
        ) as caught:
            bulk.to_parquet("nats://127.0.0.1:1", "ORDERS", url)
        assert "secret" not in str(caught.value)
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("path", ["a:b", "s3", "./s3:/a", "C:/a", "a/b://c", "-", "", Path("/a:/b")])
    def test_names_with_a_colon_are_local(self, path: str | Path) -> None:
        assert as_local_path("path", path) == Path(path)


class TestCrew:
    def test_all_pieces_come(self) -> None:
        ended: list[int] = []
        jobs = [lambda outlet, i=i: outlet.put(piece(i)) for i in range(10)]
        crew = Crew(jobs, 3, lambda: ended.append(1))
        found = [one.batch["n"][0].as_py() for one in iter(crew.next, None) if one.batch is not None]
        assert sorted(found) == list(range(10))
        assert crew.next() is None
        assert ended == [1]

    def test_nothing_to_do(self) -> None:
        assert Crew([], 0, lambda: None).next() is None

    def test_an_error_comes_after_what_was_put_before(self) -> None:
        def fail(outlet: Outlet) -> None:
            outlet.put(piece(1))
            raise TransportError("gone")

        crew = Crew([fail], 1, lambda: None)
        assert crew.next() is not None
        with pytest.raises(TransportError, match="gone"):
            crew.next()

    def test_a_defect_is_not_lost(self) -> None:
        def fail(outlet: Outlet) -> None:
            raise ZeroDivisionError

        with pytest.raises(InternalError, match="ZeroDivisionError"):
            Crew([fail], 1, lambda: None).next()

    def test_crew_holds_no_more_than_its_limit(self) -> None:
        put: list[int] = []

        def work(outlet: Outlet) -> None:
            for i in range(100):
                outlet.put(piece(i))
                put.append(i)

        crew = Crew([work], 1, lambda: None)
        crew.next()
        deadline = time.monotonic() + 0.3
        while time.monotonic() < deadline:
            assert len(put) <= 4
        crew.stop()
        assert not any(thread.is_alive() for thread in crew._threads)
        assert len(put) < 10

    def test_stopping_ends_waits(self) -> None:
        woken, waits = threading.Event(), threading.Event()

        def work(outlet: Outlet) -> None:
            outlet.wake = woken.set
            waits.set()
            woken.wait(30)
            outlet.check()

        crew = Crew([work], 1, lambda: None)
        with pytest.raises(queue.Empty):
            crew.next(timeout=0.05)
        assert waits.wait(60)
        crew.stop()
        crew.stop()
        assert woken.is_set()


class TestLines:
    def test_there_and_back(self) -> None:
        table = pa.table(
            {
                "key": [b"k", None, b"\xff"],
                "value": [b"text", b"\xfe", "ä".encode()],
                "headers": pa.array([[("A", b"1")], [], [("B", b"\xff")]], pa.map_(pa.string(), pa.binary())),
                "subject": ["s", "s", "t"],
                "partition": pa.array([1, 2, 3], pa.int32()),
            }
        )
        lines = [line for batch in table.to_batches() for line in to_lines(batch)]
        assert from_lines(lines).read_all().to_pylist() == table.to_pylist()
        file = io.BytesIO("".join(f"{line}\r\n\n" for line in lines).encode())
        assert from_lines(file).read_all().to_pylist() == table.to_pylist()

    def test_pipe_that_pauses_holds_no_line_back(self) -> None:
        end, start = os.pipe()
        with open(end, "rb") as lines, open(start, "wb", buffering=0) as writer:
            reader = from_lines(lines)
            writer.write(b'{"value": "1"}\n{"value": "2"}\n{"val')
            assert reader.read_next_batch()["value"].to_pylist() == [b"1", b"2"]
            writer.write(b'ue": "3"}\n{"value": "4"}')
            assert reader.read_next_batch()["value"].to_pylist() == [b"3"]
            writer.close()
            assert reader.read_all()["value"].to_pylist() == [b"4"]

    def test_pipe_that_does_not_block_is_waited_for(self) -> None:
        end, start = os.pipe()
        os.set_blocking(end, False)
        with open(end, "rb") as lines, open(start, "wb") as writer:
            writer.write(b'{"value": "1"}\n')
            timer = threading.Timer(0.2, writer.close)
            timer.start()
            assert from_lines(lines).read_all()["value"].to_pylist() == [b"1"]
            timer.join()

    def test_file_in_an_archive(self) -> None:
        content = b'{"value": "1"}\n'
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as tar:
            info = tarfile.TarInfo("rows.ndjson")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        archive.seek(0)
        with tarfile.open(fileobj=archive) as tar:
            lines = tar.extractfile("rows.ndjson")
            assert lines is not None
            assert from_lines(lines).read_all()["value"].to_pylist() == [b"1"]

    @pytest.mark.parametrize("size", [1, 2, 7, 1000])
    def test_bytes_of_a_file_may_come_in_any_chunks(self, size: int) -> None:
        class Trickle(io.BytesIO):
            def read1(self, _: int | None = -1, /) -> bytes:
                return super().read1(size)

        lines = b"".join(b'{"value": "%d"}\n' % i for i in range(100))
        assert from_lines(Trickle(lines)).read_all()["value"].to_pylist() == [b"%d" % i for i in range(100)]
        with pytest.raises(UsageError, match="line 101 must be JSON"):
            from_lines(Trickle(lines + b"{")).read_all()

    def test_batch_of_long_lines_has_a_bounded_size(self, tmp_path: Path) -> None:
        path = tmp_path / "rows.ndjson"
        path.write_bytes(b'{"value": "%b"}\n' % (b"x" * 1_000_000) * 40)
        with path.open("rb") as lines:
            rows = [batch.num_rows for batch in from_lines(lines)]
        assert (sum(rows), max(rows) <= 9) == (40, True)

    def test_times(self) -> None:
        moment = pa.array([1_700_000_000_123_456_789], pa.timestamp("ns", "UTC"))
        line = next(to_lines(pa.record_batch({"timestamp": moment})))
        assert line == '{"timestamp": "2023-11-14T22:13:20.123456789Z"}'

    @pytest.mark.parametrize(
        ("column", "shown"),
        [
            (pa.array([math.nan]), "NaN"),
            (pa.array([{"a": [math.inf, -math.inf, 1.0]}]), {"a": ["Infinity", "-Infinity", 1.0]}),
            (pa.array([[("a", math.nan)]], pa.map_(pa.string(), pa.float64())), {"a": "NaN"}),
            (pa.array([[(b"a", 1)]], pa.map_(pa.binary(), pa.int64())), {"a": 1}),
            (pa.array([[(b"\xff", 1)]], pa.map_(pa.binary(), pa.int64())), [[{"base64": "/w=="}, 1]]),
            (pa.array([[(Decimal("1.5"), 1)]], pa.map_(pa.decimal128(4, 1), pa.int64())), {"1.5": 1}),
            (
                pa.array([[(math.nan, 1), (0.5, -math.inf)]], pa.map_(pa.float64(), pa.float64())),
                {"NaN": 1, "0.5": "-Infinity"},
            ),
            (pa.array([[(math.inf, 1)]], pa.map_(pa.float64(), pa.int64())), {"Infinity": 1}),
            (pa.array([bytes(16)], pa.uuid()), "00000000-0000-0000-0000-000000000000"),
        ],
    )
    def test_value_without_a_form_in_json_is_shown_as_one_that_json_has(
        self, column: pa.Array, shown: object
    ) -> None:
        def refuse(constant: str) -> None:
            raise AssertionError(f"{constant} is no JSON")

        (line,) = to_lines(pa.record_batch({"column": column}))
        assert json.loads(line, parse_constant=refuse) == {"column": shown}

    def test_no_parquet(self, tmp_path: Path) -> None:
        (tmp_path / "x").write_bytes(b"no")
        with pytest.raises(UsageError, match="must be a Parquet file"):
            open_parquet(tmp_path / "x")

"""Bulk writes in atomic batches and by fast ingest, on real servers."""

from __future__ import annotations

import asyncio
import random
import re
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import nats
import pyarrow as pa
import pytest

from liftenvelope import bulk
from liftenvelope.bulk import Access, Progress, WriteFailedError, Written
from liftenvelope.errors import (
    JetStreamError,
    NoJetStreamError,
    PermissionDeniedError,
    StreamMessageTooLargeError,
    TransportError,
    UsageError,
    WrongLastSequenceError,
    WrongStreamError,
)
from liftenvelope.jetstream import JetStream, StreamConfig
from liftenvelope.testing import FaultProxy
from tests.integration.bulk_streams import (
    connections,
    jetstream,
    make_stream,
    monitored,
    wait_for,
    with_jetstream,
)

MODES: list[Any] = ["pipelined", "atomic", "fast"]
MAPS = pa.map_(pa.string(), pa.binary())
ACCESS = Access(reconnect_wait=60, connect_timeout=10, timeout=20)
#: A subject that nats-server writes with an escape in its reports.
QUOTED = 'denied"\\'


def open_stream(url: str, name: str, **config: Any) -> None:
    """A stream that allows every way to write."""

    async def make() -> None:
        async with await nats.connect(url) as nc:
            settings = {"allow_atomic": True, "allow_batched": True, **config}
            await JetStream(nc).create_stream(StreamConfig(name=name, subjects=(f"{name}.>",), **settings))

    asyncio.run(make())


def numbers(count: int, size: int = 0, first: int = 0) -> pa.Table:
    return pa.table({"value": [b"%d" % i + b"." * size for i in range(first, first + count)]})


def values(url: str, stream: str) -> list[int]:
    found = bulk.read(url, stream, columns=["value"]).read_all()["value"].to_pylist()
    return [int(value.partition(b".")[0]) for value in found]


def rows_with(count: int, row: int, name: str, value: str) -> pa.Table:
    """Numbers, one of which has a header."""
    headers = [[(name, value.encode())] if i == row else [] for i in range(count)]
    return numbers(count).append_column("headers", pa.array(headers, MAPS))


@pytest.mark.parametrize("mode", ["pipelined", "fast"])
def test_server_that_ends_the_connection_while_no_rows_come(
    name: str, mode: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does when nobody answers its pings."""
    monkeypatch.setattr("liftenvelope.bulk._writes.jetstream._PAUSE", 0.5)
    with monitored(ping_interval="1s", ping_max=1) as server:
        open_stream(server.url, name)

        def batches() -> Iterator[pa.RecordBatch]:
            for first in (0, 10):
                wait_for("the server ends the connection", lambda: not connections(server, "connections"))
                yield from numbers(10, first=first).to_batches()

        rows = pa.RecordBatchReader.from_batches(numbers(0).schema, batches())
        done = bulk.write(server.url, name, rows, subject=f"{name}.x", mode=mode)
        assert (done.acked, values(server.url, name)) == (20, [*range(20)])


@pytest.mark.parametrize("mode", MODES)
def test_server_that_restarts_while_no_rows_come(name: str, mode: Any) -> None:
    """All rows had their acks before, so it makes no difference that there are no message ids."""
    with jetstream() as server:
        open_stream(server.url, name)

        def count() -> int:
            return bulk.count(server.url, name, subjects=[f"{name}.x"])

        def batches() -> Iterator[pa.RecordBatch]:
            for first in (0, 1_000, 2_000):
                yield from numbers(1_000, first=first).to_batches()
                wait_for("the rows are stored", lambda: count() == first + 1_000)  # noqa: B023
                # The server sends the acks of a stream in order: this one after those of the rows.
                with_jetstream(server.url, lambda js: js.publish(f"{name}.y", b"-1"))
                server.stop()
                server.start()

        rows = pa.RecordBatchReader.from_batches(numbers(0).schema, batches())
        done = bulk.write(server.url, name, rows, subject=f"{name}.x", mode=mode, access=ACCESS)
        assert (done.acked, [n for n in values(server.url, name) if n >= 0]) == (3_000, [*range(3_000)])


@pytest.mark.parametrize("mode", MODES)
def test_stream_that_is_deleted_ends_a_write(url: str, name: str, mode: Any) -> None:
    """The server answers what asks for the progress of a fast batch with 503, however often it is asked."""
    open_stream(url, name)

    def batches() -> Iterator[pa.RecordBatch]:
        yield from numbers(2_000).to_batches()
        wait_for("the rows are stored", lambda: bulk.count(url, name) == 2_000)
        # The server sends the acks of a stream in order: this one after those of the rows.
        with_jetstream(url, lambda js: js.publish(f"{name}.y", b"-1"))
        with_jetstream(url, lambda js: js.delete_stream(name))
        yield from numbers(2_000, first=2_000).to_batches()

    rows = pa.RecordBatchReader.from_batches(numbers(0).schema, batches())
    access = Access(timeout=1, reconnect_wait=20)
    with pytest.raises(WriteFailedError) as caught:
        bulk.write(url, name, rows, subject=f"{name}.x", mode=mode, access=access)
    assert caught.value.acked == 2_000


@pytest.mark.parametrize("mode", MODES)
def test_server_that_is_away_when_rows_come(name: str, mode: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """No row is in flight, so the write may wait for the server, also without message ids."""
    monkeypatch.setattr("liftenvelope.bulk._writes.jetstream._PAUSE", 0.0)
    waits: list[float] = []
    with jetstream() as server, FaultProxy(server.url) as proxy:
        open_stream(server.url, name)

        def wait_until_it_is_back(seconds: float) -> None:
            waits.append(seconds)
            proxy.accept()

        def batches() -> Iterator[pa.RecordBatch]:
            proxy.refuse()
            proxy.cut()
            yield from numbers(10).to_batches()

        rows = pa.RecordBatchReader.from_batches(numbers(0).schema, batches())
        options: Any = {"subject": f"{name}.x", "mode": mode, "access": ACCESS}
        with monkeypatch.context() as patch:
            patch.setattr(time, "sleep", wait_until_it_is_back)
            done = bulk.write(f"nats://{proxy.address}", name, rows, **options)
        assert (done.acked, values(server.url, name)) == (10, [*range(10)])
        assert waits


@pytest.mark.parametrize("mode", MODES)
class TestEveryMode:
    def test_all_rows_in_order(self, url: str, name: str, mode: Any) -> None:
        open_stream(url, name)
        seen: list[Progress] = []
        table = numbers(20_000, 10)
        done = bulk.write(url, name, table, subject=f"{name}.x", mode=mode, progress=seen.append)
        size = sum(map(len, table["value"].to_pylist()))
        assert done == Written(20_000, size, 0, {0: (0, 19_999)})
        assert seen[-1] == Progress(20_000, size, 20_000, None)
        assert values(url, name) == list(range(20_000))
        again = bulk.write(url, name, numbers(1_500), subject=f"{name}.x", mode=mode)
        assert again.offsets == {0: (20_000, 21_499)}

    @pytest.mark.parametrize("count", [0, 1, 2, 999, 1_000, 1_001])
    def test_how_many_rows(self, url: str, name: str, mode: Any, count: int) -> None:
        open_stream(url, name)
        done = bulk.write(url, name, numbers(count).to_reader(300), subject=f"{name}.x", mode=mode)
        assert (done.acked, done.offsets) == (count, {0: (0, count - 1)} if count else {})
        assert values(url, name) == list(range(count))

    @pytest.mark.parametrize("in_flight", [1, 7])
    def test_few_in_flight(self, url: str, name: str, mode: Any, in_flight: int) -> None:
        open_stream(url, name)
        options: Any = {"mode": mode, "max_in_flight": in_flight}
        assert bulk.write(url, name, numbers(120), subject=f"{name}.x", **options).acked == 120
        assert values(url, name) == list(range(120))

    def test_every_column(self, url: str, name: str, mode: Any) -> None:
        for stream in (f"{name}-a", f"{name}-b"):
            open_stream(url, stream)
        source = pa.table(
            {
                "subject": pa.array([f"{name}-a.{i % 3}" for i in range(2_000)]).dictionary_encode(),
                "value": [bytes([i % 256]) * (i % 40) for i in range(2_000)],
                "headers": pa.array(
                    [[("A", b"%d" % i), ("B", b"x y"), ("A", b"z")] if i % 2 else [] for i in range(2_000)],
                    MAPS,
                ),
            }
        )
        bulk.write(url, f"{name}-a", source, mode=mode)
        found = bulk.read(url, f"{name}-a").read_all()
        assert found["subject"].to_pylist() == source["subject"].to_pylist()
        assert found["value"].to_pylist() == source["value"].to_pylist()
        kept = [
            [item for item in row if not item[0].startswith("Nats-Batch")]
            for row in found["headers"].to_pylist()
        ]
        assert kept == [[("A", b"z"), ("B", b"x y")] if i % 2 else [] for i in range(2_000)]
        # What was read can be written in any mode: the server keeps the headers of atomic batches.
        for other in MODES:
            assert bulk.write(url, f"{name}-b", found, subject=f"{name}-b.x", mode=other).acked == 2_000

    def test_in_envelopes(self, url: str, name: str, mode: Any) -> None:
        open_stream(url, name)
        table = pa.table({"key": [b"k", None] * 600, "value": ["one", "two"] * 600})
        bulk.write(url, name, table, subject=f"{name}.x", envelope=True, mode=mode)
        found = bulk.read(url, name, envelope="strip", columns=["key", "value"]).read_all()
        assert found["key"].to_pylist() == table["key"].to_pylist()
        assert found["value"].to_pylist() == [b"one", b"two"] * 600

    def test_large_rows(self, url: str, name: str, mode: Any) -> None:
        open_stream(url, name)
        table = pa.table({"value": [bytes([i]) * 900_000 for i in range(40)]})
        assert bulk.write(url, name, table, subject=f"{name}.x", mode=mode).acked == 40
        assert (
            bulk.read(url, name, columns=["value"]).read_all()["value"].to_pylist()
            == table["value"].to_pylist()
        )

    def test_several_at_once(self, url: str, name: str, mode: Any) -> None:
        open_stream(url, name)

        def work(writer: int) -> Written:
            table = numbers(6_000, 5, writer * 6_000).to_reader(1_500)
            return bulk.write(url, name, table, subject=f"{name}.{writer}", mode=mode)

        with ThreadPoolExecutor(4) as pool:
            assert [done.acked for done in pool.map(work, range(4))] == [6_000] * 4
        found = bulk.read(url, name, columns=["value", "subject"]).read_all()
        assert found.num_rows == 24_000
        for writer in range(4):
            mine = found.filter(pa.compute.equal(found["subject"].cast(pa.string()), f"{name}.{writer}"))
            expected = range(writer * 6_000, writer * 6_000 + 6_000)
            assert [int(value.partition(b".")[0]) for value in mine["value"].to_pylist()] == list(expected)

    def test_no_stream_records_the_subject(self, url: str, name: str, mode: Any) -> None:
        open_stream(url, name)
        with pytest.raises(WriteFailedError, match="row 0 was not stored: no stream records") as caught:
            bulk.write(url, name, numbers(2_000), subject="nobody.listens", mode=mode)
        assert isinstance(caught.value.__cause__, NoJetStreamError)
        assert caught.value.acked == 0

    def test_another_stream_records_the_subject(self, url: str, name: str, mode: Any) -> None:
        open_stream(url, name)
        make_stream(url, f"{name}-other")
        with pytest.raises(WriteFailedError) as caught:
            bulk.write(url, name, numbers(2_000), subject=f"{name}-other.x", mode=mode)
        assert isinstance(caught.value.__cause__, JetStreamError)

    def test_a_row_that_is_too_long(self, url: str, name: str, mode: Any) -> None:
        """In a later portion, so that rows before it are stored."""
        open_stream(url, name)
        big = pa.table({"value": [b"x" * 2_000_000]})
        reader = pa.concat_tables([numbers(3_000), big, numbers(10)]).to_reader(1_000)
        with pytest.raises(WriteFailedError, match=r"row 3000 must be at most .*, got 2000") as caught:
            bulk.write(url, name, reader, subject=f"{name}.x", mode=mode)
        assert isinstance(caught.value.__cause__, UsageError)
        assert (caught.value.acked, caught.value.unknown) == (3_000, 0)
        assert values(url, name) == list(range(3_000))

    def test_the_source_breaks(self, url: str, name: str, mode: Any) -> None:
        open_stream(url, name)
        table = numbers(2_000)

        def batches() -> Iterator[pa.RecordBatch]:
            yield from table.to_batches(1_000)
            raise RuntimeError("the source is gone")

        reader = pa.RecordBatchReader.from_batches(table.schema, batches())
        before = set(threading.enumerate())
        with pytest.raises(RuntimeError, match="the source is gone"):
            bulk.write(url, name, reader, subject=f"{name}.x", mode=mode)
        assert set(threading.enumerate()) <= before

    def test_lost_source_is_no_retriable_error_once_rows_are_stored(
        self, url: str, name: str, mode: Any
    ) -> None:
        """Such as a bulk.read: a caller that retries its TransportError would store the rows twice."""
        open_stream(url, name)
        table = numbers(2_000)

        def batches() -> Iterator[pa.RecordBatch]:
            yield from table.to_batches(1_000)
            raise TransportError("the source is gone")

        reader = pa.RecordBatchReader.from_batches(table.schema, batches())
        with pytest.raises(WriteFailedError, match=r"2000 rows are stored, .*: the source is gone") as caught:
            bulk.write(url, name, reader, subject=f"{name}.x", mode=mode)
        assert isinstance(caught.value.__cause__, TransportError)
        assert (caught.value.acked, caught.value.unknown) == (2_000, 0)
        assert not caught.value.retriable
        assert values(url, name) == list(range(2_000))

    def test_interrupted_write_stores_a_prefix(self, url: str, name: str, mode: Any) -> None:
        open_stream(url, name)

        def stop(progress: Progress) -> None:
            if progress.rows >= 2_000:
                raise KeyboardInterrupt

        table = numbers(5_000).to_reader(1_000)
        with pytest.raises(KeyboardInterrupt):
            bulk.write(url, name, table, subject=f"{name}.x", mode=mode, progress=stop)
        stored = values(url, name)
        assert stored == list(range(len(stored)))
        assert bulk.write(url, name, numbers(1_500), subject=f"{name}.x", mode=mode).acked == 1_500


class TestWhatIsStoredOfAFailedWrite:
    @pytest.mark.parametrize(("mode", "stored"), [("atomic", 1_000), ("fast", 1_234)])
    @pytest.mark.parametrize("last", [False, True])
    def test_an_expected_sequence(self, url: str, name: str, mode: Any, stored: int, last: bool) -> None:
        open_stream(url, name)
        table = rows_with(1_235 if last else 3_000, 1_234, "Nats-Expected-Last-Sequence", "77")
        with pytest.raises(WriteFailedError) as caught:
            bulk.write(url, name, table, subject=f"{name}.x", mode=mode)
        assert isinstance(caught.value.__cause__, WrongLastSequenceError)
        assert (caught.value.acked, caught.value.unknown) == (stored, 0)
        assert values(url, name) == list(range(stored))

    @pytest.mark.parametrize(("mode", "stored"), [("atomic", 1_000), ("fast", 1_234)])
    def test_a_row_is_too_large_for_the_stream(self, url: str, name: str, mode: Any, stored: int) -> None:
        open_stream(url, name, max_msg_size=200)
        rows = [b"%d" % i for i in range(3_000)]
        rows[1_234] = b"x" * 201
        with pytest.raises(WriteFailedError, match="row 1234 was not stored") as caught:
            bulk.write(url, name, pa.table({"value": rows}), subject=f"{name}.x", mode=mode)
        assert isinstance(caught.value.__cause__, StreamMessageTooLargeError)
        assert (caught.value.acked, caught.value.unknown) == (stored, 0)
        assert values(url, name) == list(range(stored))

    @pytest.mark.parametrize(("mode", "stored"), [("atomic", 1_000), ("fast", 1_234)])
    @pytest.mark.parametrize("kind", ["nobody", "other"])
    def test_a_subject_of_nobody_or_of_another(
        self, url: str, name: str, mode: Any, stored: int, kind: str
    ) -> None:
        open_stream(url, name)
        open_stream(url, f"{name}-other")
        subjects = [f"{name}.x"] * 2_000
        subjects[1_234] = {"nobody": f"nobody.{name}", "other": f"{name}-other.x"}[kind]
        table = numbers(2_000).append_column("subject", pa.array(subjects))
        with pytest.raises(WriteFailedError) as caught:
            bulk.write(url, name, table, mode=mode)
        assert (caught.value.acked, caught.value.unknown) == (stored, 0)
        if kind == "nobody":
            assert isinstance(caught.value.__cause__, NoJetStreamError)
        else:
            assert isinstance(caught.value.__cause__, WrongStreamError)
        assert values(url, name) == list(range(stored))
        assert values(url, f"{name}-other") == []

    def test_an_atomic_batch_with_a_duplicate(self, url: str, name: str) -> None:
        open_stream(url, name)
        assert (
            bulk.write(url, name, numbers(1_500), subject=f"{name}.x", message_id="a", mode="atomic").acked
            == 1_500
        )
        with pytest.raises(WriteFailedError, match="duplicate message id") as caught:
            bulk.write(url, name, numbers(10), subject=f"{name}.x", message_id="a", mode="atomic")
        assert (caught.value.acked, caught.value.unknown) == (0, 0)
        assert values(url, name) == list(range(1_500))

    @pytest.mark.parametrize("row", [0, 1, 700, 1_199])
    def test_duplicates_are_passed_over_by_fast_ingest(self, url: str, name: str, row: int) -> None:
        open_stream(url, name)
        table = rows_with(1_200, row, "Nats-Msg-Id", "once")
        duplicates = []
        for expected in (1_200, 2_399):
            done = bulk.write(url, name, table, subject=f"{name}.x", mode="fast")
            assert done.acked == 1_200
            assert len(values(url, name)) == expected
            duplicates.append(done.duplicates)
        assert duplicates[-1] == (row == 0)

    def test_a_job_that_is_done_again_by_fast_ingest(self, url: str, name: str) -> None:
        open_stream(url, name)
        options: Any = {"subject": f"{name}.x", "mode": "fast", "message_id": "job"}
        assert bulk.write(url, name, numbers(18_000), **options).acked == 18_000
        done = bulk.write(url, name, numbers(20_000), **options)
        # The first row, and the last row of a batch with nothing but duplicates, are reported.
        assert (done.acked, done.duplicates, done.offsets) == (20_000, 2, {0: (0, 19_999)})
        assert values(url, name) == list(range(20_000))


@pytest.fixture(scope="module")
def urls() -> Iterator[tuple[str, str]]:
    """The server's URL for a user who may do everything, and for one who may not."""
    limits = {"publish": {"deny": ["*.denied", f"*.{QUOTED}"]}}
    users = [
        {"user": "boss", "password": "boss-pw"},
        {"user": "limited", "password": "limited-pw", "permissions": limits},
    ]
    with jetstream(config={"authorization": {"users": users}}) as server:
        boss, limited = (f"nats://{user}:{user}-pw@{server.address}" for user in ("boss", "limited"))
        yield boss, limited


class TestDeniedSubjects:
    @staticmethod
    def rows(name: str, runs: list[tuple[str, int]]) -> pa.Table:
        subjects = [f"{name}.{subject}" for subject, count in runs for _ in range(count)]
        return numbers(len(subjects)).append_column("subject", pa.array(subjects))

    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize("count", [1, 20_000])
    @pytest.mark.parametrize("subject", ["denied", QUOTED])
    def test_write_that_stored_nothing_is_denied(
        self, urls: tuple[str, str], name: str, subject: str, mode: Any, count: int
    ) -> None:
        open_stream(urls[0], name)
        with pytest.raises(PermissionDeniedError, match="denied"):
            bulk.write(urls[1], name, self.rows(name, [(subject, count)]), mode=mode, access=ACCESS)
        assert bulk.count(urls[0], name) == 0

    @pytest.mark.parametrize(
        ("mode", "runs", "stored"),
        [
            ("pipelined", [("x", 1), ("denied", 1), ("x", 1)], 2),
            ("pipelined", [("denied", 1), ("x", 1_000)], 1_000),
            ("pipelined", [("x", 17_000), ("denied", 3)], 17_000),
            ("atomic", [("x", 1_500), ("denied", 1), ("x", 1_000)], 1_000),
            ("atomic", [("x", 1_999), ("denied", 1)], 1_000),
            ("fast", [("x", 1), ("denied", 1), ("x", 1)], 1),
            ("fast", [("x", 1_500), ("denied", 3), ("x", 1_000)], 1_500),
            ("fast", [("x", 16_384), ("denied", 1), ("x", 16_384)], 16_384),
        ],
    )
    def test_what_is_stored_beside_denied_rows_is_told(
        self, urls: tuple[str, str], name: str, mode: Any, runs: list[tuple[str, int]], stored: int
    ) -> None:
        open_stream(urls[0], name)
        with pytest.raises(WriteFailedError, match=f"{stored} rows are stored") as caught:
            bulk.write(urls[1], name, self.rows(name, runs), mode=mode, access=ACCESS)
        assert isinstance(caught.value.__cause__, PermissionDeniedError)
        assert (caught.value.acked, caught.value.unknown) == (stored, 0)
        assert bulk.count(urls[0], name) == stored

    @pytest.mark.parametrize("mode", MODES)
    def test_denial_that_comes_during_a_pause_is_told(
        self, urls: tuple[str, str], name: str, mode: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("liftenvelope.bulk._writes.jetstream._PAUSE", 0.0)
        open_stream(urls[0], name)
        batch = self.rows(name, [("denied", 10)])
        rows = pa.RecordBatchReader.from_batches(batch.schema, iter([*batch.to_batches()] * 2))
        with pytest.raises(PermissionDeniedError, match="denied"):
            bulk.write(urls[1], name, rows, mode=mode, access=ACCESS)
        assert bulk.count(urls[0], name) == 0


@contextmanager
def cut_now_and_then(url: str, seed: int) -> Iterator[tuple[str, Callable[[Progress], None]]]:
    """A way to the server that is cut while rows and acks are under way; and what has it cut."""
    chance, timers = random.Random(seed), list[threading.Timer]()
    with FaultProxy(url) as proxy:

        def spoil(_: Progress) -> None:
            if chance.random() < 0.3:
                timers.append(threading.Timer(chance.random() * 0.01, proxy.cut))
                timers[-1].start()

        try:
            yield f"nats://{proxy.address}", spoil
        finally:
            for timer in timers:  # while there is a proxy
                timer.join()


class TestLostConnections:
    @pytest.mark.parametrize("seed", range(6))
    def test_fast_ingest_goes_on_without_message_ids(self, url: str, name: str, seed: int) -> None:
        """Each row once, though none has an id: the server says how much of a batch it has."""
        open_stream(url, name)
        options: Any = {"subject": f"{name}.x", "mode": "fast", "access": ACCESS}
        acked, unknown = 30_000, 0
        with cut_now_and_then(url, seed) as (way, spoil):
            table = numbers(30_000, 100).to_reader(2_000)
            try:
                assert bulk.write(way, name, table, progress=spoil, **options).acked == 30_000
            except WriteFailedError as failed:  # the answer to the end was on its way
                acked, unknown = failed.acked, failed.unknown
        stored = values(url, name)
        assert stored == list(range(len(stored)))
        assert acked <= len(stored) <= acked + unknown

    @pytest.mark.parametrize("seed", range(4))
    def test_atomic_batches_are_stored_whole(self, url: str, name: str, seed: int) -> None:
        open_stream(url, name)
        options: Any = {"subject": f"{name}.x", "mode": "atomic", "access": ACCESS}
        acked, unknown = 12_000, 0
        with cut_now_and_then(url, seed) as (way, spoil):
            try:
                bulk.write(way, name, numbers(12_000, 100), progress=spoil, **options)
            except WriteFailedError as failed:  # the ack of the end was on its way
                acked, unknown = failed.acked, failed.unknown
        assert unknown in (0, 1_000)
        # The server may be in the middle of storing a batch whose ack nobody waits for any more.
        wait_for("all rows", lambda: bulk.count(url, name) % 1_000 == 0)
        stored = values(url, name)
        assert stored == list(range(len(stored)))
        assert acked <= len(stored) <= acked + unknown

    @pytest.mark.parametrize(("mode", "ident"), [("atomic", None), ("fast", None), ("fast", "job")])
    def test_the_server_is_killed_and_comes_back(self, mode: Any, ident: str | None) -> None:
        """It forgets its open batches: some rows may be unknown, but never are there holes."""
        with jetstream() as server:
            open_stream(server.url, "numbers")
            killed = threading.Event()

            def kill(progress: Progress) -> None:
                if progress.rows >= 6_000 and not killed.is_set():
                    killed.set()
                    server.kill()
                    server.start()

            failed = None
            try:
                bulk.write(
                    server.url,
                    "numbers",
                    numbers(20_000, 100).to_reader(2_000),
                    subject="numbers.x",
                    progress=kill,
                    mode=mode,
                    message_id=ident,
                    access=ACCESS,
                )
            except WriteFailedError as exc:
                failed = exc
            assert killed.is_set()
            stored = values(server.url, "numbers")
        assert stored == list(range(len(stored)))
        if failed is not None:
            assert ident is None
            assert failed.acked <= len(stored) <= failed.acked + failed.unknown
        else:
            assert len(stored) == 20_000


def relay(client: socket.socket, port: int, until: bytes | None = None) -> None:
    """Pass a connection on to a server until the client closes it, or it has answered something.

    With ``until``, the end of a batch of fast ingest is held back, with all that follows it.
    """
    answered, lasts = b"", True
    with client, socket.create_connection(("127.0.0.1", port)) as server:
        while until is None or until not in answered:
            ready = select.select([client, server] if lasts else [server], [], [])[0]
            if server in ready:
                data = server.recv(65_536)
                answered += data
                client.sendall(data)
            if client in ready:
                data = client.recv(65_536)
                if not data:
                    return
                if until is not None and b".3.$FI 0" in data:  # the rows have headers
                    data, lasts = re.split(rb"(?<!H)PUB ", data)[0], False
                server.sendall(data)


class TestForgottenBatch:
    @pytest.mark.parametrize("is_stored", [False, True])
    def test_rows_are_stored_once_at_the_offsets_told(self, is_stored: bool) -> None:
        """The server acks each row of a batch, and forgets it by a restart before its end."""
        with jetstream() as server, socket.create_server(("127.0.0.1", 0)) as way:
            open_stream(server.url, "numbers")
            options: Any = {"subject": "numbers.x", "mode": "fast", "message_id": "job", "access": ACCESS}
            if is_stored:
                bulk.write(server.url, "numbers", numbers(20), **options)
            url = f"nats://127.0.0.1:{way.getsockname()[1]}"
            rows = numbers(20).to_reader(10)
            with ThreadPoolExecutor(1) as pool:
                writing = pool.submit(bulk.write, url, "numbers", rows, max_in_flight=1, **options)
                # The first row is a batch of its own. The other nine are the next one.
                relay(way.accept()[0], server.port, until=b'"seq":9,')
                server.kill()
                server.start()
                way.settimeout(0.1)
                while not writing.done():
                    with suppress(TimeoutError):
                        relay(way.accept()[0], server.port)
                written = writing.result()
            assert (written.acked, written.offsets) == (20, {0: (0, 19)})
            assert values(server.url, "numbers") == list(range(20))


class TestWhichMode:
    def test_the_stream_does_not_allow_it(self, url: str, name: str) -> None:
        make_stream(url, name)
        for mode, setting in (("fast", "allow_batched=True"), ("atomic", "allow_atomic=True")):
            with pytest.raises(UsageError, match=f"{name} allows, got '{mode}': set {setting}") as caught:
                bulk.write(url, name, numbers(1), subject=f"{name}.x", mode=mode)  # type: ignore[arg-type]
            assert "nats-server 2.1" in str(caught.value)
        assert bulk.write(url, name, numbers(2_000), subject=f"{name}.x").acked == 2_000

    def test_mode_disallowed_between_batches_fails_the_write(self, url: str, name: str) -> None:
        open_stream(url, name)

        async def forbid() -> None:
            async with await nats.connect(url) as nc:
                config = StreamConfig(name=name, subjects=(f"{name}.>",))
                await JetStream(nc).update_stream(config)

        def once(progress: Progress) -> None:
            if progress.rows == 2_000:
                asyncio.run(forbid())

        table = numbers(9_000).to_reader(2_000)
        with pytest.raises(WriteFailedError) as caught:
            bulk.write(url, name, table, subject=f"{name}.x", mode="fast", progress=once)
        stored = values(url, name)
        assert stored == list(range(len(stored)))
        assert caught.value.acked <= len(stored) <= caught.value.acked + caught.value.unknown

    def test_mode_disallowed_within_a_batch_fails_the_write(self, url: str, name: str) -> None:
        open_stream(url, name)

        async def forbid() -> None:
            async with await nats.connect(url) as nc:
                js = JetStream(nc, timeout=60)  # the server is busy
                stream = await js.stream(name)
                while (await stream.info()).state.messages < 20_000:
                    await asyncio.sleep(0)
                await js.update_stream(StreamConfig(name=name, subjects=(f"{name}.>",)))

        with ThreadPoolExecutor(1) as pool:
            forbidding = pool.submit(asyncio.run, forbid())
            with pytest.raises(WriteFailedError, match="batch publish is disabled") as caught:
                bulk.write(url, name, numbers(2_000_000), subject=f"{name}.x", mode="fast")
            forbidding.result()
        stored = bulk.count(url, name)
        assert caught.value.acked <= stored <= caught.value.acked + caught.value.unknown

    @pytest.mark.parametrize(("count", "atomic"), [(1_000, True), (1_001, False)])
    def test_a_thousand_rows_are_one_batch(self, url: str, name: str, count: int, atomic: bool) -> None:
        """However they are divided into record batches."""
        open_stream(url, name)
        table = rows_with(count, count - 1, "Nats-Expected-Last-Sequence", "5")
        with pytest.raises(WriteFailedError):
            bulk.write(url, name, table.to_reader(77), subject=f"{name}.x", mode="atomic")
        assert len(values(url, name)) == (0 if atomic else 1_000)

    def test_no_acks(self, url: str, name: str) -> None:
        make_stream(url, name, no_ack=True)
        with pytest.raises(UsageError, match="no_ack=True"):
            bulk.write(url, name, numbers(1), subject=f"{name}.x")

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"mode": "quick"}, "mode must be one of 'auto', 'pipelined', 'atomic', 'fast', got 'quick'"),
        ],
    )
    def test_arguments(self, options: Any, text: str) -> None:
        with pytest.raises(UsageError, match=text):
            bulk.write("nats://127.0.0.1:1", "s", numbers(1), **options)
        with pytest.raises(UsageError, match="mode must be 'auto' for Liftbridge, got 'fast'"):
            bulk.write("127.0.0.1:1", "s", numbers(1), mode="fast")

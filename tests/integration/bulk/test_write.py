"""Bulk writes, on real servers."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from nats.js import JetStreamContext

import liftenvelope
from liftenvelope import bulk
from liftenvelope.bulk import Access, Progress, WriteFailedError, Written
from liftenvelope.errors import (
    NoSuchStreamError,
    StreamMessageTooLargeError,
    StreamNotFoundError,
    UsageError,
    WrongStreamError,
)
from liftenvelope.testing import FaultProxy, LiftbridgeCluster
from tests.integration.bulk_streams import by_nats_py, make_stream, offsets, with_jetstream


@pytest.fixture
def address(liftbridge_server: LiftbridgeCluster) -> str:
    return liftbridge_server.addresses[0]


def numbers(count: int, size: int = 0) -> pa.Table:
    return pa.table({"value": [b"%d" % i + b"." * size for i in range(count)]})


def written_numbers(url: str, stream: str) -> list[int]:
    values = bulk.read(url, stream, columns=["value"]).read_all()["value"].to_pylist()
    return [int(value.partition(b".")[0]) for value in values]


@pytest.mark.parametrize("kind", ["jetstream", "liftbridge"])
def test_timeouts_may_be_longer_than_a_socket_can_wait(
    kind: str, url: str, address: str, liftbridge_server: LiftbridgeCluster, name: str
) -> None:
    endless = Access(connect_timeout=1e300, timeout=1e300, stall_timeout=1e300, reconnect_wait=1e300)
    if kind == "jetstream":
        make_stream(url, name)
        bulk.write(url, name, numbers(10), subject=f"{name}.x", access=endless)
    else:
        liftbridge_server.create_stream(name)
        bulk.write(address, name, numbers(10), access=endless)
    found = bulk.read(url if kind == "jetstream" else address, name, access=endless).read_all()
    assert found["offset"].to_pylist() == list(range(10))


class TestJetStream:
    def test_what_was_read_can_be_written(self, url: str, name: str) -> None:
        for stream in (f"{name}-a", f"{name}-b"):
            make_stream(url, stream)
        source = pa.table(
            {
                "subject": [f"{name}-a.{i % 3}" for i in range(500)],
                "value": [bytes([i % 256]) * (i % 40) for i in range(500)],
                "headers": pa.array(
                    [[("A", b"%d" % i), ("B", b"x y")] if i % 2 else [] for i in range(500)],
                    pa.map_(pa.string(), pa.binary()),
                ),
            }
        )
        assert bulk.write(url, f"{name}-a", source) == Written(
            500, sum(map(len, source["value"].to_pylist())), 0, {0: (0, 499)}
        )
        rows = by_nats_py(url, f"{name}-a", 500)
        assert [row[1] for row in rows] == source["subject"].to_pylist()
        assert [row[2] for row in rows] == source["value"].to_pylist()
        assert [row[3] for row in rows] == [
            {key: value.decode() for key, value in row} for row in source["headers"].to_pylist()
        ]
        reader = bulk.read(url, f"{name}-a")
        assert bulk.write(url, f"{name}-b", reader, subject=f"{name}-b.x").acked == 500
        first = bulk.read(url, f"{name}-a", columns=["value", "headers"]).read_all()
        assert bulk.read(url, f"{name}-b", columns=["value", "headers"]).read_all() == first

    def test_in_envelopes(self, url: str, name: str) -> None:
        make_stream(url, name)
        table = pa.table({"key": [b"k", None], "value": ["one", "two"]})
        bulk.write(url, name, table, subject=f"{name}.x", envelope=True)
        found = bulk.read(url, name, envelope="strip", columns=["key", "value"]).read_all()
        assert found.to_pylist() == [{"key": b"k", "value": b"one"}, {"key": None, "value": b"two"}]

    @pytest.mark.parametrize("in_flight", [1, 7, 4_000])
    def test_all_are_acked(self, url: str, name: str, in_flight: int) -> None:
        make_stream(url, name)
        seen: list[Progress] = []
        count = 3_000 if in_flight > 1 else 50
        done = bulk.write(
            url, name, numbers(count), subject=f"{name}.x", max_in_flight=in_flight, progress=seen.append
        )
        assert done.acked == count
        assert seen[-1].rows == count
        assert written_numbers(url, name) == list(range(count))

    def test_nothing(self, url: str, name: str) -> None:
        make_stream(url, name)
        assert bulk.write(url, name, numbers(0), subject=f"{name}.x") == Written(0, 0, 0, {})

    def test_once_only_by_message_ids(self, url: str, name: str) -> None:
        make_stream(url, name)
        for duplicates in (0, 100):
            done = bulk.write(url, name, numbers(100), subject=f"{name}.x", message_id="job-1")
            assert (done.acked, done.duplicates) == (100, duplicates)
        assert written_numbers(url, name) == list(range(100))

    @pytest.mark.parametrize("seed", range(4))
    def test_over_spoilt_connections(self, url: str, name: str, seed: int) -> None:
        make_stream(url, name)
        chance = random.Random(seed)
        with FaultProxy(url) as proxy:

            def spoil(progress: Progress) -> None:
                if chance.random() < 0.4:
                    proxy.cut() if chance.random() < 0.5 else proxy.truncate(chance.randrange(5_000))

            done = bulk.write(
                f"nats://{proxy.address}",
                name,
                numbers(20_000, 100).to_reader(1_000),
                subject=f"{name}.x",
                message_id="job",
                progress=spoil,
                max_in_flight=500,
                access=Access(reconnect_wait=60, connect_timeout=10, timeout=20),
            )
        assert done.acked == 20_000
        assert written_numbers(url, name) == list(range(20_000))

    def test_a_lost_connection_without_message_ids(self, url: str, name: str) -> None:
        make_stream(url, name)
        with FaultProxy(url) as proxy:

            def cut_in_the_next_rows(progress: Progress) -> None:
                if progress.rows == 2_000:
                    proxy.truncate(10_000, "to_server")

            table = numbers(50_000).to_reader(1_000)
            with pytest.raises(WriteFailedError, match="message_id") as caught:
                bulk.write(
                    f"nats://{proxy.address}", name, table, subject=f"{name}.x", progress=cut_in_the_next_rows
                )
        stored = written_numbers(url, name)
        assert stored == list(range(len(stored)))
        assert caught.value.acked <= len(stored) <= caught.value.acked + caught.value.unknown

    def test_a_row_is_refused(self, url: str, name: str) -> None:
        make_stream(url, name, max_msg_size=100)
        table = pa.table({"value": [b"small", b"x" * 200, b"small"]})
        with pytest.raises(WriteFailedError, match="row 1 was not stored") as caught:
            bulk.write(url, name, table, subject=f"{name}.x")
        assert isinstance(caught.value.__cause__, StreamMessageTooLargeError)
        assert caught.value.acked == 1

    def test_another_stream_records_the_subject(self, url: str, name: str) -> None:
        make_stream(url, name)
        make_stream(url, f"{name}-other")
        with pytest.raises(WriteFailedError) as caught:
            bulk.write(url, name, numbers(1), subject=f"{name}-other.x")
        assert isinstance(caught.value.__cause__, WrongStreamError)

    def test_no_stream_records_the_subject(self, url: str, name: str) -> None:
        make_stream(url, name)
        with pytest.raises(WriteFailedError, match="no stream records"):
            bulk.write(url, name, numbers(5), subject="nobody.listens")

    def test_no_such_stream(self, url: str) -> None:
        with pytest.raises(StreamNotFoundError, match="there is no stream 'nothing'"):
            bulk.write(url, "nothing", numbers(1), subject="x")

    @pytest.mark.parametrize(
        ("table", "options", "text"),
        [
            (pa.table({"x": [1]}), {}, "must have a column 'value', got x"),
            (pa.table({"value": [b""], "x": [1]}), {}, "'x'"),
            (pa.table({"value": [1]}), {"subject": "s"}, "int64"),
            (pa.table({"value": [None, b""]}), {"subject": "s"}, "row 0"),
            (pa.table({"value": [b""]}), {}, "'subject'"),
            (pa.table({"value": [b""], "subject": ["a..b"]}), {}, "a..b"),
            (pa.table({"value": [b""], "key": [b"k"]}), {"subject": "s"}, "envelope=True"),
            (pa.table({"value": [b"x" * 2_000_000]}), {"subject": "s"}, "got 2000000"),
            (pa.table({"value": [b""]}), {"partition": 1}, "partition must be None for JetStream, got 1"),
            (pa.table({"value": [b""]}), {"subject": "s", "message_id": ""}, "message_id"),
            (pa.table({"value": [b""]}), {"subject": "s", "message_id": "a\nb"}, "line end"),
            (pa.table({"value": [b""]}), {"max_in_flight": 0}, "max_in_flight must be at least 1, got 0"),
            ([b"x"], {}, "list"),
        ],
    )
    def test_arguments(self, url: str, name: str, table: Any, options: dict[str, Any], text: str) -> None:
        make_stream(url, name)
        with pytest.raises(UsageError) as caught:
            bulk.write(url, name, table, **options)
        assert text in str(caught.value)

        async def count(js: JetStreamContext) -> int:
            return (await js.stream_info(name)).state.messages

        assert with_jetstream(url, count) == 0


class TestLiftbridge:
    def test_what_was_read_can_be_written(self, address: str, name: str) -> None:
        with liftenvelope.connect_blocking(address) as client:
            for stream in (f"{name}-a", f"{name}-b"):
                client.create_stream(stream, stream, partitions=2)
            table = pa.table(
                {
                    "key": [b"k%d" % i if i % 2 else None for i in range(400)],
                    "value": [b"%d" % i for i in range(400)],
                    "partition": pa.array([i % 2 for i in range(400)], pa.int32()),
                    "headers": pa.array(
                        [[("a", b"%d" % i)] for i in range(400)], pa.map_(pa.string(), pa.binary())
                    ),
                }
            )
            done = bulk.write(client, f"{name}-a", table)
        assert done.acked == 400
        assert done.offsets == {0: (0, 199), 1: (0, 199)}
        for partition in (0, 1):
            first = bulk.read(address, f"{name}-a", partitions=partition).read_all()
            assert offsets(first) == list(range(200))
            assert first["value"].to_pylist() == [b"%d" % i for i in range(partition, 400, 2)]
            assert first["key"].to_pylist() == table["key"].to_pylist()[partition::2]
            bulk.write(address, f"{name}-b", first)
            columns = ["key", "value", "headers", "offset", "partition"]
            again = bulk.read(address, f"{name}-b", partitions=partition, columns=columns).read_all()
            assert again == first.select(columns)

    def test_a_row_is_refused(self, address: str, name: str) -> None:
        with liftenvelope.connect_blocking(address) as client:
            client.create_stream(name, name)
        table = pa.table({"value": [b"small", b"x" * 3_000_000]})
        with pytest.raises(WriteFailedError, match="row 1"):
            bulk.write(address, name, table, partition=0)
        assert bulk.count(address, name) == 1

    def test_no_such_stream(self, address: str) -> None:
        with pytest.raises(NoSuchStreamError):
            bulk.write(address, "nothing", numbers(1))

    @pytest.mark.parametrize("options", [{"subject": "x"}, {"envelope": True}, {"message_id": "x"}])
    def test_arguments(self, address: str, options: dict[str, Any]) -> None:
        with pytest.raises(UsageError, match="JetStream"):
            bulk.write(address, "x", numbers(1), **options)

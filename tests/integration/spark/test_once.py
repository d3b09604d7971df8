"""Rows that a Spark task stores once in Liftbridge, on real servers, without Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from nats.js import JetStreamContext

from liftenvelope import bulk, connect_blocking
from liftenvelope.bulk import WriteFailedError
from liftenvelope.errors import MessageTooLargeError, NoSuchStreamError, TransportError, UsageError
from liftenvelope.spark._options import SinkOptions, sink_options
from liftenvelope.spark._row_places import ROW_HEADER
from liftenvelope.spark._writing import TaskWritten, write_task
from liftenvelope.spark.errors import BatchChangedError, OptionError
from liftenvelope.testing import GatewayCluster, LiftbridgeCluster, run_liftbridge
from tests.integration.bulk_streams import with_jetstream
from tests.integration.stored import await_stream

TASK = "0c0ffee0-query:0:0"
LATER = "0c0ffee0-query:1:0"
Cluster = LiftbridgeCluster | GatewayCluster


@pytest.fixture(params=["liftbridge_server", "gateway_server"])
def cluster(request: pytest.FixtureRequest, name: str) -> Cluster:
    """With a stream of the test's name that has two partitions and checks expected offsets."""
    found: Cluster = request.getfixturevalue(request.param)
    found.create_stream(name, partitions=2, optimistic_concurrency=True)
    return found


def sink(cluster: Cluster, name: str, **given: object) -> SinkOptions:
    options = {"servers": cluster.addresses[0], "topic": name, "deliveryGuarantee": "effectively-once"}
    return sink_options("liftbridge", {**options, "maxInFlight": 10, **given}, streaming=True)


def rows(numbers: Iterable[int], partition: int | None = 0) -> pa.RecordBatch:
    values = [b"%d" % i for i in numbers]
    columns: dict[str, Any] = {"value": values, "key": [b"k" + value for value in values]}
    if partition is not None:
        columns["partition"] = pa.array([partition] * len(values), pa.int32())
    return pa.record_batch(columns)


def stored(cluster: Cluster, name: str) -> list[int]:
    """Values in the order of partitions and offsets, but for those of strangers.

    The last one counts where a killed server gave an offset twice: what had no ack, and then what has.
    """
    columns = ["partition", "offset", "value"]
    rows = bulk.read(cluster.addresses[0], name, columns=columns, parallel=1).read_all().to_pylist()
    found = {(row["partition"], row["offset"]): row["value"] for row in rows}
    return [int(value) for _, value in sorted(found.items()) if value != b"stranger"]


def stranger(cluster: Cluster, name: str) -> None:
    with connect_blocking(cluster.addresses) as client:
        client.publish(name, b"stranger", partition=0)


def hidden(cluster: LiftbridgeCluster, name: str) -> str:
    """A stream of fifteen rows of which Liftbridge shows some no more, since it was killed.

    It writes down every few seconds how far readers may see. Should that be just after the rows were stored,
    then they are all shown, and it is tried again with another stream.
    """
    stream, shown = name, 14
    while shown == 14:
        stream = f"{stream}-x"
        cluster.create_stream(stream, optimistic_concurrency=True)
        with pytest.raises(Cut):
            write_task(sink(cluster, stream), cut(rows(range(15))), TASK)
        cluster.nodes[0].kill()
        cluster.nodes[0].start()
        await_stream(cluster, stream)
        shown = cluster.partition_metadata(stream).highWatermark
    return stream


class Cut(Exception):  # noqa: N818 - it stands for a task that is killed
    """The end of an attempt."""


def cut(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    yield batch
    raise Cut


class TestOnce:
    def test_a_task_that_runs_again(self, cluster: Cluster, name: str) -> None:
        options = sink(cluster, name)
        assert write_task(options, [rows(range(25))], TASK) == TaskWritten(25, 40, 0)
        again = [rows(range(7)), rows(range(7, 25))]
        assert write_task(options, again, TASK) == TaskWritten(25, 40, 25)
        assert write_task(options, [rows(range(25, 30))], "0c0ffee0-query:1:0").duplicates == 0
        assert stored(cluster, name) == list(range(30))

    @pytest.mark.parametrize("count", [1, 10, 17])
    def test_one_that_was_cut_off(self, cluster: Cluster, name: str, count: int) -> None:
        options = sink(cluster, name)
        with pytest.raises(Cut):
            write_task(options, cut(rows(range(count))), TASK)
        assert write_task(options, [rows(range(25))], TASK).duplicates == count
        assert stored(cluster, name) == list(range(25))

    def test_keys_choose_partitions_and_headers_stay(self, cluster: Cluster, name: str) -> None:
        options = sink(cluster, name)
        given = rows(range(30), None)
        entries = [
            [{"key": "A", "value": b"%d" % i}, {"key": ROW_HEADER, "value": b"old"}] for i in range(30)
        ]
        kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
        batch = given.append_column("headers", pa.array(entries, kind))
        for duplicates in (0, 30):
            assert write_task(options, [batch], TASK).duplicates == duplicates
        found = bulk.read(cluster.addresses[0], name).read_all().to_pylist()
        assert {row["partition"] for row in found} == {0, 1}
        assert sorted(int(row["value"]) for row in found) == list(range(30))
        for row in found:
            header = dict(row["headers"])
            assert header["A"] == row["value"]
            assert header[ROW_HEADER].startswith(TASK.encode())

    def test_ids_say_the_order(self, cluster: Cluster, name: str) -> None:
        options = sink(cluster, name)
        for duplicates, order in ((0, [2, 0, 1]), (3, [1, 2, 0])):
            batches = [rows([i]).append_column("msgId", pa.array([f"id-{i}"])) for i in order]
            assert write_task(options, batches, TASK).duplicates == duplicates
        assert stored(cluster, name) == [0, 1, 2]
        twice = [rows([1]).append_column("msgId", pa.array(["a"]))] * 2
        with pytest.raises(UsageError, match="msgId must be unique in a task, got 'a' twice"):
            write_task(options, twice, "0c0ffee0-query:1:0")
        nameless = rows([1]).append_column("msgId", pa.array([None], pa.string()))
        named = rows([0]).append_column("msgId", pa.array(["a"]))
        with pytest.raises(UsageError, match="row 1 of the task has no msgId"):
            write_task(options, [named, nameless], "0c0ffee0-query:1:0")

    @pytest.mark.parametrize("count", [3, 300])
    def test_rows_behind_a_read_that_ended_early_are_not_stored_again(
        self, cluster: Cluster, name: str, count: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """FAKE is that the read finds a lower end of the partition, as one after a restart may."""
        options = sink(cluster, name)
        with pytest.raises(Cut):
            write_task(options, cut(rows(range(count))), TASK)

        def read(*source: Any, stop: int, **given: Any) -> pa.RecordBatchReader:
            return read_all(*source, stop=stop - 2 if stop == count else stop, **given)

        read_all = bulk.read
        with monkeypatch.context() as patch:
            patch.setattr(bulk, "read", read)
            with pytest.raises(TransportError, match="offsets from"):
                write_task(options, [rows(range(count + 5))], TASK)
        assert write_task(options, [rows(range(count + 5))], TASK).duplicates == count
        assert stored(cluster, name) == list(range(count + 5))

    def test_task_goes_on_behind_rows_that_are_gone(self, gateway_server: GatewayCluster, name: str) -> None:
        gateway_server.create_stream(name, partitions=2, optimistic_concurrency=True)
        options = sink(gateway_server, name)
        write_task(options, [rows(range(25))], TASK)

        async def purge(js: JetStreamContext) -> None:
            await js.purge_stream(f"lift_{name}_0", seq=11)

        with_jetstream(gateway_server.nats_url, purge)
        for duplicates in (0, 5):
            assert write_task(options, [rows(range(25, 30))], LATER).duplicates == duplicates
        assert stored(gateway_server, name) == list(range(10, 30))

    def test_strangers_write_as_well(self, cluster: Cluster, name: str) -> None:
        options = sink(cluster, name)

        def batches() -> Iterator[pa.RecordBatch]:
            for i in range(0, 25, 5):
                yield rows(range(i, i + 5))
                stranger(cluster, name)

        stranger(cluster, name)
        assert write_task(options, batches(), TASK).duplicates == 0
        assert write_task(options, [rows(range(25))], TASK).duplicates == 25
        # What was on its way behind a row that was refused may be before it.
        assert sorted(stored(cluster, name)) == list(range(25))

    @pytest.mark.parametrize("tasks", [(0, 0), (0, 1)])
    def test_two_at_once(self, cluster: Cluster, name: str, tasks: tuple[int, int]) -> None:
        """An attempt that Spark has given up goes on; and two tasks that write to one partition."""
        options = sink(cluster, name)
        _together(
            *(
                lambda task=task: write_task(
                    options, [rows(range(60 * task, 60 * task + 60))], f"0c0ffee0-query:0:{task}"
                )
                for task in tasks
            )
        )
        found = stored(cluster, name)
        assert sorted(found) == list(range(60 * len(set(tasks))))
        if tasks == (0, 0):
            assert found == sorted(found)


def _together(*work: Callable[[], object]) -> None:
    errors: list[Exception] = []

    def run(one: Callable[[], object]) -> None:
        try:
            one()
        except Exception as exc:  # noqa: BLE001 - raised below
            errors.append(exc)

    threads = [threading.Thread(target=run, args=(one,)) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


class TestRefused:
    def test_a_stream_that_does_not_check(self, liftbridge_server: LiftbridgeCluster, name: str) -> None:
        liftbridge_server.create_stream(name)
        for _ in range(2):
            with pytest.raises(OptionError, match="was created with optimistic_concurrency=True"):
                write_task(sink(liftbridge_server, name), [rows(range(5))], TASK)
        assert stored(liftbridge_server, name) == [0]

    def test_other_rows_than_before(self, cluster: Cluster, name: str) -> None:
        options = sink(cluster, name)
        write_task(options, [rows(range(5))], TASK)
        with pytest.raises(BatchChangedError, match="row 0 of the batch differs"):
            write_task(options, [rows(range(1, 6))], TASK)
        with pytest.raises(BatchChangedError, match="an earlier run stored 5 rows"):
            write_task(options, [rows(range(4))], TASK)
        assert stored(cluster, name) == list(range(5))

    def test_rows_that_move_to_another_task_are_stored_twice(self, cluster: Cluster, name: str) -> None:
        """The limit that docs/spark.md states: a task compares only its own rows."""
        options = sink(cluster, name)
        write_task(options, [rows(range(5))], "0c0ffee0-query:0:0")
        assert write_task(options, [], "0c0ffee0-query:0:0") == TaskWritten()
        assert write_task(options, [rows(range(5))], "0c0ffee0-query:0:1").duplicates == 0
        assert stored(cluster, name) == [*range(5), *range(5)]

    def test_a_row_that_is_too_large(self, cluster: Cluster, name: str) -> None:
        batch = pa.record_batch({"value": [b"0", bytes(2 * 1024 * 1024)]})
        with pytest.raises(WriteFailedError) as caught:
            write_task(sink(cluster, name), [batch], TASK)
        assert isinstance(caught.value.__cause__, MessageTooLargeError)

    def test_a_request_that_is_larger_than_the_option_allows(self, cluster: Cluster, name: str) -> None:
        batch = pa.record_batch({"value": [bytes(1_000)]})
        with pytest.raises(WriteFailedError, match=r"at most 500 bytes: .*in Spark, maxRequestBytes"):
            write_task(sink(cluster, name, maxRequestBytes=500), [batch], TASK)
        assert write_task(sink(cluster, name, maxRequestBytes=2_000), [batch], TASK) == TaskWritten(1, 1_000)

    def test_no_such_stream(self, liftbridge_server: LiftbridgeCluster, name: str) -> None:
        with pytest.raises(NoSuchStreamError):
            write_task(sink(liftbridge_server, name), [rows(range(5))], TASK)


class TestServerGone:
    def test_killed_while_a_task_writes(self, name: str) -> None:
        with run_liftbridge() as cluster:
            cluster.create_stream(name, optimistic_concurrency=True)
            options = sink(cluster, name)

            def batches() -> Iterator[pa.RecordBatch]:
                yield rows(range(15))
                cluster.nodes[0].kill()
                cluster.nodes[0].start()
                yield rows(range(15, 40))

            write_task(options, batches(), TASK)
            assert stored(cluster, name) == list(range(40))

    def test_what_it_hides_is_not_stored_again(self, name: str) -> None:
        """After a kill Liftbridge shows nothing of what it has, until one more message comes."""
        with run_liftbridge() as cluster:
            name = hidden(cluster, name)
            options = sink(cluster, name, reconnectWait="2s")
            with pytest.raises(WriteFailedError, match="has 15 offsets but does not show all of them"):
                write_task(options, [rows(range(25))], TASK)
            stranger(cluster, name)
            assert write_task(options, [rows(range(25))], TASK).duplicates == 15
            assert stored(cluster, name) == list(range(25))

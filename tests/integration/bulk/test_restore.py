"""An archive back into a stream, on real servers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from nats.js import JetStreamContext

from liftenvelope import bulk
from liftenvelope.bulk import Progress, RestoreError, WriteFailedError
from liftenvelope.errors import LiftEnvelopeError, UsageError
from liftenvelope.payload import ArrowBatches, Avro, Json, Msgpack, PayloadFormat, Protobuf
from tests.integration.bulk.test_write_modes import numbers, open_stream
from tests.integration.bulk_streams import make_stream, numbered, publish, wait_for, with_jetstream
from tests.unit.payload.test_protobuf import LINE, descriptor_set


def archive_and_empty(url: str, name: str, folder: Path, rows: int) -> None:
    """Archive a stream, and make it anew."""
    make_stream(url, name)
    publish(url, numbered(name, rows))
    publish(url, [(f"{name}.x", b"", {"Nats-Msg-Id": "own", "color": "red"}), (f"{name}.y", b"\xff", None)])
    bulk.to_parquet(url, name, folder, rotate_rows=70, partition_by=["dt"])
    empty(url, name)


def empty(url: str, name: str) -> None:
    async def delete(js: JetStreamContext) -> None:
        await js.delete_stream(name)

    with_jetstream(url, delete)
    make_stream(url, name)


def test_restored_stream_has_the_rows_and_offsets_of_the_archive(url: str, name: str, tmp_path: Path) -> None:
    archive_and_empty(url, name, tmp_path, 200)
    assert bulk.restore(tmp_path, url, name, verify=True) == bulk.Restored(202, 0, 202, True)
    rows = bulk.read(url, name, start=200).read_all().to_pylist()
    assert [dict(row["headers"]) for row in rows] == [
        {"color": b"red", "Nats-Msg-Id": f"restore-{name}-0-200".encode()},
        {"Nats-Msg-Id": f"restore-{name}-0-201".encode()},
    ]
    assert [row["value"] for row in rows] == [b"", b"\xff"]
    again = bulk.restore(tmp_path, url, name, verify=True)
    assert (again.rows, again.skipped, again.verified) == (0, 202, 202)


def test_messages_of_atomic_batches_are_restored_and_verified(url: str, name: str, tmp_path: Path) -> None:
    open_stream(url, name)
    bulk.write(url, name, numbers(30), subject=f"{name}.a", mode="atomic")
    bulk.to_parquet(url, name, tmp_path)
    headers = pq.read_table(next(tmp_path.glob("*.parquet")))["headers"].to_pylist()
    assert all("Nats-Batch-Sequence" in dict(row) for row in headers)
    empty(url, name)
    assert bulk.restore(tmp_path, url, name, verify=True) == bulk.Restored(30, 0, 30, True)


def test_restore_that_fails_half_way_and_is_repeated_stores_each_row_once(
    url: str, name: str, tmp_path: Path
) -> None:
    archive_and_empty(url, name, tmp_path, 20_000)

    def fail(_: Progress) -> None:
        raise LiftEnvelopeError("enough")

    with pytest.raises(LiftEnvelopeError):
        bulk.restore(tmp_path, url, name, progress=fail)
    done = bulk.restore(tmp_path, url, name, verify=True)
    assert done.rows + done.skipped == done.verified == 20_002
    assert done.keeps_offsets


def test_archive_with_a_gap_does_not_keep_offsets(url: str, name: str, tmp_path: Path) -> None:
    make_stream(url, name)
    publish(url, numbered(name, 10))

    async def delete(js: JetStreamContext) -> None:
        await js.delete_msg(name, 4)

    with_jetstream(url, delete)
    bulk.to_parquet(url, name, tmp_path)
    empty(url, name)
    assert bulk.restore(tmp_path, url, name, verify=True) == bulk.Restored(9, 0, 9, False)


def test_messages_of_others_are_refused_or_found_by_verify(url: str, name: str, tmp_path: Path) -> None:
    archive_and_empty(url, name, tmp_path, 5)
    publish(url, numbered(name, 1))
    with pytest.raises(UsageError, match="must be empty, or hold the beginning of this restore"):
        bulk.restore(tmp_path, url, name)
    publish(url, [(f"{name}.x", b"other", {"Nats-Msg-Id": f"restore-{name}-0-2"})])
    with pytest.raises(UsageError, match="its message at offset 0 has the id ''"):
        bulk.restore(tmp_path, url, name)
    empty(url, name)
    publish(url, [(f"{name}.x", b"other", {"Nats-Msg-Id": f"restore-{name}-0-{i}"}) for i in range(3)])
    with pytest.raises(RestoreError, match="must be that of the archive"):
        bulk.restore(tmp_path, url, name, verify=True)


def test_restore_is_not_repeated_behind_a_row_that_was_refused(url: str, name: str, tmp_path: Path) -> None:
    """The rows after it were in flight, and are stored: to go on behind them would leave it out."""
    make_stream(url, name)
    table = pa.table({"value": ["a" * (500 if i == 7 else 5) for i in range(20)]})
    bulk.write(url, name, table, subject=f"{name}.x")
    bulk.to_parquet(url, name, tmp_path)

    async def replace(js: JetStreamContext) -> None:
        await js.delete_stream(name)
        await js.add_stream(name=name, subjects=[f"{name}.>"], max_msg_size=450)

    async def allow(js: JetStreamContext) -> None:
        await js.update_stream(name=name, subjects=[f"{name}.>"], max_msg_size=10_000)

    with_jetstream(url, replace)
    with pytest.raises(WriteFailedError, match="row 7 was not stored"):
        bulk.restore(tmp_path, url, name)
    with_jetstream(url, allow)
    wait_for("the rows in flight", lambda: bulk.count(url, name) == 19)
    for dry_run in (True, False):
        with pytest.raises(RestoreError, match=r"got 20 messages .* from offset 0 to 19, got 19"):
            bulk.restore(tmp_path, url, name, dry_run=dry_run)
    empty(url, name)
    assert bulk.restore(tmp_path, url, name, verify=True).rows == 20


def test_restore_goes_on_behind_rows_that_retention_removed(url: str, name: str, tmp_path: Path) -> None:
    archive_and_empty(url, name, tmp_path, 200)

    async def compact(js: JetStreamContext) -> None:
        await js.update_stream(name=name, subjects=[f"{name}.>"], max_msgs_per_subject=2)

    with_jetstream(url, compact)
    assert bulk.restore(tmp_path, url, name) == bulk.Restored(202, 0, 0, False)
    assert bulk.count(url, name) < 10
    assert bulk.restore(tmp_path, url, name).rows == 0


@pytest.mark.parametrize("start", [0, 5])
def test_dry_run_tells_what_the_restore_then_does(url: str, name: str, tmp_path: Path, start: int) -> None:
    make_stream(url, name)
    publish(url, numbered(name, 30))
    bulk.to_parquet(url, name, tmp_path, start=start)
    empty(url, name)
    seen: list[Progress] = []
    planned = bulk.restore(tmp_path, url, name, dry_run=True, progress=seen.append)
    assert (seen[-1].rows, bulk.count(url, name)) == (30 - start, 0)
    assert planned == bulk.restore(tmp_path, url, name) == bulk.Restored(30 - start, 0, 0, start == 0)
    again = bulk.restore(tmp_path, url, name, dry_run=True)
    assert again == bulk.restore(tmp_path, url, name) == bulk.Restored(0, 30 - start, 0, start == 0)


def test_dry_run_tells_that_a_purged_stream_does_not_keep_offsets(
    url: str, name: str, tmp_path: Path
) -> None:
    make_stream(url, name)
    publish(url, numbered(name, 10))
    bulk.to_parquet(url, name, tmp_path)

    async def purge(js: JetStreamContext) -> None:
        await js.purge_stream(name)

    with_jetstream(url, purge)
    planned = bulk.restore(tmp_path, url, name, dry_run=True)
    assert planned == bulk.restore(tmp_path, url, name) == bulk.Restored(10, 0, 0, False)


def test_file_that_is_cut_off_is_an_error_of_the_archive(url: str, name: str, tmp_path: Path) -> None:
    archive_and_empty(url, name, tmp_path, 60)
    (path,) = tmp_path.rglob("*.parquet")
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(UsageError, match="archive must have Parquet files, got"):
        bulk.restore(tmp_path, url, name)


def test_arguments(url: str, name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="source must be a nats:// URL"):
        bulk.restore(tmp_path, "liftbridge://127.0.0.1:1", name)
    with pytest.raises(
        UsageError, match="archive must have files of partition 0 of stream 'other', got none"
    ):
        bulk.restore(tmp_path, url, name, archived_stream="other")


ORDERS = pa.table(
    {
        "id": pa.array(range(40_000), pa.int64()),
        "item": pa.array([None if i % 7 == 0 else f"item {i % 50}" for i in range(40_000)]),
        "at": pa.array(range(40_000), pa.timestamp("us", "UTC")),
    }
)
SCHEMA = ORDERS.schema
ORDER = pa.schema({"id": pa.int64(), "price": pa.float64(), "lines": pa.list_(LINE), "note": pa.string()})
AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "item", "type": ["null", "string"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    ],
}


class TestPayloads:
    @pytest.mark.parametrize(
        "kind",
        [Json(SCHEMA), Json(SCHEMA, prefix="p_"), Msgpack(SCHEMA), Avro(AVRO), Avro(AVRO, registry=[])],
    )
    def test_rows_become_messages_at_their_offsets(
        self, url: str, name: str, tmp_path: Path, kind: PayloadFormat
    ) -> None:
        make_stream(url, name)
        orders = ORDERS.slice(0, 3_000).rename_columns([kind.prefix + field for field in SCHEMA.names])
        bulk.write(url, name, orders.slice(0, 1_000), subject=f"{name}.x", payload=kind)
        publish(url, [(f"{name}.y", b"oops", {"color": "red"})])
        bulk.write(url, name, orders.slice(1_000), subject=f"{name}.x", payload=kind)
        before = bulk.read(url, name).read_all()
        bulk.to_parquet(url, name, tmp_path, payload=kind, on_bad="column", rotate_rows=700)
        empty(url, name)
        done = bulk.restore(tmp_path, url, name, payload=kind, verify=True)
        assert done == bulk.Restored(3_001, 0, 3_001, True)
        after = bulk.read(url, name).read_all()
        for column in ("offset", "subject", "value"):
            assert after[column].equals(before[column]), column
        assert dict(after["headers"][1_000].as_py())["color"] == b"red"
        again = bulk.restore(tmp_path, url, name, payload=kind)
        assert (again.rows, again.skipped) == (0, 3_001)

    def test_protobuf_rows_become_messages_at_their_offsets(
        self, url: str, name: str, tmp_path: Path
    ) -> None:
        (tmp_path / "shop.binpb").write_bytes(descriptor_set())
        kind = Protobuf((tmp_path / "shop.binpb", "shop.Order"))
        lines = [{"item": "tea", "count": 2}, {"item": "", "count": 0}]
        rows = [
            {
                "id": number,
                "price": number / 4,
                "lines": lines[: number % 3],
                "note": None if number % 2 else "",
            }
            for number in range(3_000)
        ]
        make_stream(url, name)
        bulk.write(url, name, pa.Table.from_pylist(rows, ORDER), subject=f"{name}.x", payload=kind)
        publish(url, [(f"{name}.y", b"\xff", None)])
        before = bulk.read(url, name).read_all()
        bulk.to_parquet(url, name, tmp_path / "archive", payload=kind, on_bad="column", rotate_rows=700)
        empty(url, name)
        done = bulk.restore(tmp_path / "archive", url, name, payload=kind, verify=True)
        assert done == bulk.Restored(3_001, 0, 3_001, True)
        after = bulk.read(url, name).read_all()
        for column in ("offset", "subject", "value"):
            assert after[column].equals(before[column]), column

    @pytest.mark.parametrize("on_bad", ["column", "fail"])
    def test_record_batches_are_the_messages_that_they_were(
        self, url: str, name: str, tmp_path: Path, on_bad: Any
    ) -> None:
        kind = ArrowBatches(compression="zstd")
        make_stream(url, name)
        bulk.write(url, name, ORDERS, subject=f"{name}.x", payload=kind, pack_rows=17_000)
        bulk.write(url, name, ORDERS.slice(0, 9), subject=f"{name}.x", payload=kind, pack_rows=1)
        bad = on_bad == "column"
        if bad:
            publish(url, [(f"{name}.y", b"oops", None)])
            bulk.write(url, name, ORDERS.slice(0, 3), subject=f"{name}.x", payload=kind)
        before = bulk.read(url, name, payload=kind, on_bad=on_bad).read_all()
        bulk.to_parquet(
            url, name, tmp_path, payload=kind, on_bad=on_bad, rotate_rows=20_000, batch_rows=9_000
        )
        empty(url, name)
        with pytest.raises(UsageError, match="archive must have the column 'subject'"):
            bulk.restore(tmp_path, url, name, payload=kind)
        done = bulk.restore(tmp_path, url, name, payload=kind, subject=f"{name}.z", verify=True)
        messages = 14 if bad else 12
        assert done == bulk.Restored(messages, 0, messages, True)
        again = bulk.restore(tmp_path, url, name, payload=kind, subject=f"{name}.z")
        assert again == bulk.Restored(0, messages, 0, True)
        assert bulk.read(url, name, payload=kind, on_bad=on_bad).read_all() == before
        headers = dict(bulk.read(url, name, stop=1).read_all()["headers"][0].as_py())
        assert headers["Content-Type"] == b"application/vnd.apache.arrow.stream"

    def test_fields_that_came_later_are_in_their_messages_alone(
        self, url: str, name: str, tmp_path: Path
    ) -> None:
        make_stream(url, name)
        for values in ([b'{"id":1}'], [b'{"id":2,"note":"a"}', b'{"id":3,"note":"b"}']):
            bulk.write(url, name, pa.table({"value": values}), subject=f"{name}.x")
            bulk.to_parquet(url, name, tmp_path, payload="json")
        before = bulk.read(url, name, columns=["value"]).read_all()
        empty(url, name)
        bulk.restore(tmp_path, url, name, payload="json", verify=True)
        assert bulk.read(url, name, columns=["value"]).read_all() == before

    @pytest.mark.parametrize("kind", [Json(SCHEMA), Avro(AVRO), ArrowBatches(SCHEMA)])
    def test_archive_of_bad_messages_alone_is_restored(
        self, url: str, name: str, tmp_path: Path, kind: PayloadFormat
    ) -> None:
        make_stream(url, name)
        publish(url, [(f"{name}.x", value, None) for value in (b"oops", b"", b"\xff")])
        bulk.to_parquet(url, name, tmp_path, payload=kind, on_bad="column")
        empty(url, name)
        bulk.restore(tmp_path, url, name, payload=kind, subject=f"{name}.x", verify=True)
        found = bulk.read(url, name, columns=["value"]).read_all()["value"].to_pylist()
        assert found == [b"oops", b"", b"\xff"]

    def test_damaged_metadata_is_named(self, url: str, name: str, tmp_path: Path) -> None:
        archive_and_empty(url, name, tmp_path, 2)
        (path,) = tmp_path.rglob("*.parquet")
        table = pq.read_table(path)
        pq.write_table(table.replace_schema_metadata({b"liftenvelope.record": b"{"}), path)
        with pytest.raises(UsageError, match="must have its options in the metadata of each file"):
            bulk.restore(tmp_path, url, name)

    def test_payload_is_that_of_the_archive(self, url: str, name: str, tmp_path: Path) -> None:
        archive_and_empty(url, name, tmp_path / "raw", 2)
        bulk.write(url, name, ORDERS.slice(0, 2), subject=f"{name}.x", payload="json")
        bulk.to_parquet(url, name, tmp_path / "json", payload="json")
        empty(url, name)
        for folder, payload, fault in (
            ("raw", "json", r"payload must be that of the archive of .*, raw, got json: give restore"),
            ("json", None, r"payload must be that of the archive of .*, json, got raw: give restore"),
            ("json", Json(prefix="p_"), r"json, got json prefix='p_'"),
        ):
            with pytest.raises(UsageError, match=fault):
                bulk.restore(tmp_path / folder, url, name, payload=payload)
        assert bulk.count(url, name) == 0

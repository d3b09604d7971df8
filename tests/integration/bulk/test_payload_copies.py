"""Archives and tables with ``payload=``: typed columns, shared options, bad messages, whole messages."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog

from liftenvelope import bulk
from liftenvelope.bulk._reads import dead_letter as letters
from liftenvelope.errors import StreamNotFoundError, UsageError
from liftenvelope.payload import BadPayloadError, _arrow
from liftenvelope.testing import NatsServer
from tests.integration.bulk_streams import make_stream, publish


class Copy:
    """A copy of a stream in one kind of target."""

    def __init__(self, kind: str, folder: Path, url: str, stream: str) -> None:
        self.kind = kind
        self.folder = folder
        self.url = url
        self.stream = stream

    def run(self, **options: Any) -> Any:
        if self.kind == "parquet":
            return bulk.to_parquet(self.url, self.stream, self.folder / "t", **options)
        if self.kind == "delta":
            return bulk.to_delta(self.url, self.stream, self.folder / "t", **options)
        return bulk.to_iceberg(self.url, self.stream, "db.t", warehouse=self.folder, **options)

    def table(self) -> pa.Table:
        if self.kind == "parquet":
            files = [ds.dataset(path).to_table() for path in sorted((self.folder / "t").rglob("*.parquet"))]
            found = pa.concat_tables(files, promote_options="default")
        elif self.kind == "delta":
            found = DeltaTable(self.folder / "t").to_pyarrow_table()
        else:
            uri = f"sqlite:///{self.folder}/catalog.db"
            found = SqlCatalog("liftenvelope", uri=uri).load_table("db.t").scan().to_arrow()
        return found.sort_by("offset")

    def rows(self, *columns: str) -> list[tuple[Any, ...]]:
        return [tuple(row.values()) for row in self.table().select(columns).to_pylist()]

    def publish(self, *values: Any) -> None:
        items = [value if isinstance(value, bytes) else json.dumps(value).encode() for value in values]
        publish(self.url, [(f"{self.stream}.a", item, None) for item in items])


@pytest.fixture(params=["parquet", "iceberg", "delta"])
def copy(request: pytest.FixtureRequest, tmp_path: Path, server: NatsServer, name: str) -> Copy:
    make_stream(server.url, name)
    (tmp_path / "lake").mkdir()
    return Copy(request.param, tmp_path / "lake", server.url, name)


COLUMNS = {"payload": "json"}


def test_known_fields_keep_their_types_and_new_ones_become_columns(copy: Copy) -> None:
    assert copy.run(**COLUMNS).rows == 0  # an empty stream has no columns yet
    copy.publish({"id": 1, "price": 2.5}, {"id": 2})
    assert copy.run(**COLUMNS).rows == 2
    # Alone, this run would have no type for price, and text for id.
    copy.publish({"id": "x", "note": "a"}, {"id": 4, "price": None, "note": "b"})
    assert copy.run(**COLUMNS, on_bad="column").rows == 2
    assert copy.rows("offset", "id", "price", "note") == [
        (0, 1, 2.5, None),
        (1, 2, None, None),
        (2, None, None, None),
        (3, 4, None, "b"),
    ]
    assert copy.rows("bad_value")[2] == (b'{"id": "x", "note": "a"}',)
    copy.publish({"id": 5, "price": 1.0})
    assert copy.run(**COLUMNS).rows == 1
    assert copy.rows("id", "price", "note")[-1] == (5, 1.0, None)


def test_later_run_with_other_options_is_refused(copy: Copy) -> None:
    copy.publish({"id": 1})
    copy.run(payload="json", subjects=f"{copy.stream}.*")
    copy.publish({"id": 2})
    before = copy.table().schema
    for options, text in (
        ({"payload": "json"}, rf"subjects must be those of .*, {copy.stream}\.\*, got all"),
        ({"payload": "json", "subjects": "b"}, r"subjects must be those of .*, got b: "),
        ({"subjects": f"{copy.stream}.*"}, "payload must be that of .*, json, got raw"),
        ({"payload": "msgpack", "subjects": f"{copy.stream}.*"}, "payload must be .*, json, got msgpack"),
        (
            {"payload": {"format": "json", "prefix": "p_"}, "subjects": f"{copy.stream}.*"},
            "json, got json prefix='p_'",
        ),
    ):
        with pytest.raises(UsageError, match=text):
            copy.run(**options)
    assert copy.table().schema == before
    assert copy.run(payload="json", subjects=[f"{copy.stream}.*", f"{copy.stream}.a"]).rows == 1


def test_given_schema_with_another_type_is_refused(copy: Copy) -> None:
    copy.publish({"id": 1})
    copy.run(payload={"format": "json", "schema": {"id": "int64"}})
    copy.publish({"id": "x"})
    with pytest.raises(
        (UsageError, bulk.TableSchemaError), match=r"'id' (the|must fit) type.*int64.*got.*string"
    ):
        copy.run(payload={"format": "json", "schema": {"id": "string"}})


def test_raw_copy_refuses_a_payload(copy: Copy) -> None:
    copy.publish({"id": 1})
    copy.run()
    copy.publish({"id": 2})
    with pytest.raises(UsageError, match=r"payload must be that of .*, raw, got json"):
        copy.run(payload="json")
    assert copy.run().rows == 1


def test_bad_message_ends_a_run_after_the_rows_before_it(copy: Copy) -> None:
    copy.publish({"id": 1}, {"id": 2}, b"oops", {"id": 4})
    for _ in range(2):
        with pytest.raises(BadPayloadError, match="message 2 is bad: no JSON object"):
            copy.run(payload="json")
        assert copy.rows("offset", "id") == [(0, 1), (1, 2)]
    copy.run(payload="json", on_bad="column")
    assert copy.rows("offset", "id") == [(0, 1), (1, 2), (2, None), (3, 4)]


def dead_letter(copy: Copy) -> bulk.DeadLetter:
    """Return dead letters in a stream of their own."""
    dead = f"{copy.stream}-DEAD"
    make_stream(copy.url, dead)
    return bulk.DeadLetter(stream=dead, subject=f"{dead}.a")


def test_dead_letters_are_written_once_by_runs_that_end_well(copy: Copy) -> None:
    letter = dead_letter(copy)
    written: list[int] = []

    def write(*arguments: Any, **options: Any) -> bulk.Written:
        written.append(arguments[2].num_rows)
        return bulk.write(*arguments, **options)

    schema = {"format": "json", "schema": {"id": "int64"}}
    with patch.object(letters, "write", write):
        copy.publish(b"bad 0", {"id": 1}, b"bad 2", b"bad 3")
        copy.run(payload=schema, on_bad=letter)
        copy.run(payload=schema, on_bad=letter)  # the stream ends with bad messages
        copy.publish(b"bad 4")
        copy.run(payload=schema, on_bad=letter)
        copy.run(payload=schema, on_bad=letter)
    assert copy.rows("offset", "id") == [(1, 1)]
    assert sum(written) == 4
    found = bulk.read(copy.url, letter.stream, columns=["value"]).read_all()["value"].to_pylist()
    assert found == [b"bad 0", b"bad 2", b"bad 3", b"bad 4"]


def test_dead_letter_that_can_not_be_written_covers_nothing(copy: Copy) -> None:
    letter = bulk.DeadLetter(stream="MISSING", subject="missing")
    copy.publish({"id": 1})
    copy.run(payload="json", on_bad=letter)
    copy.publish({"id": 2}, b"oops")
    with pytest.raises(StreamNotFoundError):
        copy.run(payload="json", on_bad=letter)
    copy.run(payload="json", on_bad="column")
    assert copy.rows("offset", "id") == [(0, 1), (1, 2), (2, None)]


def packed(copy: Copy, start: int, rows: int) -> None:
    table = pa.table({"id": range(start, start + rows)})
    bulk.write(copy.url, copy.stream, table, subject=f"{copy.stream}.a", payload="arrow", pack_rows=7)


def test_packed_rows_are_copied_once(copy: Copy) -> None:
    options: dict[str, Any] = {"payload": "arrow"}
    if copy.kind == "parquet":
        options |= {"rotate_rows": 10, "partition_by": ["dt", "hour"]}
    packed(copy, 0, 40)
    copy.run(**options, batch_rows=4)
    packed(copy, 40, 3)
    copy.run(**options)
    expected = [(i // 7 if i < 40 else 6, i % 7 if i < 40 else i - 40, i) for i in range(43)]
    assert sorted(copy.rows("offset", "row", "id")) == expected


def test_messages_that_are_decoded_piece_by_piece_are_copied_once(
    copy: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_arrow, "_ENOUGH_BYTES", 300)  # two messages or so
    options: dict[str, Any] = {"payload": "arrow"}
    options |= {"rotate_rows": 16} if copy.kind == "parquet" else {"commit_rows": 16}
    packed(copy, 0, 42)
    copy.publish(b"bad")
    packed(copy, 42, 21)
    before = [(i // 7, i) for i in range(42)]
    for _ in range(2):
        with pytest.raises(BadPayloadError, match="message 6 is bad"):
            copy.run(**options)
        assert sorted(copy.rows("offset", "id")) == before
    letter = dead_letter(copy)
    copy.run(**options, on_bad=letter)
    assert sorted(copy.rows("offset", "id")) == [*before, *((i // 7 + 1, i) for i in range(42, 63))]
    found = bulk.read(copy.url, letter.stream, columns=["value"]).read_all()
    assert found["value"].to_pylist() == [b"bad"]


@pytest.mark.parametrize("most", [1, 7, 8, 14, 20])
def test_file_has_whole_messages(
    server: NatsServer, name: str, tmp_path: Path, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_stream(server.url, name)
    copy = Copy("parquet", tmp_path, server.url, name)
    packed(copy, 0, 40)
    bulk.to_parquet(server.url, name, tmp_path / "t", payload="arrow", rotate_rows=most)
    seen: list[int] = []
    for path in sorted((tmp_path / "t").iterdir()):
        _, _, start, stop = path.stem.rsplit("-", 3)
        offsets = ds.dataset(path).to_table()["offset"].to_pylist()
        assert sorted(set(offsets)) == list(range(int(start), int(stop)))
        assert len(offsets) <= max(most, 7)
        seen += offsets
    assert seen == [i // 7 for i in range(40)]


UNION = pa.UnionArray.from_dense(pa.array([0], pa.int8()), pa.array([0], pa.int32()), [pa.array([1])])


@pytest.mark.parametrize(
    "column", [UNION, pa.array([Decimal(1_000)], pa.decimal128(5, -3))], ids=["union", "scale"]
)
def test_type_that_parquet_lacks_is_named(
    server: NatsServer, name: str, tmp_path: Path, column: pa.Array
) -> None:
    make_stream(server.url, name)
    table = pa.table([column], ["u"])
    bulk.write(server.url, name, table, subject=f"{name}.a", payload="arrow")
    with pytest.raises(UsageError, match="must have types that Parquet has"):
        bulk.to_parquet(server.url, name, tmp_path / "t", payload="arrow")
    assert not list((tmp_path / "t").iterdir())


@pytest.mark.parametrize("make", [bulk.to_parquet, bulk.to_delta])
def test_options_are_checked_before_anything_is_read(make: Callable[..., Any], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="payload must be"):
        make("nats://127.0.0.1:1", "S", tmp_path / "t", payload="xml")
    with pytest.raises(UsageError, match="on_bad must be 'fail' without payload"):
        make("nats://127.0.0.1:1", "S", tmp_path / "t", on_bad="column")
    assert not list(tmp_path.iterdir())

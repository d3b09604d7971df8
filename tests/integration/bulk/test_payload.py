"""Bulk reads and writes with ``payload=``, on real servers."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats
import pyarrow as pa
import pytest

import liftenvelope
from liftenvelope import bulk
from liftenvelope.errors import StreamNotFoundError, UsageError, UsageTypeError
from liftenvelope.jetstream import JetStream, StreamConfig
from liftenvelope.payload import ArrowBatches, Avro, BadPayloadError, Json, Msgpack, PayloadFormat
from liftenvelope.testing import FaultProxy, LiftbridgeCluster, NatsServer
from tests.integration.bulk_streams import BulkThreads, jetstream, make_stream, offsets

ORDERS = pa.table(
    {
        "id": pa.array(range(3_000), pa.int64()),
        "item": pa.array([None if i % 7 == 0 else f"item {i % 50}" for i in range(3_000)]),
        "price": pa.array([i / 4 for i in range(3_000)], pa.float64()),
    }
)
AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "item", "type": ["null", "string"]},
        {"name": "price", "type": "double"},
    ],
}
FIELDS = list(ORDERS.schema.names)


#: Longest message of the server ``small``, in bytes.
_SMALL = 4_096


@pytest.fixture(scope="module")
def small() -> Iterator[NatsServer]:
    with jetstream(max_payload=_SMALL) as running:
        yield running


def bulk_stream(url: str, name: str) -> str:
    """Create a stream that allows every mode of a write, and return its name."""
    subjects = (f"{name}.>",)
    config = StreamConfig(name=name, subjects=subjects, allow_atomic=True, allow_batched=True)

    async def create() -> None:
        async with await nats.connect(url) as nc:
            await JetStream(nc).create_stream(config)

    asyncio.run(create())
    return name


@pytest.fixture
def stream(url: str, name: str) -> str:
    make_stream(url, name)
    return name


def write(url: str, stream: str, data: Any, **how: Any) -> bulk.Written:
    return bulk.write(url, stream, data, subject=f"{stream}.x", **how)


@pytest.mark.parametrize("envelope", [False, True])
@pytest.mark.parametrize("kind", ["json", "msgpack", Avro(AVRO), Avro(AVRO, registry=[]), "arrow"])
def test_rows_written_to_jetstream_are_read_again(
    url: str, stream: str, kind: str | PayloadFormat, envelope: bool
) -> None:
    write(url, stream, ORDERS, payload=kind, envelope=envelope)
    found = bulk.read(url, stream, payload=kind, envelope="strip" if envelope else "none").read_all()
    assert found.select(FIELDS).equals(ORDERS)
    found.validate(full=True)


@pytest.mark.parametrize("fixture", ["liftbridge_server", "gateway_server"])
@pytest.mark.parametrize("kind", ["json", "arrow"])
def test_rows_written_to_liftbridge_are_read_again(
    request: pytest.FixtureRequest, fixture: str, kind: str, name: str
) -> None:
    cluster: LiftbridgeCluster = request.getfixturevalue(fixture)
    address = cluster.addresses[0]
    with liftenvelope.connect_blocking(address) as client:
        client.create_stream(name, name)
        client.create_stream(f"{name}-dead", f"{name}-dead")
        bulk.write(address, name, ORDERS, payload=kind, partition=0, pack_rows=700)
        client.publish(name, b"oops", key=b"k", headers={"h": b"\xff"}, partition=0)
    letter = bulk.DeadLetter(stream=f"{name}-dead")
    found = bulk.read(address, name, payload=kind, on_bad=letter).read_all()
    assert found.select(FIELDS).equals(ORDERS)
    ((dead),) = bulk.read(address, f"{name}-dead").read_all().to_pylist()
    assert (dead["value"], dead["key"]) == (b"oops", b"k")
    headers = dict(dead["headers"])
    assert (headers["h"], headers["Liftenvelope-Bad-Stream"]) == (b"\xff", name.encode())
    assert headers["Liftenvelope-Bad-Offset"] == (b"3000" if kind == "json" else b"5")


class TestBadMessages:
    @pytest.fixture
    def mixed(self, url: str, stream: str) -> tuple[list[bytes], list[int]]:
        """Values of a stream with garbage at random places, and the offsets of the garbage."""
        chooser = random.Random(17)
        values = [b'{"id":%d}' % number for number in range(5_000)]
        places = sorted(chooser.sample(range(10, 5_000), 40))
        for place in places:
            values[place] = chooser.choice([b"", b"{", b'{"id":"x"}', b'{"id":1}{"id":2}', b"\xff"])
        write(url, stream, pa.table({"value": values}))
        return values, places

    def test_fail_hands_out_the_rows_before_and_names_the_message(
        self, url: str, stream: str, mixed: tuple[list[bytes], list[int]]
    ) -> None:
        _, places = mixed
        reader = bulk.read(url, stream, payload="json", columns=["id", "offset"])
        rows = reader.read_next_batch().to_pylist()
        with pytest.raises(BadPayloadError, match=r"on_bad='column'") as caught:
            reader.read_next_batch()
        assert rows == [{"id": number, "offset": number} for number in range(places[0])]
        error = caught.value
        assert (error.stream, error.partition, error.offset) == (stream, 0, places[0])
        with pytest.raises(BadPayloadError):
            reader.read_next_batch()

    @pytest.mark.parametrize("batch_rows", [65_536, 100])
    def test_column_keeps_every_message_at_its_offset(
        self, url: str, stream: str, mixed: tuple[list[bytes], list[int]], batch_rows: int
    ) -> None:
        values, places = mixed
        columns = ["bad_reason", "offset", "id"]
        found = bulk.read(
            url, stream, payload="json", on_bad="column", columns=columns, batch_rows=batch_rows
        ).read_all()
        assert found.schema.names == [*columns, "bad_value"]
        assert offsets(found) == list(range(5_000))
        for row in found.to_pylist():
            if row["offset"] in places:
                assert row["bad_reason"]
                assert (row["id"], row["bad_value"]) == (None, values[row["offset"]])
            else:
                assert (row["id"], row["bad_reason"], row["bad_value"]) == (row["offset"], None, None)

    def test_dead_letters_are_written_once_within_the_duplicate_window(
        self, url: str, stream: str, mixed: tuple[list[bytes], list[int]]
    ) -> None:
        values, places = mixed
        dead = f"{stream}-dead"
        make_stream(url, dead)
        counts: list[int] = []
        letter = bulk.DeadLetter(stream=dead, subject=f"{dead}.x", on_written=counts.append)
        for parallel in (1, 2):
            found = bulk.read(url, stream, payload="json", on_bad=letter, parallel=parallel).read_all()
            assert sorted(offsets(found)) == [number for number in range(5_000) if number not in places]
            assert sum(counts) == parallel * len(places)
        letters = bulk.read(url, dead).read_all().to_pylist()
        assert [letter["value"] for letter in letters] == [values[place] for place in places]
        numbers = [int(dict(letter["headers"])["Liftenvelope-Bad-Offset"]) for letter in letters]
        assert numbers == places

    def test_call_of_a_dead_letter_must_be_a_function(self) -> None:
        wrong: Any = "count"
        with pytest.raises(UsageTypeError, match="on_written must be a function or None, got 'count'"):
            bulk.DeadLetter(stream="DEAD", on_written=wrong)

    def test_message_with_headers_of_the_server_becomes_a_dead_letter(self, url: str, stream: str) -> None:
        kind = pa.map_(pa.string(), pa.string())
        headers = pa.array([[("Nats-Expected-Last-Sequence", "0"), ("k", "v")]], kind)
        write(url, stream, pa.table({"value": [b"oops"], "headers": headers}))
        dead = f"{stream}-dead"
        make_stream(url, dead)
        write(url, dead, pa.table({"value": [b"first"]}))
        letter = bulk.DeadLetter(stream=dead, subject=f"{dead}.x")
        schema = Json(pa.schema({"id": pa.int64()}))
        assert bulk.read(url, stream, payload=schema, on_bad=letter).read_all().num_rows == 0
        found = dict(bulk.read(url, dead, start=1, columns=["headers"]).read_all()["headers"][0].as_py())
        assert found.pop("Liftenvelope-Bad-Reason") == b"no JSON object"
        assert found == {
            "k": b"v",
            "Nats-Msg-Id": f"{stream}-0-0".encode(),
            "Liftenvelope-Bad-Stream": stream.encode(),
            "Liftenvelope-Bad-Partition": b"0",
            "Liftenvelope-Bad-Offset": b"0",
        }

    @pytest.mark.parametrize(
        ("size", "config"),
        [(1024 * 1024 - 20, {}), (1_000, {"max_msg_size": 500})],
        ids=["max_payload", "max_msg_size"],
    )
    def test_message_that_is_too_long_becomes_a_dead_letter_without_its_value(
        self, url: str, stream: str, size: int, config: dict[str, int]
    ) -> None:
        write(url, stream, pa.table({"value": [b"oops", b"x" * size, b'{"id": 1}']}))
        dead = f"{stream}-dead"
        make_stream(url, dead, **config)
        letter = bulk.DeadLetter(stream=dead, subject=f"{dead}.x")
        schema = Json(pa.schema({"id": pa.int64()}))
        assert bulk.read(url, stream, payload=schema, on_bad=letter).read_all()["id"].to_pylist() == [1]
        first, second = bulk.read(url, dead, columns=["value", "headers"]).read_all().to_pylist()
        assert first["value"] == b"oops"
        assert "Liftenvelope-Bad-Size" not in dict(first["headers"])
        headers = dict(second["headers"])
        assert (second["value"], headers["Liftenvelope-Bad-Size"]) == (b"", b"%d" % size)
        assert (headers["Liftenvelope-Bad-Offset"], headers["Nats-Msg-Id"]) == (
            b"1",
            f"{stream}-0-1".encode(),
        )

    def test_batch_with_long_messages_takes_few_writes(
        self, url: str, stream: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It has more messages than a portion of a write: a part is stored before one is refused."""
        count, long_ones = 20_000, {7: 1024 * 1024 - 20, 19_990: 1024 * 1024 - 30, 19_999: 1024 * 1024 - 20}
        write(url, stream, pa.table({"value": [b"x" * long_ones.get(at, 3) for at in range(count)]}))
        dead = f"{stream}-dead"
        make_stream(url, dead)
        writes: list[int] = []

        def counted(source: str, to: str, table: pa.Table, **options: Any) -> Any:
            writes.append(table.num_rows)
            return bulk.write(source, to, table, **options)

        monkeypatch.setattr("liftenvelope.bulk._reads.dead_letter.write", counted)
        letter = bulk.DeadLetter(stream=dead, subject=f"{dead}.x")
        schema = Json(pa.schema({"id": pa.int64()}))
        assert bulk.read(url, stream, payload=schema, on_bad=letter).read_all().num_rows == 0
        found = bulk.read(url, dead, columns=["value", "headers"]).read_all().to_pylist()
        short = {}
        for row in found:
            headers = dict(row["headers"])
            if "Liftenvelope-Bad-Size" in headers:
                assert row["value"] == b""
                short[int(headers["Liftenvelope-Bad-Offset"])] = int(headers["Liftenvelope-Bad-Size"])
        assert short == long_ones
        assert {int(dict(row["headers"])["Liftenvelope-Bad-Offset"]) for row in found} == set(range(count))
        assert len(writes) < 40

    def test_dead_letter_keeps_the_key_of_an_envelope(self, url: str, stream: str) -> None:
        rows = pa.table({"value": [b"oops"], "key": [b"k"]})
        write(url, stream, rows, envelope=True)
        dead = f"{stream}-dead"
        make_stream(url, dead)
        letter = bulk.DeadLetter(stream=dead, subject=f"{dead}.x")
        bulk.read(url, stream, payload="json", envelope="strip", on_bad=letter).read_all()
        (found,) = bulk.read(url, dead, envelope="strip", columns=["key", "value"]).read_all().to_pylist()
        assert found == {"key": b"k", "value": b"oops"}

    def test_dead_letters_need_no_pandas(
        self, url: str, stream: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        dead = f"{stream}-dead"
        make_stream(url, dead)
        write(url, stream, pa.table({"value": [b"oops"] * 20}))
        (tmp_path / "pandas.py").write_text("raise ImportError")
        program = f"""
from liftenvelope import bulk

letter = bulk.DeadLetter(stream="{dead}", subject="{dead}.x")
columns = ["timestamp", "offset"]
print(bulk.read("{url}", "{stream}", payload="json", columns=columns, on_bad=letter).read_all().num_rows)
"""
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        done = subprocess.run(
            [sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=120
        )
        assert done.stdout == "0\n", done.stderr
        assert bulk.count(url, dead) == 20

    def test_no_row_is_handed_out_if_a_dead_letter_is_not_stored(
        self, url: str, stream: str, mixed: tuple[list[bytes], list[int]]
    ) -> None:
        letter = bulk.DeadLetter(stream="nothing", subject="nothing.x")
        reader = bulk.read(url, stream, payload="json", on_bad=letter)
        with pytest.raises(StreamNotFoundError):
            reader.read_next_batch()

    def test_packed_messages_that_are_bad_have_one_row(self, url: str, stream: str) -> None:
        write(url, stream, ORDERS, payload="arrow", pack_rows=1_000)
        write(url, stream, pa.table({"value": [b"oops"]}))
        write(url, stream, ORDERS.slice(0, 1), payload="arrow")
        found = bulk.read(url, stream, payload="arrow", on_bad="column").read_all()
        assert found.schema.names == ["offset", "row", *FIELDS, "bad_reason", "bad_value"]
        rows = found.slice(2_999).to_pylist()
        assert [(row["offset"], row["row"], row["id"], row["bad_value"]) for row in rows] == [
            (2, 999, 2_999, None),
            (3, None, None, b"oops"),
            (4, 0, 0, None),
        ]
        with pytest.raises(BadPayloadError) as caught:
            bulk.read(url, stream, payload="arrow").read_all()
        assert caught.value.offset == 3


class TestColumns:
    def test_fields_stand_beside_the_columns_of_the_stream(self, url: str, stream: str) -> None:
        write(url, stream, ORDERS.slice(0, 3), payload="json")
        found = bulk.read(url, stream, payload="json")
        assert found.schema.names == [
            "key",
            "headers",
            "offset",
            "timestamp",
            "partition",
            "subject",
            *FIELDS,
        ]
        chosen = bulk.read(url, stream, payload="json", columns=["price", "offset"]).read_all()
        assert chosen.to_pylist() == [{"price": number / 4, "offset": number} for number in range(3)]

    def test_field_with_the_name_of_a_column_needs_a_prefix(self, url: str, stream: str) -> None:
        rows = [b'{"offset":7,"value":"x"}']
        write(url, stream, pa.table({"value": rows}))
        with pytest.raises(UsageError, match=r"field 'offset' must not .*prefix=.*columns="):
            bulk.read(url, stream, payload="json")
        assert bulk.read(url, stream, payload="json", columns=["value"]).read_all()["value"].to_pylist() == [
            "x"
        ]
        found = bulk.read(url, stream, payload=Json(prefix="p_"), columns=["offset", "p_offset"]).read_all()
        assert found.to_pylist() == [{"offset": 0, "p_offset": 7}]

    @pytest.mark.parametrize(
        ("how", "fault"),
        [
            (
                {"payload": "json", "columns": ["id", "nothing"]},
                r"columns must be some of .*price, got 'nothing'",
            ),
            ({"payload": "json", "columns": "id"}, "columns must be names of columns"),
            ({"payload": "json", "columns": []}, "columns must have at least one name, got none"),
            ({"payload": "xml"}, "payload must be one of"),
            ({"on_bad": "column"}, r"on_bad must be 'fail' without payload"),
            ({"payload": "json", "on_bad": "skip"}, r"on_bad must be one of .* or a bulk.DeadLetter"),
            ({"payload": "json", "on_bad": bulk.DeadLetter(stream="dead")}, "subject must be given"),
        ],
    )
    def test_wrong_option_is_refused(self, url: str, stream: str, how: dict[str, Any], fault: str) -> None:
        write(url, stream, ORDERS.slice(0, 1), payload="json")
        with pytest.raises(UsageError, match=fault):
            bulk.read(url, stream, **how)

    @pytest.mark.parametrize("names_source", [False, True])
    def test_dead_letters_do_not_go_to_the_stream_itself(
        self, url: str, stream: str, names_source: bool
    ) -> None:
        source = f"{url},nats://127.0.0.1:1" if names_source else None
        letter = bulk.DeadLetter(stream=stream, subject=f"{stream}.dead", source=source)
        with pytest.raises(UsageError, match="on_bad must name another stream"):
            bulk.read(url, stream, payload="json", on_bad=letter)

    @pytest.mark.parametrize(("stream", "subject"), [("", "x"), ("BAD", "")])
    def test_dead_letter_needs_names(self, stream: str, subject: str) -> None:
        with pytest.raises(UsageError, match="must not be empty, got ''"):
            bulk.DeadLetter(stream=stream, subject=subject)


ACCOUNTS = {
    "accounts": {
        "A": {
            "jetstream": "enabled",
            "users": [{"user": "a1", "password": "p"}, {"user": "a2", "password": "p"}],
        },
        "B": {"jetstream": "enabled", "users": [{"user": "b", "password": "p"}]},
    }
}


@pytest.fixture(scope="module")
def logins() -> Iterator[dict[str, str]]:
    """URLs of a server with the logins of two accounts."""
    with jetstream(config=ACCOUNTS) as server:
        yield {user: f"nats://{user}:p@{server.address}" for user in ("a1", "a2", "b")}


class TestAccounts:
    """A dead letter stream on the servers of the read, of the same name."""

    def test_stream_of_another_account_takes_dead_letters(self, logins: dict[str, str], name: str) -> None:
        for user in ("a1", "b"):
            make_stream(logins[user], name)
        write(logins["a1"], name, pa.table({"value": [b"oops"]}))
        letter = bulk.DeadLetter(stream=name, subject=f"{name}.x", source=logins["b"])
        letter.check(logins["a1"], name)
        assert bulk.read(logins["a1"], name, payload="json", on_bad=letter).read_all().num_rows == 0
        assert bulk.read(logins["b"], name).read_all()["value"].to_pylist() == [b"oops"]

    def test_another_login_of_the_same_account_is_noticed_before_a_dead_letter_is_written(
        self, logins: dict[str, str], name: str
    ) -> None:
        make_stream(logins["a1"], name)
        write(logins["a1"], name, pa.table({"value": [b"oops"]}))
        letter = bulk.DeadLetter(stream=name, subject=f"{name}.x", source=logins["a2"])
        reader = bulk.read(logins["a1"], name, payload="json", on_bad=letter)
        with pytest.raises(UsageError, match=f"on_bad must name another stream .*, got '{name}'"):
            reader.read_all()
        assert bulk.count(logins["a1"], name) == 1

    def test_another_name_of_the_server_is_noticed(self, logins: dict[str, str], name: str) -> None:
        make_stream(logins["a1"], name)
        write(logins["a1"], name, pa.table({"value": [b"oops"]}))
        other = logins["a1"].replace("127.0.0.1", "localhost")
        letter = bulk.DeadLetter(stream=name, subject=f"{name}.x", source=other)
        with pytest.raises(UsageError, match="on_bad must name another stream"):
            bulk.read(logins["a1"], name, payload="json", on_bad=letter).read_all()


class TestSchemaFromTheStream:
    def test_sample_is_taken_from_the_range(self, url: str, stream: str) -> None:
        values = [b'{"old":true}'] * 3 + [b"oops", b'{"id":1}', b'{"id":2.5}', b'{"new":1}']
        write(url, stream, pa.table({"value": values}))
        found = bulk.read(url, stream, payload=Json(sample=3), start=3, on_bad="column", columns=["id"])
        assert found.schema.field("id").type == pa.float64()
        assert found.read_all()["id"].to_pylist() == [None, 1.0, 2.5, None]

    def test_first_record_batch_gives_the_columns(self, url: str, stream: str) -> None:
        write(url, stream, pa.table({"value": [b"oops"]}))
        write(url, stream, ORDERS.slice(0, 5), payload="arrow")
        found = bulk.read(url, stream, payload="arrow", columns=FIELDS, on_bad="column").read_all()
        assert found.select(FIELDS).slice(1).equals(ORDERS.slice(0, 5))

    def test_one_message_is_read_ahead_for_the_columns(self, url: str, stream: str) -> None:
        rows = pa.table({"note": ["x" * 100_000] * 30})
        write(url, stream, rows, payload="arrow", pack_rows=1)
        with FaultProxy(url) as proxy:
            found = bulk.read(f"nats://{proxy.address}", stream, payload="arrow").read_all()
            assert found.select(["note"]).equals(rows)
            assert 30 * 100_000 < proxy.bytes_to_client < 32 * 101_000

    def test_empty_stream_has_no_fields(self, url: str, stream: str) -> None:
        found = bulk.read(url, stream, payload="json").read_all()
        assert (found.num_rows, "value" in found.schema.names) == (0, False)
        with pytest.raises(UsageError, match="payload must have a schema: there is no message"):
            bulk.tail(url, stream, payload="json")

    @pytest.mark.parametrize("kind", [Json(), Msgpack(ORDERS.schema)])
    def test_tail_decodes(self, url: str, stream: str, kind: PayloadFormat) -> None:
        write(url, stream, ORDERS.slice(0, 5), payload=kind)
        threads = BulkThreads()
        reader = bulk.tail(url, stream, start="earliest", payload=kind, columns=FIELDS, batch_rows=5)
        assert reader.schema == ORDERS.schema
        assert pa.Table.from_batches([reader.read_next_batch()]).equals(ORDERS.slice(0, 5))
        del reader
        threads.wait_until_gone()


class TestPacks:
    def test_messages_are_bounded_by_rows_and_bytes(self, url: str, stream: str) -> None:
        write(url, stream, ORDERS, payload="arrow", pack_rows=1_000)
        write(url, stream, ORDERS, payload="arrow", pack_bytes=20_000)
        sizes = [len(value.as_py()) for value in bulk.read(url, stream).read_all()["value"]]
        assert len(sizes) > 6
        assert all(size <= 20_000 for size in sizes[3:])
        found = bulk.read(url, stream, payload="arrow").read_all()
        assert found.select(FIELDS).equals(pa.concat_tables([ORDERS, ORDERS]))
        assert found["row"].to_pylist()[:1_001] == [*range(1_000), 0]
        headers = bulk.read(url, stream, stop=1).read_all()["headers"][0].as_py()
        assert headers == [("Content-Type", b"application/vnd.apache.arrow.stream")]

    def test_packs_do_not_depend_on_the_batches_of_the_data_and_are_stored_once(
        self, url: str, stream: str
    ) -> None:
        how = {"payload": ArrowBatches(compression="zstd"), "pack_rows": 700, "message_id": "job-17"}
        assert write(url, stream, ORDERS, **how).duplicates == 0
        again = pa.Table.from_batches(ORDERS.to_batches(max_chunksize=333))
        done = write(url, stream, again, **how)
        assert (done.acked, done.duplicates) == (5, 5)
        assert bulk.read(url, stream, payload="arrow").read_all().select(FIELDS).equals(ORDERS)

    @pytest.mark.parametrize(
        "how", [{}, {"mode": "atomic"}, {"envelope": True}, {"message_id": "m" * 300}, {"mode": "fast"}]
    )
    def test_pack_longer_than_the_server_takes_is_divided(
        self, small: NatsServer, name: str, how: dict[str, Any]
    ) -> None:
        stream = bulk_stream(small.url, name)
        done = write(small.url, stream, ORDERS, payload="arrow", **how)
        assert done.acked > ORDERS.nbytes // _SMALL
        options: dict[str, Any] = {"envelope": "strip"} if "envelope" in how else {}
        found = bulk.read(small.url, stream, payload="arrow", **options).read_all()
        assert found.select(FIELDS).equals(ORDERS)

    def test_row_longer_than_the_server_takes_is_named(self, small: NatsServer, name: str) -> None:
        stream = bulk_stream(small.url, name)
        items = ["a"] * 20 + ["b" * 2 * _SMALL] + ["c"]
        with pytest.raises(
            bulk.WriteFailedError, match=r"data: row 20 must have .*: raise max_payload of the server"
        ):
            write(small.url, stream, pa.table({"item": items}), payload="arrow", pack_rows=22)

    def test_read_starts_at_a_message_and_rows_are_sliced(self, url: str, stream: str) -> None:
        write(url, stream, ORDERS, payload="arrow", pack_rows=1_000)
        done = (1, 399)
        rest = bulk.read(url, stream, payload="arrow", start=done[0]).read_all().slice(done[1] + 1)
        assert rest.select(FIELDS).equals(ORDERS.slice(1_400))

    def test_other_columns_are_repeated_for_each_row(self, url: str, stream: str) -> None:
        write(url, stream, ORDERS, payload="arrow", pack_rows=2_000)
        columns = ["subject", "partition", "timestamp", "headers", "key", "row", "id"]
        found = bulk.read(url, stream, payload="arrow", columns=columns).read_all()
        found.validate(full=True)
        assert found["subject"].to_pylist() == [f"{stream}.x"] * 3_000
        assert len(set(found["timestamp"].to_pylist())) == 2
        assert found["headers"].to_pylist()[2_999] == [
            ("Content-Type", b"application/vnd.apache.arrow.stream")
        ]

    @pytest.mark.parametrize("columns", [["offset", "row"], ["row"], ["subject"]])
    def test_rows_are_counted_without_a_field(self, url: str, stream: str, columns: list[str]) -> None:
        write(url, stream, ORDERS, payload="arrow", pack_rows=700)
        found = bulk.read(url, stream, payload="arrow", columns=columns).read_all()
        everything = bulk.read(url, stream, payload="arrow", columns=[*columns, *FIELDS]).read_all()
        assert (found.num_rows, found) == (3_000, everything.select(columns))

    @pytest.mark.parametrize("columns", [None, ["offset", "row"], ["bad_reason"]])
    def test_bad_message_is_kept_without_a_field(
        self, url: str, stream: str, columns: list[str] | None
    ) -> None:
        write(url, stream, pa.table({"value": [b"oops", b""]}))
        found = bulk.read(url, stream, payload="arrow", on_bad="column", columns=columns).read_all()
        assert found["bad_value"].to_pylist() == [b"oops", b""]
        assert all(found["bad_reason"].to_pylist())

    @pytest.mark.parametrize(
        ("data", "how", "fault"),
        [
            (
                ORDERS,
                {"pack_bytes": 100},
                r"data: row 0 must have at most 100 bytes as a message.*: raise pack_bytes",
            ),
            (ORDERS, {"pack_rows": 0}, "pack_rows must be at least 1"),
            (
                ORDERS.append_column("key", ORDERS["item"]),
                {},
                "must not have a column 'key' with payload='arrow'",
            ),
            (ORDERS.append_column("value", ORDERS["item"]), {}, "must not have a column 'value'"),
            (pa.table({"offset": [1]}), {}, "must have columns for the payload, got offset"),
        ],
    )
    def test_data_that_cannot_be_packed_is_refused(
        self, url: str, stream: str, data: pa.Table, how: dict[str, Any], fault: str
    ) -> None:
        with pytest.raises(UsageError, match=fault):
            write(url, stream, data, payload="arrow", **how)
        assert bulk.count(url, stream) == 0

    def test_reader_that_is_dropped_ends_its_threads(self, url: str, stream: str) -> None:
        write(url, stream, ORDERS, payload="arrow", pack_rows=10)
        threads = BulkThreads()
        reader = bulk.read(url, stream, payload="arrow", batch_rows=1)
        assert reader.read_next_batch().num_rows == 10
        del reader
        threads.wait_until_gone()

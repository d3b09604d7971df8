"""Messages of groups as Arrow columns, from every kind of source."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from liftenvelope._native import frames
from liftenvelope._native.handout import PartitionBuffer
from liftenvelope.envelope import Message as LiftbridgeMessage
from liftenvelope.errors import UsageError
from liftenvelope.group import GroupMessage, SourceMessage, TopicPartition
from liftenvelope.group._member import rows as rows_module
from liftenvelope.group._member.rows import SCHEMA
from liftenvelope.jetstream import Message
from liftenvelope.jetstream.message import Recorder
from liftenvelope.nats.headers import Headers
from liftenvelope.payload import ArrowBatches, BadPayloadError, Json
from liftenvelope.payload.typed_rows import typed_rows

FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)
SECONDS = 1_700_000_000


def rows_of(
    parts: list[tuple[TopicPartition, list[SourceMessage]]], *, wrapped: bool = False
) -> pa.RecordBatch:
    """Return the rows of messages; those of JetStream are read without a SourceMessage unless ``wrapped``."""
    given: list[Any] = []
    for key, part in parts:
        plain = [one if wrapped or not isinstance(one.message, Message) else one.message for one in part]
        buffer = PartitionBuffer(key, 1, 0, len(part), GroupMessage, list)
        offsets = struct.pack(f"={len(part)}q", *(one.offset for one in part))
        own = [one for one in plain if isinstance(one, Message)]
        given.append((buffer, offsets, [frames.MessageBlock(own)] if own else plain))
    batch = rows_module.rows_of(given)
    batch.validate(full=True)
    return batch


def stored(offset: int, headers: Any = None) -> SourceMessage:
    """A message of a JetStream topic."""
    reply = f"$JS.ACK.ORDERS.worker.1.{offset + 1}.1.{SECONDS * 10**9}.0"
    message = Message("orders.new", reply, b"%d" % offset, headers, Recorder())
    return SourceMessage(offset, message.data, message)


def test_rows_of_several_partitions_keep_their_order() -> None:
    batch = rows_of([(SECOND, [stored(3), stored(5)]), (FIRST, [stored(4)])])
    assert batch.schema == SCHEMA
    moment = datetime.fromtimestamp(SECONDS, UTC)
    assert [{**row, "timestamp": row["timestamp"].to_pydatetime()} for row in batch.to_pylist()] == [
        {
            "topic": "orders",
            "partition": partition,
            "offset": offset,
            "value": b"%d" % offset,
            "key": None,
            "timestamp": moment,
            "subject": "orders.new",
            "headers": [],
        }
        for partition, offset in ((1, 3), (1, 5), (0, 4))
    ]


def test_rows_of_messages_with_several_subjects() -> None:
    other = Message("orders.old", f"$JS.ACK.ORDERS.worker.1.3.1.{SECONDS}.0", b"", None, Recorder())
    batch = rows_of([(FIRST, [stored(1), SourceMessage(2, b"", other)])])
    assert batch["subject"].to_pylist() == ["orders.new", "orders.old"]
    assert batch["value"].to_pylist() == [b"1", b""]


@pytest.mark.parametrize("subject", ["orders.new", "orders." + "x" * 500])
@pytest.mark.parametrize("count", [1, 4_096, 4_097])
def test_repeated_values_fill_batches_of_every_size(count: int, subject: str) -> None:
    reply = f"$JS.ACK.ORDERS.worker.1.1.1.{SECONDS * 10**9}.0"
    message = Message(subject, reply, b"x", None, Recorder())
    batch = rows_of([(SECOND, [SourceMessage(offset, b"x", message) for offset in range(count)])])
    assert batch["topic"].to_pylist() == ["orders"] * count
    assert batch["partition"].to_pylist() == [1] * count
    assert batch["offset"].to_pylist() == list(range(count))
    assert batch["subject"].to_pylist() == [subject] * count
    assert batch["headers"].to_pylist() == [[]] * count


@pytest.mark.parametrize(
    "headers",
    [
        None,
        Headers([("Via", "a"), ("Via", "b")]),
        b"NATS/1.0\r\nVia: a\r\nTag: \xc3\xb6\r\n\r\n",
        b"NATS/1.0\r\nVia: a\r\nTag: x\r\nVia: b\r\n\r\n",
    ],
)
def test_rows_of_a_stream_are_those_of_a_source_that_wraps_its_messages(headers: Any) -> None:
    parts = [(FIRST, [stored(1), stored(4, headers)]), (SECOND, [stored(9)])]
    assert rows_of(parts) == rows_of(parts, wrapped=True)


def test_headers_of_some_messages() -> None:
    given = Headers([("Via", "a"), ("Tag", "x"), ("Via", "ö")])
    batch = rows_of([(FIRST, [stored(1), stored(2, given), stored(3, {"a": "1"})])])
    assert batch.column("headers").to_pylist() == [
        [],
        [("Via", b"a"), ("Via", "ö".encode()), ("Tag", b"x")],
        [("a", b"1")],
    ]


class CountedPairs(tuple[tuple[str, str], ...]):
    """Headers that count how often they are read."""

    reads = 0

    def __iter__(self) -> Iterator[tuple[str, str]]:
        self.reads += 1
        return super().__iter__()


def test_a_message_with_many_headers_is_read_in_one_pass() -> None:
    headers = Headers()
    headers.pairs = pairs = CountedPairs((f"Name-{number}", "x") for number in range(1_000))
    headers._last = dict(tuple(pairs))
    pairs.reads = 0
    batch = rows_of([(FIRST, [stored(1, headers)])])
    assert len(batch.column("headers").to_pylist()[0]) == 1_000
    assert pairs.reads == 1


def test_sources_of_different_kinds_in_one_batch() -> None:
    liftbridge = LiftbridgeMessage(
        offset=7, key=b"k", value=b"tea", timestamp_ns=SECONDS * 10**9, subject="s", headers={"h": b"v"}
    )
    batch = rows_of(
        [
            (FIRST, [stored(1, {"a": "1"})]),
            (TopicPartition("teas", 0), [SourceMessage(7, b"tea", liftbridge)]),
            (TopicPartition("numbers", 2), [SourceMessage(9, b"9", None)]),
        ]
    )
    assert batch.schema == SCHEMA
    rows = batch.to_pylist()
    assert [(row["topic"], row["partition"], row["offset"], row["value"]) for row in rows] == [
        ("orders", 0, 1, b"1"),
        ("teas", 0, 7, b"tea"),
        ("numbers", 2, 9, b"9"),
    ]
    assert [(row["key"], row["subject"], row["headers"]) for row in rows] == [
        (None, "orders.new", [("a", b"1")]),
        (b"k", "s", [("h", b"v")]),
        (None, None, None),
    ]
    assert rows[0]["timestamp"] == rows[1]["timestamp"]
    assert rows[2]["timestamp"] is None


def test_message_without_a_consumers_reply_is_an_error() -> None:
    message = Message("a", "_INBOX.x", b"", None, Recorder())
    with pytest.raises(UsageError, match="must be the reply subject"):
        rows_of([(FIRST, [SourceMessage(0, b"", message)])])


JSON = Json(pa.schema({"id": pa.int64()}))


def plain(offset: int, value: bytes) -> SourceMessage:
    return SourceMessage(offset, value, None)


def decoding(payload: Any, on_bad: str) -> Callable[[pa.RecordBatch], Iterator[pa.RecordBatch]]:
    """Return a function that yields the rows of a batch of messages."""
    typed = typed_rows(payload, on_bad, SCHEMA, "topic")
    assert typed is not None
    return lambda batch: (rows for _, piece in typed.pieces(batch) for rows in piece)


def test_payload_replaces_the_value() -> None:
    good, bad = plain(3, b'{"id": 1}'), plain(4, b"oops")
    decode = decoding(JSON, "column")
    (batch,) = decode(rows_of([(FIRST, [good, bad])]))
    batch.validate(full=True)
    own = [name for name in SCHEMA.names if name != "value"]
    assert batch.schema.names == [*own, "id", "bad_reason", "bad_value"]
    assert [(row["offset"], row["id"], row["bad_value"]) for row in batch.to_pylist()] == [
        (3, 1, None),
        (4, None, b"oops"),
    ]


def test_rows_before_a_bad_message_come_first() -> None:
    rows = decoding(JSON, "fail")(rows_of([(FIRST, [plain(3, b'{"id": 1}')]), (SECOND, [plain(7, b"oops")])]))
    found = iter(rows)
    assert next(found)["id"].to_pylist() == [1]
    with pytest.raises(BadPayloadError, match=r"orders\[1\]: message 7 is bad: .*on_bad='column'") as caught:
        next(found)
    assert (caught.value.stream, caught.value.partition, caught.value.offset) == ("orders", 1, 7)


def test_schema_of_the_first_batch_stays() -> None:
    decode = decoding("json", "column")
    (first,) = decode(rows_of([(FIRST, [plain(0, b'{"id": 1}')])]))
    (second,) = decode(rows_of([(FIRST, [plain(1, b'{"id": 2, "new": 3}')])]))
    assert first.schema == second.schema
    assert second["id"].to_pylist() == [2]


def test_message_with_many_rows_becomes_a_batch_of_its_own() -> None:
    schema = pa.schema({"id": pa.int64()})
    value = ArrowBatches().encoder(schema).encode(pa.record_batch([pa.array([5, 6])], schema=schema))
    message = plain(9, value[0].as_py())
    batches = list(decoding("arrow", "fail")(rows_of([(FIRST, [message, message])])))
    assert [batch.select(["offset", "row", "id"]).to_pylist()[1] for batch in batches] == [
        {"offset": 9, "row": 1, "id": 6}
    ] * 2


@pytest.mark.parametrize(
    ("payload", "on_bad", "text"),
    [
        (None, "column", "on_bad must be 'fail' without payload"),
        ("json", "drop", "on_bad must be"),
        (Json(pa.schema({"topic": pa.int64()})), "fail", "field 'topic' must not have the name of a column"),
        (Json(pa.schema({"bad_value": pa.int64()})), "column", "field 'bad_value' must not"),
    ],
)
def test_options_of_payloads_are_checked(payload: Any, on_bad: str, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        typed_rows(payload, on_bad, SCHEMA, "topic")

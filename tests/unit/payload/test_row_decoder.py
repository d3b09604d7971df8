"""Rows of messages that carry many: in pieces of a bounded size, whatever the messages decode to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from liftenvelope.payload import ArrowBatches, BadPayloadError
from liftenvelope.payload.row_decoder import RowDecoder, added_columns

MIB = 1024 * 1024
MESSAGES = 24
#: Rows of eight MiB of zeros, which compress to a few KiB.
ZEROS = pa.record_batch({"a": pa.array([0] * MIB, pa.int64())})
OF_ZEROS = ArrowBatches(ZEROS.schema, max_rows=2 * MIB)


class Letters:
    """Counts the dead letters."""

    def __init__(self) -> None:
        self.offsets: list[int] = []

    def put(self, rows: pa.RecordBatch, reasons: Sequence[str]) -> None:
        assert len(reasons) == rows.num_rows
        self.offsets += rows["offset"].to_pylist()


def messages(values: list[bytes], **columns: pa.Array) -> pa.RecordBatch:
    count = len(values)
    found = {
        "offset": pa.array(range(100, 100 + count), pa.int64()),
        "partition": pa.array([0] * count, pa.int32()),
        "value": pa.array(values, pa.binary()),
        **columns,
    }
    return pa.record_batch(found)


def row_decoder(
    kind: ArrowBatches, *, own: tuple[Any, ...] = (), letters: Letters | None = None, keeps: bool = False
) -> RowDecoder:
    decoder = kind.decoder()
    schema = pa.schema(
        [("offset", pa.int64()), *own, *decoder.schema, *added_columns(packed=True, keeps_bad=keeps)]
    )
    return RowDecoder(
        "events", decoder, schema, decoder.schema, packed=True, keeps_bad=keeps, letters=letters
    )


@pytest.fixture(scope="module")
def large() -> bytes:
    value: bytes = ArrowBatches(compression="zstd").encoder(ZEROS.schema).encode(ZEROS)[0].as_py()
    return value


def test_memory_is_that_of_a_few_messages(large: bytes) -> None:
    batch = messages([large] * MESSAGES)
    before, most, rows = pa.total_allocated_bytes(), 0, 0
    for part in row_decoder(OF_ZEROS).decode(batch):
        most = max(most, pa.total_allocated_bytes() - before)
        rows += part.num_rows
    assert rows == MESSAGES * MIB
    assert most < 96 * MIB, f"{most / MIB:.0f} MiB at most, and {MESSAGES * 8} MiB decoded in all"


def test_pieces_go_up_to_the_messages_that_they_cover(large: bytes) -> None:
    found = [
        (reached, sorted(set(pa.Table.from_batches(rows)["offset"].to_pylist())))
        for reached, rows in row_decoder(OF_ZEROS).pieces(messages([large] * 5))
    ]
    ends = [reached for reached, _ in found]
    assert (ends[-1], len(ends) > 1, ends) == (5, True, sorted(set(ends)))
    assert [offset for _, offsets in found for offset in offsets] == list(range(100, 105))


@pytest.mark.parametrize("at", range(6))
def test_bad_message_in_any_piece_ends_the_rows_before_it(large: bytes, at: int) -> None:
    values = [large] * 6
    values[at] = b"bad"
    found: list[tuple[int, list[int]]] = []
    decoder = row_decoder(OF_ZEROS)

    def decode() -> None:
        for reached, rows in decoder.pieces(messages(values)):
            found.append((reached, [batch["offset"][0].as_py() for batch in rows]))

    with pytest.raises(BadPayloadError, match=f"message {100 + at} is bad"):
        decode()
    assert found[-1][0] == at
    assert [offset for _, offsets in found for offset in offsets] == list(range(100, 100 + at))


def test_bad_messages_of_all_pieces_become_dead_letters_once(large: bytes) -> None:
    letters = Letters()
    values = [b"bad", large, large, large, b"bad", large, b"bad"]
    offsets = [
        batch["offset"][0].as_py()
        for batch in row_decoder(OF_ZEROS, letters=letters).decode(messages(values))
    ]
    assert (offsets, letters.offsets) == ([101, 102, 103, 105], [100, 104, 106])


def test_key_that_would_be_repeated_into_gigabytes_makes_a_message_bad() -> None:
    nulls = pa.record_batch({"n": pa.nulls(1_000_000)})
    nothing = ArrowBatches(nulls.schema)
    value = nothing.encoder(nulls.schema).encode(nulls)[0].as_py()
    few = nothing.encoder(nulls.schema).encode(nulls.slice(0, 3))[0].as_py()
    batch = messages([few, value, few], key=pa.array([b"k" * 1000, b"k" * 1000, None], pa.binary()))
    decoder = row_decoder(nothing, own=(("key", pa.binary()),), keeps=True)
    rows = pa.Table.from_batches(decoder.decode(batch))
    assert rows["offset"].to_pylist() == [100] * 3 + [101] + [102] * 3
    (reason,) = set(rows["bad_reason"].to_pylist()) - {None}
    assert reason.startswith("1000000 rows, each with 10")
    assert reason.endswith(" bytes of other columns, are more than max_repeated_bytes=268435456")


@pytest.mark.parametrize(("limit", "fate"), [(4_999, "bad"), (6_000, "good")])
def test_limit_of_repeated_bytes_is_an_option(limit: int, fate: str) -> None:
    rows = pa.record_batch({"n": [1, 2, 3, 4, 5]})
    kind = ArrowBatches(rows.schema, max_repeated_bytes=limit)
    value = kind.encoder(rows.schema).encode(rows)[0].as_py()
    batch = messages([value], key=pa.array([b"k" * 1000], pa.binary()))
    found = pa.Table.from_batches(
        row_decoder(kind, own=(("key", pa.binary()),), keeps=True).decode(batch)
    ).to_pylist()
    assert [row["n"] for row in found] == ([None] if fate == "bad" else [1, 2, 3, 4, 5])
    assert [bool(row["bad_reason"]) for row in found] == ([True] if fate == "bad" else [False] * 5)


def test_pieces_end_before_keys_are_repeated_into_gigabytes() -> None:
    nulls = pa.record_batch({"n": pa.nulls(200_000)})
    nothing = ArrowBatches(nulls.schema)
    value = nothing.encoder(nulls.schema).encode(nulls)[0].as_py()
    batch = messages([value] * 5, key=pa.array([b"k" * 1000] * 5, pa.binary()))
    ends = [reached for reached, _ in row_decoder(nothing, own=(("key", pa.binary()),)).pieces(batch)]
    assert ends == [1, 2, 3, 4, 5]


def test_dictionary_of_many_subjects_is_not_counted_for_each_row() -> None:
    rows = pa.record_batch({"n": pa.nulls(10_000)})
    nothing = ArrowBatches(rows.schema)
    value = nothing.encoder(rows.schema).encode(rows)[0].as_py()
    subjects = pa.array([f"{number:05}.{'x' * 30}" for number in range(2_000)]).dictionary_encode()
    batch = messages([value] * 3, subject=subjects.slice(0, 3))
    decoder = row_decoder(nothing, own=(("subject", subjects.type),))
    assert sum(part.num_rows for part in decoder.decode(batch)) == 30_000

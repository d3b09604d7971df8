"""JSON payloads: every message is one row or one reason, whatever its neighbours are."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from liftenvelope.errors import UsageError, UsageTypeError
from liftenvelope.payload import Json
from tests.unit.payload.rows import batches, json_types

SCHEMA = pa.schema(
    {"a": pa.int64(), "s": pa.string(), "l": pa.list_(pa.int32()), "st": pa.struct({"x": pa.float64()})}
)
#: Messages that are no object, half of one, or several.
FRAGMENTS = [
    b"",
    b" ",
    b"null",
    b"{}null",
    b"{",
    b"}",
    b'{"a":1}{"a":2}',
    b'{"a":1}\n{"a":2}',
    b'{"a":',
    b"1}",
    b'{"s":"',
    b'"}',
    b"[1]",
    b'"x"',
    b"1",
    b'{"a":NaN}',
    b'{"x":Infinity}',
    b'{"x":Inf}',
    b'{"s":"\xff"}',
    b'{"x":"\xff"}',
    b"\xef\xbb\xbf{}",
    b'{"a":1}\x00',
    b'{"a":1,}',
    b'{"a":1}//',
    b'{"s":"a\nb"}',
]
#: Objects that do not fit the schema.
MISFITS = [
    b'{"a":1.0}',
    b'{"a":1e2}',
    b'{"a":"1"}',
    b'{"a":true}',
    b'{"a":9223372036854775808}',
    b'{"a":1,"a":2}',
    b'{"st":{"x":1,"x":2}}',
    b'{"l":[1,2147483648]}',
    b'{"l":{}}',
    b'{"s":5}',
    b'{"s":"\\ud800"}',
    b'{"st":{"x":1e400}}',
    b'{"st":[]}',
]
GOOD: dict[bytes, dict[str, Any]] = {
    b"{}": {},
    b'  {"a":-9223372036854775808}\n': {"a": -(2**63)},
    b'{"s":"NaN Infinity"}': {"s": "NaN Infinity"},
    b'{"\\u0061":5,"zz":[[{"a":7}]]}': {"a": 5},
    b'{"x":1,"x":2,"l":[1,null]}': {"l": [1, None]},
    b'{"st":{"x":5,"y":6},"a":null}': {"st": {"x": 5.0}},
    b'{\n"s"\t:\r"\\u0000\\ud83d\\ude00"}': {"s": "\x00\N{GRINNING FACE}"},
    b'{"x":' + b"[" * 20_000 + b"]" * 20_000 + b',"a":1}': {"a": 1},
}


def row(**fields: Any) -> dict[str, Any]:
    return {name: fields.get(name) for name in SCHEMA.names}


@given(st.lists(st.sampled_from([*FRAGMENTS, *MISFITS, *GOOD]) | st.binary(max_size=6), max_size=40))
@example([*GOOD, *FRAGMENTS, *MISFITS, *GOOD])
@settings(max_examples=60, deadline=None)
def test_fate_of_message_does_not_depend_on_its_neighbours(values: list[bytes]) -> None:
    found = Json(SCHEMA).decoder().decode(pa.array(values, pa.binary()))
    bad = {value.index: value.reason for value in found.bad}
    (batch,) = found.batches
    assert batch.num_rows == len(values)
    for index, (value, got) in enumerate(zip(values, batch.to_pylist(), strict=True)):
        if value in GOOD:
            assert index not in bad
            assert got == row(**GOOD[value])
        else:
            assert bad[index]
            assert got == row()


def test_one_bad_message_of_many_is_found_at_its_place() -> None:
    values = [b'{"a":%d}' % number for number in range(5_000)]
    values[1_234], values[4_999] = b'{"a":1}}', b'{"a":"x"}'
    found = Json(SCHEMA).decoder().decode(pa.array(values))
    assert [(value.index, value.reason) for value in found.bad] == [
        (1_234, "no JSON object"),
        (4_999, "field 'a' must be int64, got 'x'"),
    ]
    expected = [None if number in (1_234, 4_999) else number for number in range(5_000)]
    assert found.batches[0]["a"].to_pylist() == expected


#: Decimals that move pyarrow's reader past its table of powers of ten.
FAR_DECIMALS = [
    b"1e-999999999",
    b"0E-99",
    b'"1e-999999999"',
    b'"1\\u0065-999999999"',
    b'"1e\\u002d999999999"',
    b"1e-" + b"0" * 5_000 + b"999999999",
    b"1e-" + b"9" * 5_000,
    b"0." + b"0" * 60 + b"1",
    b"1.00000000000000000000000000000000000000e-20",
]


@pytest.mark.parametrize("number", FAR_DECIMALS, ids=range(len(FAR_DECIMALS)))
def test_decimal_with_too_many_places_is_bad_alone(number: bytes) -> None:
    kind = pa.decimal128(38, 10)
    schema = pa.schema({"d": kind, "l": pa.list_(pa.struct({"d": kind}))})
    deep = b'{"x":' + b"[" * 20_000 + b"]" * 20_000 + b',"d":' + number + b"}"
    values = [b'{"d":1.5,"f":1e-99}', b'{"d":' + number + b"}", b'{"l":[{"d":' + number + b"}]}", deep]
    found = Json(schema).decoder().decode(pa.array([*values, b'{"d":"2e-7"}']))
    assert [value.index for value in found.bad] == [1, 2, 3]
    expected = [Decimal("1.5"), None, None, None, Decimal("2e-7")]
    assert found.batches[0]["d"].to_pylist() == expected


def test_decimals_within_the_reach_of_the_reader_are_as_before() -> None:
    schema = pa.schema({"d": pa.decimal128(38, 38)})
    values = [
        b'{"d":0e-76}',
        b'{"d":1e-38}',
        b'{"d":0.' + b"0" * 37 + b"1}",
        b'{"d":1e-0000005}',
        b'{"d":1e-39}',
    ]
    found = Json(schema).decoder().decode(pa.array(values))
    small = Decimal("1e-38")
    assert found.batches[0]["d"].to_pylist() == [Decimal(0), small, small, Decimal("1e-5"), None]
    assert [value.index for value in found.bad] == [4]


@given(batches(json_types))
@settings(max_examples=60, deadline=None)
def test_rows_are_equal_after_a_round_trip(rows: pa.RecordBatch) -> None:
    values = Json().encoder(rows.schema).encode(rows)
    for value, expected in zip(values.to_pylist(), rows.to_pylist(), strict=True):
        assert list(json.loads(value)) == list(expected)
    found = Json(rows.schema).decoder().decode(values)
    assert not found.bad
    assert found.batches[0].equals(rows)


def test_slice_of_an_array_is_decoded_alone() -> None:
    values = pa.array([b"x", b'{"a":1}', b'{"a":2}', b"x"]).slice(1, 2)
    found = Json(SCHEMA).decoder().decode(values)
    assert (found.batches[0]["a"].to_pylist(), found.bad) == ([1, 2], ())


def test_no_values_give_an_empty_batch() -> None:
    found = Json(SCHEMA).decoder().decode(pa.array([], pa.binary()))
    assert (found.batches[0].num_rows, found.batches[0].schema) == (0, SCHEMA)


class TestInference:
    def decoder(self, *values: str) -> Any:
        return Json().decoder(pa.array([value.encode() for value in values], pa.binary()))

    def test_schema_comes_from_the_good_messages_of_the_sample(self) -> None:
        found = self.decoder(
            '{"a": 1, "n": null, "e": []}', "oops", '{"a": 1.5, "t": "2020-01-01", "st": {"l": [[true]]}}'
        )
        assert found.schema == pa.schema(
            {
                "a": pa.float64(),
                "t": pa.string(),
                "st": pa.struct({"l": pa.list_(pa.list_(pa.bool_()))}),
            }
        )

    @pytest.mark.parametrize(
        ("values", "expected"),
        [
            (('{"a": "x"}', '{"a": 1}', '{"a": 2}'), pa.int64()),
            (('{"a": "x"}', '{"a": 1}'), pa.string()),
            (('{"a": 9223372036854775808}', '{"a": 1}'), pa.int64()),
            (('{"a": [1, "x", "y", null]}',), pa.list_(pa.string())),
            (('{"a": {"b": 1}}', '{"a": {"b": 1.5}}', '{"a": 1}'), pa.struct({"b": pa.float64()})),
        ],
    )
    def test_type_of_most_values_wins(self, values: tuple[str, ...], expected: Any) -> None:
        assert self.decoder(*values).schema == pa.schema({"a": expected})

    def test_number_of_fields_is_limited(self) -> None:
        wide = json.dumps({f"f{number}": 1 for number in range(1_100)})
        found = self.decoder(wide, '{"f1099": 2}').schema
        assert (len(found), "f1099" in found.names) == (1_000, True)

    def test_number_of_fields_in_structs_is_limited(self) -> None:
        inner = {f"g{number}": 1 for number in range(100)}
        wide = json.dumps({"l": [{f"h{number}": 1 for number in range(500)}] * 3} | {"x": inner, "y": inner})
        found = self.decoder(wide, *[json.dumps({"a": {"b": {"c": 1}}})] * 2).schema
        assert found.field("a").type == pa.struct({"b": pa.struct({"c": pa.int64()})})
        wider = json.dumps({f"f{number}": inner for number in range(100)})
        found = self.decoder(wider, *[json.dumps({"a": {"b": {"c": 1}}})] * 2).schema
        assert sum(field.type.num_fields for field in found) == 1_000
        assert found.names[-1] == "a"

    @pytest.mark.parametrize("value", ['{"a": 1, "\\udc00": 2}', '{"a": 1, "s": {"\\udc00": 2}}'])
    def test_name_with_a_lone_surrogate_is_left_out(self, value: str) -> None:
        decoder = self.decoder(value, '{"a": 2}')
        assert decoder.schema == pa.schema({"a": pa.int64()})
        found = decoder.decode(pa.array([value.encode(), b'{"a": 2}']))
        assert found.batches[0]["a"].to_pylist()[1] == 2

    def test_field_with_the_name_of_the_column_of_unknown_fields_stays_in_it(self) -> None:
        values = pa.array([b'{"a": 1, "extra": 2}', b'{"a": 3}'])
        found = Json(unknown="keep").decoder(values).decode(values)
        assert found.batches[0].to_pylist() == [{"a": 1, "extra": '{"extra":2}'}, {"a": 3, "extra": None}]

    def test_deep_fields_are_left_out(self) -> None:
        deep = '{"b": 1, "a": ' + "[" * 500 + "1" + "]" * 500 + "}"
        assert self.decoder(deep).schema == pa.schema({"b": pa.int64()})

    def test_no_sample_is_refused(self) -> None:
        with pytest.raises(UsageError, match="schema must be given"):
            Json().decoder()


class TestOptions:
    def test_unknown_fields_are_kept_as_json(self) -> None:
        kind = Json(pa.schema({"a": pa.int64()}), unknown="keep")
        found = kind.decoder().decode(pa.array([b'{"b":[1],"a":1,"c":"\xc3\xa9"}', b"x", b'{"a":2}']))
        assert found.batches[0].to_pylist() == [
            {"a": 1, "extra": '{"b":[1],"c":"\N{LATIN SMALL LETTER E WITH ACUTE}"}'},
            {"a": None, "extra": None},
            {"a": 2, "extra": None},
        ]

    def test_columns_are_chosen_with_their_prefix(self) -> None:
        decoder = Json(SCHEMA, prefix="p_").decoder(columns=["p_s"])
        assert decoder.decode(pa.array([b'{"a":"no number","s":"x"}'])).batches[0].to_pylist() == [
            {"p_s": "x"}
        ]

    def test_write_removes_the_prefix(self) -> None:
        rows = pa.record_batch({"p_a": [1]})
        assert Json(prefix="p_").encoder(rows.schema).encode(rows).to_pylist() == [b'{"a":1}']
        with pytest.raises(UsageError, match="begin with 'q_'"):
            Json(prefix="q_").encoder(rows.schema)

    @pytest.mark.parametrize("number", [float("nan"), float("inf")])
    def test_number_that_json_does_not_have_is_refused(self, number: float) -> None:
        for values in ([number, None], [[number]]):
            rows = pa.record_batch({"a": values})
            with pytest.raises(UsageError, match="'a'"):
                Json().encoder(rows.schema).encode(rows)

    def test_type_that_json_does_not_have_is_refused(self) -> None:
        for kind in (pa.binary(), pa.float32(), pa.list_(pa.date32()), pa.struct({"x": pa.binary()})):
            with pytest.raises(UsageError, match=r"types that JSON carries .*, got "):
                Json(pa.schema({"a": kind}))

    def test_wrong_options_are_refused(self) -> None:
        with pytest.raises(UsageTypeError, match=r"schema must be a pyarrow\.Schema"):
            Json({"a": int})
        with pytest.raises(UsageError, match="each field once, got 'a' twice"):
            Json(pa.schema([("a", pa.int64()), ("a", pa.int64())]))
        with pytest.raises(UsageError, match="sample must be at least 1"):
            Json(sample=0)
        with pytest.raises(UsageError, match="unknown must be one of"):
            Json(unknown="fail")  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="must not have a field 'extra'"):
            Json(pa.schema({"extra": pa.int64()}), unknown="keep").decoder()

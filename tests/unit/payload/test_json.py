"""JSON payloads: every message is one row or one reason, whatever its neighbours are."""

from __future__ import annotations

import json
import time
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
    b'{"a":1}\x00x',
    b'{"a":1\x00}',
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

    @pytest.mark.parametrize(
        ("other", "fault"),
        [
            (b'"b":1,"b":2', "'b' stands twice"),
            (b'"b":{"c":1,"c":2}', "'c' stands twice"),
            (b'"b":' + b"1" * 5_000, "4300 digits"),
            (b'"b":' + b"[" * 100_000 + b"]" * 100_000, "too many levels"),
            (b'"b":' + b'{"c":' * 50_000 + b"1" + b"}" * 50_000, "too many levels"),
        ],
        ids=["name", "inner name", "integer", "levels", "levels of objects"],
    )
    def test_message_whose_unknown_fields_can_not_be_kept_is_bad(self, other: bytes, fault: str) -> None:
        values = pa.array([b'{"a":1}', b'{"a":2,%b}' % other, b'{"a":3}'])
        (batch,), bad = self.decoded(values, unknown="keep")
        assert batch["a"].to_pylist() == [1, None, 3]
        ((index, reason),) = bad
        assert index == 1
        assert fault in reason
        assert self.decoded(values)[1] == []

    def test_name_that_stands_twice_behind_many_others_is_found_at_once(self) -> None:
        other = b",".join(b'"%d":1' % number for number in range(30_000)) + b',"29999":1'
        began = time.process_time()
        _, ((_, reason),) = self.decoded(pa.array([b"{%b}" % other]), unknown="keep")
        assert "'29999' stands twice" in reason
        assert time.process_time() - began < 5, "20 s if the names are counted one by one"

    @staticmethod
    def decoded(values: pa.Array, **options: Any) -> tuple[Any, list[tuple[int, str]]]:
        found = Json(pa.schema({"a": pa.int64()}), **options).decoder().decode(values)
        return found.batches, [(value.index, value.reason) for value in found.bad]

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

    @pytest.mark.parametrize(
        ("value", "kind"),
        [
            (-62_135_596_801, pa.timestamp("s")),
            (253_402_300_800, pa.timestamp("s", "UTC")),
            (253_402_300_800_000, pa.timestamp("ms")),
            (2**62, pa.timestamp("us", "Asia/Tokyo")),
        ],
    )
    def test_time_that_has_no_text_is_refused(self, value: int, kind: pa.DataType) -> None:
        column = pa.array([0, value, None], kind)
        nested = [pa.ListArray.from_arrays([0, 3], column), pa.StructArray.from_arrays([column], ["x"])]
        for one in (column, *nested):
            rows = pa.record_batch({"a": one})
            with pytest.raises(
                UsageError, match=rf"column 'a' must have times of .*, got {value} {kind.unit} "
            ):
                Json().encoder(rows.schema).encode(rows)

    def test_first_and_last_time_are_equal_after_a_round_trip(self) -> None:
        column = pa.array([-62_135_596_800, 253_402_300_799, None], pa.timestamp("s"))
        rows = pa.record_batch({"a": column})
        found = Json(rows.schema).decoder().decode(Json().encoder(rows.schema).encode(rows))
        assert (found.batches, found.bad) == ([rows], ())

    def test_dictionary_fits_by_the_values_of_its_rows(self) -> None:
        """Of pandas' and polars' categories, many have no row."""
        numbers = pa.DictionaryArray.from_arrays(pa.array([0, None], pa.int8()), pa.array(["1", "x"]))
        rows = pa.record_batch({"n": numbers})
        encoder = Json().encoder(pa.schema({"n": pa.int64()}))
        assert encoder.encode(rows).to_pylist() == [b'{"n":1}', b'{"n":null}']
        with pytest.raises(UsageError, match="column 'n' must fit type int64"):
            encoder.encode(pa.record_batch({"n": pa.array(["1", "x"]).dictionary_encode()}))

    def test_views_dictionaries_and_large_lists_are_encoded(self) -> None:
        rows = pa.record_batch(
            {
                "v": pa.array(["x", None], pa.string_view()),
                "d": pa.array(["y", None]).dictionary_encode(),
                "c": pa.DictionaryArray.from_arrays(
                    pa.array([1, None], pa.uint32()), pa.array(["x", "y"], pa.string_view())
                ),
                "l": pa.array([["z"], None], pa.large_list(pa.string_view())),
                "s": pa.array([{"f": "z"}, None], pa.struct({"f": pa.string_view()})),
            }
        )
        values = Json().encoder(rows.schema).encode(rows)
        wanted = {"v": pa.string(), "d": pa.string(), "c": pa.string(), "l": pa.large_list(pa.string())}
        schema = pa.schema({**wanted, "s": pa.struct({"f": pa.string()})})
        found = Json(schema).decoder().decode(values)
        assert found.bad == ()
        assert found.batches[0].schema == schema
        assert found.batches[0].to_pylist() == rows.to_pylist()

    def test_struct_with_a_field_twice_is_refused(self) -> None:
        one = pa.array([1])
        rows = pa.record_batch({"a": pa.StructArray.from_arrays([one, one], ["x", "x"])})
        with pytest.raises(UsageError, match=r"column 'a' .*each field once"):
            Json().encoder(rows.schema).encode(rows)

    @pytest.mark.parametrize("kind", [pa.float64(), pa.list_(pa.float64()), pa.struct({"x": pa.float64()})])
    def test_integer_that_no_double_can_hold_is_bad(self, kind: pa.DataType) -> None:
        shape = {"double": b"%b"}.get(str(kind), b"[%b]" if pa.types.is_list(kind) else b'{"x":%b}')
        values = pa.array([b'{"a":%b}' % (shape % number) for number in (b"1", b"9" * 309, b"9" * 308)])
        found = Json(pa.schema({"a": kind})).decoder().decode(values)
        assert [(one.index, one.reason) for one in found.bad] == [(1, "a number is too large for a double")]
        assert found.batches[0]["a"].is_valid().to_pylist() == [True, False, True]

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

"""new_message, marshal_message and marshal_ack write exact bytes and refuse wrong values."""

from __future__ import annotations

import array
import ctypes
import mmap
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from liftenvelope import envelope
from liftenvelope.envelope import (
    Ack,
    AckPolicy,
    Message,
    NewMessage,
    UnmarshalAck,
    UnmarshalMessage,
    marshal_ack,
    marshal_message,
    new_message,
    unmarshal_ack,
    unmarshal_message,
)
from liftenvelope.errors import EnvelopeTooLargeError, UsageError, UsageTypeError

HEAD = "b90e43b400080000"
ANY_OFFSET = "08ffffffffffffffffff01"


def payload_of(data: bytes) -> str:
    assert data[:8].hex() == HEAD
    return data[8:].hex()


def crc_by_the_bit(data: bytes) -> int:
    """CRC-32C as RFC 3720 defines it: no table, no instruction."""
    crc = 0xFFFF_FFFF
    for byte in data:
        for bit in range(8):
            odd = (crc ^ byte >> bit) & 1
            crc = crc >> 1 ^ (0x82F6_3B78 if odd else 0)
    return crc ^ 0xFFFF_FFFF


class TestGolden:
    """The bytes of the Go client and of the server, as they were recorded."""

    def test_value_alone(self) -> None:
        assert new_message(b"hello").hex() == "b90e43b40008000008ffffffffffffffffff011a0568656c6c6f"

    def test_inbox_and_correlation_id(self) -> None:
        made = new_message(b"hello", ack_inbox="my.ack.inbox", correlation_id="123")
        assert made.hex() == (
            "b90e43b40008000008ffffffffffffffffff011a0568656c6c6f520c6d792e61636b2e696e626f785a03313233"
        )

    def test_error_ack(self) -> None:
        ack = Ack(
            stream="s", partition_subject="foo", msg_subject="foo", ack_inbox="i", correlation_id="c", error=2
        )
        golden = "b90e43b4000800010a01731203666f6f1a03666f6f2a01693201635002"
        assert marshal_ack(ack).hex() == golden
        assert unmarshal_ack(bytes.fromhex(golden)) == ack

    def test_names_of_the_go_client(self) -> None:
        assert NewMessage is new_message
        assert UnmarshalMessage is unmarshal_message
        assert UnmarshalAck is unmarshal_ack

    def test_all_that_is_exported_exists(self) -> None:
        assert all(getattr(envelope, name).__doc__ for name in envelope.__all__)


class TestOptions:
    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            ({}, ANY_OFFSET),
            ({"key": b"k"}, ANY_OFFSET + "12016b"),
            ({"key": b""}, ANY_OFFSET),
            ({"key": None}, ANY_OFFSET),
            ({"headers": None}, ANY_OFFSET),
            ({"headers": {}}, ANY_OFFSET),
            ({"headers": {"a": b"b"}}, ANY_OFFSET + "4a060a0161120162"),
            ({"headers": {"a": b""}}, ANY_OFFSET + "4a050a01611200"),
            ({"headers": {"": b"b"}}, ANY_OFFSET + "4a050a00120162"),
            ({"headers": {"": b""}}, ANY_OFFSET + "4a040a001200"),
            ({"headers": {"b": b"1", "a": b"2"}}, ANY_OFFSET + "4a060a0162120131" + "4a060a0161120132"),
            ({"ack_inbox": "i"}, ANY_OFFSET + "520169"),
            ({"ack_inbox": ""}, ANY_OFFSET),
            ({"ack_inbox": "é"}, ANY_OFFSET + "5202c3a9"),
            ({"correlation_id": "c"}, ANY_OFFSET + "5a0163"),
            ({"correlation_id": None}, ANY_OFFSET),
            ({"correlation_id": "🙂"}, ANY_OFFSET + "5a04f09f9982"),
            ({"ack_policy": AckPolicy.LEADER}, ANY_OFFSET),
            ({"ack_policy": AckPolicy.ALL}, ANY_OFFSET + "6001"),
            ({"ack_policy": 2}, ANY_OFFSET + "6002"),
            ({"expected_offset": 0}, ""),
            ({"expected_offset": 127}, "087f"),
            ({"expected_offset": 128}, "088001"),
            ({"expected_offset": 2**63 - 1}, "08ffffffffffffffff7f"),
            ({"expected_offset": -(2**63)}, "0880808080808080808001"),
            ({"expected_offset": -2}, "08feffffffffffffffff01"),
        ],
    )
    def test_each_alone(self, options: dict[str, Any], expected: str) -> None:
        assert payload_of(new_message(b"", **options)) == expected

    def test_all_together_in_the_order_of_their_numbers(self) -> None:
        made = new_message(
            b"v",
            ack_policy=1,
            correlation_id="c",
            ack_inbox="i",
            headers={"h": b"w"},
            key=b"k",
            expected_offset=7,
        )
        assert (
            payload_of(made)
            == "0807" + "12016b" + "1a0176" + "4a060a0168120177" + "520169" + "5a0163" + "6001"
        )

    def test_options_are_keyword_only(self) -> None:
        with pytest.raises(TypeError):
            new_message(b"v", b"k")  # type: ignore[call-arg]

    @pytest.mark.parametrize(
        "size", [0, 1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 127, 128, 16_383, 16_384, 2_097_152]
    )
    def test_any_size(self, size: int) -> None:
        value = bytes(i * 7 & 0xFF for i in range(size))
        made = new_message(value, key=value, headers={"h": value}, correlation_id="x" * size)
        read = unmarshal_message(made)
        assert (read.value, read.key, read.headers["h"]) == (value, value, value)
        assert read.correlation_id == "x" * size

    def test_crc(self) -> None:
        made = new_message(b"hello", crc=True)
        payload = bytes.fromhex(ANY_OFFSET + "1a0568656c6c6f")
        assert made.hex() == "b90e43b4000c0100" + f"{crc_by_the_bit(payload):08x}" + payload.hex()
        assert unmarshal_message(made).value == b"hello"

    def test_crc_of_nothing(self) -> None:
        assert new_message(b"", expected_offset=0, crc=True).hex() == "b90e43b4000c010000000000"
        assert marshal_ack(Ack(), crc=True).hex() == "b90e43b4000c010100000000"
        assert marshal_message(Message(), crc=True).hex() == "b90e43b4000c010000000000"


class Buffers:
    """Bytes-like objects that all hold b"abcdef"."""

    writable = bytearray(b"abcdef")
    view = memoryview(b"xabcdefx")[1:7]
    numbers = array.array("H", b"abcdef")
    table = memoryview(b"abcdef").cast("B", (2, 3))
    raw = ctypes.create_string_buffer(b"abcdef", 6)

    class Sub(bytes):
        pass

    subclass = Sub(b"abcdef")


BUFFERS = [getattr(Buffers, name) for name in ("writable", "view", "numbers", "table", "raw", "subclass")]


class TestBytesLike:
    @pytest.mark.parametrize("data", BUFFERS, ids=lambda data: type(data).__name__)
    def test_as_value_key_and_header(self, data: Any) -> None:
        plain = new_message(b"abcdef", key=b"abcdef", headers={"h": b"abcdef"})
        assert new_message(data, key=data, headers={"h": data}) == plain
        assert Message(data, key=data, headers={"h": data}) == Message(
            b"abcdef", key=b"abcdef", headers={"h": b"abcdef"}
        )

    def test_as_envelope(self) -> None:
        data = new_message(b"hello")
        for form in (bytearray(data), memoryview(b"x" + data)[1:], memoryview(data).cast("c")):
            assert unmarshal_message(form).value == b"hello"
            assert envelope.is_envelope(form)
            assert envelope.peek_type(form) == 0

    def test_value_is_not_kept(self) -> None:
        buffer = bytearray(b"hello")
        message = Message(buffer)
        new_message(buffer)
        buffer.clear()  # no export is left behind
        assert message.value == b"hello"

    @pytest.mark.parametrize("name", ["value", "key", "header 'h'"])
    @pytest.mark.parametrize(
        "scattered",
        [
            memoryview(b"abcdef")[::2],
            memoryview(b"abcdef")[::-1],
            memoryview(b"abcdef" * 2).cast("B", (2, 6))[::-1],
        ],
        ids=["step", "reversed", "rows reversed"],
    )
    def test_not_contiguous(self, name: str, scattered: memoryview) -> None:
        options: dict[str, Any] = {"key": scattered} if name == "key" else {"headers": {"h": scattered}}
        call = {"value": scattered} if name == "value" else {"value": b"", **options}
        with pytest.raises(UsageTypeError, match=f"^{name} must be contiguous in memory"):
            new_message(**call)

    def test_data_that_is_not_contiguous(self) -> None:
        with pytest.raises(UsageTypeError, match=r"^data must be contiguous in memory: pass bytes\(data\)$"):
            unmarshal_message(memoryview(new_message(b"x"))[::2])

    @pytest.mark.parametrize("value", ["text", 5, None, object(), [1, 2]])
    def test_not_bytes_like(self, value: Any) -> None:
        text = f"^value must be bytes-like, got {type(value).__name__}$"
        with pytest.raises(UsageTypeError, match=text):
            new_message(value)
        with pytest.raises(UsageTypeError, match=text.replace("value", "data")):
            unmarshal_message(value)

    def test_released(self) -> None:
        view = memoryview(b"abc")
        view.release()
        with pytest.raises(UsageError, match=r"^value must be a readable buffer: .*released"):
            new_message(view)
        with pytest.raises(UsageError, match=r"^key must be a readable buffer: .*released"):
            new_message(b"", key=view)

    def test_closed(self) -> None:
        area = mmap.mmap(-1, 16)
        area.close()
        with pytest.raises(UsageError, match=r"^value must be a readable buffer: mmap closed"):
            new_message(area)


class Shown(Mapping[str, bytes]):
    """A mapping that is no dict."""

    def __getitem__(self, name: str) -> bytes:
        return {"a": b"1", "é": b"2"}[name]

    def __iter__(self) -> Iterator[str]:
        return iter(("a", "é"))

    def __len__(self) -> int:
        return 2


class TestHeaders:
    def test_any_mapping(self) -> None:
        assert new_message(b"", headers=Shown()) == new_message(b"", headers={"a": b"1", "é": b"2"})

    def test_name_of_a_subclass_of_str(self) -> None:
        class Name(str):
            __slots__ = ()

        assert new_message(b"", headers={Name("a"): b"1"}) == new_message(b"", headers={"a": b"1"})

    def test_the_server_crashes_on_longer_names(self) -> None:
        longest = "k" * 32_767
        assert unmarshal_message(new_message(b"", headers={longest: b"v"})).headers == {longest: b"v"}
        with pytest.raises(
            EnvelopeTooLargeError,
            match=r"'kkkkkkkkkkkkkkkkkkkk'\.\.\. must be at most 32767 bytes, got 32768",
        ) as caught:
            new_message(b"", headers={longest + "k": b"v"})
        assert caught.value.offset is None

    def test_names_are_measured_in_bytes(self) -> None:
        fits = "é" * 16_383 + "k"
        assert unmarshal_message(new_message(b"", headers={fits: b""})).headers == {fits: b""}
        with pytest.raises(EnvelopeTooLargeError, match="must be at most 32767 bytes, got 32768"):
            new_message(b"", headers={"é" * 16_384: b""})

    def test_the_server_counts_in_sixteen_bits(self) -> None:
        most = {f"k{i}": b"" for i in range(65_535)}
        assert len(unmarshal_message(new_message(b"", headers=most)).headers) == 65_535
        with pytest.raises(EnvelopeTooLargeError, match=r"^headers must be at most 65535, got 65536$"):
            new_message(b"", headers={**most, "one more": b""})

    def test_limits_hold_for_whole_messages(self) -> None:
        with pytest.raises(EnvelopeTooLargeError, match="must be at most 32767 bytes, got 32768"):
            marshal_message(Message(headers={"k" * 32_768: b""}))
        with pytest.raises(EnvelopeTooLargeError, match="headers must be at most 65535, got 65536"):
            marshal_message(Message(headers={f"k{i}": b"" for i in range(65_536)}))

    @pytest.mark.parametrize(
        ("headers", "text"),
        [
            ({"a": "text"}, "header 'a' must be bytes-like, got str"),
            ({"a": None}, "header 'a' must be bytes-like, got NoneType"),
            ({1: b"v"}, "header name must be str, got int"),
            ({b"a": b"v"}, "header name must be str, got bytes"),
            ([("a", b"v")], "headers must be a mapping, got list"),
            ("ab", "headers must be a mapping, got str"),
        ],
    )
    def test_wrong_types(self, headers: Any, text: str) -> None:
        for call in (lambda: new_message(b"", headers=headers), lambda: Message(headers=headers)):
            with pytest.raises(UsageTypeError) as caught:
                call()
            assert str(caught.value) == text

    def test_lone_surrogate(self) -> None:
        with pytest.raises(
            UsageError,
            match=r"^header name must not contain a lone surrogate, .* got 'a\\ud800'",
        ):
            new_message(b"", headers={"a\ud800": b""})

    def test_headers_that_change_while_other_arguments_are_read(self) -> None:
        headers: dict[Any, Any] = {"a": b"1"}

        class Policy:
            def __index__(self) -> int:
                headers["a"] = 12345
                return 0

        with pytest.raises(UsageTypeError, match=r"^header 'a' must be bytes-like, got int$"):
            new_message(b"", headers=headers, ack_policy=Policy())  # type: ignore[arg-type]


class TestRefusals:
    @pytest.mark.parametrize(
        ("options", "kind", "text"),
        [
            ({"key": 5}, UsageTypeError, "key must be bytes-like, got int"),
            ({"key": "k"}, UsageTypeError, "key must be bytes-like, got str"),
            ({"ack_inbox": b"i"}, UsageTypeError, "ack_inbox must be str, got bytes"),
            ({"correlation_id": 7}, UsageTypeError, "correlation_id must be str, got int"),
            (
                {"ack_inbox": "\udfff"},
                UsageError,
                "ack_inbox must not contain a lone surrogate, which UTF-8 cannot encode, got '\\udfff'",
            ),
            ({"ack_policy": 3}, UsageError, "ack_policy must be one of LEADER, ALL, NONE, got 3"),
            ({"ack_policy": -1}, UsageError, "ack_policy must be one of LEADER, ALL, NONE, got -1"),
            ({"ack_policy": AckPolicy(9)}, UsageError, "ack_policy must be one of LEADER, ALL, NONE, got 9"),
            ({"ack_policy": 2**31}, UsageError, "ack_policy must fit in 32 bits, got 2147483648"),
            ({"ack_policy": "ALL"}, UsageTypeError, "ack_policy must be an integer, got str"),
            ({"ack_policy": None}, UsageTypeError, "ack_policy must be an integer, got NoneType"),
            (
                {"expected_offset": 2**63},
                UsageError,
                "expected_offset must fit in 64 bits, got 9223372036854775808",
            ),
            ({"expected_offset": 1.0}, UsageTypeError, "expected_offset must be an integer, got float"),
        ],
    )
    def test_text_names_the_value(self, options: dict[str, Any], kind: type[UsageError], text: str) -> None:
        with pytest.raises(UsageError) as caught:
            new_message(b"", **options)
        assert type(caught.value) is kind
        assert str(caught.value) == text

    def test_one_of_several_faults_is_named(self) -> None:
        wrong: dict[str, Any] = {
            "expected_offset": "",
            "key": 1,
            "ack_inbox": 1,
            "correlation_id": 1,
            "ack_policy": "",
            "value": "",
            "headers": 1,
        }
        for name in list(wrong):
            with pytest.raises(UsageTypeError, match=f"^{name} must be"):
                new_message(**{"value": b"", **wrong})
            del wrong[name]

    @pytest.mark.parametrize("other", [None, b"bytes", {"value": b""}])
    def test_marshal_takes_its_own_type_alone(self, other: Any) -> None:
        name = type(other).__name__
        with pytest.raises(UsageTypeError, match=f"^message must be a Message, got {name}$"):
            marshal_message(other)
        with pytest.raises(UsageTypeError, match=f"^ack must be an Ack, got {name}$"):
            marshal_ack(other)
        with pytest.raises(UsageTypeError, match=r"^ack must be an Ack, got Message$"):
            marshal_ack(Message())  # type: ignore[arg-type]


class TestWholeMessages:
    def test_every_field(self) -> None:
        message = Message(
            b"v",
            key=b"k",
            headers={"h": b"w"},
            offset=1,
            timestamp_ns=2,
            stream="s",
            partition=3,
            subject="t",
            reply_subject="r",
            ack_inbox="i",
            correlation_id="c",
            ack_policy=-1,
        )
        made = marshal_message(message)
        assert payload_of(made) == (
            "0801" + "12016b" + "1a0176" + "2002" + "2a0173" + "3003" + "3a0174" + "420172"
            "4a060a0168120177" + "520169" + "5a0163" + "60ffffffffffffffffff01"
        )
        assert unmarshal_message(made) == message

    def test_every_field_of_an_ack(self) -> None:
        ack = Ack(
            stream="s",
            partition_subject="p",
            msg_subject="m",
            offset=1,
            ack_inbox="i",
            correlation_id="c",
            ack_policy=2,
            reception_timestamp_ns=3,
            commit_timestamp_ns=4,
            error=5,
        )
        made = marshal_ack(ack)
        assert made.hex() == (
            "b90e43b400080001" + "0a0173" + "120170" + "1a016d" + "2001" + "2a0169" + "320163" + "3802"
            "4003" + "4804" + "5005"
        )
        assert unmarshal_ack(made) == ack

    def test_negative_partition_takes_ten_bytes(self) -> None:
        made = marshal_message(Message(partition=-1))
        assert payload_of(made) == "30ffffffffffffffffff01"
        assert unmarshal_message(made).partition == -1

    def test_defaults_are_left_out(self) -> None:
        assert marshal_message(Message()).hex() == HEAD
        assert marshal_ack(Ack()).hex() == "b90e43b400080001"

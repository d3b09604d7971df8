"""Message and Ack: read-only values that compare, hash, show, copy and pickle."""

from __future__ import annotations

import copy
import inspect
import os
import pickle
import subprocess
import sys
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

import pytest

from liftenvelope._native import BACKEND, values
from liftenvelope.envelope import Ack, AckError, AckPolicy, Message, MessageType, marshal_ack, unmarshal_ack
from liftenvelope.errors import (
    EncryptionFailedError,
    IncorrectOffsetError,
    MessageTooLargeError,
    PublishError,
    UsageError,
    UsageTypeError,
)

MESSAGE_FIELDS: dict[str, Any] = {
    "value": b"v",
    "key": b"k",
    "headers": {"h": b"w"},
    "offset": -7,
    "timestamp_ns": 1_700_000_000_123_456_789,
    "stream": "s",
    "partition": 3,
    "subject": "t",
    "reply_subject": "r",
    "ack_inbox": "i",
    "correlation_id": "c",
    "ack_policy": AckPolicy.NONE,
}
ACK_FIELDS: dict[str, Any] = {
    "stream": "s",
    "partition_subject": "p",
    "msg_subject": "m",
    "offset": 2**40,
    "ack_inbox": "i",
    "correlation_id": "c",
    "ack_policy": AckPolicy.ALL,
    "reception_timestamp_ns": 1,
    "commit_timestamp_ns": 2,
    "error": AckError(99),
}
WHOLE = [(Message, MESSAGE_FIELDS), (Ack, ACK_FIELDS)]
KINDS = pytest.mark.parametrize(("kind", "fields"), WHOLE, ids=["Message", "Ack"])


class TestFields:
    @KINDS
    def test_kept_as_given(self, kind: Any, fields: dict[str, Any]) -> None:
        value = kind(**fields)
        for name, given in fields.items():
            assert getattr(value, name) == given
        assert list(fields) == list(inspect.signature(kind).parameters)

    def test_defaults(self) -> None:
        assert (Message().value, Message().key, dict(Message().headers)) == (b"", b"", {})
        assert Message(key=None, headers=None, ack_inbox=None, correlation_id=None) == Message()
        assert (Message().ack_policy, Ack().ack_policy, Ack().error) == (
            AckPolicy.LEADER,
            AckPolicy.LEADER,
            AckError.OK,
        )

    def test_only_the_value_goes_without_its_name(self) -> None:
        assert Message(b"v").value == b"v"
        with pytest.raises(TypeError):
            Message(b"v", b"k")  # type: ignore[call-arg]
        with pytest.raises(TypeError):
            Ack("s")  # type: ignore[call-arg]
        with pytest.raises(TypeError):
            Ack(value=b"v")  # type: ignore[call-arg]

    def test_numbers_become_members(self) -> None:
        message = Message(ack_policy=1)
        assert message.ack_policy is AckPolicy.ALL
        ack = Ack(ack_policy=2, error=4)
        assert (ack.ack_policy, ack.error) == (AckPolicy.NONE, AckError.ENCRYPTION)
        assert type(Ack(error=-5).error) is AckError

    def test_anything_with_an_index_is_an_integer(self) -> None:
        class Offset:
            def __index__(self) -> int:
                return 5

        assert Message(offset=Offset(), partition=Offset()) == Message(offset=5, partition=5)
        assert type(Message(offset=True).offset) is int

    def test_headers_are_a_copy_that_can_not_be_changed(self) -> None:
        given = {"a": b"1"}
        message = Message(headers=given)
        given["b"] = b"2"
        assert message.headers == {"a": b"1"}
        assert isinstance(message.headers, MappingProxyType)
        assert isinstance(Message().headers, MappingProxyType)
        with pytest.raises(TypeError):
            message.headers["c"] = b"3"  # type: ignore[index]

    @pytest.mark.parametrize(
        ("field", "wrong", "kind", "text"),
        [
            ("value", "v", UsageTypeError, "value must be bytes-like, got str"),
            ("key", 1, UsageTypeError, "key must be bytes-like, got int"),
            ("headers", 1, UsageTypeError, "headers must be a mapping, got int"),
            ("offset", 2**63, UsageError, "offset must fit in 64 bits, got 9223372036854775808"),
            ("offset", -(2**63) - 1, UsageError, "offset must fit in 64 bits, got -9223372036854775809"),
            ("timestamp_ns", 1.5, UsageTypeError, "timestamp_ns must be an integer, got float"),
            ("partition", 2**31, UsageError, "partition must fit in 32 bits, got 2147483648"),
            ("stream", None, UsageTypeError, "stream must be str, got NoneType"),
            ("subject", b"s", UsageTypeError, "subject must be str, got bytes"),
            (
                "reply_subject",
                "\ud800",
                UsageError,
                "reply_subject must not contain a lone surrogate, which UTF-8 cannot encode, got '\\ud800'",
            ),
            ("ack_inbox", 1, UsageTypeError, "ack_inbox must be str, got int"),
            ("correlation_id", 1, UsageTypeError, "correlation_id must be str, got int"),
            ("ack_policy", 2**31, UsageError, "ack_policy must fit in 32 bits, got 2147483648"),
            ("ack_policy", "ALL", UsageTypeError, "ack_policy must be an integer, got str"),
        ],
    )
    def test_refused_by_a_message(self, field: str, wrong: Any, kind: type[UsageError], text: str) -> None:
        with pytest.raises(UsageError) as caught:
            Message(**{field: wrong})
        assert type(caught.value) is kind
        assert str(caught.value) == text

    @pytest.mark.parametrize("field", list(ACK_FIELDS))
    def test_refused_by_an_ack(self, field: str) -> None:
        wrong: dict[str, Any] = {field: b""}
        with pytest.raises(UsageTypeError, match=f"^{field} must be "):
            Ack(**wrong)
        if isinstance(ACK_FIELDS[field], int):
            wrong = {field: 2**70}
            with pytest.raises(UsageError, match=f"^{field} must fit in (32|64) bits, got {2**70}$"):
                Ack(**wrong)


class TestReadOnly:
    @KINDS
    def test_attributes(self, kind: Any, fields: dict[str, Any]) -> None:
        value = kind(**fields)
        for name, given in fields.items():
            with pytest.raises(AttributeError):
                setattr(value, name, given)
            with pytest.raises(AttributeError):
                delattr(value, name)
            assert getattr(value, name) == given
        with pytest.raises(AttributeError):
            value.other = 1
        for name in ("timestamp", "reception_timestamp", "commit_timestamp"):
            with pytest.raises(AttributeError):
                setattr(value, name, None)

    @KINDS
    def test_init_once(self, kind: Any, fields: dict[str, Any]) -> None:
        value = kind(**fields)
        with pytest.raises(AttributeError, match="read-only"):
            value.__init__()
        assert value == kind(**fields)
        if kind is Ack:
            read = unmarshal_ack(marshal_ack(value))
            with pytest.raises(AttributeError, match="read-only"):
                read.__init__(stream="other")

    @KINDS
    def test_final(self, kind: Any, fields: dict[str, Any]) -> None:
        with pytest.raises(TypeError, match=f"type '.*{kind.__name__}' is not an acceptable base type"):
            type("Sub", (kind,), {})

    @KINDS
    def test_no_dict(self, kind: Any, fields: dict[str, Any]) -> None:
        assert not hasattr(kind(**fields), "__dict__")


class TestCompare:
    @KINDS
    def test_equal_by_value(self, kind: Any, fields: dict[str, Any]) -> None:
        one, other = kind(**fields), kind(**fields)
        assert one == other
        assert not one != other  # noqa: SIM202 - __ne__ is what is tested
        assert hash(one) == hash(other)
        assert len({one, other}) == 1

    @KINDS
    def test_every_field_counts(self, kind: Any, fields: dict[str, Any]) -> None:
        whole = kind(**fields)
        for name in fields:
            rest = {key: value for key, value in fields.items() if key != name}
            assert kind(**rest) != whole, name

    @KINDS
    def test_other_types(self, kind: Any, fields: dict[str, Any]) -> None:
        value = kind(**fields)
        assert value != fields
        assert value != None  # noqa: E711 - the operator is what is tested
        assert value not in (Message(), Ack())

        class Anything:
            def __eq__(self, other: object) -> bool:
                return True

            __hash__ = None  # type: ignore[assignment]

        assert value == Anything()


class TestShow:
    def test_what_is_set(self) -> None:
        assert repr(Message()) == "Message(ack_policy=AckPolicy.LEADER)"
        assert repr(Ack()) == "Ack(ack_policy=AckPolicy.LEADER, error=AckError.OK)"
        assert repr(Message(b"v", headers={"a": b"1"}, offset=-1)) == (
            "Message(value=b'v', headers={'a': b'1'}, offset=-1, ack_policy=AckPolicy.LEADER)"
        )
        assert repr(Ack(stream="s", error=99)) == (
            "Ack(stream='s', ack_policy=AckPolicy.LEADER, error=AckError.UNRECOGNIZED_99)"
        )

    def test_long_bytes_are_cut(self) -> None:
        assert repr(Message(b"x" * 64)).startswith(f"Message(value={b'x' * 64!r},")
        assert repr(Message(b"x" * 65)).startswith(f"Message(value=<65 bytes: {b'x' * 32!r}...>,")


#: A list of a Message and an Ack as version 0.1.0 pickled it, with the path of a module that has moved since.
PICKLED_BY_0_1 = bytes.fromhex(
    "80025d710028636c696674656e76656c6f70652e5f76616c7565735f70790a72656275696c640a71012858070000004d6573"
    "736167657102635f636f646563730a656e636f64650a7103580100000076710458060000006c6174696e3171058671065271"
    "07680358010000006b7108680586710952710a7d710b580100000061710c6803580100000062710d680586710e52710f734b"
    "034b00580000000071104b006810681068106810636c696674656e76656c6f70652e74797065730a41636b506f6c6963790a"
    "71114b00857112527113747114527115680128580300000041636b71165801000000737117681068104b076810681068134b"
    "004b00636c696674656e76656c6f70652e74797065730a41636b4572726f720a71184b0085711952711a74711b52711c652e"
)


class TestCopy:
    @KINDS
    def test_a_copy_is_the_same(self, kind: Any, fields: dict[str, Any]) -> None:
        value = kind(**fields)
        assert copy.copy(value) is value
        assert copy.deepcopy([value])[0] is value

    @KINDS
    @pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
    def test_pickle(self, kind: Any, fields: dict[str, Any], protocol: int) -> None:
        for value in (kind(**fields), kind()):
            again = pickle.loads(pickle.dumps(value, protocol))
            assert again == value
            assert type(again) is kind

    def test_pickle_is_independent_of_the_twin(self) -> None:
        for kind, fields in WHOLE:
            assert b"liftenvelope._" not in pickle.dumps(kind(**fields))
        assert Message.__reduce__(Message())[0] is values.rebuild

    def test_pickle_of_the_first_version_loads(self) -> None:
        expected = [Message(b"v", key=b"k", headers={"a": b"b"}, offset=3), Ack(stream="s", offset=7)]
        assert pickle.loads(PICKLED_BY_0_1) == expected

    def test_pickled_here_loads_in_the_other_twin(self) -> None:
        sent = [kind(**fields) for kind, fields in WHOLE]
        answer = in_the_other_twin(
            "import pickle, sys; from liftenvelope import _native\n"
            "values = pickle.loads(bytes.fromhex(sys.argv[1]))\n"
            "assert all(type(value).__module__ == _native.env.Ack.__module__ for value in values)\n"
            "print(_native.BACKEND, pickle.dumps(values).hex())",
            pickle.dumps(sent).hex(),
        )
        backend, data = answer.split()
        assert {backend, BACKEND} == {"cython", "python"}
        assert pickle.loads(bytes.fromhex(data)) == sent
        assert repr(pickle.loads(bytes.fromhex(data))) == repr(sent)


def in_the_other_twin(program: str, *arguments: str) -> str:
    """Return the output of a program that runs with the other twin."""
    other = {"cython": "LIFTENVELOPE_NO_EXTENSIONS", "python": "LIFTENVELOPE_REQUIRE_EXTENSIONS"}[BACKEND]
    env = {name: value for name, value in os.environ.items() if not name.startswith("LIFTENVELOPE_")}
    env |= {other: "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-W", "error", "-c", program, *arguments]
    return subprocess.run(command, env=env, check=True, capture_output=True, text=True, timeout=150).stdout


class TestInstants:
    def test_zero_is_none(self) -> None:
        assert Message().timestamp is None
        assert Ack().reception_timestamp is None
        assert Ack().commit_timestamp is None

    @pytest.mark.parametrize(
        ("ns", "instant"),
        [
            (1, datetime(1970, 1, 1, tzinfo=UTC)),
            (999, datetime(1970, 1, 1, tzinfo=UTC)),
            (1000, datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC)),
            (-1, datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)),
            (1_700_000_000_123_456_789, datetime(2023, 11, 14, 22, 13, 20, 123_456, tzinfo=UTC)),
            (2**63 - 1, datetime(2262, 4, 11, 23, 47, 16, 854_775, tzinfo=UTC)),
            (-(2**63), datetime(1677, 9, 21, 0, 12, 43, 145_224, tzinfo=UTC)),
        ],
    )
    def test_cut_to_microseconds(self, ns: int, instant: datetime) -> None:
        ack = Ack(reception_timestamp_ns=ns, commit_timestamp_ns=ns)
        assert Message(timestamp_ns=ns).timestamp == instant
        assert (ack.reception_timestamp, ack.commit_timestamp) == (instant, instant)
        assert instant.tzinfo is UTC


class TestRaiseForError:
    def test_ok(self) -> None:
        assert Ack(stream="s").raise_for_error() is None  # type: ignore[func-returns-value]

    @pytest.mark.parametrize(
        ("code", "kind", "reason"),
        [
            (1, PublishError, "the server failed to store the message and gave no reason"),
            (2, IncorrectOffsetError, "the expected offset is not the next one of the partition"),
            (3, MessageTooLargeError, "the message is larger than the server replicates"),
            (4, EncryptionFailedError, "the server could not encrypt the message"),
            (5, PublishError, "the server did not store the message"),
            (-1, PublishError, "the server did not store the message"),
        ],
    )
    def test_each_code(self, code: int, kind: type[PublishError], reason: str) -> None:
        ack = unmarshal_ack(marshal_ack(Ack(stream="s", correlation_id="c", error=code)))
        with pytest.raises(PublishError) as caught:
            ack.raise_for_error()
        error = caught.value
        assert type(error) is kind
        assert (error.code, error.ack) == (code, ack)
        assert type(error.code) is int
        assert error.description == f"{reason} (stream 's', correlation id 'c')"
        assert str(error) == f"{error.description} (code {code})"


class TestEnums:
    @pytest.mark.parametrize("kind", [AckPolicy, AckError, MessageType])
    def test_open(self, kind: type[AckError]) -> None:
        unknown = kind(77)
        assert (unknown, unknown.name, unknown.value) == (77, "UNRECOGNIZED_77", 77)
        assert unknown == kind(77)
        assert hash(unknown) == hash(kind(77))
        assert pickle.loads(pickle.dumps(unknown)) == unknown
        assert len(kind) == len(kind.__members__) < 77
        no_members: list[Any] = [2**31, -(2**31) - 1, "77", 1.5, None]
        for out_of_range in no_members:
            with pytest.raises(ValueError, match="is not a valid"):
                kind(out_of_range)

    def test_numbers_of_the_api(self) -> None:
        assert [policy.name for policy in AckPolicy] == ["LEADER", "ALL", "NONE"]
        assert [error.name for error in AckError] == [
            "OK",
            "UNKNOWN",
            "INCORRECT_OFFSET",
            "TOO_LARGE",
            "ENCRYPTION",
        ]
        assert [kind.value for kind in MessageType] == list(range(15))

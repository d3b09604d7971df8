from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftenvelope.errors import UsageError, UsageTypeError
from liftenvelope.partition import (
    CustomPartitioner,
    KeyPartitioner,
    Partitioner,
    RoundRobinPartitioner,
    make_partitioner,
    partition_subject,
)

# CRCs that the real server and go-liftbridge compute (facts/liftbridge.md), and the check value of CRC-32.
CRCS = [(b"mycursor,foo,0", 399515354), (b"__group:g1,foo,0", 1447337264), (b"123456789", 0xCBF43926)]


def by_bits(data: bytes) -> int:
    """CRC-32 IEEE by its definition, one bit at a time."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0xEDB88320 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def first(key: bytes, value: bytes, partitions: int) -> int:
    return 0


class TestKey:
    @pytest.mark.parametrize(("key", "crc"), CRCS)
    @pytest.mark.parametrize("partitions", [1, 2, 3, 10, 2**31, 2**32])
    def test_vectors(self, key: bytes, crc: int, partitions: int) -> None:
        assert KeyPartitioner().partition("s", key, b"v", partitions) == crc % partitions

    def test_both_cursor_keys_share_a_partition_of_ten(self) -> None:
        assert [KeyPartitioner().partition("s", key, b"", 10) for key, _ in CRCS[:2]] == [4, 4]

    def test_high_bit_is_not_a_sign(self) -> None:
        # 3421780262 as int32 is -873187034, whose remainder in Go is -2.
        assert KeyPartitioner().partition("s", b"123456789", b"", 3) == 2

    def test_no_key_is_the_empty_key(self) -> None:
        assert KeyPartitioner().partition("s", None, b"v", 7) == 0
        assert KeyPartitioner().partition("s", b"", b"v", 7) == 0

    @given(st.binary(max_size=40), st.integers(1, 2**33))
    def test_is_crc_32_unsigned(self, key: bytes, partitions: int) -> None:
        assert KeyPartitioner().partition("s", key, b"v", partitions) == by_bits(key) % partitions

    @pytest.mark.parametrize("key", [bytearray(b"hello"), memoryview(b"hello")])
    def test_takes_bytes_like(self, key: Any) -> None:
        expected = KeyPartitioner().partition("s", b"hello", b"", 1000)
        assert KeyPartitioner().partition("s", key, b"", 1000) == expected

    def test_str_key(self) -> None:
        with pytest.raises(UsageTypeError, match="key must be bytes-like, got str"):
            KeyPartitioner().partition("s", "hello", b"", 3)  # type: ignore[arg-type]

    def test_key_that_is_not_contiguous(self) -> None:
        with pytest.raises(UsageTypeError, match="key must be contiguous"):
            KeyPartitioner().partition("s", memoryview(b"hello")[::2], b"", 3)  # type: ignore[arg-type]


class TestRoundRobin:
    def test_in_turn_from_zero_for_each_stream(self) -> None:
        turns = RoundRobinPartitioner()
        streams = ["a", "a", "b", "a", "b", "a"]
        assert [turns.partition(s, b"same", b"", 3) for s in streams] == [0, 1, 0, 2, 1, 0]

    def test_goes_on_when_partitions_are_added(self) -> None:
        turns = RoundRobinPartitioner()
        assert [turns.partition("a", None, b"", 2) for _ in range(3)] == [0, 1, 0]
        assert [turns.partition("a", None, b"", 5) for _ in range(3)] == [3, 4, 0]

    def test_turns_of_streams_used_once_are_not_kept(self) -> None:
        turns = RoundRobinPartitioner()
        for number in range(25_000):
            assert turns.partition("used", None, b"", 2**31) == number
            assert turns.partition(f"once {number}", None, b"", 2**31) == 0
        assert len(turns._counters) <= 10_000

    def test_a_refused_call_takes_no_turn(self) -> None:
        turns = RoundRobinPartitioner()
        with pytest.raises(UsageError):
            turns.partition("a", None, b"", 0)
        assert turns.partition("a", None, b"", 3) == 0


class TestCustom:
    def test_gets_key_value_and_partitions(self) -> None:
        calls: list[tuple[bytes, bytes, int]] = []

        def choose(key: bytes, value: bytes, partitions: int) -> int:
            calls.append((key, value, partitions))
            return 2

        partitioner = CustomPartitioner(choose)
        assert partitioner.partition("s", b"k", b"v", 3) == 2
        assert partitioner.partition("s", None, b"w", 4) == 2
        assert calls == [(b"k", b"v", 3), (b"", b"w", 4)]

    @pytest.mark.parametrize("choice", [-1, 3, 4, -(2**70), 2**70])
    def test_out_of_range_is_named(self, choice: int) -> None:
        with pytest.raises(UsageError, match=f"must return a partition from 0 to 2, got {choice}"):
            CustomPartitioner(lambda key, value, partitions: choice).partition("s", b"k", b"v", 3)

    @pytest.mark.parametrize("choice", ["1", 1.0, None, b"1"])
    def test_not_an_int_is_named(self, choice: Any) -> None:
        with pytest.raises(UsageTypeError, match="must return an integer") as caught:
            CustomPartitioner(lambda key, value, partitions: choice).partition("s", b"k", b"v", 3)
        assert repr(choice) in str(caught.value)

    def test_an_integer_of_another_type_becomes_an_int(self) -> None:
        class Number:
            def __index__(self) -> int:
                return 1

        choose: Any = lambda key, value, partitions: Number()  # noqa: E731
        chosen = CustomPartitioner(choose).partition("s", b"k", b"v", 3)
        assert type(chosen) is int
        assert chosen == 1

    def test_errors_of_the_function_come_out(self) -> None:
        def choose(key: bytes, value: bytes, partitions: int) -> int:
            raise LookupError("no region")

        with pytest.raises(LookupError, match="no region"):
            CustomPartitioner(choose).partition("s", b"k", b"v", 3)


@pytest.mark.parametrize("partitioner", [KeyPartitioner(), RoundRobinPartitioner(), CustomPartitioner(first)])
@pytest.mark.parametrize("partitions", [0, -1])
def test_partitions_must_be_positive(partitioner: Partitioner, partitions: int) -> None:
    with pytest.raises(UsageError, match=f"partitions must be at least 1, got {partitions}"):
        partitioner.partition("s", b"k", b"v", partitions)


class TestMake:
    def test_partitioner_is_made_by_name(self) -> None:
        assert isinstance(make_partitioner("key"), KeyPartitioner)
        assert isinstance(make_partitioner("round_robin"), RoundRobinPartitioner)

    def test_each_has_turns_of_its_own(self) -> None:
        assert [make_partitioner("round_robin").partition("s", None, b"", 3) for _ in range(2)] == [0, 0]

    def test_function(self) -> None:
        partitioner = make_partitioner(lambda key, value, partitions: partitions - 1)
        assert partitioner.partition("s", b"k", b"v", 5) == 4

    def test_function_is_checked(self) -> None:
        with pytest.raises(UsageError, match=r"must return a partition .* got 5"):
            make_partitioner(lambda key, value, partitions: partitions).partition("s", b"k", b"v", 5)

    @pytest.mark.parametrize("given", [KeyPartitioner(), RoundRobinPartitioner(), CustomPartitioner(first)])
    def test_partitioner_is_itself(self, given: Any) -> None:
        assert make_partitioner(given) is given

    @pytest.mark.parametrize("name", ["", "Key", "random", "round-robin"])
    def test_unknown_partitioner_name_is_refused(self, name: str) -> None:
        with pytest.raises(UsageError, match="got '" + name + "'") as caught:
            make_partitioner(name)
        assert not isinstance(caught.value, TypeError)

    @pytest.mark.parametrize("given", [None, 3, b"key", ["key"]])
    def test_partitioner_of_another_type_is_refused(self, given: Any) -> None:
        with pytest.raises(UsageTypeError, match="partition_by must be"):
            make_partitioner(given)


class TestSubject:
    @pytest.mark.parametrize(
        ("partition", "subject"), [(0, "foo.bar"), (1, "foo.bar.1"), (2, "foo.bar.2"), (10, "foo.bar.10")]
    )
    def test_subject(self, partition: int, subject: str) -> None:
        assert partition_subject("foo.bar", partition) == subject

    def test_negative(self) -> None:
        with pytest.raises(UsageError, match="partition must be at least 0, got -1"):
            partition_subject("foo", -1)

    def test_empty(self) -> None:
        with pytest.raises(UsageError, match="subject must not be empty"):
            partition_subject("", 0)

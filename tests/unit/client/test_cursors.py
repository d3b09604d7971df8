"""Cursor names and places, and the bookkeeping of checkpoints. No server here."""

from __future__ import annotations

import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

import liftenvelope
from liftenvelope.client._consuming.checkpoints import Checkpoints
from liftenvelope.client._cursors import cursor_partition
from liftenvelope.client.cursor_names import cursor_key
from liftenvelope.errors import UsageError, UsageTypeError


class TestKey:
    def test_is_id_stream_and_partition(self) -> None:
        assert cursor_key("mycursor", "foo", 0) == "mycursor,foo,0"
        assert cursor_key("__group:g1", "a.b", 12) == "__group:g1,a.b,12"

    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            (("", "foo", 0), "cursor_id must not be empty, got ''"),
            (("a,b", "foo", 0), "cursor_id must not have a comma, got 'a,b'"),
            (("a", "", 0), "stream must not be empty"),
            (("a", "f,oo", 0), "stream must not have a comma in its name to have cursors, got 'f,oo'"),
            (("a", "foo", -1), "partition must be at least 0, got -1"),
        ],
    )
    def test_refused(self, arguments: tuple[str, str, int], text: str) -> None:
        with pytest.raises(UsageError, match=text):
            cursor_key(*arguments)

    @pytest.mark.parametrize("arguments", [(7, "foo", 0), ("a", b"foo", 0), ("a", "foo", "0")])
    def test_wrong_types(self, arguments: tuple[str, str, int]) -> None:
        with pytest.raises(UsageTypeError):
            cursor_key(*arguments)

    @pytest.mark.parametrize(
        ("key", "crc"), [("mycursor,foo,0", 399515354), ("__group:g1,foo,0", 1447337264)]
    )
    def test_place_as_servers_have_it(self, key: str, crc: int) -> None:
        assert zlib.crc32(key.encode()) == crc
        assert cursor_partition(key, 10) == 4

    @given(st.text(min_size=1), st.integers(1, 100))
    def test_place_is_never_negative(self, key: str, partitions: int) -> None:
        assert 0 <= cursor_partition(key, partitions) < partitions


class TestArguments:
    @pytest.fixture
    def client(self) -> liftenvelope.Client:
        return liftenvelope.connect("127.0.0.1:1")

    @pytest.mark.parametrize("offset", [-1, 2**63, -5])
    async def test_offsets(self, client: liftenvelope.Client, offset: int) -> None:
        with pytest.raises(UsageError, match=rf"^offset must .* got {offset}"):
            await client.set_cursor("c", "foo", 0, offset)

    @pytest.mark.parametrize("offset", [True, "1", 1.0, None])
    async def test_no_offsets(self, client: liftenvelope.Client, offset: int) -> None:
        with pytest.raises(UsageTypeError, match="offset must be an integer"):
            await client.set_cursor("c", "foo", 0, offset)

    def test_checkpointer(self, client: liftenvelope.Client) -> None:
        with pytest.raises(UsageError, match=r"^every_messages must .* got 0"):
            client.checkpointer("c", "foo", every_messages=0)
        with pytest.raises(UsageError, match=r"^every_seconds must .* got 0"):
            client.checkpointer("c", "foo", every_seconds=0)
        with pytest.raises(UsageError, match=r"^cursor_id must .* got 'a,b'"):
            client.checkpointer("a,b", "foo")
        with pytest.raises(UsageError, match="not open"):
            client.checkpointer("c", "foo").processed(0, 1)

    @pytest.mark.parametrize("method", ["processed", "delivered"])
    @pytest.mark.parametrize(
        ("partition", "offset", "text"),
        [
            (-1, 5, "partition must be at least 0, got -1"),
            (True, 5, "partition must be an integer, got True"),
            ("0", 5, "partition must be an integer, got '0'"),
            (0, None, "offset must be given with a partition, got None"),
            (0, -1, "offset must be at least 0, got -1"),
            (0, 2**63, rf"offset must be at most {2**63 - 1}, got {2**63}"),
            (0, "5", "offset must be an integer, got '5'"),
        ],
    )
    async def test_places_of_a_checkpointer(
        self, client: liftenvelope.Client, method: str, partition: Any, offset: Any, text: str
    ) -> None:
        # Refused at once: the cursor is stored later, in the background.
        async with client.checkpointer("c", "foo") as checkpoints:
            with pytest.raises(UsageError, match=f"^{text}$"):
                getattr(checkpoints, method)(partition, offset)


class TestCheckpoints:
    def test_due_after_messages(self) -> None:
        checkpoints = Checkpoints[int](3, 10.0)
        assert [checkpoints.processed(0, offset, 0.0) for offset in (5, 6, 7)] == [True, False, True]
        assert checkpoints.due(0.0) == [(0, 7)]
        checkpoints.stored(0, 7, 0.0)
        assert checkpoints.due(100.0) == []
        assert checkpoints.wait(100.0) is None

    def test_due_after_seconds_from_the_first(self) -> None:
        checkpoints = Checkpoints[int](1000, 10.0)
        checkpoints.processed(0, 5, 1.0)
        checkpoints.processed(0, 6, 9.0)
        assert checkpoints.wait(2.0) == 9.0
        assert checkpoints.due(10.9) == []
        assert checkpoints.due(11.0) == [(0, 6)]

    def test_what_is_processed_while_it_is_stored_waits_its_own_time(self) -> None:
        checkpoints = Checkpoints[int](1000, 10.0)
        checkpoints.processed(0, 5, 0.0)
        checkpoints.processed(0, 6, 10.0)
        checkpoints.stored(0, 5, 10.0)
        assert checkpoints.pending() == [(0, 6)]
        assert checkpoints.wait(10.0) == 10.0

    def test_never_by_itself(self) -> None:
        checkpoints = Checkpoints[int](None, None)
        for offset in range(10_000):
            checkpoints.processed(0, offset, float(offset))
        assert checkpoints.wait(1e9) is None
        assert checkpoints.due(1e9) == []
        assert checkpoints.pending() == [(0, 9_999)]

    def test_never_backwards(self) -> None:
        checkpoints = Checkpoints[int](1, 1.0)
        checkpoints.stored(0, 10, 0.0)  # somebody else was further
        assert not checkpoints.processed(0, 9, 0.0)
        assert checkpoints.pending() == []
        checkpoints.processed(0, 12, 0.0)
        assert not checkpoints.processed(0, 11, 0.0)
        assert checkpoints.pending() == [(0, 12)]

    def test_failures_wait_longer_and_longer(self) -> None:
        checkpoints = Checkpoints[int](1, 1.0)
        checkpoints.processed(0, 1, 0.0)
        waits = []
        for _ in range(9):
            checkpoints.failed(0, 0.0)
            waits.append(checkpoints.wait(0.0))
        assert waits == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0])

    def test_one_partition_does_not_hold_up_another(self) -> None:
        checkpoints = Checkpoints[int](1, 1.0)
        checkpoints.processed(0, 1, 0.0)
        checkpoints.failed(0, 0.0)
        checkpoints.processed(1, 1, 0.0)
        assert checkpoints.due(0.0) == [(1, 1)]

    def test_a_gap_in_what_was_delivered_holds_the_cursor(self) -> None:
        checkpoints = Checkpoints[int](1, 1.0)
        for offset in (3, 4, 7):
            checkpoints.delivered(0, offset)
        checkpoints.processed(0, 7, 0.0)
        checkpoints.processed(0, 4, 0.0)
        assert checkpoints.pending() == []
        checkpoints.processed(0, 3, 0.0)
        assert checkpoints.pending() == [(0, 7)]

    def test_forget(self) -> None:
        checkpoints = Checkpoints[int](1, 1.0)
        checkpoints.processed(0, 100, 0.0)
        checkpoints.stored(0, 100, 0.0)
        checkpoints.forget(0)
        assert checkpoints.last(0) is None
        checkpoints.processed(0, 5, 0.0)
        assert checkpoints.pending() == [(0, 5)]


class CheckpointsMachine(RuleBasedStateMachine):
    """Messages that are delivered in order and processed in any order, with stores that fail at times."""

    def __init__(self) -> None:
        super().__init__()
        self.checkpoints = Checkpoints[int](4, 5.0)
        self.now = 0.0
        self.next = 0
        self.open: list[int] = []
        self.stored = -1

    @rule(step=st.integers(1, 3))
    def deliver(self, step: int) -> None:
        self.next += step  # compacted logs have gaps
        self.checkpoints.delivered(0, self.next)
        self.open.append(self.next)

    @rule(data=st.data())
    def process(self, data: st.DataObject) -> None:
        if self.open:
            offset = data.draw(st.sampled_from(self.open))
            self.open.remove(offset)
            self.checkpoints.processed(0, offset, self.now)

    @rule(seconds=st.floats(0, 10))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @rule(works=st.booleans(), at_once=st.booleans())
    def store(self, works: bool, at_once: bool) -> None:
        for key, offset in self.checkpoints.pending() if at_once else self.checkpoints.due(self.now):
            assert offset > self.stored
            if works:
                self.stored = offset
                self.checkpoints.stored(key, offset, self.now)
            else:
                self.checkpoints.failed(key, self.now)

    @invariant()
    def nothing_unprocessed_is_stored(self) -> None:
        assert all(offset > self.stored for offset in self.open)

    @invariant()
    def waits_end(self) -> None:
        wait = self.checkpoints.wait(self.now)
        if wait is not None:
            assert wait <= 5.0 + 1e-9
            assert self.checkpoints.due(self.now + wait + 1e-6)

    @invariant()
    def nothing_is_forgotten(self) -> None:
        if not self.open and self.next:
            assert self.stored == self.next or self.checkpoints.pending() == [(0, self.next)]


TestCheckpointsMachine = CheckpointsMachine.TestCase

"""Starts and stops of reads."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftenvelope.client.positions import (
    At,
    Cursor,
    StartAt,
    StopAt,
    Timestamp,
    parse_start,
    parse_stop,
)
from liftenvelope.errors import UsageError, UsageTypeError

NOW = 1_700_000_000_123_456_789
LARGEST = 2**63 - 1


class NoOffset(tzinfo):
    """A time zone that does not say what it is."""

    def utcoffset(self, dt: datetime | None) -> None:
        return None

    dst = utcoffset

    def tzname(self, dt: datetime | None) -> str:
        return "nowhere"


class TestStart:
    @pytest.mark.parametrize(
        ("given_start", "start"),
        [
            ("new", StartAt(At.NEW)),
            ("earliest", StartAt(At.EARLIEST)),
            ("latest", StartAt(At.LATEST)),
            (0, StartAt(At.OFFSET, 0)),
            (LARGEST, StartAt(At.OFFSET, LARGEST)),
            (Timestamp(5), StartAt(At.TIME, 5)),
            (datetime(1970, 1, 1, tzinfo=UTC), StartAt(At.TIME, 0)),
            (datetime(1970, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))), StartAt(At.TIME, 0)),
            (
                datetime(2023, 11, 14, 22, 13, 20, 123456, tzinfo=UTC),
                StartAt(At.TIME, 1_700_000_000_123_456_000),
            ),
            (timedelta(0), StartAt(At.TIME, NOW)),
            (timedelta(microseconds=1), StartAt(At.TIME, NOW - 1000)),
            (timedelta(hours=1), StartAt(At.TIME, NOW - 3_600_000_000_000)),
            (timedelta.max, StartAt(At.TIME, 0)),
            (Cursor("c"), StartAt(At.CURSOR, cursor=Cursor("c"))),
        ],
    )
    def test_kinds(self, given_start: Any, start: StartAt) -> None:
        assert parse_start(given_start, NOW) == start

    @pytest.mark.parametrize(
        "start",
        [
            -1,
            2**63,
            "",
            "NEW",
            "5",
            datetime(2023, 1, 1),
            datetime(2023, 1, 1, tzinfo=NoOffset()),
            datetime(1969, 12, 31, tzinfo=UTC),
            datetime(2263, 1, 1, tzinfo=UTC),
            datetime.max.replace(tzinfo=UTC),
            timedelta(microseconds=-1),
        ],
    )
    def test_out_of_range(self, start: Any) -> None:
        with pytest.raises(UsageError, match=r"^start must .* got "):
            parse_start(start, NOW)

    @pytest.mark.parametrize("start", [None, True, False, 1.5, b"new", [], object()])
    def test_start_of_another_type_is_refused(self, start: Any) -> None:
        with pytest.raises(UsageTypeError, match=r"^start must .* got "):
            parse_start(start, NOW)

    @given(st.datetimes(datetime(1970, 1, 1), datetime(2262, 1, 1)), st.integers(-12, 14))
    def test_times_keep_their_microseconds(self, moment: datetime, hours: int) -> None:
        there = moment.replace(tzinfo=UTC).astimezone(timezone(timedelta(hours=hours)))
        whole = (moment - datetime(1970, 1, 1)) // timedelta(microseconds=1)
        assert parse_start(there, NOW) == StartAt(At.TIME, whole * 1000)

    @given(st.timedeltas(timedelta(0), timedelta(days=20_000)))
    def test_times_ago_keep_their_microseconds(self, ago: timedelta) -> None:
        found = parse_start(ago, NOW).number
        assert found == max(0, NOW - (ago // timedelta(microseconds=1)) * 1000)


class TestStop:
    @pytest.mark.parametrize(
        ("given_stop", "stop"),
        [
            (None, None),
            ("latest", StopAt(At.LATEST)),
            (0, StopAt(At.OFFSET, 0)),
            (LARGEST, StopAt(At.OFFSET, LARGEST)),
            (Timestamp(NOW), StopAt(At.TIME, NOW)),
            (datetime(1970, 1, 1, tzinfo=UTC), StopAt(At.TIME, 0)),
        ],
    )
    def test_kinds(self, given_stop: Any, stop: StopAt | None) -> None:
        assert parse_stop(given_stop, NOW) == stop

    @pytest.mark.parametrize(
        "stop",
        [
            -1,
            2**63,
            "",
            "new",
            "earliest",
            Timestamp(NOW + 1),
            datetime.max.replace(tzinfo=UTC),
            datetime(2020, 1, 1),
        ],
    )
    def test_out_of_range(self, stop: Any) -> None:
        with pytest.raises(UsageError, match=r"^stop must .* got "):
            parse_stop(stop, NOW)

    @pytest.mark.parametrize("stop", [True, 1.5, timedelta(1), Cursor("c"), b"latest"])
    def test_stop_of_another_type_is_refused(self, stop: Any) -> None:
        with pytest.raises(UsageTypeError, match=r"^stop must .* got "):
            parse_stop(stop, NOW)


class TestValues:
    @pytest.mark.parametrize("ns", [-1, 2**63])
    def test_timestamps_out_of_range(self, ns: int) -> None:
        with pytest.raises(UsageError, match="ns must"):
            Timestamp(ns)

    @pytest.mark.parametrize("ns", [1.5, "1", True, None])
    def test_timestamps_of_another_type(self, ns: Any) -> None:
        with pytest.raises(UsageTypeError, match="ns must"):
            Timestamp(ns)

    @pytest.mark.parametrize("default", ["", "now", None, 0])
    def test_cursors_that_begin_nowhere(self, default: Any) -> None:
        with pytest.raises(UsageError, match="default must be one of"):
            Cursor("c", default=default)

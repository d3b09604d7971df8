"""Times of advisories."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from liftenvelope.jetstream import read_advisory


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2026-01-02T03:04:05Z", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("2026-01-02T03:04:05.5Z", datetime(2026, 1, 2, 3, 4, 5, 500_000, tzinfo=UTC)),
        ("2026-01-02T03:04:05.123456789Z", datetime(2026, 1, 2, 3, 4, 5, 123_456, tzinfo=UTC)),
        ("2026-01-02T03:04:05.123456789+02:00", datetime(2026, 1, 2, 1, 4, 5, 123_456, tzinfo=UTC)),
        ("2026-01-02T03:04:05.123456789-07:30", datetime(2026, 1, 2, 10, 34, 5, 123_456, tzinfo=UTC)),
        ("2026-01-02T03:04:05+02:00", datetime(2026, 1, 2, 1, 4, 5, tzinfo=UTC)),
        ("2026-01-02T03:04:05", None),  # no time zone
        ("2026-01-02", None),
        ("0001-01-01T00:00:00Z", None),  # Go's zero time
        ("0001-01-01T00:00:00+02:00", None),
        ("soon", None),
        (1767323045, None),
    ],
)
def test_time_of_an_advisory_is_in_utc(text: object, time: datetime | None) -> None:
    payload = {"type": "io.nats.jetstream.advisory.v1.brand_new", "timestamp": text}
    found = read_advisory(json.dumps(payload).encode()).time
    assert found == time
    assert found is None or found.tzinfo is UTC

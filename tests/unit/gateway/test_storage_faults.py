"""A storage fault of JetStream is reported once per cause and minute."""

from __future__ import annotations

import pytest

from liftenvelope.gateway._partitions.storage_faults import StorageFaults


def test_each_cause_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now = 1000.0
    faults = StorageFaults(clock=lambda: now)
    for _ in range(3):
        faults.note("orders", 1, "no space left on device")
        faults.note("others", 0, "no space left on device")
    faults.note("orders", 1, "insufficient resources")
    assert len(caplog.records) == 2
    now += 59.0
    faults.note("orders", 1, "no space left on device")
    assert len(caplog.records) == 2
    now += 1.0
    faults.note("orders", 1, "no space left on device")
    assert len(caplog.records) == 3
    assert "stream orders, partition 1" in caplog.records[2].message


def test_cause_is_told_for_a_minute() -> None:
    now = 1000.0
    faults = StorageFaults(clock=lambda: now)
    assert faults.cause("orders", 0) == ""
    faults.note("orders", 0, "full")
    now += 59.0
    assert (faults.cause("orders", 0), faults.cause("orders", 1)) == ("full", "")
    now += 1.0
    assert faults.cause("orders", 0) == ""


def test_number_of_known_partitions_is_bounded() -> None:
    faults = StorageFaults()
    for partition in range(10_001):
        faults.note("orders", partition, "full")
    assert faults.cause("orders", 0) == ""
    assert faults.cause("orders", 10_000) == "full"
    assert faults.count == 10_001

"""Alerts of a snapshot. Sans-io."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from liftenvelope.monitor._snapshots import Snapshot, StreamSample

__all__ = ["MonitorAlert", "alerts"]

#: Share of a storage limit from which on there is an alert.
_NEARLY_FULL: Final = 0.9


@dataclass(frozen=True, slots=True)
class MonitorAlert:
    """Something that needs attention.

    Attributes:
        severity: ``error`` or ``warning``.
        kind: ``stream``, ``consumer``, ``group``, ``broker``, ``gateway``, ``storage`` or ``sample``.
        name: Name of the thing.
        text: What is wrong.
    """

    severity: str
    kind: str
    name: str
    text: str


def alerts(snapshot: Snapshot) -> list[MonitorAlert]:
    """Return the alerts of a snapshot, errors first.

    Example:
        >>> from liftenvelope.monitor import PartitionSample, StreamSample
        >>> part = PartitionSample(number=0, at=1.0, leader="")
        >>> orders = StreamSample(name="orders", partitions=[part])
        >>> [one.text for one in alerts(Snapshot(at=1.0, kind="liftbridge", streams={"orders": orders}))]
        ['partition 0 has no leader']
    """
    found = [*_of_sample(snapshot), *_of_storage(snapshot), *_of_gateways(snapshot), *_of_readers(snapshot)]
    for stream in snapshot.streams.values():
        found += _of_stream(stream)
    return sorted(found, key=lambda one: one.severity != "error")


def _of_sample(snapshot: Snapshot) -> Iterator[MonitorAlert]:
    for fault in snapshot.faults:
        yield MonitorAlert("error", "sample", fault.part, f"sampling of {fault.part} failed: {fault.text}")
    for name in snapshot.missing:
        yield MonitorAlert("error", "stream", name, "no server answers for the stream: it has no leader")
    for address, status in snapshot.brokers.items():
        if status != "serving":
            yield MonitorAlert("error", "broker", address, f"broker is {status.replace('_', ' ')}")
    for what, count in snapshot.left_out.items():
        if count:
            text = f"{what} beyond the limit are not shown: {count:,}"
            yield MonitorAlert("warning", "sample", what, text)


def _of_storage(snapshot: Snapshot) -> Iterator[MonitorAlert]:
    used = snapshot.storage
    if used is None:
        return
    for name, have, most in (("disk", used.disk, used.max_disk), ("memory", used.memory, used.max_memory)):
        if most and have >= _NEARLY_FULL * most:
            yield MonitorAlert(
                "warning", "storage", name, f"{have / most:.0%} of the account's {name} is used"
            )


def _of_gateways(snapshot: Snapshot) -> Iterator[MonitorAlert]:
    for one in snapshot.gateways.values():
        if one.figures is not None and not one.figures.ready:
            text = f"gateway is not ready: {', '.join(one.figures.unmet)}"
            yield MonitorAlert("error", "gateway", one.id, text)


def _of_readers(snapshot: Snapshot) -> Iterator[MonitorAlert]:
    for group in snapshot.groups.values():
        if not group.members and group.lag:
            text = f"group without members has a lag of {group.lag:,}"
            yield MonitorAlert("warning", "group", group.name, text)
    for one in snapshot.consumers.values():
        if one.paused and one.lag:
            text = f"consumer is paused with a lag of {one.lag:,}"
            yield MonitorAlert("warning", "consumer", f"{one.stream}/{one.name}", text)


def _of_stream(stream: StreamSample) -> Iterator[MonitorAlert]:
    for part in stream.partitions:
        where = f"partition {part.number}" if len(stream.partitions) > 1 or part.first is None else "stream"
        if part.leader == "" and not part.paused:
            yield MonitorAlert("error", "stream", stream.name, f"{where} has no leader")
        elif part.in_sync < part.replicas and not part.paused:
            text = f"{where} has {part.in_sync} of {part.replicas} replicas in sync"
            yield MonitorAlert("warning", "stream", stream.name, text)

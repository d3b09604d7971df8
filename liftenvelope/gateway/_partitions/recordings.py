"""Compares what JetStream's streams record with what the streams' records say. Without I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

if TYPE_CHECKING:
    from collections.abc import Mapping

    from liftenvelope.gateway._cluster.records import StreamRecord
    from liftenvelope.jetstream.stream_config import StreamConfig

__all__ = [
    "Recording",
    "covers",
    "is_as_recorded",
    "is_recorded",
    "nothing",
    "recorded_subject",
    "width_order",
]

#: Prefix of the placeholder subject of a partition that records nothing. A JetStream stream without subjects
#: would record its own name as a subject.
_NOTHING: Final = "_lift.nothing."
#: Ranks of the wildcards of subjects, the widest first. Other tokens come after them.
_WIDTHS: Final = {">": 0, "*": 1}


class Recording(NamedTuple):
    """Subjects that a JetStream stream records, and the names of the streams that it copies from."""

    subjects: tuple[str, ...]
    sources: tuple[str, ...]

    @classmethod
    def from_json(cls, config: dict[str, Any]) -> Self:
        """Parse the ``config`` object of a JetStream stream info."""
        sources = config.get("sources") or ()
        return cls(tuple(config.get("subjects") or ()), tuple(source["name"] for source in sources))

    @classmethod
    def of(cls, config: StreamConfig) -> Self:
        """Return what a stream with this configuration records."""
        return cls(tuple(config.subjects), tuple(source.name for source in config.sources))


def is_as_recorded(record: StreamRecord, recordings: Mapping[str, Recording]) -> bool:
    """Return whether all partitions of a stream record what the stream's record says.

    Args:
        record: The stream's record.
        recordings: Recordings by the names of the JetStream streams. The result is False if one is missing.
    """
    for number, part in enumerate(record.partitions):
        name = record.stream_of(number)
        if part.records:
            if not is_recorded(record, number, recordings):
                return False
        elif recordings.get(name) != Recording((nothing(name),), ()):
            return False
    return True


def is_recorded(record: StreamRecord, partition: int, recordings: Mapping[str, Recording]) -> bool:
    """Return whether messages on a partition's subject reach the partition.

    A partition whose record names a source must copy from it, and that source must record the subject.

    Args:
        record: The stream's record.
        partition: Number of the partition.
        recordings: Recordings by the names of the JetStream streams. The result is False if one is missing.
    """
    own = recordings.get(record.stream_of(partition))
    subject, source = recorded_subject(record, partition), record.partitions[partition].source
    if own is None:
        return False
    if source is None:
        return own.subjects == (subject,)
    if source not in own.sources or source not in recordings:
        return False
    return any(covers(other, subject) for other in recordings[source].subjects)


def nothing(stream: str) -> str:
    """Return the placeholder subject of a partition that records nothing, given its JetStream stream."""
    return _NOTHING + stream


def recorded_subject(record: StreamRecord, partition: int) -> str:
    """Return the subject that JetStream records for a partition, including the intake prefix if any."""
    intake = record.intake_of(partition)
    return f"{intake}>" if intake else record.subject_of(partition)


def covers(wide: str, subject: str) -> bool:
    """Return whether ``wide`` matches every subject that ``subject`` matches. Both may have wildcards.

    Example:
        >>> covers("a.*", "a.b"), covers("a.>", "a.*.c"), covers("a.*", "a.>")
        (True, True, False)
    """
    parts, wanted = wide.split("."), subject.split(".")
    for number, part in enumerate(parts):
        if part == ">":
            return len(wanted) > number
        if number >= len(wanted):
            return False
        if part != wanted[number] and (part != "*" or wanted[number] == ">"):
            return False
    return len(parts) == len(wanted)


def width_order(subject: str) -> tuple[int, ...]:
    """Return a sort key that puts a subject before all the subjects that it covers.

    A subject that covers another one has the same or a wider token at each position, and a wider one at the
    first position where the two differ in kind.

    Example:
        >>> sorted(["a.b", "a.*", "a.>"], key=width_order)
        ['a.>', 'a.*', 'a.b']
    """
    return tuple(_WIDTHS.get(token, len(_WIDTHS)) for token in subject.split("."))

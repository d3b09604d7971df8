"""Options of sources and sinks, checked before any I/O.

Names follow Spark's Kafka source. All values are plain and picklable, because they travel to the tasks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from liftenvelope._checks import check_stream_name
from liftenvelope.bulk import DeadLetter
from liftenvelope.client.cursor_names import check_cursor_id
from liftenvelope.errors import UsageError
from liftenvelope.jetstream.names import check_consumer_name
from liftenvelope.jetstream.names import check_stream_name as check_jetstream_name
from liftenvelope.jetstream.subject_filter import SubjectFilter, parse_subjects
from liftenvelope.nats.subjects import publish_subject
from liftenvelope.spark._connection import CONNECTION_OPTIONS, ConnectionSettings, read_connection
from liftenvelope.spark._offsets import (
    LATEST,
    Part,
    PartitionPlace,
    Places,
    check_order,
    end_places,
    start_places,
)
from liftenvelope.spark._payload import bad_option, payload_option
from liftenvelope.spark._schema import RowOptions
from liftenvelope.spark._words import Words
from liftenvelope.spark.errors import OptionError

if TYPE_CHECKING:
    from liftenvelope.payload import PayloadFormat

__all__ = ["SinkOptions", "SourceOptions", "StreamSelection", "row_options", "sink_options", "source_options"]

_BATCH_ONLY: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "pushFilters")
_LIMITS: Final = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
_STREAM_ONLY: Final = (*_LIMITS, "commitCursor", "commitConsumer")
_SOURCE: Final = (
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "includeHeaders",
    "envelope",
    "payload",
    "onBad",
    *_BATCH_ONLY,
    *_LIMITS,
)
_SOURCES: Final = {
    "liftbridge": ("readISRReplica", "commitCursor"),
    "jetstream": ("filterSubjects", "commitConsumer"),
}
_SINK: Final = (
    "topic",
    "deliveryGuarantee",
    "maxInFlight",
    "includeHeaders",
    "payload",
    "packRows",
    "packBytes",
)
_SINKS: Final = {
    "liftbridge": ("ackPolicy", "partitioner", "maxRequestBytes"),
    "jetstream": ("subject", "envelope"),
}
#: Options that Spark adds by itself.
_OWN: Final = ("checkpointLocation", "queryName")
#: Option that Spark passes for a catalog table in place of the options given with the table.
_OF_TABLES: Final = "provider"

#: Offsets per task: a longer range is split among several tasks. Starting a task costs some milliseconds, and
#: parts beyond the idle cores wait for their turn.
_RECORDS_PER_PARTITION: Final = 500_000
#: Default of maxTriggerDelay in seconds, as in Spark's Kafka source.
_TRIGGER_DELAY: Final = 15 * 60.0
_IN_FLIGHT: Final = 4_000


@dataclass(frozen=True)
class StreamSelection:
    """Streams to read.

    Attributes:
        streams: Names of the streams.
        partitions: Partitions to read of each stream; None for all.
        pattern: Regular expression for stream names, in place of names; None for none.
    """

    streams: tuple[str, ...]
    partitions: Mapping[str, tuple[int, ...]] | None = None
    pattern: str | None = None

    def includes(self, part: Part) -> bool:
        """Return True if the options name a partition, whether it exists or not."""
        stream, number = part
        if self.pattern is not None:
            return re.fullmatch(self.pattern, stream) is not None
        return stream in self.streams and (self.partitions is None or number in self.partitions[stream])


@dataclass(frozen=True, kw_only=True)
class SourceOptions(RowOptions):
    """Options of a source.

    Attributes:
        connection: Connection settings.
        subscription: Streams to read.
        start: Start in each partition.
        end: End in each partition, for batch queries.
        late_start_is_end: Begin at the end if no message is at or after the starting timestamp; otherwise
            raise an error.
        max_offsets: Most offsets in a micro-batch.
        min_offsets: Fewest offsets in a micro-batch, unless ``trigger_delay`` has passed.
        trigger_delay: Longest wait for ``min_offsets``, in seconds.
        min_partitions: Fewest parts that the ranges are divided into.
        max_records: Most offsets in a part.
        fail_on_data_loss: Fail the query if messages are gone.
        push_filters: Take the filters of the query from Spark. Batch queries only.
        cursor: Id of the cursors of Liftbridge, or name of the consumers of JetStream, that show the progress
            of the query; None for none.
        subjects: For JetStream: filter of the subjects to read; None for all.
    """

    connection: ConnectionSettings
    subscription: StreamSelection
    start: Places
    end: Places
    late_start_is_end: bool
    max_offsets: int | None
    min_offsets: int | None
    trigger_delay: float
    min_partitions: int | None
    max_records: int
    fail_on_data_loss: bool
    push_filters: bool
    cursor: str | None = None
    subjects: SubjectFilter | None = None


@dataclass(frozen=True, kw_only=True)
class SinkOptions:
    """Options of a sink.

    Attributes:
        connection: Connection settings.
        topic: Name of the stream; None to take it from the column ``topic``.
        once: Store each row once, however often its task runs.
        headers: Write the column of headers, if there is one.
        max_in_flight: Most unacked rows of a task.
        subject: For JetStream: subject of all rows.
        envelope: For JetStream: put rows into envelopes.
        ack_all: For Liftbridge: wait until all in-sync replicas have acked.
        partitioner: For Liftbridge: ``"key"`` or ``"round_robin"``, for rows without a partition.
        payload: Format into which columns are encoded; None for rows with a column ``value``.
        packing: Options ``pack_rows`` and ``pack_bytes`` of :func:`liftenvelope.bulk.write` that are given.
    """

    connection: ConnectionSettings
    topic: str | None
    once: bool
    headers: bool
    max_in_flight: int
    subject: str | None
    envelope: bool
    ack_all: bool
    partitioner: str
    payload: PayloadFormat | None = None
    packing: Mapping[str, Any] = field(default_factory=dict)


def _check_name(format_: str, name: str, option: str) -> str:
    try:
        if format_ == "jetstream":
            check_jetstream_name(name)
        else:
            check_stream_name(name)
    except UsageError as exc:
        raise OptionError(f"{option}={name!r}: {exc}") from exc
    return name


def source_options(format_: str, given: Mapping[str, Any], *, streaming: bool) -> SourceOptions:
    """Check and return the options of a source.

    Args:
        format_: ``"liftbridge"`` or ``"jetstream"``.
        given: Options as Spark passes them.
        streaming: True for a streaming query.

    Raises:
        OptionError: An option is unknown, malformed, or conflicts with another.
    """
    words = _source_words(format_, given)
    for name in words.given(*(_BATCH_ONLY if streaming else _STREAM_ONLY)):
        kind = "batch queries (spark.read)" if streaming else "streams (spark.readStream)"
        raise OptionError(f"{name} is only for {kind}; leave it out")
    start, end = start_places(words, "latest" if streaming else "earliest"), end_places(words)
    check_order(start, end)
    if not streaming and start.default == PartitionPlace(LATEST):
        raise OptionError("startingOffsets='latest' would make a batch query empty; leave it out")
    found = SourceOptions(
        connection=read_connection(format_, words),
        subscription=_subscription(format_, words),
        start=start,
        end=end,
        late_start_is_end=words.choice("startingOffsetsByTimestampStrategy", ("error", "latest")) == "latest",
        **_limits(words),
        min_partitions=words.number("minPartitions"),
        max_records=words.number("maxRecordsPerPartition") or _RECORDS_PER_PARTITION,
        fail_on_data_loss=words.truth("failOnDataLoss", default=True),
        push_filters=words.truth("pushFilters", default=False),
        headers=words.truth("includeHeaders", default=False),
        envelope=_envelope(format_, words),
        cursor=_cursor(format_, words),
        subjects=_subjects(format_, words),
        payload=payload_option(words),
        on_bad=bad_option(words),
    )
    _check_dead_letters(found)
    return found


def _check_dead_letters(options: SourceOptions) -> None:
    """Raise OptionError if dead letters can't be written: otherwise a task fails at the first bad message."""
    connection = options.connection
    if isinstance(options.on_bad, DeadLetter):
        for stream in options.subscription.streams or ("",):  # with a pattern, no name is known
            try:
                options.on_bad.check(connection.servers, stream, connection.access)
            except UsageError as exc:
                raise OptionError(re.sub("^on_bad", "onBad", str(exc))) from exc


def _source_words(format_: str, given: Mapping[str, Any]) -> Words:
    if any(name.lower() == _OF_TABLES for name in given):
        hint = f"use CREATE TEMPORARY VIEW ... USING {format_} OPTIONS (...)"
        raise OptionError(f"CREATE TABLE drops the options of Python data sources; {hint}")
    return Words(given, (*CONNECTION_OPTIONS[format_], *_SOURCE, *_SOURCES[format_], "path"), _OWN)


def row_options(format_: str, given: Mapping[str, Any]) -> RowOptions:
    """Return the options that a source's columns depend on.

    Raises:
        OptionError: An option is unknown, or one of these is malformed.
    """
    words = _source_words(format_, given)
    return RowOptions(
        headers=words.truth("includeHeaders", default=False),
        envelope=_envelope(format_, words),
        payload=payload_option(words),
        on_bad=bad_option(words),
    )


def _envelope(format_: str, words: Words) -> str:
    found = words.choice("envelope", ("none", "strip", "columns"))
    if format_ == "liftbridge" and found != "none":
        raise OptionError(f"envelope={found!r}: Liftbridge removes envelopes itself; leave it out")
    return found


def _cursor(format_: str, words: Words) -> str | None:
    option = "commitCursor" if format_ == "liftbridge" else "commitConsumer"
    found = words.text(option)
    if found is not None:
        try:
            if format_ == "liftbridge":
                check_cursor_id(found, option)
            else:
                check_consumer_name(found)
        except UsageError as exc:
            text = str(exc)
            raise OptionError(text if text.startswith(option) else f"{option}={found!r}: {text}") from exc
    return found


def _subjects(format_: str, words: Words) -> SubjectFilter | None:
    text = words.text("filterSubjects") if format_ == "jetstream" else None
    if text is None:
        return None
    try:
        return parse_subjects(subject.strip() for subject in text.split(","))
    except UsageError as exc:
        raise OptionError(f"filterSubjects={text!r}: {exc}; separate subjects by commas") from exc


def _limits(words: Words) -> dict[str, Any]:
    most, least = words.number("maxOffsetsPerTrigger"), words.number("minOffsetsPerTrigger")
    if most is not None and least is not None and least > most:
        text = f"minOffsetsPerTrigger must be at most maxOffsetsPerTrigger={most}"
        raise OptionError(f"{text}, got {least}")
    if least is None and words.given("maxTriggerDelay"):
        raise OptionError("maxTriggerDelay needs minOffsetsPerTrigger; give both")
    delay = words.seconds("maxTriggerDelay", _TRIGGER_DELAY)
    return {"max_offsets": most, "min_offsets": least, "trigger_delay": delay}


def _subscription(format_: str, words: Words) -> StreamSelection:
    given = words.given("subscribe", "subscribePattern", "assign", "path")
    if len(given) != 1:
        what = f"{' and '.join(given)} exclude each other" if given else "no stream is named"
        expected = "expected one of subscribe, subscribePattern, assign, or the argument of load()"
        raise OptionError(f"{what}; {expected}")
    if given == ["subscribePattern"]:
        return StreamSelection((), pattern=_pattern(words.text("subscribePattern") or ""))
    if given == ["assign"]:
        return _assigned(format_, words.mapping("assign") or {})
    text = words.text(given[0]) or ""
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise OptionError(f"{given[0]} must have a name before and after each comma, got {text!r}")
    return StreamSelection(tuple(dict.fromkeys(_check_name(format_, name, given[0]) for name in names)))


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as exc:
        expected = "a Python regular expression for whole names"
        raise OptionError(f"subscribePattern must be {expected}, got {text!r}: {exc}") from exc
    return text


def _assigned(format_: str, given: dict[str, Any]) -> StreamSelection:
    if not given:
        raise OptionError("assign must name at least one stream, got {}")
    made: dict[str, tuple[int, ...]] = {}
    for name, numbers in given.items():
        _check_name(format_, name, "assign")
        sound = isinstance(numbers, list) and numbers
        if not sound or any(isinstance(n, bool) or not isinstance(n, int) or n < 0 for n in numbers):
            expected = 'must be a list of partitions, as in {"orders": [0, 1]}'
            raise OptionError(f"assign: {name} {expected}, got {numbers!r}")
        if format_ == "jetstream" and set(numbers) != {0}:
            raise OptionError(f"assign: {name} must be [0] in JetStream, got {numbers!r}")
        made[name] = tuple(sorted(set(numbers)))
    return StreamSelection(tuple(made), made)


def sink_options(format_: str, given: Mapping[str, Any], *, streaming: bool) -> SinkOptions:
    """Check and return the options of a sink.

    Args:
        format_: ``"liftbridge"`` or ``"jetstream"``.
        given: Options as Spark passes them.
        streaming: True for a streaming query.

    Raises:
        OptionError: An option is unknown, malformed, or conflicts with another.
    """
    words = Words(given, (*CONNECTION_OPTIONS[format_], *_SINK, *_SINKS[format_], "path"), _OWN)
    if len(words.given("topic", "path")) > 1:
        raise OptionError("topic and the argument of save() exclude each other; leave one of them out")
    topic = words.text("topic") or words.text("path")
    return SinkOptions(
        connection=read_connection(format_, words),
        topic=None if topic is None else _check_name(format_, topic, "topic"),
        once=_once(format_, words, streaming=streaming, topic=topic),
        headers=words.truth("includeHeaders", default=True),
        max_in_flight=words.number("maxInFlight") or _IN_FLIGHT,
        subject=_subject(words) if format_ == "jetstream" else None,
        envelope=format_ == "jetstream" and words.truth("envelope", default=False),
        ack_all=_ack_all(format_, words),
        partitioner="key" if format_ == "jetstream" else words.choice("partitioner", ("key", "round_robin")),
        payload=_sink_payload(format_, words),
        packing={
            option: number
            for option, name in (("pack_rows", "packRows"), ("pack_bytes", "packBytes"))
            if (number := words.number(name)) is not None
        },
    )


def _subject(words: Words) -> str | None:
    found = words.text("subject")
    if found is not None:
        try:
            publish_subject(found)
        except UsageError as exc:
            raise OptionError(str(exc)) from exc
    return found


def _sink_payload(format_: str, words: Words) -> PayloadFormat | None:
    found = payload_option(words)
    for name in words.given("packRows", "packBytes"):
        if found is None or not found.packed:
            raise OptionError(f"{name} needs payload='arrow'; leave it out")
    once = words.choice("deliveryGuarantee", ("at-least-once", "effectively-once")) == "effectively-once"
    if found is not None and once and format_ == "liftbridge":
        text = "deliveryGuarantee='effectively-once' of Liftbridge compares values"
        raise OptionError(f"payload: {text}; encode the rows into a column 'value' instead")
    return found


def _once(format_: str, words: Words, *, streaming: bool, topic: str | None) -> bool:
    if words.choice("deliveryGuarantee", ("at-least-once", "effectively-once")) == "at-least-once":
        return False
    if not streaming:
        text = "needs a query id, which a batch query does not have"
        hint = "; give the rows a column 'msgId' instead" if format_ == "jetstream" else "; leave it out"
        raise OptionError(f"deliveryGuarantee='effectively-once' {text}{hint}")
    if topic is None:
        raise OptionError("deliveryGuarantee='effectively-once' needs the option topic, not a column")
    return True


def _ack_all(format_: str, words: Words) -> bool:
    if format_ == "jetstream":
        return False
    found = words.choice("ackPolicy", ("leader", "all"))
    once = words.choice("deliveryGuarantee", ("at-least-once", "effectively-once")) == "effectively-once"
    if once and found == "leader" and words.given("ackPolicy"):
        text = "a message that only the leader has is lost with the leader"
        raise OptionError(
            f"ackPolicy='leader' conflicts with deliveryGuarantee='effectively-once': {text}; leave it out"
        )
    return once or found == "all"

"""JetStream's records: what is written is what was read, to the last nanosecond and unknown field."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, fields, replace
from datetime import UTC, datetime, timedelta, timezone
from inspect import cleandoc, get_annotations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from liftenvelope.errors import UsageError, UsageTypeError
from liftenvelope.jetstream import infos, stream_config
from liftenvelope.jetstream._consumer_config import (
    AckPolicy,
    ConsumerConfig,
    DeliverPolicy,
    PriorityPolicy,
    ReplayPolicy,
)
from liftenvelope.jetstream._records import Record, from_ns, moment_text, read_moment, to_ns
from liftenvelope.jetstream.infos import ConsumerInfo, StreamInfo
from liftenvelope.jetstream.stream_config import (
    Compression,
    ConsumerLimits,
    DiscardPolicy,
    ExternalStream,
    PersistMode,
    Placement,
    Republish,
    RetentionPolicy,
    SourceConsumer,
    StorageType,
    StreamConfig,
    StreamSource,
    SubjectTransform,
)

RECORDS: list[type[Record]] = [
    kind
    for module in (infos, stream_config)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, Record) and kind is not Record
]

names = st.text("abcXYZ019_-=äλ", min_size=1, max_size=12)
subjects = st.lists(st.text("abc019_-", min_size=1, max_size=5) | st.just("*"), min_size=1, max_size=4).map(
    ".".join
)
texts = st.text(st.characters(codec="utf-8"), max_size=20)
seconds = st.integers(0, 2**63 - 1).map(from_ns) | st.floats(1e-6, 9e9) | st.integers(0, 9_000_000_000)
moments = st.datetimes(
    datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC) | st.just(timezone(timedelta(hours=-5)))
)
#: Times that servers keep as 64 bits of nanoseconds.
starts = st.datetimes(
    datetime(1678, 1, 2),
    datetime(2261, 12, 30),
    timezones=st.just(UTC) | st.just(timezone(timedelta(hours=-5))),
)
counts = st.integers(0, 2**63 - 1)
limits = st.integers(-1, 2**63 - 1)
metadata = st.dictionaries(texts, texts, max_size=3)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
transforms = st.builds(SubjectTransform, src=texts, dest=texts)
sources = st.builds(
    StreamSource,
    name=names,
    opt_start_seq=st.none() | counts,
    opt_start_time=st.none() | moments,
    filter_subject=st.none() | subjects,
    subject_transforms=st.lists(transforms, max_size=2),
    external=st.none() | st.builds(ExternalStream, api=texts, deliver=texts),
    consumer=st.none() | st.builds(SourceConsumer, name=st.none() | texts, deliver_subject=st.none() | texts),
)


def open_values(kind: type) -> st.SearchStrategy[Any]:
    """Values of an enumeration, named ones and others."""
    return st.sampled_from(list(kind)) | st.text("abc_", min_size=1, max_size=5).map(kind)  # type: ignore[call-overload]


stream_configs = st.builds(
    StreamConfig,
    name=names,
    description=st.none() | texts,
    subjects=st.lists(subjects, max_size=3),
    retention=open_values(RetentionPolicy),
    max_consumers=limits,
    max_msgs=limits,
    max_bytes=limits,
    max_age=seconds,
    max_msgs_per_subject=limits,
    max_msg_size=limits,
    discard=open_values(DiscardPolicy),
    storage=open_values(StorageType),
    num_replicas=st.integers(1, 5),
    no_ack=st.booleans(),
    duplicate_window=st.none() | seconds,
    placement=st.none()
    | st.builds(Placement, cluster=st.none() | texts, tags=st.lists(texts), preferred=st.none() | texts),
    sources=st.lists(sources, max_size=2),
    compression=open_values(Compression),
    first_seq=counts,
    subject_transform=st.none() | transforms,
    republish=st.none() | st.builds(Republish, src=st.none() | texts, dest=texts, headers_only=st.booleans()),
    sealed=st.booleans(),
    consumer_limits=st.builds(ConsumerLimits, inactive_threshold=seconds, max_ack_pending=counts),
    subject_delete_marker_ttl=seconds,
    persist_mode=open_values(PersistMode),
    metadata=metadata,
)
consumer_configs = st.builds(
    ConsumerConfig,
    name=st.none() | names,
    description=st.none() | texts,
    deliver_policy=open_values(DeliverPolicy),
    opt_start_seq=st.none() | counts,
    opt_start_time=st.none() | starts,
    ack_policy=open_values(AckPolicy),
    ack_wait=st.none() | seconds,
    max_deliver=st.none() | limits,
    backoff=st.lists(seconds, max_size=4),
    filter_subjects=st.lists(subjects, max_size=3),
    replay_policy=open_values(ReplayPolicy),
    rate_limit_bps=st.none() | st.integers(0, 2**64 - 1),
    max_ack_pending=st.none() | limits,
    headers_only=st.booleans(),
    max_expires=st.none() | seconds,
    inactive_threshold=st.none() | seconds,
    num_replicas=st.integers(0, 5),
    mem_storage=st.booleans(),
    metadata=metadata,
    pause_until=st.none() | moments,
    priority_groups=st.lists(st.text("ab/_=-9", min_size=1, max_size=16), max_size=2),
    priority_policy=open_values(PriorityPolicy),
    priority_timeout=st.none() | seconds,
)


class TestRoundTrips:
    @given(stream_configs)
    @settings(max_examples=40)
    def test_stream_configs(self, config: StreamConfig) -> None:
        again = StreamConfig.from_json(config.to_json())
        # A span finer than a nanosecond is rounded once, and then stays.
        assert StreamConfig.from_json(again.to_json()) == again
        assert again.to_json() == config.to_json()
        assert replace(
            again, max_age=0, duplicate_window=None, subject_delete_marker_ttl=0, consumer_limits=LIMITS
        ) == (
            replace(
                config, max_age=0, duplicate_window=None, subject_delete_marker_ttl=0, consumer_limits=LIMITS
            )
        )

    @given(consumer_configs)
    @settings(max_examples=40)
    def test_consumer_configs(self, config: ConsumerConfig) -> None:
        again = ConsumerConfig.from_json(config.to_json())
        assert again.to_json() == config.to_json()
        assert pickle.loads(pickle.dumps(again)) == again

    @given(st.dictionaries(texts.map("x_".__add__), json_values, max_size=4), stream_configs)
    @settings(max_examples=40)
    def test_unknown_fields(self, extra: dict[str, Any], config: StreamConfig) -> None:
        wire = {**config.to_json(), **extra}
        read = StreamConfig.from_json(wire)
        assert (read.extra, read.to_json()) == (extra, wire)
        assert replace(read, max_msgs=3).extra == extra

    @given(st.integers(-(2**63), 2**63 - 1))
    def test_every_nanosecond(self, ns: int) -> None:
        config = StreamConfig.from_json({"name": "x", "duplicate_window": ns})
        assert config.to_json()["duplicate_window"] == ns
        assert config.duplicate_window == ns / 1e9
        assert replace(config, max_msgs=1).to_json()["duplicate_window"] == ns
        assert replace(config, duplicate_window=1.5).to_json()["duplicate_window"] == 1_500_000_000

    @given(st.integers(0, 10**9), st.integers(0, 3))
    def test_what_is_said_in_decimals_is_meant(self, number: int, digits: int) -> None:
        assert to_ns(number / 10**digits) == number * 10 ** (9 - digits)
        assert to_ns(from_ns(number)) == number

    @given(moments, st.integers(0, 999))
    def test_every_digit_of_a_moment(self, moment: datetime, nanos: int) -> None:
        text = moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S").rjust(19, "0")
        text += f".{moment.microsecond:06}{nanos:03}Z"
        config = ConsumerConfig.from_json({"opt_start_time": text})
        assert config.opt_start_time == moment
        assert config.to_json()["opt_start_time"] == text

    @given(moments)
    def test_moments(self, moment: datetime) -> None:
        assert read_moment(moment_text(moment)) == moment

    def test_never(self) -> None:
        state = infos.PriorityGroupState.from_json({"group": "g", "pinned_ts": "0001-01-01T00:00:00Z"})
        assert state.pinned_ts is None
        assert read_moment("2026-01-02T03:04:05+02:00") == datetime(2026, 1, 2, 1, 4, 5, tzinfo=UTC)

    @pytest.mark.parametrize("kind", RECORDS, ids=lambda kind: kind.__name__)
    def test_every_field_of_a_record_is_documented(self, kind: type[Record]) -> None:
        # Python 3.13 strips the indentation of docstrings when it compiles them, earlier versions keep it.
        documented = cleandoc(kind.__doc__ or "")
        own = [each.name for each in fields(kind) if each.name in get_annotations(kind)]
        assert own
        assert [name for name in own if f"\n    {name}: " not in documented] == []


LIMITS = ConsumerLimits()


class TestOpenness:
    def test_unknown_values_of_enumerations(self) -> None:
        config = StreamConfig.from_json({"name": "x", "retention": "forever", "storage": "tape"})
        assert (config.retention, config.storage) == ("forever", "tape")
        assert isinstance(config.retention, RetentionPolicy)
        assert repr(config.retention) == "<RetentionPolicy.FOREVER: 'forever'>"
        assert config.to_json() == {"name": "x", "retention": "forever", "storage": "tape"}
        assert pickle.loads(pickle.dumps(config)) == config
        assert len(RetentionPolicy) == 3

    def test_plain_values_become_those_of_the_type(self) -> None:
        values: dict[str, Any] = {
            "retention": "workqueue",
            "subjects": ["a", "b"],
            "max_age": timedelta(minutes=1),
        }
        config = StreamConfig(name="x", **values)
        assert config.retention is RetentionPolicy.WORK_QUEUE
        assert (config.subjects, config.max_age) == (("a", "b"), 60.0)

    def test_infos_keep_what_they_do_not_know(self) -> None:
        wire = {
            "stream_name": "S",
            "name": "c",
            "config": {"ack_policy": "explicit", "new_knob": 7},
            "delivered": {"consumer_seq": 3, "stream_seq": 4, "shade": "blue"},
            "weather": ["fine"],
        }
        info = ConsumerInfo.from_json(wire)
        assert (info.extra, info.config.extra, info.delivered.extra) == (
            {"weather": ["fine"]},
            {"new_knob": 7},
            {"shade": "blue"},
        )
        assert info.to_json() == wire

    def test_what_is_there_is_read_whatever_its_name(self) -> None:
        config = StreamConfig.from_json({"name": "old/name", "sources": [{"name": "a.b"}]})
        assert config.name == "old/name"
        assert (
            StreamConfig.from_json({"name": "x"}).metadata
            is not StreamConfig.from_json({"name": "y"}).metadata
        )
        with pytest.raises(UsageError, match="old/name"):
            replace(config, max_msgs=1)

    def test_defaults_are_not_written(self) -> None:
        assert StreamConfig(name="x").to_json() == {"name": "x"}
        # The server's own default would be none.
        assert ConsumerConfig().to_json() == {"ack_policy": "explicit"}
        assert StreamConfig.from_json({"name": "x", "subjects": None}).subjects == ()

    def test_records_are_frozen(self) -> None:
        config = StreamConfig(name="x")
        with pytest.raises(FrozenInstanceError):
            config.name = "y"  # type: ignore[misc]


class TestChecks:
    @pytest.mark.parametrize("name", ["", "a.b", "a*", ">", "a/b", "a\\b", "a b", "a\tb", "a\n", "x" * 256])
    def test_names(self, name: str) -> None:
        with pytest.raises(UsageError, match="stream name"):
            StreamConfig(name=name)
        with pytest.raises(UsageError, match="stream name"):
            StreamSource(name=name)
        with pytest.raises(UsageError, match="consumer name"):
            ConsumerConfig(name=name)
        with pytest.raises(UsageError, match="consumer name"):
            ConsumerConfig(durable_name=name)

    @pytest.mark.parametrize(
        ("values", "said"),
        [
            ({"name": 5}, "name must be str, got int"),
            ({"name": "\ud800"}, "lone surrogate"),
            ({"subjects": "a"}, "subjects must be a sequence, got str"),
            ({"subjects": ["a", 5]}, r"subjects\[1\] must be str, got int"),
            ({"subjects": ["a b"]}, "'a b'"),
            ({"subjects": ["a..b"]}, "empty token"),
            ({"subjects": ["a.>.b"]}, "'>' at its end only"),
            ({"max_msgs": 1.5}, "max_msgs must be an integer, got "),
            ({"max_msgs": True}, "max_msgs must be an integer, got True"),
            ({"max_msgs": 2**64}, "max_msgs must be at most"),
            ({"max_msgs": None}, "max_msgs must be an integer, got None"),
            ({"max_age": 1e-12}, "at least a nanosecond"),
            ({"max_age": "1s"}, "max_age must be a number of seconds, got '1s'"),
            ({"max_age": float("nan")}, "nan"),
            ({"max_age": 1e10}, "10000000000.0"),
            ({"max_age": 10**400}, "64 bits"),
            ({"sealed": 1}, "sealed must be a bool, got int"),
            ({"retention": 1}, "retention must be str, got int"),
            ({"metadata": {"a": 1}}, r"metadata\['a'\] must be str"),
            ({"metadata": []}, "metadata must be a mapping, got list"),
            ({"placement": {}}, "placement must be a Placement, got dict"),
            (
                {"mirror": StreamSource(name="o"), "subjects": ["a"]},
                "exclude each other",
            ),
        ],
    )
    def test_streams(self, values: dict[str, Any], said: str) -> None:
        with pytest.raises(UsageError, match=said):
            StreamConfig(**{"name": "x", **values})

    @pytest.mark.parametrize(
        ("values", "said"),
        [
            ({"opt_start_time": "now"}, "must be a datetime, got str"),
            ({"opt_start_time": datetime(2026, 1, 1)}, "with a time zone"),
            (
                {"opt_start_time": datetime.min.replace(tzinfo=timezone(timedelta(hours=5)))},
                "years 1 to 9999",
            ),
            (
                {"opt_start_time": datetime(2262, 1, 1, tzinfo=UTC)},
                "in the years 1678 to 2261, got 2262-01-01",
            ),
            ({"opt_start_time": datetime(1677, 12, 31, tzinfo=UTC)}, "in the years 1678 to 2261"),
            ({"name": "a", "durable_name": "b"}, "durable_name must be the same as name, 'a', got 'b'"),
            (
                {"filter_subject": "a", "filter_subjects": ["b"]},
                "exclude each other",
            ),
            ({"filter_subjects": ["b", ""]}, "''"),
            ({"priority_groups": ["x" * 17]}, "x{17}"),
            ({"priority_groups": ["a b"]}, "'a b'"),
            ({"priority_groups": ["a.b"]}, r"'a\.b'"),
            ({"backoff": [1, "2"]}, r"backoff\[1\]"),
        ],
    )
    def test_consumers(self, values: dict[str, Any], said: str) -> None:
        with pytest.raises(UsageError, match=said):
            ConsumerConfig(**values)

    @pytest.mark.parametrize(
        ("wire", "said"),
        [
            ({}, "StreamInfo must have 'config'"),
            ({"config": 5}, "StreamInfo.config must be a valid value of its type, got 5"),
            ({"config": {}}, "StreamInfo.config must be a valid value"),
            (
                {"config": {"name": "x"}, "created": "soon"},
                "StreamInfo.created must be a valid value of its type, got 'soon'",
            ),
            ({"config": {"name": "x"}, "created": "2026-01-01T00:00:00"}, "StreamInfo.created"),
            ({"config": {"name": "x"}, "state": {"messages": "5"}}, "StreamInfo.state must be a valid value"),
            ({"config": {"name": "x"}, "sources": 5}, "StreamInfo.sources"),
        ],
    )
    def test_what_can_not_be_read(self, wire: dict[str, Any], said: str) -> None:
        with pytest.raises(UsageError, match=said):
            StreamInfo.from_json(wire)

    def test_reply_that_is_no_mapping_is_refused(self) -> None:
        with pytest.raises(UsageTypeError, match="must be read from a mapping, got list"):
            StreamInfo.from_json([])  # type: ignore[arg-type]

    def test_push(self) -> None:
        assert ConsumerConfig(deliver_subject="a").is_push
        assert not ConsumerConfig().is_push

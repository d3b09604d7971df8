"""The options of Spark sources and sinks, without Spark."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest

from liftenvelope.bulk import DeadLetter
from liftenvelope.jetstream.subject_filter import SubjectFilter
from liftenvelope.payload import Json
from liftenvelope.spark._offsets import EARLIEST, LATEST, PartitionPlace, Places
from liftenvelope.spark._options import StreamSelection, row_options, sink_options, source_options
from liftenvelope.spark._schema import check_packed, check_sink
from liftenvelope.spark._words import Words, duration
from liftenvelope.spark.errors import OptionError

LB = {"servers": "127.0.0.1:9292", "subscribe": "orders"}
JS = {"servers": "nats://127.0.0.1:4222", "subscribe": "ORDERS"}
OF = {"liftbridge": LB, "jetstream": JS}


class TestDefaults:
    @pytest.mark.parametrize("format_", ["liftbridge", "jetstream"])
    def test_a_stream_begins_at_the_end_a_batch_at_the_beginning(self, format_: str) -> None:
        streaming = source_options(format_, OF[format_], streaming=True)
        batch = source_options(format_, OF[format_], streaming=False)
        assert streaming.start == Places(PartitionPlace(LATEST), {})
        assert batch.start == Places(PartitionPlace(EARLIEST), {})
        assert batch.end == Places(PartitionPlace(LATEST), {})
        assert batch.fail_on_data_loss
        assert not batch.headers
        assert batch.envelope == "none"
        assert (streaming.max_offsets, streaming.min_offsets, streaming.trigger_delay) == (None, None, 900.0)

    @pytest.mark.parametrize("format_", ["liftbridge", "jetstream"])
    def test_default_options_can_be_pickled(self, format_: str) -> None:
        options = source_options(format_, OF[format_], streaming=True)
        assert pickle.loads(pickle.dumps(options)) == options
        sink = sink_options(format_, {"servers": OF[format_]["servers"], "topic": "a"}, streaming=True)
        assert pickle.loads(pickle.dumps(sink)) == sink

    def test_the_case_of_names_does_not_matter(self) -> None:
        options = source_options("liftbridge", {**LB, "MAXOFFSETSPERTRIGGER": "7"}, streaming=True)
        assert options.max_offsets == 7

    def test_urls_get_their_scheme(self) -> None:
        given = {"servers": "a:1, nats://b:2,tls://c", "subscribe": "S"}
        found = source_options("jetstream", given, streaming=False).connection
        assert found.servers == ("nats://a:1", "nats://b:2", "tls://c")

    def test_the_argument_of_load(self) -> None:
        given = {"servers": "a:1", "path": "x, y,x"}
        found = source_options("liftbridge", given, streaming=False)
        assert found.subscription == StreamSelection(("x", "y"))

    def test_assigned_partitions(self) -> None:
        given = {"servers": "a:1", "assign": '{"x": [2, 0, 2], "y": [1]}'}
        found = source_options("liftbridge", given, streaming=False)
        assert found.subscription == StreamSelection(("x", "y"), {"x": (0, 2), "y": (1,)})


class TestPlaces:
    @pytest.mark.parametrize(
        ("options", "places"),
        [
            ({"startingOffsets": "EARLIEST"}, Places(PartitionPlace(EARLIEST), {})),
            (
                {"startingOffsets": '{"orders": {"0": 23, "1": -2, "2": -1}}'},
                Places(
                    None,
                    {
                        ("orders", 0): PartitionPlace(23),
                        ("orders", 1): PartitionPlace(EARLIEST),
                        ("orders", 2): PartitionPlace(LATEST),
                    },
                ),
            ),
            ({"startingOffsets": '{"orders": 5}'}, Places(None, {("orders", 0): PartitionPlace(5)})),
            (
                {"startingTimestamp": "1700000000000"},
                Places(PartitionPlace(None, 1_700_000_000_000_000_000), {}),
            ),
            (
                {"startingOffsetsByTimestamp": '{"orders": {"0": 1}}', "startingOffsets": "earliest"},
                Places(None, {("orders", 0): PartitionPlace(None, 1_000_000)}),
            ),
            (
                {"startingTimestamp": "0", "startingOffsetsByTimestamp": '{"orders": {"0": 1}}'},
                Places(PartitionPlace(None, 0), {}),
            ),
        ],
    )
    def test_where_to_begin(self, options: dict[str, str], places: Places) -> None:
        assert source_options("liftbridge", {**LB, **options}, streaming=True).start == places

    def test_where_to_end(self) -> None:
        given = {**LB, "endingOffsets": '{"orders": {"0": -1, "1": 9}}'}
        end = source_options("liftbridge", given, streaming=False).end
        assert end == Places(None, {("orders", 0): PartitionPlace(LATEST), ("orders", 1): PartitionPlace(9)})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"startingOfsets": "latest"}, "'startingOfsets': did you mean 'startingOffsets'"),
        ({"kafka.bootstrap.servers": "x"}, "unknown option 'kafka.bootstrap.servers'"),
        ({"subscribe": ""}, "subscribe must not be empty"),
        ({"subscribe": "a,,b"}, "subscribe must have a name before and after each comma, got 'a,,b'"),
        ({"subscribe": "a b"}, "subscribe='a b'"),
        ({"assign": '{"orders": [0]}'}, "subscribe and assign exclude each other"),
        ({"servers": ""}, "servers must not be empty"),
        ({"servers": "nats://x:1"}, "servers must be liftbridge://host:port .*, got nats://"),
        ({"servers": "x:notaport"}, "servers: "),
        ({"startingOffsets": "latests"}, "startingOffsets must be .*, got 'latests'"),
        ({"startingOffsets": "{"}, "startingOffsets must be a JSON object"),
        ({"startingOffsets": "[1]"}, "startingOffsets must be .*, got '\\[1\\]'"),
        ({"startingOffsets": "{}"}, "must name at least one partition, got {}"),
        ({"startingOffsets": '{"orders": {}}'}, "must name at least one partition, got {'orders': {}}"),
        ({"startingOffsets": '{"orders": {"0": -3}}'}, "must be an offset, .*, got -3"),
        ({"startingOffsets": '{"orders": {"0": 1, "0": 2}}'}, "a name is repeated"),
        ({"startingOffsets": '{"orders": {"zero": 1}}'}, "'zero'"),
        ({"startingOffsets": '{"orders": {"1": 1, "01": 2}}'}, "must be partition numbers, got '01'"),
        ({"startingOffsets": '{"orders": {"0": true}}'}, r"startingOffsets of orders\[0\] must .*, got True"),
        ({"startingOffsets": '{"orders": {"0": 9223372036854775808}}'}, "9223372036854775808"),
        ({"startingTimestamp": "yesterday"}, "startingTimestamp must be milliseconds .*, got 'yesterday'"),
        ({"startingTimestamp": "9223372036854775807"}, "must be milliseconds since 1970"),
        ({"startingTimestamp": "-1"}, "startingTimestamp must be milliseconds .*, got '-1'"),
        (
            {"startingOffsetsByTimestamp": '{"orders": {"0": -1}}'},
            r"orders\[0\] must be milliseconds .*, got -1",
        ),
        ({"startingOffsetsByTimestampStrategy": "latst"}, "must be 'error' or 'latest', got 'latst'"),
        ({"endingOffsets": "latest"}, "endingOffsets is only for batch queries"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger must be a whole number of at least 1, got '0'"),
        ({"maxOffsetsPerTrigger": "1", "minOffsetsPerTrigger": "2"}, "maxOffsetsPerTrigger=1, got 2"),
        ({"maxTriggerDelay": "5m"}, "maxTriggerDelay needs minOffsetsPerTrigger"),
        ({"minOffsetsPerTrigger": "1", "maxTriggerDelay": "5 fortnights"}, "maxTriggerDelay must be a time"),
        ({"failOnDataLoss": "perhaps"}, "failOnDataLoss must be 'true' or 'false', got 'perhaps'"),
        ({"minPartitions": "many"}, "minPartitions must be a whole number of at least 1, got 'many'"),
        ({"envelope": "strip"}, "Liftbridge removes envelopes itself"),
        ({"domain": "hub"}, "unknown option 'domain'"),
        ({"tls": "false", "tlsCaFile": "ca.pem"}, "tls=false and tlsCaFile exclude each other"),
        ({"tlsKeyFile": "key.pem"}, "tlsKeyFile needs tlsCertFile"),
    ],
)
def test_refused_of_a_stream(options: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        source_options("liftbridge", {**LB, **options}, streaming=True)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"maxOffsetsPerTrigger": "5"}, "maxOffsetsPerTrigger is only for streams"),
        ({"startingOffsets": "latest"}, "would make a batch query empty"),
        ({"endingOffsets": "earliest"}, "endingOffsets must be 'latest' or JSON .*, got 'earliest'"),
        ({"endingOffsets": '{"ORDERS": -2}'}, "must be an offset, -1 .*, got -2"),
        (
            {"startingOffsets": '{"ORDERS": 5}', "endingOffsets": '{"ORDERS": 4}'},
            r"the end of ORDERS\[0\] must not be before its start 5, got 4",
        ),
        (
            {"startingTimestamp": "6", "endingOffsetsByTimestamp": '{"ORDERS": 5}'},
            r"the end of ORDERS\[0\] must not be before its start 6, got 5",
        ),
        (
            {"startingTimestamp": "6", "endingTimestamp": "5"},
            "endingTimestamp must not be before startingTimestamp=6, got 5",
        ),
        ({"subscribe": "a.b"}, "subscribe='a.b'"),
        ({"servers": "liftbridge://x:1"}, "servers must be nats://host:port .*, got liftbridge://"),
        ({"password": "secret"}, "user must be given with password"),
        ({"user": "a", "token": "b"}, "exclude each other"),
        ({"domain": "a", "apiPrefix": "b"}, "domain"),
        ({"inboxPrefix": "inbox_prefix.*"}, "inboxPrefix must be .* without wildcards, got 'inbox_prefix"),
        ({"user": "u", "nkeysSeedFile": "f"}, "user and nkeysSeedFile exclude each other"),
        ({"envelope": "stripe"}, "envelope must be 'none' or 'strip' or 'columns', got 'stripe'"),
        ({"maxMessageBytes": "1"}, "unknown option 'maxMessageBytes'"),
        ({"provider": "jetstream", "owner": "me"}, "use CREATE TEMPORARY VIEW ... USING jetstream OPTIONS"),
    ],
)
def test_refused_of_a_batch(options: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        source_options("jetstream", {**JS, **options}, streaming=False)


class TestSubscriptions:
    def test_a_pattern(self) -> None:
        given = {"servers": "a:1", "subscribePattern": "orders-.*"}
        found = source_options("liftbridge", given, streaming=True)
        assert found.subscription == StreamSelection((), None, "orders-.*")

    @pytest.mark.parametrize(
        ("given", "text"),
        [
            ({"subscribePattern": "a("}, r"subscribePattern must be .*whole names, got 'a\('"),
            (
                {"subscribePattern": "a", "subscribe": "b"},
                "subscribe and subscribePattern exclude",
            ),
            ({"subscribePattern": "a", "path": "b"}, "subscribePattern and path exclude each other"),
            ({}, "expected one of subscribe, subscribePattern, assign"),
        ],
    )
    def test_refused(self, given: dict[str, str], text: str) -> None:
        with pytest.raises(OptionError, match=text):
            source_options("liftbridge", {"servers": "a:1", **given}, streaming=True)

    def test_replicas_and_cursors(self) -> None:
        given = {**LB, "readISRReplica": "true", "commitCursor": "billing"}
        found = source_options("liftbridge", given, streaming=True)
        assert (found.connection.access.read_isr_replica, found.cursor) == (True, "billing")

    def test_subjects_are_separated_by_commas(self) -> None:
        found = source_options("jetstream", {**JS, "filterSubjects": "a.* , b.>,a.x"}, streaming=True)
        assert found.subjects == SubjectFilter(["a.*", "b.>"])
        assert source_options("jetstream", JS, streaming=False).subjects is None

    @pytest.mark.parametrize(
        ("format_", "given", "streaming", "text"),
        [
            ("jetstream", {"filterSubjects": "a,,b"}, True, "filterSubjects='a,,b': .*separate subjects by"),
            ("jetstream", {"filterSubjects": "a b"}, False, "white space"),
            ("liftbridge", {"filterSubjects": "a"}, False, "unknown option 'filterSubjects'"),
            ("liftbridge", {"commitCursor": "a,b"}, True, "commitCursor must not have a comma, got 'a,b'"),
            ("liftbridge", {"commitCursor": "a"}, False, "commitCursor is only for streams"),
            ("jetstream", {"commitCursor": "a"}, True, "unknown option 'commitCursor'"),
            ("jetstream", {"commitConsumer": "a.b"}, True, "commitConsumer='a.b': "),
            ("jetstream", {"commitConsumer": "a"}, False, "commitConsumer is only for streams"),
            ("liftbridge", {"commitConsumer": "a"}, True, "unknown option 'commitConsumer'"),
            ("jetstream", {"readISRReplica": "true"}, True, "unknown option 'readISRReplica'"),
            ("liftbridge", {"readISRReplica": "maybe"}, True, "must be 'true' or 'false', got 'maybe'"),
        ],
    )
    def test_options_of_another_kind_of_subscription_are_refused(
        self, format_: str, given: dict[str, str], streaming: bool, text: str
    ) -> None:
        with pytest.raises(OptionError, match=text):
            source_options(format_, {**OF[format_], **given}, streaming=streaming)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("kafka.bootstrap.servers", "servers"),
        ("brokers", "servers"),
        ("startingOffset", "startingOffsets"),
        ("readIsrReplicas", "readISRReplica"),
        ("topic", "subscribe"),
        ("stream", "subscribe"),
        ("subscribepatern", "subscribePattern"),
    ],
)
def test_the_nearest_option_is_named(name: str, meant: str) -> None:
    with pytest.raises(OptionError, match=f"unknown option '{name}': did you mean '{meant}'"):
        source_options("liftbridge", {**LB, name: "x"}, streaming=True)


@pytest.mark.parametrize(
    ("name", "meant"), [("subscribe", "topic"), ("deliveryGuarante", "deliveryGuarantee")]
)
def test_nearest_sink_option_is_named(name: str, meant: str) -> None:
    with pytest.raises(OptionError, match=f"unknown option '{name}': did you mean '{meant}'"):
        sink_options("jetstream", {"servers": "a:1", "topic": "S", name: "x"}, streaming=True)


def test_offsets_of_jetstream_are_those_of_its_rows() -> None:
    found = source_options("jetstream", {**JS, "startingOffsets": '{"ORDERS": 23}'}, streaming=True)
    assert found.start == Places(None, {("ORDERS", 0): PartitionPlace(23)})


def test_a_jetstream_stream_has_one_partition() -> None:
    with pytest.raises(OptionError, match=r"assign: S must be \[0\] in JetStream, got \[0, 1\]"):
        source_options("jetstream", {"servers": "a:1", "assign": '{"S": [0, 1]}'}, streaming=False)


@pytest.mark.parametrize("given", ['{"S": []}', '{"S": 0}', '{"S": ["0"]}', '{"S": [-1]}', "{}", "[]"])
def test_what_can_not_be_assigned(given: str) -> None:
    with pytest.raises(OptionError, match="assign"):
        source_options("liftbridge", {"servers": "a:1", "assign": given}, streaming=False)


class TestSinks:
    def test_defaults(self) -> None:
        found = sink_options("liftbridge", {"servers": "a:1", "checkpointLocation": "/x"}, streaming=True)
        assert (found.topic, found.once, found.max_in_flight) == (None, False, 4_000)
        assert (found.ack_all, found.partitioner) == (False, "key")

    def test_all_of_it(self) -> None:
        given: dict[str, Any] = {
            "servers": "a:1",
            "topic": "S",
            "subject": "s.x",
            "envelope": "true",
            "deliveryGuarantee": "effectively-once",
            "maxInFlight": 10,
        }
        found = sink_options("jetstream", given, streaming=True)
        assert (found.subject, found.envelope, found.once, found.max_in_flight) == ("s.x", True, True, 10)

    @pytest.mark.parametrize(
        ("format_", "options", "streaming", "text"),
        [
            ("liftbridge", {"subject": "x"}, True, "unknown option 'subject'"),
            ("liftbridge", {"ackPolicy": "none"}, True, "ackPolicy must be 'leader' or 'all', got 'none'"),
            ("liftbridge", {"deliveryGuarantee": "effectively-once"}, True, "needs the option topic"),
            ("liftbridge", {"deliveryGuarantee": "effectively-once", "topic": "S"}, False, "leave it out"),
            ("liftbridge", {"deliveryGuarantee": "exactly-once"}, True, "or 'effectively-once', got"),
            (
                "liftbridge",
                {"deliveryGuarantee": "effectively-once", "topic": "S", "ackPolicy": "leader"},
                True,
                "only the leader has is lost with the leader",
            ),
            ("liftbridge", {"topic": "a", "path": "b"}, True, "exclude each other"),
            ("liftbridge", {"topic": "a b"}, True, "topic='a b'"),
            ("jetstream", {"deliveryGuarantee": "effectively-once"}, True, "needs the option topic"),
            (
                "jetstream",
                {"deliveryGuarantee": "effectively-once", "topic": "S"},
                False,
                "column 'msgId'",
            ),
            ("jetstream", {"startingOffsets": "latest"}, True, "unknown option 'startingOffsets'"),
            ("jetstream", {"subject": "s.*"}, True, r"subject must not have a wildcard, got 's\.\*'"),
            ("jetstream", {"subject": "s..x"}, True, "subject must have no empty token"),
            ("liftbridge", {"maxMessageBytes": "9999999999"}, True, "maxMessageBytes must be at most 10737"),
            ("liftbridge", {"maxRequestBytes": "9999999999"}, True, "maxRequestBytes must be at most 42949"),
            ("jetstream", {"maxRequestBytes": "9"}, True, "unknown option 'maxRequestBytes'"),
        ],
    )
    def test_refused(self, format_: str, options: dict[str, str], streaming: bool, text: str) -> None:
        with pytest.raises(OptionError, match=text):
            sink_options(format_, {"servers": "a:1", **options}, streaming=streaming)


@pytest.mark.parametrize(
    ("start", "end"),
    [
        ({"startingOffsets": '{"ORDERS": 5}'}, {"endingOffsets": '{"ORDERS": 5}'}),
        ({"startingOffsets": '{"ORDERS": 5}'}, {"endingOffsets": '{"ORDERS": -1}'}),
        ({"startingOffsets": '{"ORDERS": -1}'}, {"endingOffsets": '{"ORDERS": 0}'}),
        ({"startingOffsets": '{"ORDERS": 5}'}, {"endingTimestamp": "4"}),
        ({"startingTimestamp": "5"}, {"endingOffsets": '{"ORDERS": 4}'}),
        ({"startingTimestamp": "5"}, {"endingTimestamp": "5"}),
    ],
)
def test_what_may_have_something_in_it(start: dict[str, str], end: dict[str, str]) -> None:
    source_options("jetstream", {**JS, **start, **end}, streaming=False)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5", 5.0), ("90s", 90.0), ("500ms", 0.5), ("15m", 900.0), ("1.5 h", 5400.0), ("2d", 172_800.0)],
)
def test_durations(text: str, seconds: float) -> None:
    assert duration("x", text) == seconds


@pytest.mark.parametrize("text", ["", "s", "-1s", "0", "1y", "nan", "inf", "1e999", "1 2", "1s1s"])
def test_no_durations(text: str) -> None:
    with pytest.raises(OptionError, match="must be a time"):
        duration("x", text)


@pytest.mark.parametrize(("text", "truth"), [("TRUE", True), ("0", False), (True, True), (False, False)])
def test_truths(text: object, truth: bool) -> None:
    assert Words({"a": text}, ["a"]).truth("a", default=not truth) is truth


SHAPE = '{"format": "json", "schema": {"id": "int64"}}'


class TestPayloads:
    def test_options_can_be_pickled(self) -> None:
        given = {"payload": SHAPE, "onBad": '{"stream": "BAD", "subject": "bad"}'}
        options = source_options("jetstream", {**JS, **given}, streaming=True)
        assert options.payload == Json(pa.schema({"id": pa.int64()}))
        assert options.on_bad == DeadLetter(stream="BAD", subject="bad")
        assert pickle.loads(pickle.dumps(options)) == options
        assert [name for name, _, _ in options.columns()][-1] == "id"

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"payload": "xml"}, "option payload: payload must be .*, got 'xml'"),
            ({"payload": "{"}, "payload must be a name or a JSON object"),
            ({"payload": '{"format": "json", "schemas": 1}'}, "options of json must be some of"),
            ({"payload": SHAPE, "onBad": "drop"}, 'onBad must be "fail", "column"'),
            ({"payload": SHAPE, "onBad": '{"topic": "x"}'}, "onBad must be .*topic"),
            ({"onBad": "column"}, "onBad='column' needs payload"),
            ({"payload": SHAPE, "onBad": '{"stream": "BAD"}'}, "onBad: subject must be given"),
            ({"payload": SHAPE, "onBad": '{"stream": "", "subject": "b"}'}, "stream must not be empty"),
        ],
    )
    def test_wrong_option_is_named(self, options: dict[str, str], text: str) -> None:
        with pytest.raises(OptionError, match=text):
            source_options("jetstream", {**JS, **options}, streaming=True)

    def test_name_of_a_stream_stays_as_it_is(self) -> None:
        bad = {"payload": SHAPE, "onBad": '{"stream": "on_bad", "subject": "b"}', "subscribe": "on_bad"}
        with pytest.raises(OptionError, match=r"onBad must name another stream .*, got 'on_bad'"):
            source_options("jetstream", {**JS, **bad}, streaming=True)

    @pytest.mark.parametrize(
        ("payload", "text"),
        [
            ("json", 'must have a schema in Spark, as in {"format": "json"'),
            ('{"format": "json", "schema": {"Topic": "int64"}}', "field 'Topic' must not have the name"),
            ('{"format": "json", "schema": {"headers": "int64"}}', "field 'headers' must not have the name"),
            (
                '{"format": "json", "schema": {"a": "int64", "A": "int64"}}',
                "field 'A' must not have the name",
            ),
            (
                '{"format": "arrow", "schema": {"a": {"b": "time64[us]"}}}',
                "'a.b' must have a type that Spark has",
            ),
        ],
    )
    def test_columns_that_spark_can_not_have_are_named(self, payload: str, text: str) -> None:
        options = row_options("jetstream", {**JS, "payload": payload})
        with pytest.raises(OptionError, match=text):
            options.columns()

    @pytest.mark.parametrize(
        ("format_", "options", "text"),
        [
            ("jetstream", {"payload": "json", "packRows": "5"}, "packRows needs payload='arrow'"),
            ("jetstream", {"packBytes": "5"}, "packBytes needs payload='arrow'"),
            (
                "liftbridge",
                {"payload": "json", "deliveryGuarantee": "effectively-once"},
                "encode the rows into a column 'value' instead",
            ),
        ],
    )
    def test_sink_refuses_what_it_can_not_do(self, format_: str, options: dict[str, str], text: str) -> None:
        given = {"servers": OF[format_]["servers"], "topic": "a", **options}
        with pytest.raises(OptionError, match=text):
            sink_options(format_, given, streaming=True)

    def test_sink_needs_columns_of_the_payload(self) -> None:
        for columns in ([("key", "binary")], [("value", "binary"), ("id", "bigint")]):
            with pytest.raises(OptionError, match="the rows must have columns for the payload, got"):
                check_sink("jetstream", columns, topic="a", subject="b", encodes=True)
        check_sink(
            "jetstream", [("id", "bigint"), ("offset", "bigint")], topic="a", subject="b", encodes=True
        )

    @pytest.mark.parametrize(
        ("format_", "name"),
        [
            *[("jetstream", name) for name in ("key", "headers", "subject", "msgId")],
            *[("liftbridge", name) for name in ("key", "headers", "partition")],
        ],
    )
    def test_sink_refuses_columns_that_a_message_of_many_rows_has_no_place_for(
        self, format_: str, name: str
    ) -> None:
        with pytest.raises(OptionError, match=f"column '{name}' must not be given with this payload"):
            check_packed(format_, ["id", name], subject=None, headers=True)

    def test_sink_packs_rows_with_columns_that_it_leaves_out(self) -> None:
        check_packed(
            "jetstream", ["id", "topic", "subject", "headers", "partition"], subject="s", headers=False
        )
        check_packed("liftbridge", ["id", "topic", "subject", "offset"], subject=None, headers=True)

"""Tables in notebooks and short reprs: escaped, bounded, and with the values that matter."""

from __future__ import annotations

import html
import pickle
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftenvelope import bulk
from liftenvelope._showing import MAX_ROWS, MAX_TEXT, html_table, short
from liftenvelope.client._publish_summary import PublishSummary
from liftenvelope.client.metadata import BrokerInfo, GroupInfo, Metadata, PartitionInfo, StreamInfo
from liftenvelope.errors import AckTimeoutError
from liftenvelope.group import GroupInfo as NatsGroupInfo
from liftenvelope.group import MemberInfo, TopicPartition
from liftenvelope.group.state import Phase
from liftenvelope.jetstream import StreamConfig
from liftenvelope.jetstream import StreamInfo as JetStreamInfo
from liftenvelope.jetstream.infos import StreamState
from liftenvelope.nats._batch_acks import BatchSummary

HOSTILE = "<script>alert('x')</script>\ud800"


def cells(table: str) -> list[str]:
    """Return the text of a table's cells, and check that nothing else is markup."""
    tags = set(re.findall(r"</?(\w+)[^>]*>", table))
    assert tags <= {"table", "caption", "thead", "tbody", "tr", "th", "td"}, tags
    table.encode()
    return [html.unescape(cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", table, re.DOTALL)]


def nats_group(members: int, topics: tuple[str, ...] = ("orders",)) -> NatsGroupInfo:
    infos = (
        MemberInfo(f"{topics[0]}-{number}", "c", topics, (TopicPartition(topics[0], number),), 10.0)
        for number in range(members)
    )
    return NatsGroupInfo(
        topics[0],
        "co",
        "subject",
        10.0,
        3,
        Phase.STABLE,
        (),
        tuple(infos),
        ephemeral=False,
        assignor="sticky",
    )


def batch_summary(failures: int) -> BatchSummary:
    summary = BatchSummary(2 * failures)
    summary.failures.update(dict.fromkeys(range(failures), AckTimeoutError(HOSTILE)))
    return summary


def partitions(count: int) -> dict[int, PartitionInfo]:
    return dict.fromkeys(range(count), PartitionInfo(0, HOSTILE, isr=(HOSTILE,) * 50))


LARGE = [
    PublishSummary(1, dict.fromkeys(range(5000), AckTimeoutError(HOSTILE * 1000)), {}),
    PublishSummary(9, {}, {number: (0, number) for number in range(5000)}),
    batch_summary(5000),
    bulk.Written(5000, 1, 0, dict.fromkeys(range(5000), (0, 1))),
    bulk.Archived((Path(HOSTILE),) * 5000, 5000, 1),
    bulk.Restored(1, 2, 3, keeps_offsets=True),
    bulk.TableWritten(1, 2, {number: number for number in range(5000)}, 7),
    StreamInfo(HOSTILE, HOSTILE * 1000, partitions(5000)),
    Metadata({}, {f"{HOSTILE}{n}": StreamInfo(HOSTILE) for n in range(5000)}, {}, datetime.now(UTC)),
    GroupInfo(HOSTILE, HOSTILE, 7),
    nats_group(5000, (HOSTILE,)),
    JetStreamInfo(
        config=StreamConfig(name="N", description="<b>" * 1000, metadata={HOSTILE[:-1]: HOSTILE[:-1]}),
        state=StreamState(messages=3, subjects={f"{HOSTILE[:-1]}{number}": 1 for number in range(5000)}),
    ),
]


@pytest.mark.parametrize("value", LARGE, ids=lambda value: f"{type(value).__module__}.{type(value).__name__}")
def test_large_and_hostile_values_are_escaped_and_bounded(value: object) -> None:
    table = value._repr_html_()  # type: ignore[attr-defined]
    shown = cells(table)
    assert len(shown) <= 7 * (MAX_ROWS + 1)
    assert (
        max(map(len, shown)) <= MAX_TEXT + 6 * MAX_TEXT
    )  # a lone surrogate becomes an escape of six characters
    assert len(repr(value)) < 25 * MAX_TEXT


def test_table_counts_the_rows_that_it_leaves_out() -> None:
    shown = cells(html_table("t", ("n",), ((number,) for number in range(1000)), 1000))
    assert shown == [*map(str, range(MAX_ROWS)), "… and 950 more"]


def test_columns_of_text_are_aligned_to_the_left_and_of_numbers_as_jupyter_does() -> None:
    table = html_table("t", ("name", "count", "open"), [("a", 1, True), ("b", 2.5, False)], 2)
    left = '<t[hd] style="text-align: left">'
    assert re.findall(rf"({left}|<t[hd]>)(\w+)", table)[:6] == [
        ('<th style="text-align: left">', "name"),
        ("<th>", "count"),
        ('<th style="text-align: left">', "open"),
        ('<td style="text-align: left">', "a"),
        ("<td>", "1"),
        ('<td style="text-align: left">', "True"),
    ]


def test_table_without_rows_is_its_title_alone() -> None:
    assert html_table("5 stored, 0 failed", ("partition",), (), 0) == "<div>5 stored, 0 failed</div>"


def test_publish_summary_shows_offsets_or_failures() -> None:
    stored = PublishSummary(12, {}, {0: (0, 4), 1: (3, 9)})
    assert cells(stored._repr_html_()) == ["0", "0", "4", "1", "3", "9"]
    assert repr(stored) == "PublishSummary(12 stored, 0 failed, offsets {0: 0-4, 1: 3-9})"
    failed = PublishSummary(1, {5: AckTimeoutError("late")}, {0: (0, 0)})
    assert cells(failed._repr_html_()) == ["5", "AckTimeoutError", "late"]


def test_stream_info_of_the_client_shows_its_partitions() -> None:
    info = StreamInfo("orders", "o.in", {0: PartitionInfo(0, "a", ("a", "b"), ("a", "b"), 7, 8)})
    assert cells(info._repr_html_()) == ["0", "a", "a, b", "7", "8", "False", "False"]
    assert repr(info) == "StreamInfo(name='orders', subject='o.in', partitions=<1 partitions>)"


def test_metadata_shows_its_streams() -> None:
    streams = {"orders": StreamInfo("orders", "o.in", {0: PartitionInfo(0), 1: PartitionInfo(1)})}
    metadata = Metadata({"a": BrokerInfo("a", "h", 1)}, streams, {}, datetime(2026, 1, 1, tzinfo=UTC))
    assert cells(metadata._repr_html_()) == ["orders", "o.in", "2"]
    assert repr(metadata).startswith("Metadata(1 brokers, 1 streams, 0 groups, ")


def test_group_shows_its_members() -> None:
    assert cells(nats_group(1)._repr_html_()) == ["orders-0", "orders", "orders/0"]
    assert repr(nats_group(2)) == "GroupInfo('orders', STABLE, generation 3, <0 topics>, <2 members>)"


def test_records_of_jetstream_show_what_differs_from_the_defaults() -> None:
    config = StreamConfig(name="ORDERS", subjects=("orders.*",))
    assert repr(config) == "StreamConfig(name='ORDERS', subjects=('orders.*',))"
    assert eval(repr(config)) == config
    info = JetStreamInfo(config=config, created=datetime(2026, 1, 2, tzinfo=UTC))
    shown = cells(info._repr_html_())
    pairs = dict(zip(shown[::2], shown[1::2], strict=True))
    assert pairs["config.name"] == "ORDERS"
    assert pairs["created"] == "2026-01-02 00:00:00+00:00"
    assert pairs["state.messages"] == "0"
    assert pickle.loads(pickle.dumps(info)) == info


@given(
    st.recursive(
        st.none() | st.integers() | st.text() | st.binary() | st.datetimes(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=20,
    )
)
def test_short_text_of_any_value_is_bounded(value: object) -> None:
    assert len(short(value)) <= MAX_TEXT


def test_short_text_of_deeply_nested_values_ends() -> None:
    nested: object = 1
    for _ in range(500):
        nested = (nested,)
    assert len(short(nested)) <= MAX_TEXT

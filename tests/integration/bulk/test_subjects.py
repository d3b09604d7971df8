"""Bulk reads of some subjects, on a real server, beside a filter of everything that was published."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nats.js import JetStreamContext

import liftenvelope
from liftenvelope import bulk
from liftenvelope.bulk import Access, Gap, Progress, RetentionError
from liftenvelope.bulk._jetstream.consumer_read import ConsumerRead
from liftenvelope.bulk._jetstream.filter_gaps import FilterGaps
from liftenvelope.bulk._jetstream.requests import JetStreamRequests, consumer_request
from liftenvelope.bulk._jetstream.stream_clock import StreamTimes
from liftenvelope.client.positions import Start
from liftenvelope.errors import TransportError, UsageError
from liftenvelope.testing import FaultProxy, LiftbridgeCluster, NatsServer
from tests.integration.bulk_streams import (
    BulkThreads,
    make_stream,
    offsets,
    publish,
    wait_for,
    with_jetstream,
)

WORDS = ["a", "b", "ü", "$c"]
COUNT = 600


@pytest.fixture(scope="module")
def tree(server: NatsServer) -> list[str]:
    """The subjects of the messages of stream TREE, which allows direct requests."""
    choose = random.Random(7)
    subjects = [
        ".".join(["TREE", *(choose.choice(WORDS) for _ in range(choose.randint(1, 4)))]) for _ in range(COUNT)
    ]
    make_stream(server.url, "TREE", allow_direct=True)
    publish(server.url, [(subject, b"%d" % at, None) for at, subject in enumerate(subjects)])
    return subjects


@contextmanager
def filtered_by(who: str) -> Iterator[None]:
    """Have all reads filtered by the server, or all by the reader."""
    with patch("liftenvelope.bulk._jetstream.filter_choice.server_pays", lambda *_: who == "server"):
        yield


def matches(pattern: str, subject: str) -> bool:
    wanted, words = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        wanted, words = wanted[:-1], words[: len(wanted) - 1] if len(words) >= len(wanted) else []
        if not words and wanted:
            return False
    return len(wanted) == len(words) and all(w in ("*", word) for w, word in zip(wanted, words, strict=True))


@st.composite
def patterns(draw: st.DrawFn) -> str:
    tokens = ["TREE", *draw(st.lists(st.sampled_from(["*", *WORDS, "none"]), min_size=1, max_size=4))]
    return ".".join([*tokens[:-1], ">"] if draw(st.booleans()) else tokens)


@settings(max_examples=25)
@given(
    wanted=st.lists(patterns(), min_size=1, max_size=5),
    start=st.integers(0, COUNT),
    length=st.integers(0, COUNT),
    who=st.sampled_from(["server", "reader", "direct"]),
    parallel=st.sampled_from([None, 2]),
)
def test_read_and_count_return_exactly_the_messages_that_match(
    server: NatsServer, tree: list[str], wanted: list[str], start: int, length: int, who: str, parallel: Any
) -> None:
    stop = min(start + length, COUNT)
    expected = [at for at in range(start, stop) if any(matches(one, tree[at]) for one in wanted)]
    seen: list[Progress] = []
    options: dict[str, Any] = {"subjects": wanted, "start": start, "stop": stop}
    with filtered_by(who):
        table = bulk.read(
            server.url,
            "TREE",
            **options,
            columns=["value", "offset"],
            parallel=parallel,
            via="direct" if who == "direct" else "auto",
            progress=seen.append,
        ).read_all()
    rows = sorted(zip(offsets(table), table["value"].to_pylist(), strict=True))
    assert rows == [(at, b"%d" % at) for at in expected]
    assert bulk.count(server.url, "TREE", **options) == len(expected)
    if stop > start:
        assert (seen[-1].rows, seen[-1].done, seen[-1].total) == (len(expected), stop - start, stop - start)


def test_server_gets_the_filter_only_if_that_pays(server: NatsServer) -> None:
    make_stream(server.url, "CHOICE")
    subjects = ["CHOICE.rare"] * 10 + [f"CHOICE.{at % 5}" for at in range(490)]
    publish(server.url, [(subject, b"", None) for subject in subjects])

    def choice(*wanted: str, on_gap: Callable[[Gap], object] | None = None, **access: Any) -> object:
        asked: list[dict[str, Any]] = []

        def request(*args: Any, **options: Any) -> dict[str, Any]:
            asked.append(consumer_request(*args, **options)["config"])
            return consumer_request(*args, **options)

        with patch("liftenvelope.bulk._jetstream.requests.consumer_request", request):
            reader = bulk.read(server.url, "CHOICE", subjects=wanted, on_gap=on_gap, access=Access(**access))
            found = offsets(reader.read_all())
        assert found == [
            at for at, subject in enumerate(subjects) if any(matches(w, subject) for w in wanted)
        ]
        return (*asked[0].get("filter_subjects", ()), *filter(None, [asked[0].get("filter_subject")]))

    assert choice("CHOICE.rare") == ("CHOICE.rare",)
    assert choice("CHOICE.rare", "CHOICE.none") == ("CHOICE.none", "CHOICE.rare")
    assert choice("CHOICE.none") == ("CHOICE.none",)
    # Everything, most, more filters than a consumer should get, more subjects than the limit, gaps wanted.
    assert choice(">") == choice("CHOICE.*") == choice("CHOICE.rare", "CHOICE.*") == ()
    assert choice("CHOICE.1", "CHOICE.2", "CHOICE.3") == ()
    assert choice("CHOICE.rare", *(f"CHOICE.no.{at}" for at in range(100))) == ()
    assert choice("CHOICE.rare", "CHOICE.0", max_subjects=1) == ()
    assert choice("CHOICE.r*", "CHOICE.*", max_subjects=2) == ()
    assert choice("CHOICE.rare", on_gap=lambda _: None) == ()


@pytest.mark.parametrize("busy", [1, 3, 10_000])
def test_count_of_a_range_is_exact_while_messages_come(server: NatsServer, busy: int) -> None:
    """A message comes just after the server has counted, ``busy`` times. In the end a read counts."""
    name, probe, left = f"BUSY{busy}", JetStreamRequests.probe, itertools.count(busy, -1)
    make_stream(server.url, name)
    publish(server.url, [(f"{name}.{at % 2}", b"", None) for at in range(60)])

    def publish_after(source: JetStreamRequests, *args: Any) -> int:
        found = probe(source, *args)
        if next(left) > 0:
            publish(server.url, [(f"{name}.0", b"", None)])
        return found

    with patch.object(JetStreamRequests, "probe", publish_after):
        assert bulk.count(server.url, name, start=10, stop=50) == 40
        assert bulk.count(server.url, name, start=10, stop=50, subjects=f"{name}.0") == 20
        assert bulk.count(server.url, name) >= 60


def test_gaps_of_a_filtered_read_are_offsets_without_any_message(server: NatsServer) -> None:
    make_stream(server.url, "GAPS")
    publish(server.url, [(f"GAPS.{at % 2}", b"", None) for at in range(20)])

    async def delete(js: JetStreamContext) -> None:
        for sequence in (5, 6, 20):
            await js.delete_msg("GAPS", sequence)

    with_jetstream(server.url, delete)
    gaps: list[Gap] = []
    table = bulk.read(server.url, "GAPS", subjects="GAPS.0", on_gap=gaps.append).read_all()
    assert offsets(table) == [0, 2, 6, 8, 10, 12, 14, 16, 18]
    assert gaps == [Gap(0, 4, 6), Gap(0, 19, 20)]


@pytest.mark.parametrize("who", ["server", "reader"])
def test_filtered_read_resumes_exactly_after_a_lost_connection(server: NatsServer, who: str) -> None:
    name, count = f"LOST{who}", 3_000
    make_stream(server.url, name)
    publish(server.url, [(f"{name}.{at % 7}", b"x" * 900, None) for at in range(count)])
    with FaultProxy(server.url) as proxy, filtered_by(who):
        reader = bulk.read(
            f"nats://{proxy.address}", name, subjects=[f"{name}.2", f"{name}.3"], batch_rows=40
        )
        found = offsets(pa.Table.from_batches([reader.read_next_batch()]))
        proxy.cut()
        found += offsets(reader.read_all())
    assert found == [at for at in range(count) if at % 7 in (2, 3)]


def test_retention_of_other_subjects_is_no_loss_of_a_filtered_read(server: NatsServer) -> None:
    """Messages before the first that matches are gone before the read has passed them."""
    make_stream(server.url, "KEEP")
    publish(
        server.url, [("KEEP.wanted" if at in (600, 900) else "KEEP.other", b"", None) for at in range(1_000)]
    )
    _purge_while_reading(server, "KEEP", 500)


def lost_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    lines = [one.message for one in caplog.records if one.name == "liftenvelope.bulk"]
    return [one for one in lines if "retention took" in one]  # a busy machine may lose a read, too


@pytest.mark.parametrize("first", [300, 600])
def test_matching_messages_that_retention_takes_from_a_filtered_read_are_logged(
    server: NatsServer, caplog: pytest.LogCaptureFixture, first: int
) -> None:
    name = f"SKIP{first}"
    make_stream(server.url, name)
    publish(
        server.url,
        [(f"{name}.wanted" if at in (first, 900) else f"{name}.other", b"", None) for at in range(1_000)],
    )
    found = _purge_while_reading(server, name, 500, on_retention="skip")
    assert found == [at for at in (first, 900) if at > 500]
    text = f"{name}: retention took messages of the filter from offset 0 on before they were read"
    assert lost_lines(caplog) == [text] * (first < 500)


def test_retention_of_a_matching_message_fails_a_filtered_read(server: NatsServer) -> None:
    make_stream(server.url, "GONE")
    publish(
        server.url,
        [("GONE.wanted" if at in (300, 900) else "GONE.other", b"", None) for at in range(1_000)],
    )
    with pytest.raises(RetentionError, match=r"GONE\[0\]: message 0 is gone, the oldest is 500"):
        _purge_while_reading(server, "GONE", 500)


@pytest.mark.parametrize("method", ["_count_matching", "_lost_of_backlog"])
def test_messages_that_come_meanwhile_do_not_hide_that_retention_took_others(
    server: NatsServer, method: str
) -> None:
    name = f"HIDDEN{method}"
    make_stream(server.url, name)
    publish(
        server.url,
        [(f"{name}.wanted" if at in (300, 900) else f"{name}.other", b"", None) for at in range(1_000)],
    )
    count, probe, left = getattr(ConsumerRead, method), JetStreamRequests.probe, itertools.count(3, -1)

    def publish_after(source: JetStreamRequests, *args: Any) -> int:
        found = probe(source, *args)
        if next(left) > 0:
            publish(server.url, [(f"{name}.wanted", b"", None)])
        return found

    def publish_while(read: ConsumerRead, *args: Any) -> Any:
        publish(server.url, [(f"{name}.wanted", b"", None)])  # after the consumer was made
        with patch.object(JetStreamRequests, "probe", publish_after):
            return count(read, *args)

    with (
        patch.object(ConsumerRead, method, publish_while),
        pytest.raises(RetentionError, match=rf"{name}\[0\]: message 0 is gone, the oldest is 500"),
    ):
        _purge_while_reading(server, name, 500, batch_rows=1)


def test_retention_is_noticed_though_the_server_did_not_answer_at_first(server: NatsServer) -> None:
    make_stream(server.url, "MUTE")
    publish(
        server.url,
        [("MUTE.wanted" if at in (300, 900) else "MUTE.other", b"", None) for at in range(1_000)],
    )
    ask, failures = JetStreamRequests.oldest_at, iter([TransportError("as if the connection was lost")])

    def ask_late(source: JetStreamRequests) -> tuple[int, float, StreamTimes]:
        for failure in failures:
            raise failure
        return ask(source)

    with (
        patch.object(JetStreamRequests, "oldest_at", ask_late),
        pytest.raises(RetentionError, match=r"MUTE\[0\]: message 0 is gone, the oldest is 500"),
    ):
        _purge_while_reading(server, "MUTE", 500)
    assert not list(failures)


def test_holes_of_a_bucket_are_looked_at_once(server: NatsServer) -> None:
    """A filtered tail asked the server at each later message, and in between."""
    make_stream(server.url, "HOLES", max_msgs_per_subject=1)
    rewritten = [f"HOLES.{at}" for at in range(20)]
    publish(server.url, [(subject, b"", None) for subject in rewritten])
    threads, asked = BulkThreads(), list[JetStreamRequests]()
    ask, count_matching = JetStreamRequests.oldest_at, ConsumerRead._count_matching

    def rewrite_first(read: ConsumerRead, left: int) -> None:
        count_matching(read, left)
        publish(server.url, [(subject, b"", None) for subject in rewritten])

    def note(source: JetStreamRequests) -> tuple[int, float, StreamTimes]:
        asked.append(source)
        return ask(source)

    with (
        filtered_by("server"),
        patch.object(JetStreamRequests, "oldest_at", note),
        patch.object(ConsumerRead, "_count_matching", rewrite_first),
    ):
        reader = bulk.tail(server.url, "HOLES", subjects="HOLES.*", start="earliest", batch_seconds=0.05)
        for at in range(5):
            publish(server.url, [(f"HOLES.new{at}", b"", None)])
            while reader.read_next_batch()["offset"].to_pylist()[-1] < 40 + at:
                pass
        assert len(asked) == 1
        del reader
        threads.wait_until_gone()


def test_retention_of_messages_on_their_way_is_no_loss_of_a_filtered_read(server: NatsServer) -> None:
    """Matching messages are gone from the stream before the read has handed them out."""
    make_stream(server.url, "SENT")
    publish(server.url, [("SENT.wanted" if at else "SENT.other", b"", None) for at in range(100)])
    check = ConsumerRead._check_gaps
    purged: list[int] = []

    async def purge(js: JetStreamContext) -> None:
        await js.purge_stream("SENT")

    def purge_first(read: ConsumerRead) -> None:
        if not purged:
            with_jetstream(server.url, purge)
        purged.append(len(purged))
        check(read)

    with filtered_by("server"), patch.object(ConsumerRead, "_check_gaps", purge_first):
        found = bulk.read(server.url, "SENT", subjects="SENT.wanted", batch_rows=10).read_all()
    assert offsets(found) == list(range(1, 100))
    assert purged


def _purge_while_reading(server: NatsServer, name: str, oldest: int, **options: Any) -> list[int]:
    """Read messages, some of which are purged after the consumer was made and before its first pull."""
    pull = ConsumerRead._pull
    purged = []

    async def purge(js: JetStreamContext) -> None:
        await js.purge_stream(name, seq=oldest + 1)
        purged.append(name)

    def purge_first(read: ConsumerRead, link: Any) -> None:
        if not purged:
            with_jetstream(server.url, purge)
        pull(read, link)

    with filtered_by("server"), patch.object(ConsumerRead, "_pull", purge_first):
        reader = bulk.read(server.url, name, subjects=f"{name}.wanted", **options)
        return offsets(reader.read_all())


@pytest.mark.parametrize("who", ["server", "reader"])
def test_tail_follows_the_subjects_that_match(server: NatsServer, who: str) -> None:
    name = f"TAIL{who}"
    make_stream(server.url, name)
    publish(server.url, [(f"{name}.old", b"", None)])
    threads = BulkThreads()
    with filtered_by(who):
        reader = bulk.tail(server.url, name, subjects=f"{name}.*.new", batch_seconds=0.05)
    publish(server.url, [(f"{name}.{at}.{kind}", b"", None) for at in range(50) for kind in ("new", "old")])
    found: list[int] = []
    while len(found) < 50:
        found += reader.read_next_batch()["offset"].to_pylist()
    assert found == list(range(1, 101, 2))
    del reader
    threads.wait_until_gone()


def test_quiet_tail_of_a_rare_subject_outlives_retention(server: NatsServer) -> None:
    """Retention passes the offset of the last match many times, and nothing that matches is lost."""
    make_stream(server.url, "RARE", max_msgs=10)
    publish(server.url, [("RARE.wanted", b"", None)])
    with filtered_by("server"):
        reader = bulk.tail(server.url, "RARE", subjects="RARE.wanted", start="earliest", batch_seconds=0.05)
    assert offsets(pa.Table.from_batches([reader.read_next_batch()])) == [0]
    publish(server.url, [("RARE.other", b"", None)] * 100)
    time.sleep(0.2)  # of a message that retention takes within milliseconds, nobody knows whether it was sent
    publish(server.url, [("RARE.wanted", b"", None)])
    assert offsets(pa.Table.from_batches([reader.read_next_batch()])) == [101]


def test_gap_that_retention_takes_before_its_batch_ends_is_no_loss(server: NatsServer) -> None:
    make_stream(server.url, "LONG", max_msgs=20)
    wanted, others = ("LONG.wanted", b"", None), [("LONG.other", b"", None)] * 5
    with filtered_by("server"), told_current() as wait_until_current:
        reader = bulk.tail(
            server.url, "LONG", subjects="LONG.wanted", start="earliest", batch_rows=4, batch_seconds=600
        )
        for _ in range(3):
            publish(server.url, [wanted, *others])
            wait_until_current()
        publish(server.url, others * 20)
        wait_until_current()
        publish(server.url, [wanted])
        assert offsets(pa.Table.from_batches([reader.read_next_batch()])) == [0, 6, 12, 118]


def test_tail_that_is_not_read_notices_that_retention_took_messages_that_match(server: NatsServer) -> None:
    make_stream(server.url, "SLOW", max_msgs=40)
    publish(server.url, [("SLOW.wanted", b"", None)])
    with filtered_by("server"):
        reader = bulk.tail(server.url, "SLOW", subjects="SLOW.wanted", start="earliest", batch_bytes=1 << 20)
    reader.read_next_batch()
    for _ in range(4):
        publish(server.url, [("SLOW.wanted", bytes(100_000), None)] * 300)
    with pytest.raises(RetentionError):
        reader.read_all()


def test_rows_that_are_received_late_are_no_sign_that_nothing_was_lost(server: NatsServer) -> None:
    """The pulls have ended long before the reader hears of it."""
    make_stream(server.url, "LATE", max_msgs=40)
    publish(server.url, [("LATE.wanted", b"", None)])
    with FaultProxy(server.url) as proxy, ThreadPoolExecutor() as threads:
        with filtered_by("server"):
            url = f"nats://{proxy.address}"
            reader = bulk.tail(url, "LATE", subjects="LATE.wanted", start="earliest", batch_bytes=1 << 20)
        reader.read_next_batch()
        proxy.stall("to_client")
        with_jetstream(server.url, partial(_publish_slowly, subject="LATE.wanted"))
        reading = threads.submit(reader.read_all)
        proxy.resume("to_client")
        with pytest.raises(RetentionError):
            reading.result(60)


async def _publish_slowly(js: JetStreamContext, subject: str) -> None:
    """Publish more than a tail reads ahead, so that each message is delivered with none pending."""
    for _ in range(600):
        await js.publish(subject, bytes(100_000))


def test_silence_of_a_server_that_has_not_answered_a_pull_is_no_sign_that_nothing_was_lost(
    server: NatsServer,
) -> None:
    make_stream(server.url, "STALLED", max_msgs=40)
    with FaultProxy(server.url) as proxy, ThreadPoolExecutor() as threads:
        with filtered_by("server"), told_current() as wait_until_current:
            url = f"nats://{proxy.address}"
            reader = bulk.tail(
                url, "STALLED", subjects="STALLED.wanted", start="earliest", batch_bytes=1 << 20
            )
            wait_until_current()  # what retention takes before the tail begins is none of its messages
        with_jetstream(server.url, partial(_publish_slowly, subject="STALLED.wanted"))
        proxy.stall("to_client")
        reading = threads.submit(reader.read_all)
        time.sleep(0.5)  # ten times as long as the silence that counts
        proxy.resume("to_client")
        with pytest.raises(RetentionError):
            reading.result(60)


def test_heartbeats_after_retention_took_all_are_no_sign_that_nothing_was_lost(server: NatsServer) -> None:
    make_stream(server.url, "EMPTIED", max_msgs=40)
    with ThreadPoolExecutor() as threads:
        with filtered_by("server"):
            reader = bulk.tail(
                server.url, "EMPTIED", subjects="EMPTIED.wanted", start="earliest", batch_bytes=1 << 20
            )
        with_jetstream(server.url, partial(_publish_slowly, subject="EMPTIED.wanted"))
        publish(server.url, [("EMPTIED.other", b"", None)] * 40)
        reading = threads.submit(reader.read_all)
        time.sleep(3)  # a heartbeat comes each second
        publish(server.url, [("EMPTIED.wanted", b"", None)])
        with pytest.raises(RetentionError):
            reading.result(60)


@contextmanager
def told_current() -> Iterator[Callable[[], None]]:
    """Yield a function that waits until a tail has proof that it has all that was published so far."""
    latest, tell = [0.0], FilterGaps.was_current

    def note(gaps: FilterGaps, at: float) -> None:
        tell(gaps, at)
        latest[0] = at

    def wait() -> None:
        now = time.time()
        wait_for("proof that the tail is current", lambda: latest[0] > now)

    with patch.object(FilterGaps, "was_current", note):
        yield wait


@contextmanager
def counted(method: str) -> Iterator[Callable[[], None]]:
    """Count the calls of a method of reads; the function waits for two more to return."""
    calls, work = list[object](), getattr(ConsumerRead, method)

    def note(read: ConsumerRead, *args: Any) -> Any:
        found = work(read, *args)
        calls.append(found)
        return found

    def wait() -> None:
        before = len(calls)
        wait_for(method, lambda: len(calls) >= before + 2)

    with patch.object(ConsumerRead, method, note):
        yield wait


@pytest.mark.parametrize("start", ["new", "earliest"])
def test_tail_whose_first_pull_is_late_notices_that_retention_took_messages_that_match(
    server: NatsServer, start: Start
) -> None:
    """With start="earliest", the gap begins in the backlog, of which nothing is missing."""
    name = f"FIRST{start}"
    make_stream(server.url, name, max_msgs=20)
    publish(server.url, [(f"{name}.other", b"", None)] * 5)
    was_opened, begin = threading.Event(), ConsumerRead._open

    with FaultProxy(server.url) as proxy, counted("_check_silence") as wait_for_silence:

        def stall_then(read: ConsumerRead, link: Any) -> bool:
            found = begin(read, link)
            proxy.stall("to_server")
            was_opened.set()
            return found

        with filtered_by("server"), patch.object(ConsumerRead, "_open", stall_then):
            reader = bulk.tail(f"nats://{proxy.address}", name, subjects=f"{name}.wanted", start=start)
            assert was_opened.wait(30)
        publish(server.url, [(f"{name}.wanted", b"", None)] * 5 + [(f"{name}.other", b"", None)] * 30)
        wait_for_silence()
        proxy.resume("to_server")
        publish(server.url, [(f"{name}.wanted", b"", None)])
        with pytest.raises(RetentionError):
            reader.read_next_batch()


def test_tail_notices_that_retention_took_messages_that_match_while_it_was_disconnected(
    server: NatsServer,
) -> None:
    make_stream(server.url, "CUT", max_msgs=20)
    with FaultProxy(server.url) as proxy, counted("_nothing_pending") as wait_for_heartbeats:
        with filtered_by("server"):
            reader = bulk.tail(
                f"nats://{proxy.address}", "CUT", subjects="CUT.wanted", start="earliest", batch_seconds=0.05
            )
        publish(server.url, [("CUT.wanted", b"", None)])
        reader.read_next_batch()
        proxy.refuse()
        proxy.cut()
        publish(server.url, [("CUT.wanted", b"", None)] * 5 + [("CUT.other", b"", None)] * 30)
        proxy.accept()
        wait_for_heartbeats()
        publish(server.url, [("CUT.wanted", b"", None)])
        with pytest.raises(RetentionError):
            reader.read_next_batch()


def test_quiet_tail_of_a_rare_subject_outlives_a_lost_connection(server: NatsServer) -> None:
    """Retention has long passed the offset of the last match, and takes none while the tail is away."""
    make_stream(server.url, "AWAY", max_msgs=20)
    with FaultProxy(server.url) as proxy, told_current() as wait_until_current:
        with filtered_by("server"):
            reader = bulk.tail(
                f"nats://{proxy.address}",
                "AWAY",
                subjects="AWAY.wanted",
                start="earliest",
                batch_seconds=0.05,
            )
        publish(server.url, [("AWAY.wanted", b"", None)])
        reader.read_next_batch()
        publish(server.url, [("AWAY.other", b"", None)] * 100)
        wait_until_current()
        proxy.cut()
        wait_until_current()
        publish(server.url, [("AWAY.other", b"", None)] * 100)
        wait_until_current()
        publish(server.url, [("AWAY.wanted", b"", None)])
        assert offsets(pa.Table.from_batches([reader.read_next_batch()])) == [201]


def test_tail_that_goes_on_in_a_recreated_stream_notices_what_retention_took_there(
    server: NatsServer,
) -> None:
    """The backlog of the previous, longer stream included the offsets that retention takes in the new one."""
    make_stream(server.url, "NEW")
    publish(server.url, [("NEW.other", b"", None)] * 50)
    opened: list[bool] = []
    was_opened, purged = threading.Event(), threading.Event()
    begin, pull = ConsumerRead._open, ConsumerRead._pull

    def note(read: ConsumerRead, link: Any) -> bool:
        opened.append(begin(read, link))
        was_opened.set()
        return opened[-1]

    def purge_first(read: ConsumerRead, link: Any) -> None:
        if len(opened) == 2 and not purged.is_set():
            with_jetstream(server.url, lambda js: js.purge_stream("NEW", seq=21))
            purged.set()
        pull(read, link)

    with (
        FaultProxy(server.url) as proxy,
        filtered_by("server"),
        patch.object(ConsumerRead, "_open", note),
        patch.object(ConsumerRead, "_pull", purge_first),
    ):
        reader = bulk.tail(f"nats://{proxy.address}", "NEW", subjects="NEW.wanted", start="earliest")
        assert was_opened.wait(30)
        proxy.refuse()
        proxy.cut()
        with_jetstream(server.url, lambda js: js.delete_stream("NEW"))
        make_stream(server.url, "NEW")
        publish(server.url, [("NEW.wanted", b"", None)] * 30)
        proxy.accept()
        with pytest.raises(RetentionError, match=r"NEW\[0\]: message 0 is gone, the oldest is 20"):
            reader.read_next_batch()


def test_tail_that_skips_logs_that_retention_took_messages_that_match(
    server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    make_stream(server.url, "LATE", max_msgs=40)
    publish(server.url, [("LATE.wanted", b"", None)])
    with filtered_by("server"):
        reader = bulk.tail(
            server.url,
            "LATE",
            subjects="LATE.wanted",
            start="earliest",
            batch_bytes=1 << 20,
            on_retention="skip",
        )
    reader.read_next_batch()
    for _ in range(4):
        publish(server.url, [("LATE.wanted", bytes(100_000), None)] * 300)
    while reader.read_next_batch()["offset"].to_pylist()[-1] < 1_200:
        pass
    assert lost_lines(caplog)


def test_liftbridge_subjects_are_those_that_were_published_to(liftbridge_server: LiftbridgeCluster) -> None:
    """A Liftbridge stream may record a wildcard: its messages have the subjects of the publishers."""
    address, name = liftbridge_server.addresses[0], f"filters-{time.time_ns()}"
    with liftenvelope.connect_blocking(address, ack_wait=60) as client:
        client.create_stream(f"{name}.*", name)
        for at in range(10):
            client.publish_to_subject(f"{name}.{'ab'[at % 2]}", b"%d" % at)
    gaps: list[Gap] = []
    table = bulk.read(address, name, subjects=f"{name}.a", columns=["offset"], on_gap=gaps.append).read_all()
    assert offsets(table) == [0, 2, 4, 6, 8]
    assert gaps == []
    assert bulk.count(address, name, subjects=["*.b", "none"]) == 5
    assert bulk.count(address, name, subjects="none") == 0


@pytest.mark.parametrize("call", [bulk.read, bulk.tail, bulk.count])
def test_wrong_subjects_are_refused_before_anything_is_sent(call: Callable[..., object]) -> None:
    with pytest.raises(UsageError, match="must not have an empty token"):
        call("nats://127.0.0.1:1", "S", subjects="a..b")

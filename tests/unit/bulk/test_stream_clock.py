"""Time up to which a filtered read has all messages, for streams and mirrors."""

from __future__ import annotations

from liftenvelope.bulk._jetstream.stream_clock import StreamClock, StreamTimes


def test_time_of_a_stream_is_that_of_its_server() -> None:
    clock = StreamClock()
    clock.told(StreamTimes(now=1_000.0, newest=900.0, is_mirror=False), at=10.0)
    assert (clock.is_mirror, clock.with_nothing_pending(12.0), clock.before_row(1_003.0)) == (
        False,
        1_001.95,
        1_002.95,
    )


def test_time_of_a_mirror_is_that_of_the_newest_message_told_before() -> None:
    clock = StreamClock()
    times = [StreamTimes(now=1_000.0 + at, newest=500.0 + at, is_mirror=True) for at in range(4)]
    clock.told(times[0], at=10.0)
    assert (clock.is_mirror, clock.before_row(501.0), clock.with_nothing_pending(9.9)) == (True, 0.0, 0.0)
    clock.told(times[1], at=11.0)
    clock.told(times[2], at=12.0)
    assert clock.with_nothing_pending(11.5) == 500.0, "what was told later may have come later"
    assert clock.with_nothing_pending(11.9) == 0.0
    clock.told(times[3], at=13.0)
    assert [clock.with_nothing_pending(at) for at in (12.5, 13.5)] == [502.0, 503.0]


def test_messages_that_a_stream_has_for_certain() -> None:
    assert StreamTimes(now=9.0, newest=5.0, is_mirror=False).complete == 9.0
    assert StreamTimes(now=9.0, newest=5.0, is_mirror=True).complete == 5.0

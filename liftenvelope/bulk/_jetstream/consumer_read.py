"""Read one range of a JetStream stream through its own consumers, reconnecting as needed.

A consumer numbers its deliveries, so a message that was left out is detected. After any failure the read
makes a new consumer at the next offset, over a new connection.
"""

from __future__ import annotations

import json
import math
import time
from typing import TYPE_CHECKING, Any, Final

from liftenvelope import _native
from liftenvelope.bulk._engine.event_log import log
from liftenvelope.bulk._engine.plan import retention_error
from liftenvelope.bulk._engine.range_read import GAPS_PAUSE, UNSURE, RangeRead
from liftenvelope.bulk._jetstream.filter_gaps import FilterGaps
from liftenvelope.bulk._jetstream.pulls import EXPIRES, HEARTBEAT, PENDING, Asked, PullsInFlight
from liftenvelope.bulk._jetstream.requests import (
    created_and_oldest,
    new_name,
    on_leader,
    pending,
    start_at,
    times_of,
)
from liftenvelope.bulk._jetstream.stream_clock import StreamClock, StreamTimes
from liftenvelope.errors import (
    BadRequestError,
    CallTimeoutError,
    NoJetStreamError,
    TransportError,
)
from liftenvelope.jetstream.api import is_restored, natural
from liftenvelope.jetstream.lagging import server_of
from liftenvelope.jetstream.statuses import StatusKind

if TYPE_CHECKING:
    from liftenvelope.bulk._engine.crew import Outlet
    from liftenvelope.bulk._engine.plan import BatchPlan
    from liftenvelope.bulk._jetstream.nats_socket import NatsSocket
    from liftenvelope.bulk._jetstream.requests import JetStreamRequests
    from liftenvelope.bulk.ranges import Range
    from liftenvelope.jetstream.statuses import Status

__all__ = ["ConsumerRead"]

_MODES: Final = {"none": 0, "strip": 1, "columns": 2}
_SECOND: Final = 1_000_000_000
#: Seconds of silence after which pulls count as lost. A server sends a heartbeat every second.
_SILENCE: Final = 3.5
#: Seconds in which other servers of a cluster may not know a new consumer. They answer its pulls with 503.
_SPREADING: Final = 2.0
#: Seconds to wait for room in the queue before checking the connection again.
_LOOK: Final = 0.5
#: Seconds after which the end of a pull is late: until another one came, none was open.
_LATE: Final = 0.1
#: Status code of a request that found no message to deliver.
_NO_MESSAGES: Final = 404


class ConsumerRead(RangeRead):
    """Reads one range through consumers, in a thread of its own."""

    _source: JetStreamRequests
    _rows: _native.bulk.NatsRows
    _passing = (TransportError, CallTimeoutError, NoJetStreamError)

    def __init__(self, source: JetStreamRequests, span: Range, plan: BatchPlan, outlet: Outlet) -> None:
        rows = _native.bulk.NatsRows(
            plan.row_columns,
            _MODES[plan.envelope],
            plan.batch_rows,
            plan.batch_bytes,
            source.access.max_message_bytes,
            plan.allocate,
        )
        super().__init__(source, span, plan, outlet, rows, source.stream)
        self._skips = FilterGaps(span.start)
        self._clock = StreamClock()
        # Messages that the current consumer had to deliver when it was made; end of the stream just before
        # that, and the time up to which the stream had its messages then.
        self._left, self._stream_end, self._end_at = 0, -1, 0.0
        self._pulls = PullsInFlight()
        self._consumer = self._inbox = ""
        self._made_at = 0.0
        self._sid = 0
        # True while a pull is open and the server had nothing else to send: it sends messages as they come.
        self._is_current = False
        # When the last row came, or last waited for room.
        self._moved_at = 0.0
        # _quiet_since: start of the current silence of the server.
        # _repeated: pulls were repeated because of that silence.
        self._quiet_since = 0.0
        self._repeated = False

    # One connection

    def _read(self) -> None:
        link = self._source.connect()
        self._sid = 0
        self._outlet.wake = link.wake
        try:
            self._outlet.check()
            if self._open(link):
                self._pump(link)
            self._hand_out(block=True)
        finally:
            self._outlet.wake = lambda: None
            self._drop_consumer(link)
            link.close()

    def _open(self, link: NatsSocket) -> bool:
        """Create a consumer at the next offset; return True if anything is left to read."""
        is_current = self._make_consumer(link)
        if self._source.filters and not self._skips.has_begun:
            left = self._left if is_current else self._count_from(self._next)
            self._count_matching(left)
        if self._sid:
            link.unsubscribe(self._sid)
        self._inbox = self._source.access.new_inbox()
        self._sid = link.subscribe(f"{self._inbox}.*")
        self._rows.follow(self._sid, self._next, self._span.stop)
        self._pulls.begin(link.max_payload)
        self._is_current = False
        self._quiet_since, self._repeated = time.monotonic(), False
        self._moved_at = self._quiet_since
        if self._left or self._span.stop < 0:
            return True
        self._flush(self._span.stop)
        return False

    def _make_consumer(self, link: NatsSocket) -> bool:
        """Create a consumer at the next offset, if the stream reaches it.

        Only the leader knows that no message is left. So a consumer of another server that has none is
        replaced. So is any other one of a filtered tail: messages that its server does not know yet may be
        lost, although none is left to deliver.

        Returns:
            True if the leader counted what the consumer has to deliver.

        Raises:
            TransportError: The server placed no consumer on the leader.
        """
        is_tail = self._source.filters and self._span.stop < 0

        def make() -> tuple[int, str]:
            self._drop_consumer(link)
            self._consumer, self._made_at = new_name(), time.monotonic()
            return self._source.make_consumer(self._consumer, self._next)

        self._left, is_current = on_leader(
            self._source.stream, lambda: self._check_end(link), make, lambda left: bool(left and not is_tail)
        )
        return is_current

    def _check_end(self, link: NatsSocket) -> str:
        """Check that the stream is the same and reaches the next offset; return its leader."""
        subject = f"{self._source.prefix}.STREAM.INFO.{self._source.stream}"
        (self._stream_end, leader), (created_ns, oldest_ns), times = link.ask(_end_and_times, subject)
        self._clock.told(times, time.monotonic())
        self._end_at = times.complete
        restored, known_ns = is_restored(created_ns, oldest_ns), self._created_ns
        self._check_same_log(self._stream_end, created_ns, is_restored=restored)
        if 0 < known_ns < created_ns and not restored:
            self._skips = FilterGaps(self._next)  # the backlog was that of the previous stream
        return leader

    def _count_matching(self, left: int) -> None:
        """Count the messages of the range that match. Only needed if the server filters.

        Args:
            left: Number of messages that match from the next offset on.
        """
        source, stop = self._source, self._stream_end if self._span.stop < 0 else self._span.stop
        matching = left - (self._count_from(stop) if stop < self._stream_end else 0)
        if source.extent(0).end != self._stream_end:  # messages came between the counts
            matching, _ = source.count_between(pending, self._next, stop, source.filters)
        self._skips.begin(matching, stop, self._end_at)

    def _count_from(self, offset: int) -> int:
        return self._source.probe(pending, start_at(offset), self._source.filters)

    def _drop_consumer(self, link: NatsSocket) -> None:
        name, self._consumer = self._consumer, ""
        if name:
            self._source.drop_consumer(name, link)

    def _pump(self, link: NatsSocket) -> None:
        """Read until the range is complete."""
        rows, states = self._rows, _native.bulk
        while True:
            self._pull(link)
            before = rows.rows
            state, link.start = rows.feed(link.view, link.start, link.end)
            self._arrived(rows.rows - before)
            self._reached(rows.next_offset)
            if before == 0 and rows.rows:
                self._began = time.monotonic()
            if state == states.MORE:
                if self._at_end() and not self._open(link):
                    return
                self._wait(link)
            elif state == states.LINE:
                self._other(link)
            elif state == states.LOST:
                raise TransportError(
                    f"{self._source.stream}: a message was left out after offset {self._next}"
                )
            elif state == states.BROKEN:
                raise link.broken()
            else:
                self._flush()
                self._hand_out(block=False)
            if state == states.DONE:
                return

    def _at_end(self) -> bool:
        """Return True if the consumer has nothing pending although the range is not complete."""
        return self._rows.pending == 0 and self._next < self._span.stop

    def _pull(self, link: NatsSocket) -> None:
        """Send due pulls, unless pieces wait to be handed out, a pause is due, or the server is stopping."""
        if self._ready or time.monotonic() < self._pulls.paused_until:
            # Without an open pull, retention may take what the server would have sent.
            self._is_current = self._is_current and not self._pulls.is_idle
            return
        if link.leaving:
            if self._pulls.is_idle:
                raise TransportError(f"{link.address} is about to stop")
            return
        wanted = -1 if self._span.stop < 0 else self._span.stop - self._next
        was_idle = self._pulls.is_idle
        while (due := self._pulls.due(wanted, self._source.max_batch)) is not None:
            number, amount = due
            self._request(link, self._pulls.request(amount), number)
        left = self._left if self._rows.pending < 0 else self._rows.pending
        if was_idle and wanted < 0 and self._skips.has_begun and not left:
            # Answered at once, and after the server has taken the pulls: the first heartbeat takes a second.
            self._request(link, {"batch": 1, "no_wait": True}, PENDING)

    def _request(self, link: NatsSocket, request: dict[str, Any], number: int) -> None:
        """Send a request for messages, whose status has a number."""
        self._pulls.sent(number, self._next, time.monotonic())
        subject = f"{self._source.prefix}.CONSUMER.MSG.NEXT.{self._source.stream}.{self._consumer}"
        link.publish(subject, json.dumps(request).encode(), f"{self._inbox}.{number}")

    def _other(self, link: NatsSocket) -> None:
        """Handle the next frame, which is not a row: a status of a pull, PING, INFO or -ERR."""
        frame = link.handle(self._rows.line)
        self._check_moved(link)
        if frame is None or frame.sid != self._sid or (status := frame.status) is None:
            return
        match status.kind:
            case StatusKind.HEARTBEAT:
                self._nothing_pending(self._pulls.beat(frame.number))
            case StatusKind.ENDED | StatusKind.NO_RESPONDERS if frame.number == PENDING:
                if status.code == _NO_MESSAGES:  # a 408 proves nothing; the pulls get their own 503
                    asked = self._pulls.asked(PENDING)
                    self._nothing_pending(0.0 if asked is None else asked.at)
            case StatusKind.BAD_REQUEST | StatusKind.PUSH | StatusKind.REFUSED:
                raise BadRequestError(status.code, f"{self._source.stream}: {status.description}")
            case StatusKind.NO_RESPONDERS if time.monotonic() - self._made_at < _SPREADING:
                self._pull_ended(link, frame.number or 0, status)
            case StatusKind.DELETED | StatusKind.NO_RESPONDERS:
                raise TransportError(f"{self._source.stream}: the consumer is gone: {status}")
            case StatusKind.LEADERSHIP | StatusKind.SHUTDOWN:
                self._forget_pulls()
                self._unfruitful(link, f"ended all pulls: {status}")
            case _:
                self._pull_ended(link, frame.number or 0, status)

    def _pull_ended(self, link: NatsSocket, number: int, status: Status) -> None:
        asked = self._pulls.ended(number) or Asked(self._next, self._moved_at)
        lasted = time.monotonic() - asked.at
        # Both pulls end together, and the next one may not reach the server before retention takes messages.
        # Only after a pull that lasted as long as it was to, and no longer, it follows at once.
        if status.kind is not StatusKind.ENDED or lasted > EXPIRES + _LATE:
            self._is_current = False
        if asked.offset != self._next or lasted > EXPIRES / 2:
            return  # the pull delivered rows, or waited for some
        # If not even one message fits into the pull, the message is older than the server's limit. (Every
        # pull that has used up its bytes ends with this status. The server serves several pulls in turns, so
        # they end together.)
        if status.kind is not StatusKind.TOO_LARGE or not self._pulls.widen():
            self._unfruitful(link, f"ended a pull at once: {status}")

    # Progress

    def _arrived(self, count: int) -> None:
        """Count rows that came."""
        rows = self._rows
        if rows.next_offset == self._next:
            return
        stored_at = rows.stored_ns / _SECOND
        if self._is_current:
            self._skips.was_current(self._clock.before_row(stored_at))
        has_gap = rows.next_offset - self._next > count
        if has_gap and not self._source.filters:
            self._passed_gap()
        if self._skips.has_begun:
            self._skips.passed(rows.next_offset, time.monotonic() if has_gap else math.inf)
        self._pulls.arrived(count)
        self._is_current = rows.pending == 0 and not self._pulls.is_idle
        if self._is_current:
            self._skips.was_current(stored_at)

    def _reached(self, offset: int) -> None:
        """Set the next offset. If it advanced, a row came, so the counters of fruitless pulls restart."""
        if offset != self._next:
            self._next, self._moved_at = offset, time.monotonic()
            self._pulls.moved()

    def _nothing_pending(self, at: float) -> None:
        """Note that the server had nothing to send, unless retention may have taken what it would have sent.

        Silence alone proves nothing: the server may not have got the pull, or can't be heard.

        Args:
            at: A time before the server said so, by our clock.
        """
        if not self._skips.has_begun or self._pulls.is_idle:
            return
        if not self._is_current or self._clock.is_mirror:
            oldest, stored_at = self._oldest_at()
            self._is_current = not self._skips.may_lack(self._next, oldest, stored_at)
        if self._is_current:
            self._skips.was_current(self._clock.with_nothing_pending(at))

    def _oldest_at(self) -> tuple[int, float]:
        """Return the offset of the oldest message, and when it was stored, by the server's clock."""
        oldest, stored_at, times = self._source.oldest_at()
        self._clock.told(times, time.monotonic())
        self._skips.looked(oldest, stored_at)
        return oldest, stored_at

    def _forget_pulls(self) -> None:
        self._pulls.forget()
        self._is_current = False

    def _unfruitful(self, link: NatsSocket, why: str) -> None:
        """Schedule a pause before the next pull, since the server ended a pull without a row.

        Raises:
            TransportError: The server has done nothing else for ``stall_timeout`` seconds.
        """
        seconds = self._pulls.fruitless(time.monotonic())
        if seconds >= self._source.access.stall_timeout:
            raise TransportError(f"{link.address} {why}, and so for {seconds:.1f} s")

    def _check_moved(self, link: NatsSocket) -> None:
        """Check that rows keep coming while the range is not complete. Heartbeats do not count.

        Raises:
            TransportError: No row came for the duration of a pull plus ``stall_timeout`` seconds.
        """
        if self._span.stop < 0 or self._ready:
            self._moved_at = time.monotonic()
        elif (waited := time.monotonic() - self._moved_at) > EXPIRES + self._source.access.stall_timeout:
            raise TransportError(
                f"{link.address} has sent no message for {waited:.1f} s of a range that has some"
            )

    # Waiting

    def _wait(self, link: NatsSocket) -> None:
        """Wait for more data; or, if no pull is in flight and pieces are ready, for room in the queue."""
        if self._time_to_look() <= 0:
            self._look()
        if self._ready and self._pulls.is_idle:
            if self._outlet.offer(self._ready[0], _LOOK):
                self._ready.popleft()
            self._quiet_since = self._moved_at = time.monotonic()
            link.fill(0)  # the server may have sent a PING
            return
        self._hand_out(block=False)
        link.want(self._rows.need or 1)
        if link.fill(self._time_to_wait(self._longest_wait())):
            self._quiet_since, self._repeated = link.last_heard, False
        else:
            self._check_silence(link)
        self._flush_if_old(block=False)

    def _longest_wait(self) -> float:
        """Return the seconds until a heartbeat, the next pull or a look at the oldest message is due."""
        paused_until = self._pulls.paused_until
        until_pull = paused_until - time.monotonic() if paused_until else math.inf
        return min(float(HEARTBEAT), max(0.001, min(until_pull, self._time_to_look())))

    def _time_to_look(self) -> float:
        """Return the seconds until the oldest message should be asked for, because a gap was passed."""
        return min(self._skips.unsure_since, self._unsure_since) + UNSURE - time.monotonic()

    def _check_silence(self, link: NatsSocket) -> None:
        self._outlet.check()
        self._check_moved(link)
        # The server has nothing to send before the next pull.
        self._quiet_since = max(self._quiet_since, self._pulls.paused_until)
        silence = time.monotonic() - self._quiet_since
        if silence > self._source.access.stall_timeout:
            raise TransportError(f"{link.address} has said nothing for {silence:.1f} s")
        if silence > _SILENCE and not self._repeated:
            self._forget_pulls()
            self._repeated = True

    # Gaps

    def _look(self) -> None:
        if self._source.filters:
            self._oldest_at()
        else:
            super()._look()

    def _must_check(self) -> bool:
        return super()._must_check() or self._skips.is_due(self._flushed)

    def _check_gaps(self) -> None:
        """Raise RetentionError if retention took messages that match, or log that if the policy is "skip"."""
        source = self._source
        if not source.filters:
            super()._check_gaps()
            return
        self._look_at = time.monotonic() + GAPS_PAUSE
        # The server is asked before the gaps are taken: an answer may not come, and the read then goes on.
        oldest, stored_at = self._oldest_at()
        may_jump = any(start < oldest for start, _ in self._gaps) and source.may_have_holes()
        gaps, self._gaps = self._gaps, []
        lost = self._skips.pass_over(gaps, self._flushed, oldest, stored_at)
        if may_jump:
            self._skips.acquit()
            return
        if lost is None:
            lost = self._lost_of_backlog()
        if lost is None:
            return
        if self._plan.on_retention == "raise":
            raise retention_error(source.stream, self._span.partition, lost, oldest)
        told = {"read": self._name, "offset": lost, "oldest": oldest}
        text = (
            "%(read)s: retention took messages of the filter from offset %(offset)d on before they were read"
        )
        log.warning(text, told, extra=told)

    def _lost_of_backlog(self) -> int | None:
        """Return the start of the gap in which messages were lost that were stored when the read began."""
        skips, left = self._skips, 0
        suspect = skips.suspect
        if suspect is None or not skips.is_due(self._flushed):
            return None
        if (between := skips.to_count()) is not None:
            _, left = self._source.count_between(pending, *between, self._source.filters)
        if skips.is_complete(left) or not skips.has_lost(self._source.oldest_at()[0]):
            return None
        skips.write_off()
        return suspect


def _end_and_times(answer: dict[str, Any]) -> tuple[tuple[int, str], tuple[int, int], StreamTimes]:
    """Return end and leader of a stream, the times of its creation and oldest message, and the others."""
    end = natural(answer["state"]["last_seq"]), server_of(answer)
    return end, created_and_oldest(answer), times_of(answer)

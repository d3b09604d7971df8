"""The portal: an event loop on a thread of its own, and those who call into it."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import contextvars
import functools
import gc
import itertools
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from liftenvelope.client._portal import Portal, _Call
from liftenvelope.errors import TransportError, UsageError

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def heeds_sigint() -> Iterator[None]:
    """Have SIGINT raise KeyboardInterrupt, which a shell has its background jobs ignore."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def portal() -> Iterator[Portal]:
    portal = Portal()
    yield portal
    portal.close()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "liftenvelope-client"]


async def double(number: int) -> int:
    await asyncio.sleep(0)
    return 2 * number


async def fail() -> None:
    raise KeyError("no")


class Sleeper:
    """A coroutine that ends only when it is cancelled, and takes a moment to do so."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.ended = False

    async def sleep(self) -> None:
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.02)
            self.ended = True


@contextlib.contextmanager
def interrupted_at_the_end(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Interrupt waits in the moment when the coroutine has ended."""
    wait = _Call.wait

    def interrupted(self: _Call[object]) -> None:
        wait(self)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(_Call, "wait", interrupted)
        yield


class TestCall:
    def test_results_and_errors(self, portal: Portal) -> None:
        assert portal.call(double(21)) == 42
        with pytest.raises(KeyError, match="no"):
            portal.call(fail())
        assert portal.run(threading.current_thread) in threads()
        with pytest.raises(ZeroDivisionError):
            portal.run(lambda: 1 // 0)

    def test_from_many_threads(self, portal: Portal) -> None:
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            assert list(pool.map(lambda n: portal.call(double(n)), range(400))) == list(range(0, 800, 2))

    async def test_inside_a_running_loop(self, portal: Portal) -> None:
        assert portal.call(double(4)) == 8

    def test_the_loop_goes_on_while_nobody_calls(self, portal: Portal) -> None:
        ticks: list[int] = []

        async def tick() -> None:
            while True:
                ticks.append(1)
                await asyncio.sleep(0.001)

        task = portal.run(lambda: asyncio.get_running_loop().create_task(tick()))
        until(lambda: len(ticks) > 3)
        portal.run(task.cancel)

    def test_a_call_of_another_thread_is_not_in_the_way(self, portal: Portal) -> None:
        sleeper = Sleeper()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            other = pool.submit(lambda: portal.call(sleeper.sleep()))
            assert sleeper.begun.wait(60)
            assert portal.call(double(1)) == 2
            portal.close()
            assert isinstance(other.exception(60), TransportError)
        assert sleeper.ended


@contextlib.contextmanager
def signalled(number: signal.Signals, when: threading.Event) -> Iterator[None]:
    """Send this thread a signal once the event is set."""
    me = threading.get_ident()

    def send() -> None:
        assert when.wait(60)
        signal.pthread_kill(me, number)

    thread = threading.Thread(target=send)
    thread.start()
    yield
    thread.join()


class AlarmError(Exception):
    pass


def ring(*_: object) -> None:
    raise AlarmError


class TestInterrupts:
    def test_keyboard_interrupt_cancels_and_waits(self, portal: Portal) -> None:
        for _ in range(20):
            sleeper = Sleeper()
            with signalled(signal.SIGINT, sleeper.begun), pytest.raises(KeyboardInterrupt):
                portal.call(sleeper.sleep())
            assert sleeper.ended
        assert portal.call(double(1)) == 2

    def test_an_exception_of_a_signal_handler(self, portal: Portal) -> None:
        sleeper, before = Sleeper(), signal.signal(signal.SIGALRM, ring)
        try:
            with signalled(signal.SIGALRM, sleeper.begun), pytest.raises(AlarmError):
                portal.call(sleeper.sleep())
        finally:
            signal.signal(signal.SIGALRM, before)
        assert sleeper.ended

    def test_before_it_has_begun(self, portal: Portal, monkeypatch: pytest.MonkeyPatch) -> None:
        def interrupted(_: object) -> None:
            raise KeyboardInterrupt

        sleeper = Sleeper()
        monkeypatch.setattr(portal, "_start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            portal.call(sleeper.sleep())
        assert not sleeper.begun.is_set()

    def test_item_is_given_back_if_the_interrupt_comes_after_the_wait(self, portal: Portal) -> None:
        interrupts, unused = iter([signal.SIGINT]), list[int]()

        def interrupt(frame: FrameType, event: str, _: object) -> None:
            if event == "call" and frame.f_code is _Call.result.__code__:
                for number in interrupts:
                    signal.raise_signal(number)

        sys.setprofile(interrupt)
        try:
            with pytest.raises(KeyboardInterrupt):
                portal.next(Numbers(1).iterate(), unused.append)
        finally:
            sys.setprofile(None)
        assert unused == [0]

    def test_item_that_comes_with_an_interrupt_is_given_back(
        self, portal: Portal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def numbers() -> AsyncIterator[int]:
            for number in range(3):
                yield number

        items, unused = numbers(), list[int]()
        assert portal.next(items, unused.append) == 0
        with interrupted_at_the_end(monkeypatch), pytest.raises(KeyboardInterrupt):
            portal.next(items, unused.append)
        assert (unused, portal.next(items, unused.append)) == ([1], 2)
        with interrupted_at_the_end(monkeypatch), pytest.raises(KeyboardInterrupt):
            portal.next(items, unused.append)
        with pytest.raises(StopIteration):
            portal.next(items, unused.append)
        assert unused == [1]


class TestTheLoopsOwnThread:
    def test_a_callback_can_not_call(self, portal: Portal) -> None:
        with pytest.raises(UsageError, match="would wait for itself"):
            portal.run(lambda: portal.call(double(1)))

    def test_a_callback_can_do_what_does_not_wait(self, portal: Portal) -> None:
        assert portal.run(lambda: portal.run(threading.current_thread)) in threads()

    def test_a_callback_can_not_close(self, portal: Portal) -> None:
        with pytest.raises(UsageError, match="would wait for itself"):
            portal.run(portal.close)
        assert portal.call(double(1)) == 2

    def test_a_callback_can_look(self, portal: Portal) -> None:
        assert portal.run(lambda: portal.look(lambda: 3)) == 3


class TestClose:
    def test_close_leaves_no_thread_and_no_task(self) -> None:
        before = set(threads())
        portal = Portal()
        assert len(set(threads()) - before) == 1
        loop = portal.run(asyncio.get_running_loop)
        portal.close()
        portal.close()
        assert set(threads()) <= before
        assert loop.is_closed()

    def test_calls_after_it(self) -> None:
        portal = Portal()
        portal.close()
        with pytest.raises(TransportError, match="the client is closed"):
            portal.call(double(1))
        with pytest.raises(TransportError, match="the client is closed"):
            portal.run(threading.current_thread)
        assert portal.look(lambda: 5) == 5
        portal.end(fail())  # not run any more

    def test_what_is_to_be_done_before(self) -> None:
        portal, done = Portal(), []

        async def finish() -> None:
            done.append(await double(2))

        portal.before_end(finish)
        portal.close()
        assert done == [4]

    def test_an_error_of_it_is_raised_and_the_thread_ends(self) -> None:
        before, portal = set(threads()), Portal()
        portal.before_end(fail)
        with pytest.raises(KeyError):
            portal.close()
        assert set(threads()) <= before

    def test_close_from_two_threads_waits_in_both(self) -> None:
        portal, release = Portal(), threading.Event()

        async def finish() -> None:
            while not release.is_set():
                await asyncio.sleep(0.001)

        portal.before_end(finish)
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            closes = [pool.submit(portal.close) for _ in range(2)]
            assert not concurrent.futures.wait(closes, timeout=0.05).done
            release.set()
            for close in closes:
                close.result(60)

    def test_calls_of_other_threads_end(self) -> None:
        portal, sleepers = Portal(), [Sleeper() for _ in range(5)]
        with concurrent.futures.ThreadPoolExecutor(5) as pool:
            calls = [pool.submit(lambda s: portal.call(s.sleep()), sleeper) for sleeper in sleepers]
            assert all(sleeper.begun.wait(60) for sleeper in sleepers)
            portal.close()
            for call in calls:
                with pytest.raises(TransportError, match="closed while the call"):
                    call.result(60)
        assert all(sleeper.ended for sleeper in sleepers)

    def test_racing_calls_end_one_way_or_the_other(self) -> None:
        for _ in range(20):
            portal, stop = Portal(), threading.Event()

            def hammer(portal: Portal, stop: threading.Event) -> bool:
                try:
                    while not stop.is_set():
                        assert portal.call(double(2)) == 4
                except TransportError:
                    return True
                return False

            with concurrent.futures.ThreadPoolExecutor(3) as pool:
                hammers = [pool.submit(hammer, portal, stop) for _ in range(3)]
                portal.call(double(1))
                portal.close()
                assert all(done.result(60) for done in hammers)

    def test_a_loop_that_was_killed_from_inside(self) -> None:
        portal = Portal()
        loop = portal.run(asyncio.get_running_loop)
        portal.run(loop.stop)
        until(loop.is_closed)
        with pytest.raises(TransportError, match="the client is closed"):
            portal.call(double(1))
        portal.close()


class TestFutures:
    def test_result_error_and_cancel(self, portal: Portal) -> None:
        made: list[asyncio.Future[int]] = []

        def submit() -> asyncio.Future[int]:
            made.append(asyncio.get_running_loop().create_future())
            return made[-1]

        async def submit_later() -> asyncio.Future[int]:
            await asyncio.sleep(0)
            return submit()

        good, bad, given_up = portal.future(submit), portal.future(submit), portal.future(submit)
        late = portal.future(submit_later)
        portal.run(lambda: made[0].set_result(1))
        portal.run(lambda: made[1].set_exception(KeyError("no")))
        portal.run(lambda: made[3].set_result(4))
        assert given_up.cancel()
        assert good.result(60) == 1
        assert late.result(60) == 4
        with pytest.raises(KeyError):
            bad.result(60)
        until(made[2].cancelled)

    def test_what_submitting_raises(self, portal: Portal) -> None:
        def submit() -> asyncio.Future[int]:
            raise UsageError("no")

        with pytest.raises(UsageError):
            portal.future(submit)

    def test_an_error_after_it_was_cancelled_makes_no_noise(self, portal: Portal) -> None:
        made: list[asyncio.Future[int]] = []
        seen: list[object] = []

        def submit() -> asyncio.Future[int]:
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(lambda _, context: seen.append(context))
            made.append(loop.create_future())
            return made[-1]

        def cancel_too_late() -> None:
            made[0].set_exception(KeyError("no"))
            assert future.cancel()

        future = portal.future(submit)
        portal.run(cancel_too_late)
        with pytest.raises(concurrent.futures.CancelledError):
            future.result(60)
        made.clear()
        portal.run(gc.collect)
        assert seen == []


class TestFeed:
    def test_a_list_goes_as_it_is(self, portal: Portal) -> None:
        given: list[object] = []

        async def use(items: object) -> int:
            given.append(items)
            return 7

        numbers = [1, 2]
        assert portal.feed(numbers, use) == 7
        assert given[0] is numbers
        assert portal.feed(b"bytes", use) == 7
        assert given[1] == b"bytes"

    @pytest.mark.parametrize("count", [0, 1, 1023, 1024, 1025, 20_000])
    def test_an_iterator_is_asked_in_the_callers_thread(self, portal: Portal, count: int) -> None:
        seen: set[threading.Thread] = set()

        def items() -> Iterator[int]:
            for number in range(count):
                seen.add(threading.current_thread())
                yield number

        async def use(items: AsyncIterator[int]) -> list[int]:
            return [number async for number in items]

        assert portal.feed(items(), use) == list(range(count))
        assert seen <= {threading.current_thread()}

    def test_the_iterator_may_call(self, portal: Portal) -> None:
        async def use(items: AsyncIterator[int]) -> list[int]:
            return [number async for number in items]

        assert portal.feed((portal.call(double(n)) for n in range(5)), use) == [0, 2, 4, 6, 8]

    def test_feed_holds_back_a_fast_iterator(self, portal: Portal) -> None:
        taken = itertools.count()
        at_most: list[int] = []

        async def use(items: AsyncIterator[int]) -> None:
            used = 0
            async for number in items:
                used += 1
                if used % 500 == 0:
                    await asyncio.sleep(0.01)
                    at_most.append(last[0] - number)
                if number >= 5_000:
                    return

        last = [0]

        def items() -> Iterator[int]:
            for number in taken:
                last[0] = number
                yield number

        portal.feed(items(), use)
        assert max(at_most) <= 1025
        assert next(taken) <= 5_000 + 1026

    def test_an_error_of_the_iterator_comes_out_where_it_is_used(self, portal: Portal) -> None:
        used: list[int] = []

        def items() -> Iterator[int]:
            yield 1
            raise KeyError("source")

        async def use(items: AsyncIterator[int]) -> None:
            used.extend([await anext(items)])
            await anext(items)

        with pytest.raises(KeyError, match="source"):
            portal.feed(items(), use)
        assert used == [1]

    def test_an_error_of_the_user_ends_an_endless_iterator(self, portal: Portal) -> None:
        async def use(items: AsyncIterator[int]) -> None:
            async for number in items:
                if number == 3000:
                    raise KeyError("use")

        with pytest.raises(KeyError, match="use"):
            portal.feed(itertools.count(), use)

    def test_an_interrupt_in_the_iterator_cancels(self, portal: Portal) -> None:
        sleeper = Sleeper()

        def interrupt(number: int) -> int:
            assert sleeper.begun.wait(60)
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            portal.feed(map(interrupt, range(3)), lambda _: sleeper.sleep())
        assert sleeper.ended

    def test_results_as_they_come(self, portal: Portal) -> None:
        closed: list[bool] = []

        async def use(items: AsyncIterator[int]) -> AsyncIterator[int]:
            try:
                async for number in items:
                    yield 2 * number
            finally:
                closed.append(True)

        assert list(portal.feed_and_iterate(iter(range(3000)), use)) == list(range(0, 6000, 2))
        for number in portal.feed_and_iterate(itertools.count(1), use):
            assert number == 2
            break
        gc.collect()
        until(lambda: closed == [True, True])

    def test_one_result_may_need_more_items_than_the_queue_holds(self, portal: Portal) -> None:
        async def count(items: AsyncIterator[int]) -> AsyncIterator[int]:
            taken = 0
            async for _ in items:
                taken += 1
                if taken % 5_000 == 0:
                    yield taken

        assert list(portal.feed_and_iterate(iter(range(10_000)), count)) == [5_000, 10_000]

    @given(st.lists(st.integers(), max_size=50), st.integers(1, 4))
    @settings(max_examples=30, deadline=None)
    def test_nothing_is_lost_or_doubled(self, numbers: list[int], pause: int) -> None:
        async def use(items: AsyncIterator[int]) -> list[int]:
            found = []
            async for number in items:
                found.append(number)
                if len(found) % pause == 0:
                    await asyncio.sleep(0)
            return found

        assert shared_portal().feed(iter(numbers), use) == numbers


@functools.cache
def shared_portal() -> Portal:
    portal = Portal()
    atexit.register(portal.close)
    return portal


class Numbers:
    """An async iterator that says when it was closed."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.closed = False

    async def iterate(self) -> AsyncIterator[int]:
        try:
            for number in range(self.count):
                await asyncio.sleep(0)
                yield number
        finally:
            await asyncio.sleep(0)
            self.closed = True


class TestIterate:
    def test_to_the_end(self, portal: Portal) -> None:
        numbers = Numbers(3)
        assert list(portal.iterate(numbers.iterate())) == [0, 1, 2]
        assert numbers.closed

    def test_left_early(self, portal: Portal) -> None:
        numbers = Numbers(3)
        for number in portal.iterate(numbers.iterate()):
            assert number == 0
            break
        gc.collect()
        until(lambda: numbers.closed)

    def test_interrupt_while_a_dropped_iterator_is_closed_is_raised(self, portal: Portal) -> None:
        """Python ignores exceptions in finalizers, so a dropped iterator must not wait there."""
        was_dropped = threading.Event()

        async def numbers() -> AsyncIterator[int]:
            try:
                yield 0
            finally:
                await asyncio.to_thread(was_dropped.wait, 20)
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
                await asyncio.sleep(3600)

        def drop() -> None:
            iterator = portal.iterate(numbers())
            assert next(iterator) == 0
            del iterator
            was_dropped.set()
            until(lambda: False)

        with pytest.raises(KeyboardInterrupt):
            drop()

    def test_iterator_that_the_loop_s_own_thread_drops_is_closed(self, portal: Portal) -> None:
        numbers = Numbers(3)
        iterators = [portal.iterate(numbers.iterate())]
        assert next(iterators[0]) == 0
        portal.run(iterators.clear)
        until(lambda: numbers.closed)

    def test_closed(self, portal: Portal) -> None:
        numbers = Numbers(3)
        iterator = portal.iterate(numbers.iterate())
        assert next(iterator) == 0
        iterator.close()
        assert numbers.closed
        iterator.close()
        assert list(iterator) == []

    def test_left_after_the_end_of_the_portal(self) -> None:
        portal, numbers = Portal(), Numbers(3)
        iterator = portal.iterate(numbers.iterate())
        assert next(iterator) == 0
        portal.close()
        assert numbers.closed
        with pytest.raises(TransportError, match="the client is closed"):
            next(iterator)


def test_next(portal: Portal) -> None:
    unused: list[int] = []
    numbers = Numbers(1).iterate()
    assert portal.next(numbers, unused.append) == 0
    with pytest.raises(StopIteration):
        portal.next(numbers, unused.append)
    endless = Numbers(10)
    iterator = endless.iterate()
    assert portal.next(iterator, unused.append) == 0
    portal.close()
    with pytest.raises(StopIteration):
        portal.next(iterator, unused.append)
    assert not unused


class TestForgotten:
    def test_forgotten_portal_warns_and_ends(self) -> None:
        before, done = set(threads()), threading.Event()
        portal: Portal | None = Portal()

        async def finish() -> None:
            done.set()

        assert portal is not None
        portal.before_end(finish)
        with pytest.warns(ResourceWarning, match="was not closed"):
            portal = None
        assert done.wait(60)
        until(lambda: set(threads()) <= before)

    def test_at_the_end_of_the_program(self) -> None:
        """Python does not wait for the thread."""
        source = """
            import asyncio
            from liftenvelope.client._portal import Portal, _Call
            portal = Portal()
            async def sleep():
                await asyncio.sleep(3600)
            portal.run(lambda: asyncio.ensure_future(sleep()))
            print("end")
        """
        done = subprocess.run(
            [sys.executable, "-W", "default", "-c", textwrap.dedent(source)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )
        assert (done.returncode, done.stdout) == (0, "end\n"), done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork(portal: Portal) -> None:
    """The child is told, and what it does leaves the parent's loop alone."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            try:
                portal.call(double(1))
            except UsageError as exc:
                status = 0 if "forked" in str(exc) and f"process {os.getppid()}" in str(exc) else 2
            portal.close()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert portal.call(double(2)) == 4


def test_the_callers_context_variables_are_seen(portal: Portal) -> None:
    variable = contextvars.ContextVar("variable", default="unset")
    variable.set("set")
    assert portal.run(variable.get) == "set"

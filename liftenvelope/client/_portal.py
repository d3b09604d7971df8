"""Private event loop on its own thread, for callers that have no loop or must not use theirs.

The blocking client runs the async client here, so heartbeats and keepalives continue while its caller works.

Ownership: callers hold the :class:`Portal`. The thread, the loop and its callbacks never hold it. The garbage
collector can therefore collect a portal that was not closed. Its ``__del__`` ends the thread and emits a
ResourceWarning.

Order: calls and the end of the loop are posted under one lock, so no call is posted after the end.

anyio's BlockingPortal (4.16) is no substitute. A call there visits the loop twice, for 70 us of CPU time
in place of 30, and goes on after an interrupt. The portal does not notice a fork or a forgotten client, and
has no feed.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import os
import threading
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterable, Iterator
from functools import partial
from typing import Any, Final, Generic, TypeVar

from liftenvelope.client._feed import LOOK_UP, Feed
from liftenvelope.errors import TransportError, UsageError

__all__ = ["Portal"]

_T = TypeVar("_T")
_R = TypeVar("_R")
_CLOSED: Final = "the client is closed: make a new one with connect_blocking()"
_CLOSED_MEANWHILE: Final = "the client was closed while the call was under way"
_END: Final = object()


class _Call(Generic[_T]):
    """One coroutine that runs in the loop, and the thread that waits for its end.

    The loop's thread runs ``start`` and ``cancel``.
    """

    def __init__(
        self, coroutine: Coroutine[Any, Any, _T], thread: threading.Thread, feed: Feed[Any] | None = None
    ) -> None:
        self._coroutine = coroutine
        self._thread = thread
        self._feed = feed
        self._task: asyncio.Task[_T] | None = None
        self.has_ended = False
        # Locked until the end. A concurrent.futures.Future would add 4 us to the 29 us of a call.
        self._running = threading.Lock()
        self._running.acquire()

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._coroutine)
        self._task.add_done_callback(self._task_ended)

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
        else:  # the caller was interrupted before it had posted start()
            self.drop()

    def drop(self) -> None:
        """Give up a call that has not begun, without a warning about a coroutine that was never awaited."""
        self._coroutine.close()
        self._end()

    def wait(self) -> None:
        """Wait for the end of the coroutine.

        The wait is split into short ones because of signals. CPython runs signal handlers between
        instructions: a signal that arrives just before the wait for a lock does not interrupt that wait.
        """
        while not self.has_ended and self._thread.is_alive():
            self._running.acquire(timeout=LOOK_UP)

    @property
    def has_result(self) -> bool:
        """True if the coroutine has ended with a result."""
        task = self._task
        return task is not None and task.done() and not task.cancelled() and task.exception() is None

    def result(self) -> _T:
        """Return or raise the outcome of the coroutine, after :meth:`wait`."""
        if self._task is None or not self._task.done() or self._task.cancelled():
            raise TransportError(_CLOSED_MEANWHILE)
        return self._task.result()

    def _task_ended(self, task: asyncio.Task[_T]) -> None:
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not report the error of an interrupted call
        self._end()

    def _end(self) -> None:
        self.has_ended = True
        self._running.release()
        if self._feed is not None:
            self._feed.stop_waiting()


def _copy(outcome: concurrent.futures.Future[_T], future: asyncio.Future[_T]) -> None:
    """Copy the outcome of a future of the loop to one that other threads can wait for."""
    if not outcome.set_running_or_notify_cancel():
        if not future.cancelled():
            future.exception()  # retrieved, so that asyncio does not report it as never retrieved
    elif future.cancelled():
        outcome.set_exception(TransportError(_CLOSED_MEANWHILE))
    elif (exc := future.exception()) is not None:
        outcome.set_exception(exc)
    else:
        outcome.set_result(future.result())


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """Run a loop until it is stopped, end everything in it, and close it."""
    try:
        loop.run_forever()
    finally:
        try:
            loop.run_until_complete(_cancel_the_others())
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(loop.shutdown_default_executor())
        finally:
            loop.close()


async def _cancel_the_others() -> None:
    await asyncio.sleep(0)  # calls that were posted before the end become tasks now
    while others := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


def _post(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> bool:
    """Schedule a function in the loop's thread; return False if the loop has ended."""
    try:
        loop.call_soon_threadsafe(callback)
    except RuntimeError:
        return False
    return True


class Portal:
    """Runs coroutines in a private loop for callers in other threads. Any number of threads may call.

    Attributes:
        is_closed: True once the portal was closed, even if the thread has not ended yet.

    Example:
        >>> async def double(number):
        ...     await asyncio.sleep(0)
        ...     return 2 * number
        >>> portal = Portal()
        >>> portal.call(double(21))
        42
        >>> portal.close()
    """

    def __init__(self) -> None:
        self.is_closed = True  # until the thread runs
        self._pid = os.getpid()
        self._finish: Callable[[], Coroutine[Any, Any, None]] | None = None
        # Reentrant: a signal handler and the garbage collector may call while their thread holds it.
        self._lock = threading.RLock()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=_run, args=(self._loop,), name="liftenvelope-client", daemon=True
        )
        try:
            self._thread.start()
        except RuntimeError:  # no thread could be started
            self._loop.close()
            raise
        self.is_closed = False

    def before_end(self, finish: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Set the coroutine function that runs in the loop before the loop ends."""
        self._finish = finish

    def call(
        self,
        coroutine: Coroutine[Any, Any, _T],
        feed: Feed[Any] | None = None,
        on_unused: Callable[[_T], None] | None = None,
    ) -> _T:
        """Run a coroutine in the loop and return its result.

        An exception in the waiting thread, such as KeyboardInterrupt, cancels the coroutine. The exception is
        raised when the coroutine has ended.

        Args:
            coroutine: The coroutine.
            feed: Source of items for the coroutine. The waiting thread fills it.
            on_unused: Called with the result if the coroutine ended before the exception could cancel it.

        Raises:
            UsageError: The caller is in the loop's own thread, or in a forked process.
            TransportError: The portal is closed, or was closed while the coroutine ran.
        """
        call = _Call(coroutine, self._thread, feed)
        try:
            self._start(call)
            if feed is not None:
                feed.fill(lambda: call.has_ended)
            call.wait()
            return call.result()  # in here too, since an interrupt may come before its end
        except BaseException:
            self._give_up(call)
            if on_unused is not None and call.has_result:
                on_unused(call.result())
            raise

    def run(self, function: Callable[[], _T]) -> _T:
        """Call a function in the loop's thread and return its result. Raises as :meth:`call` does.

        A callback in that thread may use this method too: the function is then called directly.
        """
        if threading.current_thread() is self._thread and not self.is_closed:
            return function()
        return self.call(_call_it(function))

    def end(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine that ends something, as :meth:`call` does; do nothing if the portal is closed.

        Everything that a client has open ends with the client.
        """
        if self.is_closed or os.getpid() != self._pid:
            coroutine.close()
        else:
            self.call(coroutine)

    def look(self, function: Callable[[], _T]) -> _T:
        """Call a function that only reads, as :meth:`run` does.

        After the end, in the loop's thread and in a forked process, the function is called directly.
        """
        if self.is_closed or self._obstacle() is not None:
            return function()
        return self.run(function)

    def future(
        self, submit: Callable[[], asyncio.Future[_T] | Coroutine[Any, Any, asyncio.Future[_T]]]
    ) -> concurrent.futures.Future[_T]:
        """Make a future in the loop and return a copy of it for other threads.

        Cancelling the copy cancels the future in the loop. Raises as :meth:`call` does, and any error of
        ``submit``.

        Args:
            submit: Returns the future, or a coroutine that returns the future.
        """
        outcome: concurrent.futures.Future[_T] = concurrent.futures.Future()
        loop = self._loop

        async def link() -> None:
            made = submit()
            future = await made if inspect.iscoroutine(made) else made
            assert isinstance(future, asyncio.Future)
            future.add_done_callback(partial(_copy, outcome))
            outcome.add_done_callback(lambda done: done.cancelled() and _post(loop, future.cancel))

        self.call(link())
        return outcome

    def feed(self, items: Iterable[_T], make: Callable[[Any], Awaitable[_R]]) -> _R:
        """Await ``make(items)`` in the loop, while the caller's thread takes items from their iterable.

        If the call fails before the iterable is exhausted, the error is raised after the iterable's next
        item. Raises as :meth:`call` does. An error of the iterable is raised in the loop, where the items are
        used.
        """
        feed = self._feed_of(items)
        return self.call(_await(lambda: make(feed or items)), feed)

    def feed_and_iterate(self, items: Iterable[_T], make: Callable[[Any], AsyncIterator[_R]]) -> Iterator[_R]:
        """Iterate over ``make(items)`` as :meth:`feed` does; items are taken while a result is waited for."""
        feed = self._feed_of(items)
        return self.iterate(self.run(lambda: make(feed or items)), feed)

    def _feed_of(self, items: Iterable[_T]) -> Feed[_T] | None:
        """Return a feed of the items; None if the loop can take them itself: a collection can't block."""
        if isinstance(items, Collection) or not isinstance(items, Iterable):
            return None
        return Feed(iter(items), partial(_post, self._loop))

    def next(self, items: AsyncIterator[_T], on_unused: Callable[[_T], None]) -> _T:
        """Return the next item of an async iterator.

        ``on_unused`` is called with an item that came when the wait for it was interrupted.

        Raises:
            StopIteration: The iterator has ended, or the portal is closed.
        """
        item = _END if self.is_closed else self.call(_next(items), on_unused=_but_for_the_end(on_unused))
        if item is _END:
            raise StopIteration
        return item  # type: ignore[return-value]

    def iterate(
        self,
        items: AsyncIterator[_T],
        feed: Feed[Any] | None = None,
        on_unused: Callable[[_T], None] = lambda _: None,
    ) -> _Iteration[_T]:
        """Iterate over an async iterator, with one call into the loop per item.

        ``on_unused`` is called with an item that came when the wait for it was interrupted. The end of the
        iterator closes ``items``, and so does dropping it.
        """
        return _Iteration(self, items, feed, on_unused)

    def finish(self, items: AsyncIterator[Any], *, wait: bool) -> None:
        """Close an async iterator, if it can be closed and the loop has not ended.

        Args:
            items: The async iterator.
            wait: Whether to wait for the end. Threads that can't wait for the loop never do.
        """
        if not hasattr(items, "aclose") or os.getpid() != self._pid:
            return
        if wait and self._obstacle() is None and not self.is_closed:
            self.call(items.aclose())
            return
        call = _Call(items.aclose(), self._thread)
        with self._lock:
            if not self.is_closed and _post(self._loop, call.start):
                return
        call.drop()

    def close(self) -> None:
        """Run the function of :meth:`before_end`, cancel all tasks, end the loop and the thread.

        Closing twice is fine. In a forked process the method does nothing: the thread is not there.

        Raises:
            UsageError: The caller is in the loop's own thread.
            Exception: Any error of the function of ``before_end``. The thread has ended all the same.
        """
        if os.getpid() != self._pid:
            return
        if threading.current_thread() is self._thread:
            raise UsageError("a callback of the client can't close it: it would wait for itself")
        last = self._end()
        # Joined by every caller: a second close() must not return before the thread has ended either.
        self._thread.join()
        if last is not None:
            last.result()

    def _end(self) -> _Call[None] | None:
        """Start the shutdown; return None if it was started before, or the loop has ended by itself."""
        with self._lock:
            if self.is_closed:
                return None
            self.is_closed = True
            last = _Call(_finish_and_stop(self._finish), self._thread)
            if _post(self._loop, last.start):
                return last
        last.drop()
        return None

    def _start(self, call: _Call[Any]) -> None:
        obstacle = self._obstacle()
        if obstacle is None:
            with self._lock:
                if not self.is_closed and _post(self._loop, call.start):
                    return
        call.drop()
        raise obstacle or TransportError(_CLOSED)

    def _give_up(self, call: _Call[Any]) -> None:
        """Cancel a call that may be running, and wait for its end."""
        if not call.has_ended and _post(self._loop, call.cancel):
            call.wait()

    def _obstacle(self) -> UsageError | None:
        if os.getpid() != self._pid:
            return UsageError(
                f"the client was made in process {self._pid}, and its thread is not in process "
                f"{os.getpid()}, which was forked off: make a new one here with connect_blocking()"
            )
        if threading.current_thread() is self._thread:
            return UsageError(
                "a callback of the client can't call the client: it would wait for itself. "
                "Hand the work to another thread"
            )
        return None

    def __del__(self) -> None:
        if self.is_closed or os.getpid() != self._pid:
            return
        warnings.warn(
            "a blocking client was not closed: use it in a `with` statement, or call close()",
            ResourceWarning,
            source=self,
            stacklevel=2,
        )
        self._end()


class _Iteration(Iterator[_T]):
    """Iterator over an async iterator in the loop of a portal.

    It is no generator, because a dropped one would wait for the end of the async iterator while it is
    finalized, where Python ignores exceptions. An interrupt of that wait would be lost.
    """

    def __init__(
        self,
        portal: Portal,
        items: AsyncIterator[_T],
        feed: Feed[Any] | None,
        on_unused: Callable[[_T], None],
    ) -> None:
        self._portal = portal
        self._items: AsyncIterator[_T] | None = items
        self._feed = feed
        self._unused = _but_for_the_end(on_unused)

    def __next__(self) -> _T:
        if self._items is None:
            raise StopIteration
        try:
            item = self._portal.call(_next(self._items), self._feed, self._unused)
        except BaseException:
            self.close()
            raise
        if item is _END:
            self.close()
            raise StopIteration
        return item  # type: ignore[return-value]

    def close(self) -> None:
        """Close the async iterator and wait for its end. Closing twice is fine."""
        items, self._items = self._items, None
        if items is not None:
            self._portal.finish(items, wait=True)

    def __del__(self) -> None:
        if self._items is not None:
            self._portal.finish(self._items, wait=False)


async def _finish_and_stop(finish: Callable[[], Coroutine[Any, Any, None]] | None) -> None:
    try:
        if finish is not None:
            await finish()
    finally:
        asyncio.get_running_loop().stop()


async def _await(make: Callable[[], Awaitable[_T]]) -> _T:
    return await make()


async def _call_it(function: Callable[[], _T]) -> _T:
    return function()


def _but_for_the_end(on_unused: Callable[[_T], None]) -> Callable[[_T | object], None]:
    def unused(item: _T | object) -> None:
        if item is not _END:
            on_unused(item)  # type: ignore[arg-type]

    return unused


async def _next(items: AsyncIterator[_T]) -> _T | object:
    return await anext(items, _END)

"""Private event loop on its own thread, for callers that have no loop or must not use theirs.

The blocking client runs the async client here, so heartbeats and keepalives continue while its caller works.

Ownership: callers hold the :class:`Portal`, the thread holds only the :class:`_Worker`. The garbage collector
can therefore collect a portal that was not closed. Its ``__del__`` ends the thread and emits a
ResourceWarning.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import os
import threading
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final, Generic, TypeVar

from liftenvelope.client.feed import Feed
from liftenvelope.errors import TransportError, UsageError

__all__ = ["Portal"]

_T = TypeVar("_T")
_R = TypeVar("_R")
_CLOSED: Final = "the client is closed: make a new one with connect_blocking()"
_END: Final = object()
# Longest time in seconds that a waiting thread sleeps before it checks for signals.
_LOOK_UP: Final = 0.5


class _Call(Generic[_T]):
    """One coroutine that runs in the portal's loop. ``start`` and ``cancel`` run in the loop's thread."""

    def __init__(self, coroutine: Coroutine[Any, Any, _T]) -> None:
        self._coroutine = coroutine
        self._task: asyncio.Task[_T] | None = None
        self.outcome: concurrent.futures.Future[_T] = concurrent.futures.Future()

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._coroutine)
        self._task.add_done_callback(partial(_copy, self.outcome))

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
        else:  # the caller was interrupted before it had posted start()
            self.drop()

    def wait(self) -> _T:
        """Return or raise the outcome of the coroutine. Called in the caller's thread.

        The wait is split into short ones because of signals. CPython runs signal handlers between
        instructions: a signal that arrives just before the wait for a lock does not interrupt that wait.
        """
        while not self.outcome.done():
            with suppress(TimeoutError, concurrent.futures.CancelledError):
                self.outcome.exception(_LOOK_UP)
        return self.outcome.result()

    def drop(self) -> None:
        """Give up a call that has not begun, without a warning about a coroutine that was never awaited."""
        self._coroutine.close()
        self.outcome.cancel()
        self.outcome.set_running_or_notify_cancel()


def _copy(outcome: concurrent.futures.Future[_T], future: asyncio.Future[_T]) -> None:
    """Copy the outcome of a future of the loop to one that other threads can wait for."""
    if not outcome.set_running_or_notify_cancel():
        if not future.cancelled():
            future.exception()  # retrieved, so that asyncio does not report it as never retrieved
    elif future.cancelled():
        outcome.set_exception(TransportError("the client was closed while the call was under way"))
    elif (exc := future.exception()) is not None:
        outcome.set_exception(exc)
    else:
        outcome.set_result(future.result())


class _Worker:
    """The event loop and its thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        # Reentrant: the garbage collector may run a portal's __del__ in a thread that is inside post().
        self._lock = threading.RLock()
        self._is_open = True
        self.thread = threading.Thread(target=self._run, name="liftenvelope-client", daemon=True)
        try:
            self.thread.start()
        except RuntimeError:  # no thread could be started
            self.loop.close()
            raise

    def post(self, callback: Callable[[], object]) -> bool:
        """Schedule a function in the loop's thread; return False if the loop has ended."""
        with self._lock:
            if self._is_open:
                self.loop.call_soon_threadsafe(callback)
            return self._is_open

    def _run(self) -> None:
        try:
            self.loop.run_forever()
        finally:
            with self._lock:
                self._is_open = False
            try:
                self.loop.run_until_complete(_cancel_the_others())
                self.loop.run_until_complete(self.loop.shutdown_asyncgens())
                self.loop.run_until_complete(self.loop.shutdown_default_executor())
            finally:
                self.loop.close()


async def _cancel_the_others() -> None:
    await asyncio.sleep(0)  # calls that were posted before the end become tasks now
    while others := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


class Portal:
    """Runs coroutines in a private loop for callers in other threads. Any number of threads may call.

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
        self._is_closed = False
        self._pid = os.getpid()
        self._finish: Callable[[], Coroutine[Any, Any, None]] | None = None
        self._worker = _Worker()

    def before_end(self, finish: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Set the coroutine function that runs in the loop before the loop ends."""
        self._finish = finish

    @property
    def is_closed(self) -> bool:
        """True once the portal was closed, even if the thread has not ended yet."""
        return self._is_closed

    def call(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine in the loop and return its result.

        An exception in the waiting thread, such as KeyboardInterrupt, cancels the coroutine. The exception is
        raised when the coroutine has ended.

        Raises:
            UsageError: The caller is in the loop's own thread, or in a forked process.
            TransportError: The portal is closed, or was closed while the coroutine ran.
        """
        call = _Call(coroutine)
        try:
            self._start(call)
            return call.wait()
        except BaseException:
            self._give_up(call)
            raise

    def run(self, function: Callable[[], _T]) -> _T:
        """Call a function in the loop's thread and return its result. Raises as :meth:`call` does.

        A callback in that thread may use this method too: the function is then called directly.
        """
        if threading.current_thread() is self._worker.thread and not self._is_closed:
            return function()
        return self.call(_call_it(function))

    def end(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine that ends something, as :meth:`call` does; do nothing if the portal is closed.

        Everything that a client has open ends with the client.
        """
        if self._is_closed or os.getpid() != self._pid:
            coroutine.close()
        else:
            self.call(coroutine)

    def look(self, function: Callable[[], _T]) -> _T:
        """Call a function that only reads, as :meth:`run` does.

        After the end, in the loop's thread and in a forked process, the function is called directly.
        """
        if self._is_closed or self._obstacle() is not None:
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
        worker = self._worker

        async def link() -> None:
            made = submit()
            future = await made if inspect.iscoroutine(made) else made
            assert isinstance(future, asyncio.Future)
            future.add_done_callback(partial(_copy, outcome))
            outcome.add_done_callback(
                lambda done: worker.post(future.cancel) if done.cancelled() else None,
            )

        self.call(link())
        return outcome

    def feed(self, items: Iterable[_T], make: Callable[[Any], Awaitable[_R]]) -> _R:
        """Await ``make(items)`` in the loop, while the caller's thread takes items from their iterable.

        If the call fails before the iterable is exhausted, the error is raised after the iterable's next
        item. Raises as :meth:`call` does. An error of the iterable is raised in the loop, where the items are
        used.
        """
        source = self._source(items)
        call = _Call(_await(lambda: make(source)))
        try:
            self._start(call)
            if isinstance(source, Feed):
                call.outcome.add_done_callback(lambda _: source.stop_waiting())
                source.fill(call.outcome.done)
            return call.wait()
        except BaseException:
            self._give_up(call)
            raise

    def feed_and_iterate(self, items: Iterable[_T], make: Callable[[Any], AsyncIterator[_R]]) -> Iterator[_R]:
        """Iterate over ``make(items)`` as :meth:`feed` does; items are taken while a result is waited for."""
        source = self._source(items)
        return self._iterate_fed(source, self.run(lambda: make(source)))

    def _iterate_fed(self, source: object, results: AsyncIterator[_R]) -> Iterator[_R]:
        with self._closed_at_the_end(results):
            while (result := self._next_fed(source, results)) is not _END:
                yield result  # type: ignore[misc]

    def _next_fed(self, source: object, results: AsyncIterator[_R]) -> _R | object:
        call = _Call(_next(results))
        try:
            self._start(call)
            if isinstance(source, Feed):
                source.fill(call.outcome.done, block=False)
            return call.wait()
        except BaseException:
            self._give_up(call)
            raise

    def _source(self, items: Iterable[_T]) -> Iterable[_T] | Feed[_T]:
        """Return the source of items for the loop: a collection itself, since it can't block, else a feed."""
        if isinstance(items, str | bytes | bytearray | Collection) or not isinstance(items, Iterable):
            return items
        return Feed(iter(items), self._worker.post)

    def next(self, items: AsyncIterator[_T]) -> _T:
        """Return the next item of an async iterator.

        Raises:
            StopIteration: The iterator has ended, or the portal is closed.
        """
        item = _END if self._is_closed else self.call(_next(items))
        if item is _END:
            raise StopIteration
        return item  # type: ignore[return-value]

    def iterate(self, items: AsyncIterator[_T]) -> Iterator[_T]:
        """Iterate over an async iterator, with one call into the loop per item."""
        with self._closed_at_the_end(items):
            while (item := self.call(_next(items))) is not _END:
                yield item  # type: ignore[misc]

    @contextmanager
    def _closed_at_the_end(self, items: AsyncIterator[Any]) -> Iterator[None]:
        try:
            yield
        finally:
            if hasattr(items, "aclose") and self._obstacle() is None and not self._is_closed:
                self.call(items.aclose())

    def close(self) -> None:
        """Run the function of :meth:`before_end`, cancel all tasks, end the loop and the thread.

        Closing twice is fine. In a forked process the method does nothing: the thread is not there.

        Raises:
            UsageError: The caller is in the loop's own thread.
            Exception: Any error of the function of ``before_end``. The thread has ended all the same.
        """
        if os.getpid() != self._pid:
            return
        if threading.current_thread() is self._worker.thread:
            raise UsageError("a callback of the client can't close it: it would wait for itself")
        last = self._end()
        # Joined by every caller: a second close() must not return before the thread has ended either.
        self._worker.thread.join()
        if last is not None:
            last.wait()

    def _end(self) -> _Call[None] | None:
        """Start the shutdown; return None if it was started before, or the loop has ended by itself."""
        if self._is_closed:
            return None
        self._is_closed = True
        last = _Call(_finish_and_stop(self._finish))
        if self._worker.post(last.start):
            return last
        last.drop()
        return None

    def _start(self, call: _Call[Any]) -> None:
        obstacle = self._obstacle()
        if obstacle is None and not self._is_closed and self._worker.post(call.start):
            return
        call.drop()
        raise obstacle or TransportError(_CLOSED)

    def _give_up(self, call: _Call[Any]) -> None:
        """Cancel a call that may be running, and wait for its end."""
        if not call.outcome.done() and self._worker.post(call.cancel):
            concurrent.futures.wait([call.outcome])

    def _obstacle(self) -> UsageError | None:
        if os.getpid() != self._pid:
            return UsageError(
                f"the client was made in process {self._pid}, and its thread is not in process "
                f"{os.getpid()}, which was forked off: make a new one here with connect_blocking()"
            )
        if threading.current_thread() is self._worker.thread:
            return UsageError(
                "a callback of the client can't call the client: it would wait for itself. "
                "Hand the work to another thread"
            )
        return None

    def __del__(self) -> None:
        if "_worker" not in vars(self) or self._is_closed or os.getpid() != self._pid:
            return
        warnings.warn(
            "a blocking client was not closed: use it in a `with` statement, or call close()",
            ResourceWarning,
            source=self,
            stacklevel=2,
        )
        self._end()


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


async def _next(items: AsyncIterator[_T]) -> _T | object:
    return await anext(items, _END)

"""A private event loop on a thread of its own, for callers that have none or must not use theirs.

The blocking client runs the async one here, so that heartbeats and keepalives go on while its caller works.
The portal is what callers hold; the thread holds only the :class:`_Worker`. So a portal that was forgotten
can be collected, and then ends its thread and says that it was forgotten.
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
# Seconds after which a waiting thread looks for signals at the latest.
_LOOK_UP: Final = 0.5


class _Call(Generic[_T]):
    """One coroutine on its way through the portal. Its methods are called in the loop's thread."""

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
        """Return what became of it: for the caller's thread.

        It looks up now and then. A signal that comes between the interpreter's last look and the wait for a
        lock does not end the wait (CPython handles signals between instructions), and would go unheard.
        """
        while not self.outcome.done():
            with suppress(TimeoutError, concurrent.futures.CancelledError):
                self.outcome.exception(_LOOK_UP)
        return self.outcome.result()

    def drop(self) -> None:
        """Give up a call that has not begun, without a warning that nobody awaited its coroutine."""
        self._coroutine.close()
        self.outcome.cancel()
        self.outcome.set_running_or_notify_cancel()


def _copy(outcome: concurrent.futures.Future[_T], future: asyncio.Future[_T]) -> None:
    """Put what became of a future of the loop into one that other threads can wait for."""
    if not outcome.set_running_or_notify_cancel():
        if not future.cancelled():
            future.exception()  # looked at, so that asyncio does not report it as never retrieved
    elif future.cancelled():
        outcome.set_exception(TransportError("the client was closed while the call was under way"))
    elif (exc := future.exception()) is not None:
        outcome.set_exception(exc)
    else:
        outcome.set_result(future.result())


class _Worker:
    """The loop and its thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        # Reentrant: the collector may run a portal's __del__ while this very thread is inside post().
        self._lock = threading.RLock()
        self._is_open = True
        self.thread = threading.Thread(target=self._run, name="liftenvelope-client", daemon=True)
        try:
            self.thread.start()
        except RuntimeError:  # no thread to be had
            self.loop.close()
            raise

    def post(self, callback: Callable[[], object]) -> bool:
        """Have a function called in the loop's thread; False if the loop has ended."""
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
    """Runs coroutines in the loop for callers in other threads. Any number of threads may call.

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
        """Set what is run in the loop before it ends."""
        self._finish = finish

    @property
    def is_closed(self) -> bool:
        """Whether the end has begun."""
        return self._is_closed

    def call(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine in the loop; return what it returns.

        An exception that comes to the waiting thread, such as KeyboardInterrupt, cancels the coroutine. It
        is raised when the coroutine has ended.

        Raises:
            UsageError: The caller is the loop's own thread, or a process that was forked off.
            TransportError: The portal is closed, or was while the coroutine ran.
        """
        call = _Call(coroutine)
        try:
            self._start(call)
            return call.wait()
        except BaseException:
            self._give_up(call)
            raise

    def run(self, function: Callable[[], _T]) -> _T:
        """Call a function in the loop's thread; return what it returns. Raises as :meth:`call` does.

        It does not wait, so a callback that is in that thread may do it.
        """
        if threading.current_thread() is self._worker.thread and not self._is_closed:
            return function()
        return self.call(_call_it(function))

    def end(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """As :meth:`call`, for what ends by itself with the client: nothing is done after that."""
        if self._is_closed or os.getpid() != self._pid:
            coroutine.close()
        else:
            self.call(coroutine)

    def look(self, function: Callable[[], _T]) -> _T:
        """As :meth:`run`, for what only reads: after the end, and in the loop's thread, at once."""
        if self._is_closed or self._obstacle() is not None:
            return function()
        return self.run(function)

    def future(
        self, submit: Callable[[], asyncio.Future[_T] | Coroutine[Any, Any, asyncio.Future[_T]]]
    ) -> concurrent.futures.Future[_T]:
        """Have a future made in the loop, at once or by a coroutine; return its twin for other threads.

        The twin can be cancelled, which cancels the first one. Raises as :meth:`call` does, and what
        ``submit`` raises.
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
        """Await what ``make`` makes of items in the loop, and take them from their iterable meanwhile.

        They are taken in the caller's thread; if the call fails before there are no more, that shows when
        the iterable has given its next one. Raises as :meth:`call` does. An error of the iterable is raised
        in the loop, where the items are used.
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
        """As :meth:`feed`, for what is iterated over: items are taken whenever a result is waited for."""
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
        """What to take items from in the loop: the collection itself, where that can't block."""
        if isinstance(items, str | bytes | bytearray | Collection) or not isinstance(items, Iterable):
            return items
        return Feed(iter(items), self._worker.post)

    def next(self, items: AsyncIterator[_T]) -> _T:
        """Return the next item of an async iterator.

        Raises:
            StopIteration: After the last one; after the end of the portal, which ends every iterator.
        """
        item = _END if self._is_closed else self.call(_next(items))
        if item is _END:
            raise StopIteration
        return item  # type: ignore[return-value]

    def iterate(self, items: AsyncIterator[_T]) -> Iterator[_T]:
        """Hand out the items of an async iterator, with one visit to the loop for each."""
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
        """Run what :meth:`before_end` set, end what still runs, the loop and the thread. Twice is fine.

        In a forked process there is no thread to end, and nothing happens.

        Raises:
            UsageError: The caller is the loop's own thread.
            Exception: What ``before_end``'s function raises; the thread has ended all the same.
        """
        if os.getpid() != self._pid:
            return
        if threading.current_thread() is self._worker.thread:
            raise UsageError("a callback of the client can't close it: it would wait for itself")
        last = self._end()
        # Not by the thread alone: a second caller, too, returns only when all has ended.
        self._worker.thread.join()
        if last is not None:
            last.wait()

    def _end(self) -> _Call[None] | None:
        """Begin the end; None if it has begun already, or the loop has ended by itself."""
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
        """Cancel a call that may be under way, and wait for its end."""
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

"""The user's callbacks for the events of a consumption."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable

from liftenvelope.errors import UsageError
from liftenvelope.jetstream._event_log import log_pull_event
from liftenvelope.jetstream._events import Pinned, PullEvent, Unpinned

__all__ = ["Hooks"]


class Hooks:
    """Holds the user's callbacks; each one is optional.

    Args:
        on_event: Called with every event.
        on_pinned: Called with the pin id when this consumption is pinned.
        on_unpinned: Called with the pin id when this consumption loses the pin.
        consumer: Name of the consumer with its stream, for the log. Default: events are not logged.

    Raises:
        UsageError: A callback is not callable, or is a coroutine function.
    """

    def __init__(
        self,
        on_event: Callable[[PullEvent], None] | None = None,
        on_pinned: Callable[[str], None] | None = None,
        on_unpinned: Callable[[str], None] | None = None,
        *,
        consumer: str = "",
    ) -> None:
        for name, hook in (("on_event", on_event), ("on_pinned", on_pinned), ("on_unpinned", on_unpinned)):
            if hook is not None and (inspect.iscoroutinefunction(hook) or not callable(hook)):
                raise UsageError(f"{name} must be a plain function, because nothing awaits it, got {hook!r}")
        self._on_event, self._on_pinned, self._on_unpinned = on_event, on_pinned, on_unpinned
        self._consumer = consumer

    def tell(self, event: PullEvent) -> None:
        """Log an event, and schedule the callbacks. Their exceptions go to the loop's exception handler."""
        if self._consumer:
            log_pull_event(event, self._consumer)
        loop = asyncio.get_running_loop()
        if self._on_event is not None:
            loop.call_soon(self._on_event, event)
        if isinstance(event, Pinned) and self._on_pinned is not None:
            loop.call_soon(self._on_pinned, event.pin_id)
        if isinstance(event, Unpinned) and self._on_unpinned is not None:
            loop.call_soon(self._on_unpinned, event.pin_id)

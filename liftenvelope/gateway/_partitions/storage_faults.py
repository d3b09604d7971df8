"""Reports storage faults of JetStream, such as a full disk, to the log and to publishers."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from liftenvelope._logs.throttle import Throttle

__all__ = ["StorageFaults"]

_log: Final = logging.getLogger("liftenvelope.gateway")
#: Interval at which the same cause is logged again, and time for which publishers are told of it, in seconds.
_MINUTE: Final = 60.0
#: Most partitions whose faults are remembered. The oldest faults are dropped.
_MOST: Final = 10_000


class StorageFaults:
    """Remembers the latest storage fault of each partition.

    Args:
        clock: Returns the current time in seconds. Default: :func:`time.monotonic`.

    Attributes:
        count: Number of faults so far.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.count = 0
        # By stream and partition: the latest cause and the time when it was noted.
        self._noted: dict[tuple[str, int], tuple[str, float]] = {}
        self._throttle = Throttle(seconds=_MINUTE)

    def note(self, stream: str, partition: int, cause: str) -> None:
        """Record that a message was not stored. Log it unless the cause was logged within the last minute."""
        now = self._clock()
        self.count += 1
        self._noted.pop((stream, partition), None)
        self._noted[stream, partition] = (cause, now)
        if len(self._noted) > _MOST:
            del self._noted[next(iter(self._noted))]
        if not self._throttle.admits(cause, now):
            return
        _log.error(
            "JetStream stores no messages of stream %s, partition %d, and perhaps of others: %s. "
            "Nothing that was acked is lost. Free space, or raise the limit; a nats-server that had no space "
            "may have to be restarted",
            stream,
            partition,
            cause,
            extra={"stream": stream, "partition": partition, "cause": cause},
        )

    def cause(self, stream: str, partition: int) -> str:
        """Return the cause of a partition's storage fault within the last minute; ``""`` if there is none."""
        cause, when = self._noted.get((stream, partition), ("", 0.0))
        return cause if cause and self._clock() - when < _MINUTE else ""

"""Tells tests when the cleaner of a Liftbridge stream sleeps, so that they publish only then.

Liftbridge 1.9.0 dies of SIGBUS if a publish and the cleaner roll the same segment at the same time. Both
create the next segment under the same file names. The one that comes second deletes its own again, and
truncates the index file that the other has mapped into memory (``commitLog.split``). With segments of a few
messages and five cleanings a second, 3 of 100 runs of a test met it.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final, Self

from liftenvelope.client import Client

#: Seconds from one run of the cleaner to the next: the ``cleaner_interval`` to create the stream with.
CLEANER_INTERVAL: Final = 2.0
#: Seconds before a run, and after it, in which nothing is published.
MARGIN: Final = 0.3
#: Seconds that the creation of a stream may take. Longer ones leave too little of an interval to publish in.
_LONGEST_CREATION: Final = 0.8


class CleanerClock:
    """Knows when the cleaner of one stream runs: every 2 s, counted from the creation.

    Make it right before the stream is created with :data:`CLEANER_INTERVAL`, and call :meth:`created` right
    after, or use :meth:`create_stream`. The cleaner counts from a moment between the two.
    """

    def __init__(self) -> None:
        self._asked = time.monotonic()
        self._uncertainty = 0.0

    @classmethod
    async def create_stream(cls, client: Client, name: str, **options: Any) -> Self:
        """Create a stream on the subject of its name, again if that took too long."""
        while True:
            clock = cls()
            await client.create_stream(name, name, cleaner_interval=CLEANER_INTERVAL, **options)
            if clock.created():
                return clock
            await client.delete_stream(name)

    def created(self) -> bool:
        """Note that the stream exists; return False if its creation took too long to know the clock."""
        self._uncertainty = time.monotonic() - self._asked
        return self._uncertainty <= _LONGEST_CREATION

    def wait(self) -> None:
        """Block until the cleaner has just run and sleeps, before publishing a few messages."""
        time.sleep(self._seconds_to_wait())

    async def wait_async(self) -> None:
        """Do the same in a coroutine."""
        await asyncio.sleep(self._seconds_to_wait())

    def _seconds_to_wait(self) -> float:
        phase = (time.monotonic() - self._asked) % CLEANER_INTERVAL
        begin = self._uncertainty + MARGIN
        if phase < begin:
            return begin - phase
        if phase > CLEANER_INTERVAL - MARGIN:
            return CLEANER_INTERVAL - phase + begin
        return 0.0

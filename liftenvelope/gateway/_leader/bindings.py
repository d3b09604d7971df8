"""Partitions that this gateway leads, and those among them whose acks are not bound.

A partition is bound while an ack consumer of this gateway delivers its messages. Readiness depends on that,
with two exceptions, or clients and other gateways could make a gateway unready:

- A partition that is new here does not count until its first bind has failed, once the gateway has settled.
  Otherwise a client that creates large streams, or the takeover of a dead gateway's partitions, would do so.
- A partition that loses its consumer counts only if it has none for ``GRACE`` seconds. Consumers are replaced
  all the time, for example when a stream is deleted.

Neither exception holds until all partitions were bound once after the start, and again after each loss of the
connection to NATS.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container
from typing import Final, TypeAlias

__all__ = ["GRACE", "Bindings"]

#: Stream and number of a partition.
_Key: TypeAlias = tuple[str, int]
#: Seconds without an ack consumer after which a partition of a settled gateway counts as unbound.
GRACE: Final = 5.0


class Bindings:
    """State of the acks of each partition led here.

    Args:
        clock: Returns the current time in seconds. Default: :func:`time.monotonic`.

    Attributes:
        acks_sent: Acks sent to raw NATS publishers, over all partitions led so far.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._bound: set[_Key] = set()
        # Partitions whose first bind has not ended.
        self._new: dict[_Key, None] = {}
        # Partitions without a consumer since the given time, the longest first.
        self._lost: dict[_Key, float] = {}
        self._was_passed = False
        self._is_settled = False
        self.acks_sent = 0

    @property
    def led(self) -> int:
        """Number of partitions led."""
        return len(self._bound) + len(self._new) + len(self._lost)

    @property
    def bound(self) -> int:
        """Number of partitions that are bound."""
        return len(self._bound)

    def expect(self, key: _Key) -> None:
        """Note that a partition is to be led."""
        if key not in self._lost and key not in self._bound:
            self._new[key] = None

    def note(self, key: _Key, is_bound: bool) -> None:
        """Note that a partition was bound, or that it lost its consumer or could not get one."""
        self._new.pop(key, None)
        if is_bound:
            self._lost.pop(key, None)
            self._bound.add(key)
            self._look()
        else:
            self._bound.discard(key)
            self._lost.setdefault(key, self._clock())

    def acked(self, count: int) -> None:
        """Count acks that were sent to raw NATS publishers."""
        self.acks_sent += count

    def drop(self, key: _Key) -> None:
        """Forget a partition that is led no longer."""
        self._new.pop(key, None)
        self._lost.pop(key, None)
        self._bound.discard(key)
        self._look()

    def drop_unwanted(self, names: Container[str] | None, wanted: Container[_Key]) -> None:
        """Forget unbound partitions of streams that are not to be led.

        Args:
            names: Names of the streams; None for all.
            wanted: Partitions to lead.
        """
        for key in (*self._new, *self._lost):
            if (names is None or key[0] in names) and key not in wanted:
                self.drop(key)

    def passed(self) -> None:
        """Note that the gateway has tried to bind every partition that it leads."""
        self._was_passed = True
        self._look()

    def disturb(self) -> None:
        """Note that the connection to NATS was lost, and with it the consumers of all partitions."""
        self._is_settled = False

    def restored(self) -> None:
        """Note that the connection is back. By then, each partition without a consumer must be noted."""
        self._look()

    def _look(self) -> None:
        if self._was_passed and not (self._new or self._lost):
            self._is_settled = True

    def fault(self) -> str:
        """Return why the gateway is not ready; ``""`` if its partitions don't prevent it."""
        if not self._is_settled:
            missing = [*self._lost, *self._new]
        else:
            latest = self._clock() - GRACE
            if not self._lost or next(iter(self._lost.values())) > latest:
                return ""
            missing = [key for key, since in self._lost.items() if since <= latest]
        if not missing:
            # Before the first pass, or between the loss of the connection and its report.
            return "" if self._is_settled else "the partitions to lead are not known yet"
        name, partition = missing[0]
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        return f"{len(missing)} of {self.led} partitions send no acks: {name!r} {partition}{more}"

"""Made of client/merged.py by protos/generate_blocking.py. Don't edit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftenvelope.client.blocking.message_reader import BlockingMessageReader

if TYPE_CHECKING:
    from typing import Self

    from liftenvelope.client.merged import MergedSubscription

__all__ = ["BlockingMergedSubscription"]


class BlockingMergedSubscription(BlockingMessageReader):
    """Messages of several partitions. Made by :meth:`BlockingClient.subscribe` with ``partition="all"``.

    Works as a :class:`BlockingSubscription`, except for the order: messages of one partition come in the
    order of their offsets, those of different partitions in any order. A slow partition does not block the
    others. Iteration ends when all partitions have ended; the first error of a partition ends it too.
    """

    _async: MergedSubscription

    @property
    def stream(self) -> str:
        """Name of the stream."""
        return self._async.stream

    @property
    def positions(self) -> dict[tuple[str, int], int | None]:
        """Offset of the next message, or a later one, by stream and partition; None while it is unknown.

        A subscription that starts at these offsets continues where this one is.
        """
        return self._portal.look(lambda: self._async.positions)

    def open(self) -> Self:
        """Subscribe to every partition; ``with`` does it.

        Raises:
            LiftEnvelopeError: Any error of :meth:`BlockingSubscription.open`.
        """
        self._portal.call(self._async.open())
        return self

    def close(self) -> None:
        """End the subscriptions and drop messages that were not handed out. Closing twice is fine."""
        self._portal.end(self._async.close())

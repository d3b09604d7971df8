"""Made of client/merged.py by protos/generate_blocking.py. Don't edit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftenvelope.client.blocking.message_reader import BlockingMessageReader

if TYPE_CHECKING:
    from typing import Self

    from liftenvelope.client.merged import MergedSubscription

__all__ = ["BlockingMergedSubscription"]


class BlockingMergedSubscription(BlockingMessageReader):
    """The messages of every partition. Made by :meth:`BlockingClient.subscribe` with ``partition="all"``.

    As a :class:`BlockingSubscription`, but for the order: that of the offsets within a partition, any
    between them. No partition holds the others up. It ends when all have ended; the first error of one ends
    it.
    """

    _async: MergedSubscription

    @property
    def stream(self) -> str:
        """Name of the stream."""
        return self._async.stream

    @property
    def positions(self) -> dict[tuple[str, int], int | None]:
        """By stream and partition, the offset that will be handed out next, or a later one.

        None before that is known. A subscription that starts there goes on where this one is.
        """
        return self._portal.look(lambda: self._async.positions)

    def open(self) -> Self:
        """Subscribe to every partition; ``with`` does it.

        Raises:
            LiftEnvelopeError: What :meth:`BlockingSubscription.open` raises.
        """
        self._portal.call(self._async.open())
        return self

    def close(self) -> None:
        """End the subscriptions. What was not handed out is dropped. Closing twice is fine."""
        self._portal.end(self._async.close())

"""Consumer that messages are pulled from, and the errors of its statuses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from liftenvelope.errors import (
    BadRequestError,
    ConsumerDeletedError,
    JetStreamError,
    NoJetStreamError,
    PushConsumerError,
    UnsupportedByServerError,
)
from liftenvelope.jetstream.statuses import NO_HEADERS, Status, StatusKind

if TYPE_CHECKING:
    from liftenvelope.jetstream.api import Api
    from liftenvelope.jetstream.infos import ConsumerInfo
    from liftenvelope.jetstream.message import AckSender

__all__ = ["PullSource", "error_of"]


class PullSource(Protocol):
    """Consumer that a feed pulls messages from."""

    @property
    def api(self) -> Api:
        """Client for API requests."""

    @property
    def pull_subject(self) -> str:
        """Subject that pulls are published to."""

    @property
    def acks(self) -> AckSender:
        """Sender of the acks."""

    async def info(self, *, timeout: float | None = None) -> ConsumerInfo:
        """Request the consumer's info.

        Raises:
            ConsumerNotFoundError, StreamNotFoundError: The consumer or its stream no longer exists.
        """

    async def unpin(self, group: str, *, timeout: float | None = None) -> None:
        """Remove the pin of a group, whichever client holds it."""


def error_of(status: Status) -> JetStreamError | UnsupportedByServerError:
    """Return the exception for a status that ends the consumption."""
    if status.description == NO_HEADERS:
        return UnsupportedByServerError(NO_HEADERS)
    kinds: dict[StatusKind, type[JetStreamError]] = {
        StatusKind.DELETED: ConsumerDeletedError,
        StatusKind.PUSH: PushConsumerError,
        StatusKind.BAD_REQUEST: BadRequestError,
        StatusKind.NO_RESPONDERS: NoJetStreamError,
    }
    text = status.description or "nothing answers pulls: JetStream or the consumer is not there"
    return kinds.get(status.kind, JetStreamError)(status.code, text)

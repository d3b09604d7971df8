"""One message of ``publish`` or ``publish_async``: its checked arguments, and its request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from liftenvelope._checks import as_bytes, as_flag, as_int64, as_optional_text, storable_headers
from liftenvelope.client.core import check_partition
from liftenvelope.client.publish_checks import (
    check_ack_inbox,
    check_headers,
    check_published_stream,
    check_size,
)
from liftenvelope.client.publish_codec import publish_request
from liftenvelope.envelope import AckPolicy
from liftenvelope.types import as_request_policy

if TYPE_CHECKING:
    from liftenvelope.partition import Partitioner

__all__ = ["SingleMessage"]


@dataclass(slots=True)
class SingleMessage:
    """One message to publish, checked."""

    stream: str
    value: Any
    key: Any
    headers: Any
    partition: int | None
    partitioner: Partitioner
    ack_policy: Any
    ack_inbox: str | None
    correlation_id: str | None
    expected_offset: int
    retry: bool

    def __post_init__(self) -> None:
        check_published_stream(self.stream)
        self.ack_policy = as_request_policy("ack_policy", self.ack_policy)
        if self.partition is not None:
            check_partition(self.partition)
        if self.headers is not None:
            self.headers = storable_headers(self.headers)
            check_headers(self.headers)
        self.value = as_bytes("value", self.value)
        self.key = None if self.key is None else as_bytes("key", self.key)
        self.expected_offset = as_int64("expected_offset", self.expected_offset)
        check_ack_inbox(self.ack_inbox)
        as_optional_text("correlation_id", self.correlation_id)
        as_flag("retry_unacked", self.retry)

    @property
    def is_unary(self) -> bool:
        """True if the message needs a unary call: PublishAsync never confirms NONE and sets its own inbox."""
        return self.ack_policy is AckPolicy.NONE or bool(self.ack_inbox)

    def request(self, partition: int, correlation_id: str | None, most: int) -> bytes:
        """Return the encoded PublishRequest, of at most ``most`` bytes."""
        request = publish_request(
            self.stream,
            self.value,
            key=self.key,
            headers=self.headers,
            partition=partition,
            ack_inbox=self.ack_inbox,
            correlation_id=correlation_id,
            ack_policy=self.ack_policy,
            expected_offset=self.expected_offset,
        )
        return check_size(request, most)

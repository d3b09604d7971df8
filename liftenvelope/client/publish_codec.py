"""Encoding of publish requests and decoding of their answers, by the native or the Python codec."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, cast

from liftenvelope._native import env
from liftenvelope.envelope import Ack, AckPolicy
from liftenvelope.types import as_request_policy

if TYPE_CHECKING:
    from liftenvelope._pb import api_pb2

__all__ = ["Response", "ack_in", "policy_of", "publish_request", "read_publish_responses"]

publish_request = env.publish_request
read_publish_responses = env.read_publish_responses

#: Decoded answer: correlation id, ack or None, code of an error or -1, text of the error.
Response: TypeAlias = tuple[str, Ack | None, int, str]


def ack_in(answer: bytes) -> Ack | None:
    """Return the ack in the answer to Publish or PublishToSubject, None if the answer has none.

    One decoder reads both: PublishToSubjectResponse has the ack at the field number of PublishResponse, and
    no other field.
    """
    [(_, ack, _, _)] = read_publish_responses([answer])
    return ack


def policy_of(policy: AckPolicy | int) -> api_pb2.AckPolicy:
    """Return an ack policy as the enum of the API."""
    return cast("api_pb2.AckPolicy", int(as_request_policy("ack_policy", policy)))

"""Publish requests as bytes, and the answers to them, by the codec."""

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

#: A correlation id, the ack if there is one, the code of an error or -1, the error's text.
Response: TypeAlias = tuple[str, Ack | None, int, str]


def ack_in(answer: bytes) -> Ack | None:
    """Return the ack in the answer to a unary publish, None if there is none.

    That of PublishToSubject is read as well: it has the ack where PublishResponse has it, and nothing else.
    """
    [(_, ack, _, _)] = read_publish_responses([answer])
    return ack


def policy_of(policy: AckPolicy | int) -> api_pb2.AckPolicy:
    """Return an ack policy as the API has it."""
    return cast("api_pb2.AckPolicy", int(as_request_policy("ack_policy", policy)))

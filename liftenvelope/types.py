"""Enumerations of the Liftbridge API."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Self

from liftenvelope._checks import as_int32
from liftenvelope.errors import UsageError

__all__ = ["AckError", "AckPolicy", "MessageType"]


class OpenIntEnum(IntEnum):
    """Open protobuf enumeration: an unknown number is kept, not refused."""

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        if not isinstance(value, int) or not -(2**31) <= value < 2**31:
            return None
        member = int.__new__(cls, value)
        member._name_ = f"UNRECOGNIZED_{value}"
        member._value_ = value
        return member


class AckPolicy(OpenIntEnum):
    """Ack policy: the point at which the server acks a message."""

    #: Once the partition's leader has written the message to its log.
    LEADER = 0
    #: Once every in-sync replica has the message.
    ALL = 1
    #: Never. Error acks may still be sent if the message has an ack inbox.
    NONE = 2


class AckError(OpenIntEnum):
    """Reason why the server did not store a message."""

    #: The message was stored.
    OK = 0
    #: The server gave no reason.
    UNKNOWN = 1
    #: The expected offset was not the next one of the partition.
    INCORRECT_OFFSET = 2
    #: The message is larger than the server's replication limit.
    TOO_LARGE = 3
    #: The server could not encrypt the message.
    ENCRYPTION = 4


class MessageType(OpenIntEnum):
    """Type of an envelope. Clients use the first two; servers send the others to each other."""

    PUBLISH = 0
    ACK = 1
    REPLICATION_REQUEST = 2
    REPLICATION_RESPONSE = 3
    RAFT_JOIN_REQUEST = 4
    RAFT_JOIN_RESPONSE = 5
    LEADER_EPOCH_OFFSET_REQUEST = 6
    LEADER_EPOCH_OFFSET_RESPONSE = 7
    PROPAGATED_REQUEST = 8
    PROPAGATED_RESPONSE = 9
    SERVER_INFO_REQUEST = 10
    SERVER_INFO_RESPONSE = 11
    PARTITION_STATUS_REQUEST = 12
    PARTITION_STATUS_RESPONSE = 13
    PARTITION_NOTIFICATION = 14


def as_ack_policy(name: str, value: Any) -> AckPolicy:
    """Convert a number or member to AckPolicy."""
    return value if type(value) is AckPolicy else AckPolicy(as_int32(name, value))


def as_request_policy(name: str, value: Any) -> AckPolicy:
    """Convert to a known AckPolicy; refuse unknown numbers, which the server would treat as NONE."""
    policy = as_ack_policy(name, value)
    if not AckPolicy.LEADER <= policy <= AckPolicy.NONE:
        raise UsageError(f"{name} must be one of {', '.join(AckPolicy.__members__)}, got {int(policy)}")
    return policy


def as_ack_error(name: str, value: Any) -> AckError:
    """Convert a number or member to AckError."""
    return value if type(value) is AckError else AckError(as_int32(name, value))

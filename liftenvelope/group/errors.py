"""Errors of groups, and the codes that coordinators send for them."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from liftenvelope.errors import AlreadyMemberError, FencedError, GroupError, NoSuchGroupError, NotMemberError

__all__ = [
    "ConsumerIdInUseError",
    "CoordinatorDefectError",
    "CoordinatorIdInUseError",
    "EphemeralGroupError",
    "ErrorCode",
    "GroupExistsError",
    "GroupLimitError",
    "GroupNotEmptyError",
    "GroupRequestError",
    "GroupUnavailableError",
    "MemberFencedError",
    "NotAssignedError",
    "NotControllerError",
    "RebalancingError",
    "StaleGenerationError",
    "TopicMismatchError",
    "UnknownGroupError",
    "UnknownMemberError",
    "code_of",
    "group_error",
]


class ErrorCode(IntEnum):
    """Error codes of answers, with the numbers of ``protos/groups.proto``."""

    OK = 0
    INTERNAL = 1
    INVALID_ARGUMENT = 2
    UNAVAILABLE = 3
    NOT_CONTROLLER = 4
    NO_SUCH_GROUP = 5
    GROUP_EXISTS = 6
    GROUP_NOT_EMPTY = 7
    GROUP_EPHEMERAL = 8
    NOT_MEMBER = 9
    STALE_GENERATION = 10
    ALREADY_MEMBER = 11
    NOT_ASSIGNED = 12
    REBALANCING = 13
    LIMIT_EXCEEDED = 14
    TOPIC_MISMATCH = 15


class CoordinatorDefectError(GroupError):
    """The coordinator failed because of a defect, or sent a code that this version does not know."""


class CoordinatorIdInUseError(GroupError):
    """Another coordinator with this id is running. Every coordinator needs an id of its own."""


class GroupRequestError(GroupError, ValueError):
    """The request is malformed; the message names the value."""


class GroupUnavailableError(GroupError):
    """The coordinator can't serve the call now, because it lost JetStream or its lease. Retrying may help."""

    retriable = True


class NotControllerError(GroupError):
    """Another coordinator is the group's controller."""

    retriable = True


class UnknownGroupError(NoSuchGroupError):
    """The group does not exist."""


class GroupExistsError(GroupError):
    """A group with this name has another definition."""


class GroupNotEmptyError(GroupError):
    """The group has members, so it can't be deleted."""


class EphemeralGroupError(GroupError):
    """The group is ephemeral: it is deleted with its last member, and in no other way."""


class MemberFencedError(FencedError):
    """The consumer may no longer act for the group: its session expired, or its generation ended."""


class UnknownMemberError(MemberFencedError, NotMemberError):
    """The consumer is not a member of the group: it never joined, has left, or its session expired."""


class StaleGenerationError(MemberFencedError):
    """The member's generation has ended, and with it the assignment of its partitions."""


class NotAssignedError(MemberFencedError):
    """The partition is not assigned to this member."""


class ConsumerIdInUseError(AlreadyMemberError):
    """Another client is, or was until a moment ago, a member with this consumer id."""

    retriable = True


class RebalancingError(GroupError):
    """The group is rebalancing: its members give their partitions back and register again."""

    retriable = True


class GroupLimitError(GroupError):
    """The group would be larger than a coordinator accepts, or an answer larger than a NATS message is."""


class TopicMismatchError(GroupError):
    """The group knows the topic with other partitions. A topic may only grow at its end."""


_KINDS: Final[dict[ErrorCode, type[GroupError]]] = {
    ErrorCode.INTERNAL: CoordinatorDefectError,
    ErrorCode.INVALID_ARGUMENT: GroupRequestError,
    ErrorCode.UNAVAILABLE: GroupUnavailableError,
    ErrorCode.NOT_CONTROLLER: NotControllerError,
    ErrorCode.NO_SUCH_GROUP: UnknownGroupError,
    ErrorCode.GROUP_EXISTS: GroupExistsError,
    ErrorCode.GROUP_NOT_EMPTY: GroupNotEmptyError,
    ErrorCode.GROUP_EPHEMERAL: EphemeralGroupError,
    ErrorCode.NOT_MEMBER: UnknownMemberError,
    ErrorCode.STALE_GENERATION: StaleGenerationError,
    ErrorCode.ALREADY_MEMBER: ConsumerIdInUseError,
    ErrorCode.NOT_ASSIGNED: NotAssignedError,
    ErrorCode.REBALANCING: RebalancingError,
    ErrorCode.LIMIT_EXCEEDED: GroupLimitError,
    ErrorCode.TOPIC_MISMATCH: TopicMismatchError,
}


def group_error(code: int, message: str) -> GroupError:
    """Return the error for a code; the text of an unknown code includes its number.

    Example:
        >>> group_error(9, "'a' is not a member")
        UnknownMemberError("'a' is not a member")
        >>> group_error(99, "new")
        CoordinatorDefectError('new (code 99, which this version does not know)')
    """
    try:
        kind = _KINDS[ErrorCode(code)]
    except (ValueError, KeyError):
        return CoordinatorDefectError(f"{message} (code {code}, which this version does not know)")
    return kind(message)


def code_of(error: GroupError) -> ErrorCode:
    """Return the code that an error is sent with.

    Example:
        >>> code_of(StaleGenerationError("generation 3 is over")).name
        'STALE_GENERATION'
    """
    for code, kind in _KINDS.items():
        if type(error) is kind:
            return code
    return ErrorCode.INTERNAL

"""The errors of groups, and the codes that coordinators send for them."""

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
    """What an answer says went wrong; the numbers are those of ``protos/groups.proto``."""

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
    """The coordinator failed by a defect of its own, or sent a code that this version does not know."""


class CoordinatorIdInUseError(GroupError):
    """Another coordinator of this id lives; each needs one of its own."""


class GroupRequestError(GroupError, ValueError):
    """The request makes no sense; the message names the offending value."""


class GroupUnavailableError(GroupError):
    """The coordinator can't do it now, for it has lost JetStream or its lease. Asking again may help."""

    retriable = True


class NotControllerError(GroupError):
    """Another coordinator is the group's controller."""

    retriable = True


class UnknownGroupError(NoSuchGroupError):
    """There is no group of that name."""


class GroupExistsError(GroupError):
    """There is a group of that name that is defined otherwise."""


class GroupNotEmptyError(GroupError):
    """The group has members, so it can't be deleted."""


class EphemeralGroupError(GroupError):
    """The group is ephemeral: it goes with its last member, and by no other way."""


class MemberFencedError(FencedError):
    """The consumer may not act for the group any more: it was taken for dead, or the group has gone on."""


class UnknownMemberError(MemberFencedError, NotMemberError):
    """The consumer is no member of the group: it never was, has left, or was silent for too long."""


class StaleGenerationError(MemberFencedError):
    """The group is in another generation than the member, which has lost its partitions."""


class NotAssignedError(MemberFencedError):
    """The partition is not this member's."""


class ConsumerIdInUseError(AlreadyMemberError):
    """Another client is a member of the group with this consumer id, or was until a moment ago."""

    retriable = True


class RebalancingError(GroupError):
    """The group is changing: its members give their partitions back, and register again."""

    retriable = True


class GroupLimitError(GroupError):
    """The group would have more members, topics or partitions than a coordinator keeps."""


class TopicMismatchError(GroupError):
    """The group knows the topic with other partitions; a topic may only grow at its end."""


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
    """The error for a code; an unknown one keeps its number in the text.

    Example:
        >>> group_error(9, "'a' is no member")
        UnknownMemberError("'a' is no member")
        >>> group_error(99, "new")
        CoordinatorDefectError('new (code 99, which this version does not know)')
    """
    try:
        kind = _KINDS[ErrorCode(code)]
    except (ValueError, KeyError):
        return CoordinatorDefectError(f"{message} (code {code}, which this version does not know)")
    return kind(message)


def code_of(error: GroupError) -> ErrorCode:
    """The code that an error is sent with.

    Example:
        >>> code_of(StaleGenerationError("generation 3 is over")).name
        'STALE_GENERATION'
    """
    for code, kind in _KINDS.items():
        if type(error) is kind:
            return code
    return ErrorCode.INTERNAL

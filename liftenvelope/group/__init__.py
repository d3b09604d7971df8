"""Consumer groups over NATS: a coordinator that any application can run, and the consumers of its groups.

:class:`Coordinator` serves groups over NATS request/reply. :class:`GroupConsumer` is a member of a group.
:class:`GroupClient` lists, creates, deletes and rewinds groups. All of them work on your own nats-py
connection. They need JetStream, and ``pip install 'liftenvelope[client]'`` for protobuf.
"""

from liftenvelope.group._client import GroupClient, GroupInfo, GroupList, MemberInfo
from liftenvelope.group._liftbridge import LiftbridgeTopic
from liftenvelope.group._member.consumer import GroupConsumer
from liftenvelope.group._member.options import PartitionsCallback
from liftenvelope.group._member.reader import GroupMessage
from liftenvelope.group._sources import (
    DatedSource,
    ListFeed,
    NewestSource,
    PartitionFeed,
    SourceMessage,
    TopicSource,
)
from liftenvelope.group._topics import JetStreamTopic, JetStreamTopicSource, Topic
from liftenvelope.group.assignors import (
    ASSIGNORS,
    Assignment,
    Assignor,
    Situation,
    TopicPartition,
    range_,
    round_robin,
    sticky,
)
from liftenvelope.group.bounds import Bounds
from liftenvelope.group.coordinator import Coordinator
from liftenvelope.group.errors import (
    ConsumerIdInUseError,
    CoordinatorDefectError,
    CoordinatorIdInUseError,
    EphemeralGroupError,
    ErrorCode,
    GroupExistsError,
    GroupLimitError,
    GroupNotEmptyError,
    GroupRequestError,
    GroupUnavailableError,
    MemberFencedError,
    NotAssignedError,
    NotControllerError,
    RebalancingError,
    StaleGenerationError,
    TopicMismatchError,
    UnknownGroupError,
    UnknownMemberError,
)
from liftenvelope.group.events import (
    AssignorFailed,
    CommitFailed,
    ControllerLost,
    GroupEvent,
    GroupEventHandler,
    GroupTaken,
    GroupWarning,
    LeaseLost,
    LeaveFailed,
    MemberExpired,
    MemberFenced,
    PartitionRefused,
    PartitionUnknown,
    PartitionUnreadable,
)
from liftenvelope.group.state import Phase, Place, TopicSpec

__all__ = [
    "ASSIGNORS",
    "Assignment",
    "Assignor",
    "AssignorFailed",
    "Bounds",
    "CommitFailed",
    "ConsumerIdInUseError",
    "ControllerLost",
    "Coordinator",
    "CoordinatorDefectError",
    "CoordinatorIdInUseError",
    "DatedSource",
    "EphemeralGroupError",
    "ErrorCode",
    "GroupClient",
    "GroupConsumer",
    "GroupEvent",
    "GroupEventHandler",
    "GroupExistsError",
    "GroupInfo",
    "GroupLimitError",
    "GroupList",
    "GroupMessage",
    "GroupNotEmptyError",
    "GroupRequestError",
    "GroupTaken",
    "GroupUnavailableError",
    "GroupWarning",
    "JetStreamTopic",
    "JetStreamTopicSource",
    "LeaseLost",
    "LeaveFailed",
    "LiftbridgeTopic",
    "ListFeed",
    "MemberExpired",
    "MemberFenced",
    "MemberFencedError",
    "MemberInfo",
    "NewestSource",
    "NotAssignedError",
    "NotControllerError",
    "PartitionFeed",
    "PartitionRefused",
    "PartitionUnknown",
    "PartitionUnreadable",
    "PartitionsCallback",
    "Phase",
    "Place",
    "RebalancingError",
    "Situation",
    "SourceMessage",
    "StaleGenerationError",
    "Topic",
    "TopicMismatchError",
    "TopicPartition",
    "TopicSource",
    "TopicSpec",
    "UnknownGroupError",
    "UnknownMemberError",
    "range_",
    "round_robin",
    "sticky",
]

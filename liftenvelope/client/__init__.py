"""The Liftbridge client: streams, publish, subscribe, metadata, cursors and consumer groups over gRPC.

:func:`connect` makes a client, and :mod:`liftenvelope.errors` has the exceptions. This package exports the
other public types: start positions, returned values and events. :mod:`liftenvelope.client.blocking` has the
same client for code without an event loop.
"""

# Imported first: without protobuf, its error says which extra to install.
from liftenvelope import _pb as _pb
from liftenvelope.client._consuming.checkpointer import Checkpointer
from liftenvelope.client._consuming.consumer import Consumer
from liftenvelope.client._events import (
    CheckpointFailed,
    ClientEvent,
    CursorAheadOfStream,
    EventHandler,
    GroupCoordinatorReported,
    GroupLeaveFailed,
    GroupMemberExpired,
    GroupPartitionFenced,
    LiftEnvelopeWarning,
    MetadataRefreshed,
    StoppedAtHighWatermark,
    SubscriptionLost,
    SubscriptionResumed,
)
from liftenvelope.client._health import HealthStatus
from liftenvelope.client._publish_many import OutgoingMessage, PublishMany
from liftenvelope.client._publish_summary import PublishSummary
from liftenvelope.client._reading.merged import MergedSubscription
from liftenvelope.client._reading.subscription import Subscription
from liftenvelope.client._streams import MAX_REPLICATION
from liftenvelope.client.activity import (
    Activity,
    ActivityEvent,
    ActivityStream,
    GroupJoined,
    GroupLeft,
    StreamCreated,
    StreamDeleted,
    StreamPaused,
    StreamReadonlySet,
    StreamResumed,
    UnknownActivity,
)
from liftenvelope.client.client import Client, connect
from liftenvelope.client.metadata import (
    BrokerInfo,
    EventTimes,
    GroupInfo,
    Metadata,
    PartitionInfo,
    StreamInfo,
)
from liftenvelope.client.positions import Cursor, Timestamp

__all__ = [
    "MAX_REPLICATION",
    "Activity",
    "ActivityEvent",
    "ActivityStream",
    "BrokerInfo",
    "CheckpointFailed",
    "Checkpointer",
    "Client",
    "ClientEvent",
    "Consumer",
    "Cursor",
    "CursorAheadOfStream",
    "EventHandler",
    "EventTimes",
    "GroupCoordinatorReported",
    "GroupInfo",
    "GroupJoined",
    "GroupLeaveFailed",
    "GroupLeft",
    "GroupMemberExpired",
    "GroupPartitionFenced",
    "HealthStatus",
    "LiftEnvelopeWarning",
    "MergedSubscription",
    "Metadata",
    "MetadataRefreshed",
    "OutgoingMessage",
    "PartitionInfo",
    "PublishMany",
    "PublishSummary",
    "StoppedAtHighWatermark",
    "StreamCreated",
    "StreamDeleted",
    "StreamInfo",
    "StreamPaused",
    "StreamReadonlySet",
    "StreamResumed",
    "Subscription",
    "SubscriptionLost",
    "SubscriptionResumed",
    "Timestamp",
    "UnknownActivity",
    "connect",
]

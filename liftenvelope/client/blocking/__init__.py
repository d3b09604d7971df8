"""The blocking client: the methods of the async one, for callers without an event loop.

All but ``_base`` is generated, by ``protos/generate_blocking.py``.
"""

from liftenvelope.client.blocking.activity import BlockingActivityStream
from liftenvelope.client.blocking.checkpointer import BlockingCheckpointer
from liftenvelope.client.blocking.client import BlockingClient, connect_blocking
from liftenvelope.client.blocking.consumer import BlockingConsumer
from liftenvelope.client.blocking.merged import BlockingMergedSubscription
from liftenvelope.client.blocking.subscription import BlockingSubscription

__all__ = [
    "BlockingActivityStream",
    "BlockingCheckpointer",
    "BlockingClient",
    "BlockingConsumer",
    "BlockingMergedSubscription",
    "BlockingSubscription",
    "connect_blocking",
]

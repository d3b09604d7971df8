"""Names from OpenTelemetry's semantic conventions for messaging (1.44), and names of our own.

The names are written here because the package that has them, ``opentelemetry-semantic-conventions``, is a
pre-release: any of its versions may rename them.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from opentelemetry.trace import SpanKind

__all__ = ["Operation"]

#: Schema of the conventions, which tells a backend what the names mean.
SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.44.0"

SYSTEM: Final = "messaging.system"
OPERATION_NAME: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
DESTINATION: Final = "messaging.destination.name"
TEMPLATE: Final = "messaging.destination.template"
PARTITION: Final = "messaging.destination.partition.id"
BATCH_COUNT: Final = "messaging.batch.message_count"
BODY_SIZE: Final = "messaging.message.body.size"
GROUP: Final = "messaging.consumer.group.name"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
ERROR_TYPE: Final = "error.type"
#: Stream that stores the message, from its ack.
STREAM: Final = "liftenvelope.stream"
#: Offset of the message in its partition; for JetStream its stream sequence.
OFFSET: Final = "liftenvelope.offset"

#: Advice of the conventions for histograms of durations, in seconds.
BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)

#: Messaging system of all operations: Liftbridge and the gateway store what is published on NATS.
NATS: Final = "nats"


class Operation(NamedTuple):
    """An operation on messages.

    Attributes:
        name: Name of the operation, the first word of its span's name.
        type: Type of the operation in the conventions.
        kind: Kind of its span.
    """

    name: str
    type: str
    kind: SpanKind


PUBLISH: Final = Operation("publish", "send", SpanKind.PRODUCER)
RECEIVE: Final = Operation("receive", "receive", SpanKind.CLIENT)
FETCH: Final = Operation("fetch", "receive", SpanKind.CLIENT)
PROCESS: Final = Operation("process", "process", SpanKind.CONSUMER)
ACK: Final = Operation("ack", "settle", SpanKind.CLIENT)
NAK: Final = Operation("nak", "settle", SpanKind.CLIENT)
TERM: Final = Operation("term", "settle", SpanKind.CLIENT)

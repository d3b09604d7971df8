"""Server answers as errors of this package. The texts are those of Liftbridge 1.9.0 and of the gateway."""

from __future__ import annotations

import pytest

from liftenvelope.client.failures import call_error, publish_async_error, publish_call_error, resolved_start
from liftenvelope.errors import (
    AckTimeoutError,
    AlreadyMemberError,
    CallTimeoutError,
    CursorsUnavailableError,
    EncryptionFailedError,
    FencedError,
    GroupError,
    IncorrectOffsetError,
    LiftEnvelopeError,
    MessageTooLargeError,
    NoSuchGroupError,
    NoSuchPartitionError,
    NoSuchStreamError,
    NotLeaderError,
    NotMemberError,
    PartitionPausedError,
    PermissionDeniedError,
    PublishError,
    ReadonlyPartitionError,
    ServerError,
    StreamDeletedError,
    StreamExistsError,
    TransportError,
)
from liftenvelope.rpc.status import NOT_RECORDED, PUBLISH_AGAIN, CallNotProcessedError, RpcError, StatusCode

C = StatusCode
FETCH, JOIN = "FetchConsumerGroupAssignments", "JoinConsumerGroup"
REPORT = "ReportConsumerGroupCoordinator"


@pytest.mark.parametrize(
    ("method", "code", "text", "kind"),
    [
        ("CreateStream", C.ALREADY_EXISTS, "stream already exists", StreamExistsError),
        ("CreateStream", C.INVALID_ARGUMENT, "Subject is invalid", RpcError),
        ("CreateStream", C.INTERNAL, "no known metadata leader", NotLeaderError),
        ("CreateStream", C.DEADLINE_EXCEEDED, "context deadline exceeded", CallTimeoutError),
        ("CreateStream", C.UNAVAILABLE, "the gateway is stopping", RpcError),
        ("DeleteStream", C.NOT_FOUND, "stream does not exist", NoSuchStreamError),
        ("PauseStream", C.NOT_FOUND, "stream not found", NoSuchStreamError),
        ("PauseStream", C.NOT_FOUND, "partition does not exist", NoSuchPartitionError),
        ("SetStreamReadonly", C.NOT_FOUND, "stream not found", NoSuchStreamError),
        ("FetchPartitionMetadata", C.NOT_FOUND, "partition not found", NoSuchPartitionError),
        (
            "FetchPartitionMetadata",
            C.FAILED_PRECONDITION,
            "The request should be sent to partition leader",
            NotLeaderError,
        ),
        ("Subscribe", C.NOT_FOUND, "No such stream", NoSuchStreamError),  # as a gateway answers
        ("Subscribe", C.NOT_FOUND, "No such partition", NoSuchPartitionError),
        ("Subscribe", C.NOT_FOUND, "commit log was deleted", StreamDeletedError),
        ("Subscribe", C.FAILED_PRECONDITION, "Server not partition leader", NotLeaderError),
        ("Subscribe", C.FAILED_PRECONDITION, "commit log was closed", PartitionPausedError),
        (
            "Subscribe",
            C.INTERNAL,
            "Failed to create stream reader: segment has been closed",
            PartitionPausedError,
        ),
        ("Subscribe", C.RESOURCE_EXHAUSTED, "End of readonly partition", ReadonlyPartitionError),
        (
            "Subscribe",
            C.FAILED_PRECONDITION,
            "Consumer is not currently assigned this partition",
            FencedError,
        ),
        (
            "Subscribe",
            C.UNKNOWN,
            "The client is not authorized to call Subscribe on resource foo",
            PermissionDeniedError,
        ),
        ("Subscribe", C.UNKNOWN, "EOF", RpcError),
        (
            "SetCursor",  # stored by a Publish of the server's own
            C.INTERNAL,
            "The client is not authorized to call Publish on resource __cursors",
            PermissionDeniedError,
        ),
        ("FetchMetadata", C.UNKNOWN, "api: Failed to retrieve client ID", PermissionDeniedError),
        (
            "DeleteStream",  # as a gateway answers
            C.PERMISSION_DENIED,
            "The client is not authorized to call DeleteStream on resource foo",
            PermissionDeniedError,
        ),
        (
            "CreateStream",
            C.INTERNAL,
            "Failed to replicate partition: raft operation timed out",
            CallTimeoutError,
        ),
        (JOIN, C.INTERNAL, "Failed to join consumer group: timed out enqueuing operation", CallTimeoutError),
        ("DeleteStream", C.INTERNAL, "Failed to delete stream: node is not the leader", NotLeaderError),
        ("CreateStream", C.INTERNAL, "leadership transfer in progress", NotLeaderError),
        ("Publish", C.NOT_FOUND, "no such stream: partitions", NoSuchStreamError),
        ("Publish", C.NOT_FOUND, "no such partition: 7", NoSuchPartitionError),
        ("FetchCursor", C.INTERNAL, "Cursors stream does not exist", CursorsUnavailableError),
        ("FetchCursor", C.FAILED_PRECONDITION, "Server not leader for cursors partition 0", NotLeaderError),
        (
            JOIN,
            C.FAILED_PRECONDITION,
            "consumer is already a member of the consumer group",
            AlreadyMemberError,
        ),
        (JOIN, C.FAILED_PRECONDITION, "stream does not exist", NoSuchStreamError),
        (FETCH, C.FAILED_PRECONDITION, "consumer is not a member of the consumer group", NotMemberError),
        (FETCH, C.NOT_FOUND, "consumer group does not exist", NoSuchGroupError),
        ("LeaveConsumerGroup", C.NOT_FOUND, "consumer group does not exist", NoSuchGroupError),
        (
            "LeaveConsumerGroup",
            C.FAILED_PRECONDITION,
            "consumer is not a member of the consumer group",
            NotMemberError,
        ),
        (REPORT, C.FAILED_PRECONDITION, "No such consumer group g", NoSuchGroupError),
        (REPORT, C.FAILED_PRECONDITION, "Consumer c is not a member of consumer group g", NotMemberError),
        (
            REPORT,
            C.FAILED_PRECONDITION,
            "Coordinator generation mismatch, current coordinator: node1 epoch: 0, "
            "got coordinator: node2 epoch: 0",
            GroupError,
        ),
        (
            FETCH,
            C.FAILED_PRECONDITION,
            "client-provided group epoch differs from broker group epoch",
            GroupError,
        ),
        (FETCH, C.FAILED_PRECONDITION, "broker is not the consumer group coordinator", NotLeaderError),
        (FETCH, C.FAILED_PRECONDITION, "something new", GroupError),
        (
            REPORT,
            C.FAILED_PRECONDITION,
            "No group coordinator candidates",
            GroupError,
        ),
        (
            "FetchMetadata",
            C.UNKNOWN,
            "The client is not authorized to call FetchMetadata on resource *",
            PermissionDeniedError,
        ),
        ("FetchMetadata", 77, "a status of tomorrow", RpcError),
    ],
)
def test_calls(method: str, code: int, text: str, kind: type[LiftEnvelopeError]) -> None:
    error = call_error(method, RpcError(code, text), "stream 'foo'")
    assert type(error) is kind
    assert str(error).count("stream 'foo'") == 1
    assert text in str(error)
    if isinstance(error, ServerError):
        assert error.code == code


def test_lost_connections_stay_what_they_are() -> None:
    error = call_error("CreateStream", TransportError("lost", 3, True), "foo")
    assert (type(error), str(error), error.args) == (TransportError, "foo: lost", ("foo: lost", 3, True))
    assert type(call_error("CreateStream", CallNotProcessedError("no"), "foo")) is CallNotProcessedError


@pytest.mark.parametrize(
    ("error", "kind", "sent"),
    [
        (CallNotProcessedError("refused"), TransportError, False),
        (TransportError("lost"), TransportError, True),
        (RpcError(C.UNAVAILABLE, "the gateway is stopping"), TransportError, True),
        (RpcError(C.CANCELLED, "the server stopped serving the call"), TransportError, True),
        (RpcError(C.DEADLINE_EXCEEDED, "context deadline exceeded"), AckTimeoutError, True),
    ],
)
def test_publishes_say_whether_the_message_may_be_stored(
    error: RpcError | TransportError, kind: type[LiftEnvelopeError], sent: bool
) -> None:
    found = publish_call_error("Publish", error, "foo[0]", "id-7", "min_isr")
    assert type(found) is kind
    assert isinstance(found, TransportError | AckTimeoutError)
    assert (found.sent, found.retriable, "may be stored" in str(found)) == (sent, True, sent)
    if isinstance(found, AckTimeoutError):
        assert found.correlation_id == "id-7"
        assert str(found).startswith("no ack came in time for the message on foo[0]: ")
        assert str(found).endswith("Usual causes: min_isr")


def test_publish_to_a_partition_that_was_not_resumed_in_time_is_not_stored() -> None:
    text = "Failed to resume stream: raft operation timed out"
    found = publish_call_error("Publish", RpcError(C.INTERNAL, text), "foo[0]", "id-7", "min_isr")
    assert isinstance(found, AckTimeoutError)
    assert (found.correlation_id, found.sent, found.retriable) == ("id-7", False, True)
    assert str(found) == f"foo[0]: the message is not stored: {text}"


@pytest.mark.parametrize(
    ("code", "text", "kind"),
    [
        (C.INVALID_ARGUMENT, "message exceeds max replication size", MessageTooLargeError),
        (C.INVALID_ARGUMENT, "bad", RpcError),
        (C.UNKNOWN, "incorrect expected offset", IncorrectOffsetError),
        (C.INTERNAL, "encryption failed on partition", EncryptionFailedError),
        (C.FAILED_PRECONDITION, "readonly partition: 0", ReadonlyPartitionError),
        (C.NOT_FOUND, "no such stream: foo", NoSuchStreamError),
        (C.NOT_FOUND, "no such partition: 0", NoSuchPartitionError),
    ],
)
def test_publishes_that_are_refused(code: StatusCode, text: str, kind: type[ServerError]) -> None:
    found = publish_call_error("Publish", RpcError(code, text), "foo[0]", "id", "")
    assert type(found) is kind
    assert isinstance(found, ServerError)
    assert (found.code, found.description) == (code, f"foo[0]: {text}")


@pytest.mark.parametrize(
    ("code", "text", "kind"),
    [
        (0, "unknown error", PublishError),
        (1, "stream with concurrency control must have AckPolicy set", PublishError),
        (2, "no such stream: partitions", NoSuchStreamError),
        (2, "no such partition: 7", NoSuchPartitionError),
        (
            3,
            "failed to resume stream: rpc error: code = Internal desc = no known metadata leader",
            PublishError,
        ),
        (4, "readonly partition: 0", ReadonlyPartitionError),
        (5, "incorrect expected offset", IncorrectOffsetError),
        (6, "encryption failed on partition", EncryptionFailedError),
        (1, "message exceeds max replication size", MessageTooLargeError),
        (0, NOT_RECORDED, PartitionPausedError),
        (99, "an error of tomorrow", PublishError),
    ],
)
def test_publish_streams(code: int, text: str, kind: type[ServerError]) -> None:
    found = publish_async_error(code, text, "foo[0]", "id")
    assert isinstance(found, ServerError)
    assert (type(found), found.code, found.description) == (kind, code, f"foo[0]: {text}")


def test_a_publish_stream_that_does_not_know() -> None:
    found = publish_async_error(0, "no ack came; the message may be stored", "foo[0]", "id")
    assert isinstance(found, AckTimeoutError)
    assert (found.correlation_id, found.sent) == ("id", True)


def test_message_that_a_gateway_could_not_store_for_now_may_be_published_again() -> None:
    text = f"{PUBLISH_AGAIN}: no stream records it"
    status = RpcError(C.UNAVAILABLE, text)
    for found in (
        publish_async_error(0, text, "foo[0]", "id"),
        publish_call_error("Publish", status, "foo[0]", "id", ""),
    ):
        assert isinstance(found, AckTimeoutError)
        assert (found.correlation_id, found.sent, str(found).startswith("foo[0]: ")) == ("id", False, True)


def test_unary_publish_that_is_denied_is_not_stored() -> None:
    text = "The client is not authorized to call Publish on resource foo"
    found = publish_call_error("Publish", RpcError(C.UNKNOWN, text), "foo[0]", "id", "")
    assert isinstance(found, PermissionDeniedError)
    assert (found.sent, found.description) == (False, f"foo[0]: Publish was refused: {text}")


def test_publish_async_that_is_denied_may_be_stored() -> None:
    text = "The client is not authorized to call Publish on resource foo"
    found = publish_async_error(7, text, "foo[0]", "id")
    assert isinstance(found, PermissionDeniedError)
    assert (found.sent, found.retriable) == (True, False)
    assert f"foo[0]: PublishAsync was refused: {text}; the message may be stored" in str(found)


@pytest.mark.parametrize(
    ("code", "start", "offset"),
    [
        (C.INVALID_ARGUMENT, "0", 0),
        (C.INVALID_ARGUMENT, str(2**63 - 1), 2**63 - 1),
        (C.INVALID_ARGUMENT, str(2**63), None),
        (C.INVALID_ARGUMENT, "9" * 20, None),
        (C.INVALID_ARGUMENT, "9" * 5_000, None),
        (C.INTERNAL, "4", None),
    ],
    ids=["zero", "largest", "beyond 64 bits", "20 digits", "5,000 digits", "another code"],
)
def test_resolved_start_is_an_offset(code: StatusCode, start: str, offset: int | None) -> None:
    error = RpcError(code, f"Stop offset is before start offset: -1 < {start}")
    assert resolved_start(error) == offset


def test_paused_partition_is_told_in_plain_words_with_the_remedy() -> None:
    closed = RpcError(C.INTERNAL, "Failed to create stream reader: segment has been closed")
    text = str(call_error("Subscribe", closed, "partition 0 of 'orders'"))
    assert text.startswith(
        "partition 0 of 'orders': the partition is paused: subscribe with resume=True, or "
    )

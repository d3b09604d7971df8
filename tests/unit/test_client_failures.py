"""What servers answer, as the errors of this package. Texts are those that were observed."""

from __future__ import annotations

import pytest

from liftenvelope.client.failures import call_error, publish_async_error, publish_call_error
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
from liftenvelope.rpc.status import CallNotProcessedError, RpcError, StatusCode

C = StatusCode
FETCH, JOIN = "FetchConsumerGroupAssignments", "JoinConsumerGroup"


@pytest.mark.parametrize(
    ("method", "code", "text", "kind"),
    [
        ("CreateStream", C.ALREADY_EXISTS, "stream already exists", StreamExistsError),
        ("CreateStream", C.INVALID_ARGUMENT, "Subject is invalid", RpcError),
        ("CreateStream", C.INTERNAL, "no known metadata leader", NotLeaderError),
        ("CreateStream", C.DEADLINE_EXCEEDED, "late", CallTimeoutError),
        ("CreateStream", C.UNAVAILABLE, "gone", RpcError),
        ("DeleteStream", C.NOT_FOUND, "stream does not exist", NoSuchStreamError),
        ("DeleteStream", C.NOT_FOUND, "whatever", NoSuchStreamError),
        ("PauseStream", C.NOT_FOUND, "No such partition", NoSuchPartitionError),
        ("PauseStream", C.NOT_FOUND, "partition does not exist", NoSuchPartitionError),
        ("SetStreamReadonly", C.NOT_FOUND, "stream does not exist", NoSuchStreamError),
        (
            "FetchPartitionMetadata",
            C.FAILED_PRECONDITION,
            "The request should be sent to partition leader",
            NotLeaderError,
        ),
        ("Subscribe", C.NOT_FOUND, "No such stream", NoSuchStreamError),
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
            C.PERMISSION_DENIED,
            "The client is not authorized to call Subscribe",
            PermissionDeniedError,
        ),
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
        (FETCH, C.FAILED_PRECONDITION, "No such consumer group", NoSuchGroupError),
        (FETCH, C.NOT_FOUND, "nothing here", NoSuchGroupError),
        (
            FETCH,
            C.FAILED_PRECONDITION,
            "client-provided group epoch differs from broker group epoch",
            GroupError,
        ),
        (FETCH, C.FAILED_PRECONDITION, "broker is not the consumer group coordinator", NotLeaderError),
        (FETCH, C.FAILED_PRECONDITION, "something new", GroupError),
        (
            "ReportConsumerGroupCoordinator",
            C.FAILED_PRECONDITION,
            "No group coordinator candidates",
            GroupError,
        ),
        ("FetchMetadata", C.PERMISSION_DENIED, "no", PermissionDeniedError),
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
        (RpcError(C.UNAVAILABLE, "gone"), TransportError, True),
        (RpcError(C.DEADLINE_EXCEEDED, "late"), AckTimeoutError, True),
    ],
)
def test_publishes_say_whether_the_message_may_be_stored(
    error: RpcError | TransportError, kind: type[LiftEnvelopeError], sent: bool
) -> None:
    found = publish_call_error(error, "foo[0]", "id-7")
    assert type(found) is kind
    assert isinstance(found, TransportError | AckTimeoutError)
    assert (found.sent, found.retriable, "may be stored" in str(found)) == (sent, True, sent)
    if isinstance(found, AckTimeoutError):
        assert found.correlation_id == "id-7"


@pytest.mark.parametrize(
    ("code", "text", "kind"),
    [
        (C.INVALID_ARGUMENT, "message exceeds max replication size", MessageTooLargeError),
        (C.INVALID_ARGUMENT, "bad", RpcError),
        (C.UNKNOWN, "incorrect expected offset", IncorrectOffsetError),
        (C.INTERNAL, "failed to encrypt", EncryptionFailedError),
        (C.FAILED_PRECONDITION, "The stream is readonly", ReadonlyPartitionError),
        (C.NOT_FOUND, "No such stream", NoSuchStreamError),
        (C.NOT_FOUND, "No such partition", NoSuchPartitionError),
        (C.PERMISSION_DENIED, "no", PermissionDeniedError),
    ],
)
def test_publishes_that_are_refused(code: StatusCode, text: str, kind: type[ServerError]) -> None:
    found = publish_call_error(RpcError(code, text), "foo[0]", "id")
    assert type(found) is kind
    assert isinstance(found, ServerError)
    assert (found.code, found.description) == (code, f"foo[0]: {text}")


@pytest.mark.parametrize(
    ("code", "text", "kind"),
    [
        (0, "who knows", PublishError),
        (1, "bad request", PublishError),
        (2, "no such stream", NoSuchStreamError),
        (2, "no such partition", NoSuchPartitionError),
        (3, "internal", PublishError),
        (4, "readonly", ReadonlyPartitionError),
        (5, "incorrect", IncorrectOffsetError),
        (6, "encryption", EncryptionFailedError),
        (7, "no", PermissionDeniedError),
        (1, "message exceeds max replication size", MessageTooLargeError),
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

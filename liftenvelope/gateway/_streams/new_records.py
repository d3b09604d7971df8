"""Checks CreateStream requests and makes the records of new streams."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Final

from liftenvelope._checks import RESERVED, check_settings, check_stream_name
from liftenvelope.errors import UsageError
from liftenvelope.gateway._cluster.records import PartitionRecord, StreamPhase, StreamRecord
from liftenvelope.gateway._protocol.names import partition_subject
from liftenvelope.rpc.status import RpcError, StatusCode

if TYPE_CHECKING:
    from liftenvelope._pb import api_pb2
    from liftenvelope.gateway._core import GatewayOptions
    from liftenvelope.gateway._protocol.subjects import ClientSubjects

__all__ = ["MOST_REPLICAS", "check_replicas", "new_record"]

#: ``replicationFactor`` that requests as many replicas as possible.
MOST_REPLICAS: Final = -1
_SETTINGS: Final = (
    "retentionMaxBytes",
    "retentionMaxMessages",
    "retentionMaxAge",
    "cleanerInterval",
    "segmentMaxBytes",
    "segmentMaxAge",
    "compactMaxGoroutines",
    "compactEnabled",
    "autoPauseTime",
    "autoPauseDisableIfSubscribers",
    "minIsr",
    "optimisticConcurrencyControl",
    "encryption",
)


def new_record(
    request: api_pb2.CreateStreamRequest,
    options: GatewayOptions,
    subjects: ClientSubjects,
    *,
    owner: str = "",
) -> StreamRecord:
    """Check a CreateStream request and return the record of its stream, in state CREATING.

    Args:
        request: The request of the client.
        options: Options of this gateway.
        subjects: Checks the subject.
        owner: Common name of the client's certificate. Default empty, for no certificate.

    Raises:
        RpcError: INVALID_ARGUMENT: a name, subject, number or setting is invalid. FAILED_PRECONDITION:
            encryption is requested, and this gateway is not set up for it.
    """
    settings = {name: int(getattr(request, name).value) for name in _SETTINGS if request.HasField(name)}
    try:
        if request.name in RESERVED:
            raise UsageError("Stream is reserved")
        check_stream_name(request.name)
        check_settings(settings)
    except UsageError as exc:
        raise RpcError(StatusCode.INVALID_ARGUMENT, str(exc)) from exc
    count = _partition_count(request, options.limits.max_partitions_per_stream)
    subjects.check_recorded(request.subject)
    if count > 1:
        subjects.check_recorded(partition_subject(request.subject, count - 1))
    check_replicas(request.replicationFactor, settings)
    if settings.get("encryption") and not options.encrypted:
        text = "encryption needs a gateway with encrypted=True, on a NATS server that encrypts its storage"
        raise RpcError(StatusCode.FAILED_PRECONDITION, text)
    return StreamRecord(
        name=request.name,
        subject=request.subject,
        id=secrets.token_hex(8),
        maker=options.id,
        owner=owner,
        state=StreamPhase.CREATING,
        created_ns=time.time_ns(),
        group=request.group,
        replicas=request.replicationFactor or 1,
        settings=settings,
        partitions=(PartitionRecord(),) * count,
    )


def _partition_count(request: api_pb2.CreateStreamRequest, most: int) -> int:
    if not 0 <= request.partitions <= most:
        text = f"partitions must be from 1 to {most}, got {request.partitions}"
        raise RpcError(StatusCode.INVALID_ARGUMENT, text)
    return request.partitions or 1


def check_replicas(factor: int, settings: dict[str, int]) -> None:
    """Check ``replicationFactor`` and ``minIsr``.

    Raises:
        RpcError: INVALID_ARGUMENT: one of them is out of range.
    """
    if factor < MOST_REPLICAS:
        raise RpcError(StatusCode.INVALID_ARGUMENT, f"replicationFactor must be at least -1, got {factor}")
    least = settings.get("minIsr", 0)
    if factor != MOST_REPLICAS and least > max(factor, 1):
        text = f"minIsr must be at most the number of replicas, {max(factor, 1)}, got {least}"
        raise RpcError(StatusCode.INVALID_ARGUMENT, text)

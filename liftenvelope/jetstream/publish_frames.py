"""Wire format of JetStream publishes: headers and acks."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, TypedDict

from liftenvelope._checks import as_count, as_full_text, as_text
from liftenvelope.errors import JetStreamError, NoJetStreamError, UsageError, UsageTypeError, jetstream_error
from liftenvelope.jetstream._records import to_ns
from liftenvelope.jetstream.names import check_stream_name
from liftenvelope.jetstream.statuses import status_number
from liftenvelope.nats.headers import Headers
from liftenvelope.nats.subjects import publish_subject

__all__ = [
    "HeaderFields",
    "PubAck",
    "PublishOptions",
    "header_block",
    "header_pairs",
    "option_headers",
    "read_ack",
    "status_error",
]

_HEADER_NAME: Final = re.compile(r"[!-9;-~]+")
_LINE_ENDS: Final = re.compile(r"[\r\n]")
#: Minimum TTL of the server, in seconds.
_SHORTEST_TTL: Final = 1
#: Largest sequence: servers have unsigned 64-bit numbers.
_MAX_SEQUENCE: Final = 2**64 - 1
_NEVER: Final = "never"
_EMPTY: Final = (
    "the server sent an empty ack, as for a message of an atomic batch (Nats-Batch-Id) before its last one, "
    "which is stored with the batch or not at all. Send such messages by nats-py's publish(), and only the "
    "last one, with Nats-Batch-Commit, by publish() of JetStream, which returns the ack of the batch"
)


class PublishOptions(TypedDict, total=False):
    """Options of a publish.

    Attributes:
        message_id: Id for deduplication. The server stores one message per id within the stream's
            ``duplicate_window``.
        expected_stream: Stream that must store the message.
        expected_last_sequence: Required last sequence of the stream; 0 for an empty stream.
        expected_last_subject_sequence: Required last sequence on the subject; 0 for a subject without
            messages.
        expected_last_subject_filter: Subject for ``expected_last_subject_sequence``, wildcards allowed.
            Default: the subject of the message, which servers before 2.11 check in any case.
        expected_last_message_id: Required message id of the stream's last message.
        ttl: Seconds until the server deletes the message (ADR-43, server 2.11), at least 1, or ``"never"``.
            The stream must have ``allow_msg_ttl``; servers before 2.11 ignore the option.
    """

    message_id: str | None
    expected_stream: str | None
    expected_last_sequence: int | None
    expected_last_subject_sequence: int | None
    expected_last_subject_filter: str | None
    expected_last_message_id: str | None
    ttl: float | str | None


class PubAck(NamedTuple):
    """Acknowledgment of a stored message.

    Attributes:
        stream: Stream that stores the subject.
        sequence: Stream sequence of the message; for a duplicate, the sequence of the original.
        domain: JetStream domain of the stream.
        duplicate: True if the stream already had a message with this id, so this one was not stored.
        value: Current value of the counter, for counter subjects (ADR-49).
        batch_id: Id of the batch that this message commits (ADR-50).
        batch_size: Number of messages in the batch.
    """

    stream: str
    sequence: int
    domain: str | None = None
    duplicate: bool = False
    value: str | None = None
    batch_id: str | None = None
    batch_size: int | None = None


def read_ack(data: bytes, limit: int = 2**64) -> PubAck | JetStreamError:
    """Parse the answer to a publish: return the ack, or the error that the answer reports.

    Args:
        data: Payload of the answer.
        limit: Exclusive upper limit for the sequence; an answer with a greater one is an error. Default
            ``2**64``.

    Example:
        >>> read_ack(b'{"stream":"ORDERS","seq":17}')  # doctest: +ELLIPSIS
        PubAck(stream='ORDERS', sequence=17, domain=None, duplicate=False, value=None, ...)
        >>> read_ack(b'{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 2"}}')
        WrongLastSequenceError(400, 'wrong last sequence: 2', 10071)
    """
    if not data:
        return JetStreamError(500, _EMPTY)
    try:
        answer = json.loads(data)
        if error := answer.get("error"):
            return jetstream_error(
                int(error.get("code", 0)), int(error.get("err_code", 0)), str(error.get("description", ""))
            )
        if not 0 <= (ack := _ack_of(answer)).sequence < limit:
            raise ValueError(ack.sequence)
        return ack
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return JetStreamError(500, f"the server sent an invalid ack: {data[:100]!r}")


def _ack_of(answer: Mapping[str, Any]) -> PubAck:
    return PubAck(
        str(answer["stream"]),
        int(answer["seq"]),
        answer.get("domain") or None,
        bool(answer.get("duplicate", False)),
        answer.get("val"),
        answer.get("batch"),
        answer.get("count"),
    )


def status_error(headers: Mapping[str, str] | bytes, subject: str) -> JetStreamError:
    """Return the error reported in the headers of an answer; acks have no headers.

    Args:
        headers: Headers parsed by nats-py, or the raw header block.
        subject: Subject of the publish.
    """
    if isinstance(headers, bytes):
        words = headers.partition(b"\r\n")[0].decode("utf-8", "replace").split(" ", 2)
        status, text = (*words, "", "")[1:3]
    else:
        status, text = headers.get("Status", ""), headers.get("Description", "")
    if status == "503":
        return NoJetStreamError(
            503, f"no stream records the subject {subject!r}, or JetStream is not enabled"
        )
    return jetstream_error(status_number(status) or 500, 0, text or f"status {status!r}")


# Headers


#: Headers of a publish: one value or several values per name.
HeaderFields = Mapping[str, str | list[str] | tuple[str, ...]]


def header_pairs(headers: HeaderFields, options: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the headers of a message in order; an explicit header overrides an option of the same name."""
    if not isinstance(headers, Mapping):
        raise UsageTypeError(f"headers must be a mapping, got {type(headers).__name__}")
    pairs = [(name, value) for name, value in options.items() if name not in headers]
    if isinstance(headers, Headers):
        return [*pairs, *headers.pairs]
    for name, value in headers.items():
        pairs += [(name, each) for each in value] if isinstance(value, list | tuple) else [(name, value)]
    return pairs


def header_block(pairs: Iterable[tuple[str, str]]) -> bytes:
    """Encode headers as a NATS header block with its closing empty line; no headers give no bytes.

    Raises:
        UsageError: A name is empty or has a colon, white space or non-ASCII characters, or a value has a line
            break.
    """
    lines = ["NATS/1.0"]
    for name, value in pairs:
        if not _HEADER_NAME.fullmatch(as_text("header name", name)):
            raise UsageError(
                f"header name must have visible ASCII characters other than ':' only, got {name!r}"
            )
        if _LINE_ENDS.search(as_text(f"header {name!r}", value)):
            raise UsageError(f"header {name!r} must not have a line end in its value, got {value!r}")
        lines.append(f"{name}: {value}")
    return "\r\n".join([*lines, "", ""]).encode() if len(lines) > 1 else b""


def option_headers(options: Mapping[str, Any]) -> dict[str, str]:
    """Translate publish options to headers.

    Raises:
        UsageError: An option is unknown or its value is invalid.
    """
    headers: dict[str, str] = {}
    for name, value in options.items():
        if name not in _OPTIONS:
            raise UsageTypeError(f"publish has no option {name!r}")
        if value is not None:
            header, write = _OPTIONS[name]
            headers[header] = write(name, value)
    if "Nats-Expected-Last-Subject-Sequence-Subject" in headers and (
        options.get("expected_last_subject_sequence") is None
    ):
        raise UsageError("expected_last_subject_sequence must be given with expected_last_subject_filter")
    return headers


def _sequence(name: str, value: Any) -> str:
    return str(as_count(name, value, 0, _MAX_SEQUENCE))


def _ttl(name: str, value: Any) -> str:
    if value == _NEVER:
        return _NEVER
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageTypeError(f"{name} must be a number of seconds or 'never', got {value!r}")
    if not _SHORTEST_TTL <= value < 2**63 / 1e9:
        expected = f"from {_SHORTEST_TTL} second to 292 years, or {_NEVER!r}"
        raise UsageError(f"{name} must be {expected}, got {value!r}")
    return f"{to_ns(value)}ns"


def _stream(_: str, value: Any) -> str:
    return check_stream_name(value)


def _filter(name: str, value: Any) -> str:
    return publish_subject(as_text(name, value).replace("*", "_").replace(">", "_")) and str(value)


_OPTIONS: Final[dict[str, tuple[str, Callable[[str, Any], str]]]] = {
    "message_id": ("Nats-Msg-Id", as_full_text),
    "expected_stream": ("Nats-Expected-Stream", _stream),
    "expected_last_sequence": ("Nats-Expected-Last-Sequence", _sequence),
    "expected_last_subject_sequence": ("Nats-Expected-Last-Subject-Sequence", _sequence),
    "expected_last_subject_filter": ("Nats-Expected-Last-Subject-Sequence-Subject", _filter),
    "expected_last_message_id": ("Nats-Expected-Last-Msg-Id", as_full_text),
    "ttl": ("Nats-TTL", _ttl),
}

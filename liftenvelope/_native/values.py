"""Messages and acks in plain Python: the twins of the value classes in ``src/_fastenv.pyx``.

Both twins use :func:`show`, :func:`rebuild` and :func:`instant`, which do not depend on the field storage.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, SupportsIndex, cast

from liftenvelope._checks import (
    as_bytes,
    as_headers,
    as_int32,
    as_int64,
    as_optional_bytes,
    as_optional_text,
    as_text,
)
from liftenvelope.errors import publish_error
from liftenvelope.types import AckError, AckPolicy, OpenIntEnum, as_ack_error, as_ack_policy

if TYPE_CHECKING:
    from typing_extensions import Buffer

MESSAGE_FIELDS: Final = (
    "value",
    "key",
    "headers",
    "offset",
    "timestamp_ns",
    "stream",
    "partition",
    "subject",
    "reply_subject",
    "ack_inbox",
    "correlation_id",
    "ack_policy",
)
ACK_FIELDS: Final = (
    "stream",
    "partition_subject",
    "msg_subject",
    "offset",
    "ack_inbox",
    "correlation_id",
    "ack_policy",
    "reception_timestamp_ns",
    "commit_timestamp_ns",
    "error",
)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def instant(timestamp_ns: int) -> datetime | None:
    """Convert nanoseconds since 1970 to an aware UTC datetime, cut to microseconds; return None for 0."""
    return _EPOCH + timedelta(microseconds=timestamp_ns // 1000) if timestamp_ns else None


def _shown(value: Any) -> str:
    """Format a field for a repr; cut long bytes."""
    if isinstance(value, OpenIntEnum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, bytes) and len(value) > 64:
        return f"<{len(value)} bytes: {value[:32]!r}...>"
    return repr(dict(value) if isinstance(value, Mapping) else value)


def show(name: str, fields: tuple[str, ...], values: tuple[Any, ...]) -> str:
    """Format the repr of a value: its non-empty fields, and its enumerations."""
    pairs = zip(fields, values, strict=True)
    shown = (f"{field}={_shown(value)}" for field, value in pairs if value or isinstance(value, OpenIntEnum))
    return f"{name}({', '.join(shown)})"


def plain(value: Any) -> Any:
    """Return a field in a picklable form: a read-only mapping can't be pickled."""
    return dict(value) if isinstance(value, MappingProxyType) else value


def rebuild(name: str, *values: Any) -> Any:
    """Restore a pickled Message or Ack with the loaded twin."""
    from liftenvelope import _native

    fields = MESSAGE_FIELDS if name == "Message" else ACK_FIELDS
    return getattr(_native.env, name)(**dict(zip(fields, values, strict=True)))


# Pickles store the path of `rebuild`. It is set to the public module, so that this module can move.
rebuild.__module__ = "liftenvelope.envelope"
# Pickles of earlier versions store this path.
sys.modules["liftenvelope._values_py"] = sys.modules[__name__]


class _Value:  # noqa: PLW1641 - each class hashes its own choice of fields
    """Common base of the value classes: read-only slots, equality by value, pickling by field."""

    __slots__ = ()
    _FIELDS: tuple[str, ...] = ()

    def __init_subclass__(cls) -> None:
        if cls.__base__ is not _Value:  # the error that Cython's final classes raise
            raise TypeError(f"type '{cls.__mro__[1].__name__}' is not an acceptable base type")

    def _check_new(self) -> None:
        if hasattr(self, "ack_policy"):
            raise AttributeError(f"{type(self).__name__} is read-only")

    def _values(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self._FIELDS)

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def __setattr__(self, name: str, _value: object) -> None:
        raise AttributeError(f"{type(self).__name__}.{name} is read-only")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__}.{name} is read-only")

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._values() == other._values()

    def __repr__(self) -> str:
        return show(type(self).__name__, self._FIELDS, self._values())

    def __reduce__(self) -> tuple[Any, ...]:
        return rebuild, (type(self).__name__, *map(plain, self._values()))

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, _memo: object) -> Any:
        return self


class Message(_Value):
    """A published or stored message.

    Read-only. Absent fields have protobuf's defaults, so an absent key, an empty key and ``None`` are all
    ``b""``. Messages are equal if all their fields are equal.

    Args:
        value: The payload, any bytes-like.
        key: The key; ``None`` is the same as empty.
        headers: Names to values. The server overwrites ``subject`` and ``reply``.
        offset: Offset of a stored message in its partition. For a message to publish: the offset that it must
            get (optimistic concurrency), -1 for any.
        timestamp_ns: Time when the server received the message, in ns since 1970.
        stream: Name of the stream.
        partition: Number of the partition, from 0.
        subject: NATS subject that the message was published on.
        reply_subject: NATS reply subject.
        ack_inbox: NATS subject for the ack; empty for no ack.
        correlation_id: Id that the ack repeats.
        ack_policy: When the server sends the ack.

    Raises:
        UsageError: A value is out of range or has the wrong type; the text names it.

    Example:
        >>> from liftenvelope.envelope import Message
        >>> Message(b"21.5", key=b"sensor-1").key
        b'sensor-1'
    """

    __slots__ = _FIELDS = MESSAGE_FIELDS

    offset: int
    key: bytes
    value: bytes
    timestamp_ns: int
    stream: str
    partition: int
    subject: str
    reply_subject: str
    ack_inbox: str
    correlation_id: str
    ack_policy: AckPolicy
    headers: Mapping[str, bytes]

    def __init__(
        self,
        value: Buffer = b"",
        *,
        key: Buffer | None = None,
        headers: Mapping[str, Buffer] | None = None,
        offset: SupportsIndex = 0,
        timestamp_ns: SupportsIndex = 0,
        stream: str = "",
        partition: SupportsIndex = 0,
        subject: str = "",
        reply_subject: str = "",
        ack_inbox: str | None = "",
        correlation_id: str | None = "",
        ack_policy: AckPolicy | int = AckPolicy.LEADER,
    ) -> None:
        self._check_new()
        put = self._set
        put("value", as_bytes("value", value))
        put("key", as_optional_bytes("key", key))
        put("headers", MappingProxyType(as_headers(headers)))
        put("offset", as_int64("offset", offset))
        put("timestamp_ns", as_int64("timestamp_ns", timestamp_ns))
        put("stream", as_text("stream", stream))
        put("partition", as_int32("partition", partition))
        put("subject", as_text("subject", subject))
        put("reply_subject", as_text("reply_subject", reply_subject))
        put("ack_inbox", as_optional_text("ack_inbox", ack_inbox))
        put("correlation_id", as_optional_text("correlation_id", correlation_id))
        put("ack_policy", as_ack_policy("ack_policy", ack_policy))

    @property
    def timestamp(self) -> datetime | None:
        """:attr:`timestamp_ns` as an aware UTC datetime, cut to microseconds; None if it is 0."""
        return instant(self.timestamp_ns)

    def __hash__(self) -> int:
        return hash((self.offset, self.stream, self.partition, self.key, self.value, self.correlation_id))


class Ack(_Value):
    """A server's answer to a published message.

    Read-only. Acks are equal if all their fields are equal. Check :attr:`error` first, or call
    :meth:`raise_for_error`: the offset of an error ack is 0 and meaningless.

    Args:
        stream: Name of the stream that stored the message.
        partition_subject: NATS subject of the partition.
        msg_subject: NATS subject that the message was published on.
        offset: Offset of the message in the partition.
        ack_inbox: NATS subject that this ack was sent to.
        correlation_id: Correlation id given by the publisher.
        ack_policy: Ack policy given by the publisher.
        reception_timestamp_ns: Time when the server received the message, in ns since 1970.
        commit_timestamp_ns: Time when the server sent the ack, in ns since 1970; 0 in some error acks.
        error: ``AckError.OK`` if the message is stored.

    Raises:
        UsageError: A value is out of range or has the wrong type; the text names it.
    """

    __slots__ = _FIELDS = ACK_FIELDS

    stream: str
    partition_subject: str
    msg_subject: str
    offset: int
    ack_inbox: str
    correlation_id: str
    ack_policy: AckPolicy
    reception_timestamp_ns: int
    commit_timestamp_ns: int
    error: AckError

    def __init__(
        self,
        *,
        stream: str = "",
        partition_subject: str = "",
        msg_subject: str = "",
        offset: SupportsIndex = 0,
        ack_inbox: str | None = "",
        correlation_id: str | None = "",
        ack_policy: AckPolicy | int = AckPolicy.LEADER,
        reception_timestamp_ns: SupportsIndex = 0,
        commit_timestamp_ns: SupportsIndex = 0,
        error: AckError | int = AckError.OK,
    ) -> None:
        self._check_new()
        put = self._set
        put("stream", as_text("stream", stream))
        put("partition_subject", as_text("partition_subject", partition_subject))
        put("msg_subject", as_text("msg_subject", msg_subject))
        put("offset", as_int64("offset", offset))
        put("ack_inbox", as_optional_text("ack_inbox", ack_inbox))
        put("correlation_id", as_optional_text("correlation_id", correlation_id))
        put("ack_policy", as_ack_policy("ack_policy", ack_policy))
        put("reception_timestamp_ns", as_int64("reception_timestamp_ns", reception_timestamp_ns))
        put("commit_timestamp_ns", as_int64("commit_timestamp_ns", commit_timestamp_ns))
        put("error", as_ack_error("error", error))

    @property
    def reception_timestamp(self) -> datetime | None:
        """:attr:`reception_timestamp_ns` as a UTC datetime, cut to microseconds; None if it is 0."""
        return instant(self.reception_timestamp_ns)

    @property
    def commit_timestamp(self) -> datetime | None:
        """:attr:`commit_timestamp_ns` as a UTC datetime, cut to microseconds; None if it is 0."""
        return instant(self.commit_timestamp_ns)

    def raise_for_error(self) -> None:
        """Raise the error that the ack reports, if any.

        Raises:
            PublishError: The ack reports an error. The code selects the subclass; the error has the ack.
        """
        if self.error != AckError.OK:
            raise publish_error(cast(Any, self))  # annotated with the Ack class of the loaded twin

    def __hash__(self) -> int:
        return hash(self._values())

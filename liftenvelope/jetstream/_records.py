"""Converts JetStream's JSON to frozen dataclasses and back.

The annotation of an attribute sets its wire format. A :data:`Seconds` is an integer of nanoseconds. A
:data:`Moment` is RFC 3339 text. An enumeration is its value. A record is an object. Attributes have the same
names as the wire fields.

No server data is lost. ``extra`` holds the fields unknown to this version. ``exact`` holds the wire values
that Python types cannot represent exactly (nanoseconds). An exact value is used until its attribute changes.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum, StrEnum
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    NamedTuple,
    Self,
    TypeAlias,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from liftenvelope._checks import MAX_INT64, as_count, as_signed_seconds, as_text
from liftenvelope._showing import changed_fields, html_fields
from liftenvelope.errors import UnsupportedByServerError, UsageError, UsageTypeError

__all__ = [
    "Moment",
    "OpenEnum",
    "Record",
    "Seconds",
    "check_kept",
    "check_moment",
    "from_ns",
    "moment_text",
    "read_moment",
    "to_ns",
]

_NS: Final = 1_000_000_000
_MAX_NS: Final = 2**63 - 1
#: Servers have unsigned numbers, such as sequences, as well as signed ones.
_LARGEST_INT: Final = 2**64 - 1
_LONGEST: Final = _MAX_NS / _NS
#: Go's zero time, which servers send for "never".
_ZERO_TIME: Final = "0001-01-01T00:00:00Z"


class OpenEnum(StrEnum):
    """Enumeration that newer servers may extend: unknown values are kept unchanged."""

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        if not isinstance(value, str):
            return None
        member = str.__new__(cls, value)
        member._name_ = value.upper()
        member._value_ = value
        return member


class Codec(NamedTuple):
    """Functions that check, encode and decode one type of value."""

    check: Callable[[str, Any], Any]
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


def to_ns(seconds: float) -> int:
    """Convert seconds to nanoseconds, using the decimal form of the float instead of its binary value.

    Example:
        >>> to_ns(0.1), to_ns(31_536_000.000000001)
        (100000000, 31536000000000000)
    """
    return int((Decimal(repr(float(seconds))) * _NS).to_integral_value())


def from_ns(nanoseconds: int) -> float:
    """Convert nanoseconds to seconds."""
    return nanoseconds / _NS


def moment_text(moment: datetime) -> str:
    """Format a moment as RFC 3339 in UTC."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def read_moment(text: str) -> datetime | None:
    """Parse RFC 3339; digits beyond microseconds are dropped, and Go's zero time gives None.

    Raises:
        ValueError: The text is not RFC 3339, has no time zone, or is before year 1 or after year 9999 in UTC.
    """
    if text == _ZERO_TIME:
        return None
    head, dot, tail = text.partition(".")
    if dot:
        digits = tail[: len(tail) - len(tail.lstrip("0123456789"))]
        head += "." + digits[:6].ljust(6, "0") + tail[len(digits) :]
    moment = datetime.fromisoformat(head)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} names no time zone")
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"{text!r} is out of range") from None


def _check_seconds(name: str, value: Any) -> float:
    if isinstance(value, timedelta):
        value = value.total_seconds()
    value = as_signed_seconds(name, value)
    # A float that rounds to the limit counts as the limit.
    if not -_LONGEST <= value <= _LONGEST:
        raise UsageError(
            f"{name} must be a number of seconds that 64 bits of nanoseconds hold, got {value!r}"
        )
    if value and not to_ns(value):
        raise UsageError(
            f"{name} must be at least a nanosecond, because 0 means something else, got {value!r}"
        )
    return float(value)


def check_moment(name: str, value: Any) -> datetime:
    """Convert a datetime to UTC.

    Raises:
        UsageError: The value is not a datetime, has no time zone, or is out of range in UTC.
    """
    if not isinstance(value, datetime):
        raise UsageTypeError(f"{name} must be a datetime, got {type(value).__name__}")
    if value.tzinfo is None:
        raise UsageError(f"{name} must be a datetime with a time zone, got {value!r}")
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise UsageError(f"{name} must be in the years 1 to 9999 of UTC, got {value!r}") from None


def _check_int(name: str, value: Any) -> int:
    return as_count(name, value, -MAX_INT64 - 1, _LARGEST_INT)


def _check_bool(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise UsageTypeError(f"{name} must be a bool, got {type(value).__name__}")
    return value


def _encode_seconds(value: float) -> int:
    return max(-_MAX_NS - 1, min(to_ns(value), _MAX_NS))


def _same(value: Any) -> Any:
    return value


#: Duration: seconds in Python, nanoseconds on the wire.
Seconds: TypeAlias = Annotated[float, Codec(_check_seconds, _encode_seconds, from_ns)]
#: Point in time: a datetime with a time zone in Python, RFC 3339 text on the wire.
Moment: TypeAlias = Annotated[datetime, Codec(check_moment, moment_text, read_moment)]

_PLAIN: Final[dict[Any, Codec]] = {
    str: Codec(as_text, _same, _same),
    int: Codec(_check_int, _same, _same),
    bool: Codec(_check_bool, _same, _same),
    Any: Codec(lambda _, value: value, _same, _same),
}


def _enum_codec(kind: type[Enum]) -> Codec:
    def check(name: str, value: Any) -> Any:
        return kind(as_text(name, value))

    return Codec(check, lambda value: value.value, kind)


def _record_codec(kind: type[Record]) -> Codec:
    def check(name: str, value: Any) -> Any:
        if not isinstance(value, kind):
            raise UsageTypeError(f"{name} must be a {kind.__name__}, got {type(value).__name__}")
        return value

    return Codec(check, lambda value: value.to_json(), kind.from_json)


def _sequence_codec(item: Codec) -> Codec:
    def check(name: str, value: Any) -> Any:
        if isinstance(value, str | bytes) or not isinstance(value, Sequence):
            raise UsageTypeError(f"{name} must be a sequence, got {type(value).__name__}")
        return tuple(item.check(f"{name}[{i}]", each) for i, each in enumerate(value))

    return Codec(
        check,
        lambda value: [item.encode(each) for each in value],
        lambda value: tuple(item.decode(each) for each in value),
    )


def _mapping_codec(item: Codec) -> Codec:
    def check(name: str, value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise UsageTypeError(f"{name} must be a mapping, got {type(value).__name__}")
        return {as_text(f"{name}'s key", key): item.check(f"{name}[{key!r}]", value[key]) for key in value}

    return Codec(
        check,
        lambda value: {key: item.encode(each) for key, each in value.items()},
        lambda value: {key: item.decode(each) for key, each in value.items()},
    )


def _codec_of(hint: Any) -> Codec:
    """Return the codec for a type annotation."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        codec: Codec = arguments[1]
        return codec
    if origin in (Union, types.UnionType):
        return _codec_of(next(each for each in arguments if each is not type(None)))
    if origin in (tuple, Mapping):
        item = _codec_of(arguments[origin is Mapping])
        return _sequence_codec(item) if origin is tuple else _mapping_codec(item)
    if hint in _PLAIN:
        return _PLAIN[hint]
    return _enum_codec(hint) if issubclass(hint, Enum) else _record_codec(hint)


_CODECS: Final[dict[type, dict[str, Codec]]] = {}
_DEFAULTS: Final[dict[type, dict[str, Any]]] = {}


def _codecs(kind: type[Record]) -> dict[str, Codec]:
    """Return the codec of each field, resolved on first use: annotations may name classes defined later."""
    found = _CODECS.get(kind)
    if found is None:
        hints = get_type_hints(kind, include_extras=True)
        names = [each.name for each in fields(kind) if each.name not in ("extra", "exact")]
        found = _CODECS[kind] = {name: _codec_of(hints[name]) for name in names}
    return found


def _defaults(kind: type[Record]) -> dict[str, Any]:
    found = _DEFAULTS.get(kind)
    if found is None:
        found = _DEFAULTS[kind] = {
            each.name: each.default_factory() if each.default_factory is not MISSING else each.default
            for each in fields(kind)
        }
    return found


@dataclass(frozen=True, kw_only=True)
class Record:
    """Object of the JetStream API. Use ``dataclasses.replace`` to change attributes.

    Attributes:
        extra: Fields unknown to this version, by wire name. They are sent back unchanged.
        exact: Wire values that the Python types cannot represent exactly, by attribute. A wire value is sent
            back unless the attribute was changed.
    """

    #: Fields written even with their default values, because the server has other defaults.
    _always: ClassVar[frozenset[str]] = frozenset()
    #: First server version that knows a field. Servers before 2.12 ignore fields that they do not know; later
    #: ones refuse them.
    _since: ClassVar[Mapping[str, str]] = {}

    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)
    exact: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def __init_subclass__(cls) -> None:
        cls.__repr__ = Record.__repr__  # type: ignore[method-assign]  # or the decorator would write one

    def __repr__(self) -> str:
        return changed_fields(self)

    def _repr_html_(self) -> str:
        return html_fields(self)

    def __post_init__(self) -> None:
        self._check_types()
        self._check()

    def _check(self) -> None:
        """Raise UsageError if a value is invalid; not called for data from a server."""

    def _check_types(self) -> None:
        default = _defaults(type(self))
        for name, codec in _codecs(type(self)).items():
            value = getattr(self, name)
            if value is not None or default[name] is not None:
                object.__setattr__(self, name, codec.check(name, value))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Create a record from a server's JSON object. Names are not checked.

        Raises:
            UsageError: A value is invalid for its field, or a required field is missing.
        """
        if not isinstance(data, Mapping):
            raise UsageTypeError(f"{cls.__name__} must be read from a mapping, got {type(data).__name__}")
        codecs = _codecs(cls)
        known: dict[str, Any] = {}
        exact: dict[str, Any] = {}
        for name, codec in codecs.items():
            wire = data.get(name)
            if wire is None:
                continue
            known[name] = _read(cls, name, codec, wire)
            if known[name] is not None and codec.encode(known[name]) != wire:
                exact[name] = wire
        missing = [
            name for name, default in _defaults(cls).items() if default is MISSING and name not in known
        ]
        if missing:
            raise UsageError(f"{cls.__name__} must have {missing[0]!r}, got {dict(data)!r}")
        extra = {name: value for name, value in data.items() if name not in codecs}
        # Bypasses the constructor and its checks: a server may hold objects that can no longer be created.
        record = cls.__new__(cls)
        for name, value in {**_defaults(cls), **known, "extra": extra, "exact": exact}.items():
            object.__setattr__(record, name, value)
        record._check_types()
        return record

    def to_json(self) -> dict[str, Any]:
        """Convert the record to the server's JSON object, without fields that have their default value."""
        written = dict(self.extra)
        for name, codec in _codecs(type(self)).items():
            value = getattr(self, name)
            if value is None or (value == _defaults(type(self))[name] and name not in self._always):
                continue
            wire = self.exact.get(name)
            written[name] = wire if wire is not None and codec.decode(wire) == value else codec.encode(value)
        return written


def _read(kind: type[Record], name: str, codec: Codec, wire: Any) -> Any:
    try:
        return codec.decode(wire)
    except (TypeError, ValueError, AttributeError, OverflowError) as exc:
        raise UsageError(f"{kind.__name__}.{name} must be a valid value of its type, got {wire!r}") from exc


def check_kept(asked: Record, answered: Record, owner: str) -> None:
    """Raise UnsupportedByServerError if the server answers that it has ignored a field.

    Args:
        asked: Configuration as it was sent.
        answered: Configuration in the server's answer.
        owner: Stream or consumer that is configured, for the error.
    """
    for name, version in type(asked)._since.items():
        default = _defaults(type(asked))[name]
        if getattr(asked, name) != default and getattr(answered, name) == default:
            raise UnsupportedByServerError(
                f"{owner} has all settings but {name}, which the server has ignored: it needs nats-server "
                f"{version} or later"
            )

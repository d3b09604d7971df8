"""Common interface of payload formats: bytes to typed columns and back. No I/O."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Final

from liftenvelope._checks import as_count, require
from liftenvelope.errors import UsageError, UsageTypeError

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = require("pyarrow", "payload")

__all__ = [
    "EXTRA",
    "MAX_REPEATED_BYTES",
    "BadValue",
    "Decoded",
    "InferredFormat",
    "PayloadDecoder",
    "PayloadEncoder",
    "PayloadFormat",
]

#: Column with the fields that the schema does not have.
EXTRA = "extra"
#: Default limit of the bytes that are repeated for the rows of a packed message.
MAX_REPEATED_BYTES: Final = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class BadValue:
    """A value that does not fit its format or its schema.

    Attributes:
        index: Number of the value in the array, from 0.
        reason: Fault of the value.
    """

    index: int
    reason: str


@dataclass(frozen=True, slots=True)
class Decoded:
    """Typed columns of an array of values.

    Attributes:
        batches: One batch, whose row *i* is value *i*; from a packed format, one batch for each value, of at
            least one value and not necessarily all. A bad value has one row of nulls.
        bad: Bad values, by index.
    """

    batches: Sequence[pa.RecordBatch]
    bad: Sequence[BadValue] = ()


class PayloadDecoder(ABC):
    """Decodes values of one schema. One thread at a time may use a decoder.

    Attributes:
        schema: Typed columns. All are nullable.
        max_repeated_bytes: Most bytes that the other columns of a message take when they are repeated for
            each of its rows. For packed formats. Default 256 MiB.
    """

    schema: pa.Schema
    max_repeated_bytes: int = MAX_REPEATED_BYTES

    @abstractmethod
    def decode(self, values: pa.Array) -> Decoded:
        """Decode a binary array without nulls. A bad value is reported and never raises.

        A decoder of a packed format may stop early, to bound the memory that the rows take. The caller goes
        on with the values after those that were decoded.
        """


class PayloadEncoder(ABC):
    """Encodes rows of one schema."""

    @abstractmethod
    def encode(self, rows: pa.RecordBatch) -> pa.Array:
        """Return a binary array with one value for each row; from a packed format, one value for all rows.

        Raises:
            UsageError: The format cannot carry a value.
        """


@dataclass(frozen=True)
class PayloadFormat(ABC):
    """Format of the values of a stream.

    Attributes:
        prefix: Text in front of the names of all columns that come from the payload. A write removes it.
    """

    #: Name for ``payload=``.
    name: ClassVar[str]
    #: True if a value carries any number of rows.
    packed: ClassVar[bool] = False
    #: Header of each message that is written; None for none.
    content_type: ClassVar[str | None] = None

    _: KW_ONLY
    prefix: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.prefix, str):
            raise UsageTypeError(f"prefix must be str, got {type(self.prefix).__name__}")

    @property
    def sample_rows(self) -> int:
        """Number of first messages that :meth:`decoder` needs to infer the schema; 0 if it is given."""
        return 0

    @property
    def identity(self) -> Mapping[str, str]:
        """Properties that all runs of an archive or a table must share, by name."""
        return {"format": self.name, "prefix": self.prefix}

    def extending(
        self,
        known: pa.Schema,  # noqa: ARG002 - the schema is given
        sample: pa.Array,  # noqa: ARG002
    ) -> PayloadFormat:
        """Return the format for a later run of an archive or a table: known fields keep their types.

        Args:
            known: Fields of the earlier runs, without the prefix.
            sample: First values of the range, for a format that infers its schema.
        """
        return self

    @abstractmethod
    def decoder(
        self, sample: pa.Array | None = None, *, columns: Collection[str] | None = None
    ) -> PayloadDecoder:
        """Return a decoder.

        Args:
            sample: First values of the range, for a format that infers its schema.
            columns: Names of the columns to decode, the prefix included; others that the schema has, and
                names that it has not, are left out. Default: all.

        Raises:
            UsageError: The sample is None or does not lead to a schema.
        """

    @abstractmethod
    def encoder(self, schema: pa.Schema) -> PayloadEncoder:
        """Return an encoder of rows with a schema, whose names have the prefix.

        Raises:
            UsageError: The format cannot carry a type, or the schema differs from that of the format.
        """

    def prefixed(self, schema: pa.Schema, columns: Collection[str] | None) -> pa.Schema:
        """Return the chosen fields, nullable and with the prefix."""
        named = [field.with_name(self.prefix + field.name).with_nullable(True) for field in schema]
        return pa.schema([field for field in named if columns is None or field.name in columns])

    def stripped(self, schema: pa.Schema) -> pa.Schema:
        """Return a schema without the prefix.

        Raises:
            UsageError: A name does not begin with the prefix.
        """
        for name in schema.names:
            if not name.startswith(self.prefix):
                raise UsageError(f"data must have names that begin with {self.prefix!r}, got {name!r}")
        return pa.schema([field.with_name(field.name[len(self.prefix) :]) for field in schema])


@dataclass(frozen=True)
class InferredFormat(PayloadFormat):
    """Format whose schema is given, or inferred from the first messages.

    Attributes:
        schema: Fields and their types; None to infer them.
        sample: Number of first messages from which the schema is inferred.
        prefix: Text in front of the names of the columns.
    """

    schema: pa.Schema | None = None
    _: KW_ONLY
    sample: int = 1_000

    def __post_init__(self) -> None:
        super().__post_init__()
        as_count("sample", self.sample, 1, 1_000_000)

    @property
    def sample_rows(self) -> int:
        """Number of messages that the schema is inferred from; 0 if it is given."""
        return self.sample if self.schema is None else 0

    @abstractmethod
    def _inferred(self, sample: pa.Array) -> pa.Schema:
        """Return the schema of the values of a sample."""

    def fields(self, sample: pa.Array | None) -> pa.Schema:
        """Return the schema that is given, or that of a sample.

        Raises:
            UsageError: There is neither.
        """
        if self.schema is not None:
            return self.schema
        if sample is None:
            raise UsageError("schema must be given: there is no message to infer it from, got None")
        return self._inferred(sample)

    def extending(self, known: pa.Schema, sample: pa.Array) -> PayloadFormat:
        """Return the format with the known fields, and those that the sample has in addition."""
        if self.schema is not None:
            return self
        added = [field for field in self._inferred(sample) if field.name not in known.names]
        return replace(self, schema=pa.schema([*known, *added]))

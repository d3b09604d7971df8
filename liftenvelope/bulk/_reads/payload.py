"""Typed columns in place of the column ``value``: the last step of a read with ``payload=``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from liftenvelope._checks import as_choice
from liftenvelope.bulk._engine.schema import COLUMNS, ENVELOPE_COLUMNS, make_schema
from liftenvelope.bulk._reads.dead_letter import DeadLetter
from liftenvelope.errors import UsageError, UsageTypeError
from liftenvelope.payload import PayloadDecoder, PayloadFormat
from liftenvelope.payload.row_decoder import BAD_COLUMNS, ROW, ROW_TYPES

if TYPE_CHECKING:
    import pyarrow as pa
else:
    from liftenvelope.bulk._engine.schema import pa

__all__ = ["OnBad", "PayloadColumns"]

#: Policy for messages that do not fit: raise an error, add columns, or write them to another stream.
OnBad: TypeAlias = "Literal['fail', 'column'] | DeadLetter"

#: Columns of the read that a decoder needs in addition to those that are asked for.
_NEEDED: Final = ("value", "offset", "partition")


class PayloadColumns:
    """Columns of a read with ``payload=``, as far as they are known before the schema of the payload.

    Args:
        kind: Format of the payload.
        on_bad: Policy for bad messages.
        columns: Columns asked for; None for all.
        envelope: Handling of envelopes.
        exact: Leave out the columns for bad messages unless they are asked for.

    Attributes:
        own: Columns that a read can have without looking at the payload.
        chosen: Those of them that this read has.

    Raises:
        UsageError: A column cannot be read with a payload, or the policy is none.
    """

    def __init__(
        self,
        kind: PayloadFormat,
        on_bad: OnBad,
        columns: Iterable[str] | None,
        envelope: str,
        *,
        exact: bool = False,
    ) -> None:
        if not isinstance(on_bad, DeadLetter):
            as_choice("on_bad", on_bad, ("fail", "column"), extra=" or a bulk.DeadLetter")
        self.kind = kind
        self.on_bad = on_bad
        added = ENVELOPE_COLUMNS if envelope == "columns" else ()
        self.own = (*(name for name in COLUMNS if name != "value"), *added, *((ROW,) if kind.packed else ()))
        self._exact = exact
        self._asked = None if columns is None else _names(columns)
        default = ("offset", ROW) if kind.packed else self.own
        self.chosen = default if self._asked is None else tuple(n for n in self._asked if n in self.own)

    @property
    def fields(self) -> Sequence[str] | None:
        """Names that only the payload can have; None for all of its columns."""
        if self._asked is None:
            return None
        return [name for name in self._asked if name not in self.own and name not in self._reserved]

    @property
    def _reserved(self) -> tuple[str, ...]:
        return BAD_COLUMNS if self.on_bad == "column" else ()

    @property
    def reading(self) -> list[str]:
        """Columns to read from the stream."""
        letter = ("key", "headers") if isinstance(self.on_bad, DeadLetter) else ()
        return [name for name in dict.fromkeys((*self.chosen, *_NEEDED, *letter)) if name != ROW]

    def schema(self, decoder: PayloadDecoder, known: Sequence[str], *, unsigned: bool) -> pa.Schema:
        """Return the schema of the read.

        Args:
            decoder: Decoder of the payload.
            known: All columns that the payload has.
            unsigned: True for unsigned offsets.

        Raises:
            UsageError: A column does not exist, or two have one name.
        """
        for name in known:
            if name in self.chosen or name in self._reserved:
                text = f"payload: field {name!r} must not have the name of a column of the read"
                raise UsageError(f"{text}: give the format a prefix='...', or leave it out of columns=")
        found = set(decoder.schema.names)
        for name in self.fields or ():
            if name not in found:
                listed = ", ".join((*self.own, *known))
                raise UsageError(f"columns must be some of {listed}, got {name!r}")
        plain = [name for name in self.chosen if name != ROW]
        own = {field.name: field for field in make_schema(plain, unsigned=unsigned)}
        own |= {name: pa.field(name, kind) for name, kind in ROW_TYPES.items()}
        own |= {field.name: field for field in decoder.schema}
        order = self._asked or (*self.chosen, *decoder.schema.names)
        added = () if self._exact else self._reserved
        return pa.schema([own[name] for name in dict.fromkeys((*order, *added))])


def _names(columns: object) -> tuple[str, ...]:
    if isinstance(columns, str) or not isinstance(columns, Iterable):
        raise UsageTypeError(f"columns must be names of columns, got {columns!r}")
    names = tuple(dict.fromkeys(columns))
    if not names:
        raise UsageError("columns must have at least one name, got none")
    return names

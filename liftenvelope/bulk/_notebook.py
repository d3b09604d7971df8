"""Arrow readers in notebooks: ``%load_ext liftenvelope.bulk`` shows their columns as a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from liftenvelope._showing import html_table

if TYPE_CHECKING:
    import pyarrow as pa
else:
    from liftenvelope.bulk._engine.schema import pa

__all__ = ["Shell", "html_schema", "load_ipython_extension"]


class _Formatter(Protocol):
    def for_type(self, kind: type, show: Callable[[pa.RecordBatchReader], str]) -> object: ...


class _DisplayFormatter(Protocol):
    @property
    def formatters(self) -> dict[str, _Formatter]: ...


class Shell(Protocol):
    """The part of IPython's shell that shows values."""

    @property
    def display_formatter(self) -> _DisplayFormatter:
        """Formatters by media type."""
        ...


def load_ipython_extension(shell: Shell) -> None:
    """Let IPython show the columns of every ``pyarrow.RecordBatchReader``, without reading a row."""
    shell.display_formatter.formatters["text/html"].for_type(pa.RecordBatchReader, _reader)


def html_schema(title: str, schema: pa.Schema) -> str:
    """Return an HTML table of the columns of a schema."""
    rows = ((each.name, each.type, "yes" if each.nullable else "no") for each in schema)
    return html_table(title, ("column", "type", "nullable"), rows, len(schema))


def _reader(reader: pa.RecordBatchReader) -> str:
    return html_schema("RecordBatchReader", reader.schema)

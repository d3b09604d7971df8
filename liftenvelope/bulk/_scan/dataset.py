"""A scan as a pyarrow Dataset, which DuckDB gives its projection and its filters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NoReturn

from liftenvelope._checks import require
from liftenvelope.bulk.narrowing import Narrowing
from liftenvelope.errors import UsageError
from liftenvelope.jetstream.subject_filter import SubjectFilter

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.dataset as ds
    from pyarrow import fs

    from liftenvelope.bulk._scan.reads import ScanReads
    from liftenvelope.bulk.ranges import Range
    from liftenvelope.bulk.sources import RangedStream
else:
    from liftenvelope.bulk._engine.schema import pa

    pc, ds = require("pyarrow.compute", "bulk"), require("pyarrow.dataset", "bulk")
    fs = require("pyarrow.fs", "bulk")

__all__ = ["StreamDataset"]

#: Parts that a range of offsets is divided into, again and again, to find those that a filter needs.
_PARTS: Final = 64
#: Subjects that a filter is tried on. Each takes 0.1 ms.
_MOST_SUBJECTS: Final = 5_000


class StreamDataset(ds.Dataset):  # type: ignore[misc] # pyarrow has no types
    """A stream as a pyarrow Dataset. Each scan reads the stream as of then.

    Args:
        reads: The reads of the stream.
    """

    def __init__(self, reads: ScanReads) -> None:
        self._reads = reads

    @property
    def schema(self) -> pa.Schema:
        """Arrow schema of all columns."""
        return self._reads.schema

    def __repr__(self) -> str:
        return f"<StreamDataset of {self._reads.stream}>"

    def scanner(  # with the names of pyarrow
        self,
        columns: Any = None,
        filter: pc.Expression | None = None,  # noqa: A002
        **options: Any,
    ) -> ds.Scanner:
        """Read the columns and the messages that a query needs.

        Args:
            columns: Names of columns, or expressions by name. Default: all.
            filter: Condition of the rows.
            **options: Other options of a scanner of pyarrow.
        """
        names = self._columns(columns, filter)
        opened = self._reads.open()
        try:
            narrowing = Narrowing()
            spans = self._reads.plan(opened, narrowing)
            if filter is not None:
                spans = [_narrowed(filter, span, self.schema) for span in spans]
                spans = [span for span in spans if span.start < span.stop]
                narrowing = replace(narrowing, subjects=_subjects(filter, opened, self.schema))
            reader = self._reads.start(opened, names, narrowing, spans)
        except BaseException:
            opened.close()
            raise
        return ds.Scanner.from_batches(reader, columns=columns, filter=filter, **options)

    def _columns(self, columns: Any, filter_: pc.Expression | None) -> list[str]:
        """Return the columns to read: all whose names are in the text of the query's expressions."""
        if columns is None:
            return list(self.schema.names)
        text = " ".join([str(filter_), *map(str, columns.values() if isinstance(columns, dict) else columns)])
        found = [name for name in self.schema.names if name in text]
        return found or ["offset"]

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise UsageError("a stream has no files and no fragments: read it into a table with to_table() first")

    # pyarrow implements these for datasets of its own alone, and would crash.
    get_fragments = replace_schema = filter = join = join_asof = sort_by = _refuse
    partition_expression = property(_refuse)
    __reduce__ = _refuse


def _needed(filter_: pc.Expression, guarantees: Iterable[pc.Expression], schema: pa.Schema) -> list[int]:
    """Return the numbers of the guarantees under which a row can meet a filter.

    Arrow does this for the files of a dataset: it simplifies the filter by what is known of each file.
    """
    format_, system = ds.ParquetFileFormat(), fs.LocalFileSystem()
    files = [
        format_.make_fragment(str(at), system, partition_expression=known)
        for at, known in enumerate(guarantees)
    ]
    found = ds.FileSystemDataset(files, schema, format_, system).get_fragments(filter=filter_)
    return sorted(int(file.path) for file in found)


def _narrowed(filter_: pc.Expression, span: Range, schema: pa.Schema) -> Range:
    """Return the smallest range around the offsets at which a row can meet a filter."""
    start, stop = span.start, span.stop
    while stop > start:
        size = -(-(stop - start) // _PARTS)
        parts = [(low, min(low + size, stop)) for low in range(start, stop, size)]
        needed = _needed(filter_, [_within(part, span.partition, schema) for part in parts], schema)
        if not needed:
            return replace(span, start=start, stop=start)
        low, high = parts[needed[0]][0], parts[needed[-1]][1]
        if (low, high) == (start, stop):
            return replace(span, start=start, stop=stop)
        start, stop = low, high
    return replace(span, start=start, stop=stop)


def _within(part: Sequence[int], partition: int, schema: pa.Schema) -> pc.Expression:
    low, high = (pa.scalar(offset, schema.field("offset").type) for offset in part)
    offset, number = pc.field("offset"), pc.field("partition")
    return (offset >= low) & (offset < high) & (number == pa.scalar(partition, pa.int32()))


def _subjects(filter_: pc.Expression, opened: RangedStream, schema: pa.Schema) -> SubjectFilter | None:
    """Return the subjects of the stream that a row can have that meets a filter; None if it is not known."""
    if "subject" not in str(filter_):
        return None
    # After the ranges are planned, so that no message in them has a subject that comes later.
    subjects = opened.subjects(_MOST_SUBJECTS)
    if subjects is None:
        return None
    plain = schema.set(schema.get_field_index("subject"), pa.field("subject", pa.string()))
    needed = _needed(filter_, (pc.field("subject") == subject for subject in subjects), plain)
    return None if len(needed) == len(subjects) else SubjectFilter(subjects[at] for at in needed)

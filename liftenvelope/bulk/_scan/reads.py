"""Reads of a lazy scan: each query narrows the messages, and only those are read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from liftenvelope.bulk._engine.plan import make_plan
from liftenvelope.bulk._engine.schema import EnvelopeMode
from liftenvelope.bulk._reads.reading import BATCH_BYTES, BATCH_ROWS
from liftenvelope.bulk._reads.request import ReadRequest
from liftenvelope.bulk._scan.payload import ScanPayload
from liftenvelope.bulk.narrowing import Narrowing
from liftenvelope.bulk.ranges import Range
from liftenvelope.bulk.sources import RangedStream, narrowed_range

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ScanReads"]


class ScanReads:
    """Starts the reads of a scan.

    Args:
        request: Messages that the scan is about.
        envelope: As for :func:`liftenvelope.bulk.read`.
        schema: Arrow schema of all columns.
        payload: Decoding of the values; None for the bytes as they are.
        passed: Offset of the first message, and the number of its rows to leave out.
    """

    def __init__(
        self,
        request: ReadRequest,
        envelope: EnvelopeMode,
        schema: pa.Schema,
        payload: ScanPayload | None = None,
        passed: tuple[int, int] | None = None,
    ) -> None:
        self._request = request
        self._envelope: EnvelopeMode = envelope
        self._payload = payload
        self._passed = passed
        self.schema: pa.Schema = schema

    @property
    def stream(self) -> str:
        """Name of the stream."""
        return self._request.stream

    def read(self, columns: Iterable[str] | None, narrowing: Narrowing) -> pa.RecordBatchReader:
        """Read the messages that may meet the conditions of a query.

        Args:
            columns: Names of the columns. Default: all.
            narrowing: Bounds of the messages. All others are left out as far as that is cheap.
        """
        opened = self.open()
        try:
            return self.start(opened, columns, narrowing, self.plan(opened, narrowing))
        except BaseException:
            opened.close()
            raise

    # In steps, for a query that looks at the stream before it knows its conditions

    def open(self) -> RangedStream:
        """Return the stream to read. The caller closes it, unless :meth:`start` has started a read."""
        return self._request.open()

    def plan(self, opened: RangedStream, narrowing: Narrowing) -> list[Range]:
        """Return the offsets to read, as of now."""
        spans = self._request.ranges(opened)
        found = [narrowed_range(opened, span, narrowing) for span in spans if span.start < span.stop]
        return [span for span in found if span.start < span.stop]

    def start(
        self,
        opened: RangedStream,
        columns: Iterable[str] | None,
        narrowing: Narrowing,
        spans: list[Range],
    ) -> pa.RecordBatchReader:
        """Start to read ranges that :meth:`plan` returned."""
        given, subjects = self._request.subjects, narrowing.subjects
        if given is not None:
            subjects = given if subjects is None else given.intersection(subjects)
        names = self.schema.names if columns is None else list(columns)
        typed = None if self._payload is None else self._payload.plan(names)
        plan = make_plan(
            names if typed is None else typed.reading,
            self._envelope,
            BATCH_ROWS,
            BATCH_BYTES,
            self._request.on_retention,
            unsigned=opened.unsigned,
            subjects=subjects,
        )
        if subjects is not None and not subjects.filters:
            spans = []
        opened.filter_by(subjects if spans else None, whole=False)
        decoder = None if typed is None else typed.decoder(opened, spans, plan, passed=self._passed)
        return self._request.start_reader(opened, spans, plan, decoder=decoder)

"""Delta tables. An application transaction for each partition of a stream has its next offset.

delta-rs refuses a commit if a commit since the loaded version has a transaction of the same application. So
the second of two commits from one state fails, while commits of other streams and compactions pass.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from liftenvelope.bulk.errors import TableSchemaError
from liftenvelope.bulk.tables._columns import check_required, convert, merged_schema, table_schema
from liftenvelope.bulk.tables._partitioning import (
    PartitionBy,
    add_time_columns,
    check_columns,
    time_parts,
    with_time_columns,
)
from liftenvelope.bulk.tables._state import RECORD, TableState
from liftenvelope.bulk.tables._target import ConflictError
from liftenvelope.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable
else:
    from liftenvelope.bulk._engine.schema import pa

__all__ = ["DeltaTarget"]

_CREATED: Final = "created"
#: Name in the log of the table that tells the commits of one writer from those of another.
_COMMIT: Final = "liftenvelope.commit"
#: Application whose transaction has the time of the last upkeep.
_MAINTAINED: Final = "liftenvelope/maintained"


def _check_case(schema: pa.Schema) -> None:
    """Check that names differ in more than their case, which Delta does not keep apart.

    Raises:
        TableSchemaError: Two do not.
    """
    seen: dict[str, pa.Field] = {}
    for field in schema:
        other = seen.setdefault(field.name.lower(), field)
        if other is not field:
            text = f"column {field.name!r} must differ from column {other.name!r} in more than its case"
            raise TableSchemaError(
                f"{text} for Delta: leave it out by columns=", field.name, str(other.type), str(field.type)
            )


class DeltaTarget:
    """A Delta table.

    Args:
        path: Path or URL of the table.
        storage_options: Options of the object store.
        stream_id: Name of the stream in the application ids.
        partitions: Partitioning of a new table; None for none, or for that of the table.
        properties: Properties of a new table.
    """

    def __init__(
        self,
        path: str,
        storage_options: Mapping[str, str],
        stream_id: str,
        partitions: tuple[PartitionBy, ...] | None,
        properties: Mapping[str, str],
    ) -> None:
        self.title = f"Delta table {path}"
        self.version: int | None = None
        self._path = path
        self._storage = dict(storage_options)
        self._prefix = f"liftenvelope/{stream_id}"
        self._record = f"{RECORD}{stream_id}"
        self._partitions = partitions
        self._properties = dict(properties)
        self._table: DeltaTable | None = None
        self._schema = pa.schema([])
        self._parts: list[PartitionBy] = []
        self._known = TableState()
        self._held: list[pa.RecordBatch] = []
        self._commit_id = ""
        self._commit_base: int | None = None
        self._numbers: list[int] = []

    def find(self, partitions: list[int]) -> TableState:
        """Load the table anew. See TableTarget."""
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        self._numbers = partitions
        try:
            self._table = DeltaTable(self._path, storage_options=self._storage or None)
        except TableNotFoundError:
            self._table = None
            return TableState()
        return self._state()

    def prepare(self, schema: pa.Schema, record: str) -> TableState:
        """Create the table, or find the columns that it lacks. The next commit adds them. See TableTarget."""
        wanted = table_schema(schema)
        _check_case(wanted)
        if self._table is None:
            self._table = self._create(wanted)
        table = self._table
        names = table.metadata().partition_columns
        self._check_partitions(names)
        self._parts = time_parts(names, wanted)
        there = pa.schema(table.schema().to_arrow())
        self._schema = merged_schema(
            table_schema(there, keep_ns=True), with_time_columns(wanted, self._parts)
        )
        _check_case(self._schema)
        required = {field.name for field in there if not field.nullable} - {one.name for one in self._parts}
        check_required(required, schema)
        if table.metadata().configuration.get(self._record) != record:
            self._set_record(table, record)
        return self._state()

    def _set_record(self, table: DeltaTable, record: str) -> None:
        """Record the options in a commit of their own: no other call of delta-rs takes such properties.

        A commit of rows onto an older version fails, since the metadata has changed.
        """
        from deltalake.exceptions import CommitFailedError

        try:
            table.alter.set_table_properties({self._record: record}, raise_if_not_exists=False)
        except CommitFailedError as exc:
            raise ConflictError(f"{self.title}: another writer changed its properties") from exc

    def _create(self, schema: pa.Schema) -> DeltaTable:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        parts = self._partitions or ()
        check_columns(parts, schema)
        full = with_time_columns(schema, [one for one in parts if one.unit is not None])
        try:
            return DeltaTable.create(
                self._path,
                full,
                partition_by=[one.name for one in parts] or None,
                configuration=self._properties or None,
                storage_options=self._storage or None,
            )
        except DeltaError as exc:
            if DeltaTable.is_deltatable(self._path, self._storage or None):
                raise ConflictError(f"{self.title}: another writer created it") from exc
            raise

    def _check_partitions(self, found: list[str]) -> None:
        wanted = found if self._partitions is None else [one.name for one in self._partitions]
        if wanted != found:
            names = ", ".join(found) or "none"
            raise UsageError(f"partition_by must be that of {self.title}, {names}, got {', '.join(wanted)}")

    def reload(self) -> TableState:
        """Return the state of the stream as of now."""
        self._loaded.update_incremental()
        return self._state()

    @property
    def _loaded(self) -> DeltaTable:
        assert self._table is not None, "find() and prepare() come first"
        return self._table

    def _state(self) -> TableState:
        table = self._loaded
        self.version = table.version()
        created = table.transaction_version(f"{self._prefix}/{_CREATED}")
        found = {number: table.transaction_version(f"{self._prefix}/{number}") for number in self._numbers}
        offsets = {number: offset for number, offset in found.items() if offset is not None}
        record = table.metadata().configuration.get(self._record) or ""
        self._known = TableState(created or 0, offsets, record)
        return self._known

    def stage(self, batches: list[pa.RecordBatch]) -> None:
        """Hold rows in memory: delta-rs writes files and commits in one call, which needs the offsets."""
        self._held += [convert(add_time_columns(batch, self._parts), self._schema) for batch in batches]

    def try_commit(self, state: TableState) -> TableState:
        """Append the rows in a commit with a transaction for each partition that goes on.

        Commits of other partitions that came first do not conflict. The loaded version has them as well.
        """
        from deltalake import CommitProperties, write_deltalake
        from deltalake.exceptions import CommitFailedError

        if self._commit_base is None:  # all attempts at one commit have one id: an early one may land late
            self._commit_base, self._commit_id = self._loaded.version(), uuid.uuid4().hex
        properties = CommitProperties(
            custom_metadata={_COMMIT: self._commit_id}, app_transactions=self._transactions(state)
        )
        try:
            write_deltalake(
                self._loaded,
                pa.RecordBatchReader.from_batches(self._schema, self._held),
                mode="append",
                schema_mode="merge",
                commit_properties=properties,
            )
        except CommitFailedError as exc:
            raise ConflictError(f"{self.title}: {exc}") from exc
        self.discard()
        return self._state()

    def _transactions(self, state: TableState) -> list[Any]:
        from deltalake import Transaction

        found = [
            Transaction(f"{self._prefix}/{number}", offset)
            for number, offset in state.offsets.items()
            if self._known.offsets.get(number) != offset
        ]
        if state.created_ns != self._known.created_ns:
            found.append(Transaction(f"{self._prefix}/{_CREATED}", state.created_ns))
        return found

    def has_landed(self) -> bool:
        """Return True if a version since the first attempt is that of an attempt.

        The state does not tell: another writer may have committed the same rows.
        """
        if self._commit_base is None:
            return False
        table = self._loaded
        newer = table.history(table.version() - self._commit_base)
        return any(one.get(_COMMIT) == self._commit_id for one in newer)

    def can_commit(self) -> bool:
        """Return True: rows in memory fit every partitioning. The commit checks the columns."""
        return True

    def discard(self) -> None:
        """Forget the rows."""
        self._held = []
        self._commit_base = None

    def maintain(self, *, compact: bool, expire_hours: int | None) -> None:
        """Compact the table, and vacuum it. See TableTarget."""
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import CommitFailedError

        self.find([])
        table = self._table
        if table is None:
            raise UsageError(f"{self.title} must exist: write into it first")
        try:
            if compact:
                table.optimize.compact()
            if expire_hours is not None:
                # Not full: files that no version knows may be those of a commit under way.
                table.vacuum(expire_hours, dry_run=False, enforce_retention_duration=False)
                table.create_checkpoint()
                table.cleanup_metadata()
            # A commit of its own: compact() drops the transactions that it is given.
            done = CommitProperties(app_transactions=[Transaction(_MAINTAINED, int(time.time()))])
            table.create_write_transaction([], "append", table.schema(), commit_properties=done)
        except CommitFailedError as exc:
            raise ConflictError(f"{self.title}: {exc}") from exc

    def maintained_at(self) -> int | None:
        """Return the time of the last upkeep. See TableTarget."""
        self.find([])
        return None if self._table is None else self._table.transaction_version(_MAINTAINED)

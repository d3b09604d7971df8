"""Iceberg tables. A snapshot's summary has the offsets of the streams up to it.

Snapshots of other writers, such as compactions, have no offsets: those of the nearest ancestor with offsets
hold. If expiry has removed that ancestor, the copy in the table's properties holds, which the same commit
wrote. A commit asserts the snapshot that its offsets were read from (``assert-ref-snapshot-id``), so the
catalogue refuses the second of two commits from one state.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, cast

from liftenvelope._checks import require
from liftenvelope.bulk.errors import TableError
from liftenvelope.bulk.tables._columns import check_required, convert, merged_schema, table_schema
from liftenvelope.bulk.tables._partitioning import PartitionBy, check_columns
from liftenvelope.bulk.tables._state import RECORD, TableState, dump_states, load_states
from liftenvelope.bulk.tables._target import ConflictError
from liftenvelope.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.partitioning import PartitionField, PartitionKey, PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
else:
    from liftenvelope.bulk._engine.schema import pa

__all__ = ["IcebergTarget"]

#: Name of the property of snapshots, and of the table, that has the states of all streams.
_STREAMS: Final = "liftenvelope.streams"
#: Property of the table: sequence number of the snapshot that its copy of the states belongs to.
_SEQUENCE: Final = "liftenvelope.sequence-number"
#: Property of the table: time of the last upkeep in seconds since 1970.
_MAINTAINED: Final = "liftenvelope.maintained"
#: Properties for pyiceberg's commit. A second attempt would append onto the snapshot of another writer. One
#: retry is allowed for its first half only, the look for an own snapshot that was committed although the
#: answer was lost: :class:`_OneCommit` refuses the second half.
_ONE_ATTEMPT: Final = {
    "commit.retry.num-retries": "1",
    "commit.retry.min-wait-ms": "0",
    "commit.retry.total-timeout-ms": "3600000",
}


class _OneCommit:
    """A catalogue that takes one commit. Everything else goes to the catalogue itself."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._is_used = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)

    def commit_table(self, *args: Any) -> Any:
        if self._is_used:
            raise ConflictError("another commit came first")
        self._is_used = True
        return self._catalog.commit_table(*args)


class IcebergTarget:
    """A table in a pyiceberg catalogue.

    Args:
        catalog: The catalogue.
        name: Name of the table with its namespace.
        stream_id: Name of the stream in the table's state.
        partitions: Partitioning of a new table; None for none, or for that of the table.
        properties: Properties of a new table.
    """

    def __init__(
        self,
        catalog: Catalog,
        name: str,
        stream_id: str,
        partitions: tuple[PartitionBy, ...] | None,
        properties: Mapping[str, str],
    ) -> None:
        self.title = f"Iceberg table {name}"
        self.version: int | None = None
        self._catalog = catalog
        self._name = name
        self._stream_id = stream_id
        self._partitions = partitions
        self._properties = properties
        self._table: Table | None = None
        self._schema = pa.schema([])
        self._files: list[DataFile] = []
        self._spec_id = 0
        #: Snapshots of the attempts at the commit: an early one may land late.
        self._attempts: list[int] = []

    def find(self, partitions: list[int]) -> TableState:  # noqa: ARG002 - one property has all of them
        """Load the table anew. See TableTarget."""
        from pyiceberg.exceptions import NoSuchTableError

        try:
            return self.reload()
        except NoSuchTableError:
            self._table = None
            return TableState()

    def prepare(self, schema: pa.Schema, record: str) -> TableState:  # noqa: ARG002 - each commit has it
        """Create the table, or add the columns that it lacks. See TableTarget."""
        from pyiceberg.exceptions import CommitFailedException

        wanted = table_schema(schema)
        table = self._create(wanted) if self._table is None else self._table
        _require_transforms(table.spec())
        self._check_partitions(table)
        there = _arrow_schema(table)
        self._schema = merged_schema(there, wanted)
        check_required([one.name for one in table.schema().fields if one.required], schema)
        if self._schema != there:
            try:
                with table.update_schema() as update:
                    update.union_by_name(self._schema)
            except CommitFailedException as exc:
                raise ConflictError(f"{self.title}: another writer changed the columns") from exc
        self._table = table
        return self._state()

    def _create(self, schema: pa.Schema) -> Table:
        from pyiceberg.exceptions import NamespaceAlreadyExistsError, TableAlreadyExistsError

        check_columns(self._partitions or (), schema)
        try:
            self._catalog.create_namespace_if_not_exists(self._catalog.namespace_from(self._name))
            table = self._catalog.create_table_transaction(
                self._name, schema, properties=dict(self._properties)
            )
            with table as creation, creation.update_spec() as spec:
                for one in self._partitions or ():
                    spec.add_field(one.column, _transform(one), one.name)
        except (NamespaceAlreadyExistsError, TableAlreadyExistsError) as exc:
            raise ConflictError(f"{self.title}: another writer created it") from exc
        return self._catalog.load_table(self._name)

    def _check_partitions(self, table: Table) -> None:
        if self._partitions is None:
            return
        schema = table.schema()
        wanted = [(one.column, str(_transform(one))) for one in self._partitions]
        found = [(schema.find_column_name(one.source_id), str(one.transform)) for one in table.spec().fields]
        if wanted != found:
            names = ", ".join(f"{transform}({column})" for column, transform in found) or "none"
            given = ", ".join(map(str, self._partitions)) or "none"
            raise UsageError(f"partition_by must be that of {self.title}, {names}, got {given}")

    def reload(self) -> TableState:
        """Return the state of the stream as of now."""
        self._table = self._catalog.load_table(self._name)
        return self._state()

    def _state(self) -> TableState:
        table = self._loaded
        snapshot = table.metadata.current_snapshot()
        self.version = None if snapshot is None else snapshot.snapshot_id
        state = _states(table.metadata, self.title).get(self._stream_id, TableState())
        return replace(state, record=table.properties.get(f"{RECORD}{self._stream_id}", ""))

    @property
    def _loaded(self) -> Table:
        assert self._table is not None, "find() and prepare() come first"
        return self._table

    def stage(self, batches: list[pa.RecordBatch]) -> None:
        """Write rows into data files, which no reader sees before the commit."""
        from pyiceberg.io.pyarrow import write_file
        from pyiceberg.table import WriteTask

        table = self._loaded
        rows = pa.Table.from_batches([convert(batch, self._schema) for batch in batches])
        write = uuid.uuid4()
        tasks = (
            WriteTask(write, number, table.schema(), part.to_batches(), partition_key=key)
            for number, (key, part) in enumerate(_parts(rows, table.spec(), table.schema()))
        )
        self._files += write_file(table.io, table.metadata, tasks)
        self._spec_id = table.spec().spec_id

    def try_commit(self, state: TableState) -> TableState:
        """Append the data files in a snapshot that has the state, onto the loaded one."""
        from pyiceberg.table import Table

        base = self._loaded
        states = dump_states({**_states(base.metadata, self.title), self._stream_id: state})
        metadata = base.metadata.model_copy(
            update={"properties": {**base.metadata.properties, **_ONE_ATTEMPT}}
        )
        once = cast("Catalog", _OneCommit(self._catalog))
        table = Table(base.name(), metadata, base.metadata_location, base.io, once, base.config)
        sequence = str(_last_sequence(base.metadata) + 1)
        self._append(
            table, {_STREAMS: states, _SEQUENCE: sequence, f"{RECORD}{self._stream_id}": state.record}
        )
        self._table = Table(
            table.name(), table.metadata, table.metadata_location, table.io, self._catalog, base.config
        )
        self.version = self._attempts[-1]
        self.discard()
        return state

    def _append(self, table: Table, properties: dict[str, str]) -> None:
        from pyiceberg.exceptions import CommitFailedException

        merges = table.properties.get("commit.manifest-merge.enabled", "false").lower() == "true"
        try:
            with table.transaction() as change:
                change.set_properties(properties)
                update = change.update_snapshot(snapshot_properties={_STREAMS: properties[_STREAMS]})
                with update.merge_append() if merges else update.fast_append() as append:
                    self._attempts.append(append.snapshot_id)
                    for file in self._files:
                        append.append_data_file(file)
        except CommitFailedException as exc:
            raise ConflictError(f"{self.title}: {exc}") from exc

    def has_landed(self) -> bool:
        """Return True if the snapshot of an attempt is in the table."""
        return any(self._loaded.snapshot_by_id(one) is not None for one in self._attempts)

    def can_commit(self) -> bool:
        """Return True if the data files have the current partitioning."""
        return not self._files or self._spec_id == self._loaded.spec().spec_id

    def discard(self) -> None:
        """Forget the data files. Readers never see them."""
        self._files = []
        self._attempts = []

    def maintain(self, *, compact: bool, expire_hours: int | None) -> None:
        """Expire snapshots. See TableTarget."""
        from pyiceberg.exceptions import CommitFailedException, NoSuchTableError

        if compact:
            raise UsageError("compact must be False for Iceberg, got True: pyiceberg has no call for it")
        try:
            table = self._catalog.load_table(self._name)
        except NoSuchTableError as exc:
            raise UsageError(f"{self.title} must exist: write into it first") from exc
        try:
            if expire_hours is not None:
                oldest = datetime.now(UTC) - timedelta(hours=expire_hours)
                table.maintenance.expire_snapshots().older_than(oldest).commit()
            with table.transaction() as change:
                change.set_properties({_MAINTAINED: str(int(time.time()))})
        except CommitFailedException as exc:
            raise ConflictError(f"{self.title}: {exc}") from exc

    def maintained_at(self) -> int | None:
        """Return the time of the last upkeep. See TableTarget."""
        from pyiceberg.exceptions import NoSuchTableError

        try:
            found = self._catalog.load_table(self._name).properties.get(_MAINTAINED, "")
        except NoSuchTableError:
            return None
        return int(found) if found.isdecimal() else None


def _arrow_schema(table: Table) -> pa.Schema:
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    return table_schema(schema_to_pyarrow(table.schema(), include_field_ids=False), keep_ns=True)


def _transform(one: PartitionBy) -> Any:
    from pyiceberg.transforms import DayTransform, HourTransform, IdentityTransform, MonthTransform

    found = {"hour": HourTransform, "day": DayTransform, "month": MonthTransform, None: IdentityTransform}
    return found[one.unit]()


def _require_transforms(spec: PartitionSpec) -> None:
    """Raise MissingExtraError if pyiceberg lacks the package that a partitioning needs."""
    from pyiceberg.transforms import BucketTransform, TruncateTransform

    if any(isinstance(field.transform, BucketTransform | TruncateTransform) for field in spec.fields):
        require("pyiceberg_core", None)


def _parts(
    rows: pa.Table, spec: PartitionSpec, schema: Schema
) -> Iterator[tuple[PartitionKey | None, pa.Table]]:
    """Yield the rows of each partition with its key."""
    from pyiceberg.partitioning import PartitionFieldValue, PartitionKey

    if spec.is_unpartitioned():
        yield None, rows
        return
    import pyarrow.compute as pc

    names = [f"partition {number}" for number in range(len(spec.fields))]
    keys = {
        name: _partition_keys(rows.column(str(schema.find_column_name(field.source_id))), field, schema)
        for name, field in zip(names, spec.fields, strict=True)
    }
    # By their numbers, and not by a comparison with the key: NaN equals nothing, and -0.0 equals 0.0.
    numbers = pc.cumulative_sum(pa.repeat(1, rows.num_rows), start=-1)
    keyed = pa.table({**keys, "row": numbers}).group_by(names, use_threads=False)
    groups = keyed.aggregate([("row", "list")])
    for values, chosen in zip(groups.select(names).to_pylist(), groups.column("row_list"), strict=True):
        found = [
            PartitionFieldValue(field, _partition_value(values[name], field, schema))
            for field, name in zip(spec.fields, names, strict=True)
        ]
        yield PartitionKey(found, spec, schema), rows.take(chosen.values).combine_chunks()


def _time_unit(field: PartitionField, schema: Schema) -> str | None:
    """Return the unit of a partition by time; None for other partitions."""
    name = str(field.transform)
    is_time = str(schema.find_type(field.source_id)).startswith(("timestamp", "date"))
    return name if is_time and name in ("hour", "day", "month", "year") else None


def _partition_keys(column: Any, field: PartitionField, schema: Schema) -> Any:
    """Return values that differ where the partitions of rows differ.

    pyiceberg transforms columns of times with a package that it does not depend on. It transforms single
    values without that package, so the rows are grouped by the start of the unit of time first.
    """
    import pyarrow.compute as pc

    unit = _time_unit(field, schema)
    if unit is not None:
        floored = pc.floor_temporal(column, unit=unit)
        return floored.cast(pa.int32() if pa.types.is_date32(floored.type) else pa.int64())
    return field.transform.pyarrow_transform(schema.find_type(field.source_id))(column)


def _partition_value(key: Any, field: PartitionField, schema: Schema) -> Any:
    if _time_unit(field, schema) is None:
        return key
    return field.transform.transform(schema.find_type(field.source_id))(key)


def _last_sequence(metadata: TableMetadata) -> int:
    """Return the last sequence number of a table; 0 for format version 1, which has none."""
    found: int = getattr(metadata, "last_sequence_number", 0)
    return found


def _states(metadata: TableMetadata, title: str) -> dict[str, TableState]:
    """Return the states of all streams as of the current snapshot of a table.

    Raises:
        TableError: The states are lost.
    """
    snapshots = {one.snapshot_id: one for one in metadata.snapshots}
    at = metadata.current_snapshot()
    while at is not None:
        summary = at.summary
        if summary is not None and (text := summary.additional_properties.get(_STREAMS)) is not None:
            return load_states(text)
        older = None if at.parent_snapshot_id is None else snapshots.get(at.parent_snapshot_id)
        if older is None:
            return _copied_states(metadata, at.sequence_number or 0, title)
        at = older
    return {}


def _copied_states(metadata: TableMetadata, oldest: int, title: str) -> dict[str, TableState]:
    """Return the states of a table whose current snapshot has no known ancestor with states.

    Expiry may have removed that ancestor: then it is older than the oldest one known, and the copy in the
    table's properties holds. A copy of a newer snapshot means that the table was rolled back. If the oldest
    one known is the first of the table, it was rolled back to a time before all states. Parents don't tell:
    pyiceberg's expiry makes the oldest snapshot that it keeps look like the first.

    Raises:
        TableError: The table was rolled back, and expiry has removed the states of that time.
    """
    text = metadata.properties.get(_STREAMS)
    if text is None:  # nothing of this package was ever committed
        return {}
    sequence = metadata.properties.get(_SEQUENCE, "")
    if sequence.isdecimal() and 0 < int(sequence) < oldest:
        return load_states(text)
    if oldest == 1:
        return {}
    raise TableError(
        f"{title} must have the offsets of its streams, and lost them: it was rolled back to a snapshot "
        f"before them, and older snapshots are expired. Set a stream_id and a start to write on"
    )

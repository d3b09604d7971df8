"""The calls that write a stream into a table of a format."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, Unpack

from liftenvelope._checks import as_full_text, as_local_path, require
from liftenvelope.bulk.access import Source
from liftenvelope.bulk.tables._delta import DeltaTarget
from liftenvelope.bulk.tables._iceberg import IcebergTarget
from liftenvelope.bulk.tables._settings import TableOptions, TableSettings
from liftenvelope.bulk.tables._target import mapped, patiently
from liftenvelope.bulk.tables._writer import TableWriter, TableWritten
from liftenvelope.errors import UsageError, UsageTypeError

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

__all__ = ["delta_writer", "iceberg_writer", "to_delta", "to_iceberg"]

#: A pyiceberg catalogue, its name in pyiceberg's configuration, or its properties.
CatalogLike: TypeAlias = "Catalog | str | Mapping[str, str]"

#: Seconds that SQLite waits for the lock of another process.
_BUSY: Final = 10


def to_iceberg(
    source: Source,
    stream: str,
    table: str,
    *,
    catalog: CatalogLike | None = None,
    warehouse: str | os.PathLike[str] | None = None,
    **options: Unpack[TableOptions],
) -> TableWritten:
    """Write what is new in a stream into an Iceberg table, each message once.

    The table is created if it does not exist. Later calls go on where the table ends: the next offset of each
    partition is in the same commit as the rows. So each message is in the table once, also if a call is
    killed, or if several run at the same time.

    Args:
        source: As for :func:`liftenvelope.bulk.read`.
        stream: Name of the stream.
        table: Name of the table with its namespace, such as ``"lake.orders"``.
        catalog: A pyiceberg catalogue, its name in pyiceberg's configuration, or its properties.
        warehouse: Instead of ``catalog``: a local folder for tables, and for a catalogue in the SQLite file
            ``catalog.db``.
        **options: See :class:`TableOptions`.

    Returns:
        The rows and commits that were added, and where the table stands.

    Raises:
        LiftEnvelopeError: As for :meth:`TableWriter.catch_up`.
        OSError: A file can't be written.

    Example:
        >>> bulk.to_iceberg("nats://localhost", "ORDERS", "db.orders", warehouse="lake")  # doctest: +SKIP
    """
    with iceberg_writer(source, stream, table, catalog=catalog, warehouse=warehouse, **options) as writer:
        return writer.catch_up()


def iceberg_writer(
    source: Source,
    stream: str,
    table: str,
    *,
    catalog: CatalogLike | None = None,
    warehouse: str | os.PathLike[str] | None = None,
    **options: Unpack[TableOptions],
) -> TableWriter:
    """Return a writer that brings an Iceberg table up to date as often as it is asked to.

    Args:
        source: As for :func:`to_iceberg`.
        stream: As for :func:`to_iceberg`.
        table: As for :func:`to_iceberg`.
        catalog: As for :func:`to_iceberg`.
        warehouse: As for :func:`to_iceberg`.
        **options: See :class:`TableOptions`.

    Raises:
        UsageError: An argument is invalid.
        MissingExtraError: pyiceberg is not installed.
        TableCommitError: The catalogue could not be reached for ``commit_wait`` seconds.
    """
    settings = TableSettings(**options)
    if not all(as_full_text("table", table).split(".")) or "." not in table:
        raise UsageError(f"table must be a name with its namespace, such as 'lake.orders', got {table!r}")
    opened, copy, stream_id = settings.open(source, stream)
    found = patiently(lambda: _catalog(catalog, warehouse), settings.commit_wait)
    target = IcebergTarget(found, table, stream_id, settings.parts, settings.properties or {})
    return TableWriter(opened, copy, target, settings)


def _catalog(catalog: CatalogLike | None, warehouse: str | os.PathLike[str] | None) -> Catalog:
    pyiceberg = require("pyiceberg.catalog", "iceberg")
    if (catalog is None) is (warehouse is None):
        given = "neither" if catalog is None else "both"
        raise UsageError(f"catalog or warehouse must be given, one of the two, got {given}")
    with mapped("catalog"):
        if warehouse is not None:
            found: Catalog = _embedded(as_local_path("warehouse", warehouse))
        elif isinstance(catalog, str):
            found = pyiceberg.load_catalog(catalog)
        elif isinstance(catalog, Mapping):
            found = pyiceberg.load_catalog(catalog.get("name", "default"), **_properties(catalog))
        elif isinstance(catalog, pyiceberg.Catalog):
            found = catalog
        else:
            kind = type(catalog).__name__
            raise UsageTypeError(f"catalog must be a pyiceberg catalogue, a name or properties, got {kind}")
        return found


def _properties(catalog: Mapping[str, str]) -> dict[str, Any]:
    return {name: value for name, value in catalog.items() if name != "name"}


def _embedded(folder: Path) -> Catalog:
    """Return a catalogue in an SQLite file in a folder, which also has the data."""
    sql = require("pyiceberg.catalog.sql", "iceberg")
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    uri = f"sqlite:///{folder}/catalog.db?timeout={_BUSY}"
    found: Catalog = sql.SqlCatalog("liftenvelope", uri=uri, warehouse=f"file://{folder}")
    return found


def to_delta(
    source: Source,
    stream: str,
    path: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, str] | None = None,
    **options: Unpack[TableOptions],
) -> TableWritten:
    """Write what is new in a stream into a Delta table, each message once, as :func:`to_iceberg` does.

    Args:
        source: As for :func:`to_iceberg`.
        stream: As for :func:`to_iceberg`.
        path: Folder or URL of the table.
        storage_options: Options of the object store for deltalake.
        **options: See :class:`TableOptions`.

    Returns:
        As for :func:`to_iceberg`.

    Raises:
        LiftEnvelopeError: As for :meth:`TableWriter.catch_up`.
        OSError: A file can't be written.

    Example:
        >>> bulk.to_delta("nats://localhost:4222", "ORDERS", "lake/orders")  # doctest: +SKIP
    """
    with delta_writer(source, stream, path, storage_options=storage_options, **options) as writer:
        return writer.catch_up()


def delta_writer(
    source: Source,
    stream: str,
    path: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, str] | None = None,
    **options: Unpack[TableOptions],
) -> TableWriter:
    """Return a writer that brings a Delta table up to date as often as it is asked to.

    Args:
        source: As for :func:`to_delta`.
        stream: As for :func:`to_delta`.
        path: As for :func:`to_delta`.
        storage_options: As for :func:`to_delta`.
        **options: See :class:`TableOptions`.

    Raises:
        UsageError: An argument is invalid.
        MissingExtraError: deltalake is not installed.
    """
    settings = TableSettings(**options)
    place = os.fspath(path)
    if not as_full_text("path", place):
        raise UsageError("path must be a folder or a URL, got ''")
    require("deltalake", "delta")
    opened, copy, stream_id = settings.open(source, stream)
    target = DeltaTarget(place, storage_options or {}, stream_id, settings.parts, settings.properties or {})
    return TableWriter(opened, copy, target, settings)

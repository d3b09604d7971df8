"""Read and write streams as Arrow, with a blocking API, at the speed of the server. See docs/bulk.md."""

from liftenvelope.bulk._archive.archiving import Archived, to_parquet
from liftenvelope.bulk._archive.restoring import Restored, restore
from liftenvelope.bulk._notebook import load_ipython_extension
from liftenvelope.bulk._outgoing import Written
from liftenvelope.bulk._progress_bar import ProgressBar
from liftenvelope.bulk._reads.dead_letter import DeadLetter
from liftenvelope.bulk._reads.payload import OnBad
from liftenvelope.bulk._reads.reading import count, read, tail
from liftenvelope.bulk._scan.scanning import Scan, scan
from liftenvelope.bulk._snapshots.folder import Backup, is_backup
from liftenvelope.bulk._snapshots.restoring import RestoredStream, restore_backup
from liftenvelope.bulk._snapshots.taking import backup
from liftenvelope.bulk.access import Access
from liftenvelope.bulk.errors import (
    ArchiveBusyError,
    BackupDamagedError,
    BackupTooLargeError,
    ReadLostError,
    RestoreError,
    RestoreUnfinishedError,
    RetentionError,
    ServerProtocolError,
    StreamRecreatedError,
    TableCommitError,
    TableError,
    TableSchemaError,
    WriteFailedError,
)
from liftenvelope.bulk.ranges import Gap, Progress
from liftenvelope.bulk.tables import (
    TableOptions,
    TableWriter,
    TableWritten,
    delta_writer,
    iceberg_writer,
    to_delta,
    to_iceberg,
)
from liftenvelope.bulk.writing import write

__all__ = [
    "Access",
    "ArchiveBusyError",
    "Archived",
    "Backup",
    "BackupDamagedError",
    "BackupTooLargeError",
    "DeadLetter",
    "Gap",
    "OnBad",
    "Progress",
    "ProgressBar",
    "ReadLostError",
    "RestoreError",
    "RestoreUnfinishedError",
    "Restored",
    "RestoredStream",
    "RetentionError",
    "Scan",
    "ServerProtocolError",
    "StreamRecreatedError",
    "TableCommitError",
    "TableError",
    "TableOptions",
    "TableSchemaError",
    "TableWriter",
    "TableWritten",
    "WriteFailedError",
    "Written",
    "backup",
    "count",
    "delta_writer",
    "iceberg_writer",
    "is_backup",
    "load_ipython_extension",
    "read",
    "restore",
    "restore_backup",
    "scan",
    "tail",
    "to_delta",
    "to_iceberg",
    "to_parquet",
    "write",
]

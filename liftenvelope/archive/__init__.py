"""Archives of many streams, kept up to date by one process. See docs/archiving.md."""

from liftenvelope.archive._daemon import ArchiveDaemon
from liftenvelope.archive.config import ArchiveConfig, PipelineConfig, read_archive_config

__all__ = ["ArchiveConfig", "ArchiveDaemon", "PipelineConfig", "read_archive_config"]

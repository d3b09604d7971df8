"""Back a stream up: a snapshot of the server, into a folder."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import Any, Final

from liftenvelope._checks import as_count, as_local_path
from liftenvelope.bulk._jetstream.requests import JetStreamRequests
from liftenvelope.bulk._snapshots.chunks import CHUNK_BYTES, received_chunks
from liftenvelope.bulk._snapshots.folder import Backup, BackupWriter, check_description, written
from liftenvelope.bulk.access import Access, ServerKind, Source, Target, find_target
from liftenvelope.bulk.errors import BackupTooLargeError
from liftenvelope.bulk.ranges import OnProgress, Progress
from liftenvelope.errors import UsageError
from liftenvelope.jetstream.api import natural

__all__ = ["backup", "nats_target"]

#: Bytes that the server may send ahead of the acknowledgements. The server's default.
_WINDOW_BYTES: Final = 8 * 1024 * 1024
#: Most bytes of a snapshot without ``max_bytes``, by the bytes that the server names for the stream. Blocks
#: of the server also hold deleted messages until it compacts them, and the state of consumers comes on top.
_TIMES_NAMED: Final = 4
_HEADROOM_BYTES: Final = 1024 * 1024 * 1024
#: Most of the free disk that a snapshot may take without ``max_bytes``: the server may name any number.
_SHARE_OF_FREE: Final = 0.9


def backup(
    source: Source,
    stream: str,
    folder: str | os.PathLike[str],
    *,
    consumers: bool = True,
    max_bytes: int | None = None,
    progress: OnProgress | None = None,
    access: Access | None = None,
) -> Backup:
    """Copy a JetStream stream into a folder as a snapshot, which keeps sequences, timestamps and headers.

    The folder is that of ``nats backup stream``, and :func:`restore_backup` or ``nats backup restore stream``
    makes the stream of it again. Messages that are published meanwhile are not in the backup. Messages that
    are deleted meanwhile may be in it or not.

    Args:
        source: NATS servers, as for :func:`read`.
        stream: Name of the stream.
        folder: Local folder, which is created. It must not have a backup yet.
        consumers: True to include the consumers with their state. Default True.
        max_bytes: Most bytes of data to write. The default is four times the bytes that the server names for
            the stream and 1 GiB, but at most nine tenths of what is free on the disk when the backup begins.
        progress: As for :func:`read`; ``rows`` is 0, and ``done`` and ``total`` count bytes in the stream.
        access: As for :func:`read`.

    Raises:
        UsageError: An argument is invalid, or the folder has a backup.
        ArchiveBusyError: Another backup is written into the folder.
        BackupTooLargeError: The server sent more than ``max_bytes``. The unfinished data is deleted.
        StreamNotFoundError: There is no such stream.
        PermissionDeniedError: The user may not request a snapshot or acknowledge its chunks.
        JetStreamError: The server can't read the stream, or stores it in memory and is older than 2.15.
        TransportError: The connection was lost, or a part of the snapshot.
        CallTimeoutError: The server sent nothing for ``timeout`` seconds.
        OSError: The folder can't be written.

    Example:
        >>> bulk.backup("nats://localhost:4222", "ORDERS", "backup/orders")  # doctest: +SKIP
    """
    path = as_local_path("folder", folder)
    if max_bytes is not None:
        max_bytes = as_count("max_bytes", max_bytes)
    requests = JetStreamRequests(nats_target(source, access), stream)
    with contextlib.closing(requests):
        requests.created()  # without the stream, no folder is made
        with written(path) as writer:
            return _taken(requests, writer, progress, max_bytes, consumers=consumers)


def nats_target(source: Source, access: Access | None) -> Target:
    """Return the servers of a source, which must be those of NATS.

    Raises:
        UsageError: The source is invalid, or has servers of another kind.
    """
    target = find_target(source, access)
    if target.kind is not ServerKind.NATS:
        raise UsageError("source must be a nats:// URL: backups are snapshots of JetStream")
    return target


def _taken(
    requests: JetStreamRequests,
    writer: BackupWriter,
    progress: OnProgress | None,
    max_bytes: int | None,
    *,
    consumers: bool,
) -> Backup:
    access = requests.access
    with contextlib.closing(requests.connect()) as link:
        inbox = access.new_inbox()
        sid = link.subscribe(inbox)
        link.flush(access.timeout)  # the chunks may come before the answer, on the other connection
        request = {
            "deliver_subject": inbox,
            "no_consumers": not consumers,
            "chunk_size": min(CHUNK_BYTES, access.max_message_bytes),
            "window_size": _WINDOW_BYTES,
        }
        config, state = requests.ask(_described, f"STREAM.SNAPSHOT.{requests.stream}", request)
        if not consumers:
            state["consumer_count"] = 0
        total = natural(state["bytes"])
        most = _most_bytes(writer.folder, total) if max_bytes is None else max_bytes
        for chunk in received_chunks(link, access, sid):
            if len(chunk) > most - writer.frames.size:
                raise _too_large(most, total)
            writer.write(chunk)
            if progress is not None:
                frames = writer.frames
                progress(Progress(rows=0, bytes=frames.size, done=min(frames.data, total), total=total))
        return writer.finish(config, state, str(link.info.get("version", "")))


def _most_bytes(folder: Path, named: int) -> int:
    """Return the most bytes of a snapshot, by the bytes that the server names for the stream."""
    free = int(shutil.disk_usage(folder).free * _SHARE_OF_FREE)
    return min(_TIMES_NAMED * named + _HEADROOM_BYTES, free)


def _too_large(most: int, named: int) -> BackupTooLargeError:
    expected = f"the snapshot must have at most {most:,} bytes, got more"
    remedy = "give a larger max_bytes if this is right and the disk has the room"
    return BackupTooLargeError(f"{expected}, of a stream of {named:,} bytes by the server: {remedy}")


def _described(answer: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    config, state = dict(answer["config"]), dict(answer["state"])
    for name in ("bytes", "messages", "first_seq", "last_seq"):
        natural(state[name])
    check_description(config, state)
    return config, state

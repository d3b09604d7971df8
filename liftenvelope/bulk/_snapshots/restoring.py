"""Restore a backup: make its stream again on a server, or leave nothing of it there.

A restore that fails half-way leaves a stream with some of its messages, in nats-server 2.15 at least. A
reader could not tell it from the whole one. So the stream is made with a mark in its metadata, and the mark
is taken away once the server has confirmed the whole restore. After a failure, a stream with this run's mark
is deleted. If that is not possible, as when this process is killed, the next restore deletes the stream.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from liftenvelope._backoff import Patience
from liftenvelope._checks import as_local_path, as_text
from liftenvelope._showing import html_fields
from liftenvelope.bulk._jetstream.requests import JetStreamRequests
from liftenvelope.bulk._snapshots.chunks import ChunkSender
from liftenvelope.bulk._snapshots.folder import FoundBackup, check_description, find_backup
from liftenvelope.bulk._snapshots.taking import nats_target
from liftenvelope.bulk.access import Access, Source
from liftenvelope.bulk.errors import RestoreError, RestoreUnfinishedError
from liftenvelope.bulk.ranges import OnProgress, Progress
from liftenvelope.errors import (
    JetStreamError,
    LiftEnvelopeError,
    PermissionDeniedError,
    StreamNameInUseError,
    StreamNotFoundError,
    UnsupportedByServerError,
    UsageError,
    UsageTypeError,
)
from liftenvelope.jetstream.api import natural, read_answer, read_as
from liftenvelope.nats.subjects import wire_subject

__all__ = ["RestoredStream", "restore_backup"]

#: Key of the mark in a stream's metadata.
_MARK: Final = "liftenvelope.unfinished-restore"
#: First version of nats-server with the format that is not a tar archive.
_NEW_FORMAT: Final = (2, 15)


@dataclass(frozen=True, slots=True)
class RestoredStream:
    """Outcome of a restore of a backup.

    Attributes:
        stream: Name of the stream.
        messages: Number of messages in the stream.
        missing: Number of messages that the backup counted and the stream does not have: limits such as
            ``max_age`` have removed them since, or they were deleted while the backup was made.
        oldest: Offset of the oldest message, or of the next one if there is none.
        end: Offset after the newest message.
        consumers: Number of consumers.
    """

    stream: str
    messages: int
    missing: int
    oldest: int
    end: int
    consumers: int

    def _repr_html_(self) -> str:
        return html_fields(self)


def restore_backup(
    folder: str | os.PathLike[str],
    source: Source,
    stream: str | None = None,
    *,
    config: Mapping[str, Any] | None = None,
    dry_run: bool = False,
    progress: OnProgress | None = None,
    access: Access | None = None,
) -> RestoredStream:
    """Make a stream of a backup: with its sequences, timestamps, headers and gaps, and with its consumers.

    The stream must not exist. If the restore fails, nothing of it is left. A stream that a killed restore
    left is deleted first. Run one restore of a stream at a time.

    Args:
        folder: Folder of :func:`backup`, or of ``nats backup stream``.
        source: NATS servers, as for :func:`read`.
        stream: Name of the stream to make. Default: that of the backup. Another name needs a backup of
            nats-server 2.15 or later.
        config: Settings that replace those of the backup, by their names on the wire, such as
            ``{"num_replicas": 1, "max_age": 0}``. Limits apply at once: messages that are older than
            ``max_age`` are removed as soon as they are restored.
        dry_run: True to check the backup and the server, and restore nothing.
        progress: As for :func:`read`; ``rows`` is 0, and ``done`` and ``total`` count bytes of the data.
        access: As for :func:`read`.

    Raises:
        UsageError: An argument is invalid, the folder has no backup, or its format can't have another name.
        BackupDamagedError: The backup is damaged: nothing was sent.
        StreamNameInUseError: The stream exists.
        UnsupportedByServerError: The server is too old for the format of the backup.
        PermissionDeniedError: The user may not restore, change and delete the stream.
        JetStreamError: The server refuses the config or the data, or a limit is reached.
        RestoreError: The server got no data for 5 seconds, as from a slow ``progress``.
        TransportError, CallTimeoutError: The server was lost, or did not answer.
        RestoreUnfinishedError: A part of the stream is left, because the server was lost: restore again.
        OSError: The backup can't be read.

    Example:
        >>> bulk.restore_backup("backup/orders", "nats://localhost:4222")  # doctest: +SKIP
    """
    found = _renamed(find_backup(as_local_path("folder", folder)), stream, config)
    target = nats_target(source, access)
    with contextlib.closing(JetStreamRequests(target, found.backup.stream)) as requests:
        run = _Restore(requests, found, progress)
        run.check_server()
        if dry_run:
            run.check_absence()
            found.check(run.report)
            backup = found.backup
            return RestoredStream(
                backup.stream, backup.messages, 0, backup.oldest, backup.end, backup.consumers
            )
        found.check(lambda _: None)
        return run.run()


def _renamed(found: FoundBackup, stream: str | None, config: Mapping[str, Any] | None) -> FoundBackup:
    """Return a backup with another name and config."""
    if not (config is None or isinstance(config, Mapping)):
        raise UsageTypeError(f"config must be a mapping or None, got {type(config).__name__}")
    if "name" in (config or {}):
        raise UsageError("config must not have a name: use the argument stream")
    name = found.backup.stream if stream is None else stream
    if found.is_tar and name != found.backup.stream:
        text = f"stream must be {found.backup.stream!r}, as in the backup, got {name!r}"
        raise UsageError(f"{text}: other names need a backup of nats-server 2.15 or later")
    changed = {**found.config, **(config or {}), "name": name}
    try:
        check_description(changed, found.state)
    except (TypeError, ValueError, RecursionError) as exc:
        raise UsageError(f"config must have settings as JSON has them: {exc}") from exc
    return replace(found, backup=replace(found.backup, stream=name), config=changed)


class _Restore:
    """One restore.

    Args:
        requests: Requests about the stream.
        found: The backup, with the name and config to restore.
        progress: Called after each chunk.
    """

    def __init__(self, requests: JetStreamRequests, found: FoundBackup, progress: OnProgress | None) -> None:
        self._requests = requests
        self._found = found
        self._progress = progress
        self._stream: Final = found.backup.stream
        self._token: Final = secrets.token_hex(8)

    def check_server(self) -> None:
        """Raise UnsupportedByServerError if the server is too old for the format."""
        with contextlib.closing(self._requests.connect()) as link:
            version = str(link.info.get("version", ""))
        numbers = tuple(int(part) if part.isdecimal() else 0 for part in version.split(".")[:2])
        if not self._found.is_tar and numbers < _NEW_FORMAT:
            text = f"backup {str(self._found.backup.path)!r} needs nats-server 2.15 or later"
            raise UnsupportedByServerError(f"{text}, got {version or 'no version'}")

    def check_absence(self) -> None:
        """Raise StreamNameInUseError if the stream exists, unless a killed restore has left it."""
        if (config := self._config()) is not None and _mark_of(config) is None:
            raise StreamNameInUseError(400, self._in_use, 10130)

    def report(self, size: int) -> None:
        """Report that some bytes of the data are done."""
        if self._progress is not None:
            self._progress(Progress(rows=0, bytes=size, done=size, total=self._found.backup.size))

    def run(self) -> RestoredStream:
        """Restore the stream, or leave nothing of it."""
        subject = self._begin()
        try:
            restored = self._send(subject)
            self._unmark()
        except BaseException as exc:
            if (reason := self._discard(subject)) is None:
                raise
            text = f"a part of stream {self._stream!r} is left: {reason}; restore again, which deletes it"
            if not isinstance(exc, Exception):
                exc.add_note(text)
                raise
            raise RestoreUnfinishedError(f"{exc}; {text}") from exc
        return restored

    @property
    def _in_use(self) -> str:
        return f"stream {self._stream!r} must not exist: delete it, or restore under another name"

    def _begin(self) -> str:
        """Ask for the restore; return the subject for the chunks."""
        metadata = {**(self._found.config.get("metadata") or {}), _MARK: self._token}
        request = {"config": {**self._found.config, "metadata": metadata}, "state": self._found.state}
        for last in (False, True):
            try:
                return self._requests.ask(_subject_of, f"STREAM.RESTORE.{self._stream}", request)
            except StreamNameInUseError as exc:
                config = None if last else self._config()
                if config is None or _mark_of(config) is None:
                    raise StreamNameInUseError(exc.code, self._in_use, exc.err_code) from exc
                self._delete()
        raise AssertionError

    def _send(self, subject: str) -> RestoredStream:
        with contextlib.closing(self._requests.connect()) as link:
            sender, done = ChunkSender(link, self._requests.access, subject), 0
            with open(self._found.data, "rb") as file:
                for size in sender.send(file):
                    done += size
                    self.report(done)
            answer = read_answer(sender.end().payload, subject)
        return read_as(self._outcome, answer, "the outcome of the restore")

    def _outcome(self, answer: dict[str, Any]) -> RestoredStream:
        state, backup = answer["state"], self._found.backup
        messages, end = natural(state["messages"]), natural(state["last_seq"])
        if end < backup.end:
            text = f"stream {self._stream!r} must end at offset {backup.end} after the restore, got {end}"
            raise RestoreError(text)
        return RestoredStream(
            stream=self._stream,
            messages=messages,
            missing=max(backup.messages - messages, 0),
            oldest=min(max(natural(state["first_seq"]) - 1, 0), end),
            end=end,
            consumers=natural(state.get("consumer_count", 0)),
        )

    def _unmark(self) -> None:
        self._requests.ask(_all, f"STREAM.UPDATE.{self._stream}", self._found.config)

    def _discard(self, subject: str) -> LiftEnvelopeError | None:
        """End the restore and delete its stream; return the error if that was not possible."""
        patience = Patience(self._requests.access.reconnect_wait)
        while True:
            try:
                self._stop(subject)
                config = self._config()
                if config is not None and _mark_of(config) == self._token:
                    self._delete()
            except LiftEnvelopeError as exc:
                pause = patience.failed(time.monotonic()) if exc.retriable else None
                if pause is None:
                    return exc
                time.sleep(pause)
            else:
                return None

    def _stop(self, subject: str) -> None:
        """End the data, so that the server does not wait for more of it for five seconds.

        The answer is that the restore failed, or nothing answers because it has ended. A user without the
        permission to send has not sent anything.
        """
        access = self._requests.access
        with (
            contextlib.closing(self._requests.connect()) as link,
            contextlib.suppress(JetStreamError, PermissionDeniedError, RestoreError),
        ):
            ChunkSender(link, access, subject).end(access.timeout)

    def _config(self) -> dict[str, Any] | None:
        """Return the config of the stream; None if there is no such stream."""
        try:
            return self._requests.config_and_extent()[0]
        except StreamNotFoundError:
            return None

    def _delete(self) -> None:
        with contextlib.suppress(StreamNotFoundError):
            self._requests.ask(_all, f"STREAM.DELETE.{self._stream}")


def _mark_of(config: Mapping[str, Any]) -> str | None:
    """Return the mark of an unfinished restore; None if the stream has none."""
    metadata = config.get("metadata")
    mark = metadata.get(_MARK) if isinstance(metadata, dict) else None
    return mark if isinstance(mark, str) else None


# Readers of answers. Their KeyError, TypeError and ValueError become ServerProtocolError in NatsSocket.ask().


def _all(answer: dict[str, Any]) -> dict[str, Any]:
    return answer


def _subject_of(answer: dict[str, Any]) -> str:
    return wire_subject("deliver_subject", as_text("deliver_subject", answer["deliver_subject"]))

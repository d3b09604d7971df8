"""The file of ``liftenvelope archive --config``: TOML with one ``[[pipeline]]`` for each stream.

The options of a pipeline are those of the function of :mod:`liftenvelope.bulk` that writes its target, by
their names, so that an option of that function is a key of the file without a line here.
"""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

from liftenvelope import bulk
from liftenvelope._checks import as_choice, as_count, as_full_text, as_seconds
from liftenvelope._secrets import without_secrets
from liftenvelope.archive._access import AccessConfig, read_access
from liftenvelope.archive._toml_tables import check_keys, check_table
from liftenvelope.bulk.access import find_target
from liftenvelope.errors import LiftEnvelopeError, UsageError
from liftenvelope.gateway.http_endpoint import check_http
from liftenvelope.gateway.toml_file import load_toml
from liftenvelope.payload import as_payload

__all__ = ["ArchiveConfig", "PipelineConfig", "read_archive_config", "with_http"]

#: Functions of bulk by the kind of the target, and the key that says where the target is.
_TARGETS: Final[Mapping[str, tuple[str, str]]] = {
    "parquet": ("to_parquet", "path"),
    "iceberg": ("to_iceberg", "table"),
    "delta": ("to_delta", "path"),
}
#: Functions that return a writer, by the kind of the table.
_WRITERS: Final = {"iceberg": "iceberg_writer", "delta": "delta_writer"}
#: Arguments of those functions that are not options of a file: the daemon sets them, or TOML can't.
_OWN: Final = {"source", "stream", "access", "progress", "on_gap", "filesystem"}
#: Keys of ``[[pipeline]]`` that are no options of those functions.
_OF_PIPELINE: Final = {
    "name", "source", "source_file", "stream", "interval", "access", "target", "maintenance",
}  # fmt: skip
#: Options about the stream, which stand in ``[[pipeline]]``; all others stand in ``[pipeline.target]``.
_OF_STREAM: Final = {
    "partitions", "start", "stop", "columns", "envelope", "on_retention", "subjects", "payload", "on_bad",
    "batch_rows", "batch_bytes",
}  # fmt: skip
#: Options that are properties, with dots in their names and texts as values.
_PROPERTIES: Final = ("catalog", "storage_options", "properties")
#: Properties of REST catalogues that pyiceberg takes as tables.
_TABLES_OF_REST: Final = {"auth", "ssl"}
#: Options that hold credentials, and the names that these have in them.
_WITH_SECRETS: Final = ("catalog", "storage_options")
_CREDENTIAL: Final = re.compile(
    r"key|secret|token|pass|pwd|credential|auth|bearer|sas|connection", re.IGNORECASE
)
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_LARGEST: Final = 1 << 20
_MOST_PIPELINES: Final = 1_000


@dataclass(frozen=True, slots=True)
class Maintenance:
    """Upkeep of a table. See :meth:`liftenvelope.bulk.TableWriter.maintain`.

    Attributes:
        interval: Seconds between two times.
        compact: Merge small files.
        expire_hours: Age in hours of versions to remove; None keeps them.
    """

    interval: float = 3600.0
    compact: bool = False
    expire_hours: int | None = None


@dataclass(frozen=True, slots=True)
class PipelineConfig:
    """One stream and its table.

    Attributes:
        name: Name in log lines and metrics.
        source: URLs of the servers.
        stream: Name of the stream.
        target: Kind of the target: ``parquet``, ``iceberg`` or ``delta``.
        location: Path or URL of the target, or the name of its table.
        interval: Seconds between the end of a run and the next one.
        options: Arguments of the function that writes the target.
        access: Connection options.
        dead_letter_access: Connection options of the dead letters; None for those of their default.
        maintenance: Upkeep of the table; None for none.
    """

    name: str
    source: str
    stream: str
    target: str
    location: str
    interval: float
    options: dict[str, Any] = field(default_factory=dict)
    access: AccessConfig = field(default_factory=AccessConfig)
    dead_letter_access: AccessConfig | None = None
    maintenance: Maintenance | None = None

    def maintain(self, wanted: Maintenance) -> float:
        """Do the upkeep of the table, unless it was done less than its interval ago.

        Args:
            wanted: The upkeep.

        Returns:
            Seconds since the last upkeep; 0 if this call did it.

        Raises:
            LiftEnvelopeError: It failed.
        """
        make = getattr(bulk, _WRITERS[self.target])
        access = self.access.open()
        with make(self.source, self.stream, self.location, access=access, **self.options) as writer:
            last: int | None = writer.maintained_at()
            # A time in the future is that of a wrong clock: the upkeep is done now, not after that time.
            if last is not None and 0 <= (age := time.time() - last) < wanted.interval:
                return age
            writer.maintain(compact=wanted.compact, expire_hours=wanted.expire_hours)
            return 0.0

    def write(self, progress: Callable[[bulk.Progress], None], on_dead_letters: Callable[[int], None]) -> Any:
        """Add what is new in the stream to the target; return what the function of bulk returns.

        Args:
            progress: As for the function of bulk.
            on_dead_letters: Called with the number of dead letters after they were written, in any thread.
        """
        options = self.options
        letter = options.get("on_bad")
        if isinstance(letter, bulk.DeadLetter):
            own = self.dead_letter_access
            letter_access = letter.access if own is None else own.open()
            letter = replace(letter, on_written=on_dead_letters, access=letter_access)
            options = {**options, "on_bad": letter}
        function = getattr(bulk, _TARGETS[self.target][0])
        access = self.access.open()
        return function(self.source, self.stream, self.location, progress=progress, access=access, **options)


@dataclass(frozen=True, slots=True)
class ArchiveConfig:
    """Settings of the daemon.

    Attributes:
        pipelines: The pipelines.
        http: Address for health and metrics; None for none.
        max_active: Pipelines that may work at the same time.
        stop_timeout: Seconds for runs to finish their files after SIGTERM.
        retry_wait: Longest pause in seconds after a failed run.
    """

    pipelines: tuple[PipelineConfig, ...]
    http: str | None = None
    max_active: int = 4
    stop_timeout: float = 30.0
    retry_wait: float = 60.0

    def shown(self) -> dict[str, Any]:
        """Return the settings for ``--check``, without passwords."""
        mine: dict[str, Any] = {
            one.name: getattr(self, one.name) for one in fields(self) if one.name != "pipelines"
        }
        return {"archive": mine, "pipeline": [_shown(one) for one in self.pipelines]}


def _shown(pipeline: PipelineConfig) -> dict[str, Any]:
    place = _TARGETS[pipeline.target][1]
    target = {"kind": pipeline.target, place: without_secrets(pipeline.location)}
    above: dict[str, Any] = {
        "name": pipeline.name,
        "source": without_secrets(pipeline.source),
        "stream": pipeline.stream,
        "interval": pipeline.interval,
    }
    for name, given in pipeline.options.items():
        value = given
        if isinstance(value, bulk.DeadLetter):
            value = {"stream": value.stream, "subject": value.subject}
        elif name in _WITH_SECRETS:
            value = _without_credentials(value)
        (above if name in _OF_STREAM else target)[name] = value
    if pipeline.maintenance is not None:
        above["maintenance"] = asdict(pipeline.maintenance)
    return {**above, "target": target}


def _without_credentials(options: Any) -> Any:
    """Return the options of a catalogue or an object store with stars for keys, passwords and tokens."""
    if isinstance(options, Mapping):
        return {name: _option(name, value) for name, value in options.items()}
    if isinstance(options, list):
        return [_without_credentials(value) for value in options]
    return without_secrets(options) if isinstance(options, str) else options


def _option(name: str, value: Any) -> Any:
    return "***" if _CREDENTIAL.search(name) else _without_credentials(value)


def read_archive_config(path: str) -> ArchiveConfig:
    """Read the file of ``liftenvelope archive --config``. Nothing is connected.

    Raises:
        UsageError: The file can't be read or is not TOML, a key is unknown, or a value is invalid. The text
            names file, table, key and value, without logins of URLs.
    """
    try:
        return _read(path)
    except UsageError as exc:
        raise UsageError(without_secrets(exc)) from None


def _read(path: str) -> ArchiveConfig:
    shown = without_secrets(path)
    found = load_toml(path, shown)
    check_keys(f"{shown}:", found, {"archive", "pipeline"})
    tables = found.get("pipeline", [])
    if not isinstance(tables, list) or not 1 <= len(tables) <= _MOST_PIPELINES:
        raise UsageError(
            f"{shown}: must have 1 to {_MOST_PIPELINES} tables [[pipeline]], got {_count(tables)}"
        )
    pipelines = tuple(_pipeline(shown, number, one) for number, one in enumerate(tables, 1))
    for one in pipelines:
        if sum(other.name == one.name for other in pipelines) > 1:
            raise UsageError(f"{shown}: [[pipeline]] name must be different in each, got {one.name!r} twice")
    return _settings(f"{shown}: [archive]", found.get("archive", {}), pipelines)


def with_http(config: ArchiveConfig, http: str | None) -> ArchiveConfig:
    """Return a configuration with another address for health and metrics; None leaves it.

    Raises:
        UsageError: The address is malformed.
    """
    check_http(http)
    return config if http is None else replace(config, http=http)


def _count(tables: object) -> object:
    return len(tables) if isinstance(tables, list) else type(tables).__name__


def _settings(where: str, table: Any, pipelines: tuple[PipelineConfig, ...]) -> ArchiveConfig:
    check_table(where, table, {one.name for one in fields(ArchiveConfig)} - {"pipelines"})
    checks: dict[str, Callable[[str, Any], Any]] = {
        "http": as_full_text,
        "max_active": as_count,
        "stop_timeout": lambda name, value: as_seconds(name, value, zero=True),
        "retry_wait": as_seconds,
    }
    given = {name: checks[name](f"{where} {name}", value) for name, value in table.items()}
    try:
        check_http(given.get("http"))
    except LiftEnvelopeError as exc:
        raise UsageError(f"{where} {exc}") from exc
    return ArchiveConfig(pipelines, **given)


def _pipeline(file: str, number: int, table: Any) -> PipelineConfig:
    name = table.get("name", str(number)) if isinstance(table, dict) else str(number)
    where = f"{file}: [[pipeline]] {name}:"
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        text = "must be up to 100 letters, digits, dots, underscores and hyphens"
        raise UsageError(f"{file}: [[pipeline]] number {number}: name {text}, got {name!r:.80}")
    check_table(where, table, _OF_PIPELINE | _OF_STREAM)
    kind, location, options = _target(where, table.get("target"))
    above = {key: value for key, value in table.items() if key in _OF_STREAM}
    _check_options(where, kind, above)
    access = read_access(f"{where} [pipeline.access]", table.get("access", {}))
    source = _source(where, table)
    try:
        find_target(source, access.options)
    except LiftEnvelopeError as exc:
        raise UsageError(f"{where} source: {exc}") from None
    stream = as_full_text(f"{where} stream", table.get("stream", ""))
    letter_access = _read_payload(where, above, source, stream, access)
    return PipelineConfig(
        name=name,
        source=source,
        stream=stream,
        target=kind,
        location=location,
        interval=as_seconds(f"{where} interval", table.get("interval", 60.0)),
        options={**above, **options},
        access=access,
        dead_letter_access=letter_access,
        maintenance=_maintenance(where, kind, table.get("maintenance")),
    )


def _read_payload(
    where: str, options: dict[str, Any], source: str, stream: str, stream_access: AccessConfig
) -> AccessConfig | None:
    """Replace a table ``on_bad`` by a dead letter, and check the payload.

    Args:
        where: Name of the pipeline, for errors.
        options: Options of the pipeline.
        source: Servers of the stream.
        stream: Name of the stream.
        stream_access: Connection options of the stream.

    Returns:
        Connection options of the dead letters; None if they have none of their own.
    """
    try:
        payload = as_payload(options.get("payload"))
    except LiftEnvelopeError as exc:
        raise UsageError(f"{where} {exc}") from exc
    table, access = options.get("on_bad", "fail"), None
    if isinstance(table, dict):
        options["on_bad"], access = _dead_letter(where, table, source, stream, stream_access)
    else:
        as_choice(f"{where} on_bad", table, ("fail", "column"))
    if payload is None and table != "fail":
        got = repr(table) if isinstance(table, str) else "a table"  # which may have passwords
        raise UsageError(f"{where} on_bad must be 'fail' without payload, got {got}")
    return access


def _dead_letter(
    where: str, table: dict[str, Any], source: str, stream: str, stream_access: AccessConfig
) -> tuple[bulk.DeadLetter, AccessConfig | None]:
    check_keys(f"{where} on_bad", table, {"stream", "subject", "source", "access"})
    as_full_text(f"{where} on_bad stream", table.get("stream", ""))
    given = {name: value for name, value in table.items() if name != "access"}
    access = read_access(f"{where} [pipeline.on_bad.access]", table["access"]) if "access" in table else None
    try:
        letter = bulk.DeadLetter(**given)
        own = letter if access is None else replace(letter, access=access.options)
        own.check(source, stream, stream_access.options)
    except LiftEnvelopeError as exc:
        raise UsageError(f"{where} on_bad: {exc}") from None
    return letter, access


def _source(where: str, table: Mapping[str, Any]) -> str:
    if ("source" in table) == ("source_file" in table):
        raise UsageError(f"{where} must have either source or source_file, a file that holds the URL")
    if "source" in table:
        return as_full_text(f"{where} source", table["source"])
    path = as_full_text(f"{where} source_file", table["source_file"])
    try:
        return Path(path).read_text()[:_LARGEST].strip()
    except (OSError, ValueError) as exc:
        # The path may be a URL with a password, by mistake.
        reason = exc.strerror if isinstance(exc, OSError) else "it is not UTF-8"
        text = f"{where} source_file must be a file that can be read, got {without_secrets(path)!r}"
        raise UsageError(f"{text}: {reason}") from None


def _target(where: str, table: Any) -> tuple[str, str, dict[str, Any]]:
    here = f"{where} [pipeline.target]"
    if not isinstance(table, dict):
        raise UsageError(f"{here} must be a table with kind, and path or table, got {type(table).__name__}")
    kind = as_choice(f"{here} kind", table.get("kind", "parquet"), _TARGETS)
    place = _TARGETS[kind][1]
    location = as_full_text(f"{here} {place}", table.get(place, ""))
    options = {key: value for key, value in table.items() if key not in ("kind", place)}
    for key in options:
        if key in _OF_STREAM:
            raise UsageError(f"{here} {key} is unknown: it is an option of [[pipeline]]")
    _check_options(here, kind, options)
    for name in _PROPERTIES:
        if isinstance(options.get(name), dict):
            options[name] = _flat(f"{where} [pipeline.target.{name}]", options[name])
    return kind, location, options


def _flat(where: str, table: Mapping[str, Any]) -> dict[str, Any]:
    """Return properties by their full names.

    TOML reads the key ``s3.region`` without quotes as a table ``s3`` with a key ``region``. The libraries
    that write tables take texts, so numbers and booleans become texts.

    Raises:
        UsageError: A property is given with and without quotes.
    """
    found: dict[str, Any] = {}
    for name, value in _named_properties(table):
        if name in found:
            raise UsageError(f'{where} {name} must be given once, got both {name} and "{name}"')
        found[name] = value
    return found


def _named_properties(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and name not in _TABLES_OF_REST:
            yield from _named_properties(value, f"{name}.")
        elif isinstance(value, bool):
            yield name, str(value).lower()
        else:
            yield name, str(value) if isinstance(value, int | float) else value


def _check_options(where: str, kind: str, options: Mapping[str, Any]) -> None:
    function = getattr(bulk, _TARGETS[kind][0], None)
    if function is None:
        raise UsageError(f"{where} kind must be a target of this version, got {kind!r}: update liftenvelope")
    parameters = inspect.signature(function).parameters.values()
    known = {one.name for one in parameters if one.kind is one.KEYWORD_ONLY}
    if any(one.kind is one.VAR_KEYWORD for one in parameters):
        known |= bulk.TableOptions.__optional_keys__
    check_keys(where, options, known - _OWN)


def _maintenance(where: str, kind: str, table: Any) -> Maintenance | None:
    if table is None:
        return None
    here = f"{where} [pipeline.maintenance]"
    if kind not in _WRITERS:
        raise UsageError(f"{here} must be for a table, {' or '.join(_WRITERS)}, got kind {kind!r}")
    check_table(here, table, {one.name for one in fields(Maintenance)})
    found = Maintenance(**table)
    as_seconds(f"{here} interval", found.interval)
    as_choice(f"{here} compact", found.compact, (True, False) if kind == "delta" else (False,))
    if found.expire_hours is not None:
        as_count(f"{here} expire_hours", found.expire_hours)
    return found

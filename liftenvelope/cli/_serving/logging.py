"""The log of ``liftenvelope serve``: levels, and lines of text or of JSON on standard error.

Only the level of liftenvelope's own loggers is an option. Other packages, such as asyncio, h2 and hpack, log
warnings and errors in either case: at lower levels they would write a line for every frame.
"""

from __future__ import annotations

import json
import logging
import math
import sys
from datetime import UTC, datetime
from typing import Any, Final

from liftenvelope.cli._serving.settings import LEVELS

__all__ = ["JsonFormatter", "TextFormatter", "start_logging"]

#: Attributes that every log record has. All others were passed as ``extra``.
_USUAL: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}
#: Control characters, which could forge a line or change the terminal, with their escapes.
_ESCAPES: Final = {
    **{code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if code != ord("\t")},
    ord("\n"): "\\n",
    ord("\r"): "\\r",
    0x2028: "\\u2028",
    0x2029: "\\u2029",
}
_DEEPEST: Final = 4


class TextFormatter(logging.Formatter):
    """Formats a record as one line of text, followed by its traceback if it has one.

    Args:
        worker: Number of the worker that this process is; None for none.
    """

    def __init__(self, worker: int | None = None) -> None:
        named = "" if worker is None else f"worker {worker}: "
        super().__init__(f"%(asctime)s %(levelname)s {named}%(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Return the line, with control characters escaped: texts may quote what a peer has sent."""
        return super().formatMessage(record).translate(_ESCAPES)


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object on one line.

    The object has ``time`` (RFC 3339, UTC), ``level``, ``logger`` and ``message``, then the record's extras
    by their names, and ``exception`` with the traceback if there is one.

    Args:
        worker: Number of the worker that this process is, a field of every line; None for none.
    """

    def __init__(self, worker: int | None = None) -> None:
        super().__init__()
        self._more = {} if worker is None else {"worker": worker}

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        moment = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, Any] = {
            "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **self._more,
        }
        for name, value in vars(record).items():
            if name not in _USUAL:
                line.setdefault(name, _plain(value))
        if record.exc_info and record.exc_info[0] is not None:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def _plain(value: object, depth: int = 0) -> Any:
    """Return a value that JSON can hold."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict) and depth < _DEEPEST:
        return {str(key): _plain(one, depth + 1) for key, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset) and depth < _DEEPEST:
        return [_plain(one, depth + 1) for one in value]
    return str(value)


def start_logging(level: str, form: str, nats_level: str, worker: int | None = None) -> None:
    """Write the log and the warnings of this process to standard error.

    Args:
        level: Level of liftenvelope's loggers, one of :data:`~liftenvelope.cli._serving.settings.LEVELS`.
        form: ``text`` or ``json``.
        nats_level: Level of the lines of the embedded nats-server.
        worker: Number of the worker that this process is. Default None: it is none.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(worker) if form == "json" else TextFormatter(worker))
    logging.basicConfig(handlers=[handler])
    logging.captureWarnings(True)
    logging.getLogger("liftenvelope").setLevel(LEVELS[level])
    logging.getLogger("liftenvelope.gateway.nats").setLevel(LEVELS[nats_level])

"""Configuration of ``liftenvelope serve``: each value with its origin, and the ``Serving`` that they make."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from liftenvelope._checks import is_encodable
from liftenvelope._secrets import without_secrets
from liftenvelope.cli._serving.config_file import LIMITS, ConfigFile
from liftenvelope.cli._serving.limits import limit_variable, parse_limits
from liftenvelope.cli._serving.settings import PREFIX, SETTINGS
from liftenvelope.errors import UsageError

if TYPE_CHECKING:
    from liftenvelope.gateway.limits import Limits
    from liftenvelope.gateway.serving import Serving

__all__ = ["Configuration"]

_log: Final = logging.getLogger("liftenvelope.cli")
_ORIGINS: Final = {
    ParameterSource.COMMANDLINE: "option",
    ParameterSource.ENVIRONMENT: "environment",
    ParameterSource.DEFAULT_MAP: "file",
}
#: Settings that are about the server of ``--nats``, and the reason where it is not obvious.
#: Tables of the file that ``--check`` prints, in order.
_TABLES: Final = ("nats", "gateway", "monitor", "log")
_NEED_NATS: Final = {
    "nats_creds": "",
    "nats_nkey_seed": "",
    "nats_tls_ca": "",
    "nats_tls_cert": "",
    "nats_tls_key": "",
    "nats_tls_server_name": "",
    "nats_inbox_prefix": "",
    "nats_domain": "",
    "nats_log": ": of a server of its own the gateway has the log",
}
_NAMED: Final = {setting.name: setting for setting in SETTINGS}


@dataclass(frozen=True, slots=True)
class _Line:
    """One value of the configuration, to print."""

    table: str
    entry: str
    value: Any
    origin: str
    shown: str


class Configuration:
    """Values of all settings, each with its origin.

    Args:
        context: Context of the command, which knows the origins.
        options: Arguments of the command.

    Attributes:
        file: File of ``--config``; None for none.
        limits: Limits on clients.

    Raises:
        click.BadParameter: A ``--limit`` is invalid.
        UsageError: A limit of the environment or of the file is invalid.
    """

    def __init__(self, context: click.Context, options: Mapping[str, Any]) -> None:
        self.file: ConfigFile | None = options["config"]
        self.limits: Limits
        self.limits, self._limit_origins = parse_limits(
            options["limits"], options["max_message"], environment=os.environ, file=self.file
        )
        self._values = {name: options[name] for name in _NAMED}
        sources = {name: context.get_parameter_source(name) for name in _NAMED}
        self._origins = {
            name: _ORIGINS.get(source, "default") if source is not None else "default"
            for name, source in sources.items()
        }

    def warn_of_unknown_variables(self) -> None:
        """Log the environment variables that look like settings and are none.

        They are no errors: Kubernetes sets such variables, for services of that name.
        """
        known = {setting.variable for setting in SETTINGS} | {f"{PREFIX}CONFIG"}
        known |= {limit_variable(one.name) for one in fields(self.limits)}
        for name in sorted(name for name in os.environ if name.startswith(PREFIX) and name not in known):
            near = get_close_matches(name, known, 1)
            advice = f": did you mean {near[0]}?" if near else ""
            _log.warning("the environment variable %s is unknown and has no effect%s", name, advice)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def where(self, name: str) -> str:
        """Return how a setting was given: its option, its environment variable, or its key in the file."""
        setting, origin = _NAMED[name], self._origins[name]
        if origin == "file" and self.file is not None:
            return f"{self.file.path}: [{setting.table}] {setting.entry}"
        return setting.variable if origin == "environment" else setting.option

    def serving(self) -> Serving:
        """Return the settings of the gateway, checked. Files are read, and nothing is started or connected.

        Raises:
            MissingExtraError: A setting needs a package that is not installed.
            UsageError: Settings contradict each other, a value is invalid, or a file can't be read.
        """
        from liftenvelope.gateway.serving import Serving
        from liftenvelope.gateway.supervisor import check_ports

        values = self._converted()
        places: dict[str, dict[str, Any]] = {"": {}, "gateway": {"limits": self.limits}, "connect": {}}
        for setting in SETTINGS:
            targets = setting.targets.split()
            given = values[setting.name]
            for target, value in zip(
                targets, given if len(targets) > 1 else [given] * len(targets), strict=True
            ):
                place, _, name = target.rpartition(".")
                if value is not None:
                    places[place][name] = value
        serving = Serving(**places[""], gateway=places["gateway"], connect=places["connect"])
        check_ports(serving, self["workers"])
        return serving

    def _converted(self) -> dict[str, Any]:
        """Return the values as the targets take them."""
        url = self._nats_url()
        self._check_combinations(url)
        data_dir = self["data_dir"]
        if self["advertise"] is not None:
            self._address("advertise")
        return self._values | {
            "nats": url,
            "data_dir": None if url is not None else _data_dir(data_dir),
            "listen": self._address("listen", any_port=True),
            "nats_listen": self._address("nats_listen"),
            "nats_log_level": self["nats_log_level"] == "debug",
        }

    def _check_combinations(self, url: str | None) -> None:
        if url is not None and self["data_dir"] is not None:
            both = f"{self._nats()} and {self.where('data_dir')}"
            raise UsageError(f"{both} exclude each other: a server that runs has its own folder")
        if url is not None and self["nats_login"]:
            text = f"{self.where('nats_login')} is for the server that the gateway starts, not for --nats"
            raise UsageError(text)
        for name, reason in _NEED_NATS.items():
            if url is None and self[name] is not None:
                raise UsageError(f"{self.where(name)} needs --nats{reason}")
        if self["nats_creds"] is not None and self["nats_nkey_seed"] is not None:
            both = f"{self.where('nats_creds')} and {self.where('nats_nkey_seed')}"
            raise UsageError(f"{both} exclude each other: a credentials file has a seed of its own")
        if self["policy"] is not None and self["tls_client_ca"] is None:
            text = f"{self.where('policy')} needs --tls-client-ca"
            raise UsageError(f"{text}: clients are known by the names in their certificates")

    def _nats(self) -> str:
        return self.where("nats" if self["nats"] is not None else "nats_url_file")

    def _nats_url(self) -> str | None:
        url, path = self["nats"], self["nats_url_file"]
        if url is not None and path is not None:
            raise UsageError(f"{self.where('nats')} and {self.where('nats_url_file')} exclude each other")
        if url == "":
            raise UsageError(f"{self.where('nats')} must be a URL such as nats://host:4222, got ''")
        if path is None:
            return str(url) if url is not None else None
        where = self.where("nats_url_file")
        try:
            found = Path(path).read_text("utf-8").strip()
        except OSError as exc:
            # The path may be a URL with a password. The OSError has the path too, so it is not chained.
            text = f"{where} must be a file that can be read, got {without_secrets(path)!r}: {exc.strerror}"
            raise UsageError(text) from None
        except UnicodeDecodeError as exc:
            raise UsageError(f"{where} must be a file in UTF-8, got {path!r}: {exc.reason}") from exc
        if not found:
            raise UsageError(f"{where} must hold a URL such as nats://host:4222, {path!r} is empty")
        return found

    def _address(self, name: str, *, any_port: bool = False) -> tuple[str, int]:
        """Parse host and port of a setting; port 0 (any free port) is valid only with ``any_port``."""
        from liftenvelope.rpc.address import parse_address

        try:
            return parse_address(self[name], any_port=any_port)
        except UsageError as exc:
            raise UsageError(f"{self.where(name)}: {exc}") from exc

    def explain(self, error: UsageError) -> str:
        """Return the text of an error that names options, variables or keys in place of arguments."""
        text = str(error)
        for argument in error.arguments:
            # A path in the replacement may have backslashes, which re.sub would read as escapes.
            source = self._source(argument).replace("\\", "\\\\")
            text = re.sub(rf"\b{re.escape(argument)}\b", source, text, count=1)
        return text

    def _source(self, argument: str) -> str:
        for setting in SETTINGS:
            if argument in (names := list(setting.arguments())):
                where = self._nats() if setting.name == "nats" else self.where(setting.name)
                return f"{where}: {argument}" if len(names) > 1 else where
        return argument

    # What --check prints

    def as_toml(self, serving: Serving) -> str:
        """Return the configuration as a file for ``--config``, with the origin of each value as a comment."""
        lines, table = [], ""
        rows = list(self._lines(serving))
        written = [_assigned(one) for one in rows]
        width = min(max(map(len, written)), 60)
        for one, text in zip(rows, written, strict=True):
            if one.table != table:
                lines += ["", f"[{one.table}]"]
                table = one.table
            lines.append(
                f"{text:{width}}  # {one.origin}{f': {one.shown}' if one.value is None and one.shown else ''}"
            )
        return "\n".join(lines[1:])

    def as_json(self, serving: Serving) -> str:
        """Return the configuration as a JSON object."""
        tables: dict[str, dict[str, Any]] = {}
        for one in self._lines(serving):
            tables.setdefault(one.table, {})[one.entry] = {"value": one.value, "origin": one.origin}
        path = None if self.file is None else self.file.path
        return json.dumps({"config": path, "settings": tables}, indent=1)

    def _lines(self, serving: Serving) -> Iterator[_Line]:
        for setting in sorted(
            SETTINGS, key=lambda one: ("nats", "gateway", "monitor", "log").index(one.table)
        ):
            value, origin = self[setting.name], self._origins[setting.name]
            if setting.name == "data_dir":
                value = serving.data_dir
            elif setting.name == "nats_login" and value != serving.needs_nats_login:
                value, origin = serving.needs_nats_login, "policy"
            if isinstance(value, str) and ("://" in value or setting.name == "nats"):
                value = without_secrets(value)
            yield _Line(setting.table, setting.entry, value, origin, setting.shown)
        for one in fields(self.limits):
            value, origin = getattr(self.limits, one.name), self._limit_origins.get(one.name, "default")
            yield _Line(LIMITS, one.name, list(value) if isinstance(value, tuple) else value, origin, "")


def _assigned(line: _Line) -> str:
    if line.value is None:
        return f"# {line.entry} ="
    value = line.value
    is_text = isinstance(value, str | list)
    written = json.dumps(value, ensure_ascii=not is_encodable(str(value))) if is_text else str(value)
    return f"{line.entry} = {written.lower() if isinstance(value, bool) else written}"


def _data_dir(given: str | None) -> str:
    from liftenvelope.gateway.serving import data_folder

    if given is None:
        return str(data_folder())
    # Path("") is the current folder.
    return str(Path(given)) if given else given

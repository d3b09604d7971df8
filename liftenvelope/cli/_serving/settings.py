"""The settings of ``liftenvelope serve`` as one table: options, variables, keys of the file, targets.

To add a setting, add a row to :data:`SETTINGS`. The row makes the option, its environment variable, its key
in the file of ``--config`` and its line of ``--check``, and it passes the value to its targets.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from click.core import ParameterSource

from liftenvelope.cli._options.places import complete_path

__all__ = ["LEVELS", "PREFIX", "SETTINGS", "Setting", "as_options"]

#: Beginning of the environment variables. Names such as LIFTENVELOPE_PORT are set by Kubernetes for a service
#: ``liftenvelope``, so the prefix has the name of the command as well.
PREFIX: Final = "LIFTENVELOPE_SERVE_"
#: Levels of the log options, as levels of ``logging``.
LEVELS: Final = {
    "off": logging.CRITICAL + 1,
    "error": logging.ERROR,
    "warn": logging.WARNING,
    "info": logging.INFO,
    "debug": logging.DEBUG,
}
_SECONDS: Final = click.FloatRange(min=0, min_open=True)
_F = TypeVar("_F", bound=Callable[..., Any])

if TYPE_CHECKING:
    _ParamType = click.ParamType[Any]
else:  # generic only in new versions of click
    _ParamType = click.ParamType


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of ``liftenvelope serve``.

    Attributes:
        option: Option of the command line.
        key: Table and key in the file of ``--config``.
        targets: Where the value goes: a field of ``Serving``, ``gateway.NAME`` for an argument of
            ``Gateway``, or ``connect.NAME`` for one of ``nats.connect``. Separated by blanks; empty for the
            command itself.
        help: Help text.
        metavar: Placeholder of the value. Empty for a switch and for choices.
        kind: Type of the value.
        default: Default of the option; None for none.
        shown: Text in place of a default of None.
    """

    option: str
    key: str
    targets: str
    help: str
    metavar: str = ""
    kind: _ParamType | type[str] | type[bool] = str
    default: Any = None
    shown: str = ""

    @property
    def name(self) -> str:
        """Name of the command's argument, such as ``data_dir`` for ``--data-dir``."""
        return self.option.removeprefix("--").replace("-", "_")

    @property
    def variable(self) -> str:
        """Name of the environment variable."""
        return PREFIX + self.name.upper()

    @property
    def table(self) -> str:
        """Table in the file."""
        return self.key.partition(".")[0]

    @property
    def entry(self) -> str:
        """Key in its table."""
        return self.key.partition(".")[2]

    def arguments(self) -> Iterator[str]:
        """Yield the last names of the targets: error texts use these."""
        for target in self.targets.split():
            yield target.rpartition(".")[2]


#: Ordered as in the help.
SETTINGS: Final = (
    Setting(
        "--nats", "nats.url", "nats_url", "Running NATS servers with JetStream, separated by commas.",
        "URL", shown="start one",
    ),
    Setting(
        "--nats-url-file", "nats.url_file", "",
        "File that holds the URL of --nats, to keep a password off the command line.", "FILE",
    ),
    Setting(
        "--nats-creds", "nats.creds", "connect.user_credentials",
        "Credentials file for the server of --nats.", "FILE",
    ),
    Setting(
        "--nats-nkey-seed", "nats.nkey_seed", "connect.nkeys_seed",
        "File with the seed of an nkey, for the server of --nats.", "FILE",
    ),
    Setting(
        "--nats-tls-ca", "nats.tls_ca", "nats_tls_ca",
        "Authority of the certificates of --nats (PEM).", "FILE", shown="those of the system",
    ),
    Setting(
        "--nats-tls-cert", "nats.tls_cert", "nats_tls_cert",
        "Client certificate for the server of --nats (PEM).", "FILE",
    ),
    Setting(
        "--nats-tls-key", "nats.tls_key", "nats_tls_key", "Key of that certificate (PEM).", "FILE",
    ),
    Setting(
        "--nats-tls-server-name", "nats.tls_server_name", "nats_tls_server_name",
        "Name that the certificates of --nats must have.", "NAME", shown="the host of the URL",
    ),
    Setting(
        "--nats-inbox-prefix", "nats.inbox_prefix", "connect.inbox_prefix", "Prefix of inboxes on NATS.",
        "PREFIX", shown="_INBOX",
    ),
    Setting(
        "--nats-log", "nats.log", "gateway.nats_log",
        "Log file of the server of --nats, to warn of messages that it drops.", "FILE",
    ),
    Setting(
        "--nats-domain", "nats.domain", "gateway.domain", "JetStream domain.",
        "NAME", shown="the domain of the server",
    ),
    Setting(
        "--data-dir", "nats.data_dir", "data_dir",
        "Folder for the streams of the NATS server that is started.", "DIR", shown="one per user",
    ),
    Setting(
        "--nats-listen", "nats.listen", "nats_host nats_port",
        "Address of the NATS server that is started.", "HOST:PORT", default="127.0.0.1:4222",
    ),
    Setting(
        "--nats-login", "nats.login", "nats_login",
        "Publishers must log in to the NATS server that is started. With --policy they always must.",
        kind=bool, default=False,
    ),
    Setting(
        "--nats-log-level", "nats.log_level", "nats_debug", "Log level of the NATS server that is started.",
        kind=click.Choice(list(LEVELS)), default="warn",
    ),
    Setting(
        "--listen", "gateway.listen", "gateway.host gateway.port",
        "Address for clients of the Liftbridge API; port 0 takes a free port.",
        "HOST:PORT", default="127.0.0.1:9292",
    ),
    Setting(
        "--http", "gateway.http", "http", "Address for /healthz, /readyz and /metrics by HTTP.",
        "HOST:PORT", shown="no HTTP",
    ),
    Setting(
        "--advertise", "gateway.advertise", "gateway.advertise", "Address to tell clients.",
        "HOST:PORT", shown="the address of --listen",
    ),
    Setting(
        "--id", "gateway.id", "gateway.id", "Id of this gateway among the brokers.", "ID", shown="a new id",
    ),
    Setting(
        "--workers", "gateway.workers", "",
        "Gateways to run, each in a process of its own with the next port.",
        "N", click.IntRange(1, 64), default=1,
    ),
    Setting(
        "--replicas", "gateway.replicas", "gateway.replicas",
        "Number of NATS servers that keep the gateway's own records.",
        "N", click.IntRange(1, 5), default=1,
    ),
    Setting(
        "--tls-cert", "gateway.tls_cert", "tls_cert", "Certificate of the gateway (PEM).", "FILE",
    ),
    Setting(
        "--tls-key", "gateway.tls_key", "tls_key", "Key of the certificate (PEM).", "FILE",
    ),
    Setting(
        "--tls-client-ca", "gateway.tls_client_ca", "tls_client_ca",
        "Authority whose certificates clients must show (PEM).", "FILE",
    ),
    Setting(
        "--policy", "gateway.policy", "gateway.policy_file",
        "Policy file: permissions of clients, by the common names of their certificates.", "FILE",
    ),
    Setting(
        "--encrypted", "gateway.encrypted", "gateway.encrypted",
        "The NATS server encrypts what it stores.", kind=bool, default=False,
    ),
    Setting(
        "--broker-ttl", "gateway.broker_ttl", "gateway.broker_ttl",
        "Seconds of silence after which the other gateways consider this one dead.",
        "SECONDS", _SECONDS, default=3.0,
    ),
    Setting(
        "--ack-timeout", "gateway.ack_timeout", "gateway.ack_timeout",
        "Seconds to wait for JetStream's ack if the client sets no deadline.",
        "SECONDS", _SECONDS, default=5.0,
    ),
    Setting(
        "--consumer-timeout", "gateway.consumer_timeout", "gateway.consumer_timeout",
        "Seconds of silence after which a member of a consumer group is removed.",
        "SECONDS", _SECONDS, default=15.0,
    ),
    Setting(
        "--coordinator-timeout", "gateway.coordinator_timeout", "gateway.coordinator_timeout",
        "Seconds of silence after which clients report a coordinator of groups.",
        "SECONDS", _SECONDS, default=15.0,
    ),
    Setting(
        "--drain", "gateway.drain", "drain",
        "Seconds to finish publishes and send their acks before stopping.",
        "SECONDS", click.FloatRange(min=0), default=10.0,
    ),
    Setting(
        "--monitor", "monitor.enabled", "", "Serve the monitor's live page on /monitor of --http.",
        kind=bool, default=False,
    ),
    Setting(
        "--monitor-allow-changes", "monitor.allow_changes", "",
        "Let the page pause and resume streams and make them read-only.", kind=bool, default=False,
    ),
    Setting(
        "--monitor-payloads", "monitor.payloads", "", "Show payloads, keys and headers on the page.",
        kind=bool, default=True,
    ),
    Setting(
        "--monitor-interval", "monitor.interval", "", "Seconds between two samples for the page.",
        "SECONDS", _SECONDS, default=2.0,
    ),
    Setting(
        "--monitor-max-pages", "monitor.max_pages", "", "Pages that may be open at once.",
        "N", click.IntRange(1), default=32,
    ),
    Setting(
        "--monitor-token-file", "monitor.token_file", "",
        "File that holds the token that the page asks for; required unless --http is loopback.", "FILE",
    ),
    Setting(
        "--monitor-user-header", "monitor.user_header", "",
        "Header of a reverse proxy that logs users in, in place of the token.", "NAME",
    ),
    Setting(
        "--monitor-hosts", "monitor.hosts", "",
        "Host names in the page's URL, besides localhost and IP addresses, separated by commas.", "NAMES",
    ),
    Setting(
        "--monitor-tls-ca", "monitor.tls_ca", "",
        "Authority of the gateways' certificates, for the page's own connection (PEM).",
        "FILE", shown="the certificate of --tls-cert",
    ),
    Setting(
        "--monitor-tls-cert", "monitor.tls_cert", "",
        "Client certificate of the page's own connection (PEM).", "FILE",
    ),
    Setting(
        "--monitor-tls-key", "monitor.tls_key", "", "Key of that certificate (PEM).", "FILE",
    ),
    Setting(
        "--log-level", "log.level", "",
        "Log level of liftenvelope. The log goes to standard error.",
        kind=click.Choice(list(LEVELS)), default="info",
    ),
    Setting(
        "--log-format", "log.format", "", "Lines of text, or one JSON object per line.",
        kind=click.Choice(["text", "json"]), default="text",
    ),
)  # fmt: skip


class _SettingOption(click.Option):
    """Option whose errors name the environment variable if the value comes from there."""

    def get_error_hint(self, ctx: click.Context | None) -> str:
        source = None if ctx is None else ctx.get_parameter_source(self.name or "")
        return f"'{self.envvar if source is ParameterSource.ENVIRONMENT else self.opts[0]}'"


def as_options(command: _F) -> _F:
    """Decorate a command with an option for each setting."""
    for setting in reversed(SETTINGS):
        declared = (
            f"{setting.option}/--no-{setting.name.replace('_', '-')}"
            if setting.kind is bool
            else setting.option
        )
        command = click.option(
            declared,
            setting.name,
            cls=_SettingOption,
            type=setting.kind,
            default=setting.default,
            metavar=setting.metavar or None,
            shell_complete=complete_path if setting.metavar in ("FILE", "DIR") else None,
            help=setting.help,
            show_default=setting.shown or setting.default is not None,
            envvar=setting.variable,
            show_envvar=True,
        )(command)
    return command

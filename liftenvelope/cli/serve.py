"""``liftenvelope serve``: runs the gateway, with its own nats-server or on a running one."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import sys
from pathlib import Path
from typing import Any

import click

from liftenvelope.cli._limits import parse_limits
from liftenvelope.errors import LiftEnvelopeError, UsageError

_PORT = 9292
_NATS_PORT = 4222
_DRAIN = 10.0
_LEVELS = {
    "off": logging.CRITICAL + 1,
    "error": logging.ERROR,
    "warn": logging.WARNING,
    "info": logging.INFO,
    "debug": logging.DEBUG,
}
#: Options by argument, for error texts.
_FLAGS = {
    "advertise": "--advertise",
    "domain": "--nats-domain",
    "drain": "--drain",
    "inbox_prefix": "--nats-inbox-prefix",
    "nats_log": "--nats-log",
    "policy_file": "--policy",
    "port": "--listen: port",
    "replicas": "--replicas",
    "tls_cert": "--tls-cert",
    "tls_client_ca": "--tls-client-ca",
    "tls_key": "--tls-key",
    "user_credentials": "--nats-creds",
}


@click.command()
@click.option(
    "--nats",
    "nats_url",
    metavar="URL",
    help="Running NATS servers with JetStream, separated by commas.  [default: start one]",
)
@click.option(
    "--nats-url-file",
    metavar="FILE",
    help="File that holds the URL of --nats, to keep a password off the command line.",
)
@click.option("--nats-creds", metavar="FILE", help="Credentials file for the server of --nats.")
@click.option("--nats-inbox-prefix", metavar="PREFIX", help="Prefix of inboxes on NATS.  [default: _INBOX]")
@click.option(
    "--nats-log", metavar="FILE", help="Log file of the server of --nats, to warn of messages that it drops."
)
@click.option("--nats-domain", metavar="NAME", help="JetStream domain.  [default: the domain of the server]")
@click.option(
    "--data-dir",
    metavar="DIR",
    help="Folder for the streams of the NATS server that is started.  [default: one per user]",
)
@click.option(
    "--nats-listen",
    default=f"127.0.0.1:{_NATS_PORT}",
    show_default=True,
    metavar="HOST:PORT",
    help="Address of the NATS server that is started.",
)
@click.option(
    "--nats-login",
    is_flag=True,
    help="Publishers must log in to the NATS server that is started.  [default: only with --policy]",
)
@click.option(
    "--nats-log-level",
    type=click.Choice(list(_LEVELS)),
    default="warn",
    show_default=True,
    help="Log level of the NATS server that is started.",
)
@click.option(
    "--listen",
    default=f"127.0.0.1:{_PORT}",
    show_default=True,
    metavar="HOST:PORT",
    help="Address for clients of the Liftbridge API; port 0 takes a free port.",
)
@click.option(
    "--advertise", metavar="HOST:PORT", help="Address to tell clients.  [default: the address of --listen]"
)
@click.option(
    "--id", "broker_id", metavar="ID", help="Id of this gateway among the brokers.  [default: a new id]"
)
@click.option(
    "--replicas",
    type=click.IntRange(1, 5),
    default=1,
    show_default=True,
    help="Number of NATS servers that keep the gateway's own records.",
)
@click.option("--tls-cert", metavar="FILE", help="Certificate of the gateway (PEM).")
@click.option("--tls-key", metavar="FILE", help="Key of the certificate (PEM).")
@click.option("--tls-client-ca", metavar="FILE", help="Authority whose certificates clients must show (PEM).")
@click.option(
    "--policy",
    metavar="FILE",
    help="Policy file: permissions of clients, by the common names of their certificates.",
)
@click.option(
    "--max-message",
    type=click.IntRange(min=1),
    metavar="BYTES",
    help="Largest envelope that clients may publish by gRPC.  [default: 1048576]",
)
@click.option(
    "--limit",
    "limits",
    multiple=True,
    metavar="NAME=VALUE",
    help="Limit on clients, such as max_connections=100; may be repeated. docs/limits.md lists all.",
)
@click.option("--encrypted", is_flag=True, help="The NATS server encrypts what it stores.")
@click.option(
    "--drain",
    type=click.FloatRange(min=0),
    default=_DRAIN,
    show_default=True,
    metavar="SECONDS",
    help="Seconds to finish publishes and send their acks before stopping.",
)
def serve(**options: Any) -> None:
    """Serve the Liftbridge API, with every stream in JetStream.

    Without --nats it starts a nats-server of its own, for this machine alone. Ctrl-C or SIGTERM stops both,
    after publishes under way have their acks; a second one stops them at once.
    """
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("liftenvelope.gateway.nats").setLevel(_LEVELS[options["nats_log_level"]])
    try:
        serving = _serving(options)
        asyncio.run(_serve(serving))
    except UsageError as exc:
        raise click.UsageError(_with_flags(exc)) from exc
    except LiftEnvelopeError as exc:
        raise click.ClickException(str(exc)) from exc


def _with_flags(error: UsageError) -> str:
    """Return the text of an error, with the options in place of the arguments that it names."""
    text = str(error)
    for name in error.arguments:
        text = re.sub(rf"\b{re.escape(name)}\b", _FLAGS.get(name, name), text, count=1)
    return text


def _serving(options: dict[str, Any]) -> Any:
    from liftenvelope.gateway.serving import Serving, data_folder

    url, data_dir = _nats_url(options), options["data_dir"]
    if url is not None and data_dir is not None:
        raise UsageError("--nats and --data-dir exclude each other: a server that runs has its own folder")
    if url is not None and options["nats_login"]:
        raise UsageError("--nats-login is for the server that the gateway starts, not for --nats")
    if url is None and options["nats_creds"] is not None:
        raise UsageError("--nats-creds needs --nats")
    if url is None and options["nats_inbox_prefix"] is not None:
        raise UsageError("--nats-inbox-prefix needs --nats")
    if url is None and options["nats_domain"] is not None:
        raise UsageError("--nats-domain needs --nats")
    if options["policy"] is not None and options["tls_client_ca"] is None:
        raise UsageError(
            "--policy needs --tls-client-ca: clients are known by the names in their certificates"
        )
    if url is None and options["nats_log"] is not None:
        raise UsageError("--nats-log needs --nats: of a server of its own the gateway has the log")
    host, port = _address("--listen", options["listen"], any_port=True)
    nats_host, nats_port = _address("--nats-listen", options["nats_listen"])
    if options["advertise"] is not None:
        _address("--advertise", options["advertise"])
    gateway = {
        "host": host,
        "port": port,
        "advertise": options["advertise"],
        "id": options["broker_id"],
        "replicas": options["replicas"],
        "domain": options["nats_domain"],
        "nats_log": options["nats_log"],
        "policy_file": options["policy"],
        "encrypted": options["encrypted"],
        "limits": parse_limits(options["limits"], options["max_message"]),
    }
    connect = {"user_credentials": options["nats_creds"], "inbox_prefix": options["nats_inbox_prefix"]}
    return Serving(
        nats_url=url,
        data_dir=None if url is not None else str(data_folder() if data_dir is None else Path(data_dir)),
        nats_host=nats_host,
        nats_port=nats_port,
        nats_login=options["nats_login"],
        nats_debug=options["nats_log_level"] == "debug",
        connect={name: value for name, value in connect.items() if value is not None},
        tls_cert=options["tls_cert"],
        tls_key=options["tls_key"],
        tls_client_ca=options["tls_client_ca"],
        gateway={name: value for name, value in gateway.items() if value is not None},
        drain=options["drain"],
    )


def _nats_url(options: dict[str, Any]) -> str | None:
    url, path = options["nats_url"], options["nats_url_file"]
    if path is None:
        return str(url) if url is not None else None
    if url is not None:
        raise UsageError("--nats and --nats-url-file exclude each other")
    try:
        found = Path(path).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise UsageError(f"--nats-url-file must be a file that can be read, got {path!r}: {exc}") from exc
    if not found:
        raise UsageError(f"--nats-url-file must hold a URL such as nats://host:4222, {path!r} is empty")
    return found


def _address(option: str, text: str, *, any_port: bool = False) -> tuple[str, int]:
    """Parse host and port of an option; port 0 (any free port) is valid only with ``any_port``."""
    from liftenvelope.rpc.address import parse_address

    host, _, port = text.rpartition(":")
    try:
        if any_port and port == "0":
            return parse_address(f"{host}:1").host, 0
        address = parse_address(text)
    except UsageError as exc:
        raise UsageError(f"{option}: {exc}") from exc
    return address.host, address.port


async def _serve(serving: Any) -> None:
    from liftenvelope.gateway.serving import serve as run

    def say(gateway: Any, url: str) -> None:
        where = f" in {serving.data_dir}{os.sep}jetstream" if serving.data_dir is not None else ""
        click.echo(f"serving the Liftbridge API on {gateway.address}, with the streams of {url}{where}")

    await run(serving, say)

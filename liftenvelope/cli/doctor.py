"""``liftenvelope doctor``: checks versions, connections, limits and configurations that lose data."""

from __future__ import annotations

import platform
import sys
import time
from collections import Counter
from collections.abc import Coroutine
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit

import click

from liftenvelope.cli._checks.answers import Servers, permitted
from liftenvelope.cli._checks.connection import (
    ClockReading,
    clock_finding,
    encryption_finding,
    nats_py_finding,
    nats_server_finding,
    skipped,
)
from liftenvelope.cli._checks.findings import Finding, FindingStatus, Rule, RuleBook
from liftenvelope.cli._checks.jetstream import account_findings, consumer_rules, stream_rules
from liftenvelope.cli._checks.liftbridge import (
    broker_findings,
    liftbridge_clock_finding,
    partition_findings,
)
from liftenvelope.cli._checks.server import as_ns, buffers_finding
from liftenvelope.cli._connecting.servers import CommandServers, json_option, on_servers
from liftenvelope.cli._output.terminal import counted, echo_json, shown
from liftenvelope.errors import (
    CallTimeoutError,
    LiftEnvelopeError,
    NoJetStreamError,
    PermissionDeniedError,
    ServerError,
    StreamNotFoundError,
    TransportError,
)

if TYPE_CHECKING:
    from nats.aio.client import Client as NatsClient

    from liftenvelope.jetstream import JetStream

__all__ = ["doctor"]

_Answer = TypeVar("_Answer")
#: Streams that are looked at, and streams whose consumers are listed, one request each.
_MOST_STREAMS: Final = 20_000
_MOST_LISTINGS: Final = 500
#: Leaders of streams whose clocks are compared.
_MOST_CLOCKS: Final = 10
_OTHER_USER: Final = "run doctor also with a user of the account that has the streams"
_SILENT: Final = Rule[str](
    check="streams that do not answer",
    test=lambda _: "",
    expected="an answer for each stream",
    remedy="start the servers that hold the replicas",
    status=FindingStatus.PROBLEM,
)
#: Subjects of the steps of a check, for findings about a step that fails.
_TITLES: Final = {
    "_limits": "account",
    "_check_streams": "streams",
    "_check_consumers": "consumers",
    "_clocks": "clocks",
}
_STYLES: Final = {
    FindingStatus.OK: "green",
    FindingStatus.WARNING: "yellow",
    FindingStatus.PROBLEM: "red",
    FindingStatus.SKIPPED: "bright_black",
}


@click.command()
@json_option
@on_servers
async def doctor(servers: CommandServers, as_json: bool) -> None:
    """Check the servers, the connection and settings that lose data; nothing is changed.

    The exit code is 1 if a problem was found.
    """
    findings = _own_findings()
    try:
        findings += await (_check_nats(servers) if servers.is_jetstream else _check_liftbridge(servers))
    except (TransportError, PermissionDeniedError, CallTimeoutError) as exc:
        findings.append(_failed("connection", exc))
    counts = Counter(str(one.status) for one in findings)
    if as_json:
        echo_json({"findings": findings, **{str(one): counts[str(one)] for one in FindingStatus}})
    else:
        _show(findings)
    if problems := counts[FindingStatus.PROBLEM]:
        raise LiftEnvelopeError(f"{counted(problems, 'problem')} found")


def _show(findings: list[Finding]) -> None:
    width = max(len(one) for one in FindingStatus)
    for one in findings:
        status = click.style(f"{one.status:<{width}}", fg=_STYLES[one.status])
        click.echo(f"{status}  {shown(one.check)}: {shown(one.got)}")
        if one.status in (FindingStatus.WARNING, FindingStatus.PROBLEM) and one.expected:
            click.echo(f"{'':{width}}    expected: {shown(one.expected)}")
        if one.remedy:
            click.echo(f"{'':{width}}    remedy: {shown(one.remedy)}")
    counts = Counter(one.status for one in findings)
    click.echo(", ".join(_counted(counts[one], one) for one in FindingStatus))


def _counted(number: int, status: FindingStatus) -> str:
    is_noun = status in (FindingStatus.WARNING, FindingStatus.PROBLEM)
    return counted(number, status) if is_noun else f"{number:,} {status}"


def _failed(check: str, error: Exception, remedy: str = "") -> Finding:
    text = str(error) or type(error).__name__
    return Finding(status=FindingStatus.PROBLEM, check=check, got=text, expected="an answer", remedy=remedy)


def _denied(what: str, error: PermissionDeniedError) -> Finding:
    return Finding(
        status=FindingStatus.WARNING,
        check=f"permission to read {what}",
        got=str(error),
        expected="granted",
        remedy="allow the user this request, or run doctor as an administrator",
    )


def _own_findings() -> list[Finding]:
    from liftenvelope._native import BACKEND
    from liftenvelope._version import __version__

    found = f"{__version__}, Python {platform.python_version()} on {sys.platform}"
    is_fast = BACKEND == "cython"
    return [
        Finding(status=FindingStatus.OK, check="liftenvelope", got=found),
        nats_py_finding(version("nats-py")),
        Finding(
            status=FindingStatus.OK if is_fast else FindingStatus.WARNING,
            check="extensions",
            got="loaded" if is_fast else "not loaded: the slower twins in Python are in use",
            expected="loaded",
            remedy="" if is_fast else "unset LIFTENVELOPE_NO_EXTENSIONS, or install again with a C compiler",
        ),
    ]


async def _check_nats(servers: CommandServers) -> list[Finding]:
    from liftenvelope.nats.link import is_encrypted

    async with servers.jetstream() as js:
        nc, context = js.api.nc, servers.context
        here, running = nc.connected_url, nc.connected_server_version
        host = "" if here is None else here.hostname or ""
        has_login = bool(context.password or context.token or any("@" in url for url in servers.urls))
        findings = [
            nats_server_finding(f"{running.major}.{running.minor}.{running.patch}"),
            encryption_finding([host], encrypted=is_encrypted(nc), login=has_login),
            await _inbox_finding(nc, servers.timeout),
        ]
        if findings[-1].status is not FindingStatus.OK:
            return [*findings, skipped("JetStream", "without an inbox no answer can be received")]
        all_servers = Servers(nc, servers.timeout)
        findings += await all_servers.check()
        return findings + await _Account(js, all_servers).check()


async def _inbox_finding(nc: NatsClient, timeout: float) -> Finding:
    subscription = await nc.subscribe(nc.new_inbox())
    # A PING may overtake what nats-py has buffered, so only the second one is behind the subscription.
    for _ in range(2):
        await nc.flush(max(round(timeout), 1))
    reason = str(nc.last_error or "")
    is_refused = "permissions violation for subscription" in reason.lower()
    if not is_refused:
        await subscription.unsubscribe()
    return Finding(
        status=FindingStatus.PROBLEM if is_refused else FindingStatus.OK,
        check="permission to subscribe to an inbox",
        got=reason if is_refused else "granted",
        expected="granted",
        remedy="allow the user _INBOX.>, or set inbox_prefix in the context" if is_refused else "",
    )


class _Account:
    """Checks the account of a connection: its limits, streams and consumers.

    Args:
        js: JetStream.
        servers: Checks of the servers, which were made.
    """

    def __init__(self, js: JetStream, servers: Servers) -> None:
        self._js = js
        self._servers = servers
        self._streams = RuleBook("stream", stream_rules())
        self._consumers = RuleBook("consumer", consumer_rules())
        #: Streams that have consumers, up to a limit; one stream by the name of its leader.
        self._to_list: list[str] = []
        self._led: dict[str, str] = {}

    async def check(self) -> list[Finding]:
        """Return the findings. Without an answer about the account, nothing else is asked."""
        findings: list[Finding] = []
        for step in (self._limits, self._check_streams, self._check_consumers, self._clocks):
            try:
                findings += await step()
            except PermissionDeniedError as exc:
                findings.append(_denied(f"JetStream's {_TITLES[step.__name__]}", exc))
                if step == self._check_streams:
                    break  # the other steps need them
            except (TransportError, CallTimeoutError, ServerError) as exc:
                if self._servers.is_system and isinstance(exc, NoJetStreamError):
                    findings.append(skipped("streams and consumers", str(exc), _OTHER_USER))
                else:
                    findings.append(_failed(f"JetStream's {_TITLES[step.__name__]}", exc))
                break
        return [*findings, buffers_finding()]

    async def _asked(self, what: str, call: Coroutine[Any, Any, _Answer]) -> _Answer:
        return await permitted(self._js.api.nc, f"{self._js.api.prefix}.{what}", call)

    async def _limits(self) -> list[Finding]:
        info = await self._asked("INFO", self._js.account_info())
        got = f"enabled, API level {info.api.level}" + (f", domain {info.domain}" if info.domain else "")
        return [Finding(status=FindingStatus.OK, check="JetStream", got=got), *account_findings(info)]

    async def _check_streams(self) -> list[Finding]:
        missing: list[str] = []
        await self._asked("STREAM.LIST", self._look_at_streams(missing))
        findings = self._streams.findings()
        if missing:
            silent = RuleBook("silent stream", [_SILENT])
            for name in missing:
                silent.look(name, name)
            findings += silent.findings()
        if self._streams.total >= _MOST_STREAMS:
            findings.append(skipped("further streams", f"only the first {_MOST_STREAMS:,} were looked at"))
        return findings

    async def _look_at_streams(self, missing: list[str]) -> None:
        from liftenvelope.jetstream.listing import stream_infos

        async for info in stream_infos(self._js.api, missing=missing):
            name = info.config.name
            self._streams.look(name, info)
            if info.state.consumer_count and len(self._to_list) <= _MOST_LISTINGS:
                self._to_list.append(name)
            if info.cluster is not None and info.cluster.leader and len(self._led) < _MOST_CLOCKS:
                self._led.setdefault(info.cluster.leader, name)
            if self._streams.total >= _MOST_STREAMS:
                return

    async def _check_consumers(self) -> list[Finding]:
        for name in self._to_list[:_MOST_LISTINGS]:
            try:
                await self._asked(f"CONSUMER.LIST.{name}", self._look_at_consumers(name))
            except StreamNotFoundError:
                continue  # deleted meanwhile
        findings = self._consumers.findings()
        if len(self._to_list) > _MOST_LISTINGS:
            text = f"only those of the first {_MOST_LISTINGS:,} streams were looked at"
            findings.append(skipped("further consumers", text))
        return findings

    async def _look_at_consumers(self, stream: str) -> None:
        from liftenvelope.jetstream.listing import consumer_infos

        async for info in consumer_infos(self._js.api, stream):
            self._consumers.look(f"{stream}/{info.name}", info)

    async def _clocks(self) -> list[Finding]:
        """Compare the clocks of the leaders of some streams, unless all servers have told their times."""
        findings: list[Finding] = []
        if self._servers.has_times:
            return findings
        for leader, stream in self._led.items():
            sent = time.time_ns()
            info = (await self._asked(f"STREAM.INFO.{stream}", self._js.stream(stream))).cached_info
            received = time.time_ns()
            if info.ts is not None:
                reading = ClockReading(
                    server=leader, sent_ns=sent, server_ns=as_ns(info.ts), received_ns=received
                )
                findings.append(clock_finding(reading))
        return findings


async def _check_liftbridge(servers: CommandServers) -> list[Finding]:
    hosts = [urlsplit(f"//{one}").hostname or "" for one in servers.urls]
    findings = [encryption_finding(hosts, encrypted=servers.has_tls, login=False)]
    async with servers.liftbridge() as client:
        metadata = await client.fetch_metadata()
        now_ns = time.time_ns()
        health = await client.check_health(timeout=servers.timeout)
    findings += broker_findings(metadata, {address: one.name.lower() for address, one in health.items()})
    findings += partition_findings(metadata)
    return [*findings, liftbridge_clock_finding(metadata, now_ns)]

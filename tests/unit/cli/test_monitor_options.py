"""Every argument of the monitor can be given to the command and to ``serve``, or is listed with a reason."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import click
import pytest
from click.testing import CliRunner

from liftenvelope.cli._root import root
from liftenvelope.cli._serving.settings import SETTINGS
from liftenvelope.cli.monitor import monitor
from liftenvelope.monitor import Collector, History, MonitorLimits
from liftenvelope.monitor.gateways import with_gateways
from liftenvelope.monitor.server import MonitorAccess, MonitorLink, MonitorPages, MonitorServer

PARTS: tuple[Callable[..., Any], ...] = (
    Collector, History, MonitorAccess, MonitorLimits, MonitorLink, MonitorPages, MonitorServer, with_gateways,
)  # fmt: skip
#: Option of ``liftenvelope monitor`` and of ``liftenvelope serve`` for an argument.
OPTIONS = {
    "Collector.interval": ("--interval", "--monitor-interval"),
    "MonitorAccess.hosts": ("--allow-host", "--monitor-hosts"),
    "MonitorAccess.token": ("--token", "--monitor-token-file"),
    "MonitorAccess.user_header": ("--user-header", "--monitor-user-header"),
    "MonitorLink.group_prefix": ("--group-prefix", ""),
    "MonitorPages.changes": ("--allow-changes", "--monitor-allow-changes"),
    "MonitorPages.max_readers": ("--max-pages", "--monitor-max-pages"),
    "MonitorPages.payloads": ("--no-payloads", "--monitor-payloads"),
    **{f"MonitorLimits.{one.name}": ("--limit", "") for one in fields(MonitorLimits)},
    "with_gateways.urls": ("--gateway-metrics", ""),
}
#: Why ``serve`` has no option of its own.
NOT_OF_SERVE = {
    "MonitorLimits": "the defaults bound what is asked of the own gateway; monitor is for other sizes",
    "MonitorLink": "the page of serve is a client of the gateway, whose groups have no prefix",
    "with_gateways": "the own metrics are read; monitor reads those of several gateways",
}
#: Why an argument has no option.
MADE = {
    "Collector.connect": "the options of the servers",
    "Collector.kind": "from the scheme of the URL",
    "Collector.history": "made with the limits",
    "History.limits": "made of --limit",
    "MonitorLink.limits": "made of --limit",
    "MonitorPages.collector": "made of the other options",
    "MonitorPages.link": "made of the other options",
    "MonitorPages.access": "made of the options of access",
    "MonitorPages.where": "the addresses of the servers",
    "MonitorPages.path": "fixed: /monitor in serve",
    "MonitorServer.pages": "made of the other options",
    "with_gateways.sampler": "made of the other options",
    "with_gateways.every": "fixed: rendering metrics costs the gateway some milliseconds",
}


def test_every_argument_has_an_option_or_a_reason() -> None:
    arguments = {f"{part.__name__}.{name}" for part in PARTS for name in inspect.signature(part).parameters}
    assert arguments == OPTIONS.keys() | MADE.keys()
    assert not OPTIONS.keys() & MADE.keys()


@pytest.mark.parametrize("argument", OPTIONS)
def test_option_exists(argument: str) -> None:
    of_monitor, of_serve = OPTIONS[argument]
    assert of_monitor in {
        option for one in monitor.params if isinstance(one, click.Option) for option in one.opts
    }
    if of_serve:
        assert of_serve in {setting.option for setting in SETTINGS}
    else:
        assert argument.partition(".")[0] in NOT_OF_SERVE


def test_defaults_of_serve_are_those_of_the_command() -> None:
    own = {option: one for one in monitor.params for option in one.opts}
    serves = {setting.option: setting.default for setting in SETTINGS}
    for name in ("interval", "max-pages"):
        option = own[f"--{name}"]
        assert option.type.convert(option.default, option, None) == serves[f"--monitor-{name}"]


@pytest.mark.parametrize(
    "text", ["max_streams", "max_streams=x", "streams=1", "max_streams=0", "max_streams=-1"]
)
def test_wrong_limits_are_refused(text: str) -> None:
    arguments = ["monitor", "--url", "nats://127.0.0.1:1", "--limit", text]
    done = CliRunner().invoke(root, arguments, env={"XDG_CONFIG_HOME": "/nowhere"})
    assert done.exit_code == 2
    assert "max_streams" in done.output

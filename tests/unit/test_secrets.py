"""No password, token or seed is in what the package prints, logs, raises or shows by ``repr``."""

from __future__ import annotations

import logging
import subprocess
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import liftenvelope
from liftenvelope import bulk
from liftenvelope._secrets import without_secrets
from liftenvelope.bulk.access import find_target
from liftenvelope.cli._demo_job import Job
from liftenvelope.errors import LiftEnvelopeError
from liftenvelope.gateway._program.nats_log import log_line
from liftenvelope.gateway.serving import Serving
from liftenvelope.spark._options import source_options

SECRET = "s3cr3t"
SEED = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY"
#: Nothing listens there.
HOST = "127.0.0.1:1"
URLS = (
    f"nats://user:{SECRET}@{HOST}",
    f"nats://{SECRET}@{HOST}",
    f"tls://user:{SECRET}@{HOST}",
    f"nats://user:a/{SECRET}@{HOST}",
    f"nats://user:a#{SECRET}@{HOST}",
    f"nats://user:a?{SECRET}@{HOST}",
    f"nats://user:a'{SECRET}@{HOST}",
    f"nats://user:{SECRET}",
    f"nats://user:{SECRET},@{HOST}",
    f"user:{SECRET}@{HOST}",
    f"{SECRET}@{HOST}",
    f"nats://{HOST},nats://user:{SECRET}@{HOST}",
    f"nats://{HOST},liftbridge://user:{SECRET}@{HOST}",
    f"liftbridge://user:{SECRET}@{HOST}",
    f"http://user:{SECRET}@{HOST}",
    f"nats://user:{SECRET}@{HOST}/path?query",
)
QUICK = {"connect_timeout": 0.2, "timeout": 0.2, "reconnect_wait": 0.0}


def said_by(call: Callable[[], object]) -> str:
    """Return the value of a call as text, or its error with all that led to it."""
    try:
        value = call()
    except LiftEnvelopeError as exc:
        return "".join(traceback.format_exception(exc, limit=0)) + repr(exc) + str(exc.args)
    return f"{value!r} {value}"


#: Roads by which a URL comes to be shown.
ROADS: dict[str, Callable[[str], object]] = {
    "bulk.read": lambda url: bulk.read(url, "orders", access=bulk.Access(**QUICK)),  # type: ignore[arg-type]
    "bulk.write": lambda url: bulk.write(url, "orders", [b"v"], access=bulk.Access(**QUICK)),  # type: ignore[arg-type]
    "bulk target": lambda url: find_target(url, None),
    "bulk target of a list": lambda url: find_target([url], None),
    "bulk target of bytes": lambda url: find_target([url.encode()], None),  # type: ignore[list-item]
    "client": lambda url: liftenvelope.connect([url]),
    "client of an address map": lambda url: liftenvelope.connect([HOST], address_map={HOST: url}),
    "serving": lambda url: Serving(nats_url=url),
    "serving twice": lambda url: Serving(nats_url=url, data_dir="/nowhere"),
    "demo job": lambda url: Job(nats_url=url, liftbridge=HOST),
    "spark": lambda url: source_options("jetstream", {"servers": url, "subscribe": "orders"}, streaming=True),
    "without_secrets": lambda url: without_secrets(f"no connection to {url}: refused"),
}


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize("road", ROADS)
def test_url_is_shown_without_its_login(
    road: str, url: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    said = said_by(lambda: ROADS[road](url))
    printed = capfd.readouterr()
    assert SECRET not in said + printed.out + printed.err + caplog.text


ACCESS = bulk.Access(user="user", password=SECRET)
VALUES: dict[str, Any] = {
    "password": ACCESS,
    "token": bulk.Access(token=SECRET),
    "seed in place of its file": bulk.Access(nkeys_seed=SECRET),
    "target": find_target(f"nats://user:{SECRET}@{HOST}", None),
    "changed": replace(ACCESS, timeout=1.0),
    "serving": Serving(nats_url=f"nats://{SECRET}@{HOST}", connect={"password": SECRET, "token": SECRET}),
    "spark": source_options(
        "jetstream", {"servers": HOST, "subscribe": "o", "user": "u", "password": SECRET}, streaming=True
    ),
}


@pytest.mark.parametrize("name", VALUES)
def test_repr_shows_no_secret(name: str) -> None:
    assert SECRET not in repr(VALUES[name])
    assert SECRET not in f"{VALUES[name]}"


COMMANDS = {
    "serve": ("serve", "--listen", "127.0.0.1:0", "--nats"),
    "read": ("read", "orders", "--url"),
    "write": ("write", "orders", "--url"),
    "demo": ("demo", "--messages", "1", "--liftbridge", HOST, "--url"),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("url", [f"nats://user:{SECRET}", f"http://{HOST},nats://user:{SECRET}"])
def test_command_shows_no_secret(command: str, url: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "liftenvelope", *COMMANDS[command], url],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode != 0
    assert SECRET not in done.stdout + done.stderr


def test_log_of_nats_server_is_passed_on_without_logins(caplog: pytest.LogCaptureFixture) -> None:
    log_line(
        f"[7] 2026/01/02 03:04:05.678901 [ERR] Error trying to connect to route nats://u:{SECRET}@{HOST}"
    )
    assert HOST in caplog.text
    assert SECRET not in caplog.text


def test_seed_in_place_of_its_file_is_not_shown(tmp_path: Path) -> None:
    assert SEED not in without_secrets(f"can't read {SEED!r}")
    said = said_by(lambda: Serving(nats_url=f"nats://{HOST}", connect={"user_credentials": SEED}))
    assert "user_credentials must be a file" in said
    assert SEED not in said


@pytest.mark.parametrize(
    "text", ["", "no URL", "nats://one:4222,two:4222", "at 127.0.0.1:4222", "tls://[::1]:4222", "a, b"]
)
def test_text_without_secrets_stays(text: str) -> None:
    assert without_secrets(text) == text

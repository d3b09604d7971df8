"""Importing the package imports no aiohttp, which nats-py needs for WebSockets alone."""

import subprocess
import sys

import pytest

#: What the commands, gateways and processes of Spark import.
PACKAGES = (
    "nats",
    "jetstream",
    "group",
    "gateway.serving",
    "gateway._program.nats_connection",
    "bulk",
    "archive",
    "spark._writing",
    "client",
    "cli._root",
)


def said_by(source: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", source], check=True, capture_output=True, text=True)
    return done.stdout.split()


@pytest.mark.parametrize("package", PACKAGES)
def test_aiohttp_is_not_imported(package: str) -> None:
    assert said_by(f"import sys, liftenvelope.{package}; print('aiohttp' in sys.modules)") == ["False"]


@pytest.mark.parametrize("package", ["archive._daemon", "testing._gateway"])
def test_gateway_is_not_imported_by_those_who_use_its_helpers(package: str) -> None:
    source = f"import sys, liftenvelope.{package}; print('liftenvelope.gateway._gateway' in sys.modules)"
    assert said_by(source) == ["False"]


@pytest.mark.parametrize("call", ["demo --help", "doctor --help", "stream ls --url nats://127.0.0.1:1"])
def test_command_imports_nats_py_without_aiohttp(call: str) -> None:
    source = f"""
import sys
from liftenvelope.cli import main
sys.argv[1:] = {call.split()}
try:
    main()
except SystemExit:
    print("nats" in sys.modules, "aiohttp" in sys.modules)
"""
    assert said_by(source)[-2:] == ["True", "False"]


def test_nats_py_finds_aiohttp_when_it_uses_it() -> None:
    source = """
import liftenvelope.nats
from nats.aio import transport
print(bool(transport.aiohttp), transport.aiohttp.ClientSession.__module__)
print("ClientSession" in vars(transport.aiohttp))
import aiohttp, aiohttp.web
print(transport.aiohttp.ClientSession is aiohttp.ClientSession, transport.aiohttp.web is aiohttp.web)
"""
    assert said_by(source) == ["True", "aiohttp.client", "True", "True", "True"]


@pytest.mark.parametrize("first", ["import aiohttp", "import nats", "sys.modules['aiohttp'] = None"])
def test_import_changes_nothing_that_was_there_before(first: str) -> None:
    source = f"""
import sys
{first}
before = sys.modules["aiohttp"]
import liftenvelope.nats
from nats.aio import transport
print(sys.modules["aiohttp"] is before, transport.aiohttp is before)
"""
    assert said_by(source) == ["True", "True"]


def test_import_by_another_thread_meanwhile_finds_aiohttp_itself() -> None:
    """The import hook stands for the other thread: it runs while the stand-in is in ``sys.modules``."""
    source = """
import builtins, sys
real = builtins.__import__
seen = []

def meanwhile(name, *arguments, **options):
    if name.startswith("nats") and not seen and "aiohttp" in sys.modules:
        seen.append(name)
        from aiohttp import ClientSession
        import aiohttp.web
        seen.append(aiohttp.ClientSession is ClientSession)
    return real(name, *arguments, **options)

builtins.__import__ = meanwhile
import liftenvelope.nats
from nats.aio import transport
print(*seen[1:], type(sys.modules["aiohttp"]).__name__, transport.aiohttp is sys.modules["aiohttp"])
"""
    assert said_by(source) == ["True", "module", "True"]

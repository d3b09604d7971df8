"""Tries a wheel for aarch64 on a machine that is not one, under qemu's user-mode emulation."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from tests.packaging.environments import requirement
from tests.packaging.interpreters import ARM, NotHereError, fetch, run

QEMU = "qemu-aarch64-static"
#: Tests of the extensions. They start no processes, which would not be emulated.
TESTS = (
    "tests/twin",
    "tests/unit/native",
    "tests/unit/test_envelope_decode.py",
    "tests/unit/test_envelope_encode.py",
    "tests/unit/test_envelope_go_corpus.py",
    "tests/unit/test_envelope_header.py",
)
#: Those of them that start processes or read the sources.
LEFT_OUT = (
    "tests/twin/test_signatures.py",
    "tests/unit/native/test_backend.py",
    "tests/unit/native/test_name_hash.py::test_processes_have_keys_of_their_own",
    "tests/unit/native/test_name_hash.py::test_hash_is_siphash_1_3",
)
#: What these tests import, as wheels for the processor.
_PACKAGES = ("pytest", "pytest-asyncio", "pytest-benchmark", "pytest-timeout", "hypothesis", "trustme")


def try_on_aarch64(wheel: Path, sdist: Path, folder: Path) -> int:
    """Run the tests of the extensions under qemu and return how many passed.

    Raises:
        NotHereError: qemu is not installed, or the machine is not a Debian.
    """
    if shutil.which(QEMU) is None:
        raise NotHereError(f"{QEMU} is not here: run apt-get install qemu-user-static as root")
    fetch(ARM)
    site = folder / "aarch64" / "site"
    shutil.rmtree(site.parent, ignore_errors=True)
    packages = (requirement(wheel, ["bulk"]), *_PACKAGES)
    platforms = ("manylinux2014_aarch64", "manylinux_2_17_aarch64", "manylinux_2_28_aarch64")
    options = [option for name in platforms for option in ("--platform", name)]
    options += ["--python-version", ARM.version, "--only-binary", ":all:", "--target", str(site), "-q"]
    run(sys.executable, "-m", "pip", "install", *options, *packages)
    with tarfile.open(sdist) as archive:
        for member in archive.getmembers():
            name = member.name.partition("/")[2]
            if name.startswith("tests/") or name == "pyproject.toml":
                archive.extract(member.replace(name=name), site.parent, filter="data")
    settings = {
        "PYTHONPATH": str(site),
        "LIFTENVELOPE_REQUIRE_EXTENSIONS": "1",
        "PATH": os.environ["PATH"],
    }
    command = [QEMU, "-L", str(ARM.folder), str(ARM.binary), "-m", "pytest", "-q", *TESTS]
    command += [f"--deselect={name}" for name in LEFT_OUT]
    done = subprocess.run(command, env=settings, cwd=site.parent, capture_output=True, text=True, check=False)
    counts = re.search(r"(\d+) passed", done.stdout)
    if done.returncode != 0 or counts is None:
        raise AssertionError(f"the tests fail with {wheel.name}\n{done.stdout}{done.stderr}")
    return int(counts[1])

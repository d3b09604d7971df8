"""Commands behind ``make dist`` and ``make test-dist``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from tests.packaging.building import Workshop, build_sdist
from tests.packaging.emulation import try_on_aarch64
from tests.packaging.interpreters import ARM, NEWEST, ROOT, Interpreter, fetch, find
from tests.packaging.inventory import write_inventory
from tests.packaging.platforms import PLATFORMS, VERSIONS, Platform
from tests.packaging.trying import Bench

DIST = ROOT / "dist"
WORK = ROOT / "build" / "dist"
TRIED = ROOT / "build" / "test-dist"


def found(versions: Sequence[str]) -> list[Interpreter]:
    """Return the interpreters of these versions, and say which are not here."""
    interpreters = []
    for version in versions:
        if interpreter := find(version):
            interpreters.append(interpreter)
        else:
            say(f"Python {version}: not found, so nothing is built for it or tested with it")
    if not interpreters:
        raise SystemExit(f"found none of Python {', '.join(versions)} with its C headers: install one")
    return interpreters


def say(text: object) -> None:
    print(text, flush=True)


def build(versions: Sequence[str], platforms: Sequence[str]) -> None:
    """Build the sdist, the wheel of the twins, and the wheels of every chosen Python and platform."""
    interpreters = found(versions)
    DIST.mkdir(exist_ok=True)
    for old in DIST.glob("liftenvelope-*"):
        old.unlink()
    sdist = build_sdist(DIST)
    say(sdist)
    workshop = Workshop(sdist.path, WORK, DIST)
    say(workshop.of_twins(interpreters[0]))
    for platform in PLATFORMS:
        for interpreter in interpreters:
            if platform.name in platforms:
                say(workshop.compiled(interpreter, platform))
    for path in write_inventory(interpreters[0], twins(), DIST, WORK):
        say(path.name)


def test(versions: Sequence[str], *, thorough: bool) -> None:
    """Try what is in ``dist`` with every Python that is found; ``thorough`` adds what takes long."""
    sdist = the_only("*.tar.gz")
    interpreters = found(versions)
    for interpreter in interpreters:
        bench = Bench(interpreter, sdist, TRIED)
        wheel = wheel_for(interpreter.version, PLATFORMS[0])
        passed = bench.unit_tests(wheel, backend="cython", workers=2)
        say(f"{wheel.name}: {passed} tests passed")
        loaded = bench.extras(wheel, backend="cython")
        say(f"{wheel.name}: {loaded} imports under each extra alone")
        say(f"{wheel.name}: {bench.examples(wheel)} programs of the README")
    bench = Bench(interpreters[0], sdist, TRIED / "twins")
    passed = bench.unit_tests(twins(), backend="python", workers=2)
    say(f"{twins().name}: {passed} tests passed, {bench.extras(twins(), backend='python')} imports")
    bench.sdist_without_compiler()
    say(f"{sdist.name}: gives the twins with one warning where no compiler is")
    if thorough:
        bench.everything(wheel_for(interpreters[0].version, PLATFORMS[0]))
        say("the extra 'all': every module imports")
        arm = wheel_for(ARM.version, Platform(arch="aarch64", libc="gnu"))
        say(f"{arm.name}: {try_on_aarch64(arm, sdist, TRIED)} tests passed under qemu")


def wheel_for(version: str, platform: Platform) -> Path:
    return the_only(f"*-cp{version.replace('.', '')}-*{platform.name}*.whl")


def twins() -> Path:
    return the_only("*-py3-none-any.whl")


def the_only(pattern: str) -> Path:
    paths = list(DIST.glob(pattern))
    if len(paths) != 1:
        raise SystemExit(f"dist must have one {pattern}, got {len(paths)}: run make dist")
    return paths[0]


def arguments() -> argparse.Namespace:
    names = [platform.name for platform in PLATFORMS]
    parser = argparse.ArgumentParser(prog="python -m tests.packaging", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("fetch", help="unpack Python 3.14, and Python 3.11 for aarch64, from Debian")
    building = commands.add_parser("build", help="build the sdist and the wheels into dist")
    building.add_argument("--platforms", nargs="+", choices=names, default=names)
    testing = commands.add_parser("test", help="try what is in dist in fresh environments")
    testing.add_argument("--thorough", action="store_true", help="also PySpark, and aarch64 under qemu")
    for command in (building, testing):
        command.add_argument("--versions", nargs="+", choices=VERSIONS, default=VERSIONS)
    return parser.parse_args()


def main() -> None:
    """Run one command."""
    chosen = arguments()
    if chosen.command == "fetch":
        for python in (NEWEST, ARM):
            fetch(python)
            say(f"Python {python.version} for {python.arch}: {python.folder.relative_to(ROOT)}")
    elif chosen.command == "build":
        build(chosen.versions, chosen.platforms)
    else:
        test(chosen.versions, thorough=chosen.thorough)


if __name__ == "__main__":
    main()

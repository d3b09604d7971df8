"""Tries distributions as users get them: in fresh environments, without the checkout or a compiler."""

from __future__ import annotations

import json
import re
import shutil
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.packaging.environments import Environment, Outcome, requirement, test_group
from tests.packaging.interpreters import Interpreter

IMPORTS = Path(__file__).with_name("imports.py")
#: Extras, and packages of liftenvelope that each must make importable. Modules inside may ask for others, by
#: name. ``spark`` is tried with ``all`` alone: PySpark is larger than everything else together.
EXTRAS: Mapping[str, tuple[str, ...]] = {
    "": ("envelope", "correlation", "partition", "nats", "jetstream"),
    "client": ("client", "rpc", "group"),
    "jetstream": ("jetstream",),
    "gateway": ("gateway", "client", "group"),
    "http": ("gateway",),
    "monitor": ("monitor", "cli"),
    "arrow": ("arrow",),
    "bulk": ("bulk", "arrow", "client"),
    "payload": ("payload", "bulk"),
    "iceberg": ("bulk",),
    "delta": ("bulk",),
    "otel": ("otel",),
    "cli": ("cli", "bulk", "gateway"),
}
#: Modules that are imported after a check for their packages: by the command, by pytest, by a public module.
_INNER = re.compile(r"liftenvelope\.(cli\.|monitor\.(gateways|server)$|testing\.plugin$|.*\._)")
_REMEDY = re.compile(
    r"^MissingExtraError: this needs (?P<package>\S+): run pip install 'liftenvelope\[(?P<extra>\w+)\]'$"
)
_COUNTS = re.compile(r"(\d+) passed")
_BLOCK = re.compile(
    r"^```python\n(?P<program>.*?)^```\n(?:```text\n(?P<printed>.*?)^```\n)?", re.DOTALL | re.MULTILINE
)
#: Tests that read the sources, which an installation does not have.
_OF_SOURCES = (
    "tests/unit/project",
    "tests/twin/test_signatures.py",
    "tests/unit/client/test_blocking.py::test_the_stub_is_up_to_date",
)
#: Tests of the extensions, which the wheel of the twins does not have.
_OF_EXTENSIONS = "tests/unit/native"
_OF_BOTH_TWINS = "tests/unit/test_values.py::TestCopy::test_pickled_here_loads_in_the_other_twin"


class FaultyError(AssertionError):
    """A distribution does not do what it promises."""


def check(condition: bool, text: str, outcome: Outcome) -> None:
    """Raise FaultyError with all that a program printed, unless the condition holds."""
    if not condition:
        raise FaultyError(f"{text}\n{outcome.printed[-6000:]}\n{outcome.errors[-6000:]}")


class Bench:
    """Makes environments of one interpreter below a folder and tries distributions in them."""

    def __init__(self, interpreter: Interpreter, sdist: Path, folder: Path) -> None:
        self._interpreter = interpreter
        self._sdist = sdist
        self._folder = folder / interpreter.version
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)

    def unit_tests(self, wheel: Path, *, backend: str, workers: int) -> int:
        """Run the sdist's tests that need no server, with every extra but Spark; return how many passed."""
        env = self._environment("tests")
        done = env.install("-q", requirement(wheel, ("cli", "http", "monitor", "otel")), *test_group())
        check(done.code == 0, f"{wheel.name} does not install", done)
        self._unpack_tests(env.folder)
        folders = ["tests/unit", "tests/twin"] if backend == "cython" else ["tests/unit"]
        left_out = [f"--{'deselect' if '::' in path else 'ignore'}={path}" for path in _OF_SOURCES]
        if backend == "python":
            left_out += [f"--ignore={_OF_EXTENSIONS}", f"--deselect={_OF_BOTH_TWINS}"]
        settings = {"LIFTENVELOPE_REQUIRE_EXTENSIONS": "1"} if backend == "cython" else {}
        done = env.call("-m", "pytest", "-q", "-n", str(workers), *folders, *left_out, settings=settings)
        check(done.code == 0, f"the tests fail with {wheel.name}", done)
        counts = _COUNTS.search(done.printed)
        check(counts is not None, "pytest printed no count", done)
        return int(counts[1]) if counts else 0

    def extras(self, wheel: Path, *, backend: str, names: Sequence[str] = tuple(EXTRAS)) -> int:
        """Import every module under each extra alone; return how many imports worked."""
        loaded = 0
        for name in names:
            env = self._environment(f"extra-{name or 'none'}")
            done = env.install("-q", requirement(wheel, [name] if name else []))
            check(done.code == 0, f"the extra {name!r} does not install", done)
            done = env.call(IMPORTS)
            check(done.code == 0, f"with the extra {name!r} a module is broken", done)
            report = json.loads(done.printed)
            check(report["backend"] == backend, f"expected the backend {backend}", done)
            for problem in problems(name, report["missing"]):
                check(False, problem, done)
            loaded += len(report["loaded"])
        return loaded

    def examples(self, wheel: Path) -> int:
        """Run the README's programs: without the extra they name it, with it they print the right text."""
        bare = self._environment("bare")
        ready = self._environment("ready")
        check(
            bare.install("-q", requirement(wheel)).code == 0,
            "no installation",
            Outcome(code=1, printed="", errors=""),
        )
        done = ready.install("-q", requirement(wheel, ["gateway"]))
        check(done.code == 0, "the extra 'gateway' does not install", done)
        programs = list(readme_programs(self._sdist))
        for number, (program, printed) in enumerate(programs):
            file = self._folder / f"program{number}.py"
            file.write_text(program, "utf-8")
            done = bare.call(file)
            last = done.errors.rstrip().splitlines()[-1:]
            check(done.code == 1 and "pip install" in "".join(last), "the error names no remedy", done)
            done = ready.call(file)
            check(done.code == 0 and done.printed == printed, "the README prints something else", done)
        return len(programs)

    def everything(self, wheel: Path) -> None:
        """Import every module with the extra ``all``, which has PySpark as well."""
        env = self._environment("all")
        done = env.install("-q", requirement(wheel, ["all"]), "pytest")
        check(done.code == 0, "the extra 'all' does not install", done)
        done = env.call(IMPORTS)
        check(done.code == 0 and not json.loads(done.printed)["missing"], "a module does not import", done)

    def sdist_without_compiler(self) -> None:
        """Install the sdist where no compiler is: the twins serve, and one warning says so."""
        env = self._environment("sdist")
        source = requirement(self._sdist)
        done = env.install("-v", source)
        check(done.code == 0, "the sdist does not install without a compiler", done)
        warnings = (done.printed + done.errors).count("warning: liftenvelope is built without its extensions")
        check(warnings == 1, f"expected one warning, got {warnings}", done)
        done = env.call("-c", "import liftenvelope; print(liftenvelope.BACKEND)")
        check(done.printed == "python\n", "the twins do not serve", done)
        required = {"LIFTENVELOPE_REQUIRE_EXTENSIONS": "1"}
        done = env.install(
            "-q", "--force-reinstall", "--no-deps", "--no-cache-dir", source, settings=required
        )
        check(done.code != 0 and "this build lacks" in done.errors, "extensions were required", done)
        broken = {"CC": shutil.which("false") or "/bin/false"}
        done = env.install("-q", "--force-reinstall", "--no-deps", "--no-cache-dir", source, settings=broken)
        check(done.code != 0, "a compiler that fails must fail the build", done)

    def _environment(self, name: str) -> Environment:
        return Environment(self._interpreter, self._folder / name)

    def _unpack_tests(self, folder: Path) -> None:
        """Put the sdist's tests and pytest's settings into a folder, without the package."""
        with tarfile.open(self._sdist) as archive:
            for member in archive.getmembers():
                _, _, name = member.name.partition("/")
                if name.startswith(("tests/", "docs/", "examples/")) or name in (
                    "pyproject.toml",
                    "README.md",
                ):
                    archive.extract(member.replace(name=name), folder, filter="data")


def readme_programs(sdist: Path) -> Iterator[tuple[str, str]]:
    """Yield every program of the README and what it prints."""
    with tarfile.open(sdist) as archive:
        name = f"{sdist.name.removesuffix('.tar.gz')}/README.md"
        file = archive.extractfile(name)
        assert file is not None
        text = file.read().decode()
    for block in _BLOCK.finditer(text):
        yield block["program"], block["printed"] or ""


def problems(extra: str, missing: Mapping[str, str]) -> Iterator[str]:
    """Yield what is wrong with the imports that failed while one extra was installed."""
    for module, error in missing.items():
        if module.removeprefix("liftenvelope.") in EXTRAS[extra]:
            yield f"with the extra {extra!r}, {module} must import, got {error}"
        remedy = _REMEDY.match(error)
        if remedy is None and not _INNER.match(module):
            yield f"{module} must name the extra to install, got {error}"
        elif remedy is not None and remedy["extra"] == extra:
            yield f"{module} asks for the extra {extra!r}, which is installed: {error}"

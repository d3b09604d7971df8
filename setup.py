"""Builds the Cython extensions and the description for PyPI; pyproject.toml has the rest of the package.

Without a C compiler or Python's headers the package is built of the twins alone, with one warning. Where both
are there, an extension that does not compile fails the build. Environment variables:

- LIFTENVELOPE_NO_EXTENSIONS=1: build of the twins alone. The wheel serves every machine.
- LIFTENVELOPE_REQUIRE_EXTENSIONS=1: fail without a compiler or headers.
- LIFTENVELOPE_BUILD_PROFILE: compiler flags. ``release`` (default), ``strict`` (release with warnings as
  errors: what CI builds), ``quick`` (not optimized, for tests of packaging), or ``sanitize`` (ASan and UBSan,
  for the fuzz and unit runs of ``make soak``).
"""

import os
import re
import runpy
import shlex
import shutil
import sys
import sysconfig
import tomllib
from glob import glob
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

# -g0: Python's own flags ask for debug information, four fifths of an extension's size and a third of its
# compile time.
RELEASE = ["-O3", "-g0", "-fno-plt", "-Wall", "-Wextra"]
# Apple's linker has no -s.
STRIPPED = ["-Wl,-s"] if sys.platform == "linux" else []
FLAGS = {
    "release": (RELEASE, STRIPPED),
    "strict": ([*RELEASE, "-Werror"], STRIPPED),
    "quick": (["-O0", "-g0"], []),
    "sanitize": (
        [
            "-O1",
            "-g1",  # lines for the reports: all of -g takes half as long again to compile
            "-fno-omit-frame-pointer",
            "-fsanitize=address,undefined",
            "-fno-sanitize-recover=undefined",
            "-fsanitize-coverage=trace-pc",  # counted by tests/fuzz/cover.c
        ],
        ["-fsanitize=address,undefined"],
    ),
}
# Not ours to mend: what Cython's own generated code draws from -Wextra.
CYTHON_NOISE = ["-Wno-unused-parameter", "-Wno-missing-field-initializers", "-Wno-cast-function-type"]

# Commands that build nothing. pip runs them before the one that does, and the warning comes once.
ABOUT = {"egg_info", "dist_info", "sdist"}

profile = os.environ.get("LIFTENVELOPE_BUILD_PROFILE", "release")
if profile not in FLAGS:
    raise SystemExit(f"LIFTENVELOPE_BUILD_PROFILE={profile!r}: expected one of {', '.join(FLAGS)}")
compile_args, link_args = FLAGS[profile]


class BuildExtensions(build_ext):
    """Translates the Cython files when a build compiles them: an sdist has no generated C."""

    def build_extensions(self) -> None:
        translated = cythonize(self.extensions, include_path=["src"], language_level=3)
        for mine, made in zip(self.extensions, translated, strict=True):
            mine.sources = made.sources
        super().build_extensions()


def extension(name: str) -> Extension:
    return Extension(
        f"liftenvelope._native.{name}",
        [f"src/{name}.pyx"],
        include_dirs=["src"],
        depends=[
            "setup.py",
            *glob("src/*.h"),
        ],  # the flags are in setup.py; Cython follows .pxd and .pxi
        extra_compile_args=compile_args + CYTHON_NOISE,
        extra_link_args=link_args,
    )


def is_set(variable: str) -> bool:
    return os.environ.get(variable, "") not in ("", "0")


def missing_for_a_build() -> str:
    """Name the first thing that a build of the extensions lacks; empty if it lacks nothing."""
    if os.name != "posix":
        return f"a compiler that takes the flags of gcc, on {sys.platform}"
    compiler = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    if shutil.which(shlex.split(compiler)[0]) is None:
        return f"the C compiler {compiler!r}"
    header = Path(sysconfig.get_path("include"), "Python.h")
    return "" if header.exists() else f"Python's C headers, {header}"


def extensions() -> list[Extension]:
    """Return every extension, or none if the build is to be of the twins alone."""
    required = is_set("LIFTENVELOPE_REQUIRE_EXTENSIONS")
    if is_set("LIFTENVELOPE_NO_EXTENSIONS"):
        return []
    if missing := missing_for_a_build():
        if required:
            raise SystemExit(f"LIFTENVELOPE_REQUIRE_EXTENSIONS is set, but this build lacks {missing}")
        if not ABOUT.intersection(sys.argv):
            # Printed: one by the module warnings was not in the output of pip install -v.
            text = f"liftenvelope is built without its extensions, and is slower: this build lacks {missing}"
            print(f"warning: {text}", file=sys.stderr)
        return []
    return [extension(source.stem) for source in sorted(Path("src").glob("*.pyx"))]


def description() -> str:
    """Return the README with links that also lead somewhere from PyPI."""
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    version = runpy.run_path("liftenvelope/_version.py")["__version__"]
    text = Path("README.md").read_text(encoding="utf-8")

    def absolute(link: re.Match[str]) -> str:
        kind = "raw" if link["image"] else "blob"
        return (
            f"{link['image']}[{link['text']}]({project['urls']['Source']}/{kind}/v{version}/{link['path']})"
        )

    return re.sub(r"(?P<image>!?)\[(?P<text>[^]]*)]\((?!\w+:|#)(?P<path>[^)]+)\)", absolute, text)


setup(
    long_description=description(),
    long_description_content_type="text/markdown",
    packages=find_packages(include=["liftenvelope*", "pyspark_liftbridge", "pyspark_jetstream"]),
    options={"build_ext": {"parallel": os.cpu_count()}},  # each takes a compiler some ten seconds
    cmdclass={"build_ext": BuildExtensions},
    ext_modules=extensions(),
)

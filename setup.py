"""Builds the Cython extensions; everything else about the package stands in pyproject.toml.

LIFTENVELOPE_BUILD_PROFILE chooses the compiler flags: release (default), strict (release with warnings
as errors: what CI builds), quick (not optimized, for tests of packaging), or sanitize (ASan and UBSan, for
the fuzz and unit runs of ``make soak``).
"""

import os
from glob import glob
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, find_packages, setup

# -g0: Python's own flags ask for debug information, four fifths of an extension's size and a third of its
# compile time.
RELEASE = ["-O3", "-g0", "-fno-plt", "-Wall", "-Wextra"]
FLAGS = {
    "release": ([*RELEASE], []),
    "strict": ([*RELEASE, "-Werror"], []),
    "quick": (["-O0", "-g0"], []),
    "sanitize": (
        [
            "-O1",
            "-g",
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

profile = os.environ.get("LIFTENVELOPE_BUILD_PROFILE", "release")
if profile not in FLAGS:
    raise SystemExit(f"LIFTENVELOPE_BUILD_PROFILE={profile!r}: expected one of {', '.join(FLAGS)}")
compile_args, link_args = FLAGS[profile]


def extension(name: str) -> Extension:
    return Extension(
        f"liftenvelope._native.{name}",
        [f"src/{name}.pyx"],
        include_dirs=["src"],
        depends=["setup.py", *glob("src/*.h"), *glob("src/*.px[di]")],  # the flags are in setup.py
        extra_compile_args=compile_args + CYTHON_NOISE,
        extra_link_args=link_args,
    )


setup(
    packages=find_packages(include=["liftenvelope*", "pyspark_liftbridge", "pyspark_jetstream"]),
    options={"build_ext": {"parallel": os.cpu_count()}},  # each takes a compiler some ten seconds
    ext_modules=cythonize(
        [extension(source.stem) for source in sorted(Path("src").glob("*.pyx"))],
        include_path=["src"],
        language_level=3,
    ),
)

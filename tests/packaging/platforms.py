"""Platforms of the compiled wheels: how zig, setuptools and auditwheel name each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Platform:
    """One kind of Linux: a processor and a C library."""

    arch: str
    libc: str

    @property
    def name(self) -> str:
        """Tag of its wheels: glibc from 2.17, which is that of 2012, and musl from 1.2, from 2020, serve."""
        return f"manylinux_2_17_{self.arch}" if self.libc == "gnu" else f"musllinux_1_2_{self.arch}"

    @property
    def zig_target(self) -> str:
        return f"{self.arch}-linux-gnu.2.17" if self.libc == "gnu" else f"{self.arch}-linux-musl"

    def suffix(self, version: str) -> str:
        """End of an extension's file name, as Python ``version`` on this platform looks for it."""
        return f".cpython-{version.replace('.', '')}-{self.arch}-linux-{self.libc}.so"


PLATFORMS = tuple(
    Platform(arch=arch, libc=libc) for libc in ("gnu", "musl") for arch in ("x86_64", "aarch64")
)
#: Versions of CPython that get wheels: those that the classifiers of the package name.
VERSIONS = ("3.11", "3.12", "3.13", "3.14")

"""The Go programs of ``benchmarks/go``, built on demand."""

from __future__ import annotations

from pathlib import Path

from benchmarks.programs import Programs, output
from liftenvelope.testing import find_go

_SOURCES = Path(__file__).parent / "go"
_NEEDED = "1.25.3"


class GoPeers(Programs):
    """The programs, or one of them, in a folder of this run: Go's own cache makes building again quick."""

    def __init__(self, folder: Path, program: str = "...") -> None:
        super().__init__(lambda name: [folder / name], "nats.go")
        go, self.version = find_go(_NEEDED)
        command = [go, "build", "-mod=mod", "-buildvcs=false", "-o", f"{folder}/", f"./cmd/{program}"]
        output(command, _SOURCES, CGO_ENABLED="0", GOTOOLCHAIN="local", GOWORK="off")

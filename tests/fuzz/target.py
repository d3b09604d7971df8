"""One target of the campaign: an extension, and how the bytes of an input become calls of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from types import SimpleNamespace
from typing import Any, TypeAlias

from liftenvelope.errors import LiftEnvelopeError

__all__ = [
    "ACKNOWLEDGES",
    "BYTES",
    "MESSAGES",
    "PUBLISHES",
    "Chunks",
    "Exact",
    "Target",
    "cuts_of",
    "ends_of",
    "option",
]

PACKAGE = "liftenvelope._native"
#: The modules of the Python twin of each extension.
TWINS = {
    "_fastacks": ("acks",),
    "_fastbatch": ("batch",),
    "_fastbulk": ("bulk",),
    "_fastdirect": ("direct",),
    "_fastenv": ("env", "payloads", "values"),
    "_fastgate": ("gate",),
    "_fasthandout": ("handout", "frames"),
    "_fastjet": ("jet",),
    "_fastput": ("put",),
    "_fastframes": ("frames",),
}
#: End of a chunk, as in mutate.h: any bytes, an envelope of a message or of an ack, a protobuf message.
BYTES, PUBLISHES, ACKNOWLEDGES, MESSAGES = range(4)
#: A step that leaves an input whole.
WHOLE = 1 << 20
#: Bytes of the inputs that are also given byte by byte, which takes a call for each.
SHORT = 512

Chunks: TypeAlias = list[bytes]
#: Returns its argument. The engine's version also makes a read of its trailing zero byte a fault.
Exact: TypeAlias = Callable[[Any], Any]


@dataclass(frozen=True)
class Target:
    """Target of the campaign: one part of an extension."""

    name: str
    #: The extension whose edges guide the campaign.
    extension: str
    #: Makes calls of a twin as the chunks say, and returns what the calls returned.
    run: Callable[[Any, Chunks, Exact], Any]
    #: Inputs to begin with.
    seeds: Callable[[], Iterable[Chunks]]
    #: Words that the mutator puts into chunks.
    words: tuple[bytes, ...] = ()
    #: What a chunk ends with, and how many bars are before it.
    format: int = BYTES
    bars: int = 0
    #: Chunks of an input. If it is 1, there is no chunk of options.
    most: int = 12
    #: Makes the results of twins comparable: buffers become bytes.
    plain: Callable[[Any], Any] | None = None
    #: Gives the data in pieces of a size, and returns what must not depend on the size.
    flow: Callable[[Any, Chunks, int], Any] | None = None
    #: Errors that `run` may raise.
    refusals: tuple[type[Exception], ...] = (LiftEnvelopeError,)
    #: Module and function of the Python twin by which the extension explains a refusal, which takes long.
    explained: tuple[str, str] | None = None
    #: One in so many inputs of the campaign goes to this target.
    share: int = 1

    def extension_path(self) -> str:
        """The name that imports the extension."""
        return self.extension if "fuzz" in self.extension else f"{PACKAGE}.{self.extension}"

    def twins(self) -> tuple[Any, Any]:
        """The extension and its Python twin."""
        if self.extension not in TWINS:
            return import_module(self.extension), SimpleNamespace(read=lambda _data: None)
        twin = SimpleNamespace()
        for name in TWINS[self.extension]:
            vars(twin).update(vars(import_module(f"{PACKAGE}.{name}")))
        return import_module(self.extension_path()), twin

    def outcome(self, twin: Any, chunks: Chunks) -> Any:
        """Return the result of a twin for an input, or its error."""
        try:
            found = self.run(twin, list(chunks), unchanged)
        except self.refusals as exc:
            return type(exc), str(exc)
        return self.plain(found) if self.plain else found

    def check(self, chunks: Chunks) -> None:
        """Hold the twins to one another, and pieces to the whole."""
        ours, theirs = (self.outcome(twin, chunks) for twin in self.twins())
        if ours != theirs:
            raise AssertionError(f"the extension makes {ours!r} of it, its twin {theirs!r}")
        if self.flow is None or sum(map(len, chunks)) > SHORT:
            return
        whole, pieces = (self.flow(self.twins()[0], list(chunks), step) for step in (WHOLE, 1))
        if whole != pieces:
            raise AssertionError(f"as a whole it is {whole!r}, byte by byte {pieces!r}")


def unchanged(block: Any) -> Any:
    """The block as it is: for twins, and for whatever has no sanitizer."""
    return block


def option(options: bytes, index: int, count: int = 256) -> int:
    """One of the options, a number below count; 0 if the chunk is too short for it."""
    return options[index] % count if index < len(options) else 0


def ends_of(data: bytes, step: int) -> list[int]:
    """Return the ends of pieces of the data, each of one size."""
    return [*range(step, len(data), step), len(data)]


def cuts_of(data: bytes, options: bytes) -> list[int]:
    """Return the ends of pieces of the data: the three options from the fourth on, 0 for no end."""
    return sorted({cut * len(data) >> 8 for cut in options[3:6] if cut} | {len(data)})

"""Writes docs/architecture.svg from LAYERS in tests/test_layers.py: ``python docs/architecture_picture.py``.

With ``--check`` it writes nothing, and exits with 1 if the picture is out of date. The public names are at
the top and the ground is at the bottom, so a box imports only from boxes below it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.test_layers import LAYERS  # noqa: E402

PICTURE = ROOT / "docs" / "architecture.svg"
#: Pixels. At this width a phone shows the picture in its own size.
WIDTH, MARGIN, GAP, LINE = 360, 10, 6, 17
#: Widths of a character of the two fonts, rounded up: fonts differ.
NAME, CAPTION = 8.2, 7.0
#: Headings, each with the lowest package below it.
BANDS = {
    "_wire": "Ground",
    "_native": "Formats and state, without I/O",
    "nats": "Connections",
    "consumers": "APIs of the servers",
    "group": "Services",
    "bulk": "Tables",
    "testing": "Tests, command and public names",
}
CAPTIONS = {
    "errors": "every exception",
    "types": "enumerations of the API",
    "_native": "compiled pieces and their twins",
    "envelope": "one envelope at a time",
    "arrow": "batches as columns",
    "partition": "partitioners",
    "payload": "values as typed columns",
    "correlation": "table of pending acks",
    "nats": "acks on your connection",
    "_pb": "generated protobuf messages",
    "rpc": "gRPC over HTTP/2, both sides",
    "consumers": "shell of group consumers",
    "jetstream": "streams, consumers",
    "client": "Liftbridge's API",
    "group": "coordinator and members",
    "gateway": "serves Liftbridge's API",
    "bulk": "streams as Arrow, blocking",
    "spark": "PySpark sources and sinks",
    "testing": "servers and fixtures for tests",
    "otel": "OpenTelemetry",
    "monitor": "live page",
    "cli": "the command",
}
STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #1f2328; }
  .name { font: 600 13px ui-monospace, monospace; }
  .band { font-weight: 600; fill: #0a5c9e; }
  .page { fill: #ffffff; stroke: #d0d7de; }
  .layer { fill: #d5e3f3; }
  .box { fill: #eef4fb; stroke: #7c9cbf; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; }
    .band { fill: #79c0ff; }
    .page { fill: #0d1117; stroke: #30363d; }
    .layer { fill: #2b3f57; }
    .box { fill: #16263a; stroke: #4a6a8f; }
  }
"""


class Box(NamedTuple):
    """One package or module: its name, its caption and the width that both need."""

    name: str
    caption: str
    width: float


def box_of(name: str) -> Box:
    """Return the box of a package, wide enough for its name and caption."""
    caption = CAPTIONS.get(name, "")
    return Box(name, caption, max(len(name) * NAME, len(caption) * CAPTION) + 12)


def lines_of(layer: tuple[str, ...]) -> Iterator[list[Box]]:
    """Yield the boxes of a layer in lines, as many per line as fit."""
    line: list[Box] = []
    for box in map(box_of, layer):
        if sum(one.width + GAP for one in [*line, box]) > WIDTH - 2 * MARGIN + GAP:
            yield line
            line = []
        line.append(box)
    yield line


def drawn(line: list[Box], top: int, height: int) -> Iterator[str]:
    """Yield the elements of the boxes of a line, stretched to the full width."""
    spare = (WIDTH - 2 * MARGIN + GAP - sum(box.width + GAP for box in line)) / len(line)
    left = float(MARGIN)
    for box in line:
        width = box.width + spare
        yield f'<rect class="box" x="{left:g}" y="{top}" width="{width:g}" height="{height}" rx="4"/>'
        yield f'<text class="name" x="{left + 6:g}" y="{top + LINE}">{box.name}</text>'
        if box.caption and height == 2 * LINE + 6:
            yield f'<text x="{left + 6:g}" y="{top + 2 * LINE}">{box.caption}</text>'
        elif box.caption:
            yield f'<text x="{left + 106:g}" y="{top + LINE}">{box.caption}</text>'
        left += width + GAP


def layer_drawn(layer: tuple[str, ...], top: int) -> tuple[list[str], int]:
    """Return the elements of a layer and the place below it. Several boxes lie on a plate."""
    plate = 4 if len(layer) > 1 else 0
    begin = top = top + plate
    parts: list[str] = []
    for line in lines_of(layer):
        height = 2 * LINE + 6 if len(line) > 1 and any(box.caption for box in line) else LINE + 8
        parts += drawn(line, top, height)
        top += height + GAP
    if plate:
        size = f'width="{WIDTH - 12}" height="{top - begin + 2}"'
        parts.insert(0, f'<rect class="layer" x="6" y="{begin - plate}" {size} rx="6"/>')
    return parts, top + plate


def band_of(rank: int) -> str:
    """Return the heading of the band that a layer belongs to."""
    return [BANDS[name] for layer in LAYERS[: rank + 1] for name in layer if name in BANDS][-1]


def picture() -> str:
    """Return the picture as SVG."""
    parts = [
        f'<text x="{MARGIN}" y="{2 + LINE}">A box imports only from boxes below it.</text>',
        f'<text x="{MARGIN}" y="{2 + 2 * LINE}">Boxes on one plate never import each other.</text>',
    ]
    top, band = 2 * LINE + 8, ""
    for rank in reversed(range(len(LAYERS))):
        if band != band_of(rank):
            band, top = band_of(rank), top + LINE + 6
            parts.append(f'<text class="band" x="{MARGIN}" y="{top - 5}">{band}</text>')
        layer, top = layer_drawn(LAYERS[rank], top)
        parts += layer
    size = f'width="{WIDTH}" height="{top + MARGIN}" viewBox="0 0 {WIDTH} {top + MARGIN}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="Layers of liftenvelope">'
    page = f'<rect class="page" x="0.5" y="0.5" width="{WIDTH - 1}" height="{top + MARGIN - 1}" rx="6"/>'
    return "\n".join([head, f"<style>{STYLE}</style>", page, *parts, "</svg>", ""])


def main() -> None:
    """Write the picture, or compare it with the file."""
    made = picture()
    if "--check" not in sys.argv[1:]:
        PICTURE.write_text(made, "utf-8")
    elif not PICTURE.exists() or PICTURE.read_text("utf-8") != made:
        sys.exit(f"{PICTURE.name} differs from LAYERS: run python docs/architecture_picture.py")


if __name__ == "__main__":
    main()

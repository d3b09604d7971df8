"""Draw the ratios of a page of results as bars: ``python -m benchmarks.picture`` draws RESULTS.md again.

Each operation has one bar, beside the fastest of its peers that is another program. The page is the only
source, so that the picture cannot show other figures.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from pathlib import Path

#: How the names of peers begin that are other programs. The others are bounds, or ours in another way.
PEERS = (
    "async-nats",
    "go-liftbridge",
    "grpc.aio",
    "grpcio",
    "gufo_liftbridge",
    "Liftbridge",
    "nats-py",
    "nats.go",
    "natsio",
    "protobuf",
)
_WIDTH, _NAMES, _RIGHT, _TOP, _STEP, _BAR = 1000, 440, 230, 64, 19, 11
_STYLE = """
text { font: 12px system-ui, sans-serif; fill: #24292f } .small { font-size: 11px; fill: #57606a }
.title { font-size: 15px; font-weight: 600 } .grid { stroke: #d0d7de } .one { stroke: #57606a }
.faster { fill: #2da44e } .slower { fill: #d4762c } .range { stroke: #24292f; stroke-opacity: .55 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .small { fill: #9198a1 } .grid { stroke: #3d444d } .one { stroke: #9198a1 }
  .faster { fill: #3fb950 } .slower { fill: #e0883f } .range { stroke: #e6edf3 }
}
"""


@dataclass(frozen=True)
class Ratio:
    """How many times as fast ours is.

    Attributes:
        what: Name of the operation.
        peer: Name of the other program.
        median: Ratio of the medians of all rounds.
        worst: Lowest ratio of a pair of rounds.
        best: Highest ratio of a pair of rounds.
    """

    what: str
    peer: str
    median: float
    worst: float
    best: float


def ratios(page: str) -> list[Ratio]:
    """Return the ratios in a page of results, of each operation the one beside its fastest peer."""
    fastest: dict[str, Ratio] = {}
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        # "Liftbridge meanwhile" is the processor time of the server while ours reads.
        if len(cells) != 8 or not cells[2].startswith(PEERS) or cells[2].endswith(" meanwhile"):
            continue
        worst, _, best = cells[5].partition(" - ")
        found = Ratio(cells[0], cells[2], *(float(cell.replace(",", "")) for cell in (cells[4], worst, best)))
        if found.what not in fastest or found.median < fastest[found.what].median:
            fastest[found.what] = found
    return list(fastest.values())


def draw(page: str) -> str:
    """Return the picture of a page of results as SVG.

    Raises:
        ValueError: The page has no row with a peer.
    """
    bars = ratios(page)
    if not bars:
        raise ValueError("the page has no row with a peer")
    low = math.floor(math.log2(min(1.0, *(bar.worst for bar in bars))))
    high = math.ceil(math.log2(max(2.0, *(bar.best for bar in bars))))

    def x(ratio: float) -> float:
        return round(_NAMES + (_WIDTH - _NAMES - _RIGHT) * (math.log2(ratio) - low) / (high - low), 1)

    bottom = _TOP + len(bars) * _STEP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {bottom + 16}" role="img">',
        f"<title>Speed of {len(bars)} operations as a multiple of the fastest peer</title>",
        f"<style>{_STYLE}</style>",
        '<text class="title" x="8" y="22">Times as fast as the fastest peer</text>',
        '<text class="small" x="8" y="40">Measured in turn on one machine. Lines: pairs of rounds.</text>',
    ]
    for power in range(low, high + 1):
        kind = "one" if power == 0 else "grid"
        parts.append(f'<path class="{kind}" d="M{x(2**power)} {_TOP - 6}V{bottom}"/>')
        parts.append(
            f'<text class="small" text-anchor="middle" x="{x(2**power)}" y="{_TOP - 10}">{2**power:g}x</text>'
        )
    for number, bar in enumerate(bars):
        parts += _bar(bar, x(1), (x(bar.worst), x(bar.median), x(bar.best)), _TOP + number * _STEP)
    return "\n".join([*parts, "</svg>", ""])


def _bar(bar: Ratio, one: float, ends: tuple[float, float, float], y: int) -> list[str]:
    """Return the name, the bar, its range and the figure of an operation."""
    worst, median, best = ends
    middle, kind = y + _BAR / 2, "faster" if bar.median >= 1 else "slower"
    return [
        f'<text text-anchor="end" x="{_NAMES - 8}" y="{y + _BAR - 1}">{escape(bar.what)}</text>',
        f'<rect class="{kind}" x="{min(one, median)}" y="{y}" width="{abs(median - one):.1f}" '
        f'height="{_BAR}"/>',
        f'<path class="range" d="M{worst} {middle}H{best}"/>',
        f'<text class="small" x="{_WIDTH - _RIGHT + 8}" y="{y + _BAR - 1}">'
        f"{bar.median:.3g}x {escape(bar.peer)}</text>",
    ]


def write(results: Path) -> Path | None:
    """Draw the picture of a page of results into an SVG file beside it.

    Returns:
        The path of the picture, or None for a page that has no row with a peer, as Spark's.
    """
    page = results.read_text("utf-8")
    if not ratios(page):
        return None
    picture = results.with_suffix(".svg")
    picture.write_text(draw(page), "utf-8")
    return picture


if __name__ == "__main__":
    print(write(Path(__file__).with_name("RESULTS.md")))

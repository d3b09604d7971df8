"""Writes the pictures of flows and states: ``python docs/flow_pictures.py``.

With ``--check`` it writes nothing, and exits with 1 if a picture is out of date. A picture has
boxes, and arrows that join facing edges of two boxes. The width fits a phone.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import NamedTuple

from architecture_picture import STYLE

FOLDER = Path(__file__).resolve().parent
#: Pixels. LINE is the height of a line of text, and CHARACTER the width of one, rounded up.
WIDTH, MARGIN, LINE, CHARACTER = 372, 10, 17, 6.8
MORE_STYLE = """
  path { stroke: #57606a; stroke-width: 1.4; fill: none; }
  .tip { fill: #57606a; stroke: none; }
  .back { fill: #ffffff; }
  .label { font-size: 11px; fill: #57606a; }
  @media (prefers-color-scheme: dark) {
    path { stroke: #9198a1; }
    .tip { fill: #9198a1; }
    .back { fill: #0d1117; }
    .label { fill: #9198a1; }
  }
"""
TIP = (
    '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    '<path class="tip" d="M0 0 L8 4 L0 8 z"/></marker>'
)


class Box(NamedTuple):
    """A box: place and size in pixels, a name, and lines below the name."""

    left: int
    top: int
    width: int
    name: str
    lines: tuple[str, ...] = ()
    least: int = 0
    """Least height in pixels."""

    @property
    def height(self) -> int:
        """Height in pixels."""
        return max(LINE * (1 + len(self.lines)) + 9, self.least)

    def drawn(self) -> Iterator[str]:
        """Yield the elements of the box."""
        size = f'width="{self.width}" height="{self.height}"'
        yield f'<rect class="box" x="{self.left}" y="{self.top}" {size} rx="5"/>'
        for row, text in enumerate((self.name, *self.lines), 1):
            kind = ' class="name"' if row == 1 else ""
            yield f'<text{kind} x="{self.left + 8}" y="{self.top + LINE * row}">{escape(text)}</text>'


class Arrow(NamedTuple):
    """A labelled arrow between two boxes: vertical at ``x``, or horizontal at ``y``."""

    start: str
    end: str
    label: str
    x: int | None = None
    y: int | None = None

    def drawn(self, boxes: Mapping[str, Box]) -> Iterator[str]:
        """Yield the elements of the arrow."""
        one, two = boxes[self.start], boxes[self.end]
        if self.y is None:
            x1 = x2 = self.x if self.x is not None else two.left + two.width // 2
            down = one.top < two.top
            y1, y2 = (one.top + one.height, two.top) if down else (one.top, two.top + two.height)
        else:
            y1 = y2 = self.y
            right = one.left < two.left
            x1, x2 = (one.left + one.width, two.left) if right else (one.left, two.left + two.width)
        yield f'<path marker-end="url(#tip)" d="M{x1} {y1} L{x2} {y2}"/>'
        if self.label:
            yield from self._label((x1 + x2) // 2, (y1 + y2) // 2)

    def _label(self, x: int, y: int) -> Iterator[str]:
        rows = self.label.split("\n")
        width, height = max(map(len, rows)) * (CHARACTER - 0.7) + 6, 14 * len(rows)
        top = y - height // 2
        yield f'<rect class="back" x="{x - width / 2:g}" y="{top}" width="{width:g}" height="{height}"/>'
        for row, text in enumerate(rows):
            place = f'x="{x}" y="{top + 11 + 14 * row}"'
            yield f'<text class="label" text-anchor="middle" {place}>{escape(text)}</text>'


class Picture(NamedTuple):
    """Boxes by key, and the arrows between them."""

    title: str
    boxes: dict[str, Box]
    arrows: tuple[Arrow, ...]

    def drawn(self) -> str:
        """Return the picture as SVG."""
        height = max(box.top + box.height for box in self.boxes.values()) + MARGIN
        size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
        page = f'<rect class="page" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="6"/>'
        parts = [part for one in self.arrows for part in one.drawn(self.boxes)]
        parts += [part for box in self.boxes.values() for part in box.drawn()]
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(self.title)}">'
        return "\n".join([head, f"<style>{STYLE}{MORE_STYLE}</style>", TIP, page, *parts, "</svg>", ""])


PICTURES = {
    "flow.svg": Picture(
        "Envelopes go from an application over NATS into streams, and acks return",
        {
            "app": Box(
                10, 10, 352, "your application", ("publishes keyed messages, awaits the ack of each",)
            ),
            "nats": Box(10, 100, 352, "NATS", ("on the connection that the application already has",)),
            "streams": Box(
                10,
                184,
                352,
                "streams",
                (
                    "JetStream: those of NATS itself",
                    "gateway: Liftbridge's API on JetStream",
                    "Liftbridge: a server that records subjects",
                ),
            ),
            "workers": Box(10, 300, 82, "workers", ("groups that", "share work")),
            "tables": Box(100, 300, 82, "tables", ("Arrow,", "Parquet")),
            "spark": Box(190, 300, 82, "Spark", ("sources,", "sinks")),
            "people": Box(280, 300, 82, "people", ("command,", "live page")),
        },
        (
            Arrow("app", "nats", "envelopes", x=110),
            Arrow("nats", "app", "acks", x=260),
            Arrow("nats", "streams", ""),
            Arrow("streams", "workers", ""),
            Arrow("streams", "tables", ""),
            Arrow("streams", "spark", ""),
            Arrow("streams", "people", ""),
        ),
    ),
    "publish-states.svg": Picture(
        "States of a publish: queued, sent, and one of four ends",
        {
            "queued": Box(10, 10, 80, "queued", least=77),
            "sent": Box(10, 140, 80, "sent", ("handed to", "the con-", "nection"), least=270),
            "never": Box(
                212, 10, 150, "never sent", ("AckTimeoutError with", "sent = False, or", "TransportError")
            ),
            "stored": Box(212, 140, 150, "stored", ("Ack with its offset",)),
            "refused": Box(212, 220, 150, "not stored", ("PublishError",)),
            "unknown": Box(
                212,
                300,
                150,
                "outcome unknown",
                ("AckTimeoutError with", "sent = True, or", "TransportError"),
            ),
        },
        (
            Arrow("queued", "never", "deadline, or\nthe connection\nends", y=48),
            Arrow("queued", "sent", "a place\nis free", x=50),
            Arrow("sent", "stored", "ack without\nerror", y=162),
            Arrow("sent", "refused", "ack with\nan error", y=242),
            Arrow("sent", "unknown", "deadline, or\nthe connection\nends", y=338),
        ),
    ),
    "subscription-states.svg": Picture(
        "States of a subscription: reading, lost, and two ends",
        {
            "reading": Box(10, 10, 130, "reading", least=140),
            "lost": Box(10, 230, 130, "lost", ("asks for the", "leader, tries again"), least=90),
            "done": Box(242, 10, 120, "done", ("the loop ends",)),
            "failed": Box(242, 80, 120, "failed", ("a typed error",), least=240),
        },
        (
            Arrow("reading", "done", "the stop\nis reached", y=32),
            Arrow("reading", "failed", "deleted,\npaused, read-\nonly, fenced", y=120),
            Arrow("reading", "lost", "connection,\nleader or\nserver gone", x=45),
            Arrow("lost", "reading", "after the\nlast\nmessage", x=112),
            Arrow("lost", "failed", "too long, or\nlost messages", y=275),
        ),
    ),
}


def main() -> None:
    """Write the pictures, or compare them with the files."""
    for name, picture in PICTURES.items():
        file, made = FOLDER / name, picture.drawn()
        if "--check" not in sys.argv[1:]:
            file.write_text(made, "utf-8")
        elif not file.exists() or file.read_text("utf-8") != made:
            sys.exit(f"{name} is out of date: run python docs/flow_pictures.py")


if __name__ == "__main__":
    main()

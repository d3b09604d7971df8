"""The picture of the benchmarks shows the figures of its page."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.picture import Ratio, draw, ratios, write

RESULTS = Path(__file__).resolve().parents[3] / "benchmarks" / "RESULTS.md"
PAGE = """
| what | ours | peer | peer's | times as fast | of single rounds | target | met |
|------|------|------|--------|---------------|------------------|--------|-----|
| read <1 B> | 9/s | nats.go Messages | 3/s | 3 | 2.5 - 4 | - | |
| read <1 B> | 9/s | nats-py fetch(1000) | 1/s | 9 | 8 - 10 | - | |
| read <1 B> | 9/s | itself, plain | 9/s | 1 | 1 - 1 | - | |
| write | 1/s | Liftbridge | 2,000/s | 0.5 | 0.4 - 1,200 | >= 1 | **no** |
"""


def test_picture_is_that_of_the_page() -> None:
    assert RESULTS.with_suffix(".svg").read_text("utf-8") == draw(RESULTS.read_text("utf-8"))


def test_fastest_peer_of_each_operation_is_shown() -> None:
    assert ratios(PAGE) == [
        Ratio("read <1 B>", "nats.go Messages", 3, 2.5, 4),
        Ratio("write", "Liftbridge", 0.5, 0.4, 1200),
    ]


def test_bars_are_on_their_side_of_one() -> None:
    tree = ElementTree.fromstring(draw(PAGE))
    bars = [bar for bar in tree.iter() if bar.tag.endswith("rect")]
    assert [bar.get("class") for bar in bars] == ["faster", "slower"]
    faster, slower = ((float(bar.get("x", "")), float(bar.get("width", ""))) for bar in bars)
    assert slower[0] + slower[1] == pytest.approx(faster[0])  # both touch the line of 1
    assert "read <1 B>" in [text.text for text in tree.iter() if text.tag.endswith("text")]


def test_page_without_a_peer_cannot_be_drawn() -> None:
    with pytest.raises(ValueError, match="no row with a peer"):
        draw("# Results")


def test_page_without_a_peer_gets_no_picture(tmp_path: Path) -> None:
    page = tmp_path / "RESULTS-SPARK.md"
    page.write_text("# Results", "utf-8")
    assert write(page) is None
    assert list(tmp_path.iterdir()) == [page]


def test_picture_is_written_beside_its_page(tmp_path: Path) -> None:
    page = tmp_path / "RESULTS.md"
    page.write_text(PAGE, "utf-8")
    assert write(page) == tmp_path / "RESULTS.svg"
    assert (tmp_path / "RESULTS.svg").read_text("utf-8") == draw(PAGE)

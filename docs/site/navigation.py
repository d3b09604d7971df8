"""Makes the site's navigation from the tables of links in ``docs/index.md``.

A page joins the navigation by a row in a table there: a section with such a table is a caption, and the
first cell of each row links to a page. A directive in the page itself would show as raw text on GitHub.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from sphinx.application import Sphinx

#: The first link of a table's row, if it leads to a page.
ROW = re.compile(r"^\| \[[^\]]+\]\(([^)#]+)\.(?:md|rst)\)", re.MULTILINE)
TOCTREE = """
:::{{toctree}}
:hidden:
:caption: {caption}

{pages}
:::

"""


def with_navigation(text: str) -> str:
    """Return the index with a hidden toctree at the end of each section that has a table of pages."""
    return "".join(_sections(text))


def _sections(text: str) -> Iterator[str]:
    for section in re.split(r"^(?=## )", text, flags=re.MULTILINE):
        yield section
        if section.startswith("## ") and (pages := ROW.findall(section)):
            yield TOCTREE.format(caption=section[3:].splitlines()[0], pages="\n".join(pages))


def _read(app: Sphinx, docname: str, source: list[str]) -> None:
    if docname == app.config.root_doc:
        source[0] = with_navigation(source[0])


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("source-read", _read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

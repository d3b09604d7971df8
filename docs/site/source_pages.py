"""Shows every source file and notebook that a page links to as a page of the site, with coloured code.

Links such as ``../examples/bulk_read.py`` work on GitHub. Here they lead to
``source/examples/bulk_read.py.html``. A link to a folder leads to a list of its files.
"""

from __future__ import annotations

import html
import logging
from collections.abc import Iterator
from pathlib import Path

from docutils import nodes
from nbconvert import HTMLExporter
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_for_filename
from pygments.lexers.special import TextLexer
from pygments.util import ClassNotFound
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.transforms import SphinxTransform

#: Where a file of the repository is in the site, without the suffix of pages.
FOLDER = "source/"
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="icon" href="{root}_static/favicon.svg">
<link rel="stylesheet" href="{root}_static/pygments.css">
<link rel="stylesheet" href="{root}_static/site.css">
</head>
<body class="source" data-theme="auto">
<p><a href="{root}docs/index.html">liftenvelope</a></p>
<h1>{title}</h1>
{body}
</body>
</html>
"""
REDIRECT = """<!doctype html>
<meta charset="utf-8">
<title>liftenvelope</title>
<link rel="icon" href="_static/favicon.svg">
<meta http-equiv="refresh" content="0; url={page}">
<a href="{page}">liftenvelope</a>
"""


def linked(env: BuildEnvironment) -> dict[str, set[str]]:
    """Return the paths that each page links to, kept in Sphinx's environment between builds."""
    if not hasattr(env, "linked_sources"):
        env.linked_sources = {}  # type: ignore[attr-defined]
    return env.linked_sources  # type: ignore[attr-defined, no-any-return]


class LinkToSource(SphinxTransform):
    """Points the links to files and folders that are no pages to their source pages."""

    default_priority = 200

    def apply(self, **_: object) -> None:
        """Replace the nodes that MyST made for such links."""
        for node in [*self.document.findall(addnodes.download_reference), *self.folders()]:
            path = self.path_of(node)
            if path is None:
                continue
            docname = self.env.docname
            linked(self.env).setdefault(docname, set()).add(path)
            uri = "../" * docname.count("/") + FOLDER + path + ".html"
            node.replace_self(nodes.reference("", "", *node.children, refuri=uri, internal=True))

    def folders(self) -> Iterator[addnodes.pending_xref]:
        """Yield the references of MyST that lead to folders."""
        for node in self.document.findall(addnodes.pending_xref):
            if node.get("reftype") == "myst" and node.get("refdomain") is None:
                path = self.path_of(node)
                if path is not None and Path(self.env.srcdir, path).is_dir():
                    yield node

    def path_of(self, node: nodes.Element) -> str | None:
        """Return the target in the repository, or None if nothing is there."""
        found, _ = self.env.relfn2path(str(node["reftarget"]), self.env.docname)
        return found.rstrip("/") if Path(self.env.srcdir, found).exists() else None


def _forget(_: Sphinx, env: BuildEnvironment, docname: str) -> None:
    linked(env).pop(docname, None)


def _merge(_: Sphinx, env: BuildEnvironment, __: set[str], other: BuildEnvironment) -> None:
    """Take what another process has read."""
    linked(env).update(linked(other))


def _write(app: Sphinx, failure: Exception | None) -> None:
    """Write the pages past the theme, which would take a minute to make the navigation of each one."""
    if failure is not None:
        return
    paths = set().union(*linked(app.env).values())
    for path in sorted(paths):
        source = Path(app.srcdir, path)
        body = _listing(source, path, paths) if source.is_dir() else _coloured(source)
        page = Path(app.outdir, f"{FOLDER}{path}.html")
        page.parent.mkdir(parents=True, exist_ok=True)
        root = "../" * (path.count("/") + 1)
        page.write_text(PAGE.format(title=html.escape(path), root=root, body=body), "utf-8")
    Path(app.outdir, "index.html").write_text(REDIRECT.format(page=f"{app.config.root_doc}.html"), "utf-8")


def _coloured(source: Path) -> str:
    if source.suffix == ".ipynb":
        return str(HTMLExporter(template_name="basic").from_filename(str(source))[0])
    try:
        lexer = get_lexer_for_filename(source.name)
    except ClassNotFound:
        lexer = TextLexer()
    return highlight(source.read_text("utf-8"), lexer, HtmlFormatter(lineanchors="line"))


def _listing(folder: Path, path: str, paths: set[str]) -> str:
    rows = []
    for one in sorted(folder.iterdir()):
        if one.name.startswith((".", "__pycache__")):
            continue
        name = html.escape(one.name)
        link = f'<a href="{html.escape(folder.name)}/{name}.html">{name}</a>'
        rows.append(f"<li>{link if f'{path}/{one.name}' in paths else name}</li>")
    return f"<ul>{''.join(rows)}</ul>"


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    logging.getLogger("traitlets").setLevel(logging.ERROR)  # nbconvert misses texts for plots
    app.add_transform(LinkToSource)
    app.connect("env-purge-doc", _forget)
    app.connect("env-merge-info", _merge)
    app.connect("build-finished", _write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

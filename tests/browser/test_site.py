"""The documentation site of ``make docs`` in Chromium, served on the loopback interface."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from threading import Thread

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By

from tests.browser.conftest import ROOT, Page
from tests.unit.project.test_pages import DOCUMENTED

SITE = ROOT / "build" / "site"
#: Pages with the widest tables, code and names.
PAGES = ("docs/index", "docs/tutorial", "docs/operating", "docs/from-go-liftbridge", "docs/api/jetstream",
         "docs/api/client", "docs/commands", "README", "benchmarks/RESULTS")  # fmt: skip
SOURCE = "source/examples/bulk_read.py"
PHONE = 390


class Files(SimpleHTTPRequestHandler):
    """Serves the files without a log."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    assert (SITE / "index.html").exists(), "run make docs"
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Files, directory=str(SITE))) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.fixture
def page(driver: webdriver.Chrome, site: str) -> Iterator[Page]:
    tab = Page(driver, site)
    yield tab
    assert tab.complaints() == []


@pytest.mark.parametrize("name", [*PAGES, SOURCE])
def test_page_fits_a_phone(page: Page, name: str) -> None:
    page.open(f"{name}.html", width=PHONE, height=844)
    assert page.run("return document.documentElement.scrollWidth") == PHONE
    page.wait_text("liftenvelope")


@pytest.mark.parametrize("name", ["docs/tutorial", SOURCE])
def test_page_follows_the_colour_scheme(page: Page, name: str) -> None:
    shades = []
    for scheme in ("light", "dark"):
        page.open(f"{name}.html", scheme=scheme)
        colour = page.run("return getComputedStyle(document.body).backgroundColor")
        shades.append(sum(map(int, re.findall(r"\d+", colour)[:3])))
    light, dark = shades
    assert dark < 150 < light or light == 0  # 0: transparent, over the white of the browser


def test_code_has_a_copy_button(page: Page) -> None:
    page.open("docs/tutorial.html")
    page.wait(lambda: page.run("return document.querySelectorAll('button.copybtn').length") > 5, "buttons")


def test_search_finds_a_class_and_a_page(page: Page) -> None:
    for words, found in (("AckInbox", "liftenvelope.nats.AckInbox"), ("tutorial", "Tutorial")):
        page.open(f"search.html?q={words}")
        page.wait_text(found)


def test_front_page_leads_to_the_index(page: Page) -> None:
    page.open("index.html")
    page.wait_text("the pages")


def test_navigation_has_every_caption(page: Page) -> None:
    page.open("docs/index.html")
    captions = [one.text for one in page.driver.find_elements(By.CSS_SELECTOR, ".sidebar-tree .caption-text")]
    sections = re.findall(r"^## (.+)$", (ROOT / "docs" / "index.md").read_text("utf-8"), re.MULTILINE)
    assert [one.lower() for one in captions] == [
        one.lower() for one in sections if one not in ("Examples", "How the code on these pages is checked")
    ]


def test_every_public_name_is_in_the_reference() -> None:
    pages = "\n".join(path.read_text("utf-8") for path in (SITE / "docs" / "api").glob("*.html"))
    ids = set(re.findall(r'id="(liftenvelope[\w.]+)"', pages))
    modules = [name for name in DOCUMENTED if ".spark" not in name]  # Spark is not installed here
    names = {f"{name}.{one}" for name in modules for one in import_module(name).__all__}
    assert len(names) > 300
    assert names - ids == set()


def test_nothing_is_loaded_from_elsewhere() -> None:
    """The site works offline, and tells nobody who reads it."""
    loaded = re.compile(r'<(?:script|img|iframe)[^>]+src="(?:https?:)?//|<link[^>]+rel="stylesheet"[^>]+//')
    pages = [path for path in SITE.rglob("*.html") if loaded.search(path.read_text("utf-8"))]
    assert pages == []


def test_every_link_of_the_site_leads_to_a_file_and_an_anchor() -> None:
    anchors: dict[Path, set[str]] = {}
    dead = []
    for path in SITE.rglob("*.html"):
        for link in set(re.findall(r'<a [^>]*href="([^"]*)"', path.read_text("utf-8"))):
            if re.match(r"[a-z]+:", link):
                continue
            place, _, anchor = link.partition("#")
            target = (path.parent / place.partition("?")[0]).resolve() if place else path
            if target not in anchors and target.is_file():
                anchors[target] = set(re.findall(r'id="([^"]+)"', target.read_text("utf-8", "replace")))
            if target not in anchors or (anchor and anchor not in anchors[target]):
                dead.append(f"{path.relative_to(SITE)}: {link}")
    assert dead == []

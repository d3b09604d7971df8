"""Changes on the page in Chromium: a question before each, the outcome, and requests of other sites."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest
from selenium import webdriver

from liftenvelope.jetstream import ConsumerConfig, ConsumerInfo, StreamConfig
from liftenvelope.testing import NatsServer
from tests.browser.conftest import Keys, Page, jetstream, monitoring

STREAM = "jobs"


@pytest.fixture(scope="module")
def changeable(server: NatsServer) -> Iterator[str]:
    """Address of a monitor that allows changes."""
    asyncio.run(_fill(server.url))
    with monitoring(server.url, "--allow-changes") as url:
        yield url


async def _fill(url: str) -> None:
    async with jetstream(url) as js:
        await js.create_stream(StreamConfig(name=STREAM, subjects=("jobs",)))
        for _ in range(5):
            await js.publish("jobs", b"")
        await js.create_consumer(STREAM, ConsumerConfig(durable_name="worker"))


@pytest.fixture
def page(driver: webdriver.Chrome, changeable: str) -> Iterator[Page]:
    page = Page(driver, changeable)
    yield page
    assert page.complaints() == []


def click(page: Page, name: str) -> None:
    script = """const buttons = [...document.querySelectorAll('button')];
        const found = buttons.find((one) => one.innerText === arguments[0]);
        if (found) found.click(); return Boolean(found)"""
    page.wait(lambda: page.run(script, name), f"the button {name}")


def consumer(server: NatsServer) -> ConsumerInfo:
    async def ask() -> ConsumerInfo:
        async with jetstream(server.url) as js:
            return (await js.consumer(STREAM, "worker")).cached_info

    return asyncio.run(ask())


def messages(server: NatsServer) -> int:
    async def ask() -> int:
        async with jetstream(server.url) as js:
            return (await js.stream(STREAM)).cached_info.state.messages

    return asyncio.run(ask())


def test_consumer_is_paused_and_resumed(page: Page, server: NatsServer) -> None:
    page.open("#/consumer/jobs/worker")
    click(page, "Pause")
    page.wait_text("Deliver no messages to worker for")
    page.press(Keys.ESCAPE)
    page.wait(lambda: page.run("return document.querySelector('dialog') === null"), "the end of the question")
    assert not consumer(server).paused
    click(page, "Pause")
    page.run("document.querySelector('dialog button[type=submit]').click()")
    page.wait_text("paused consumer worker for 600 s")
    assert consumer(server).paused
    click(page, "Resume")
    page.run("document.querySelector('dialog button[type=submit]').click()")
    page.wait_text("resumed consumer worker")
    assert not consumer(server).paused


def test_purge_needs_the_name_of_the_stream(page: Page, server: NatsServer) -> None:
    page.open("#/stream/jobs", width=390, height=844)
    click(page, "Purge")
    page.wait_text("Type the name of the stream")
    assert page.run("return document.documentElement.scrollWidth") == 390
    is_closed = "return document.querySelector('dialog button[type=submit]').disabled"
    page.press(*"job", Keys.ENTER)
    assert page.run(is_closed)
    assert messages(server) == 5
    page.run("document.querySelector('dialog input').value = ''")
    page.press(*STREAM)
    assert not page.run(is_closed)
    page.press(Keys.ENTER)
    page.wait_text("deleted 5 messages of jobs")
    assert messages(server) == 0


def test_page_without_the_option_has_no_buttons(driver: webdriver.Chrome, server: NatsServer) -> None:
    with monitoring(server.url) as url:
        page = Page(driver, url)
        page.open("#/stream/jobs")
        page.wait_text("Partitions")
        assert page.run("return document.querySelector('.changing').hidden")


def test_other_site_changes_nothing(driver: webdriver.Chrome, changeable: str, server: NatsServer) -> None:
    """A page of another origin on this machine sends what a page of the monitor sends, and a plain form."""
    change = {"action": "pause consumer", "stream": STREAM, "consumer": "worker", "seconds": 600}
    with _site(f"{changeable}api/changes", json.dumps(change)) as other:
        page = Page(driver, other)
        page.open()
        page.wait(lambda: page.run("return window.outcome?.length === 3"), "three outcomes")
        assert page.run("return window.outcome") == ["failed", "failed", "failed"]
        page.complaints()
        page.run("document.forms[0].submit()")
        page.wait_text("requests of other sites are refused")
        page.complaints()
    assert not consumer(server).paused


class _Site(HTTPServer):
    """Another site, whose page sends requests to the monitor."""

    def __init__(self, target: str, change: str) -> None:
        script = f"""
            const target = {json.dumps(target)}, body = {json.dumps(change)};
            const about = target.replace('changes', 'about');
            const text = {{ 'Content-Type': 'text/plain' }};
            const json = {{ 'Content-Type': 'application/json', 'X-Liftenvelope-Key': 'x' }};
            const tries = [
              fetch(target, {{ method: 'POST', body, headers: json }}),
              fetch(target, {{ method: 'POST', body, mode: 'no-cors', headers: text }}),
              fetch(about),
            ];
            Promise.all(tries.map((one) => one.then((found) => found.type, () => 'failed')))
              .then((found) => {{ window.outcome = found; }});"""
        form = (
            f"<form method=post enctype=text/plain action={json.dumps(target)}><input name=a value=b></form>"
        )
        page = f"<!doctype html><title>other</title>{form}<script>{script}</script>".encode()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.end_headers()
                self.wfile.write(page)

            def log_message(self, *_: object) -> None:
                """Write no lines between those of pytest."""

        super().__init__(("127.0.0.1", 0), Handler)


@contextmanager
def _site(target: str, change: str) -> Iterator[str]:
    """Serve the other site while the block runs; yield its address."""
    with _Site(target, change) as site:
        thread = Thread(target=site.serve_forever)
        thread.start()
        try:
            yield f"http://localhost:{site.server_port}/"
        finally:
            site.shutdown()
            thread.join()

"""Chromium, NATS with streams that are written all the time, and the monitor as a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import nats
import pytest
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from liftenvelope import new_message
from liftenvelope.group import Coordinator, GroupConsumer, JetStreamTopic
from liftenvelope.jetstream import Consumer, ConsumerConfig, JetStream, StreamConfig
from liftenvelope.testing import NatsServer, run_nats_server

#: Programs of Debian's packages chromium and chromium-driver.
BROWSER = os.environ.get("CHROMIUM", "/usr/bin/chromium")
DRIVER = os.environ.get("CHROMEDRIVER", "/usr/bin/chromedriver")
#: Seconds to wait for what must happen.
PATIENCE = 60.0
IMAGES = Path(__file__).parents[2] / "docs" / "images"
ROOT = Path(__file__).parents[2]
_T = TypeVar("_T")


class Page:
    """A tab of the browser on a monitor."""

    def __init__(self, driver: webdriver.Chrome, url: str) -> None:
        self.driver = driver
        self.url = url
        driver.get("about:blank")
        self.complaints()  # about the page of an earlier test

    def open(self, path: str = "", *, width: int = 1280, height: int = 900, scheme: str = "light") -> None:
        """Load a page anew, in a window of a size and with a colour scheme."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        self.driver.get("about:blank")  # a change of the part after # alone would load nothing
        self.driver.get(self.url + path)

    def run(self, script: str, *arguments: object) -> Any:
        """Run a script in the page and return its result."""
        return self.driver.execute_script(script, *arguments)

    @property
    def text(self) -> str:
        return str(self.run("return document.body.innerText"))

    def wait(self, found: Callable[[], _T], what: str) -> _T:
        """Wait until something is found, and return it."""
        ends = time.monotonic() + PATIENCE
        while not (one := found()):
            if time.monotonic() > ends:
                raise AssertionError(f"{what} did not appear. The page:\n{self.text}")
            time.sleep(0.05)
        return one

    def wait_text(self, text: str) -> None:
        self.wait(lambda: text in self.text, repr(text))

    def press(self, *keys: str) -> None:
        for key in keys:
            ActionChains(self.driver).send_keys(key).perform()

    def pixels(self) -> str:
        """Return the first plot as an image; empty before it is there."""
        return str(self.run("return document.querySelector('.plot canvas')?.toDataURL() ?? ''"))

    def tile(self, name: str) -> str:
        """Return the value of a tile."""
        script = """const found = [...document.querySelectorAll('.tile')].find(
            (one) => one.querySelector('.name').textContent === arguments[0]);
            return found?.querySelector('.value').innerText ?? ''"""
        return str(self.run(script, name))

    def shoot(self, name: str) -> None:
        """Write a picture for the documentation if LIFTENVELOPE_SCREENSHOTS is set."""
        if os.environ.get("LIFTENVELOPE_SCREENSHOTS"):
            IMAGES.mkdir(exist_ok=True)
            self.driver.save_screenshot(str(IMAGES / f"{name}.png"))

    def complaints(self) -> list[str]:
        """Return errors of the console, which include violations of the content security policy."""
        entries: list[dict[str, object]] = self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        return [str(one["message"]) for one in entries if one["level"] == "SEVERE"]


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    for program in (BROWSER, DRIVER):
        if not Path(program).exists():
            pytest.fail(f"{program} is missing: run apt-get install chromium chromium-driver")
    options = Options()
    options.binary_location = BROWSER
    profile = tmp_path_factory.mktemp("profile")
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                     "--hide-scrollbars", f"--user-data-dir={profile}"):  # fmt: skip
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    running = webdriver.Chrome(options=options, service=Service(DRIVER))
    running.set_page_load_timeout(PATIENCE)
    running.set_script_timeout(PATIENCE)
    try:
        yield running
    finally:
        running.quit()


@contextmanager
def monitoring(url: str, *options: str, **environment: str) -> Iterator[str]:
    """Run ``liftenvelope monitor``, and yield the address of the page."""
    command = [sys.executable, "-m", "liftenvelope", "monitor", "--url", url, "--json", "--timeout", "60"]
    command += ["--interval", "200ms", "--http", "127.0.0.1:0", *options]
    variables = {**os.environ, "XDG_CONFIG_HOME": "/nowhere", **environment}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=variables) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, "the monitor did not start"
            yield str(json.loads(line)["url"])
        finally:
            process.terminate()
            process.wait(PATIENCE)


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with run_nats_server(jetstream=True, max_payload=32 * 2**20) as running:
        yield running


@asynccontextmanager
async def jetstream(url: str) -> AsyncIterator[JetStream]:
    async with await nats.connect(url) as nc, JetStream(nc, timeout=PATIENCE) as js:
        yield js


async def _work(url: str, ready: threading.Event, ended: threading.Event) -> None:
    """Create streams, a consumer and a group, and use them until the end."""
    async with AsyncExitStack() as stack:
        js = await stack.enter_async_context(jetstream(url))
        nc = await stack.enter_async_context(await nats.connect(url))
        await stack.enter_async_context(Coordinator(nc, timeout=PATIENCE))
        for name in ("orders", "payments", "audit", "sensors"):
            await js.create_stream(StreamConfig(name=name, subjects=(f"{name}.*",)))
        worker = await js.create_consumer(
            "orders", ConsumerConfig(durable_name="billing", max_ack_pending=50)
        )
        topic = JetStreamTopic.of_stream("payments", [f"payments.{number}" for number in range(6)])
        tasks = [asyncio.create_task(_bill(worker))]
        tasks += [asyncio.create_task(_settle(url, topic, f"ledger-{number}")) for number in range(3)]
        count = 0
        while not ended.is_set():
            count += 1
            for _ in range(4 + count % 9):
                value = json.dumps({"order": count, "amount": 12.5, "currency": "EUR"}).encode()
                message = new_message(value, key=b"customer-%d" % (count % 7), headers={"trace": b"4bf92f"})
                await js.publish("orders.new", message)
            for number in range(1 + count % 4):
                await js.publish(f"payments.{(count + number) % 6}", b"%d EUR" % count)
            await js.publish("sensors.attic", bytes(range(20, 52)))
            if count == 8:
                ready.set()
            await asyncio.sleep(0.05)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def _bill(worker: Consumer) -> None:
    while True:
        for message in await worker.fetch_no_wait(20):
            message.ack()
        await asyncio.sleep(0.1)


async def _settle(url: str, topic: JetStreamTopic, name: str) -> None:
    async with (
        await nats.connect(url) as nc,
        GroupConsumer(nc, "ledger", topic, consumer_id=name, auto_offset="earliest", timeout=PATIENCE) as one,
    ):
        async for message in one:
            await one.commit(message)
            await asyncio.sleep(0.02)


@pytest.fixture(scope="module")
def busy(server: NatsServer) -> Iterator[str]:
    """Address of a monitor whose servers have streams that are written and read all the time."""
    ready, ended = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(_work(server.url, ready, ended)))
    thread.start()
    try:
        assert ready.wait(240)
        with monitoring(server.url) as url:
            yield url
    finally:
        ended.set()
        thread.join()


__all__ = ["PATIENCE", "Keys", "Page", "jetstream", "monitoring"]

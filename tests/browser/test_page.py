"""The monitor's page in Chromium: live updates, hostile text, keyboard, small windows."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import pytest
from selenium import webdriver

from liftenvelope import new_message
from liftenvelope.client import connect
from liftenvelope.jetstream import ConsumerConfig, JetStream, StreamConfig
from liftenvelope.testing import NatsServer, run_nats_server
from tests.browser.conftest import PATIENCE, Keys, Page, jetstream, monitoring

#: Text that would run if it became HTML, and a character that reverses what follows.
SCRIPT = "<img/src=x/onerror=window.hacked=1><script>window.hacked=1</script>"
REVERSED = "abc\u202edcba"


@pytest.fixture
def page(driver: webdriver.Chrome, busy: str) -> Iterator[Page]:
    page = Page(driver, busy)
    yield page
    assert page.complaints() == []


def test_rows_tiles_and_plot_are_updated(page: Page) -> None:
    page.open()
    page.wait_text("orders")
    page.wait(lambda: "live" in page.text, "the state")
    before = page.wait(page.pixels, "a plot")
    count = page.wait(lambda: page.tile("Messages"), "the number of messages")
    page.wait(lambda: page.pixels() != before, "a new plot")
    page.wait(lambda: page.tile("Messages") != count, "a new number of messages")
    page.wait(
        lambda: page.run("return document.querySelectorAll('.u-legend .u-series').length") == 2, "a legend"
    )


def test_stream_shows_rates_lag_and_envelopes(page: Page) -> None:
    page.open("#/stream/orders")
    page.wait_text("Lag of readers")
    page.wait_text("customer-")
    assert "4bf92f" in page.text
    page.wait(lambda: page.run("return document.querySelectorAll('.plot canvas').length") == 2, "two plots")


def test_search_by_offset_and_key(page: Page) -> None:
    page.open("#/stream/orders")
    page.wait_text("customer-")
    page.run("document.querySelectorAll('form.search input')[0].focus()")
    page.press("0", Keys.TAB, *"customer-1", Keys.ENTER)
    page.wait_text("looked at")
    keys = page.run("return [...document.querySelectorAll('.messages .tags')].map((one) => one.innerText)")
    assert len(keys) > 2
    assert all("customer-1" in one for one in keys)
    first = "return document.querySelector('.messages .offset').innerText"
    go_on = "document.querySelector('.messages + .more:not([hidden]) button')"
    offset = page.run(first)
    page.wait(lambda: page.run(f"return {go_on} !== null"), "a button to go on")
    page.run(f"{go_on}.click()")
    page.wait(lambda: page.run(first) != offset, "the following messages")


def test_late_answer_to_an_earlier_query_does_not_replace_a_search(page: Page) -> None:
    page.open("#/stream/orders")
    page.wait_text("customer-")
    page.run(
        """const real = window.fetch;
        window.fetch = (...given) => new Promise((done) => {
            window.late = () => real(...given).then((answer) => { done(answer); window.sent = true; });
            window.fetch = real;
        });
        document.querySelectorAll('form.search button')[1].click()"""
    )
    page.run("document.querySelectorAll('form.search input')[0].focus()")
    page.press("0", Keys.ENTER)
    page.wait_text("from the start of the search")
    page.run("window.late()")
    page.wait(lambda: page.run("return window.sent === true"), "the late answer")
    newer = "return fetch('api/messages?stream=orders&partition=0&start=').then((answer) => answer.json())"
    page.run(newer)  # the page has handled the answer before this one
    assert "from the start of the search" in page.text


def test_assignment_of_a_group_is_drawn(page: Page) -> None:
    page.open("#/group/ledger")
    page.wait(lambda: page.run("return document.querySelectorAll('.drawing path').length") == 6, "six lines")
    for name in ("ledger-0", "ledger-1", "ledger-2"):
        assert name in page.text


@pytest.mark.parametrize(
    "path", ["", "#/readers", "#/stream/orders", "#/group/ledger", "#/consumer/orders/billing"]
)
def test_small_window_has_no_sideways_scrolling(page: Page, path: str) -> None:
    page.open(path, width=390, height=844)
    page.wait(
        lambda: page.run("return document.querySelectorAll('.rows tbody tr, .u-legend').length > 0"), "rows"
    )
    assert page.run("return document.documentElement.scrollWidth") == 390


def test_keyboard_reaches_everything(page: Page) -> None:
    page.open()
    page.wait_text("payments")
    page.press(Keys.TAB)
    assert page.run("return document.activeElement.id") == "skip"
    page.press(Keys.ENTER)
    assert page.run("return document.activeElement.id") == "main"
    page.press("/")
    page.press(*"paym")
    page.wait(lambda: page.run("return document.querySelectorAll('.rows tbody tr').length") == 1, "one row")
    for _ in range(20):
        page.press(Keys.TAB)
        if page.run("return document.activeElement.closest('tbody') !== null"):
            break
    page.press(Keys.ENTER)
    page.wait(lambda: page.run("return document.querySelector('h1').innerText") == "payments", "the stream")
    assert page.run("return document.activeElement.id") == "main"
    assert page.driver.title.startswith("payments")


def test_columns_are_sorted_by_their_buttons(page: Page) -> None:
    page.open()
    page.wait_text("sensors")
    page.run("document.querySelectorAll('.rows th button')[3].click()")
    assert page.run("return document.querySelectorAll('.rows th')[3].ariaSort") == "descending"
    page.wait(
        lambda: page.run("return document.querySelector('.rows tbody a').innerText") == "orders", "the order"
    )


def test_plots_have_the_times_of_messages_in_every_time_zone(page: Page) -> None:
    zone = "Emulation.setTimezoneOverride"
    page.driver.execute_cdp_cmd(zone, {"timezoneId": "Asia/Kathmandu"})  # 5 h 45 min ahead of UTC
    try:
        page.open("#/stream/sensors")
        page.wait_text("sensors.attic")
        plotted = "return document.querySelector('.u-legend .u-value').innerText.match(/[\\d:]+/)?.[0] ?? ''"
        stored = "return document.querySelector('.messages .line span + span').innerText.slice(11, 19)"
        times = [page.wait(lambda: page.run(plotted), "a time"), page.run(stored)]
    finally:
        page.driver.execute_cdp_cmd(zone, {"timezoneId": ""})
    later, earlier = (60 * int(one[:2]) + int(one[3:5]) for one in times)
    # A message may be stored just after the plotted sample, in the next minute.
    assert min((later - earlier) % 1440, (earlier - later) % 1440) < 60


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_follow_the_system(page: Page, scheme: str) -> None:
    page.open(scheme=scheme)
    page.wait_text("orders")
    colour = page.run("return getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
    assert (sum(colour) > 384) is (scheme == "light")


def test_pictures_for_the_docs(page: Page) -> None:
    """Every page has its plots filled. With LIFTENVELOPE_SCREENSHOTS the pictures are written."""
    points = "document.querySelector('svg.spark polyline')?.getAttribute('points')"
    enough = f"return ({points} ?? '').split(' ').length"
    page.open(scheme="dark", height=860)
    page.wait(lambda: page.run(enough) >= 40, "a full trend")
    page.shoot("monitor-streams")
    for path, name, scheme, width, height in (
        ("#/stream/orders", "monitor-stream", "light", 1280, 1100),
        ("#/group/ledger", "monitor-group", "dark", 1280, 900),
        ("", "monitor-small", "dark", 390, 1000),
    ):
        page.open(path, scheme=scheme, width=width, height=height)
        page.wait(page.pixels, "a plot")
        page.wait(lambda: page.run("return document.querySelectorAll('.rows tbody tr').length > 0"), "rows")
        page.shoot(name)


# Servers of their own


async def _hostile(js: JetStream) -> None:
    await js.create_stream(StreamConfig(name="hostile<b&amp;x", subjects=("hostile.>",)))
    await js.create_consumer("hostile<b&amp;x", ConsumerConfig(durable_name="reader<i&lt;y"))
    await js.publish("hostile.big", b"z" * (10 * 2**20))
    await js.publish("hostile.binary", bytes(range(256)))
    await js.publish(f"hostile.{SCRIPT}", SCRIPT.encode(), headers={"X-Header": SCRIPT})
    value = new_message(REVERSED.encode(), key=REVERSED.encode(), headers={"h": SCRIPT.encode()})
    await js.publish("hostile.reversed", value)


def test_hostile_text_is_shown_as_text(driver: webdriver.Chrome) -> None:
    async def prepare(url: str) -> None:
        async with jetstream(url) as js:
            await _hostile(js)

    with run_nats_server(jetstream=True, max_payload=32 * 2**20) as server:
        asyncio.run(prepare(server.url))
        with monitoring(server.url) as url:
            page = Page(driver, url)
            page.open()
            page.wait_text("hostile<b&amp;x")
            page.open("#/stream/hostile%3Cb%26amp%3Bx")
            page.wait_text("The start of 10 MiB is shown.")
            text = page.text
            assert text.count(SCRIPT) == 4  # subject, header, value, header of the envelope
            assert "reader<i&lt;y" in text
            assert "abc\\u202edcba" in text
            assert "\u202e" not in text
            assert "00f0  f0 f1 f2" in text
            assert page.run("return window.hacked") is None
            assert (
                page.run("return document.querySelectorAll('main script, main img, main b b, main i').length")
                == 0
            )
            assert len(text) < 20_000
            assert page.complaints() == []


def test_page_survives_restarts_of_servers_and_monitor(driver: webdriver.Chrome, server: NatsServer) -> None:
    async def publish(url: str, count: int) -> None:
        async with jetstream(url) as js:
            await js.create_or_update_stream(StreamConfig(name="kept", subjects=("kept",)))
            for _ in range(count):
                await js.publish("kept", b"")

    with run_nats_server(jetstream=True) as own:
        asyncio.run(publish(own.url, 3))
        with monitoring(own.url, "--timeout", "5") as url:
            page, port = Page(driver, url), url.rstrip("/").rpartition(":")[2]
            page.open()
            page.wait(lambda: page.tile("Messages") == "3", "three messages")
            own.stop()
            page.wait_text("servers unreachable")
            assert "kept" in page.text
            own.start()
            asyncio.run(publish(own.url, 4))
            page.wait(lambda: page.tile("Messages") == "7", "seven messages")
            page.wait(lambda: "unreachable" not in page.text, "the end of the alert")
        page.wait_text("monitor unreachable")
        with monitoring(own.url, "--http", f"127.0.0.1:{port}"):
            page.wait(
                lambda: "unreachable" not in page.text and page.tile("Messages") == "7", "the page again"
            )


def test_a_thousand_streams(driver: webdriver.Chrome, capsys: pytest.CaptureFixture[str]) -> None:
    names = [f"stream-{number:04}" for number in range(1_000)]
    ended = threading.Event()

    async def create(url: str) -> None:
        async with jetstream(url) as js:
            for name in names:
                await js.create_stream(StreamConfig(name=name, subjects=(name,)))

    async def write(url: str) -> None:
        """Publish to every stream each second."""
        async with jetstream(url) as js:
            while not ended.is_set():
                acks = [await js.publish_async(name, b"x" * 100) for name in names]
                await asyncio.gather(*acks, asyncio.sleep(1.0))

    with run_nats_server(jetstream=True) as server:
        asyncio.run(create(server.url))
        writer = threading.Thread(target=lambda: asyncio.run(write(server.url)))
        writer.start()
        try:
            with monitoring(server.url) as url:
                _check_frames(Page(driver, url), capsys)
        finally:
            ended.set()
            writer.join()


def _check_frames(page: Page, capsys: pytest.CaptureFixture[str]) -> None:
    page.open()
    page.wait(lambda: page.tile("Streams") == "1,000", "a thousand streams")
    page.wait_text("100 of 1,000 shown")
    page.wait(lambda: page.tile("Recorded")[:1] in set("123456789"), "a rate")
    frames = page.driver.execute_async_script(
        """const done = arguments[0], times = [];
        const next = (at) => {
          times.push(at);
          if (times.length < 300) requestAnimationFrame(next); else done(times);
        };
        requestAnimationFrame(next);"""
    )
    gaps = sorted(later - earlier for earlier, later in pairwise(frames))
    with capsys.disabled():
        print(f"\n1,000 busy streams: frames {gaps[len(gaps) // 2]:.1f} ms in the middle, "
              f"{gaps[len(gaps) * 99 // 100]:.1f} ms for 99%, {gaps[-1]:.1f} ms at most")  # fmt: skip
    page.press("/", *"0999")
    page.wait(lambda: page.run("return document.querySelectorAll('.rows tbody tr').length") == 1, "a row")
    assert page.complaints() == []


def test_login_by_the_form(driver: webdriver.Chrome, server: NatsServer) -> None:
    with monitoring(server.url, LIFTENVELOPE_MONITOR_TOKEN="a token of the test") as url:
        page = Page(driver, url)
        page.open()
        page.wait_text("Log in")
        page.press(*"a token of the tests", Keys.ENTER)
        page.wait(lambda: page.driver.current_url.endswith("?wrong"), "the refusal")
        page.press(*"a token of the test", Keys.ENTER)
        page.wait_text("No alerts")
        assert page.complaints() == []


async def _use(address: str, ready: threading.Event, ended: threading.Event) -> None:
    """Publish to a gateway and read from it until the end."""
    async with connect(address) as client:
        for name in ("orders", "payments"):
            await client.create_stream(name, name, partitions=2)
        async with client.subscribe("orders"), client.subscribe("orders", partition=1):
            while not ended.is_set():
                await client.publish("payments", b"12 EUR")
                ready.set()
                await asyncio.sleep(0.02)


@contextmanager
def _gateway() -> Iterator[tuple[str, str]]:
    """Run a gateway that is used; yield its address and that of its metrics."""
    command = [sys.executable, "-m", "liftenvelope", "serve", "--nats", "", "--id", "gateway-1"]
    with run_nats_server(jetstream=True) as server:
        command[5] = server.url
        command += ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--log-format", "json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            try:
                for line in process.stderr:
                    if "serving health and metrics on " in line:
                        break
                metrics = json.loads(line)["message"].rpartition(" ")[2]
                address = process.stdout.readline().split(" on ")[1].partition(",")[0]
                yield address, metrics
            finally:
                process.terminate()
                process.communicate()


def test_pages_of_gateways(driver: webdriver.Chrome) -> None:
    ready, ended = threading.Event(), threading.Event()
    with _gateway() as (address, metrics):
        thread = threading.Thread(target=lambda: asyncio.run(_use(address, ready, ended)))
        thread.start()
        try:
            assert ready.wait(PATIENCE)
            with monitoring(f"liftbridge://{address}", "--gateway-metrics", metrics) as url:
                page = Page(driver, url)
                page.open()
                page.wait(
                    lambda: page.run("return !document.getElementById('gateways-link').hidden"), "a link"
                )
                page.run("document.getElementById('gateways-link').click()")
                page.wait(lambda: page.tile("Open reads").startswith("2"), "the open reads")
                page.wait(lambda: page.tile("Partitions led") == "4", "the leaders")
                page.wait(lambda: page.tile("Acks")[0] in "123456789", "the rate of acks")
                page.wait(page.pixels, "a plot")
                assert page.run("return document.querySelectorAll('.rows tbody tr').length") == 1
                page.open("#/gateways", width=390, height=844)
                page.wait_text("gateway-1")
                assert page.run("return document.documentElement.scrollWidth") == 390
                page.open("#/gateway/gateway-1", height=1000)
                page.wait_text("payments")
                before = page.wait(page.pixels, "a plot")
                page.wait(lambda: page.pixels() != before, "a new plot")
                assert page.run("return document.querySelectorAll('.plot canvas').length") == 2
                assert page.run("return document.querySelectorAll('.rows tbody tr').length") == 4
                page.shoot("monitor-gateway")
                assert page.complaints() == []
        finally:
            ended.set()
            thread.join()

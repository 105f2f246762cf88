"""The dashboard in a real browser (Chromium), beside a real group: no errors, no foreign requests, nothing
wider than the window, and changes that appear by themselves.

The browser is the system's (`chromium`, `chromium-browser` or `google-chrome`, or the path in CHROMIUM).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from dledger import Message, Producer
from dledger.admin import AdminClient
from dledger.local.cluster import MIB, ClusterSpec, LocalCluster, find_base_port
from dledger.remoting.bodies import MessageQueue

playwright = pytest.importorskip("playwright.sync_api", reason="pip install 'dledger[browser]'")
pytestmark = pytest.mark.browser
LIMIT_MS = 30_000
WIDTHS = (390, 820, 1400)
"""Widths of the window in pixels: a phone, a tablet, a desk."""
HOSTILE = "<img src=x onerror=alert(1)>\x07\u202e"
NAMES = ("chromium", "chromium-browser", "google-chrome")


def browser_path() -> str:
    """The browser of this machine. Skips the test, or fails it if DLEDGER_REQUIRE_BROWSER is set, where there
    is none."""
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        said = f"no browser: install one of {', '.join(NAMES)}, or name it with CHROMIUM"
        if os.environ.get("DLEDGER_REQUIRE_BROWSER"):
            pytest.fail(said)
        pytest.skip(said)
    return found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        # The browser's sandbox needs rights that tests in containers do not have. It opens our pages only.
        opened = driver.chromium.launch(executable_path=browser_path(), args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    spec = ClusterSpec(base_port=find_base_port(start=24000), segment_size=16 * MIB)
    cluster = LocalCluster.create(tmp_path_factory.mktemp("browser") / "group", spec)
    cluster.start()
    cluster.create_topic("Orders", 2)
    cluster.wait_registered()
    with Producer("PG", cluster.namesrv_addr) as producer:
        for number in range(30):
            body = HOSTILE if number == 29 else f'{{"number": {number}}}'
            producer.send(Message("Orders", body.encode(), tags="paid", keys=[f"k{number}"]))
    with AdminClient(cluster.namesrv_addr) as admin:
        admin.offsets.commit(
            cluster.addr(str(cluster.leader())), "billing", MessageQueue("Orders", "broker-a", 0), 1
        )
    yield cluster
    cluster.stop()


@pytest.fixture(scope="module")
def root(group: LocalCluster, browser: Any) -> Iterator[str]:
    """The address of the dashboard of this group."""
    process = subprocess.Popen(
        [sys.executable, "-m", "dledger", "dashboard", "-n", group.namesrv_addr, "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    yield line.split("/ ")[0] + "/cluster/"
    process.terminate()
    process.wait(30)


class Faults:
    """What went wrong in a page: errors of its scripts, failed requests, requests to other hosts."""

    def __init__(self, page: Any, root: str) -> None:
        self.found: list[str] = []
        host = root.split("/cluster/")[0]
        page.on("console", lambda one: one.type in ("error", "warning") and self.found.append(one.text))
        page.on("pageerror", lambda error: self.found.append(str(error)))
        page.on("dialog", lambda dialog: self.found.append(f"a dialog: {dialog.message}"))
        page.on(
            "request", lambda one: None if one.url.startswith(host) else self.found.append(f"asks {one.url}")
        )
        page.on("response", lambda one: one.status >= 400 and self.found.append(f"{one.status} of {one.url}"))


@contextmanager
def opened(browser: Any, root: str, width: int, **more: Any) -> Iterator[tuple[Any, Faults]]:
    context = browser.new_context(viewport={"width": width, "height": 900}, locale="en-GB", **more)
    page = context.new_page()
    page.set_default_timeout(LIMIT_MS)
    try:
        yield page, Faults(page, root)
    finally:
        context.close()


def paths(browser: Any, root: str) -> list[str]:
    """The addresses of all pages, by clicks from the first one."""
    with opened(browser, root, 1400) as (page, faults):
        page.goto(root)
        found = [page.url]
        for name in ("Nodes", "Topics", "Groups", "Messages"):
            page.get_by_role("navigation", name="Pages").get_by_role("link", name=name).click()
            found.append(page.url)
        for first, second in (("Nodes", "n1"), ("Topics", "Orders"), ("Groups", "billing")):
            page.get_by_role("navigation", name="Pages").get_by_role("link", name=first).click()
            page.get_by_role("link", name=second, exact=True).first.click()
            page.get_by_role("heading", level=1).get_by_text(second).wait_for()
            found.append(page.url)
        page.goto(f"{root}messages?topic=Orders&tag=paid")
        found.append(page.url)
        page.locator("tbody tr").filter(has_text="onerror").get_by_role("link").first.click()
        page.get_by_role("heading", name="Message").wait_for()
        found.append(page.url)
        assert faults.found == []
    return found


@pytest.mark.smoke
def test_every_page_opens_without_a_fault_at_every_width(browser: Any, root: str) -> None:
    for path in paths(browser, root):
        for width in WIDTHS:
            dark = "dark" if width == WIDTHS[0] else "light"
            with opened(browser, root, width, color_scheme=dark) as (page, faults):
                page.goto(path)
                page.locator("h1").wait_for()
                wide = page.evaluate("document.documentElement.scrollWidth")
                assert wide <= width, f"{path} is {wide} pixels wide at {width}"
                assert faults.found == [], path


def test_texts_of_clients_are_shown_as_texts(browser: Any, root: str) -> None:
    with opened(browser, root, 1400) as (page, faults):
        page.goto(f"{root}messages?topic=Orders&key=k29")
        page.locator("td.body").get_by_text("<img src=x onerror=alert(1)>").wait_for()
        page.locator("tbody a").first.click()
        assert page.locator("pre").first.inner_text() == "<img src=x onerror=alert(1)>␇[U+202E]"
        assert faults.found == []


def test_pages_can_be_read_without_javascript(browser: Any, root: str) -> None:
    with opened(browser, root, 820, java_script_enabled=False) as (page, _):
        for path in paths(browser, root):
            page.goto(path)
            assert page.locator("h1").inner_text()
        page.goto(f"{root}topics?q=orders")
        assert page.locator("time").first.inner_text().endswith(" UTC")


def test_the_keyboard_reaches_the_content_and_the_languages(browser: Any, root: str) -> None:
    with opened(browser, root, 1400) as (page, faults):
        page.goto(root)
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        page.keyboard.press("Enter")
        assert page.evaluate("location.hash") == "#main"
        page.get_by_role("link", name="中文").click()
        page.get_by_role("heading", name="概览").wait_for()
        page.goto(f"{root}topics")
        page.get_by_role("heading", name="主题").wait_for()
        assert faults.found == []


def test_an_open_page_shows_a_killed_leader_by_itself(browser: Any, root: str, group: LocalCluster) -> None:
    before = str(group.leader())
    with opened(browser, root, 1400) as (page, faults):
        page.goto(root)
        page.get_by_text("3 of 3 nodes: one may be lost.").wait_for()
        group.kill(before)
        page.get_by_text("2 of 3 nodes: one more loss stops writes.").wait_for()
        page.get_by_text("quorum of votes").first.wait_for()
        page.locator(".card").get_by_text(
            re.compile(f"{before}: it (does not answer|is not connected)")
        ).wait_for()
        group.start_node(before)
        page.get_by_text("3 of 3 nodes: one may be lost.").wait_for()
        assert page.locator("canvas").count() == 1, "the chart stays"
        assert faults.found == []

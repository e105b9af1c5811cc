"""A browser without a window, and what it saw: errors, requests, pixels."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


def missing() -> str:
    """Return why there is no browser; nothing if there is one."""
    try:
        import selenium  # noqa: F401
    except ImportError:
        return "selenium is not installed (make test installs it)"
    wanted = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return f"{' and '.join(wanted)} not found: 'make browser' installs them on Debian, as root" if wanted else ""


needs_browser = pytest.mark.skipif(bool(missing()), reason=missing() or "there is one")


class Browser:
    """Chromium at one page."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, page: Path, *, width: int = 1240, height: int = 900, dark: bool = False) -> None:
        """Open a file, as wide and as dark as asked, and wait until it is drawn."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        self.resize(width, height)
        self.driver.get(page.resolve().as_uri())
        self.wait("document.documentElement.dataset.ready === 'yes' && !!document.querySelector('svg path, svg rect')")

    def resize(self, width: int, height: int) -> None:
        """Make the window so wide and so high, in the page's own pixels."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def do(self, script: str) -> Any:
        """Return what an expression is."""
        return self.driver.execute_script(f"return ({script})")

    def wait(self, script: str) -> None:
        """Wait until an expression is true."""
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self.driver, 20).until(lambda _: self.do(script), script)

    def find(self, selector: str) -> Any:
        """Return an element, scrolled into the middle of the window."""
        element = self.driver.find_element("css selector", selector)
        self.driver.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", element)
        return element

    def chart(self, name: str) -> Any:
        """Return a chart by its name."""
        return self.find(f'[data-chart="{name}"], [data-lanes="{name}"]')

    def move(self, element: Any, right: int, down: int, *, drag_to: int | None = None) -> None:
        """Point at a place of an element, from its upper left corner; with ``drag_to`` press there and drag."""
        from selenium.webdriver import ActionChains

        box, actions = element.rect, ActionChains(self.driver, duration=60)
        left, top = round(-box["width"] / 2), round(-box["height"] / 2)
        actions.move_to_element_with_offset(element, left + right, top + down)
        if drag_to is not None:
            actions.click_and_hold().move_by_offset((drag_to - right) // 2, 0)
            actions.move_by_offset(drag_to - right - (drag_to - right) // 2, 0).release()
        actions.perform()

    def double_click(self, element: Any) -> None:
        """Click twice into the middle."""
        from selenium.webdriver import ActionChains

        ActionChains(self.driver, duration=20).double_click(element).perform()

    def tip(self) -> str:
        """Return what the tip under the pointer says; nothing while it is hidden."""
        return str(
            self.do(
                "(t => getComputedStyle(t).visibility === 'visible' ? t.innerText : '')(document.querySelector('.tip'))"
            )
        )

    def errors(self) -> list[str]:
        """Return what was complained of on the console since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """Return all addresses that were asked for since the last call, but for the page itself."""
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        asked = [
            event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"
        ]
        return [url for url in asked if not (url.startswith("file://") and url.endswith(".html")) and url != "data:,"]

    def screenshot(self, path: Path) -> None:
        """Write the whole page as PNG."""
        height = self.do("document.documentElement.scrollHeight")
        options = {"format": "png", "captureBeyondViewport": True}
        width = self.do("innerWidth")
        options["clip"] = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        path.write_bytes(base64.b64decode(self.driver.execute_cdp_cmd("Page.captureScreenshot", options)["data"]))


@contextmanager
def browsing() -> Iterator[Browser]:
    """Give a browser."""
    from selenium.webdriver import Chrome, ChromeOptions
    from selenium.webdriver.chrome.service import Service

    options = ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        yield Browser(driver)
    finally:
        driver.quit()

"""A real Chromium, driven by playwright; tests that need it are skipped, visibly, where either is missing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def why_not() -> str:
    """What is missing, or nothing."""
    try:
        import playwright  # noqa: F401
    except ImportError:
        return "playwright is not installed: make browser"
    return "" if CHROMIUM else "chromium is not installed: apt-get install chromium"


@dataclass
class Opened:
    """A page with everything it said and asked for."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@contextmanager
def browser() -> Iterator[Any]:
    """Chromium without a window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Containers rarely allow the sandbox, and the only page that is opened is our own.
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            yield chromium
        finally:
            chromium.close()


def opened(chromium: Any, address: str | Path, *, width: int = 1200, scheme: str = "light", **settings: Any) -> Opened:
    """Open a page and wait until it has drawn itself."""
    page = chromium.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme, **settings)
    found = Opened(page)
    page.on("console", lambda message: found.complaints.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: found.complaints.append(str(error)))
    page.on("request", lambda request: found.requests.append(request.url))
    page.goto(address.resolve().as_uri() if isinstance(address, Path) else address)
    page.wait_for_selector("html[data-ready=yes]")
    return found

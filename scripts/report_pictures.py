"""The pictures of docs/images, of a run's report in a real Chromium. Run: python scripts/report_pictures.py RUN"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from draftsmith.run.reporting import write_report

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
WIDE, NARROW = 1000, 400
# name -> colour scheme, width of the window, what is shown: the top of the page, or one part of it
PICTURES = {
    "report-light": ("light", WIDE, None),
    "report-dark": ("dark", WIDE, "#loss"),
    "report-narrow": ("light", NARROW, None),
    "report-order": ("light", WIDE, "#order"),
    "report-stages": ("light", WIDE, "#stages"),
    "report-examples": ("light", WIDE, "#examples"),
}
LIMIT_BYTES = 200_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--chromium", default=shutil.which("chromium"))
    options = parser.parse_args()
    report = write_report(options.run)
    IMAGES.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=options.chromium, args=["--no-sandbox"])
        for name, (scheme, width, part) in PICTURES.items():
            page = chromium.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
            page.goto(report.resolve().as_uri())
            page.evaluate("buildAll()")
            page.wait_for_timeout(200)
            take(page, IMAGES / f"{name}.png", part)
            page.close()
        chromium.close()


def take(page: Page, path: Path, part: str | None) -> None:
    if part is not None and page.locator(part).count() == 0:
        print(f"{path.name}: this run has no {part}, the old picture stays")
        return
    if part is None:
        page.screenshot(path=path)
    else:
        page.add_style_tag(content="nav { display: none }")  # it would lie over the part
        page.locator(part).screenshot(path=path)
    size = path.stat().st_size
    print(f"{path.name}: {size:,} bytes{', too large' if size > LIMIT_BYTES else ''}")


if __name__ == "__main__":
    main()

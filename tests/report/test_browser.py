"""The page in a real Chromium: it draws, it obeys the mouse, it says nothing bad and asks nobody for anything."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import browser, opened, why_not
from journals import long_lines, step_line, write_run

from draftsmith.report import LivePage, open_server, read_run, render_comparison, render_report

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as running:
        yield running


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    events = [
        {"event": "start", "bucket_batches": [400] * 6, "bucket_edges": [64, 128, 256, 512, 1024, 2048]},
        {"event": "checkpoint", "step": 500},
        {"event": "resume", "step": 700},
    ]
    by_slot = [0.8, 0.6, 0.4]
    summary = {
        "sets": {"holdout": {"length": 2.8, "by_slot": by_slot}, "code": {"length": 2.1, "by_slot": by_slot[::-1]}}
    }
    measured = [
        {"step": step, "held_out_acceptance": 2.0 + step / 2000, "held_out_teacher_forced": 2.5 + step / 1500}
        for step in range(250, 2_001, 250)
    ]
    lines = [*long_lines(2_000), *measured]
    run = write_run(tmp_path_factory.mktemp("run") / "run", lines, events=events, summary=summary)
    path = run / "report.html"
    path.write_text(render_report(read_run(run)), encoding="utf-8")
    return path


def drawn_share(page: Any, chart: str) -> float:
    """Share of the pixels of a plot that are not transparent."""
    return float(
        page.eval_on_selector(
            f"#{chart} canvas",
            """canvas => { const d = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
            let n = 0; for (let i = 3; i < d.length; i += 4) if (d[i]) n++; return 4 * n / d.length; }""",
        )
    )


def steps_shown(page: Any, chart: str) -> tuple[float, float]:
    return tuple(
        page.evaluate(
            f"(() => {{ const s = charts.find(c => c.holder.id === '{chart}').u.scales.x; return [s.min, s.max]; }})()"
        )
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 400])
def test_every_plot_is_drawn_and_nothing_is_asked_for(chromium: Any, page_file: Path, scheme: str, width: int) -> None:
    found = opened(chromium, page_file, width=width, scheme=scheme)
    page = found.page
    for chart in page.eval_on_selector_all(".chart", "all => all.map(c => c.id).filter(id => id)"):
        page.locator(f"#{chart}").scroll_into_view_if_needed()
        page.wait_for_selector(f"#{chart} canvas")
        assert drawn_share(page, chart) > 0.005, chart
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "the page is wider than the window"
    assert found.requests == [page_file.resolve().as_uri()]
    assert found.complaints == []
    page.close()


def test_dragging_zooms_all_plots_over_steps_and_a_double_click_comes_back(chromium: Any, page_file: Path) -> None:
    found = opened(chromium, page_file)
    page = found.page
    page.evaluate("buildAll()")
    whole = steps_shown(page, "chart-loss")
    page.locator("#chart-loss").scroll_into_view_if_needed()
    box = page.locator("#chart-loss .u-over").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + 80)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 80, steps=5)
    page.mouse.up()
    low, high = steps_shown(page, "chart-loss")
    assert low == pytest.approx(500, abs=25)
    assert high == pytest.approx(1000, abs=25)
    for chart in ("chart-acceptance", "chart-grad", "chart-barcode", "chart-drift"):
        assert steps_shown(page, chart) == (low, high)
    page.locator("#chart-loss .u-over").dblclick()
    assert steps_shown(page, "chart-loss") == whole
    assert found.complaints == []
    page.close()


def test_the_gap_of_acceptance_stands_over_the_same_steps_as_everything_else(chromium: Any, page_file: Path) -> None:
    page = opened(chromium, page_file).page
    page.evaluate("buildAll()")
    assert steps_shown(page, "chart-gap") == pytest.approx(steps_shown(page, "chart-loss"), abs=10)
    names = "charts.find(c => c.holder.id === 'chart-gap').u.series.map(s => s.label)"
    assert page.evaluate(names) == ["step", "teacher-forced", "free-running", "gap"]
    page.evaluate("zoom([600, 1200])")
    assert steps_shown(page, "chart-gap") == (600, 1200)
    page.close()


def test_a_click_in_the_legend_hides_a_bucket(chromium: Any, page_file: Path) -> None:
    page = opened(chromium, page_file).page
    page.evaluate("buildAll()")
    entry = page.locator("#chart-loss .u-legend .u-series", has_text="bucket 2")
    entry.locator(".u-label").click()
    assert "u-off" in entry.get_attribute("class")
    page.close()


def test_zooming_in_shows_single_steps_that_the_whole_view_sums_up(chromium: Any, page_file: Path) -> None:
    page = opened(chromium, page_file).page
    page.evaluate("buildAll(); zoom([100, 140])")
    places = page.evaluate("Array.from(charts.find(c => c.holder.id === 'chart-loss').u.data[0])")
    assert [place for place in places if 100 <= place <= 140] == list(range(100, 141))
    page.close()


def test_the_theme_button_repaints(chromium: Any, page_file: Path) -> None:
    page = opened(chromium, page_file).page
    backgrounds = []
    for _ in range(3):
        backgrounds.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        page.locator("#theme").click()
    assert len(set(backgrounds)) == 2
    page.close()


def test_the_page_prints_with_every_plot(chromium: Any, page_file: Path) -> None:
    found = opened(chromium, page_file, scheme="dark")
    pdf = found.page.pdf(format="A4", print_background=True)
    assert pdf.startswith(b"%PDF")
    assert found.page.evaluate("charts.every(c => c.u)"), "plots that were never scrolled to are missing on paper"
    assert found.complaints == []
    found.page.close()


def test_a_comparison_is_drawn(chromium: Any, page_file: Path, tmp_path: Path) -> None:
    other = write_run(tmp_path / "other", long_lines(700, seed=1))
    path = tmp_path / "compare.html"
    path.write_text(render_comparison([read_run(page_file.parent), read_run(other)]), encoding="utf-8")
    found = opened(chromium, path)
    found.page.evaluate("buildAll()")
    for chart in ("chart-loss", "chart-acceptance", "chart-loss-tokens", "chart-slots"):
        assert drawn_share(found.page, chart) > 0.005, chart
    assert found.complaints == []
    assert len(found.requests) == 1
    found.page.close()


def test_a_run_without_a_step_opens_as_well(chromium: Any, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(render_report(read_run(write_run(tmp_path / "run"))), encoding="utf-8")
    found = opened(chromium, path)
    assert "Nothing has been trained yet" in found.page.inner_text("body")
    assert found.complaints == []
    found.page.close()


def test_a_served_page_renews_itself(chromium: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftsmith.report.serve.MIN_AGE_S", 0.0)
    monkeypatch.setattr("draftsmith.report.serve.REST", 0.0)
    run = write_run(tmp_path / "run", map(step_line, range(50)))
    state = ["one"]
    with open_server(LivePage(lambda: render_report(read_run(run)), lambda: state[0]), port=0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            found = opened(chromium, f"http://127.0.0.1:{server.server_port}/")
            state[0] = "two"
            found.page.wait_for_selector("meta[name=state][content=two]", state="attached", timeout=30_000)
            assert {request.split("/")[2] for request in found.requests} == {f"127.0.0.1:{server.server_port}"}
            found.page.close()
        finally:
            server.shutdown()
            thread.join()

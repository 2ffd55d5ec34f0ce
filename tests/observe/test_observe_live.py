"""The live view: right at every width, bounded in what it costs, and it leaves a clean terminal."""

from __future__ import annotations

import dataclasses
import io
import itertools
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from observe_rows import event_row, flow_stats, metrics_row
from rich.cells import cell_len
from rich.console import Console

from draftsmith.flow import FlowStats
from draftsmith.observe import Picture, Snapshot, Tally, TrainingView, duration, one_line, size
from draftsmith.observe.live import MAX_SHARE, MIN_INTERVAL_S
from draftsmith.observe.picture import ASCII, BLOCKS, count, lines
from draftsmith.observe.snapshot import Window, flow_shares

SHOW_CURSOR, HIDE_CURSOR = "\x1b[?25h", "\x1b[?25l"


def told(num_rows: int = 30, **changes: Any) -> Tally:
    tally = Tally("runs/demo", base_lr=0.02)
    tally.event(event_row("start", 1000.0))
    for step in range(1, num_rows + 1):
        tally.metrics(metrics_row(step, **changes))
    return tally


def shown(snapshot: Snapshot, width: int = 100, height: int = 40, **settings: Any) -> str:
    console = Console(file=io.StringIO(), width=width, height=height, record=True, **settings)
    console.print(Picture(snapshot))
    return console.export_text()


def full(**changes: Any) -> Snapshot:
    return dataclasses.replace(told().snapshot(1030.0, flow=flow_shares(flow_stats())), **changes)


def terminal(width: int = 100, **settings: Any) -> Console:
    return Console(file=io.StringIO(), width=width, height=40, force_terminal=True, **settings)


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@dataclasses.dataclass
class Clock:
    """Time that passes when a test says so."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def test_everything_a_person_asks_for_is_on_the_screen() -> None:
    text = shown(full(num_skipped=2, num_spikes=1, notes=("the sink x is slow",)))
    for part in (
        *("runs/demo", "training", "step 30", "epoch 0", "0:30 gone", "1:10 left", "30%"),
        *("loss 2.845", "accepted 1.16", "lr 1.00e-02", "gradient 0.50", "by bucket 0: 2.8", "  1: 2.8", "  2: 2.8"),
        *("busy", "starved", "blocked", "plan", "target", "30/70/ 0", "3/4  2.0 MB", "4.0 MB of 100 MB"),
        *("plan is the bottleneck", "2 skipped, 1 spikes", "last event, 0:30 ago: start", "the sink x is slow"),
    ):
        assert part in text, part


def test_bars_are_as_long_as_their_shares() -> None:
    flow = flow_shares(flow_stats(busy=0.5, names=("target",)))
    (row,) = [row for row in shown(full(flow=flow), width=200).splitlines() if row.startswith("target")]
    assert (row.count("█"), row.count("░"), row.count("▒")) == (30, 15, 15)
    (row,) = [row for row in shown(full(flow=flow), width=200).splitlines() if row.startswith("training")]
    assert (row.count("█"), row.count("░"), row.count("▒")) == (18, 42, 0)


@given(
    width=st.integers(20, 300),
    height=st.integers(2, 50),
    title=st.text(max_size=80),
    progress=st.none() | st.floats(0, 1),
    loss=st.none() | st.floats(-1e9, 1e9),
    buckets=st.lists(st.tuples(st.integers(), st.floats(0, 1e6)), max_size=64),
    busy=st.floats(0, 1),
    names=st.lists(st.text(min_size=1, max_size=30), max_size=4, unique=True),
)
def test_no_line_is_wider_and_no_picture_higher_than_the_terminal(
    width: int,
    height: int,
    title: str,
    progress: float | None,
    loss: float | None,
    buckets: list[tuple[int, float]],
    busy: float,
    names: list[str],
) -> None:
    tally = Tally(title)
    tally.metrics(metrics_row(5))
    flow = flow_shares(flow_stats(busy=busy, names=names or ("plan",)))
    found = dataclasses.replace(
        tally.snapshot(1010.0, flow=flow), progress=progress, loss=loss, loss_by_bucket=tuple(buckets)
    )
    for glyphs in (BLOCKS, ASCII):
        drawn = lines(found, width, glyphs=glyphs, max_height=height)
        assert len(drawn) <= height
        assert max(sum(cell_len(text) for text, _ in line) for line in drawn) <= width


def test_where_height_is_short_the_step_stays_and_the_last_event_goes() -> None:
    text = shown(full(), height=6)
    assert len(text.splitlines()) == 5
    assert "step 30" in text
    assert "loss 2.845" in text
    assert "last event" not in text


def test_bars_can_be_told_apart_without_colour_and_without_unicode() -> None:
    plain = terminal(no_color=True)
    plain.print(Picture(full()))
    assert "\x1b[3" not in written(plain)  # bold may stay, colour not
    assert "█" in written(plain)
    assert "░" in written(plain)
    drawn = "".join(text for line in lines(full(), 100, glyphs=ASCII) for text, _ in line)
    assert drawn.isascii()
    assert "#" in drawn


def test_what_is_not_known_yet_is_not_invented() -> None:
    for snapshot in (Tally("x").snapshot(0.0), Snapshot("x", "not begun")):
        text = shown(snapshot)
        assert "not begun" in text
        for part in ("loss", "accepted", "left", "%", "None", "nan"):
            assert part not in text


def test_text_of_a_run_cannot_drive_the_terminal() -> None:
    tally = told(1)
    tally.event(event_row("spike", 1001.0, text="\x1b]0;owned\x07 [red]and markup[/red]\r\n"))
    text = shown(tally.snapshot(1001.0))
    assert not {"\x1b", "\x07", "\r"} & set(text)
    assert "[red]and markup[/red]" in text


def test_means_are_of_the_newest_batches_and_compared_with_those_before() -> None:
    tally = told(0)
    for step in range(1, 251):
        tally.metrics(metrics_row(step, loss=2.0 if step <= 150 else 1.0, skipped=step % 100 == 0))
    found = tally.snapshot(1250.0)
    assert (found.loss, found.loss_before, found.num_skipped) == (1.0, 2.0, 2)


def test_bars_show_the_last_half_minute_not_the_whole_run() -> None:
    window = Window(30.0)
    seen = [window.recent(flow_shares(flow_stats(100.0 + at, busy=0.9))) for at in range(0, 31, 10)]
    assert seen[0].stages[0].busy == pytest.approx(0.9)
    assert seen[-1].stages[0].busy == pytest.approx(0.9)
    now_idle = dataclasses.replace(flow_stats(160.0, busy=0.9 * 130 / 160))  # not busy at all since 130 s
    recent = window.recent(flow_shares(now_idle))
    assert recent.wall_s == pytest.approx(30.0)
    assert recent.stages[0].busy == pytest.approx(0.0, abs=1e-9)
    again = window.recent(flow_shares(flow_stats(1.0, busy=0.4)))  # a new start of the run
    assert again.stages[0].busy == pytest.approx(0.4)


def test_drawing_takes_no_more_than_its_share_of_the_time() -> None:
    """A terminal that needs 20 ms for a picture gets one every 20 s, a fast one two a second."""
    for cost_s, seconds_apart in ((0.02, 0.02 / MAX_SHARE), (1e-4, MIN_INTERVAL_S)):
        clock, drawn_at = Clock(), []

        def stats(clock: Clock = clock, drawn_at: list[float] = drawn_at, cost_s: float = cost_s) -> FlowStats:
            drawn_at.append(clock.now)
            clock.now += cost_s
            return flow_stats()

        with TrainingView("x", stats, console=terminal(), clock=clock) as view:
            for step in range(1000):
                view.metrics(metrics_row(step))
                clock.now += 0.1
        apart = [later - earlier for earlier, later in itertools.pairwise(drawn_at[:-1])]  # the last one is at the end
        assert len(apart) > 2
        assert min(apart) >= seconds_apart
        assert max(apart) <= seconds_apart + 0.2


@pytest.mark.parametrize("ending", [None, KeyboardInterrupt, RuntimeError])
def test_the_terminal_is_clean_again_however_training_ends(ending: type[BaseException] | None) -> None:
    console = terminal()

    def train() -> None:
        with TrainingView("runs/demo", flow_stats, console=console) as view:
            view.metrics(metrics_row(1))
            if ending is not None:
                raise ending

    if ending is None:
        train()
    else:
        with pytest.raises(ending):
            train()
    text = written(console)
    assert text.rindex(SHOW_CURSOR) > text.rindex(HIDE_CURSOR)
    assert text.rstrip("\x1b[?25h").endswith("\n")
    assert "\x1b[?1049" not in text  # no alternate screen: the last picture stays readable


def test_no_thread_is_started() -> None:
    before = threading.active_count()
    with TrainingView("x", flow_stats, console=terminal()) as view:
        view.metrics(metrics_row(1))
        assert threading.active_count() == before


@pytest.mark.parametrize("kind", ["no terminal", "dumb terminal"])
def test_without_a_terminal_there_are_few_plain_lines(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb" if kind == "dumb terminal" else "xterm")
    text = io.StringIO()
    console = Console(file=text, width=40, force_terminal=kind == "dumb terminal")
    clock = Clock()
    with TrainingView("training [1]", flow_stats, console=console, seconds_between=10.0, clock=clock) as view:
        for step in range(1, 26):
            view.metrics(metrics_row(step))
            clock.now += 1.0
    printed = text.getvalue().splitlines()
    assert printed[0] == "training [1] ..."
    assert [line.split("step ")[1].split()[0] for line in printed[1:]] == ["1", "11", "21"]
    assert "loss 2.890" in printed[-1]
    assert "slowest: plan (90% busy" in printed[-1]
    assert "\x1b" not in text.getvalue()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (65.4, "1:05"), (3600, "1:00:00"), (172_800, "2 d 0 h"), (-3, "0:00"), (1e300, "11574074 d 1 h")],
)
def test_durations_read_as_a_clock(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@given(st.floats(0, 1e15))
def test_counts_and_sizes_are_short(value: float) -> None:
    assert len(size(value)) <= 10
    if value < 1e11:
        assert len(count(value)) <= 8


def test_a_line_says_what_changes() -> None:
    assert one_line(full(num_skipped=1)) == (
        " 30%  step 30  loss 2.845  accepted in training 1.16  lr 1.00e-02  1:10 left  "
        "slowest: plan (90% busy, 50 tokens/s)  skipped 1, spikes 0"
    )


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")

"""Held-out prompts during training: acceptance as the end measures it, the best step, and when to stop early."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import torch

from draftsmith.config import EvalConfig
from draftsmith.drafter import Drafter
from draftsmith.evaluation import ServedAcceptance, measure_during_training
from draftsmith.observe import Journal, StopRequest
from draftsmith.run.measuring import decoding_of
from draftsmith.run.workplace import Workplace
from draftsmith.target import Target, load_target
from draftsmith.training import TrainState, best_steps, take_part, whole_drafter

MEASURING, MEASURED, ABANDONED = 0.0, 1.0, 2.0  # what the first rank says to the others


class Judge:
    """Measures a training state on the first `eval.num_during` prompts of the headline set.

    The drafter is rounded to what is exported, and decodes with the target in `eval.dtype`, which is loaded once if it
    is not the precision that the target trains with. `alive` is called after every batch of prompts. Of several ranks
    the first one measures, and the others hear what it found.
    """

    def __init__(self, work: Workplace, journal: Journal, stop: StopRequest) -> None:
        self._config, self._work, self._journal, self._stop = work.config, work, journal, stop
        self._set, asked = next(iter(work.prompts.items()), ("", []))
        self._prompts = asked[: work.config.eval.num_during]
        self._target: Target | None = None

    def is_due(self, state: TrainState, *, at_end: bool = False) -> bool:
        """At every `eval.every_steps`-th step and at the end, unless that step has been measured. Ranks agree on it."""
        every = self._config.eval.every_steps
        if not every or not state.step or state.step in state.acceptance:
            return False
        return at_end or state.step % every == 0

    def measure(self, state: TrainState, alive: Callable[[], None]) -> float:
        """Measure, and note it in `state.acceptance`, unless a signal came or comes; returns the seconds it took."""
        began = time.monotonic()
        if self._work.peers.leads:
            try:
                measured = self._measure(whole_drafter(state), alive)
            except _Abandoned:
                self._say(ABANDONED)
            else:
                state.acceptance[state.step] = measured.free_running
                self._note(state, measured, time.monotonic() - began)
                self._say(MEASURED, measured.free_running)
        else:
            take_part(state, moments=False)
            while (heard := self._say(MEASURING))[0] == MEASURING:
                alive()
            if heard[0] == MEASURED:
                state.acceptance[state.step] = heard[1]
        return time.monotonic() - began

    def _say(self, what: float, value: float = 0.0) -> list[float]:
        """What the first rank says; on the others, what it said."""
        word = torch.tensor([what, value], dtype=torch.float64)
        return [float(each) for each in self._work.peers.from_first(word)]

    def _note(self, state: TrainState, measured: ServedAcceptance, seconds: float) -> None:
        self._journal.metrics(
            step=state.step,
            epoch=state.epoch,
            seq=state.seq,
            held_out_acceptance=measured.free_running,
            held_out_teacher_forced=measured.teacher_forced,
            held_out_gap=measured.gap,
            held_out_by_slot=measured.by_slot,
            held_out_lossless=measured.lossless,
            measured_s=round(seconds, 3),
        )

    def _measure(self, drafter: Drafter, alive: Callable[[], None]) -> ServedAcceptance:
        if self._stop.received is not None:
            raise _Abandoned
        if self._target is None:
            self._target = self._open_target()
        judged = drafter.requires_grad_(False).to(torch.bfloat16).eval()
        judged = judged.to(self._target.device, self._target.dtype)

        def between(_text: str) -> None:
            if self._stop.received is not None:
                raise _Abandoned
            alive()
            self._say(MEASURING)

        decoding = decoding_of(self._config)
        return measure_during_training(judged, self._target, self._prompts, decoding, name=self._set, progress=between)

    def _open_target(self) -> Target:
        work = self._work
        if str(work.target.dtype).removeprefix("torch.") == self._config.eval.dtype:
            return work.target.twin()
        return load_target(self._config.target, dtype=self._config.eval.dtype, device=str(work.target.device))


class _Abandoned(Exception):  # noqa: N818 - no error: somebody asked to stop
    """A signal came between two batches of prompts."""


def should_stop(settings: EvalConfig, acceptance: Mapping[int, float]) -> bool:
    """Has no measurement been better than the best for `eval.patience` measurements?"""
    if settings.patience is None or not acceptance:
        return False
    best = best_steps(acceptance)[0]
    return sum(step > best for step in acceptance) >= settings.patience

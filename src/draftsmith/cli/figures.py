"""What was measured, as rows of a table for a person."""

from __future__ import annotations

from typing import Any

Row = tuple[str, str]


def measured_rows(summary: dict[str, Any], *, detailed: bool = False) -> list[Row]:
    """Acceptance of every set, equality, speed; `detailed` adds slots, contexts and the costs behind the speed."""
    rows: list[Row] = []
    for name, found in summary.get("sets", {}).items():
        rows.append((f"acceptance, {name}", _acceptance(found)))
        if detailed:
            rows.append(("  accepted in slot 1, 2, ...", " ".join(f"{share:.2f}" for share in found["by_slot"])))
        if detailed and len(found["by_context"]) > 1:
            rows.append(("  by tokens before the block", ", ".join(map(_context, found["by_context"]))))
    rows += [("skipped", f"{name}: its package is not installed") for name in summary.get("skipped_sets", [])]
    if summary.get("decoding", "greedy") != "greedy":
        rows.append(("decoding", summary["decoding"]))
    if "lossless" in summary:
        rows.append(("equal to the target alone", _equality(summary)))
    if "speedup" in summary:
        rows.append(("speed, measured", _speed(summary)))
    if "costs" in summary:
        rows += _predictions(summary["costs"], detailed=detailed)
    return rows


def served_text(served: dict[str, Any]) -> str:
    """What a server told, and what could not be measured there."""
    lines = [f"{served['decoding']}, up to {served['max_new_tokens']} tokens an answer"]
    for name, found in served["sets"].items():
        length, by_response = found["acceptance_length"], found["acceptance_length_by_response"]
        told = "acceptance not told" if length is None else f"{length:.2f} tokens per forward"
        told += "" if by_response is None else f" ({by_response:.2f} as a mean of answers)"
        lines.append(
            f"{name}: {told}, {found['tokens_per_s']:.1f} tokens/s ({found['timing']}), "
            f"{found['num_tokens']:,} tokens for {found['num_prompts']} prompts"
        )
    missing = sorted({what for found in served["sets"].values() for what in found["not_measured"]})
    return "\n".join([*lines, "not measured: " + "; ".join(missing)])


def _acceptance(found: dict[str, Any]) -> str:
    interval = found["interval"]
    sure = f" (95 %: {interval[0]:.2f} to {interval[1]:.2f})" if interval else ""
    return (
        f"{found['length']:.2f} tokens per target forward{sure} over {found['num_prompts']} prompts; "
        f"{found['length_by_response']:.2f} as a mean of answers"
    )


def _context(found: dict[str, Any]) -> str:
    end = "and more" if found["end"] is None else f"to {found['end'] - 1}"
    return f"{found['start']} {end}: {found['length']:.2f}"


def _equality(summary: dict[str, Any]) -> str:
    if summary["lossless"] is None:
        return "not checked: with sampled drafts only the distribution is the target's, single answers are others"
    return f"{summary['num_lossless']} of {summary['num_lossless_checked']} answers ({summary['eval_dtype']})"


def _speed(summary: dict[str, Any]) -> str:
    plain, fast = summary["baseline_tokens_per_s"], summary["speculative_tokens_per_s"]
    return (
        f"{plain:.1f} -> {fast:.1f} tokens/s, {summary['speedup']:.2f}x ({summary['num_timed_prompts']} prompts that "
        f"accept {summary['timed_acceptance_length']:.2f}, {summary['speed_dtype']})"
    )


def _predictions(costs: dict[str, Any], *, detailed: bool) -> list[Row]:
    rows = []
    for found in costs["by_batch_size"]:
        used, best = found["used"], found["best"]
        text = (
            f"{used['speedup']:.2f}x; pays from {used['break_even']:.2f} tokens per forward on; best is to verify "
            f"{best['verify']} tokens at once: {best['speedup']:.2f}x; {found['speedup_if_verifying_were_free']:.2f}x "
            "where verifying costs no more than one token"
        )
        rows.append((f"speed, predicted, batch {found['batch_size']}", text))
        if detailed:
            rows.append(("  measured costs", _costs(found)))
    if detailed and rows:
        rows.append(("  measured on", f"{costs['device']}, {costs['dtype']}, {costs['context']} tokens of context"))
    return rows


def _costs(found: dict[str, Any]) -> str:
    target = ", ".join(f"{n}: {1e3 * s:.1f}" for n, s in found["target_s"].items())
    draft = list(found["draft_s"].values())[-1]
    return f"target, ms for tokens at once: {target}; drafter {1e3 * draft:.1f} ms"

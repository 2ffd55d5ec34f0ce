"""examine(): everything that can be known before training about the machine it would run on."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from draftsmith.observe import devices, machine
from draftsmith.observe.finding import Finding

MARKS = {
    "ok": "[green]ok[/]",
    "note": "[cyan]note[/]",
    "warning": "[yellow]warning[/]",
    "problem": "[bold red]PROBLEM[/]",
}


def examine(runs: Path = Path("runs")) -> list[Finding]:
    """All checks, in the order in which one would mend things. Takes a few seconds; leaves nothing behind."""
    return [
        *machine.python_and_packages(),
        *devices.torch_and_devices(),
        *machine.cores_and_memory(),
        machine.disk(runs, name="runs"),
        _cache(),
        machine.shared_memory(),
        machine.loopback(),
        *machine.optional_packages(),
    ]


def is_usable(findings: list[Finding]) -> bool:
    """Whether a run could train here."""
    return all(finding.status != "problem" for finding in findings)


def as_json(findings: list[Finding]) -> str:
    checks = [dataclasses.asdict(finding) for finding in findings]
    return json.dumps({"usable": is_usable(findings), "checks": checks}, indent=2)


def show(findings: list[Finding]) -> None:
    """A table for people, and the verdict in one line."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column()
    for finding in findings:
        advice = f"\n[bold]{escape(finding.advice)}[/]" if finding.advice else ""
        table.add_row(MARKS[finding.status], escape(finding.name), escape(finding.found) + advice)
    console = Console(highlight=False)
    console.print(table)
    counted = {status: sum(finding.status == status for finding in findings) for status in ("problem", "warning")}
    if counted["problem"]:
        console.print(f"[bold red]Training would fail here[/]: {counted['problem']} to mend, marked PROBLEM.")
    elif counted["warning"]:
        console.print(f"[yellow]Training works here[/]; {counted['warning']} to know of, marked warning.")
    else:
        console.print("[green]Training works here.[/]")


def _cache() -> Finding:
    """Where converted targets and hidden states are kept. Asking for it needs torch, which may be what is broken."""
    try:
        from draftsmith.target import cache_root
    except (ImportError, OSError) as error:
        return Finding("cache", "problem", f"draftsmith cannot be loaded: {error}", "mend what is marked above")
    return machine.disk(cache_root(), name="cache")

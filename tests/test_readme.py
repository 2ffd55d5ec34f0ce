"""What README and how-to pages name exists: make targets, commands, configurations, linked files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.main import get_command

from draftsmith.cli import app
from draftsmith.config import load_config

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
COMMANDS = set(get_command(app).commands)  # type: ignore[attr-defined]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        assert link.startswith("http") or (page.parent / link).exists(), link


def test_make_targets_in_the_readme_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    named = set(re.findall(r"^make ([a-z]+)", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.MULTILINE))
    assert named
    assert named <= targets


def test_commands_that_pages_show_exist_and_all_are_in_the_readme() -> None:
    shown = set()
    for page in PAGES:
        for fence in re.findall(r"```\w*\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL):
            shown |= set(re.findall(r"^ *(?:\.venv/bin/)?draftsmith ([a-z][a-z-]*)", fence, flags=re.MULTILINE))
    assert shown <= COMMANDS
    table = set(re.findall(r"^\| `([a-z-]+)` \|", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.MULTILINE))
    assert table == COMMANDS


def test_tests_that_pages_call_a_proof_exist() -> None:
    sources = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "tests").rglob("test_*.py"))]
    known = {name for text in sources for name in re.findall(r"^def (test_\w+)", text, flags=re.MULTILINE)}
    pages = (ROOT / "docs" / "design").glob("*.md")
    named = {name for page in pages for name in re.findall(r"`(test_\w+)`", page.read_text(encoding="utf-8"))}
    assert len(named) > 20
    assert named <= known, sorted(named - known)


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.toml")), ids=lambda path: path.name)
def test_shipped_configurations_are_valid(path: Path) -> None:
    load_config(path)

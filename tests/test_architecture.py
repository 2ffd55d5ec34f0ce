"""Imports point only downwards, and rooms of one level never import each other; imports inside functions count too."""

from __future__ import annotations

import ast
from pathlib import Path

import draftsmith

PACKAGE = Path(draftsmith.__file__).parent
LEVELS = {
    "cli": 8,
    "run": 7,
    "tuning": 6,
    "streams": 5,
    "training": 4,
    "evaluation": 4,
    "export": 4,
    "report": 4,
    "data": 3,
    "plan": 3,
    "target": 3,
    "drafter": 3,
    "observe": 2,
    "distributed": 2,
    "flow": 1,
    "records": 0,
    "config": 0,
    "errors": 0,
    "files": 0,
    "keyed": 0,
    "redaction": 0,
}
ONLY = {"cli": {"run", "config", "errors", "redaction"}, "flow": {"errors"}}


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_modules(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide which room is meant"
            names.add(node.module or "")
            names |= {f"{node.module}.{alias.name}" for alias in node.names if node.module == "draftsmith"}
    return names


def sources() -> list[Path]:
    return [path for path in sorted(PACKAGE.rglob("*.py")) if path != PACKAGE / "__init__.py"]


def test_every_room_has_a_level() -> None:
    assert {room_of(path) for path in sources()} <= {*LEVELS, "demo"}


def test_imports_point_downwards() -> None:
    wrong = []
    for path in sources():
        room = room_of(path)
        for name in imported_modules(path):
            if not name.startswith("draftsmith.") or name == "draftsmith.__version__":
                continue
            other = name.split(".")[1]
            if other in {room, "errors"}:  # errors are everyone's
                continue
            allowed = other in ONLY[room] if room in ONLY else LEVELS[other] < LEVELS[room]
            if not allowed:
                wrong.append(f"{path.relative_to(PACKAGE)} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_the_plan_needs_no_torch_but_in_its_sampler() -> None:
    for path in sorted((PACKAGE / "plan").rglob("*.py")):
        if path.name != "sampler.py":
            assert not any(name.split(".")[0] == "torch" for name in imported_modules(path)), path


def test_only_flow_and_distributed_create_threads_or_processes() -> None:
    concurrent = {"threading", "multiprocessing", "concurrent", "subprocess", "asyncio"}
    for path in sources():
        if room_of(path) not in {"flow", "distributed"}:
            used = {name.split(".")[0] for name in imported_modules(path)} & concurrent
            assert not used, f"{path.relative_to(PACKAGE)} uses {used}"

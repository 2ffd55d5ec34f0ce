"""The how-to page's program runs as it is printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "bucket-sampler.md"


def test_the_program_of_the_bucket_sampler_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("accelerate", reason="the Trainer needs it")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) == 4
    scope: dict[str, object] = {"__name__": "how_to"}
    exec(compile("\n".join(blocks), str(PAGE), "exec"), scope)
    assert "trainer" in scope

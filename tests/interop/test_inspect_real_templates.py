"""With templates as model makers ship them, nothing that `prepare` makes is refused, and rendering twice shows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from test_real_chat_templates import FOLDER, GENERATED, ONLY_WITH_TOOLS, TOOL, WITHOUT_SYSTEM, byte_tokenizer

from draftsmith.data import ChatTemplate, inspect_store, prepare
from draftsmith.data.marks import find_marks, occurrences
from draftsmith.records import Conversation

NO_OWN_OPENING = {  # a question follows no special token of its own, so what stands before it shows nothing
    "mistralai-Mistral-Nemo-Instruct-2407",
}
CALL = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Oslo"}}}

pytestmark = pytest.mark.skipif(FOLDER is None, reason="no folder shared/data/chat-templates beside the repository")


def rows(name: str) -> list[Conversation]:
    tools = (TOOL,) if name in ONLY_WITH_TOOLS else ()
    asked, answered = {"role": "user", "content": "Hi?"}, {"role": "assistant", "content": "Hello."}
    again = ({"role": "user", "content": "And?"}, {"role": "assistant", "content": "Bye!"})
    made = [Conversation(f"c{i}", (asked, answered, *again), tools) for i in range(3)]
    if name not in WITHOUT_SYSTEM:
        made.append(Conversation("system", ({"role": "system", "content": "Be kind."}, asked, answered), tools))
    calling = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    answer = {"role": "tool", "name": "weather", "content": "rain"}
    made.append(Conversation("calling", (asked, calling, answer, answered), (TOOL,)))
    thinking = {"role": "assistant", "content": "4", "reasoning_content": "2 + 2"}
    made.append(Conversation("thinking", (asked, thinking, *again), tools))
    return made


@pytest.mark.parametrize("name", GENERATED)
def test_what_prepare_makes_is_not_refused(name: str, tmp_path: Path) -> None:
    assert FOLDER is not None
    tokenizer = byte_tokenizer((FOLDER / f"{name}.jinja").read_text(encoding="utf-8"))
    store = prepare(rows(name), tmp_path / "store", tokenizer, max_length=16384, holdout=0.0)
    found = inspect_store(store, ChatTemplate(tokenizer), source=name, edges=[16384])
    assert store.accounting.num_kept >= 3
    assert (found.problems, found.notes) == ((), ())


@pytest.mark.parametrize("name", [name for name in GENERATED if name not in NO_OWN_OPENING])
def test_what_is_rendered_twice_shows(name: str) -> None:
    assert FOLDER is not None
    tokenizer = byte_tokenizer((FOLDER / f"{name}.jinja").read_text(encoding="utf-8"))
    first = rows(name)[0]

    def render(messages: tuple[dict[str, object], ...]) -> str:
        return str(tokenizer.apply_chat_template(list(messages), tools=list(first.tools) or None, tokenize=False))

    answer = {"role": "assistant", "content": "Hello."}
    twice = render(({"role": "user", "content": render(first.messages)}, answer))
    for text, shows in ((render(first.messages), False), (twice, True)):
        ids = np.asarray(tokenizer(text, add_special_tokens=False)["input_ids"], dtype=np.int32)
        marks = find_marks(ChatTemplate(tokenizer))
        assert any(occurrences(ids, pattern).size for _, pattern in marks.doubled) == shows

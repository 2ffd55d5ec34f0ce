"""What several tests build: drafters, blocks, stub drafters that know the answer, the command line in this process."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from draftsmith.cli import main
from draftsmith.config import DrafterConfig, RunConfig, load_config
from draftsmith.drafter import Blocks, Drafter, DrafterShape, dense_mask, draw_blocks, make_shape
from draftsmith.records import Batch, BatchSpec, FeatureBatch
from draftsmith.target import Target

CONFIGS = Path(__file__).parents[1] / "configs"
BLOCK_SIZE = 8
MASK_TOKEN_ID = 3  # <|reserved|> of the tiny target
QUESTION_OF_CHAT = "Continue: 3, 7, 11"  # one that the briefly trained drafter of the tests knows


def tiny_config(*overrides: str) -> RunConfig:
    return load_config(CONFIGS / "tiny-cpu.toml", list(overrides))


def new_drafter(target: Target, *, seed: int = 0, mask_token_id: int = MASK_TOKEN_ID, **settings: Any) -> Drafter:
    """An untrained drafter that fits `target`; its weights are large enough for lively answers."""
    config = DrafterConfig(**{"num_layers": 2, "block_size": BLOCK_SIZE, **settings})
    shape = make_shape(
        config,
        target.config,
        vocab_size=target.vocab_size,
        layer_ids=target.layer_ids,
        mask_token_id=mask_token_id,
    )
    drafter = Drafter(shape)
    drafter.init_weights(torch.Generator().manual_seed(seed))
    with torch.no_grad():
        for parameter in drafter.parameters():
            if parameter.dim() == 2:
                parameter.mul_(4)
    return drafter


def with_shape(drafter: Drafter, **changes: Any) -> DrafterShape:
    return dataclasses.replace(drafter.shape, **changes)


def draw(input_ids: torch.Tensor, loss_mask: torch.Tensor, **changes: Any) -> Blocks:
    settings: dict[str, Any] = {
        "block_size": BLOCK_SIZE,
        "num_anchors": 4,
        "mask_token_id": MASK_TOKEN_ID,
        "seed": 0,
        "epoch": 0,
        "samples": range(len(input_ids)),
    }
    return draw_blocks(input_ids, loss_mask, **{**settings, **changes})


def block_states(
    drafter: Drafter, target: Target, hidden_BSX: torch.Tensor, blocks: Blocks, ids_BNK: torch.Tensor | None = None
) -> torch.Tensor:
    """States [B, N, K, H] of the training forward; `ids_BNK` stands in for the blocks' own input ids."""
    ids_BNK = blocks.input_ids_BNK if ids_BNK is None else ids_BNK
    num_context, block_size = hidden_BSX.shape[1], drafter.shape.block_size
    mask = dense_mask(blocks.anchors_BN, blocks.keep_BN, num_context=num_context, block_size=block_size)
    context = drafter.context(hidden_BSX, torch.arange(num_context)[None])
    states = drafter(target.embedding(ids_BNK.flatten(1)), blocks.positions_BQ(), context, mask)
    return states.unflatten(1, ids_BNK.shape[1:])


def feature_batch(target: Target, rows: Sequence[Sequence[int]], supervised_from: Sequence[int]) -> FeatureBatch:
    """Right-padded rows with their hidden states; supervision runs from the given place to the row's end."""
    width = max(len(row) for row in rows)
    input_ids, loss_mask = torch.zeros(len(rows), width, dtype=torch.long), torch.zeros(len(rows), width).bool()
    attention_mask = torch.zeros_like(loss_mask)
    for index, (row, start) in enumerate(zip(rows, supervised_from, strict=True)):
        input_ids[index, : len(row)] = torch.tensor(row)
        loss_mask[index, start : len(row)] = True
        attention_mask[index, : len(row)] = True
    spec = BatchSpec(seq=0, epoch=0, bucket=0, samples=tuple(range(len(rows))), padded_length=width)
    return FeatureBatch(Batch(spec, input_ids, attention_mask, loss_mask), target.features(input_ids))


def random_text(seed: int, *shape: int) -> torch.Tensor:
    """Letters of the tiny target, no special tokens."""
    return torch.from_numpy(np.random.default_rng(seed).integers(4, 100, shape))


class StubDrafter(nn.Module):
    """Has a drafter's interface and drafts what it is told: the known answer where `agrees(index)`, else another token.

    Rows are recognised by what the stub itself put into the context at position 0 while the prompts were read.
    """

    def __init__(
        self,
        target: Target,
        shape: DrafterShape,
        prompts: Sequence[Sequence[int]],
        answers: Sequence[Sequence[int]],
        agrees: Callable[[int], bool],
    ) -> None:
        super().__init__()
        self.shape = shape
        self.fc = nn.Linear(1, 1)
        self.calls = 0
        self._target, self._prompts, self._answers, self._agrees = target, prompts, answers, agrees

    def context(self, target_hidden: torch.Tensor, positions: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        rows = torch.arange(len(target_hidden), dtype=torch.float32)
        keys = rows[:, None, None, None].expand(-1, 1, target_hidden.shape[1], 1)
        return [(keys, keys)]

    def forward(self, noise: torch.Tensor, positions: torch.Tensor, context: Any, mask: Any) -> torch.Tensor:
        self.calls += 1
        states = torch.zeros_like(noise)
        for row, known in enumerate(context[0][0][:, 0, 0, 0].long().tolist()):
            prompt, answer = self._prompts[known], self._answers[known]
            for slot, position in enumerate(positions[row].tolist()):
                index = position - len(prompt)
                token = answer[index] if index < len(answer) else 4
                if not self._agrees(index):
                    token = 4 if token != 4 else 5
                states[row, slot] = self._target.embedding.weight[token]
        return states


def write_jsonl(path: Path, rows: Sequence[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def chat_row(question: str, answer: str | None, name: str) -> dict[str, Any]:
    messages = [{"role": "user", "content": question}]
    if answer is not None:
        messages.append({"role": "assistant", "content": answer})
    return {"id": name, "messages": messages}


@dataclasses.dataclass(frozen=True)
class Finished:
    """What a command left: exit code, standard output, standard error."""

    code: int
    out: str
    err: str


def draftsmith(*arguments: object) -> Finished:
    """Run the command line in this process, as the installed script would."""
    out, err, code, before = io.StringIO(), io.StringIO(), 0, sys.argv
    sys.argv = ["draftsmith", *map(str, arguments)]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as stop:
        code = int(stop.code or 0)
    finally:
        sys.argv = before
    return Finished(code, out.getvalue(), err.getvalue())


def running() -> set[str]:
    """Threads and child processes of this process, by name and number."""
    threads = {f"thread {thread.name} ({thread.ident})" for thread in threading.enumerate()}
    children: set[str] = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # that thread has just ended
            children |= set((task / "children").read_text(encoding="ascii").split())
    return threads | {f"process {number}" for number in children}

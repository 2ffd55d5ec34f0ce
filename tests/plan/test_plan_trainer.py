"""The Hugging Face Trainer with planned batches: it sees the plan, and resumes within it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from plan_vectors import LENGTHS

from draftsmith.plan import BucketBatchSampler, PlannedDataLoader, PlanSettings

SAMPLES = LENGTHS[:60]
SETTINGS = PlanSettings(max_tokens=20_000, num_buckets=3, shapes="static")


class Tiny(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self, sample: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": ((self.weight - sample.float()) ** 2).mean()}


def train(folder: Path, resume: str | None = None) -> list[list[int]]:
    """The batches that the Trainer asked for."""
    from transformers import PrinterCallback, Trainer, TrainingArguments

    asked: list[list[int]] = []

    def collate(samples: list[dict[str, int]]) -> dict[str, torch.Tensor]:
        asked.append([sample["sample"] for sample in samples])
        return {"sample": torch.tensor(asked[-1])}

    class PlannedTrainer(Trainer):
        def get_train_dataloader(self) -> PlannedDataLoader:
            sampler = BucketBatchSampler(SAMPLES, SETTINGS, seed=self.args.seed)
            return PlannedDataLoader(self.train_dataset, batch_sampler=sampler, collate_fn=self.data_collator)

    arguments: Any = TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=3,
        save_strategy="steps",
        save_steps=2,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        remove_unused_columns=False,
        seed=7,
    )
    rows: Any = [{"sample": sample} for sample in range(len(SAMPLES))]
    trainer = PlannedTrainer(model=Tiny(), args=arguments, train_dataset=rows, data_collator=collate)
    trainer.remove_callback(PrinterCallback)
    trainer.train(resume_from_checkpoint=resume)
    return asked


def test_the_trainer_runs_the_planned_epochs_and_resumes_within_and_between_them(tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="the Trainer needs it")
    planned = BucketBatchSampler(SAMPLES, SETTINGS, seed=7)
    num_steps = len(planned)
    epochs = [list(planned) for _ in range(3)]
    whole = [batch for epoch in epochs for batch in epoch]
    assert train(tmp_path) == whole
    assert num_steps >= 6
    within, between = num_steps + num_steps % 2 + 2, 2 * num_steps
    for step in (within, between):
        assert train(tmp_path, resume=str(tmp_path / f"checkpoint-{step}")) == whole[step:]

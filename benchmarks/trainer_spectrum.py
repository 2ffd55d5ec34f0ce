"""Does the order of batches show in the loss? The Hugging Face Trainer with its own length grouping, and with the plan.

A small causal language model learns sequences whose entropy grows with their length, so the loss of a batch tells which
lengths are in it. The script trains the same model three times: random batches, the Trainer's `group_by_length`, and
`BucketBatchSampler`; it prints a table, writes JSON and draws the loss and its spectrum. Needs transformers, accelerate
and matplotlib.

    python benchmarks/trainer_spectrum.py --json trainer.json --figure docs/design/trainer-spectrum.svg
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PrinterCallback, Trainer, TrainingArguments, set_seed

from draftsmith.plan import BucketBatchSampler, PlannedDataLoader, PlanSettings

VOCABULARY, ROWS, MAX_LENGTH = 128, 16, 256
WAYS = {"random": "random batches", "grouped": "Trainer: group_by_length", "planned": "BucketBatchSampler"}


class Sequences(torch.utils.data.Dataset[dict[str, list[int]]]):
    """Random walks over the vocabulary; a sequence of length n steps among n / 8 tokens or so: long ones are harder."""

    def __init__(self, num: int, seed: int) -> None:
        draw = np.random.default_rng(seed)
        lengths = np.clip(np.exp(draw.normal(4.2, 0.6, num)), 12, MAX_LENGTH).astype(int)
        self.rows = [np.cumsum(draw.integers(1, 2 + n // 8, n)) % (VOCABULARY - 1) + 1 for n in lengths]
        self.lengths = lengths

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        return {"input_ids": self.rows[index].tolist()}


def collate(samples: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    """Pad to the longest row; padding is token 0 and carries no loss."""
    rows = [torch.tensor(sample["input_ids"]) for sample in samples]
    input_ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    labels = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-100)
    return {"input_ids": input_ids, "attention_mask": (input_ids > 0).long(), "labels": labels}


class PlannedTrainer(Trainer):
    """The Trainer with planned batches: one method."""

    def get_train_dataloader(self) -> PlannedDataLoader:
        dataset: Any = self.train_dataset
        settings = PlanSettings(max_tokens=dataset.max_tokens, shapes="static")
        sampler = BucketBatchSampler(
            dataset.lengths,
            settings,
            seed=self.args.seed,
            num_replicas=self.args.world_size,
            rank=self.args.process_index,
        )
        return PlannedDataLoader(dataset, batch_sampler=sampler, collate_fn=self.data_collator)


def train(way: str, num_samples: int, epochs: int) -> dict[str, Any]:
    """Train once; returns the loss of every step, seconds, and padded and real tokens."""
    set_seed(1)
    dataset = Sequences(num_samples, seed=1)
    # As many tokens a batch as 16 rows have on average, padding to the bucket's top included.
    dataset.max_tokens = int(ROWS * dataset.lengths.mean() * 1.12)
    counted = {"padded": 0, "real": 0}

    def counting_collate(samples: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
        batch = collate(samples)
        counted["padded"] += batch["input_ids"].numel()
        counted["real"] += int(batch["attention_mask"].sum())
        return batch

    shape = {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, max_position_embeddings=MAX_LENGTH, **shape))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=ROWS,
            num_train_epochs=epochs,
            learning_rate=2e-3,
            lr_scheduler_type="constant_with_warmup",
            warmup_steps=20,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            train_sampling_strategy="group_by_length" if way == "grouped" else "random",
            remove_unused_columns=False,
            seed=1,
        )
        kind = PlannedTrainer if way == "planned" else Trainer
        trainer = kind(model=model, args=arguments, train_dataset=dataset, data_collator=counting_collate)
        trainer.remove_callback(PrinterCallback)
        started = time.perf_counter()
        trainer.train()
    seconds = time.perf_counter() - started
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return {"losses": losses, "seconds": seconds, "held_out": held_out_loss(model), **counted}


def held_out_loss(model: torch.nn.Module, num_samples: int = 1024) -> float:
    """Mean loss per token over sequences that no way of batching has seen."""
    dataset = Sequences(num_samples, seed=2)
    total, tokens = 0.0, 0
    model.eval()
    with torch.no_grad():
        for start in range(0, num_samples, 64):
            batch = collate([dataset[index] for index in range(start, start + 64)])
            predicted = int((batch["labels"][:, 1:] >= 0).sum())
            total += float(model(**batch).loss) * predicted
            tokens += predicted
    return total / tokens


def spectrum(losses: list[float]) -> tuple[np.ndarray, np.ndarray]:
    """Frequencies (1/step) and power over mean power of the later half of the loss, its trend removed."""
    later = np.array(losses[len(losses) // 2 :])
    steps = np.arange(len(later))
    flat = later - np.polyval(np.polyfit(steps, later, 2), steps)
    power = np.abs(np.fft.rfft(flat)[1:]) ** 2
    return np.arange(1, len(power) + 1) / len(later), power / power.mean()


def measure(run: dict[str, Any]) -> dict[str, float]:
    frequencies, power = spectrum(run["losses"])
    peak = int(np.argmax(power))
    return {
        "steps": len(run["losses"]),
        "spectral_peak": float(power[peak]),
        "peak_period_steps": float(1 / frequencies[peak]),
        "slow_share": float(power[frequencies < 1 / 20].sum() / power.sum()),
        "padding": 1 - run["real"] / run["padded"],
        "held_out_loss": run["held_out"],
        "seconds": run["seconds"],
    }


def draw(runs: dict[str, dict[str, Any]], figures: dict[str, dict[str, float]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.hashsalt": "draftsmith", "svg.fonttype": "none", "path.simplify_threshold": 0.5})
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(len(runs), 2, figsize=(11, 6.6), layout="constrained", sharex="col")
    for row, (way, run) in zip(axes, runs.items(), strict=True):
        later = run["losses"][len(run["losses"]) // 2 :][:300]
        row[0].plot(later, linewidth=0.8, color="#3b528b")
        row[0].set_ylabel("loss")
        row[0].set_title(f"{WAYS[way]}: 300 steps of the loss", fontsize=10)
        frequencies, power = spectrum(run["losses"])
        row[1].plot(frequencies, power, linewidth=0.8, color="#21918c")
        period = figures[way]["peak_period_steps"]
        row[1].set_title(f"peak {figures[way]['spectral_peak']:.0f} x mean, period {period:.1f} steps", fontsize=10)
        row[1].set_ylabel("power / mean")
        row[1].set_yscale("log")
        row[1].set_ylim(1e-3, 500)
    axes[-1][0].set_xlabel("step")
    axes[-1][1].set_xlabel("frequency (1 / step)")
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    if path.suffix == ".svg":  # a hundredth of a point is enough, and halves the file
        path.write_text(re.sub(r"(\d+\.\d\d)\d+", r"\1", path.read_text(encoding="utf-8")), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=12000)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--figure", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    runs = {way: train(way, options.samples, options.epochs) for way in WAYS}
    figures = {way: measure(run) for way, run in runs.items()}
    print(
        f"{'batches':28}{'steps':>7}{'peak/mean':>11}{'period':>8}{'slow power':>12}"
        f"{'padding':>9}{'held-out':>10}{'s':>6}"
    )
    for way, row in figures.items():
        print(
            f"{WAYS[way]:28}{row['steps']:7.0f}{row['spectral_peak']:11.1f}{row['peak_period_steps']:8.1f}"
            f"{row['slow_share']:12.1%}{row['padding']:9.1%}{row['held_out_loss']:10.4f}{row['seconds']:6.0f}"
        )
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    if options.figure:
        draw(runs, figures, options.figure)


if __name__ == "__main__":
    main()

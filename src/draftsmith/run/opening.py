"""What every command opens first: devices, store, plan, drafter, prompts. Everything is checked before it is used."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import __version__ as transformers_version
from transformers.utils import logging as transformers_logging

from draftsmith import data, evaluation
from draftsmith.config import DataConfig, RunConfig, TargetConfig
from draftsmith.data import TokenStore
from draftsmith.drafter import Drafter, make_shape
from draftsmith.errors import ConfigError, DataError
from draftsmith.files import short_hash
from draftsmith.keyed import keyed_generator
from draftsmith.observe import Progress, fast_dtype
from draftsmith.plan import (
    EpochPlan,
    PlanSettings,
    build_plan,
)
from draftsmith.records import BatchSpec
from draftsmith.streams import Topology, num_cores, topology
from draftsmith.target import (
    FeatureCache,
    Target,
    cache_root,
    capture,
    keep_freed_memory,
    load_tokenizer,
    resolve_device,
    resolve_mask_token_id,
)
from draftsmith.training import TrainState

# Bars and notes of the library would tear our one line of progress.
transformers_logging.disable_progress_bar()
transformers_logging.set_verbosity_error()

PACKAGED = Path(__file__).parents[1] / "demo"
SHIPPED_CONVERSATIONS = {name: PACKAGED / f"{name}.jsonl.gz" for name in ("demo", "tiny")}
DEMO_CONFIG = PACKAGED / "demo.toml"
VERIFIED_BYTES = 2 << 30  # a second or two of reading; larger stores are checked by `draftsmith inspect`
PromptSets = dict[str, list[list[int]]]


def set_up(config: RunConfig) -> RunConfig:
    """Set up torch, and settle what the configuration leaves to the machine: every precision that is auto."""
    keep_freed_memory()
    torch.set_num_threads(config.num_threads or num_cores())
    torch.use_deterministic_algorithms(config.deterministic)
    device = resolve_device(config.device)
    drafter_device = resolve_device(config.flow.drafter_device or device, setting="flow.drafter_device")
    target_device = resolve_device((config.flow.target_devices or (device,))[0], setting="flow.target_devices")
    train = {"dtype": settled(config.train.dtype, drafter_device)}
    measure = {"speed_dtype": settled(config.eval.speed_dtype, device)}
    return config.model_copy(
        update={
            "target": settle_target(config.target, target_device),
            "train": config.train.model_copy(update=train),
            "eval": config.eval.model_copy(update=measure),
        }
    )


def settle_target(target: TargetConfig, device: str) -> TargetConfig:
    """The target section with a precision that this device is fast in, where it was auto."""
    return target.model_copy(update={"dtype": settled(target.dtype, device)})


def settled(precision: str, device: str) -> str:
    return fast_dtype(device) if precision == "auto" else precision


def place(config: RunConfig) -> Topology:
    """Devices and threads of training, each device checked before anything is loaded."""
    device = resolve_device(config.device)
    for name in config.flow.target_devices:
        resolve_device(name, setting="flow.target_devices")
    resolve_device(config.flow.drafter_device or device, setting="flow.drafter_device")
    return topology(config, device=device, num_cores=num_cores())


def open_store(config: RunConfig, tokenizer: Any, run: Path) -> TokenStore:
    """The store that the configuration names, or one made from its conversations inside the run directory."""
    if config.data.store is not None:
        store = TokenStore.open(config.data.store)
        if store.num_bytes <= VERIFIED_BYTES:
            store.verify()
    else:
        sources = config.data.sources or (str(config.data.conversations),)
        with Progress(f"preparing {', '.join(sources)}") as progress:
            store = make_store(
                sources, run / "store", tokenizer, config.data, seed=config.seed, strict=False, progress=progress
            )
    if len(store.train_indices) == 0:
        raise DataError(f"{store.path} has no sample to train on; lower data.holdout or add conversations")
    if config.eval.num_prompts and len(store.holdout_indices) == 0:
        raise DataError(f"{store.path} holds nothing out to measure on; raise data.holdout, or set eval.num_prompts=0")
    data.check_store(store, tokenizer)
    return store


def make_store(
    sources: Sequence[str],
    destination: Path,
    tokenizer: Any,
    settings: DataConfig,
    *,
    seed: int,
    strict: bool,
    progress: Progress,
) -> TokenStore:
    """The store at `destination`, made now, or gone on with, or reused. `tiny` and `demo` are shipped sources."""
    start = time.monotonic()

    def show(rows: int, tokens: int) -> None:
        seconds = time.monotonic() - start
        progress.show(lambda: f"{rows:,} rows, {tokens / seconds if seconds else 0:,.0f} tokens/s")

    return data.prepare(
        [data.parse_source(str(SHIPPED_CONVERSATIONS.get(source, source))) for source in sources],
        destination,
        tokenizer,
        max_length=settings.max_length,
        holdout=settings.holdout,
        truncated=settings.truncated,
        limit=settings.limit,
        strict=strict,
        template_kwargs=settings.template_kwargs,
        text_markers=settings.text_markers,
        seed=seed,
        stopping_strategy=settings.stopping_strategy,
        num_workers=settings.num_workers or num_cores(),
        progress=show,
    )


def say_what_was_rejected(store: TokenStore) -> None:
    rows = store.accounting
    if rows.num_rejected:
        with Progress(f"{rows.num_rejected:,} of {rows.num_read:,} rows cannot be used") as progress:
            reasons = [f"{rejected.count:,} x {reason}" for reason, rejected in rows.rejected.items()]
            progress.note("; ".join(reasons))


Plans = Callable[[int], EpochPlan]


def plans_of(config: RunConfig, store: TokenStore) -> Plans:
    """The plan of an epoch; the last two are remembered, because training is in one while the target is in the next."""
    return functools.lru_cache(maxsize=2)(lambda epoch: plan_epoch(config, store, epoch=epoch))


def plan_epoch(config: RunConfig, store: TokenStore, *, epoch: int) -> EpochPlan:
    settings = PlanSettings(**config.batching.model_dump())
    if settings.batching == "packed":
        raise ConfigError("batching.batching is packed, which can be planned but not trained yet; use bucketed")
    return build_plan(store.lengths[store.train_indices], settings, seed=config.seed, epoch=epoch)


def specs_of(plan: EpochPlan, store: TokenStore, *, start: int = 0) -> Iterator[BatchSpec]:
    """Planned batches from step `start` on, with the store's own sample numbers."""
    for planned in plan.from_step(start):
        samples = tuple(store.train_indices[planned.samples].tolist())
        yield BatchSpec(
            planned.seq, planned.epoch, planned.bucket, samples, planned.padded_length, num_batches=plan.num_batches
        )


def planned(config: RunConfig, store: TokenStore, plans: Plans, state: TrainState) -> Iterator[BatchSpec]:
    """Batches of epoch after epoch from where `state` stands, no more than the budget asks for."""
    last = config.train.epochs
    epochs = itertools.count(state.epoch) if last is None else range(state.epoch, last)
    starts = itertools.chain([state.seq], itertools.repeat(0))
    specs = (
        spec
        for epoch, start in zip(epochs, starts, strict=False)
        for spec in specs_of(plans(epoch), store, start=start)
    )
    max_steps = config.train.max_steps
    return itertools.islice(specs, None if max_steps is None else (max_steps - state.step) * config.train.grad_accum)


def check_something_is_left(config: RunConfig, store: TokenStore, plan: EpochPlan) -> None:
    """Rows that batches cut must keep something to learn: silently training on nothing looks like training."""
    limit = plan.settings.row_limit
    if plan.num_truncated and not store.has_anchors_within(limit):
        raise DataError(
            f"batching.max_tokens is {config.batching.max_tokens}, so rows are cut at {limit} tokens, before any "
            "answer begins; raise it, or set batching.overlong=drop"
        )


def new_drafter(config: RunConfig, target: Target, tokenizer: Any, store: TokenStore) -> Drafter:
    """A drafter that fits target and store, on the CPU, so that every device starts from the same weights."""
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
    drafter = Drafter(shape)
    generator = torch.Generator().manual_seed(int(keyed_generator(config.seed, "init").integers(2**62)))
    drafter.init_weights(generator, pass_last_tap=config.drafter.init == "pass-last-tap")
    return drafter


def features_on_disk(
    config: RunConfig, store: TokenStore, target: Target, *, ahead: bool = False
) -> FeatureCache | None:
    """Where hidden states of all training samples are kept, or None if they are not.

    With target.cache=disk, or `ahead`, those that are missing are computed now; otherwise as training asks for them.
    """
    if config.target.cache == "none" and not ahead:
        return None
    specs = list(specs_of(plan_epoch(config, store, epoch=0), store))
    kept = np.zeros(len(store), dtype=np.int64)  # tokens of each sample that training may see
    for spec in specs:
        kept[list(spec.samples)] = np.minimum(store.lengths[list(spec.samples)], spec.padded_length)
    if config.target.cache != "first-epoch":
        specs = _captured_batches(kept)
    made_from = [store.fingerprint, target.fingerprint(), str(target.dtype), target.layer_ids, transformers_version]
    directory = cache_root() / "features" / short_hash([*made_from, sha256(kept.tobytes()).hexdigest()])
    with Progress("verifying hidden states on disk"):
        cache = FeatureCache(directory, target, np.concatenate([[0], np.cumsum(kept)]), specs)
    if (config.target.cache == "disk" or ahead) and not cache.is_complete:
        _capture(cache, target, store)
    return cache


def _captured_batches(kept: npt.NDArray[np.int64]) -> list[BatchSpec]:
    """Small batches of one length keep the working set in the processor's cache and waste little padding."""
    samples = np.flatnonzero(kept)
    settings = PlanSettings(max_tokens=max(1536, int(kept.max())), order="sequential")
    plan = build_plan(kept[samples], settings, seed=0)
    return [
        BatchSpec(planned.seq, 0, planned.bucket, tuple(samples[planned.samples].tolist()), planned.padded_length)
        for planned in plan
    ]


def _capture(cache: FeatureCache, target: Target, store: TokenStore) -> None:
    start, before, total = time.monotonic(), cache.num_tokens, int(cache.offsets[-1])

    def line(done: int) -> str:
        return f"{done:,} of {total:,} tokens, {(done - before) / (time.monotonic() - start):,.0f} tokens/s"

    with Progress("reading the target's hidden states") as progress:
        capture(
            cache,
            target,
            functools.partial(data.collate, store),
            progress=lambda done: progress.show(lambda: line(done)),
        )


def prompt_sets(config: RunConfig, run: Path) -> PromptSets:
    """What is measured, by name; sets without prompts are left out, and one whose package is missing says so.

    The first gives the headline.
    """
    store = TokenStore.open(_store_path(config, run))
    wanted, template = config.eval, config.data.template_kwargs
    sets = {"holdout": [store.prompt(int(i)).tolist() for i in store.holdout_indices[: wanted.num_prompts]]}
    packaged = {
        "humaneval": (evaluation.humaneval_prompts, wanted.num_code_prompts),
        "gsm8k": (evaluation.gsm8k_prompts, wanted.num_math_prompts),
    }
    if any(num for _, num in packaged.values()) or wanted.prompts:
        tokenizer = load_tokenizer(config.target)
        for name, (read, num) in packaged.items():
            if num:
                sets[name] = _unless_missing(name, functools.partial(read, tokenizer, num, template))
        for path in wanted.prompts:
            name = path.name.split(".")[0]
            sets[str(path) if name in sets else name] = evaluation.file_prompts(tokenizer, path, template)
    return {name: prompts for name, prompts in sets.items() if prompts}


def skipped_sets(config: RunConfig, prompts: PromptSets) -> list[str]:
    """Sets that were asked for and could not be read, because their package is missing."""
    asked = {"humaneval": config.eval.num_code_prompts, "gsm8k": config.eval.num_math_prompts}
    return [name for name, num in asked.items() if num and name not in prompts]


def _unless_missing(name: str, read: Callable[[], list[list[int]]]) -> list[list[int]]:
    try:
        return read()
    except evaluation.MissingPackage as missing:
        with Progress(f"{name} is skipped") as progress:
            progress.note(str(missing))
        return []


def _store_path(config: RunConfig, run: Path) -> Path:
    return config.data.store or run / "store"

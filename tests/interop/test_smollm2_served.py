"""A drafter trained for SmolLM2, served by llama.cpp beside the target's own GGUF: `make interop`.

The target there is int4 with int8 arithmetic, so its text soon differs from ours. What must hold: the drafter changes
nothing of that text, and is accepted there as our walk over that very text says.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from draftsmith.config import TargetConfig
from draftsmith.data import TokenStore
from draftsmith.errors import EngineMissing
from draftsmith.evaluation import walk
from draftsmith.export import read_drafter
from draftsmith.export.llama_cpp import gguf_file
from draftsmith.export.llama_server import LlamaServer, Served, llama_server, pooled_length
from draftsmith.files import short_hash
from draftsmith.run.verifying import verify
from draftsmith.target import builtin_gguf, cache_root, load_target
from helpers import draftsmith

pytestmark = [pytest.mark.interop, pytest.mark.smollm2, pytest.mark.timeout(1800)]

NUM_PROMPTS, NUM_TOKENS = 8, 48
OTHER = Path(__file__).parents[2] / ".venv-engines"
# fp32, so that the result does not depend on what bf16 costs here; few rows, learnt well, so that much is accepted.
RECIPE = """
seed = 0
[target]
model = "smollm2-135m"
dtype = "float32"
cache = "disk"
[data]
conversations = "demo"
limit = 12
max_length = 160
truncated = "cut"
holdout = 0.05
[batching]
max_tokens = 1024
max_rows = 4
[drafter]
num_layers = 1
block_size = 8
num_anchors = 16
intermediate_size = 768
init = "pass-last-tap"
mask_token_id = 16
[train]
max_steps = 250
optimizer = "adamw"
lr = 3e-3
head = "sampled"
dtype = "float32"
[eval]
num_prompts = 0
num_code_prompts = 0
num_timed = 0
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A minute of training, kept in the user's cache."""
    kept = cache_root() / "interop" / short_hash(RECIPE)
    if not (kept / "summary.json").exists():
        scratch = tmp_path_factory.mktemp("interop")
        (scratch / "recipe.toml").write_text(RECIPE, encoding="utf-8")
        done = draftsmith("train", scratch / "recipe.toml", f"run.dir={scratch / 'run'}")
        assert done.code == 0, done.err
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(scratch / "run", kept.with_name(f"{kept.name}.{os.getpid()}"))
        kept.with_name(f"{kept.name}.{os.getpid()}").rename(kept)
    return kept


@pytest.fixture(scope="module")
def prompts(run: Path) -> list[list[int]]:
    store = TokenStore.open(run / "store")
    return [
        store.prompt(int(i)).tolist() for i in [*store.train_indices[: NUM_PROMPTS - 1], *store.holdout_indices[:1]]
    ]


def answers(server: LlamaServer, prompts: list[list[int]]) -> list[Served]:
    return [server.complete(prompt, max_new_tokens=NUM_TOKENS) for prompt in prompts]


def test_the_served_acceptance_is_ours_on_the_servers_own_tokens(
    run: Path, prompts: list[list[int]], tmp_path: Path
) -> None:
    target_gguf = builtin_gguf("smollm2-135m")
    assert target_gguf is not None
    done = draftsmith("export", run, tmp_path / "gguf", "--format", "gguf")
    assert done.code == 0, done.err
    try:
        with llama_server(target_gguf, drafter=gguf_file(tmp_path / "gguf"), num_draft=7) as server:
            drafted = answers(server, prompts)
        with llama_server(target_gguf) as server:
            plain = answers(server, prompts)
    except EngineMissing as error:
        pytest.skip(str(error))
    assert [a.tokens for a in drafted] == [a.tokens for a in plain]
    drafter = read_drafter(run / "drafter").float()
    config = TargetConfig(model="smollm2-135m", dtype="float32", layer_ids=drafter.shape.target_layer_ids)
    target = load_target(config)
    walked = [n for p, a in zip(prompts, drafted, strict=True) for n in walk(drafter, target, p, a.tokens)]
    ours, served = sum(walked) / len(walked), pooled_length(drafted)
    print(f"served {served:.3f}, our walk {ours:.3f}, {len(walked)} verifications of {len(prompts)} answers")
    assert ours > 1.1  # accepted now and then, or the comparison is worth nothing
    assert served == pytest.approx(ours, rel=0.03)


@pytest.mark.skipif(
    not (OTHER / "stamp").exists(), reason="vLLM and speculators are not there; `make engines` installs them"
)
def test_engines_of_another_environment_read_every_bit(run: Path, tmp_path: Path) -> None:
    done = draftsmith("export", run, tmp_path / "served", "--format", "speculators")
    assert done.code == 0, done.err
    verdicts = {each.reader: each for each in verify(tmp_path / "served", pythons=[OTHER / "bin" / "python"])}
    for reader in ("speculators", "vLLM", "vLLM from speculators"):
        print(reader, verdicts[reader])
        assert verdicts[reader].status == "passed", verdicts[reader].detail
        assert verdicts[reader].same_tensors
    assert verdicts["speculators"].same_drafts

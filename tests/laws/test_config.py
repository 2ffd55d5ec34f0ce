"""Settings are checked once, at the edge; every refusal names the key, the value and the way out."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from pydantic import BaseModel

from draftsmith.config import RunConfig, load_config, parse_config
from draftsmith.errors import ConfigError
from draftsmith.observe import fast_dtype
from draftsmith.run.opening import set_up
from helpers import CONFIGS, tiny_config

MINIMAL = {"target": {"model": "tiny-random"}, "data": {"conversations": "tiny"}, "train": {"max_steps": 1}}


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.toml")), ids=lambda path: path.stem)
def test_every_recipe_that_ships_can_be_read(path: Path) -> None:
    assert load_config(path).target.model


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("train.max_stepz=3", "unknown setting train.max_stepz; did you mean train.max_steps?"),
        ("trian.lr=1", "unknown setting trian; did you mean train?"),
        ("drafter.blocksize=8", "unknown setting drafter.blocksize; did you mean drafter.block_size?"),
        ("run.qqq=1", "unknown setting run.qqq; known here: dir"),
        ("train.lr=fast", "train.lr is 'fast': input should be a valid number"),
        ("train.lr=-1", "train.lr is -1: input should be greater than 0"),
        ("drafter.block_size=1", "drafter.block_size is 1: input should be greater than or equal to 2"),
        ("drafter.num_layers=2.5", "drafter.num_layers is 2.5: input should be a valid integer"),
        ("target.dtype=fp8", "target.dtype is 'fp8': input should be 'auto', 'float32' or 'bfloat16'"),
        ("flow.watchdog_s=inf", "flow.watchdog_s is inf: input should be less than or equal to 1000000"),
        ('run.dir="a\\u0000b"', "run.dir: 'a\\x00b' holds a null character"),
        ("data.holdout=1", "data.holdout is 1: input should be less than 1"),
        ("ray.address=ray://somewhere", "ray.address is 'ray://somewhere'; give the host:port"),
        ("ray.address=host:99999", "ray.address is 'host:99999'; give the host:port that `ray start --head` prints"),
        ("ray.address=host:0", "and a port from 1 to 65535"),
        ("ray.address='[::1]:6379'", "ray.address is '[::1]:6379'; give the host:port"),
        ("ray.address=::1:6379", "a name or an IPv4 address"),
        ("train.minutes=5", "give exactly one of train.minutes, train.max_steps and train.epochs"),
        ("data.store=somewhere", "give exactly one of data.conversations, data.sources and data.store"),
        ("target.trust_remote_code=true", "pin it with target.revision"),
        ("nonsense", "override 'nonsense' does not read as section.key=value, for example train.max_steps=10"),
        ("=3", "override '=3' does not read as section.key=value"),
        ("train..lr=3", "override 'train..lr=3' does not read as section.key=value"),
        ("seed.deep=3", "override 'seed.deep=3': seed is a value, not a section"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_key_value_and_way_out(override: str, expected: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        tiny_config(override)
    assert expected in str(refusal.value)


@pytest.mark.parametrize("section", ["target", "data", "train"])
def test_a_missing_section_is_named(section: str) -> None:
    with pytest.raises(ConfigError, match=f"configuration: {section} is required"):
        parse_config({name: value for name, value in MINIMAL.items() if name != section})


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as refusal:
        tiny_config("train.max_stepz=3", "train.lr=-1")
    assert "train.max_stepz" in str(refusal.value)
    assert "train.lr" in str(refusal.value)


def test_overrides_are_toml_values_or_else_plain_text() -> None:
    config = tiny_config(
        "run.dir=runs/mine", "train.lr=1e-4", "target.layer_ids=[1, 3]", "data.conversations = a b.jsonl", "seed=7"
    )
    assert config.run.dir == Path("runs/mine")
    assert (config.train.lr, config.target.layer_ids, config.seed) == (1e-4, (1, 3), 7)
    assert config.data.conversations == "a b.jsonl"


def test_a_later_override_wins() -> None:
    assert tiny_config("seed=1", "seed=2").seed == 2


def test_a_missing_file_and_broken_toml_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml does not exist; see configs/"):
        load_config(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path)
    (tmp_path / "broken.toml").write_text("seed = \n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"broken\.toml is not valid TOML: .*line 1"):
        load_config(tmp_path / "broken.toml")
    (tmp_path / "latin.toml").write_bytes(b"# caf\xe9\n")
    with pytest.raises(ConfigError, match=r"latin\.toml is not valid TOML"):
        load_config(tmp_path / "latin.toml")


def test_settings_are_frozen() -> None:
    config = tiny_config()
    with pytest.raises(ValueError, match="frozen"):
        config.seed = 3  # type: ignore[misc]


def test_a_configuration_that_is_written_down_reads_back_the_same() -> None:
    config = tiny_config("run.dir=runs/x", "train.betas=[0.8, 0.9]")
    assert parse_config(config.model_dump(mode="json", exclude_none=True)) == config


def test_no_two_sections_hide_a_setting_behind_another_type() -> None:
    for name, field in RunConfig.model_fields.items():
        nested = isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
        assert nested == (name not in {"seed", "deterministic", "device", "num_threads", "runtime"}), name


@pytest.mark.parametrize("place", ["file", "override"])
def test_values_nested_thousands_deep_are_refused_like_any_other_nonsense(place: str, tmp_path: Path) -> None:
    deep = "[" * 5000 + "]" * 5000
    (tmp_path / "deep.toml").write_text(f"seed = {deep if place == 'file' else 0}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="nested too deeply"):
        load_config(tmp_path / "deep.toml", [f"seed={deep}"] if place == "override" else [])


@pytest.mark.parametrize(("faster", "expected"), [("bfloat16", "bfloat16"), ("float32", "float32")])
def test_a_precision_that_is_auto_becomes_the_one_measured_to_be_fast(
    faster: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(_device: object, dtype: torch.dtype) -> tuple[float, float]:
        return (100.0 if str(dtype) == f"torch.{faster}" else 50.0), 0.0

    monkeypatch.setattr("draftsmith.observe.devices._product", measured)
    fast_dtype.cache_clear()
    threads = torch.get_num_threads()
    settled = set_up(tiny_config("target.dtype=auto", "train.dtype=auto", "eval.speed_dtype=auto", "num_threads=1"))
    torch.set_num_threads(threads)
    fast_dtype.cache_clear()
    assert {settled.target.dtype, settled.train.dtype, settled.eval.speed_dtype} == {expected}
    assert settled.eval.dtype == "float32"


def test_a_precision_that_is_given_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftsmith.run.opening.fast_dtype", lambda _device: pytest.fail("measured"))
    config = tiny_config("num_threads=1")
    assert set_up(config) == config

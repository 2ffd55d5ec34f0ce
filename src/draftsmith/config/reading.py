"""TOML and `a.b=c` become checked sections; a mistake is named by key and value, with the nearest known name."""

from __future__ import annotations

import difflib
import tomllib
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from draftsmith.config.sections import BatchingConfig, DataConfig, RunConfig, TargetConfig
from draftsmith.errors import ConfigError

RESERVED_TEMPLATE_NAMES = {"tokenize", "return_dict", "add_generation_prompt", "tools", "messages", "conversation"}
SectionType = TypeVar("SectionType", bound=BaseModel)


def load_config(path: Path, overrides: list[str] | None = None) -> RunConfig:
    """Read a TOML file and apply `a.b=c` overrides. Raises ConfigError that names the key, the value and the fix."""
    try:
        settings = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"configuration file {path} does not exist; see configs/ for examples") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    except RecursionError:
        raise ConfigError(f"{path} is nested too deeply to be a configuration; see configs/ for examples") from None
    except OSError as error:
        raise ConfigError(f"configuration file {path} cannot be read: {error.strerror}") from error
    for override in overrides or []:
        _apply_override(settings, override)
    return parse_config(settings, origin=str(path))


def load_run_config(run: Path, overrides: list[str] | None = None) -> RunConfig:
    """What a run directory says that ran there. Raises ConfigError also if it is none."""
    if not (run / "config.toml").exists():
        raise ConfigError(f"{run} is no run directory: there is no config.toml in it; give one that `train` has made")
    return load_config(run / "config.toml", overrides)


def parse_config(settings: dict[str, Any], origin: str = "configuration") -> RunConfig:
    """Check a nested dictionary and freeze it. Raises ConfigError that names every problem."""
    return _validate(RunConfig, settings, origin)


def parse_batching(overrides: list[str]) -> BatchingConfig:
    """The batching section alone, from `key=value` settings such as max_tokens=8192."""
    settings: dict[str, Any] = {}
    for override in overrides:
        _apply_override(settings, override.removeprefix("batching."))
    return _validate(BatchingConfig, settings, "batching")


def parse_target(**settings: Any) -> TargetConfig:
    """The target section alone."""
    return _validate(TargetConfig, settings, "target")


def parse_data(**settings: Any) -> DataConfig:
    """The data section alone."""
    return _validate(DataConfig, settings, "data")


def parse_template(overrides: list[str]) -> dict[str, bool | int | str]:
    """Arguments of a chat template from `key=value`, such as enable_thinking=false."""
    settings: dict[str, Any] = {}
    for override in overrides:
        _apply_override(settings, override)
    for name, value in settings.items():
        if name in RESERVED_TEMPLATE_NAMES or not isinstance(value, bool | int | str):
            raise ConfigError(
                f"--template {name}={value!r} cannot be given; a chat template takes its own names, with values "
                "that are true, false, whole numbers or text"
            )
    return settings


def _validate(section: type[SectionType], settings: dict[str, Any], origin: str) -> SectionType:
    try:
        return section.model_validate(settings)
    except ValidationError as error:
        problems = [_explain(problem, section) for problem in error.errors()]
        raise ConfigError(f"{origin}: " + "; ".join(problems)) from None


def _apply_override(settings: dict[str, Any], override: str) -> None:
    name, equals, text = override.partition("=")
    path = name.strip().split(".")
    if not equals or not all(path):
        raise ConfigError(f"override {override!r} does not read as section.key=value, for example train.max_steps=10")
    section = settings
    for key in path[:-1]:
        section = section.setdefault(key, {})
        if not isinstance(section, dict):
            raise ConfigError(f"override {override!r}: {key} is a value, not a section")
    section[path[-1]] = _toml_value(text.strip())


def _toml_value(text: str) -> Any:
    """Anything that reads as a TOML value is one; everything else is a string, so that paths need no quotes."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    except RecursionError:
        raise ConfigError(f"the value {text[:20]}... is nested too deeply") from None


def _explain(problem: Any, root: type[BaseModel]) -> str:
    path = [str(part) for part in problem["loc"]]
    name = ".".join(path) or "configuration"
    if problem["type"] == "extra_forbidden":
        known = _known_keys(root, path[:-1])
        near = difflib.get_close_matches(path[-1], known, n=1, cutoff=0.5)
        hint = f"did you mean {'.'.join([*path[:-1], near[0]])}?" if near else f"known here: {', '.join(known)}"
        return f"unknown setting {name}; {hint}"
    if problem["type"] == "missing":
        return f"{name} is required"
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "value_error":
        return f"{name}: {message}" if path else message
    return f"{name} is {problem['input']!r}: {message[:1].lower()}{message[1:]}"


def _known_keys(section: type[BaseModel], path: list[str]) -> list[str]:
    for key in path:
        annotation = section.model_fields[key].annotation
        assert isinstance(annotation, type)
        section = annotation
    return sorted(section.model_fields)

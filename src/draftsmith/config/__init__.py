"""The configuration of a run: its knobs (`sections`), and how they are read (`reading`).

A run is described by one TOML file; `a.b=c` on the command line overrides single values. Unknown names are errors that
suggest the nearest known one. Nothing else in the project reads configuration: rooms receive the section they need.
"""

from draftsmith.config.reading import (
    load_config,
    load_run_config,
    parse_batching,
    parse_config,
    parse_data,
    parse_target,
    parse_template,
)
from draftsmith.config.sections import (
    BatchingConfig,
    CheckpointConfig,
    DataConfig,
    DrafterConfig,
    EvalConfig,
    FlowConfig,
    ObserveConfig,
    RunConfig,
    RunSection,
    TargetConfig,
    TrainConfig,
)

__all__ = [
    "BatchingConfig",
    "CheckpointConfig",
    "DataConfig",
    "DrafterConfig",
    "EvalConfig",
    "FlowConfig",
    "ObserveConfig",
    "RunConfig",
    "RunSection",
    "TargetConfig",
    "TrainConfig",
    "load_config",
    "load_run_config",
    "parse_batching",
    "parse_config",
    "parse_data",
    "parse_target",
    "parse_template",
]

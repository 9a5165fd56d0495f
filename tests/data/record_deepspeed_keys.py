#!/usr/bin/env python3
"""Records every key that DeepSpeed reads of its configuration, with a value that is not the default.

    python3 record_deepspeed_keys.py      merges what the installed deepspeed reads into deepspeed_keys.json beside this script

Run it once with each version that people have. Needs deepspeed (DS_BUILD_OPS=0, without a GPU) and torch. The test suite needs
neither: the file is committed. tests/unit/coordinator/import/deepspeed_sweep_test.cc feeds each key and demands that none is told
to be no key of DeepSpeed.

SPDX-License-Identifier: Apache-2.0
"""
import ast
import importlib
import inspect
import json
import os
import pathlib
import typing

os.environ.setdefault("DS_ACCELERATOR", "cpu")
import deepspeed  # noqa: E402
from deepspeed.runtime.config_utils import DeepSpeedConfigModel  # noqa: E402

FILE = pathlib.Path(__file__).resolve().parent / "deepspeed_keys.json"
# Sections that pydantic reads: module, class.
MODELS = {"zero_optimization": ("runtime.zero.config", "DeepSpeedZeroConfig"), "fp16": ("runtime.precision_config", "DeepSpeedFP16Config"),
          "bf16": ("runtime.precision_config", "DeepSpeedBF16Config"), "compile": ("compile.config", "CompileConfig"),
          "comms_logger": ("comm.config", "CommsLoggerConfig"), "tensorboard": ("monitor.config", "TensorBoardConfig"),
          "csv_monitor": ("monitor.config", "CSVConfig"), "wandb": ("monitor.config", "WandbConfig"), "comet": ("monitor.config", "CometConfig"),
          "tensor_parallel": ("runtime.tensor_parallel.config", "TPTrainingConfig"), "hybrid_engine": ("runtime.config", "HybridEngineConfig")}
# Sections that code reads by names from a module of constants.
CONSTANTS = {"activation_checkpointing": "runtime.activation_checkpointing.config", "flops_profiler": "profiling.constants",
             "aio": "runtime.swap_tensor.constants"}
SCALARS = ("train_micro_batch_size_per_gpu", "communication_data_type", "seq_parallel_communication_data_type")  # read through other names


def module(name):
    try:
        return importlib.import_module("deepspeed." + name)
    except ImportError:
        return None  # of another version


def other(field):
    now, kind = field.default, str(field.annotation).lower()
    if isinstance(now, bool):
        return not now
    if isinstance(now, int):
        return now * 2 + 3
    if isinstance(now, float):
        return now / 2 + 0.1
    for word, value in (("bool", True), ("int", 7), ("float", 0.3), ("dict", "another"), ("list", ["x"])):
        if word in kind:
            return value
    return "another"


def fields(path, model):
    for name, field in model.model_fields.items():
        key = f"{path}.{field.alias or name}"
        kinds = typing.get_args(field.annotation) or (field.annotation,)
        below = [kind for kind in kinds if inspect.isclass(kind) and issubclass(kind, DeepSpeedConfigModel)]
        if below:
            yield from fields(key, below[0])
        else:
            yield key, other(field)


def words(constants):
    """The names of keys in a module of constants: NAME = "name" beside NAME_DEFAULT."""
    names = vars(constants)
    return [value for name, value in names.items() if isinstance(value, str) and name.isupper() and f"{name}_DEFAULT" in names]


def top_level():
    """What runtime/config.py asks the outermost object for, by the constants that it names beside param_dict."""
    config = importlib.import_module("deepspeed.runtime.config")
    names = {}
    for node in ast.walk(ast.parse(inspect.getsource(config))):
        if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Name) and node.args[0].id == "param_dict":
            names.update((argument.id, None) for argument in node.args[1:2] if isinstance(argument, ast.Name))
    values = [getattr(config, name, None) for name in names]
    return [value for value in values if isinstance(value, str)] + list(SCALARS)


def main():
    found = {key: 7 for key in top_level()}
    for section, (name, model) in MODELS.items():
        if (read := getattr(module(name), model, None)) is not None:
            found.update(fields(section, read))
    for section, name in CONSTANTS.items():
        found.update({f"{section}.{word}": 7 for word in words(module(name)) if word != section})
    kept = json.loads(FILE.read_text()) if FILE.exists() else {"versions": [], "keys": {}}
    versions = sorted({*kept["versions"], deepspeed.__version__})
    keys = dict(sorted({**kept["keys"], **found}.items()))
    lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in keys.items())
    FILE.write_text(f'{{"versions": {json.dumps(versions)},\n "keys": {{\n{lines}\n}}}}\n')


if __name__ == "__main__":
    main()

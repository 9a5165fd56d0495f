#!/usr/bin/env python3
"""Records every key that the configuration classes of transformers know for the families of Terrace, with its default.

    python3 record_config_keys.py      merges what the installed transformers knows into config_keys.json beside this script

Run it once with transformers 4 and once with 5: their classes know different keys, and a config.json may be of either. Needs
transformers, not torch. The test suite needs neither: the file is committed. tests/unit/coordinator/model/config_sweep_test.cc
feeds each key with other values and demands that each is read, known to be without effect, refused or remarked on.

SPDX-License-Identifier: Apache-2.0
"""
import inspect
import json
import pathlib

import transformers
from transformers import AutoConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

FAMILIES = ["gpt2", "llama", "mistral", "qwen2", "qwen3", "starcoder2", "gpt_neox", "gemma", "stablelm", "phi3", "olmo2", "granite",
            "opt", "gemma3_text", "falcon", "olmo3", "smollm3", "cohere", "gemma2", "bloom", "mpt"]
FILE = pathlib.Path(__file__).resolve().parent / "config_keys.json"
# Read by the base class off whatever keys it is given, so that no signature names them.
OFF_SIGNATURES = {"torch_dtype": None, "rope_theta": 10000.0, "rope_scaling": None, "partial_rotary_factor": None,
                  "original_max_position_embeddings": None, "num_labels": 2, "attn_implementation": None,
                  "output_attentions": False, "name_or_path": "", "gradient_checkpointing": False}
NOT_KEYS = {"self", "kwargs", "args"}


def plain(value):
    return value if isinstance(value, (bool, int, float, str, list, dict, type(None))) else None


def keys_of(cls):
    """Key -> default, of a class and those it is derived from."""
    keys = dict(OFF_SIGNATURES)
    for base in reversed(cls.__mro__):
        if not base.__module__.startswith("transformers"):
            continue
        for name, parameter in inspect.signature(base.__init__).parameters.items():
            if name not in NOT_KEYS:
                keys[name] = None if parameter.default is inspect.Parameter.empty else plain(parameter.default)
    keys.update({name: plain(value) for name, value in generation_keys().items()})
    instance = cls()
    for name in list(keys):
        if hasattr(instance, name) and name not in OFF_SIGNATURES:
            keys[name] = plain(getattr(instance, name))
    for name, value in instance.to_dict().items():
        keys.setdefault(name, plain(value))
    keys.pop("model_type", None)
    keys.pop("transformers_version", None)
    return keys


def generation_keys():
    config = AutoConfig.for_model("gpt2")
    for owner, name in ((transformers.GenerationConfig, "_get_default_generation_params"),
                        (config, "_get_global_generation_defaults")):
        if hasattr(owner, name):
            return getattr(owner, name)()
    return {}


def main():
    known = json.loads(FILE.read_text()) if FILE.exists() else {"versions": [], "aliases": {}, "keys": {}}
    known["versions"] = sorted(set(known["versions"]) | {transformers.__version__})
    for family in FAMILIES:
        cls = CONFIG_MAPPING[family]
        known["aliases"].setdefault(family, {}).update(cls.attribute_map)
        keys = known["keys"].setdefault(family, {})
        for name, default in sorted(keys_of(cls).items()):
            keys.setdefault(name, default)
    FILE.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()

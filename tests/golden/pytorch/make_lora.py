#!/usr/bin/env python3
"""Makes lora.json of this folder: twenty steps of low-rank adapters of the goldens' llama and gpt2, and of all linear
layers of models with other blocks, as PEFT trains them, with AdamW in fp32.

    python3 make_lora.py [--check]     writes the file, or compares with what is there (to 1e-5)

Needs torch, transformers, safetensors and peft. The test suite needs none of them: the file is committed.

SPDX-License-Identifier: Apache-2.0
"""
import argparse
import json
import sys

import torch
from make_goldens import HERE, load
from make_recipes import ADAMW, CLIP, train
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file

# As a job spec writes them under model.lora and train.optimizer.
ADAPTERS = {
    "all_linear": {"rank": 4, "alpha": 8.0, "targets": "all-linear"},
    "query_and_value": {"rank": 8, "alpha": 4.0,
                        "targets": {"llama": ["q_proj", "v_proj"], "gpt2": ["c_attn"]}},
    "rslora": {"rank": 4, "alpha": 6.0, "rslora": True,
               "targets": {"llama": ["up_proj", "k_proj"], "gpt2": ["mlp.c_proj"]}},
    "mlp_up": {"rank": 3, "alpha": 3.0, "targets": {"llama": ["gate_proj", "down_proj"], "gpt2": ["c_fc"]}},
    "one_layer": {"rank": 2, "alpha": 2.0,
                  "targets": {"llama": ["layers.1.self_attn.o_proj"], "gpt2": ["h.1.attn.c_proj"]}},
    "lora_plus": {"rank": 4, "alpha": 8.0, "targets": "all-linear", "groups": {"*lora_B*": {"lr_scale": 4.0}}},
    "norms_too": {"rank": 4, "alpha": 8.0, "targets": "all-linear",
                  "groups": {"*norm*": {"frozen": False}, "*ln_*": {"frozen": False}}},
}


def families(name):
    others = ("gpt_neox", "phi3", "olmo2", "granite", "opt", "gemma3_text", "falcon", "falcon_groups", "cohere")
    return ("gpt2", "llama") + (others if name == "all_linear" else ())


def number(i, is_b):
    """Element i of an adapter's matrix at first. B is not zero, so that the first gradient of A is not."""
    return ((i * 53 + 7) % 97 - 48) / 2000 if is_b else ((i * 37 + 11) % 101 - 50) / 250


def adapted(folder, family, adapter):
    targets = adapter["targets"]
    config = LoraConfig(r=adapter["rank"], lora_alpha=adapter["alpha"], use_rslora=adapter.get("rslora", False),
                        target_modules=targets if isinstance(targets, str) else targets[family],
                        lora_dropout=0.0, bias="none", task_type="CAUSAL_LM", fan_in_fan_out=family == "gpt2")
    model = get_peft_model(load(folder), config)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            values = [number(i, "lora_B" in name) for i in range(parameter.numel())]
            parameter.data = torch.tensor(values, dtype=torch.float32).reshape(parameter.shape)
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare instead of write")
    check = parser.parse_args().check
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    path, numbers = HERE / "lora.json", {}
    for name, adapter in ADAPTERS.items():
        # What no group names of the model itself is frozen, as make_recipes.py reads groups.
        groups = {"*": {"frozen": True}, "*lora_*": {"frozen": False}} | adapter.get("groups", {})
        numbers[name] = {"arguments": ADAMW, "clip_grad_norm": CLIP, "recipe": adapter}
        for family in families(name):
            batch = load_file(HERE / family / "batch.safetensors")
            model = adapted(HERE / family, family, adapter)
            losses = train(model, batch["tokens"].long(), batch["targets"].long(), {"groups": groups})
            numbers[name][family] = {"losses": losses}
            print(f"{name} {family}: loss {losses[0]:.6f} -> {losses[-1]:.6f}")
    if not check:
        path.write_text(json.dumps(numbers, indent=1) + "\n")
        return
    stored = json.loads(path.read_text())
    worst = max(abs(a - b) for name in ADAPTERS for family in families(name)
                for a, b in zip(numbers[name][family]["losses"], stored[name][family]["losses"], strict=True))
    print(f"largest difference {worst:.2e}")
    sys.exit(0 if worst < 1e-5 else 1)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Makes the folder `adapter` of gpt2's and llama's goldens: a LoRA adapter as PEFT saves it, and what PEFT computes with it.

    python3 make_adapters.py [--check]     writes the folders, or compares with what is there (to 1e-5)

Needs torch, transformers, safetensors and peft. The test suite needs none of them: the files are committed.

SPDX-License-Identifier: Apache-2.0
"""
import argparse
import json
import pathlib
import sys
import tempfile

import torch
from make_goldens import HERE, forward, load
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file

# gpt2: matrices are stored [in, out]; "c_proj" is two modules of a layer. llama: some modules of a layer alone, rsLoRA.
CONFIGS = {
    "gpt2": {"r": 4, "lora_alpha": 6, "target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True},
    "llama": {"r": 3, "lora_alpha": 5, "use_rslora": True, "target_modules": ["q_proj", "v_proj", "down_proj"]},
}
ADAPTER, EXPECTED = "adapter_model.safetensors", "expected.safetensors"


def make(family, folder):
    """As PEFT writes it; both matrices are away from zero."""
    torch.manual_seed(11)
    model = get_peft_model(load(HERE / family), LoraConfig(task_type="CAUSAL_LM", **CONFIGS[family]))
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.2)
    model.peft_config["default"].base_model_name_or_path = f"tests/golden/pytorch/{family}"
    model.save_pretrained(folder)
    (folder / "README.md").unlink()
    config = json.loads((folder / "adapter_config.json").read_text())
    config["target_modules"].sort()  # it is a set
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def compute(family, folder):
    """Of the base with the adapter: logits and losses of the batch's rows, and every weight that merging changes."""
    batch = load_file(HERE / family / "batch.safetensors")
    base = load(HERE / family)
    before = {name: weight.clone() for name, weight in base.state_dict().items()}
    model = PeftModel.from_pretrained(base, folder)
    with torch.no_grad():
        rows = [forward(model, batch["tokens"][row:row + 1].long(), batch["targets"][row:row + 1].long()) for row in range(2)]
        merged = model.merge_and_unload().state_dict()
    changed = {f"merged.{name}": weight.contiguous() for name, weight in merged.items() if not torch.equal(weight, before[name])}
    return {"logits": torch.cat([logits for logits, _ in rows]), "losses": torch.stack([loss for _, loss in rows]), **changed}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare instead of write")
    check = parser.parse_args().check
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    worst = 0.0
    for family in CONFIGS:
        folder = HERE / family / "adapter"
        with tempfile.TemporaryDirectory() as temporary:
            made = pathlib.Path(temporary) if check else folder
            make(family, made)
            numbers = load_file(made / ADAPTER) | compute(family, made)
        print(f"{family}: losses {numbers['losses'].tolist()}, {sum(name.startswith('merged.') for name in numbers)} matrices merged")
        if not check:
            save_file(compute(family, folder), folder / EXPECTED)
            continue
        stored = load_file(folder / ADAPTER) | load_file(folder / EXPECTED)
        assert stored.keys() == numbers.keys(), stored.keys() ^ numbers.keys()
        worst = max([worst] + [(stored[name] - numbers[name]).abs().max().item() for name in stored])
    print(f"largest difference {worst:.2e}")
    sys.exit(0 if worst < 1e-5 else 1)


if __name__ == "__main__":
    main()

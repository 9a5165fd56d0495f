#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PEFT loads the adapters that Terrace trains and computes the same with them, merges them to the same weights, and Terrace goes
on from those that PEFT saves.

Needs torch, transformers and peft: run it with a Python that has them (cmake -DTERRACE_TORCH_PYTHON=...).
"""
import pathlib
import unittest

from support import GPT, LLAMA, QWEN3, TerraceTest, learnable_text

try:
    import torch
    from peft import LoraConfig, PeftModel, get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM
except ImportError as error:
    raise SystemExit(f"peft_test needs torch, transformers and peft: {error}. Name a Python that has them: "
                     "cmake --preset release -DTERRACE_TORCH_PYTHON=/path/to/python") from error

LENGTH = 32
FAMILIES = {"gpt2": GPT, "llama": LLAMA, "qwen3": QWEN3, "qwen2": {**LLAMA, "model_type": "qwen2", "tie_word_embeddings": True}}
TARGETS = {"gpt2": ["c_attn", "mlp.c_proj"]}


class PeftTest(TerraceTest):
    def setUp(self):
        super().setUp()
        torch.set_num_threads(2)
        torch.manual_seed(5)
        self.text = learnable_text(LENGTH + 1, seed=11)
        self.write("validation.txt", self.text)

    def base(self, family):
        """Weights of transformers, and their folder."""
        config = AutoConfig.for_model(**FAMILIES[family])
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
        folder = self.folder / f"base-{family}"
        model.save_pretrained(folder)
        return model, folder

    def eval_loss(self, folder, changes):
        job = self.job({"model.config": str(folder / "config.json"), "model.init": str(folder),
                        "data.validation": "../validation.txt", **changes})
        result = self.train(job)
        return result.events("eval")[-1]["loss"], result.done["checkpoint"]

    def loss_of(self, model):
        ids = torch.tensor([list(self.text.encode())])
        with torch.no_grad():
            return model(input_ids=ids, labels=ids).loss.item()

    def load(self, folder):
        return AutoModelForCausalLM.from_pretrained(folder, torch_dtype=torch.float32, attn_implementation="eager").eval()

    def test_peft_loads_what_is_exported(self):
        for family in FAMILIES:
            for precision, tolerance in (("fp32", 1e-5), ("bf16", 2e-2)):
                with self.subTest(family=family, precision=precision):
                    _, folder = self.base(family)
                    lora = {"rank": 4, "alpha": 8, "rslora": family == "llama", "targets": TARGETS.get(family, "all-linear")}
                    loss, checkpoint = self.eval_loss(folder, {"model.lora": lora, "train.precision": precision,
                                                               "formats.parameter": "f32", "train.optimizer": {"lr": 1e-2}})
                    out = pathlib.Path(checkpoint).parents[1] / "adapter"
                    self.terrace("ckpt", "export", checkpoint, "--output", out, "--adapter")
                    plain = self.loss_of(self.load(folder))
                    model = PeftModel.from_pretrained(self.load(folder), out)
                    theirs = self.loss_of(model)
                    print(f"\n  {family} {precision}: base {plain:.8g}, Terrace {loss:.8g}, PEFT {theirs:.8g}")
                    self.assertLess(theirs, plain - 0.1, "it was trained")
                    self.assertLess(abs(loss - theirs), tolerance * theirs)
                    self.check_merged(checkpoint, model, theirs)

    def check_merged(self, checkpoint, model, loss):
        merged = pathlib.Path(checkpoint).parents[1] / "merged"
        self.terrace("ckpt", "merge", checkpoint, "--output", merged)
        ours, theirs = self.load(merged), model.merge_and_unload()
        state = ours.state_dict()
        for name, weight in theirs.state_dict().items():
            self.assertLess((state[name] - weight).abs().max().item(), 1e-6, name)
        self.assertLess(abs(self.loss_of(ours) - loss), 1e-5 * loss)

    def test_terrace_goes_on_from_what_peft_saves(self):
        for family in FAMILIES:
            with self.subTest(family=family):
                base, folder = self.base(family)
                config = LoraConfig(r=4, lora_alpha=6, target_modules=TARGETS.get(family, "all-linear"), task_type="CAUSAL_LM")
                model = get_peft_model(base, config)
                for name, parameter in model.named_parameters():
                    if "lora_" in name:
                        torch.nn.init.normal_(parameter, std=0.1)
                saved = self.folder / f"saved-{family}"
                model.save_pretrained(saved)
                theirs = self.loss_of(model.eval())
                loss, checkpoint = self.eval_loss(folder, {"model.lora": {"init": str(saved)}, "train.steps": 1,
                                                           "train.optimizer": {"lr": 0}})
                self.assertLess(abs(loss - theirs), 1e-5 * theirs)
                out = self.folder / f"again-{family}"
                self.terrace("ckpt", "export", checkpoint, "--output", out, "--adapter")
                again = PeftModel.from_pretrained(self.load(folder), out).state_dict()
                for name, weight in model.state_dict().items():
                    self.assertTrue(torch.equal(again[name], weight), name)


if __name__ == "__main__":
    unittest.main(verbosity=2)

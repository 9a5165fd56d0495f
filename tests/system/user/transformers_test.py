#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Hugging Face transformers loads what Terrace exports and computes the same with it, and the other way round.

Needs torch and transformers: run it with a Python that has them (cmake -DTERRACE_TORCH_PYTHON=...).
"""
import pathlib
import unittest

from support import GPT, LLAMA, QWEN3, TerraceTest, learnable_text

try:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
except ImportError as error:
    raise SystemExit(f"transformers_test needs torch and transformers: {error}. Name a Python that has them: "
                     "cmake --preset release -DTERRACE_TORCH_PYTHON=/path/to/python") from error

LENGTH = 32
FAMILIES = {"gpt2": GPT, "llama": LLAMA, "qwen3": QWEN3,
            "mistral": {**LLAMA, "model_type": "mistral", "sliding_window": 8},
            "qwen2": {**LLAMA, "model_type": "qwen2", "tie_word_embeddings": True},
            "starcoder2": {key: value for key, value in LLAMA.items() if key != "rms_norm_eps"} |
                          {"model_type": "starcoder2", "hidden_act": "gelu_pytorch_tanh", "sliding_window": 8,
                           "tie_word_embeddings": True},
            "gpt_neox": {key: value for key, value in LLAMA.items()
                         if key not in ("rms_norm_eps", "num_key_value_heads", "head_dim", "rope_theta")} |
                        {"model_type": "gpt_neox", "hidden_act": "gelu", "tie_word_embeddings": False},
            "gemma": {**LLAMA, "model_type": "gemma", "hidden_act": "gelu_pytorch_tanh", "head_dim": 16,
                      "pad_token_id": None, "tie_word_embeddings": True},
            "stablelm": {key: value for key, value in LLAMA.items() if key not in ("rms_norm_eps", "head_dim")} |
                        {"model_type": "stablelm", "use_qkv_bias": True, "tie_word_embeddings": False},
            "phi3": {**LLAMA, "model_type": "phi3", "pad_token_id": None, "partial_rotary_factor": 0.5,
                     "sliding_window": 8, "tie_word_embeddings": False},
            "olmo2": {**LLAMA, "model_type": "olmo2", "pad_token_id": None, "tie_word_embeddings": False},
            "granite": {**LLAMA, "model_type": "granite", "embedding_multiplier": 2.0, "attention_multiplier": 0.25,
                        "residual_multiplier": 0.5, "logits_scaling": 2.0, "tie_word_embeddings": True},
            "opt": {"model_type": "opt", "vocab_size": 256, "hidden_size": 64, "ffn_dim": 128, "num_hidden_layers": 2,
                    "num_attention_heads": 4, "max_position_embeddings": 64, "dropout": 0.0, "pad_token_id": None},
            "gemma3_text": {**LLAMA, "model_type": "gemma3_text", "hidden_activation": "gelu_pytorch_tanh", "head_dim": 16,
                            "query_pre_attn_scalar": 12, "sliding_window": 8, "sliding_window_pattern": 2,
                            "pad_token_id": None, "tie_word_embeddings": True},
            "falcon": {"model_type": "falcon", "vocab_size": 256, "hidden_size": 64, "ffn_hidden_size": 128,
                       "num_hidden_layers": 2, "num_attention_heads": 4, "num_kv_heads": 2,
                       "new_decoder_architecture": True, "max_position_embeddings": 64},
            "olmo3": {**LLAMA, "model_type": "olmo3", "sliding_window": 8, "pad_token_id": None,
                      "layer_types": ["sliding_attention", "full_attention"], "tie_word_embeddings": False},
            "smollm3": {**LLAMA, "model_type": "smollm3", "no_rope_layers": [1, 0], "pad_token_id": None,
                        "tie_word_embeddings": True},
            "cohere": {key: value for key, value in LLAMA.items() if key != "rms_norm_eps"} |
                      {"model_type": "cohere", "logit_scale": 0.5, "pad_token_id": None, "tie_word_embeddings": True},
            "gemma2": {**LLAMA, "model_type": "gemma2", "hidden_activation": "gelu_pytorch_tanh", "head_dim": 16,
                       "query_pre_attn_scalar": 12, "sliding_window": 8, "attn_logit_softcapping": 2.0,
                       "final_logit_softcapping": 5.0, "pad_token_id": None, "tie_word_embeddings": True},
            "bloom": {"model_type": "bloom", "vocab_size": 256, "hidden_size": 48, "n_layer": 2, "n_head": 6},
            "mpt": {"model_type": "mpt", "vocab_size": 256, "d_model": 64, "n_layers": 2, "n_heads": 4, "max_seq_len": 64,
                    "attn_config": {"softmax_scale": 0.5}}}


class TransformersTest(TerraceTest):
    def setUp(self):
        super().setUp()
        torch.set_num_threads(2)
        torch.manual_seed(5)
        # One validation sequence: whatever is drawn, it is this one.
        self.text = learnable_text(LENGTH + 1, seed=11)
        self.write("validation.txt", self.text)

    def eval_loss(self, changes):
        job = self.job({"data.validation": "../validation.txt", "train.steps": 30, **changes})
        result = self.train(job)
        return result.events("eval")[-1]["loss"], result.done["checkpoint"]

    def loss_of(self, model):
        ids = torch.tensor([list(self.text.encode())])
        with torch.no_grad():
            return model(input_ids=ids, labels=ids).loss.item()

    def load(self, checkpoint, dtype):
        folder = pathlib.Path(checkpoint).parents[1] / f"exported-{dtype}"
        self.terrace("ckpt", "export", checkpoint, "--output", folder, "--dtype", dtype)
        return AutoModelForCausalLM.from_pretrained(folder, torch_dtype=torch.float32, attn_implementation="eager").eval()

    def test_exported_model_has_the_same_loss(self):
        for family, config in FAMILIES.items():
            for precision, tolerance in (("fp32", 1e-5), ("bf16", 2e-2)):
                with self.subTest(family=family, precision=precision):
                    loss, checkpoint = self.eval_loss({"model.config": config, "train.precision": precision})
                    theirs = self.loss_of(self.load(checkpoint, "f32"))
                    print(f"\n  {family} {precision}: Terrace {loss:.8g}, transformers {theirs:.8g}")
                    self.assertLess(abs(loss - theirs), tolerance * abs(theirs))
                    self.assertLess(abs(self.loss_of(self.load(checkpoint, "bf16")) - theirs), 2e-2 * abs(theirs))

    def test_both_continue_a_text_alike(self):
        for family in ("gpt2", "llama", "phi3", "olmo2", "granite", "opt", "gemma3_text", "falcon", "olmo3", "smollm3",
                       "cohere", "gemma2", "bloom", "mpt"):
            with self.subTest(family=family):
                _, checkpoint = self.eval_loss({"model.config": FAMILIES[family]})
                prompt = "the king "
                ours = self.terrace("generate", checkpoint, "--prompt", prompt, "--tokens", 20, "--temperature", 0).out
                ids = torch.tensor([list(prompt.encode())])
                theirs = self.load(checkpoint, "f32").generate(ids, max_new_tokens=20, do_sample=False, pad_token_id=0)
                self.assertEqual(ours.rstrip("\n"), bytes(theirs[0].tolist()).decode())

    def test_training_starts_from_weights_of_transformers(self):
        for family, config in FAMILIES.items():
            with self.subTest(family=family):
                model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config), attn_implementation="eager").eval()
                folder = self.folder / f"made-{family}"
                model.save_pretrained(folder)
                loss, _ = self.eval_loss({"model.config": str(folder / "config.json"), "model.init": str(folder),
                                          "train.steps": 1, "train.optimizer": {"lr": 0}})
                theirs = self.loss_of(model)
                self.assertLess(abs(loss - theirs), 1e-5 * abs(theirs))
                ours, = self.terrace("eval", folder, "--data", self.folder / "validation.txt", "--tokenizer", "bytes", "--length", LENGTH,
                                     "-o", "json").json()["results"]
                self.assertEqual(ours["predicted"], LENGTH)
                self.assertLess(abs(ours["loss"] - theirs), 1e-5 * abs(theirs))


if __name__ == "__main__":
    unittest.main(verbosity=2)

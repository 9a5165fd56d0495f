#!/usr/bin/env python3
"""Makes the numeric goldens of this folder with PyTorch and transformers; README.md describes the files.

    python3 make_goldens.py            writes every model's folder beside this script
    python3 make_goldens.py --check    compares with what is there (to 1e-5), writes nothing
    python3 make_goldens.py --half     writes the numbers of fp16 alone, beside what is there

Needs torch, transformers and safetensors. The test suite needs none of them: the files are committed.

SPDX-License-Identifier: Apache-2.0
"""
import argparse
import json
import math
import pathlib
import sys

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

HERE = pathlib.Path(__file__).resolve().parent
BATCH, SEQUENCE, VOCAB = 2, 24, 96
COUNTS = [5, 24]  # targets that count in each row of the padded batch
IGNORED = -1
HALF_SCALE = 2.0**24
HYPERPARAMETERS = {
    "optimizer": "adamw",
    "steps": 10,
    "warmup_steps": 3,
    "lr": 2e-3,
    "min_lr": 2e-4,
    "beta1": 0.9,
    "beta2": 0.95,
    # Some gradients are zero in exact arithmetic (the key part of gpt2's c_attn.bias) and rounding in practice. A larger
    # epsilon than usual keeps AdamW from turning that rounding into steps of the full learning rate.
    "epsilon": 1e-6,
    "weight_decay": 0.1,
    "clip_grad_norm": 1.0,
}
LLAMA_LIKE = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-6,
    "attention_dropout": 0.0,
    "torch_dtype": "float32",
}
FALCON_LIKE = {
    "model_type": "falcon",
    "architectures": ["FalconForCausalLM"],
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "ffn_hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "activation": "gelu",
    "layer_norm_epsilon": 1e-5,
    "attention_dropout": 0.0,
    "hidden_dropout": 0.0,
    "alibi": False,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
}
CONFIGS = {
    "gpt2": {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": VOCAB,
        "n_positions": 32,
        "n_embd": 24,
        "n_layer": 2,
        "n_head": 3,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "attn_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "resid_pdrop": 0.0,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
    },
    "llama": LLAMA_LIKE | {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        },
    },
    "mistral": LLAMA_LIKE | {
        "model_type": "mistral",
        "architectures": ["MistralForCausalLM"],
        "sliding_window": 7,
        "tie_word_embeddings": False,
    },
    "qwen2": LLAMA_LIKE | {
        "model_type": "qwen2",
        "architectures": ["Qwen2ForCausalLM"],
        "use_sliding_window": False,
        "tie_word_embeddings": True,
    },
    "qwen3": LLAMA_LIKE | {
        "model_type": "qwen3",
        "architectures": ["Qwen3ForCausalLM"],
        "hidden_size": 24,
        "head_dim": 16,
        "use_sliding_window": False,
        "attention_bias": False,
        "tie_word_embeddings": False,
    },
    "starcoder2": {key: value for key, value in LLAMA_LIKE.items() if key != "rms_norm_eps"} | {
        "model_type": "starcoder2",
        "architectures": ["Starcoder2ForCausalLM"],
        "hidden_act": "gelu_pytorch_tanh",
        "norm_epsilon": 1e-5,
        "sliding_window": 7,
        "use_bias": True,
        "residual_dropout": 0.0,
        "embedding_dropout": 0.0,
        "tie_word_embeddings": True,
    },
    "gpt_neox": {
        "model_type": "gpt_neox",
        "architectures": ["GPTNeoXForCausalLM"],
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": 64,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-5,
        "rotary_pct": 0.25,
        "rotary_emb_base": 10000,
        "use_parallel_residual": True,
        "attention_dropout": 0.0,
        "hidden_dropout": 0.0,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
    },
    "gemma": LLAMA_LIKE | {
        "model_type": "gemma",
        "architectures": ["GemmaForCausalLM"],
        "hidden_size": 24,
        "head_dim": 16,
        "hidden_act": "gelu_pytorch_tanh",
        "pad_token_id": None,
        "tie_word_embeddings": True,
    },
    "stablelm": {key: value for key, value in LLAMA_LIKE.items() if key != "rms_norm_eps"} | {
        "model_type": "stablelm",
        "architectures": ["StableLmForCausalLM"],
        "layer_norm_eps": 1e-5,
        "partial_rotary_factor": 0.25,
        "use_qkv_bias": True,
        "qk_layernorm": False,
        "use_parallel_residual": False,
        "hidden_dropout": 0.0,
        "tie_word_embeddings": False,
    },
    "phi3": LLAMA_LIKE | {
        "model_type": "phi3",
        "architectures": ["Phi3ForCausalLM"],
        "rms_norm_eps": 1e-5,
        "sliding_window": 7,
        "partial_rotary_factor": 0.5,
        "original_max_position_embeddings": 16,
        "rope_scaling": {"type": "longrope", "short_factor": [1.0, 1.1], "long_factor": [1.5, 3.0]},
        "pad_token_id": None,
        "tie_word_embeddings": False,
    },
    "olmo2": LLAMA_LIKE | {
        "model_type": "olmo2",
        "architectures": ["Olmo2ForCausalLM"],
        "hidden_size": 24,
        "head_dim": 8,
        "attention_bias": True,
        "pad_token_id": None,
        "tie_word_embeddings": False,
    },
    "granite": LLAMA_LIKE | {
        "model_type": "granite",
        "architectures": ["GraniteForCausalLM"],
        "attention_bias": True,
        "mlp_bias": True,
        "embedding_multiplier": 3.0,
        "attention_multiplier": 0.5,
        "residual_multiplier": 0.4,
        "logits_scaling": 2.0,
        "tie_word_embeddings": True,
    },
    "opt": {
        "model_type": "opt",
        "architectures": ["OPTForCausalLM"],
        "vocab_size": VOCAB,
        "hidden_size": 24,
        "ffn_dim": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 32,
        "activation_function": "relu",
        "do_layer_norm_before": True,
        "word_embed_proj_dim": 24,
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "pad_token_id": None,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
    },
    "gemma3_text": {key: value for key, value in LLAMA_LIKE.items() if key != "hidden_act"} | {
        "model_type": "gemma3_text",
        "architectures": ["Gemma3ForCausalLM"],
        "hidden_size": 24,
        "head_dim": 16,
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 12,
        "sliding_window": 7,
        "sliding_window_pattern": 2,
        "rope_local_base_freq": 100.0,
        "rope_scaling": {"rope_type": "linear", "factor": 2.0},
        "pad_token_id": None,
        "tie_word_embeddings": True,
    },
    "falcon": FALCON_LIKE | {"multi_query": True, "parallel_attn": True, "new_decoder_architecture": False, "bias": False},
    "falcon_groups": FALCON_LIKE | {"new_decoder_architecture": True, "num_attention_heads": 8, "num_kv_heads": 4, "bias": True},
    "olmo3": LLAMA_LIKE | {
        "model_type": "olmo3",
        "architectures": ["Olmo3ForCausalLM"],
        "hidden_size": 24,
        "head_dim": 8,
        "rope_theta": 500000.0,
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
        "sliding_window": 7,
        "layer_types": ["sliding_attention", "full_attention"],
        "pad_token_id": None,
        "tie_word_embeddings": False,
    },
    "smollm3": LLAMA_LIKE | {
        "model_type": "smollm3",
        "architectures": ["SmolLM3ForCausalLM"],
        "use_sliding_window": True,
        "sliding_window": 7,
        "no_rope_layers": [1, 0],
        "pad_token_id": None,
        "tie_word_embeddings": True,
    },
    "cohere": {key: value for key, value in LLAMA_LIKE.items() if key != "rms_norm_eps"} | {
        "model_type": "cohere",
        "architectures": ["CohereForCausalLM"],
        "layer_norm_eps": 1e-5,
        "logit_scale": 0.5,
        "pad_token_id": None,
        "tie_word_embeddings": True,
    },
    "gemma2": {key: value for key, value in LLAMA_LIKE.items() if key != "hidden_act"} | {
        "model_type": "gemma2",
        "architectures": ["Gemma2ForCausalLM"],
        "hidden_size": 24,
        "head_dim": 16,
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 12,
        "sliding_window": 7,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 8.0,
        "pad_token_id": None,
        "tie_word_embeddings": True,
    },
    "bloom": {
        "model_type": "bloom",
        "architectures": ["BloomForCausalLM"],
        "vocab_size": VOCAB,
        "hidden_size": 24,
        "n_layer": 2,
        "n_head": 6,
        "layer_norm_epsilon": 1e-5,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
    },
    "mpt": {
        "model_type": "mpt",
        "architectures": ["MptForCausalLM"],
        "vocab_size": VOCAB,
        "d_model": 24,
        "n_layers": 2,
        "n_heads": 4,
        "max_seq_len": 32,
        "layer_norm_epsilon": 1e-5,
        "attn_config": {"attn_pdrop": 0, "softmax_scale": 0.6},
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
    },
}


def stored(model):
    """Parameters under the names that a model.safetensors has."""
    renamed = {"lm_head.weight": "embed_out.weight"} if model.config.model_type == "gpt_neox" else {}
    return [(renamed.get(name, name), parameter) for name, parameter in model.named_parameters()]


def randomize(model, seed):
    """Every parameter away from its special value, so that a forgotten one shows."""
    generator = torch.Generator().manual_seed(seed)
    is_gemma = model.config.model_type.startswith("gemma")  # embeddings times the root of hidden_size, norms by 1 + weight
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() >= 2:
                is_table = "embed" in name or "wte" in name or "wpe" in name
                parameter.copy_(noise * ((0.15 if is_gemma else 0.5) if is_table else 1.2 / math.sqrt(parameter.shape[1])))
            elif name.endswith("bias"):
                parameter.copy_(noise * 0.1)
            else:
                parameter.copy_((0 if is_gemma else 1) + noise * 0.1)


def make_batch(seed):
    generator = torch.Generator().manual_seed(seed)
    stream = torch.randint(0, VOCAB, (BATCH, SEQUENCE + 1), generator=generator)
    return stream[:, :-1].contiguous(), stream[:, 1:].contiguous()


def learning_rate(step):
    h = HYPERPARAMETERS
    if step < h["warmup_steps"]:
        return h["lr"] * (step + 1) / h["warmup_steps"]
    done = (step - h["warmup_steps"]) / (h["steps"] - h["warmup_steps"])
    return h["min_lr"] + 0.5 * (h["lr"] - h["min_lr"]) * (1 + math.cos(math.pi * done))


def forward(model, tokens, targets):
    logits = model(tokens).logits
    loss = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]).float(),
                                             targets.reshape(-1), ignore_index=IGNORED)
    return logits, loss


def make_optimizer(model):
    h = HYPERPARAMETERS
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": h["weight_decay"]},
              {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=h["lr"], betas=(h["beta1"], h["beta2"]), eps=h["epsilon"],
                             foreach=False, fused=False)


def train(model, tokens, targets):
    """Ten steps on one batch. Clipping multiplies by min(1, clip / norm), without torch's 1e-6 in the denominator."""
    optimizer = make_optimizer(model)
    losses, norms, rates = [], [], []
    for step in range(HYPERPARAMETERS["steps"]):
        model.zero_grad()
        _, loss = forward(model, tokens, targets)
        loss.backward()
        norm = math.sqrt(sum(float((p.grad.double() ** 2).sum()) for p in model.parameters()))
        factor = min(1.0, HYPERPARAMETERS["clip_grad_norm"] / norm)
        for parameter in model.parameters():
            parameter.grad.mul_(factor)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        optimizer.step()
        losses.append(loss.item())
        norms.append(norm)
        rates.append(learning_rate(step))
    return losses, norms, rates


def load(folder):
    return AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager",
                                                dtype=torch.float32).train()


def save_model(name, folder, seed):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIGS[name], indent=2) + "\n")
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder),
                                             attn_implementation="eager", dtype=torch.float32)
    randomize(model, seed)
    tensors = {n: p.detach().clone().contiguous() for n, p in stored(model)}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def compute(folder, tokens, targets):
    model = load(folder)
    logits, loss = forward(model, tokens, targets)
    loss.backward()
    tensors = {"logits": logits.detach().clone()}
    for name, parameter in stored(model):
        tensors[f"grad.{name}"] = parameter.grad.clone()
    losses, norms, rates = train(model, tokens, targets)
    for name, parameter in stored(model):
        tensors[f"step10.{name}"] = parameter.detach().clone()
    numbers = {"loss": loss.item(), "losses": losses, "grad_norms": norms, "learning_rates": rates,
               "hyperparameters": HYPERPARAMETERS}
    numbers["padded"] = padded(folder, tokens, targets)
    numbers["half"] = train_half(load(folder), tokens, targets)
    return tensors, numbers


def padded(folder, tokens, targets):
    """The ten steps on the same rows, of which only the first tokens are documents: the rest is padding that nobody looks at."""
    tokens, targets = tokens.clone(), targets.clone()
    for row, count in enumerate(COUNTS):
        tokens[row, count:] = 0
        targets[row, count:] = IGNORED
    losses, norms, _ = train(load(folder), tokens, targets)
    return {"counts": COUNTS, "losses": losses, "grad_norms": norms}


def train_half(model, tokens, targets):
    """fp16 as PyTorch has it: autocast, and a GradScaler that starts so high that the first steps overflow. Ten steps that do
    not, on the schedule of those alone."""
    optimizer = make_optimizer(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=HALF_SCALE, growth_interval=1000)
    losses, norms, skipped = [], [], 0
    while len(losses) < HYPERPARAMETERS["steps"]:
        model.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            _, loss = forward(model, tokens, targets)
        scaler.scale(loss).backward()
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(len(losses))
        scaler.unscale_(optimizer)
        norm = math.sqrt(sum(float((p.grad.double() ** 2).sum()) for p in model.parameters()))
        factor = min(1.0, HYPERPARAMETERS["clip_grad_norm"] / norm) if math.isfinite(norm) else 1.0
        for parameter in model.parameters():
            parameter.grad.mul_(factor)
        scaler.step(optimizer)
        scaler.update()
        if math.isfinite(norm):
            losses.append(loss.item())
            norms.append(norm)
        else:
            skipped += 1
    assert 0 < skipped < 40, skipped
    return {"initial_scale": HALF_SCALE, "skipped": skipped, "losses": losses, "grad_norms": norms}


def write_half(name, seed):
    """Leaves every other number as it is, to the digit."""
    path = HERE / name / "expected.json"
    numbers = json.loads(path.read_text())
    numbers["half"] = train_half(load(HERE / name), *make_batch(seed + 100))
    path.write_text(json.dumps(numbers, indent=2) + "\n")
    print(f"{name}: {numbers['half']['skipped']} steps skipped, loss {numbers['half']['losses'][-1]:.6f} "
          f"({numbers['losses'][-1]:.6f} in fp32)")


def write(name, seed):
    folder = HERE / name
    save_model(name, folder, seed)
    tokens, targets = make_batch(seed + 100)
    save_file({"tokens": tokens.int(), "targets": targets.int()}, folder / "batch.safetensors")
    tensors, numbers = compute(folder, tokens, targets)
    save_file(tensors, folder / "expected.safetensors")
    (folder / "expected.json").write_text(json.dumps(numbers, indent=2) + "\n")
    size = sum(f.stat().st_size for f in folder.iterdir())
    print(f"{name}: loss {numbers['loss']:.6f} -> {numbers['losses'][-1]:.6f}, "
          f"grad norm {numbers['grad_norms'][0]:.3f}, {size} bytes")


def check(name):
    """True when this PyTorch computes what the committed files say."""
    folder = HERE / name
    batch = load_file(folder / "batch.safetensors")
    tensors, numbers = compute(folder, batch["tokens"].long(), batch["targets"].long())
    expected = load_file(folder / "expected.safetensors")
    stored = json.loads((folder / "expected.json").read_text())
    worst = max(float((tensors[k] - expected[k]).abs().max()) for k in expected)
    for new, old in ((numbers, stored), (numbers["padded"], stored["padded"])):
        worst = max([worst] + [abs(a - b) for a, b in zip(new["losses"], old["losses"], strict=True)])
    print(f"{name}: largest difference {worst:.2e}")
    return worst < 1e-5


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare instead of write")
    parser.add_argument("--half", action="store_true", help="write the numbers of fp16 alone")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    if arguments.check:
        sys.exit(0 if all([check(name) for name in CONFIGS]) else 1)
    for seed, name in enumerate(CONFIGS):
        (write_half if arguments.half else write)(name, seed)


if __name__ == "__main__":
    main()

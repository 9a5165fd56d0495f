# SPDX-License-Identifier: Apache-2.0
"""The models of the GPU checks: small ones to compare numbers with, and the published shapes to compare speeds with."""


def gpt2(hidden, layers, heads, vocabulary=50257, positions=1024):
    return {"model_type": "gpt2", "vocab_size": vocabulary, "n_positions": positions, "n_embd": hidden, "n_layer": layers,
            "n_head": heads, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "initializer_range": 0.02}


def qwen2(hidden, layers, heads, kv_heads, inner, vocabulary, tied, positions=32768):
    return {"model_type": "qwen2", "vocab_size": vocabulary, "hidden_size": hidden, "intermediate_size": inner,
            "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
            "max_position_embeddings": positions, "rms_norm_eps": 1e-6, "hidden_act": "silu", "rope_theta": 1e6,
            "initializer_range": 0.02, "tie_word_embeddings": tied}


def llama(hidden, layers, heads, kv_heads, inner, vocabulary=256):
    return {"model_type": "llama", "vocab_size": vocabulary, "hidden_size": hidden, "intermediate_size": inner,
            "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
            "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "hidden_act": "silu", "rope_theta": 1e4,
            "initializer_range": 0.02, "tie_word_embeddings": False}


SMALL = {"gpt": gpt2(256, 4, 4, 256, 512), "llama": llama(256, 4, 8, 4, 768)}
TINY = {"gpt": gpt2(64, 2, 2, 256, 512), "llama": llama(64, 2, 4, 2, 192)}  # rehearsals

# Published configurations. Sequences beyond a model's positions are left out.
PUBLISHED = {
    "gpt2-124m": gpt2(768, 12, 12),
    "gpt2-1.5b": gpt2(1600, 48, 25),
    "qwen2.5-0.5b": qwen2(896, 24, 14, 2, 4864, 151936, True),
    "qwen2.5-1.5b": qwen2(1536, 28, 12, 2, 8960, 151936, True),
    "qwen2.5-3b": qwen2(2048, 36, 16, 2, 11008, 151936, True),
    "qwen2.5-7b": qwen2(3584, 28, 28, 4, 18944, 152064, False),
    "llama-13b": llama(5120, 40, 40, 40, 13824, 32000),
}


def layers_of(config):
    return config.get("n_layer", config.get("num_hidden_layers"))


def hidden_of(config):
    return config.get("n_embd", config.get("hidden_size"))


def vocabulary_of(config):
    return config["vocab_size"]


def parameters_of(config):
    """(all, those of token and position tables that multiply nothing)."""
    hidden, layers, vocabulary = hidden_of(config), layers_of(config), config["vocab_size"]
    if config["model_type"] == "gpt2":
        block = 12 * hidden * hidden + 13 * hidden
        return vocabulary * hidden + config["n_positions"] * hidden + layers * block + 2 * hidden, config["n_positions"] * hidden
    head = hidden // config["num_attention_heads"]
    kv = head * config["num_key_value_heads"]
    biases = hidden + 2 * kv if config["model_type"] == "qwen2" else 0
    block = 2 * hidden * hidden + 2 * hidden * kv + biases + 3 * hidden * config["intermediate_size"] + 2 * hidden
    tables = vocabulary * hidden * (1 if config["tie_word_embeddings"] else 2)
    return tables + layers * block + hidden, 0 if config["tie_word_embeddings"] else vocabulary * hidden


def flops_per_token(config, sequence):
    """Of forward and backward: 6 for each parameter that multiplies, and attention, of which causality needs half. Recomputation
    does not count."""
    every, tables = parameters_of(config)
    return 6 * (every - tables) + 6 * layers_of(config) * hidden_of(config) * sequence


def job(text, model, device, sequence=128, batch=8, steps=10, precision="fp32", layout=None, resources=None, lr=3e-3):
    """The spec of a job."""
    return {"name": "gpu-check", "model": {"config": model}, "data": {"train": str(text), "sequence_length": sequence},
            "train": {"steps": steps, "global_batch": batch, "precision": precision, "optimizer": {"lr": lr},
                      "schedule": {"name": "constant"}, "eval_batches": 1},
            "layout": {"micro_batch": batch, **(layout or {})}, "resources": {"device": device, **(resources or {})}}

#!/usr/bin/env python3
"""Writes config_losses.json: what transformers makes of each key of a config.json, as the loss of a tiny model.

    python3 make_config_losses.py            writes the file beside this script
    python3 make_config_losses.py --check    compares with what is there (to 1e-5), writes nothing

For each family there is a base and one case for each key that its configuration class knows (tests/data/config_keys.json), with a
value that is not the default, and CASES below: RoPE's numbers wherever they may stand, other names of keys, null ("-" lists what the
base has and the case leaves out). All parameters are those of `fill`, which the test computes again, so the file holds no weights. A case that transformers refuses has no loss.

Needs torch and transformers 5. The test suite needs neither.

SPDX-License-Identifier: Apache-2.0
"""
import argparse
import json
import logging
import pathlib
import tempfile

import numpy
import torch
from transformers import AutoConfig, AutoModelForCausalLM

HERE = pathlib.Path(__file__).resolve().parent
FILE = HERE / "config_losses.json"
KEYS = json.loads((HERE.parents[1] / "data" / "config_keys.json").read_text())["keys"]
ROWS, LENGTH, VOCABULARY = 2, 24, 64
LLAMA = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
         "vocab_size": VOCABULARY, "max_position_embeddings": 64, "head_dim": 8}
without = lambda base, *keys: {key: value for key, value in base.items() if key not in keys}
WINDOW = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}
BASES = {"gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": VOCABULARY}, "llama": LLAMA,
         "mistral": LLAMA, "qwen2": {**LLAMA, **WINDOW}, "qwen3": {**LLAMA, **WINDOW},
         "starcoder2": {**LLAMA, "sliding_window": 4}, "gemma": LLAMA,
         "gpt_neox": {**without(LLAMA, "head_dim", "num_key_value_heads"), "num_attention_heads": 2},  # of 16, of which 4 are rotated
         "stablelm": {**without(LLAMA, "head_dim"), "num_attention_heads": 2, "use_qkv_bias": True},
         "phi3": {**LLAMA, "pad_token_id": None}, "olmo2": {**LLAMA, "pad_token_id": None},
         "granite": {**LLAMA, "embedding_multiplier": 2.0, "residual_multiplier": 0.5, "attention_multiplier": 0.25, "logits_scaling": 2.0},
         "opt": {"hidden_size": 32, "ffn_dim": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": VOCABULARY,
                 "max_position_embeddings": 64, "pad_token_id": None},
         "gemma3_text": {**LLAMA, "sliding_window": 4, "sliding_window_pattern": 2, "query_pre_attn_scalar": 16, "pad_token_id": None},
         "falcon": {"hidden_size": 32, "ffn_hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": VOCABULARY,
                    "max_position_embeddings": 64},
         "olmo3": {**LLAMA, "sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"], "pad_token_id": None},
         "smollm3": {**LLAMA, "sliding_window": 4, "use_sliding_window": True, "no_rope_layer_interval": 2, "pad_token_id": None},
         "cohere": {**LLAMA, "pad_token_id": None},
         "gemma2": {**LLAMA, "sliding_window": 4, "query_pre_attn_scalar": 16, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0,
                    "pad_token_id": None},
         "bloom": {"hidden_size": 48, "n_layer": 2, "n_head": 6, "vocab_size": VOCABULARY},
         "mpt": {"d_model": 48, "n_layers": 2, "n_heads": 6, "vocab_size": VOCABULARY, "max_seq_len": 64}}
LINEAR, PLAIN = {"rope_type": "linear", "factor": 2.0}, {"rope_type": "default", "rope_theta": 10000.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
SOFT = {**YARN, "beta_fast": 4, "beta_slow": 0.25, "truncate": False, "rope_theta": 50.0}  # where the trained length matters
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LONG = {"rope_type": "longrope", "short_factor": [1, 1.5, 2, 3], "long_factor": [2, 3, 4, 5]}
TRAINED = {"original_max_position_embeddings": 16}
ROPES = [
    {"rope_theta": 500.0}, {"rope_scaling": LINEAR}, {"rope_parameters": LINEAR}, {"rope_scaling": LINEAR, "rope_parameters": PLAIN},
    {"rope_scaling": {}, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
    {"rope_scaling": None, "rope_parameters": LINEAR, "rope_theta": 500.0},
    {"rope_theta": 10000.0, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
    {"rope_parameters": {"rope_type": "default"}, "rope_theta": 500.0},
    {"rope_scaling": {"type": "linear", "factor": 2.0}}, {"rope_scaling": {"type": "linear", "rope_type": "dynamic", "factor": 2.0}},
    {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, {"rope_scaling": YARN}, {"rope_parameters": {**YARN, "rope_theta": 500.0}},
    {"rope_scaling": YARN, "original_max_position_embeddings": 32}, {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
    {"rope_scaling": SOFT}, {"rope_scaling": SOFT, "original_max_position_embeddings": 48},
    {"rope_parameters": {**SOFT, "original_max_position_embeddings": 48}}, {"rope_scaling": {**YARN, "attention_factor": 1.5}},
    {"rope_scaling": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.2}}, {"rope_scaling": {**YARN, "mscale": 0.7}},
    {"rope_scaling": {**LLAMA3, **TRAINED}}, {"rope_scaling": LLAMA3, **TRAINED}, {"rope_scaling": LLAMA3},
    {"rope_scaling": {**LLAMA3, **TRAINED}, "original_max_position_embeddings": 32},
    {"rope_scaling": {**LONG, "factor": 4.0, **TRAINED}}, {"rope_scaling": LONG, **TRAINED},
    {"rope_parameters": {**LONG, "factor": 4.0, "original_max_position_embeddings": 32}},
    {"rope_scaling": {"rope_type": "linear", "factor": 2.0, "beta_fast": 8}}, {"rope_parameters": {**PLAIN, "partial_rotary_factor": 0.5}},
]
# Of families whose layers with and without a window have a rope each.
KINDS = [
    {"rope_theta": 500.0}, {"rope_scaling": LINEAR}, {"rope_parameters": LINEAR}, {"rope_scaling": YARN}, {"rope_scaling": {**LLAMA3, **TRAINED}},
    {"rope_scaling": LLAMA3}, {"rope_scaling": LLAMA3, **TRAINED}, {"rope_scaling": SOFT}, {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
    {"rope_parameters": {"full_attention": {**LINEAR, "rope_theta": 500.0}, "sliding_attention": {**PLAIN, "rope_theta": 50.0}}},
    {"rope_parameters": {"full_attention": {**PLAIN, "rope_theta": 500.0}}, "rope_scaling": LINEAR}, {"rope_parameters": {"sliding_attention": LINEAR}},
    {"rope_parameters": {"sliding_attention": LINEAR}, "rope_scaling": LINEAR}, {"rope_parameters": {"full_attention": PLAIN}, "rope_theta": 500.0},
    {"rope_parameters": {"full_attention": None, "sliding_attention": YARN}}, {"rope_parameters": {}}, {"partial_rotary_factor": 0.5},
]
CASES = {
    "gpt2": [{"hidden_size": 48, "-": ["n_embd"]}, {"num_hidden_layers": 3, "-": ["n_layer"]}, {"num_attention_heads": 2, "-": ["n_head"]},
             {"max_position_embeddings": 32, "-": ["n_positions"]}, {"n_ctx": 32, "-": ["n_positions"]}, {"n_inner": 40}, {"n_inner": None},
             {"activation_function": "gelu_pytorch_tanh"}, {"activation_function": "gelu_fast"}, {"activation_function": "gelu"},
             {"tie_word_embeddings": False}, {"hidden_size": 48}],
    "llama": ROPES + [{"attention_bias": True}, {"mlp_bias": True}, {"tie_word_embeddings": True}, {"num_key_value_heads": None},
                      {"-": ["head_dim"]}, {"-": ["num_key_value_heads"]}, {"sliding_window": 4}, {"layer_types": ["sliding_attention", "full_attention"]}],
    "mistral": ROPES[:4] + [{"sliding_window": 5}, {"sliding_window": None}, {"num_key_value_heads": None}, {"attention_bias": True},
                            {"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]},
                            {"sliding_window": 5, "layer_types": ["full_attention", "full_attention"]}],
    "qwen2": ROPES[:4] + [{"use_sliding_window": False}, {"sliding_window": None}, {"max_window_layers": 0}, {"attention_bias": False},
                          {"layer_types": ["sliding_attention", "full_attention"]}],
    "qwen3": ROPES[:4] + [{"attention_bias": True}, {"head_dim": 16}, {"layer_types": ["full_attention", "full_attention"]}],
    "starcoder2": ROPES[:4] + [{"use_bias": False}, {"sliding_window": None}, {"-": ["sliding_window"]}, {"num_key_value_heads": None},
                               {"hidden_act": "gelu_new"}, {"hidden_act": "gelu"}, {"attention_bias": False}, {"head_dim": 16}],
    "gpt_neox": [{"rope_scaling": LINEAR}, {"rope_parameters": LINEAR}, {"rope_parameters": {**PLAIN, "partial_rotary_factor": 0.5}},
                 {"rotary_pct": 0.5}, {"rotary_pct": 1.0}, {"rotary_pct": 0.5, "rope_parameters": {**PLAIN, "partial_rotary_factor": 0.25}},
                 {"rotary_pct": 0.5, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, {"rotary_emb_base": 500}, {"rope_theta": 500.0},
                 {"rotary_emb_base": 500, "rope_parameters": PLAIN}, {"rotary_pct": 1.0, "rope_scaling": YARN}, {"use_parallel_residual": False},
                 {"hidden_act": "gelu_new"}, {"hidden_act": "relu"}, {"hidden_act": "silu"}, {"attention_bias": False}, {"head_dim": 16},
                 {"num_key_value_heads": 2}, {"tie_word_embeddings": True}, {"partial_rotary_factor": 0.5}],
    "gemma": ROPES[:4] + [{"hidden_act": "gelu"}, {"hidden_act": "silu"}, {"hidden_act": "gelu_new"}, {"hidden_activation": "gelu"},
                          {"attention_bias": True}, {"num_key_value_heads": None}, {"head_dim": 16}, {"tie_word_embeddings": False},
                          {"use_bidirectional_attention": True}],
    "stablelm": ROPES[:4] + [{"partial_rotary_factor": 0.5}, {"partial_rotary_factor": 1.0}, {"rope_parameters": {**PLAIN, "partial_rotary_factor": 0.5}},
                             {"use_qkv_bias": False}, {"qk_layernorm": True}, {"use_parallel_residual": True}, {"hidden_act": "gelu"},
                             {"num_key_value_heads": None}, {"tie_word_embeddings": True}, {"head_dim": 16}],
    "phi3": [{"rope_theta": 500.0}, {"rope_scaling": LINEAR}, {"rope_parameters": {**PLAIN, "rope_theta": 500.0}}, {"rope_scaling": LONG},
             {"rope_scaling": LONG, **TRAINED}, {"rope_scaling": {**LONG, **TRAINED}}, {"rope_scaling": {**LONG, "factor": 4.0}, **TRAINED},
             {"rope_scaling": {**LONG, "rope_type": "su"}, **TRAINED}, {"rope_scaling": {**LONG, "rope_type": "yarn"}, **TRAINED},
             {"rope_parameters": {**LONG, "rope_theta": 500.0}, **TRAINED}, {"rope_scaling": {**LLAMA3, **TRAINED}}, TRAINED,
             {"partial_rotary_factor": 0.5}, {"rope_parameters": {**PLAIN, "partial_rotary_factor": 0.5}}, {"sliding_window": 4},
             {"num_key_value_heads": None}, {"tie_word_embeddings": True}, {"hidden_act": "gelu"}, {"attention_bias": True}, {"head_dim": 8}],
    "olmo2": ROPES[:4] + [{"rope_scaling": {**LLAMA3, **TRAINED}}, {"attention_bias": True}, {"mlp_bias": True}, {"num_key_value_heads": None},
                          {"tie_word_embeddings": True}, {"hidden_act": "gelu"}, {"head_dim": 16}, {"-": ["head_dim"]}, {"sliding_window": 4},
                          {"rms_norm_eps": 0.01}, {"partial_rotary_factor": 0.5}],
    "granite": ROPES[:4] + [{"-": ["attention_multiplier"]}, {"-": ["embedding_multiplier"]}, {"-": ["residual_multiplier"]}, {"-": ["logits_scaling"]},
                            {"logits_scaling": 16}, {"attention_bias": True}, {"mlp_bias": True}, {"num_key_value_heads": None},
                            {"tie_word_embeddings": True}, {"hidden_act": "gelu"}, {"head_dim": 16}, {"sliding_window": 4}],
    "opt": [{"do_layer_norm_before": False}, {"word_embed_proj_dim": 16}, {"word_embed_proj_dim": 32}, {"word_embed_proj_dim": None},
            {"enable_bias": False}, {"layer_norm_elementwise_affine": False}, {"_remove_final_layer_norm": True}, {"tie_word_embeddings": False},
            {"activation_function": "gelu"}, {"activation_function": "gelu_new"}, {"hidden_act": "gelu"}, {"intermediate_size": 64},
            {"num_key_value_heads": 2}, {"rope_theta": 500.0}, {"max_position_embeddings": 32}],
    "gemma3_text": KINDS + [{"rope_local_base_freq": 500.0}, {"sliding_window_pattern": 1}, {"sliding_window_pattern": 3}, {"sliding_window_pattern": 0},
                            {"_sliding_window_pattern": 1}, {"layer_types": ["full_attention", "sliding_attention"]}, {"layer_types": ["full_attention"]},
                            {"layer_types": ["full_attention", "full_attention"]}, {"sliding_window": None}, {"sliding_window": 40},
                            {"query_pre_attn_scalar": 4}, {"hidden_activation": "gelu"}, {"hidden_act": "gelu"}, {"attention_bias": True},
                            {"num_key_value_heads": 4}, {"-": ["num_key_value_heads"]}, {"head_dim": 16}, {"tie_word_embeddings": False},
                            {"final_logit_softcapping": 3.0}, {"attn_logit_softcapping": 3.0}, {"use_bidirectional_attention": True}],
    "falcon": ROPES[:4] + [{"new_decoder_architecture": True}, {"new_decoder_architecture": True, "num_kv_heads": 2},
                           {"new_decoder_architecture": True, "num_kv_heads": 1, "bias": True},
                           {"new_decoder_architecture": True, "num_ln_in_parallel_attn": 1, "num_kv_heads": 2},
                           {"new_decoder_architecture": True, "parallel_attn": False}, {"num_ln_in_parallel_attn": 2}, {"num_ln_in_parallel_attn": 1},
                           {"multi_query": False}, {"multi_query": False, "num_kv_heads": 2}, {"parallel_attn": False},
                           {"parallel_attn": False, "multi_query": False, "bias": True}, {"num_kv_heads": 2}, {"bias": True}, {"alibi": True},
                           {"ffn_hidden_size": None}, {"-": ["ffn_hidden_size"]}, {"activation": "gelu_new"}, {"activation": "relu"},
                           {"n_embed": 48, "-": ["hidden_size"]}, {"head_dim": 16}, {"tie_word_embeddings": False}, {"hidden_act": "relu"}],
    "olmo3": KINDS + [{"-": ["layer_types"]}, {"layer_types": ["full_attention", "full_attention"]}, {"sliding_window": 6}, {"sliding_window": None},
                      {"sliding_window_pattern": 1}, {"attention_bias": True}, {"mlp_bias": True}, {"num_key_value_heads": None},
                      {"tie_word_embeddings": True}, {"hidden_act": "gelu"}, {"head_dim": 16}, {"rms_norm_eps": 0.01}],
    "smollm3": ROPES[:4] + [{"no_rope_layers": [0, 1]}, {"no_rope_layers": [0, 0]}, {"no_rope_layers": [1, 1, 0]}, {"no_rope_layers": [1]},
                            {"no_rope_layer_interval": 1}, {"no_rope_layer_interval": 3}, {"no_rope_layer_interval": 0}, {"use_sliding_window": False},
                            {"sliding_window": None}, {"layer_types": ["sliding_attention", "full_attention"]},
                            {"layer_types": ["full_attention", "full_attention"]}, {"attention_bias": True}, {"mlp_bias": True},
                            {"num_key_value_heads": None}, {"-": ["num_key_value_heads"], "num_attention_heads": 8}, {"head_dim": 16},
                            {"tie_word_embeddings": False}, {"rope_parameters": {**PLAIN, "rope_theta": 500.0}}, {"-": ["head_dim"]}],
    "cohere": ROPES[:4] + [{"logit_scale": 0.5}, {"logit_scale": 2}, {"layer_norm_eps": 0.01}, {"rms_norm_eps": 0.01}, {"use_qk_norm": True},
                           {"attention_bias": True}, {"mlp_bias": True}, {"num_key_value_heads": None}, {"tie_word_embeddings": False},
                           {"hidden_act": "gelu"}, {"head_dim": 16}, {"-": ["head_dim"]}, {"sliding_window": 4}, {"rope_scaling": YARN},
                           {"rope_parameters": {**PLAIN, "rope_theta": 500.0}}],
    "gemma2": ROPES[:4] + [{"attn_logit_softcapping": None}, {"final_logit_softcapping": None}, {"-": ["attn_logit_softcapping"]},
                           {"-": ["final_logit_softcapping"]}, {"attn_logit_softcapping": 0.5}, {"final_logit_softcapping": 0.5},
                           {"attn_logit_softcapping": 0}, {"final_logit_softcapping": -3.0}, {"query_pre_attn_scalar": 4},
                           {"layer_types": ["full_attention", "sliding_attention"]}, {"layer_types": ["full_attention", "full_attention"]},
                           {"sliding_window": None}, {"sliding_window": 40}, {"sliding_window_pattern": 1}, {"hidden_activation": "gelu"},
                           {"hidden_act": "gelu"}, {"attention_bias": True}, {"mlp_bias": True}, {"num_key_value_heads": 4},
                           {"-": ["num_key_value_heads"]}, {"head_dim": 16}, {"tie_word_embeddings": False}, {"use_bidirectional_attention": True}],
    "bloom": [{"n_embed": 96}, {"n_embed": 96, "-": ["hidden_size"]}, {"num_attention_heads": 4, "-": ["n_head"]}, {"num_attention_heads": 4},
              {"num_hidden_layers": 3, "-": ["n_layer"]}, {"n_head": 8}, {"n_head": 3}, {"n_inner": 64}, {"intermediate_size": 64}, {"hidden_act": "gelu"},
              {"apply_residual_connection_post_layernorm": True}, {"slow_but_exact": True}, {"slow_but_exact": True, "pretraining_tp": 2},
              {"pretraining_tp": 2}, {"layer_norm_epsilon": 0.01}, {"rms_norm_eps": 0.01}, {"head_dim": 16}, {"num_key_value_heads": 2},
              {"tie_word_embeddings": False}, {"rope_theta": 500.0}, {"max_position_embeddings": 16}, {"attention_bias": False},
              {"offset_alibi": 100}, {"seq_length": 16}],
    "mpt": [{"hidden_size": 96}, {"hidden_size": 96, "-": ["d_model"]}, {"num_attention_heads": 4, "-": ["n_heads"]},
            {"num_hidden_layers": 3, "-": ["n_layers"]}, {"n_heads": 8}, {"n_heads": 3}, {"expansion_ratio": 2}, {"no_bias": False},
            {"layer_norm_epsilon": 0.01}, {"max_seq_len": 24}, {"max_seq_len": 16}, {"logit_scale": 0.5}, {"learned_pos_emb": False},
            {"attn_config": {}}, {"attn_config": None}, {"attn_config": {"softmax_scale": 0.7}}, {"attn_config": {"clip_qkv": 0.5}},
            {"attn_config": {"clip_qkv": 0.0}}, {"attn_config": {"alibi": False}}, {"attn_config": {"alibi_bias_max": 16}},
            {"attn_config": {"attn_type": "multiquery_attention"}}, {"attn_config": {"qk_ln": True}}, {"attn_config": {"prefix_lm": True}},
            {"attn_config": {"attn_impl": "flash"}}, {"attn_config": {"attn_uses_sequence_id": True}}, {"attn_config": {"attn_pdrop": 1}},
            {"norm_type": "rmsnorm"}, {"embedding_fraction": 0.5}, {"tie_word_embeddings": False}, {"hidden_act": "relu"}, {"head_dim": 16}],
}


def fnv(text):
    value = 2166136261
    for byte in text.encode():
        value = (value ^ byte) * 16777619 % 2**32
    return value


def fill(name, count):
    """Numbers from -0.25 to 0.25, exact in float32; around 1 for weights of norms."""
    index = numpy.arange(count, dtype=numpy.uint64)
    mixed = (index * numpy.uint64(2654435761) + numpy.uint64(fnv(name))) % numpy.uint64(2**32)
    mixed = ((mixed ^ (mixed >> numpy.uint64(15))) * numpy.uint64(2246822519)) % numpy.uint64(2**32)
    part = (mixed >> numpy.uint64(16)).astype(numpy.float32) / 131072 - 0.25
    return part + (1 if "norm" in name or "ln_" in name else 0) * numpy.float32(name.endswith(".weight"))


def others(family, key):
    """As OtherValues() of tests/unit/coordinator/model/config_sweep_test.cc."""
    now = BASES[family].get(key, KEYS[family][key])
    if key in ("rope_scaling", "rope_parameters", "layer_types", "partial_rotary_factor", "original_max_position_embeddings", "no_rope_layers") or (
            key == "num_hidden_layers" and "layer_types" in BASES[family]):
        return []  # CASES has them
    if isinstance(now, bool):
        return [not now]
    if isinstance(now, int):
        return [now * 2 or 4]
    if isinstance(now, float):
        return [now / 2 or 0.25]
    if isinstance(now, str):
        return ["another"]
    return [True, 3]


def loss_of(family, changes):
    with tempfile.TemporaryDirectory() as folder:
        config = {"model_type": family, **BASES[family], **changes}
        config = {key: value for key, value in config.items() if key != "-" and key not in changes.get("-", [])}
        (pathlib.Path(folder) / "config.json").write_text(json.dumps(config))
        try:
            made = AutoConfig.from_pretrained(folder)
            made._attn_implementation = "eager"
            model = AutoModelForCausalLM.from_config(made).float().eval()
            for name, parameter in model.named_parameters():
                if family == "gpt_neox" and name == "lm_head.weight":
                    name = "embed_out.weight"  # as it is stored
                parameter.data = torch.from_numpy(fill(name, parameter.numel())).reshape(parameter.shape)
            model.tie_weights()
            tokens = torch.from_numpy((fill("tokens", ROWS * (LENGTH + 1)) * 4096 + 1024).astype(numpy.int64) % VOCABULARY)
            tokens = tokens.reshape(ROWS, LENGTH + 1)
            with torch.no_grad():
                logits = model(input_ids=tokens[:, :-1], use_cache=False, return_dict=True).logits
            return torch.nn.functional.cross_entropy(logits.flatten(0, 1).double(), tokens[:, 1:].flatten()).item()
        except Exception as error:  # whatever it is: transformers trains no such model
            return f"{type(error).__name__}"


def cases():
    for family in BASES:
        yield family, {}
        for key in sorted(KEYS[family]):
            yield from ((family, {key: value}) for value in others(family, key))
        yield from ((family, changes) for changes in CASES[family])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    found = [{"family": family, "changes": changes, "loss": loss_of(family, changes)} for family, changes in cases()]
    if not check:
        lines = ",\n".join("  " + json.dumps(case) for case in found)
        bases = json.dumps(BASES)
        FILE.write_text(f'{{"rows": {ROWS}, "length": {LENGTH}, "bases": {bases},\n "cases": [\n{lines}\n]}}\n')
        return
    for now, before in zip(found, json.loads(FILE.read_text())["cases"], strict=True):
        same = now["changes"] == before["changes"] and type(now["loss"]) is type(before["loss"])
        if not same or (isinstance(now["loss"], float) and abs(now["loss"] - before["loss"]) > 1e-5 * before["loss"]):
            raise SystemExit(f"{now} was {before}")


if __name__ == "__main__":
    main()

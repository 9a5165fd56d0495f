# SPDX-License-Identifier: Apache-2.0
"""What a configuration of DeepSpeed or flags of Megatron-LM must become, said without the importer: keys of the spec and their values, None
for what is left open. For flags of a model that the importer does not make: None altogether."""
import shlex

AUTO = "auto"


def deepspeed(text):
    import hjson

    config, wanted = hjson.loads(text), {}
    if config.get("train_batch_size", AUTO) != AUTO:
        wanted["train.global_batch"] = config["train_batch_size"]
    enabled = {name: config.get(name, {}).get("enabled", False) for name in ("fp16", "bf16")}
    if AUTO in enabled.values():
        wanted["train.precision"] = None  # the trainer decides
    elif any(enabled.values()):
        wanted["train.precision"] = "bf16" if enabled["bf16"] else "fp16"
    zero = config.get("zero_optimization", {})
    if "stage" in zero:
        wanted["layout.zero"] = zero["stage"]
    # Its older spelling, which is still read: a boolean for the host.
    for ours, theirs, older in (("optimizer", "offload_optimizer", "cpu_offload"), ("parameter", "offload_param", "cpu_offload_param")):
        device = zero.get(theirs, {}).get("device") or ("cpu" if zero.get(older) else None)
        if device:
            wanted[f"layout.offload.{ours}"] = {"cpu": "host", "nvme": "nvme"}[device]
    return wanted


def flags_of(text):
    flags, last = {}, None
    for word in shlex.split(text):
        if word.startswith("--"):
            last = word[2:]
            flags[last] = None
        else:
            flags[last] = word
    return flags


def megatron(text):
    flags = flags_of(text)
    hidden, ranks = int(flags["hidden-size"]), int(flags.get("tensor-model-parallel-size", 1))
    gated = "swiglu" in flags
    rotary = flags.get("position-embedding-type") == "rope" or "use-rotary-position-embeddings" in flags
    if len({gated, rotary, flags.get("normalization") == "RMSNorm"}) > 1:
        return None
    # As arguments.py rounds the inner size, and the tokenizer's padding the vocabulary.
    inner = int((4 * hidden * 2 / 3) / 64) * 64 if gated else 4 * hidden
    multiple = int(flags.get("make-vocab-size-divisible-by", 128)) * ranks
    padded = -(-int(flags["vocab-size"]) // multiple) * multiple
    names = ("intermediate_size", "hidden_size", "num_hidden_layers") if gated else ("n_inner", "n_embd", "n_layer")
    values = (int(flags.get("ffn-hidden-size") or inner), hidden, int(flags["num-layers"]))
    return {**{f"model.config.{name}": value for name, value in zip(names, values)}, "model.config.vocab_size": padded,
            "train.global_batch": int(flags["global-batch-size"])}

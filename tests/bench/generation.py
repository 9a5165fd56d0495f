#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How fast a checkpoint generates: prompt tokens and new tokens a second, beside transformers' generate() with its cache on the same
weights, threads and machine, in turns.

  PYTHON tests/bench/generation.py --bin build/release/bin [--rounds 3] [--prompt 512] [--tokens 64] [--threads 2]

PYTHON has torch and transformers. A model is trained for one step, so that its weights are of the size that they have at first; what it
says means nothing. "bound" is the time to read the weights once, at the bandwidth that `terrace-rank probe` measures for this machine.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import tempfile
import time

MODELS = {"gpt2": "gpt2", "smollm2-135m": "smollm2-135m"}


def terrace(options, *arguments):
    environment = {**os.environ, "OMP_NUM_THREADS": str(options.threads)}
    return subprocess.run([options.bin / "terrace", *map(str, arguments)], check=True, capture_output=True, text=True,
                          env=environment).stdout


def train(options, folder, model, precision):
    (folder / "text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 2000)
    spec = {"name": "generation", "model": {"config": model},
            "data": {"train": ["text.txt"], "tokenizer": "bytes", "sequence_length": 1024},
            "train": {"steps": 1, "global_batch": 1, "optimizer": {"lr": 1e-5}, "precision": precision},
            "checkpoint": {"directory": "checkpoints"}}
    job = folder / "job.yaml"
    job.write_text(json.dumps(spec))
    terrace(options, "run", job, "-o", "json")
    return next((folder / "checkpoints").glob("step-*"))


def of_terrace(options, checkpoint, prompt):
    answer = json.loads(terrace(options, "generate", checkpoint, "--prompt", prompt, "--tokens", options.tokens, "--temperature", 0,
                                "-o", "json"))
    # The first new token comes with the prompt.
    return answer["prompt_tokens"] / answer["prompt_seconds"], (answer["tokens"] - 1) / answer["seconds"], answer["text"]


def of_transformers(options, model, ids):
    import torch
    with torch.inference_mode():
        start = time.perf_counter()
        model.generate(ids, max_new_tokens=1, min_new_tokens=1, do_sample=False, pad_token_id=0)
        first = time.perf_counter() - start
        start = time.perf_counter()
        made = model.generate(ids, max_new_tokens=options.tokens, min_new_tokens=options.tokens, do_sample=False, pad_token_id=0)
        seconds = time.perf_counter() - start - first
    new = made[0, ids.shape[1]:].tolist()  # a token above 255 is no byte, and `terrace generate` shows nothing for it
    text = bytes(id for id in new if id < 256).decode(errors="replace")
    return ids.shape[1] / first, (options.tokens - 1) / seconds, text


def measure(options, name, precision):
    import torch
    from transformers import AutoModelForCausalLM
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        checkpoint = train(options, folder, MODELS[name], precision)
        exported = folder / "exported"
        dtype = {"fp32": "f32", "bf16": "bf16"}[precision]
        terrace(options, "ckpt", "export", checkpoint, "--output", exported, "--dtype", dtype)
        model = AutoModelForCausalLM.from_pretrained(exported, dtype={"f32": torch.float32, "bf16": torch.bfloat16}[dtype]).eval()
        prompt = ("the quick brown fox jumps over the lazy dog. " * 100)[:options.prompt]
        ids = torch.tensor([list(prompt.encode())])
        ours, theirs = [], []
        for _ in range(options.rounds):
            ours.append(of_terrace(options, checkpoint, prompt))
            theirs.append(of_transformers(options, model, ids))
        same = sum(a == b for a, b in zip(ours[0][2], theirs[0][2]))
        weights = sum(p.numel() * p.element_size() for p in model.parameters())
    median = [[statistics.median(run[i] for run in runs) for i in range(2)] for runs in (ours, theirs)]
    bound = options.bandwidth * 1e9 / weights
    print(f"| {name} | {precision} | {median[0][0]:.0f} | {median[1][0]:.0f} | {median[0][0] / median[1][0]:.2f} "
          f"| {median[0][1]:.1f} | {median[1][1]:.1f} | {median[0][1] / median[1][1]:.2f} "
          f"| {median[0][1] / bound:.2f} | {same} of {len(ours[0][2])} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=lambda path: pathlib.Path(path).resolve(), required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompt", type=int, default=512, help="tokens")
    parser.add_argument("--tokens", type=int, default=64, help="new ones")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--bandwidth", type=float, required=True, help="GB/s that memory can be read with")
    parser.add_argument("--only", default="", help="a part of the model's name")
    options = parser.parse_args()
    print("| model | precision | prompt tokens/s | transformers | ratio | new tokens/s | transformers | ratio | of the bound "
          "| equal bytes |\n|---|---|---|---|---|---|---|---|---|---|")
    for name in MODELS:
        for precision in ("fp32", "bf16"):
            if options.only in name:
                measure(options, name, precision)


if __name__ == "__main__":
    main()

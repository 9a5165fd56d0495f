#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Terrace against PyTorch (torch.compile, scaled_dot_product_attention, fused AdamW) on one GPU: published shapes, the same batch,
sequence, precision and 16 bytes of state a parameter, one right after the other. A row holds where Terrace trains at least 1.15
times the tokens in at most 0.75 times the memory, and for the 7B shape at 60 % of the GPU's FLOP/s (recomputation not counted).

Memory is what each side reserved: Terrace's arena, and the peak that PyTorch's caching allocator held; the CUDA context comes on
top of both. Without --model it takes the first shapes that fit into --seconds; a model by name takes all of its sequences."""
import array
import json
import random
import statistics
import subprocess
import sys

import models
import part

SPEED, MEMORY, MFU_7B = 1.15, 0.75, 0.60
SEQUENCES = (1024, 4096)
DEFAULT = ("gpt2-124m", "qwen2.5-0.5b")
TOKENS = {"gpt2-124m": 32768, "gpt2-1.5b": 8192, "qwen2.5-0.5b": 16384, "qwen2.5-1.5b": 8192, "qwen2.5-7b": 8192}  # of a step
STATE_BYTES = 16            # of a parameter: weight, gradient, two moments, all f32
PEAK = {"H100": 989e12, "H200": 989e12, "A100": 312e12}  # dense bf16 FLOP/s
WARMUP, STEPS = 4, 8
LEAST_SECONDS = 75          # a case is begun only if so much time is left: most of it is torch.compile's


def require_torch(options):
    asked = subprocess.run([options.python, "-c", "import torch; print(torch.__version__, torch.cuda.is_available())"],
                           capture_output=True, text=True, timeout=120)
    if asked.returncode != 0:
        raise part.Skip(f"{options.python} has no torch: install it (pip install torch), or name another Python with --python")
    version, cuda = asked.stdout.split()
    if options.device == "cuda" and cuda != "True":
        raise part.Skip(f"torch {version} of {options.python} finds no GPU")
    return version


def run_torch(checks, case):
    job = {"config": case["config"], "sequence": case["sequence"], "batch": case["batch"], "recompute": case["recompute"],
           "device": checks.options.device, "precision": case["precision"], "compile": checks.options.device == "cuda",
           "warmup": WARMUP, "steps": STEPS}
    done = subprocess.run([checks.options.python, part.ROOT / "tests/gpu/torch_train.py"], input=json.dumps(job),
                          capture_output=True, text=True, timeout=max(checks.left(), 1), check=False)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        if "OutOfMemoryError" in done.stderr:
            return None
        raise RuntimeError(f"PyTorch failed: {lines[-1] if lines else 'no message'}")
    return json.loads(done.stdout[done.stdout.index("{"):])


def run_terrace(checks, case):
    vocabulary = models.vocabulary_of(case["config"])
    tokens = checks.folder / f"tokens-{vocabulary}.bin"
    if not tokens.exists():
        kind = "H" if vocabulary <= 65536 else "I"
        numbers = array.array(kind, random.Random(1).choices(range(vocabulary), k=200_000))
        tokens.write_bytes(numbers.tobytes())
    spec = models.job(tokens, case["config"], checks.options.device, sequence=case["sequence"], batch=case["batch"],
                      steps=WARMUP + STEPS, precision=case["precision"], lr=3e-4,
                      layout={"recompute": "block" if case["recompute"] else "none"})
    job = checks.job(spec).run()
    speed = statistics.median(float(step["tokens_per_second"]) for step in job.steps[WARMUP:])
    return speed, int(job.plan["memory"][0]["arena_bytes"])


def cases_of(options):
    if options.device == "cpu":
        return [{"name": name, "config": config, "sequence": 64, "batch": 4, "precision": "bf16", "recompute": False}
                for name, config in models.TINY.items()]
    cases = []
    for name in options.model or DEFAULT:
        config = models.PUBLISHED[name]
        for sequence in SEQUENCES:
            if sequence <= config.get("n_positions", sequence):
                cases.append({"name": name, "config": config, "sequence": sequence, "batch": TOKENS[name] // sequence,
                              "precision": "bf16", "recompute": name == "qwen2.5-7b"})
    return cases


def compare(checks):
    checks.notes.append(f"torch {require_torch(checks.options)}")
    rehearsal = checks.options.device == "cpu"
    peak = next((rate for name, rate in PEAK.items() if name in checks.device), None)
    for case in cases_of(checks.options):
        label = f"{case['name']} {case['sequence']}"
        if not rehearsal and checks.left() < LEAST_SECONDS:
            checks.notes.append(f"{label}: not run, {checks.left():.0f} s are too few: name the model with --model")
            continue
        theirs = run_torch(checks, case)
        if theirs is None:
            parameters = models.parameters_of(case["config"])[0]
            checks.notes.append(f"{label}: not compared, PyTorch ran out of memory ({STATE_BYTES * parameters / 2**30:.0f} GiB of states)")
            continue
        speed, arena = run_terrace(checks, case)
        ratio = speed / theirs["tokens_per_second"]
        memory = arena / theirs["peak_bytes"] if theirs["peak_bytes"] else None
        mfu = speed * models.flops_per_token(case["config"], case["sequence"]) / peak if peak else None
        holds = ratio >= SPEED and memory is not None and memory <= MEMORY and (
            case["name"] != "qwen2.5-7b" or mfu is None or mfu >= MFU_7B)
        checks.add(None if rehearsal else holds, shape=label, batch=case["batch"], terrace_tokens_per_second=round(speed),
                   torch_tokens_per_second=round(theirs["tokens_per_second"]), speed=f"{ratio:.2f}",
                   mfu="" if mfu is None else f"{mfu:.1%}", terrace_gib=f"{arena / 2**30:.2f}",
                   torch_gib=f"{theirs['peak_bytes'] / 2**30:.2f}", memory="" if memory is None else f"{memory:.2f}")
    if not checks.rows:
        raise part.Skip(checks.notes[-1])


if __name__ == "__main__":
    parsed = part.parser(__doc__, 170)
    parsed.add_argument("--python", default=sys.executable, help="a Python with torch")
    parsed.add_argument("--model", action="append", choices=sorted(TOKENS), help="only this one; may be repeated")
    options = parsed.parse_args()
    sys.exit(part.Part("bench", options, ("shape", "batch", "terrace_tokens_per_second", "torch_tokens_per_second", "speed", "mfu",
                                          "terrace_gib", "torch_gib", "memory")).main(compare))

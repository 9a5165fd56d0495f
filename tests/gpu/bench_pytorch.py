#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Terrace against PyTorch (torch.compile, scaled_dot_product_attention, fused AdamW) on one GPU: published shapes, the same batch,
sequence, precision and 16 bytes of state a parameter, Terrace first, PyTorch right after it. A row holds where Terrace trains at
least 1.15 times the tokens in at most 0.75 times the memory. The row `mfu` is the largest shape whose states fit the GPUs here, with
selective recompute and 32,768 tokens a step, and holds where Terrace also reaches 60 % of the FLOP/s (recomputation not counted);
PyTorch recomputes whole blocks there. Where PyTorch runs out of memory, or one GPU is too small, `mfu` is judged by its 60 % alone, and
any other row is not judged.

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

SPEED, MEMORY, MFU = 1.15, 0.75, 0.60
SEQUENCES = (1024, 4096)
DEFAULT = ("gpt2-124m", "qwen2.5-0.5b", "mfu")
TOKENS = {"gpt2-124m": 32768, "gpt2-1.5b": 8192, "qwen2.5-0.5b": 16384, "qwen2.5-1.5b": 8192, "qwen2.5-3b": 8192, "qwen2.5-7b": 8192}  # of a step
MFU_SHAPES = ("qwen2.5-7b", "qwen2.5-3b", "qwen2.5-1.5b", "qwen2.5-0.5b")
MFU_SEQUENCE, MFU_BATCH, MFU_MICRO_BATCH = 4096, 8, 2
STATES_SHARE = 0.75         # of the GPUs' memory at most: activations and the head's logits need the rest
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
    job = {"config": case["config"], "sequence": case["sequence"], "batch": case["batch"], "micro_batch": case["micro_batch"],
           "recompute": case["recompute"] != "none", "device": checks.options.device, "precision": case["precision"], "compile": checks.options.device == "cuda",
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
                      layout={"recompute": case["recompute"], "micro_batch": case["micro_batch"], **case["layout"]},
                      resources={"devices_per_node": case["devices"]})
    job = checks.job(spec).run()
    speed = statistics.median(float(step["tokens_per_second"]) for step in job.steps[WARMUP:])
    arena = max(int(memory["arena_bytes"]) for memory in job.plan["memory"] if memory["tier"] == "DEVICE")
    return speed, arena


def states_of(name):
    return STATE_BYTES * models.parameters_of(models.PUBLISHED[name])[0]


def case_of(name, config, sequence, batch, **changes):
    return {"name": name, "label": f"{name} {sequence}", "config": config, "sequence": sequence, "batch": batch, "micro_batch": batch,
            "precision": "bf16", "recompute": "none", "layout": {}, "devices": 1, "mfu": False, **changes}


def mfu_case(checks):
    """The largest shape that one GPU here holds, or all of them together, if that is a larger one; None if none is held."""
    for name in MFU_SHAPES:
        for devices in sorted({1, 2 ** (checks.devices.bit_length() - 1)}):
            if states_of(name) > STATES_SHARE * devices * checks.memory_bytes:
                continue
            # One sequence at a time where states are shared: by the plan, two of 7B would send activations to the host.
            case = case_of(name, models.PUBLISHED[name], MFU_SEQUENCE, max(MFU_BATCH, devices),
                           micro_batch=MFU_MICRO_BATCH if devices == 1 else 1, recompute="selective", devices=devices, mfu=True,
                           layout={"dp": devices, "zero": 3} if devices > 1 else {})
            return {**case, "label": f"mfu: {case['label']}"}
    return None


def cases_of(checks):
    if checks.options.device == "cpu":
        return [case_of(name, config, 64, 4) for name, config in models.TINY.items()]
    cases = []
    for name in checks.options.model or DEFAULT:
        if name == "mfu":
            case = mfu_case(checks)
            cases += [case] if case else []
            if not case:
                checks.notes.append(f"mfu: not run: the GPUs hold the states of none of {', '.join(MFU_SHAPES)}")
            continue
        config = models.PUBLISHED[name]
        for sequence in SEQUENCES:
            if sequence <= config.get("n_positions", sequence):
                cases.append(case_of(name, config, sequence, TOKENS[name] // sequence,
                                     recompute="block" if name in ("qwen2.5-3b", "qwen2.5-7b") else "none"))
    return cases


def why_not_compared(case):
    if case["devices"] > 1:
        return f"PyTorch's side is for one GPU, and the shape takes {case['devices']}"
    return f"PyTorch ran out of memory ({STATE_BYTES * models.parameters_of(case['config'])[0] / 2**30:.0f} GiB of states)"


def judge(case, ratio, memory, mfu):
    """Whether the row holds: True or False; None where there is no bound to hold it to."""
    verdicts = []
    if ratio is not None:
        verdicts += [ratio >= SPEED, memory is not None and memory <= MEMORY]
    if case["mfu"] and mfu is not None:
        verdicts.append(mfu >= MFU)
    return all(verdicts) if verdicts else None


def compare(checks):
    checks.notes.append(f"torch {require_torch(checks.options)}")
    rehearsal = checks.options.device == "cpu"
    peak = next((rate for name, rate in PEAK.items() if name in checks.device), None)
    for case in cases_of(checks):
        label = case["label"]
        if not rehearsal and checks.left() < LEAST_SECONDS:
            checks.notes.append(f"{label}: not run, {checks.left():.0f} s are too few: name the model with --model")
            continue
        speed, arena = run_terrace(checks, case)
        theirs = run_torch(checks, case) if case["devices"] == 1 else None
        if theirs is None:
            checks.notes.append(f"{label}: not compared, {why_not_compared(case)}")
        ratio = speed / theirs["tokens_per_second"] if theirs else None
        memory = arena / theirs["peak_bytes"] if theirs and theirs["peak_bytes"] else None
        mfu = speed * models.flops_per_token(case["config"], case["sequence"]) / peak / case["devices"] if peak else None
        checks.add(None if rehearsal else judge(case, ratio, memory, mfu), shape=label, batch=case["batch"],
                   terrace_tokens_per_second=round(speed),
                   torch_tokens_per_second=round(theirs["tokens_per_second"]) if theirs else "",
                   speed="" if ratio is None else f"{ratio:.2f}", mfu="" if mfu is None else f"{mfu:.1%}",
                   terrace_gib=f"{arena / 2**30:.2f}", torch_gib=f"{theirs['peak_bytes'] / 2**30:.2f}" if theirs else "",
                   memory="" if memory is None else f"{memory:.2f}")
    if not rehearsal and all(row["passed"] is None for row in checks.rows):
        raise part.Skip(checks.notes[-1])
    if not checks.rows:
        raise part.Skip(checks.notes[-1])


if __name__ == "__main__":
    parsed = part.parser(__doc__, 170)
    parsed.add_argument("--python", default=sys.executable, help="a Python with torch")
    parsed.add_argument("--model", action="append", choices=[*sorted(TOKENS), "mfu"], help="only this one; may be repeated")
    options = parsed.parse_args()
    sys.exit(part.Part("bench", options, ("shape", "batch", "terrace_tokens_per_second", "torch_tokens_per_second", "speed", "mfu",
                                          "terrace_gib", "torch_gib", "memory")).main(compare))

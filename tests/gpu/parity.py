#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Training parity: the same job on the GPU and on the CPU, step by step. Losses and gradient norms follow each other within the
rounding of their precision, and the same job on the GPU twice prints the same digits."""
import sys

import models
import part

# Largest relative difference over the steps. In f32 sums have other orders and exponentials other last bits, which Adam's
# normalisation carries into the weights; tf32, which the CPU computes as fp32, and fp16 have 11 bits, bf16 has 8.
BOUNDS = {"fp32": {"loss": 2e-5, "grad_norm": 1e-3}, "tf32": {"loss": 2.5e-3, "grad_norm": 2.5e-2},
          "bf16": {"loss": 1e-2, "grad_norm": 1e-1}, "fp16": {"loss": 2.5e-3, "grad_norm": 2.5e-2},
          "fp8": {"loss": 1e-2, "grad_norm": 1e-1}}
STEPS = 10
# Any change in the last bits changes codes of fp8, by a sixteenth of their number. With small steps what comes of that stays within
# bf16's bounds (tests/bench/results/fp8-sensitivity-2026-11-23.md), with the others' it does not.
LEARNING_RATES = {"fp8": 1e-3}
NO_FP8 = "no units for 8-bit products"  # the device's own words


def difference(ours, theirs):
    """Relative. A step that is skipped, as fp16's are until its loss scale is found, has no norm: on both devices or on none."""
    if ours is None or theirs is None:
        return 0.0 if ours is theirs else float("inf")
    return abs(float(ours) - float(theirs)) / max(abs(float(theirs)), 1e-12)


def worst(ours, theirs, key):
    if len(ours) != len(theirs) or not ours:
        raise RuntimeError(f"{len(ours)} steps on one device and {len(theirs)} on the other")
    return max(difference(a[key], b[key]) for a, b in zip(ours, theirs))


def compare(checks):
    rehearsal = checks.options.device == "cpu"
    text = part.text_file(checks.folder)
    for name, config in (models.TINY if rehearsal else models.SMALL).items():
        for precision, bounds in BOUNDS.items():
            def train(device):
                return checks.job(models.job(text, config, device, steps=STEPS, precision=precision,
                                             sequence=32 if rehearsal else 128, lr=LEARNING_RATES.get(precision, 3e-3))).run().steps
            try:
                cpu, gpu, again = train("cpu"), train(checks.options.device), train(checks.options.device)
            except RuntimeError as error:
                if NO_FP8 not in str(error):
                    raise
                checks.notes.append(f"{name} {precision} was not run: this GPU has {NO_FP8}")
                continue
            errors = {key: worst(gpu, cpu, key) for key in bounds}
            same = [(s["loss"], s["grad_norm"]) for s in gpu] == [(s["loss"], s["grad_norm"]) for s in again]
            learned = float(gpu[-1]["loss"]) < float(gpu[0]["loss"])
            checks.add(all(errors[key] <= bounds[key] for key in bounds) and same and learned,
                       job=f"{name} {precision}", loss=f"{errors['loss']:.1e}", loss_bound=f"{bounds['loss']:.0e}",
                       grad_norm=f"{errors['grad_norm']:.1e}", grad_norm_bound=f"{bounds['grad_norm']:.0e}",
                       same_digits_again="yes" if same else "no", last_loss=gpu[-1]["loss"])


if __name__ == "__main__":
    options = part.parser(__doc__, 90).parse_args()
    sys.exit(part.Part("parity", options, ("job", "loss", "loss_bound", "grad_norm", "grad_norm_bound", "same_digits_again",
                                           "last_loss"), exact=True).main(compare))

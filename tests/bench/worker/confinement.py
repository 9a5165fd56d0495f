#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Step time with confined ranks and without (terrace-worker --no-rank-sandbox), in turns: tests/bench/worker/confinement.py [PAIRS] [BIN].

Prints for each run the median of its step times, then the median of the ratios of the pairs. The job is gpt2 of 6 layers of 384,
sequences of 256, on one thread, in fp32; the first ten steps do not count."""
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

PAIRS = int(sys.argv[1]) if len(sys.argv) > 1 else 5
BIN = pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else "build/release/bin").resolve()
STEPS, WARM = 30, 10
GPT2 = {"model_type": "gpt2", "vocab_size": 256, "n_positions": 256, "n_embd": 384, "n_layer": 6, "n_head": 6,
        "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "initializer_range": 0.02}


def step_seconds(folder, *options):
    """Of a job of its own on a coordinator and a worker of its own."""
    (folder / "text.txt").write_text("In the beginning was the word. " * 4000)
    job = {"name": "confinement", "model": {"config": GPT2}, "data": {"train": str(folder / "text.txt"), "sequence_length": 256},
           "train": {"steps": STEPS, "global_batch": 2, "precision": "fp32", "optimizer": {"lr": 1e-3}, "eval_batches": 1},
           "resources": {"threads_per_device": 1}, "checkpoint": {"directory": str(folder / "checkpoints")}}
    (folder / "job.yaml").write_text(json.dumps(job))
    port = folder / "port"
    with open(folder / "log", "w") as log:
        coordinator = subprocess.Popen([BIN / "terrace-coordinator", "serve", "--listen", "127.0.0.1:0", "--port-file", port,
                                        "--state-dir", folder / "coordinator"], stderr=log, stdout=log)
        while not port.exists():
            time.sleep(0.05)
        address = f"127.0.0.1:{port.read_text().strip()}"
        worker = subprocess.Popen([BIN / "terrace-worker", "--coordinator", address, "--name", "one", "--threads-per-device", "1",
                                   "--state-dir", folder / "worker", "--stop-ranks-on-exit", *options], stderr=log, stdout=log)
        try:
            ran = subprocess.run([BIN / "terrace", "--coordinator", address, "submit", "--watch", folder / "job.yaml", "-o", "json"],
                                 stdout=subprocess.PIPE, text=True, timeout=600, check=True)
        finally:
            for process in (worker, coordinator):
                process.terminate()
                process.wait()
    events = [json.loads(line) for line in ran.stdout.splitlines()]
    return [event["step_seconds"] for event in events if event.get("event") == "step"][WARM:]


def main():
    ratios = []
    for pair in range(PAIRS):
        medians = {}
        kinds = [("confined", ()), ("free", ("--no-rank-sandbox",))]
        for kind, options in kinds if pair % 2 == 0 else reversed(kinds):  # neither is always the first
            with tempfile.TemporaryDirectory() as folder:
                medians[kind] = statistics.median(step_seconds(pathlib.Path(folder), *options))
        ratios.append(medians["confined"] / medians["free"])
        print(f"pair {pair + 1}: confined {medians['confined'] * 1000:.2f} ms, free {medians['free'] * 1000:.2f} ms, "
              f"ratio {ratios[-1]:.4f}", flush=True)
    print(f"median ratio {statistics.median(ratios):.4f}, from {min(ratios):.4f} to {max(ratios):.4f}")


if __name__ == "__main__":
    main()

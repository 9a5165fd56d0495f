# SPDX-License-Identifier: Apache-2.0
"""Runs a job and says, step by step, how many cores others kept busy meanwhile: processes that are not of the job, and the
hypervisor. Steps in which nobody interfered are those that measure the machine.

Used by predict.py and offload.py; one run at a time.
"""
import json
import os
import pathlib
import statistics
import subprocess
import time
import uuid

WARM_UP = 2  # first steps of a run, in which caches and pages are new
ALONE = 0.05  # cores that others may keep busy
CLEAN_STEPS = 3  # fewer are no median
TICK = os.sysconf("SC_CLK_TCK")


def machine_seconds():
    """Processor time that anybody has used, in seconds: user, nice, system, interrupts and what the hypervisor took."""
    fields = pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    return sum(int(fields[i]) for i in (0, 1, 2, 5, 6, 7)) / TICK


class Job:
    """Processes are known by a variable in their environment, which those that they start have too."""

    def __init__(self):
        self.mark = f"TERRACE_BENCH={uuid.uuid4().hex}"
        self.known = {}

    def environment(self):
        name, value = self.mark.split("=")
        return {**os.environ, name: value}

    def is_own(self, pid):
        if pid == os.getpid():
            return True
        if pid not in self.known:
            try:
                self.known[pid] = self.mark.encode() in pathlib.Path(f"/proc/{pid}/environ").read_bytes()
            except OSError:
                self.known[pid] = False
        return self.known[pid]

    def seconds(self):
        ticks = 0
        for folder in os.listdir("/proc"):
            if not folder.isdigit() or not self.is_own(int(folder)):
                continue
            try:
                stat = pathlib.Path(f"/proc/{folder}/stat").read_text()
            except OSError:
                continue
            ticks += sum(map(int, stat[stat.rindex(")") + 2:].split()[11:13]))
        return ticks / TICK


def run(command):
    """Events that the command prints, and of each step its seconds and the cores that others kept busy during it."""
    job = Job()
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=job.environment())
    events, steps = [], []
    before = (time.monotonic(), machine_seconds(), job.seconds())
    for line in process.stdout:
        if not line.startswith("{"):
            continue
        events.append(json.loads(line))
        if events[-1].get("event") != "step":
            continue
        now = (time.monotonic(), machine_seconds(), job.seconds())
        passed, all_of_it, own = (b - a for a, b in zip(before, now))
        steps.append((events[-1]["step_seconds"], max(0.0, all_of_it - own) / max(passed, 1e-3)))
        before = now
    errors = process.stderr.read()
    if process.wait() != 0:
        raise SystemExit(f"{' '.join(map(str, command))}:\n{errors[-2000:]}")
    return events, steps


def median_step(steps):
    """Seconds of the median of the steps that were alone, and how many these are; of all steps when they are too few."""
    warm = steps[WARM_UP:]
    clean = [seconds for seconds, others in warm if others <= ALONE]
    chosen = clean if len(clean) >= CLEAN_STEPS else [seconds for seconds, _ in warm]
    return statistics.median(chosen), len(clean)

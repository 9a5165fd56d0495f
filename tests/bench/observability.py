#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What it costs to watch a job: flight recorder, live bytes, times, metrics, log, reports, and the processes that read them.

  turns    inside one run of a whole service (coordinator, daemon, rank), --steps steps watched and --steps steps without any of it take
           turns, in rounds of four: one kind, twice the other, the first again. Printed: the median of the ratios of --rounds rounds
           with the interval that holds it with 95 % (resampled rounds). observability_rank.cc says what a turn has. Steps of its kind that
           nobody times come before each turn: a daemon that was stopped does then what it missed. With --keep it is not stopped: only
           what the rank itself does.
  samples  the same service with the real rank; `perf record` takes samples of the time of all its processors for --seconds, and
           each sample is counted where its stack says it belongs. Printed: shares of the time of the threads that compute.
  threads  the same service; for --seconds the kernel's own count of what each thread ran (schedstat: exact, and who measures takes
           nothing from the steps). Printed for all threads but those that compute: milliseconds and how often it was given a
           processor, a second; and how long those that compute waited for one, also with coordinator and daemon stopped.

/metrics of daemon and coordinator is asked for every 15 seconds, as Prometheus does by default.

  tests/bench/observability.py turns --bin build/release/bin [--rounds 300] [--steps 8] [--batch 8] [--threads 2] [--keep]
  tests/bench/observability.py samples --bin build/release/bin [--seconds 30] [--threads 2] [--frequency 997]
  tests/bench/observability.py threads --bin build/release/bin [--seconds 30] [--threads 2]
"""
import argparse
import csv
import json
import os
import pathlib
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

CONFIG = {"model_type": "llama", "vocab_size": 256, "hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4,
          "num_key_value_heads": 4, "intermediate_size": 384, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
          "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False}
SCRAPE_SECONDS = 15
START_SECONDS = 120
STEP = re.compile(r"step (\d+) of \d+ ")
# Where a sample of the rank belongs: the first line one of whose names is in its stack.
PLACES = [
    ("flight recorder", ["FlightWriter::"]),
    ("slices", ["SystemClock::", "clock_gettime", "AddTraffic"]),
    ("computation", ["Vm::Run", "Streams::", "gomp_thread_start", "omp", "terrace::kernels::"]),
    ("agreement", ["Agreement::"]),
    ("times and metrics", ["Trainer::UpdateMetrics", "Times"]),
    ("report and log line", ["Trainer::Report", "Reporter::", "Trainer::Run"]),
    ("link", ["LinkServer::", "LinkConnection::"]),
]
WORK = ("computation", "agreement")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(holds, what, seconds=START_SECONDS, pause=0.05):
    deadline = time.monotonic() + seconds
    while not (value := holds()):
        if time.monotonic() > deadline:
            raise SystemExit(f"after {seconds} s not true: {what}")
        time.sleep(pause)
    return value


class Service:
    """A coordinator, a worker and one job."""

    def __init__(self, options, folder, rank=None):
        self.options, self.folder, self.processes, self.scraping = options, folder, [], True
        self.address, self.metrics = f"127.0.0.1:{free_port()}", [f"127.0.0.1:{free_port()}" for _ in range(2)]
        self.start("terrace-coordinator", {}, "serve", "--listen", self.address, "--state-dir", folder / "coordinator",
                   "--metrics-listen", self.metrics[0], "--port-file", folder / "port")
        wait_for((folder / "port").exists, "the coordinator listens")
        environment, more = {}, []
        if rank is not None:
            environment = {"OBSERVABILITY_OUT": folder / "turns.csv", "OBSERVABILITY_ROUNDS": options.rounds,
                           "OBSERVABILITY_STEPS": options.steps, "OBSERVABILITY_RANK": options.bin / "terrace-rank"}
            if not options.keep:
                environment["OBSERVABILITY_STOP"] = self.processes[0].pid
            more = ["--rank-binary", rank]
        self.start("terrace-worker", environment, "--coordinator", self.address, "--name", "bench", "--state-dir", folder / "worker",
                   "--device", "cpu", "--metrics-listen", self.metrics[1], "--threads-per-device", options.threads,
                   "--stop-ranks-on-exit", *more)
        wait_for(lambda: "ready" in self.terrace("nodes"), "the worker is ready")
        threading.Thread(target=self.scrape, daemon=True).start()

    def start(self, program, environment, *arguments):
        log = open(self.folder / f"{program}.log", "wb")
        variables = {**os.environ, **{name: str(value) for name, value in environment.items()}}
        self.processes.append(subprocess.Popen([self.options.bin / program, *map(str, arguments)], stdout=log, stderr=log, env=variables))

    def terrace(self, *arguments):
        result = subprocess.run([self.options.bin / "terrace", "--coordinator", self.address, *map(str, arguments)],
                                capture_output=True, text=True, timeout=START_SECONDS)
        if result.returncode != 0:
            raise SystemExit(result.stdout[-2000:] + result.stderr[-2000:])
        return result.stdout

    def submit(self, spec):
        """Where the rank of the job writes, once it takes steps."""
        job = json.loads(self.terrace("submit", spec, "-o", "json"))["id"]
        log = self.folder / "worker/runs" / job / "1/0/rank.log"
        wait_for(lambda: log.exists() and STEP.search(log.read_text()), "the job does steps")
        return log.parent

    def scrape(self):
        while self.scraping:
            for address in self.metrics:
                try:
                    urllib.request.urlopen(f"http://{address}/metrics", timeout=60).read()
                except OSError:
                    pass  # it ends
            time.sleep(SCRAPE_SECONDS)

    def end(self):
        self.scraping = False
        for process in reversed(self.processes):
            process.send_signal(signal.SIGCONT)
            process.terminate()
            process.wait(30)


def spec_of(options, folder):
    source = random.Random(1)
    (folder / "corpus.txt").write_text("".join(source.choices("abcdefgh ", k=200_000)))
    spec = {"name": "observe", "model": {"config": CONFIG}, "data": {"train": str(folder / "corpus.txt"), "sequence_length": 128},
            "train": {"steps": 10_000_000, "global_batch": options.batch, "precision": "fp32", "eval_batches": 1,
                      "schedule": {"name": "constant"}},
            "layout": {"dp": 1, "micro_batch": options.batch}, "resources": {"threads_per_device": options.threads},
            "checkpoint": {"directory": str(folder / "checkpoints")}}
    path = folder / "job.yaml"
    path.write_text(json.dumps(spec))
    return path


def median_with_interval(values):
    source = random.Random(1)
    resampled = sorted(statistics.median(source.choices(values, k=len(values))) for _ in range(2000))
    return statistics.median(values), resampled[50], resampled[-51]


def turns(options, folder):
    service = Service(options, folder, options.bin / "observability_rank")
    try:
        run = service.submit(spec_of(options, folder))
        path = folder / "turns.csv"
        rank = int((run / "pid").read_text())

        def ended():
            if path.read_text().count("\n") > options.rounds:
                return True
            if not pathlib.Path(f"/proc/{rank}").exists():
                raise SystemExit("the rank has ended before its turns have")
            return False

        # Seldom: who asks takes time from the steps.
        wait_for(ended, "all turns have ended", 20 * options.rounds * options.steps, 2)
        with open(path, encoding="utf-8") as rows:
            pairs = [(float(row["watched"]), float(row["bare"])) for row in csv.DictReader(rows)]
    finally:
        service.end()
    ratio, low, high = median_with_interval([watched / bare for watched, bare in pairs])
    medians = [statistics.median(pair[i] for pair in pairs) * 1e3 for i in (0, 1)]
    quartiles = statistics.quantiles([watched / bare for watched, bare in pairs], n=4)
    print(f"{len(pairs)} rounds of four turns of {options.steps} steps, {options.threads} threads, the daemon "
          f"{'always running' if options.keep else 'stopped in bare turns'}: median step {medians[0]:.3f} ms watched, "
          f"{medians[1]:.3f} ms bare\nwatched / bare: median {100 * (ratio - 1):+.3f} %, with 95 % between {100 * (low - 1):+.3f} "
          f"and {100 * (high - 1):+.3f} %; quartiles of single rounds {100 * (quartiles[0] - 1):+.2f} and {100 * (quartiles[2] - 1):+.2f} %")
    if options.pairs:
        options.pairs.write_text(json.dumps(pairs))


def samples_of(path):
    """(process, thread, names of the stack, innermost first) of each sample."""
    text = subprocess.run(["perf", "script", "-i", path, "-F", "comm,pid,tid,ip,sym"], capture_output=True, text=True, check=True).stdout
    for block in text.split("\n\n"):
        lines = block.strip().splitlines()
        if not lines:
            continue
        found = re.search(r"(\d+)/(\d+)", lines[0])
        if found:
            yield int(found.group(1)), int(found.group(2)), [line.strip().split(" ", 1)[-1] for line in lines[1:]]


def place_of(stack):
    for place, names in PLACES:
        if any(name in frame for frame in stack for name in names):
            return place
    return "elsewhere"


def samples(options, folder):
    service = Service(options, folder)
    try:
        run = service.submit(spec_of(options, folder))
        rank = int((run / "pid").read_text())
        coordinator, worker = (process.pid for process in service.processes)
        time.sleep(2)
        path = folder / "perf.data"
        subprocess.run(["perf", "record", "-q", "-e", "cpu-clock", "-F", str(options.frequency), "--call-graph", "dwarf,16384", "-o", path,
                        "-p", f"{rank},{worker},{coordinator}", "--", "sleep", str(options.seconds)], check=True)
    finally:
        service.end()
    counts = {}
    for pid, _, stack in samples_of(path):
        place = {worker: "daemon", coordinator: "coordinator"}.get(pid) or place_of(stack)
        counts[place] = counts.get(place, 0) + 1
    work = sum(counts.get(place, 0) for place in WORK)
    print(f"{sum(counts.values())} samples, {options.threads} threads\n\n| place | samples | of the computation |\n|---|---|---|")
    for place, count in sorted(counts.items(), key=lambda item: -item[1]):
        print(f"| {place} | {count} | {100 * count / work:.3f} % |")


def scheduled(pid):
    """Of each thread of a process: name, nanoseconds that it ran and that it waited for a processor, and how often it got one."""
    found = {}
    for folder in pathlib.Path(f"/proc/{pid}/task").iterdir():
        try:
            numbers = map(int, (folder / "schedstat").read_text().split())
            found[int(folder.name)] = ((folder / "comm").read_text().strip(), *numbers)
        except OSError:
            pass  # it has just ended
    return found


def over(pids, seconds):
    """(process, thread, ms run, ms waited, times) a second of all threads of the processes, those that ran most first."""
    before, start = {process: scheduled(pid) for process, pid in pids.items()}, time.monotonic()
    time.sleep(seconds)
    after, passed = {process: scheduled(pid) for process, pid in pids.items()}, time.monotonic() - start
    rows = []
    for process, threads_of in after.items():
        for number, (name, *now) in threads_of.items():
            old = before[process].get(number, (name, 0, 0, 0))[1:]
            ran, waited, times = ((b - a) / passed for a, b in zip(old, now))
            rows.append((process, name, ran / 1e6, waited / 1e6, times))
    return sorted(rows, key=lambda row: -row[2])


def threads(options, folder):
    service = Service(options, folder)
    try:
        run = service.submit(spec_of(options, folder))
        coordinator, worker = (process.pid for process in service.processes)
        pids = {"rank": int((run / "pid").read_text()), "daemon": worker, "coordinator": coordinator}
        time.sleep(2)
        steps = len(STEP.findall((run / "rank.log").read_text()))
        watched = over(pids, options.seconds)
        steps = len(STEP.findall((run / "rank.log").read_text())) - steps
        for process in service.processes:
            process.send_signal(signal.SIGSTOP)
        alone = over({"rank": pids["rank"]}, options.seconds)
    finally:
        service.end()
    print(f"{options.seconds} s, {steps} steps of {1e3 * options.seconds / steps:.1f} ms\n\n"
          "| thread | ms a second | runs a second |\n|---|---|---|")
    watching = watched[options.threads:]  # those before compute
    for process, name, ms, _, times in watching:
        if ms >= 0.01:
            print(f"| {process}: {name} | {ms:.3f} | {times:.1f} |")
    for process in pids:
        own = [row for row in watching if row[0] == process]
        print(f"| {process}, in all | {sum(row[2] for row in own):.3f} | {sum(row[4] for row in own):.1f} |")
    waits = [sum(row[3] for row in rows[:options.threads]) for rows in (watched, alone)]
    print(f"\nthe {options.threads} threads that compute waited for a processor: {waits[0]:.3f} ms a second, and {waits[1]:.3f} ms with "
          "coordinator and daemon stopped")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["turns", "samples", "threads"])
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--frequency", type=int, default=997, help="of samples a second, on each processor")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--keep", action="store_true", help="never stop the daemon")
    parser.add_argument("--pairs", type=pathlib.Path, help="write seconds a step of all rounds there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        try:
            {"turns": turns, "samples": samples, "threads": threads}[options.what](options, folder)
        except BaseException:
            for log in folder.rglob("*.log"):
                print(log.name, log.read_text()[-600:], file=sys.stderr)
            raise
    return 0


if __name__ == "__main__":
    sys.exit(main())

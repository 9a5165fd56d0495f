#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What it costs to watch a job: its steps with the flight recorder, the memory watch, reports and scraped metrics, and without.

One job runs twice at the same time, from the same program: once as a service runs it (coordinator, daemon, a rank with its flight
recorder; /metrics of both scraped every second, which is 15 times Prometheus' habit), and once as a rank alone from its
configuration, whose record stays in its own memory and whom nobody watches. One of the two is stopped (SIGSTOP) while the other
computes, in turns of --turn seconds. A turn's figure is the median of its whole steps. A round compares a turn of the watched rank
with the two of the other around it; the printed ratio is the median over rounds with its quartiles and the standard error of that
median.

Then the parts: CPU seconds that the watching processes and the rank's own other threads took while it computed
(/proc/PID/task/TID/schedstat), as shares of the time of the rank's threads that compute. That includes everything else that the
daemon and the coordinator do.

  tests/bench/observe.py --bin build/release/bin [--rounds 60] [--turn 1.5] [--threads 2]
"""
import argparse
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

ROOT = pathlib.Path(__file__).resolve().parents[2]
CONFIG = {"model_type": "llama", "vocab_size": 256, "hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4,
          "num_key_value_heads": 4, "intermediate_size": 384, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
          "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False}
SCRAPE_SECONDS = 1
START_SECONDS = 120
TOO_LONG = 1.9  # of the median: a step that was stopped in its middle
STEP = re.compile(r"step (\d+) of \d+ .* (\d+) tokens/s")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(holds, what):
    deadline = time.monotonic() + START_SECONDS
    while not (value := holds()):
        if time.monotonic() > deadline:
            raise SystemExit(f"after {START_SECONDS} s not true: {what}")
        time.sleep(0.05)
    return value


def cpu_seconds(pid):
    """{(thread id, name): seconds on a CPU}"""
    seconds = {}
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        try:
            seconds[int(task.name), (task / "comm").read_text().strip()] = int((task / "schedstat").read_text().split()[0]) / 1e9
        except OSError:
            continue  # it ended
    return seconds


class Arm:
    """Processes that run and stand still together, and the log in which the rank says how fast its steps are."""

    def __init__(self, rank, others, log, tokens):
        self.rank, self.others, self.log, self.tokens = rank, others, log, tokens
        self.cpu = {pid: {} for pid in (rank, *others)}
        self.on_seconds = 0

    def signal(self, number):
        for pid in (self.rank, *self.others):
            os.kill(pid, number)

    def steps_since(self, offset):
        """Seconds of the steps that ended since; those that a stop interrupted are left out."""
        with open(self.log, encoding="utf-8") as log:
            log.seek(offset)
            seconds = [self.tokens / int(match.group(2)) for match in map(STEP.search, log) if match]
        if len(seconds) < 4:
            raise SystemExit(f"{len(seconds)} steps in a turn: make --turn longer")
        seconds = seconds[1:]
        limit = TOO_LONG * statistics.median(seconds)
        return [value for value in seconds if value < limit]

    def turn(self, seconds):
        offset, before = os.path.getsize(self.log), {pid: cpu_seconds(pid) for pid in self.cpu}
        self.signal(signal.SIGCONT)
        started = time.monotonic()
        time.sleep(seconds)
        self.signal(signal.SIGSTOP)
        self.on_seconds += time.monotonic() - started
        for pid, all_seconds in self.cpu.items():
            for key, value in cpu_seconds(pid).items():
                all_seconds[key] = all_seconds.get(key, 0) + value - before[pid].get(key, 0)
        return statistics.median(self.steps_since(offset))


class Service:
    """A coordinator, a worker and the job, as the arm that is watched."""

    def __init__(self, options, folder):
        self.options, self.folder, self.processes, self.scraping = options, folder, [], True
        address, self.metrics = f"127.0.0.1:{free_port()}", [f"127.0.0.1:{free_port()}" for _ in range(2)]
        # The binary ends when the bench does, whatever happens to it.
        self.start("terrace-coordinator", "serve", "--listen", address, "--state-dir", folder / "coordinator", "--metrics-listen",
                   self.metrics[0], "--port-file", folder / "port")
        wait_for((folder / "port").exists, "the coordinator listens")
        self.start("terrace-worker", "--coordinator", address, "--name", "bench", "--state-dir", folder / "worker",
                   "--metrics-listen", self.metrics[1], "--threads-per-device", options.threads, "--stop-ranks-on-exit")
        self.address = address
        wait_for(lambda: "ready" in self.terrace("nodes"), "the worker is ready")

    def start(self, program, *arguments):
        log = open(self.folder / f"{program}.log", "wb")
        self.processes.append(subprocess.Popen([self.options.bin / program, *map(str, arguments)], stdout=log, stderr=log))

    def terrace(self, *arguments):
        result = subprocess.run([self.options.bin / "terrace", "--coordinator", self.address, *map(str, arguments)],
                                capture_output=True, text=True, timeout=START_SECONDS)
        if result.returncode != 0:
            raise SystemExit(result.stdout[-2000:] + result.stderr[-2000:])
        return result.stdout

    def submit(self, spec):
        job = json.loads(self.terrace("submit", spec, "-o", "json"))["id"]
        run = self.folder / "worker/runs" / job / "1/0"
        log = run / "rank.log"
        wait_for(lambda: log.exists() and STEP.search(log.read_text()), "the job does steps")
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                command = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
            except OSError:
                continue
            if command[0].endswith("terrace-rank") and str(run / "config.pb") in " ".join(command):
                return run, int(pid)
        raise SystemExit("the rank was not found")

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


def alone(options, folder, run):
    """The same rank from the same configuration, without a run directory."""
    protoc = ["protoc", f"--proto_path={ROOT}", "--{}=terrace.v1.RankConfig", "proto/v1/worker.proto"]
    decode, encode = ([word.format(name) for word in protoc] for name in ("decode", "encode"))
    text = subprocess.run(decode, input=(run / "config.pb").read_bytes(), capture_output=True, check=True).stdout.decode()
    text = re.sub(r'^run_directory: .*\n', "", text, flags=re.MULTILINE)
    text = text.replace(f'directory: "{folder}/checkpoints"', f'directory: "{folder}/checkpoints-alone"')
    assert "run_directory" not in text and "checkpoints-alone" in text, text
    config, log = folder / "alone.pb", folder / "alone.log"
    config.write_bytes(subprocess.run(encode, input=text.encode(), capture_output=True, check=True).stdout)
    process = subprocess.Popen([options.bin / "terrace-rank", "run", "--config", config], stdout=open(log, "wb"),
                               stderr=subprocess.STDOUT)
    wait_for(lambda: STEP.search(log.read_text()) or process.poll() is not None, "the rank alone does steps")
    if process.poll() is not None:
        raise SystemExit(log.read_text()[-2000:])
    return process, log


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


def median_with_error(values):
    source = random.Random(1)
    resampled = [statistics.median(source.choices(values, k=len(values))) for _ in range(2000)]
    quartiles = statistics.quantiles(values, n=4)
    return statistics.median(values), quartiles[0], quartiles[2], statistics.stdev(resampled)


def measure(options, watched, bare):
    """A turn of each warms up. Then a round is a turn of the one and the mean of those of the other around it."""
    watched.turn(options.turn)
    before = bare.turn(options.turn)
    for arm in (watched, bare):
        arm.cpu, arm.on_seconds = {pid: {} for pid in arm.cpu}, 0
    rounds = []
    for _ in range(options.rounds):
        seconds, after = watched.turn(options.turn), bare.turn(options.turn)
        rounds.append((seconds, (before + after) / 2))
        before = after
    return rounds


def print_parts(options, watched, bare, names):
    print("\n| thread | CPU s in a second of the job | of the computing threads' time |\n|---|---|---|")
    computing = sum(sorted(watched.cpu[watched.rank].values())[-options.threads:]) / watched.on_seconds

    def line(name, seconds):
        print(f"| {name} | {seconds:.6f} | {100 * seconds / computing:.3f} % |")
    line("rank, watched: computing", computing)
    line("rank, watched: its other threads", sum(watched.cpu[watched.rank].values()) / watched.on_seconds - computing)
    bare_all = sorted(bare.cpu[bare.rank].values())
    line("rank alone: its other threads", sum(bare_all[:-options.threads]) / bare.on_seconds)
    for pid, name in names.items():
        line(f"{name}, all threads", sum(watched.cpu[pid].values()) / watched.on_seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--turn", type=float, default=1.5, help="seconds; a worker that stands still counts as lost after 3")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--batch", type=int, default=8)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        service, process = Service(options, folder), None
        try:
            run, rank = service.submit(spec_of(options, folder))
            process, log = alone(options, folder, run)
            tokens = options.batch * 128
            coordinator, worker = (started.pid for started in service.processes)
            watched, bare = Arm(rank, [worker, coordinator], run / "rank.log", tokens), Arm(process.pid, [], log, tokens)
            for arm in (watched, bare):
                arm.signal(signal.SIGSTOP)
            threading.Thread(target=service.scrape, daemon=True).start()
            rounds = measure(options, watched, bare)
            ratio, low, high, error = median_with_error([one / other for one, other in rounds])
            print(f"{len(rounds)} rounds of two turns of {options.turn:g} s, {options.threads} threads; median step "
                  f"{statistics.median(one for one, _ in rounds) * 1e3:.2f} ms watched, "
                  f"{statistics.median(other for _, other in rounds) * 1e3:.2f} ms alone\n"
                  f"watched / alone: median of rounds {ratio:.4f} (quartiles {low:.4f} to {high:.4f}, standard error {error:.4f})")
            print_parts(options, watched, bare, {worker: "daemon", coordinator: "coordinator"})
            watched.signal(signal.SIGCONT)
        finally:
            if process is not None:
                process.kill()
                process.wait()
            service.end()
            if sys.exc_info()[0] is not None:
                for log in folder.rglob("*.log"):
                    print(log.name, log.read_text()[-600:], file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())

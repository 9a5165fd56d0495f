# SPDX-License-Identifier: Apache-2.0
"""A coordinator and workers as an operator starts them, for the tests of the service."""
import fcntl
import pathlib
import random
import re
import socket
import subprocess
import tempfile
import sys
import time
import urllib.request

from support import TerraceTest

SAMPLE = re.compile(r'^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{((?:[a-z_]+="(?:[^"\\]|\\.)*",?)*)\})? (\S+)( \d+)?$')


PORTS = range(12000, 32000)  # below the ephemeral ports of Linux, so that no outgoing connection takes one first
claimed = []  # the locks of this process's ports: until it ends no other test takes one of them


def free_port():
    folder = pathlib.Path(tempfile.gettempdir(), "terrace-test-ports")
    folder.mkdir(exist_ok=True)
    for port in random.sample(PORTS, 100):
        try:
            lock = open(folder / str(port), "w")
        except PermissionError:  # another user's
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except OSError:
            lock.close()
            continue
        claimed.append(lock)
        return port
    raise RuntimeError(f"of 100 ports tried from {PORTS.start} to {PORTS.stop - 1} none is free")


def samples_of(text):
    """(name, {label: value}) -> number of a Prometheus text; ValueError for a line that is not of that format."""
    samples = {}
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        match = SAMPLE.match(line)
        if not match:
            raise ValueError(f"not a Prometheus sample: {line!r}")
        labels = tuple(sorted(re.findall(r'([a-z_]+)="((?:[^"\\]|\\.)*)"', match.group(2) or "")))
        samples[match.group(1), labels] = float(match.group(3))
    return samples


class Standstill:
    """How long the machine itself stood still at most, as virtual machines do: what a process that only sleeps is late by."""
    LOOP = ("import sys, time, select\nworst = 0\nwhile not select.select([sys.stdin], [], [], 0)[0]:\n"
            "    before = time.monotonic(); time.sleep(0.05); worst = max(worst, time.monotonic() - before - 0.05)\nprint(worst)")

    def __enter__(self):
        self.process = subprocess.Popen([sys.executable, "-c", self.LOOP], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(self, *_):
        self.longest = float(self.process.communicate("\n")[0])


class ServiceTest(TerraceTest):
    coordinator_options = ()

    def start_coordinator(self):
        """The first takes any free port; one that is started again takes the same, as a service would."""
        if not hasattr(self, "address"):
            self.address, self.coordinator_metrics = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        port_file = self.folder / "port"
        port_file.unlink(missing_ok=True)
        coordinator = self.start("serve", "--listen", self.address, "--port-file", port_file, "--state-dir",
                                 self.folder / "coordinator", "--metrics-listen", self.coordinator_metrics,
                                 *self.coordinator_options,
                                 program="terrace-coordinator")
        self.wait_until(lambda: port_file.exists() or coordinator.process.poll() is not None, "the coordinator listens")
        self.assertIsNone(coordinator.process.poll(), str(coordinator.result()))
        return coordinator

    def start_worker(self, name, *options, devices=1, await_ready=True):
        worker = self.start("--coordinator", self.address, "--name", name, "--devices", devices, "--state-dir",
                            self.folder / name, "--metrics-listen", "127.0.0.1:0", "--threads-per-device", 1, *options,
                            program="terrace-worker")
        if await_ready:
            self.wait_until(lambda: self.node_states().get(name) == "ready", f"worker {name} is ready")
        return worker

    def start_service(self, workers=2):
        coordinator = self.start_coordinator()
        started = [self.start_worker(f"worker-{index}", await_ready=False) for index in range(workers)]
        self.wait_until(lambda: list(self.node_states().values()) == ["ready"] * workers, "all workers are ready")
        return coordinator, started

    def cli(self, *arguments, **options):
        return self.terrace("--coordinator", self.address, *arguments, **options)

    def nodes(self):
        return self.cli("nodes", "-o", "json").json()["nodes"]

    def node_states(self):
        return {node["name"]: node["state"] for node in self.nodes()}

    def submit(self, job):
        return self.cli("submit", job, "-o", "json").json()["id"]

    def status(self, job):
        return self.cli("status", job, "-o", "json").json()

    def assert_trains_while(self, job, asked):
        """Heartbeats of the only worker come and the job goes on until all of `asked`, which are futures, have their results."""
        worst, steps = 0.0, self.step_of(job)
        with Standstill() as standstill:
            while not all(one.done() for one in asked):
                node, = self.nodes()
                worst = max(worst, time.time() - int(node["last_heartbeat_unix_ms"]) / 1000)
                self.assertEqual(node["state"], "ready")
            for one in asked:
                one.result()
        self.assertLess(worst, 2.5 + standstill.longest, "heartbeats come once a second")
        self.assertGreater(self.step_of(job), steps)

    def step_of(self, job):
        return int(self.status(job)["progress"]["step"])

    def wait_for_state(self, job, *states):
        def reached():
            status = self.status(job)
            return status if status["state"] in states else None
        return self.wait_until(reached, f"{job} is {' or '.join(states)}")

    def wait_for_steps(self, job, steps):
        return self.wait_until(lambda: self.step_of(job) >= steps, f"{job} has done {steps} steps")

    def wait_for_samples(self, *expected):
        """The coordinator's page when it holds all of `expected`: ((name, labels), value). It is up to two seconds old."""
        def gathered():
            samples = samples_of(self.metrics(self.coordinator_metrics))
            return samples if all(samples.get(key) == value for key, value in expected) else None
        return self.wait_until(gathered, f"the coordinator's metrics show {expected}", seconds=20)

    def metrics(self, address):
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as response:
            return response.read().decode()

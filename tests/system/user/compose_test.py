#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""deploy/compose.yaml with Podman: from `up` to the first step, a scrape by Prometheus, a worker that is killed, the end of the demo,
and what the volumes still hold after `down` and `up`. Grafana is left out. The images are TERRACE_IMAGE (deploy/containers/build.sh)
and PROMETHEUS_IMAGE; the test is skipped where they are not."""
import json
import os
import re
import shutil
import subprocess
import sys
import time
import unittest

from support import ROOT

TERRACE = os.environ.get("TERRACE_IMAGE", "localhost/terrace")
PROMETHEUS = os.environ.get("PROMETHEUS_IMAGE", "localhost/prometheus")
PROJECT = "terracetest"
SERVICES = ("coordinator", "worker-1", "worker-2", "prometheus")
FIRST_STEP_SECONDS = 60
# Inside a container without control groups of its own; elsewhere empty.
RUN_OPTIONS = os.environ.get("TERRACE_PODMAN_RUN_ARGS", "--cgroups=disabled --ulimit nofile=1024:1024 --ulimit nproc=1024:1024")


def command(*arguments, check=True, seconds=120):
    environment = {**os.environ, "TERRACE_IMAGE": TERRACE, "PROMETHEUS_IMAGE": PROMETHEUS}
    result = subprocess.run(arguments, capture_output=True, text=True, timeout=seconds, cwd=ROOT / "deploy", env=environment)
    if check and result.returncode != 0:
        raise AssertionError(f"{arguments} ended with {result.returncode}: {result.stdout[-2000:]} {result.stderr[-2000:]}")
    return result.stdout


def compose(*arguments):
    return command("podman-compose", "-p", PROJECT, f"--podman-run-args={RUN_OPTIONS}", *arguments)


def terrace(*arguments, check=True):
    return command("podman", "exec", f"{PROJECT}_coordinator_1", "terrace", *arguments, check=check)


class ComposeTest(unittest.TestCase):
    def setUp(self):
        if not shutil.which("podman-compose") or any(
                subprocess.run(["podman", "image", "exists", image]).returncode for image in (TERRACE, PROMETHEUS)):
            self.skipTest(f"needs podman-compose and the images {TERRACE} and {PROMETHEUS}")
        self.addCleanup(compose, "down", "-v")

    def wait_until(self, holds, what, seconds=60):
        deadline = time.monotonic() + seconds
        while not (value := holds()):
            self.assertLess(time.monotonic(), deadline, f"after {seconds} s not true: {what}\n{command('podman', 'ps', '-a')}")
            time.sleep(0.2)
        return value

    def ready_workers(self):
        text = terrace("nodes", "-o", "json", check=False)
        return [node["name"] for node in json.loads(text).get("nodes", []) if node["state"] == "ready"] if text else []

    def status(self, job="demo-1"):
        text = terrace("status", job, "-o", "json", check=False)
        return json.loads(text) if text.startswith("{") else {}

    def step(self):
        return int(self.status().get("progress", {}).get("step", 0))

    def query(self, expression):
        """The lines of an instant query; promtool is in Prometheus' own image too."""
        text = command("podman", "exec", f"{PROJECT}_prometheus_1", "promtool", "query", "instant", "http://127.0.0.1:9090", expression,
                       check=False)
        return text.splitlines()

    def test_demo_in_containers(self):
        started = time.monotonic()
        compose("up", "-d", *SERVICES)
        self.wait_until(lambda: len(self.ready_workers()) == 2, "both workers are ready")
        terrace("submit", "/usr/lib/terrace/share/demo.yaml")
        self.wait_until(lambda: self.step() >= 1, "the first step is done")
        seconds = time.monotonic() - started
        print(f"compose up to first step: {seconds:.1f} s", flush=True)
        self.assertLess(seconds, FIRST_STEP_SECONDS)

        with self.subTest("the programs have no privileges"):
            status = command("podman", "exec", f"{PROJECT}_worker-1_1", "cat", "/proc/1/status")
            self.assertRegex(status, r"Uid:\s+10001\s+10001")
            self.assertRegex(status, r"CapEff:\s+0000000000000000")
            refused = subprocess.run(["podman", "exec", f"{PROJECT}_worker-1_1", "touch", "/usr/written"], capture_output=True, text=True)
            self.assertIn("Read-only file system", refused.stderr)
        with self.subTest("health"):
            for name in ("coordinator", "worker-1"):
                command("podman", "exec", f"{PROJECT}_{name}_1", "terrace-healthcheck")
        with self.subTest("scrape"):
            self.wait_until(lambda: len(self.query("up == 1")) == 3, "Prometheus scrapes all three")
            self.wait_until(lambda: len(self.query("terrace_loss")) == 2, "the loss of both ranks is there")

        self.wait_until(lambda: self.step() >= 210, "a checkpoint is written", seconds=180)
        with self.subTest("drain"):
            command("podman", "exec", f"{PROJECT}_worker-1_1", "terrace-drain", check=False)
            # Beside those of every 200 steps there is one of the step that the ranks were in.
            saved = terrace("ckpt", "ls", "/data/demo")
            self.assertTrue([step for step in re.findall(r"step-0*(\d+)", saved) if int(step) % 200 != 0], saved)
        # compose.yaml says `restart`, which Podman leaves to the user for a container that the user ended.
        command("podman", "start", f"{PROJECT}_worker-1_1", check=False)
        self.wait_until(lambda: self.step() >= 450, "it goes on", seconds=180)
        command("podman", "kill", "--signal=KILL", f"{PROJECT}_worker-2_1")
        command("podman", "start", f"{PROJECT}_worker-2_1", check=False)
        end = self.wait_until(lambda: (status := self.status()).get("state") in ("SUCCEEDED", "FAILED") and status, "it ends", seconds=300)
        self.assertEqual((end["state"], int(end["progress"]["step"])), ("SUCCEEDED", 1000), end)
        self.assertGreaterEqual(int(end["restarts"]), 2)

        compose("down")
        compose("up", "-d", *SERVICES)
        self.wait_until(lambda: self.status().get("state") == "SUCCEEDED", "the coordinator's volume holds the job")
        self.assertIn("step-00001000", terrace("ckpt", "ls", "/data/demo"))


if __name__ == "__main__":
    if "TERRACE_IN_NAMESPACE" not in os.environ and os.getuid() == 0:
        # One mount namespace for all commands: Podman's networks are mounts. A version 2 hierarchy beside version 1 confuses crun.
        os.environ["TERRACE_IN_NAMESPACE"] = "1"
        os.execvp("unshare", ["unshare", "-m", "sh", "-c", 'umount /sys/fs/cgroup/unified 2>/dev/null; exec "$@"', "_",
                              sys.executable, "-B", *sys.argv])
    unittest.main(verbosity=2)

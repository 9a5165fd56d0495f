#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Alerts fire when what they warn of happens: a live run beside a real Prometheus and Alertmanager, with the rules of deploy/prometheus
shortened to seconds.

Two are not made to happen here, and are left to `promtool test rules`: fragmentation with retries (no job of this size makes a caching
allocator retry), little space on a drive (a test may not fill one).
"""
import os
import pathlib
import re
import signal
import subprocess
import threading
import time
import unittest

from monitoring import DEPLOY, ALERTMANAGER, MonitoredTest, PROMETHEUS
from support import BIN, GPT

MIB = 1 << 20
ENDLESS = {"train.steps": 1_000_000, "checkpoint.keep": 1}
WIDE = {**GPT, "n_embd": 256, "n_head": 8}
# What one rank does, two do together in half the work: the ranks of a job of two.
TWO = {"resources.devices_per_node": 2, "layout.dp": 2}
ONE = {"resources.devices_per_node": 1}
# Times that are numbers in an expression; each stands there once.
SECONDS = {"> 3600": "> 3", "120 + 10 *": "3 + 10 *", "600 + 3 *": "3 + 3 *"}


def in_seconds(alerts):
    for real, short in SECONDS.items():
        assert alerts.count(real) == 1, real
        alerts = alerts.replace(real, short)
    return alerts


@unittest.skipUnless(PROMETHEUS and ALERTMANAGER, "Prometheus and Alertmanager (Debian packages) are not installed")
class AlertsTest(MonitoredTest):
    def watched_service(self, *workers):
        """Workers with so many devices each; all of it scraped."""
        self.start_coordinator()
        self.workers = [self.start_worker(f"worker-{index}", devices=devices) for index, devices in enumerate(workers)]
        self.start_monitoring(in_seconds)

    def quiet(self, seconds=4):
        """Nothing fires of itself (but that a tiny job is off its plan)."""
        time.sleep(seconds)
        self.assertLessEqual(self.firing(), {"TerracePredictionDrift"})

    def launch(self, changes):
        job = self.submit(self.job({**ENDLESS, **changes}))
        self.wait_for_steps(job, 2)
        return job

    def end_all(self):
        for status in self.cli("ls", "-o", "json").json()["jobs"]:
            self.cli("cancel", "--force", status["id"], code=None)

    def test_silent_workers_jobs_that_wait_and_ranks_that_die(self):
        self.watched_service(1)
        job = self.launch({**ONE, "checkpoint.every_steps": 900_000, "max_restarts": 50})
        for _ in range(2):
            before = int(self.status(job).get("restarts", 0))
            os.kill(self.wait_until(self.rank_pids, "a rank runs")[0], signal.SIGKILL)
            self.wait_until(lambda: int(self.status(job).get("restarts", 0)) > before, "it restarts")
            self.wait_for_state(job, "RUNNING")
        self.wait_for_alert("TerraceRankExited")
        self.wait_for_alert("TerraceRestartLoop")
        self.assertRegex(self.cli("status", job).out, r"restarted .*; noticed after \S+ m?s, training again after ")
        self.submit(self.job({**ENDLESS, **ONE}))  # there is no device for it
        self.wait_for_alert("TerracePendingTooLong")
        self.workers[0].signal(signal.SIGKILL)
        for name in ("TerraceTargetDown", "TerraceWorkerAway", "TerraceGoodputLow"):
            with self.subTest(name):
                self.wait_for_alert(name)
        self.start_worker("worker-0")
        self.end_all()

    def test_a_rank_that_stands_still_and_one_that_others_wait_for(self):
        self.watched_service(2)
        job = self.launch({**TWO, "checkpoint.every_steps": 900_000, "model.config": WIDE})
        self.quiet()
        slow, stop = self.pids_by_rank()[1], threading.Event()

        def hold_up():  # most of the time, inside its computation as a rule
            while not stop.is_set():
                os.kill(slow, signal.SIGSTOP)
                time.sleep(0.05)
                os.kill(slow, signal.SIGCONT)
                time.sleep(0.02)
        holder = threading.Thread(target=hold_up)
        holder.start()
        try:
            self.wait_for_alert("TerraceStraggler")
            told, = self.wait_until(lambda: self.status(job)["slow_ranks"], "status tells who is slow")
            self.assertEqual((told["rank"], self.status(job)["state"]), (1, "RUNNING"), told)
            self.assertGreater(told["computing_ratio"], 1.25 * told["peers_computing_ratio"])
            self.assertRegex(self.cli("status", job).out, r"slow +rank 1 on worker-0 for ")
        finally:
            stop.set()
            holder.join()
        os.kill(slow, signal.SIGSTOP)
        try:
            self.wait_for_alert("TerraceRankStalled")
            self.wait_for_alert("TerraceRankHangs")
        finally:
            os.kill(slow, signal.SIGCONT)
        self.wait_until(lambda: "TerraceRankStalled" not in self.firing() or self.step_of(job), "it goes on")
        self.end_all()

    def test_a_checkpoint_that_does_not_come(self):
        self.watched_service(1)
        self.launch({**ONE, "checkpoint.every_steps": 20})
        self.quiet()
        os.kill(self.rank_pids()[0], signal.SIGSTOP)
        self.wait_for_alert("TerraceCheckpointStale")
        os.kill(self.rank_pids()[0], signal.SIGCONT)
        self.end_all()

    def test_a_machine_that_something_else_uses(self):
        self.watched_service(1)
        self.launch({**ONE, "model.config": WIDE, "data.sequence_length": 64})
        burners = [subprocess.Popen(["python3", "-c", "while True: pass"]) for _ in range(3 * os.cpu_count())]
        try:
            self.wait_for_alert("TerracePredictionDrift")
        finally:
            for burner in burners:
                burner.kill()
                burner.wait()
        self.end_all()

    def test_offload_that_waits_and_wears_the_drive_and_memory_that_is_locked(self):
        nvme = self.folder / "nvme"
        nvme.mkdir()
        self.watched_service(1)
        # Much to move and little to compute: one short sequence a step.
        self.launch({**ONE, "model.config": {**WIDE, "n_embd": 512}, "resources.nvme": str(nvme), "train.global_batch": 1,
                     "data.sequence_length": 8, "layout.offload": {"optimizer": "nvme", "gradient": "nvme", "parameter": "nvme"}})
        for name in ("TerraceOffloadStall", "TerraceNvmeWear"):
            with self.subTest(name):
                self.wait_for_alert(name)
        self.end_all()

    @unittest.skipUnless(os.geteuid() == 0, "only root can take a capability from a program that it starts")
    def test_memory_that_is_locked_up_to_the_limit(self):
        self.start_coordinator()
        worker = self.run_command(["setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock", BIN / "terrace-worker", "--coordinator", self.address, "--name", "worker-0", "--state-dir",
                                   self.folder / "worker-0", "--metrics-listen", "127.0.0.1:0", "--threads-per-device", "1"])
        self.wait_until(lambda: self.node_states().get("worker-0") == "ready", "the worker is ready")
        self.start_monitoring(in_seconds)
        job = self.launch({**ONE, "model.config": {**GPT, "n_embd": 64}, "layout.offload": {"optimizer": "host"}})
        locked = self.wait_until(lambda: [value for _, value in self.query(f'terrace_memory_host_pinned_bytes{{job="{job}"}} > 0')], "memory is locked")[0]
        self.quiet()
        subprocess.run(["prlimit", "--pid", str(worker.pid), f"--memlock={int(locked * 1.05)}"], check=True, timeout=10)
        self.wait_for_alert("TerraceHostPinnedNearLimit")
        self.end_all()

    def test_memory_that_grows_until_it_runs_out(self):
        grow = self.folder / "grow"
        self.environment.update(LD_PRELOAD=str(BIN.parent / "tests/libgrow_memory.so"), GROW_MEMORY=str(grow), GROW_MEMORY_IN="terrace-rank")
        self.start_coordinator()
        self.start_worker("worker-0")
        del self.environment["LD_PRELOAD"]
        spec = self.job({**ENDLESS, **ONE, "model.config": {**GPT, "n_positions": 256, "n_layer": 12}, "data.sequence_length": 256})
        plan = self.terrace("plan", spec, "-o", "json").json()
        plan = plan.get("plan", plan)
        limit = int(plan["memory"][0]["arena_bytes"]) + 100 * MIB
        self.start_monitoring(in_seconds)
        job = self.launch({**ONE, "model.config": {**GPT, "n_positions": 256, "n_layer": 12}, "data.sequence_length": 256,
                            "resources.device_memory": limit})
        self.quiet(8)
        held, allowed = (self.query(f'terrace_memory_external_{name}{{job="{job}"}}')[0][1] for name in ("bytes", "allowed_bytes"))
        grow.write_text(str(int((0.95 * allowed - held) / MIB)))
        for name in ("TerraceLeakSuspected", "TerraceHeadroomLow"):
            with self.subTest(name):
                self.wait_for_alert(name)
        (self.folder / "grow.once").write_text("40")
        self.wait_for_alert("TerraceOutOfMemory")
        self.assertTrue(self.status(job))
        self.end_all()

    def test_every_alert_fires_here_or_is_named_as_left_out(self):
        text = pathlib.Path(__file__).read_text()
        left_out = {"TerraceFragmentation", "TerraceNvmeSpaceLow"}
        fired = set(re.findall(r'"(Terrace\w+)"', text)) - left_out
        self.assertEqual(fired | left_out, set(re.findall(r"- alert: (\w+)", (DEPLOY / "alerts.yml").read_text())))


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Workers taken out of use: their jobs move after a checkpoint and lose no step, others run on, the state outlives a coordinator."""
import json
import signal
import subprocess
import unittest
import urllib.request

from service import ServiceTest, free_port
from support import BIN, INVALID_INPUT, NOT_FOUND, OK, ROOT

ENDLESS = {"train.steps": 100_000}


class DrainTest(ServiceTest):
    def worker_of(self, job):
        ranks = self.status(job).get("placement", {}).get("ranks", [])
        return ranks[0]["worker"] if ranks else None

    def test_a_job_moves_and_goes_on_where_it_was(self):
        self.web = f"127.0.0.1:{free_port()}"
        self.coordinator_options = ("--web-listen", self.web)
        coordinator, _ = self.start_service(1)
        job = self.submit(self.job(ENDLESS))
        self.wait_for_steps(job, 20)
        self.start_worker("worker-1")
        drained = self.cli("drain", "worker-0", "--reason", "new disk", "--deadline", "2m")
        self.assertIn(f"no job is placed on worker-0 any more; those there move after a checkpoint, after 2m without one: {job}", drained.out)
        self.assertIn("worker-0 is drained: no job is there", drained.out)
        moved = self.wait_for_state(job, "RUNNING")
        self.assertEqual(self.worker_of(job), "worker-1")
        [restart] = moved["last_restarts"]
        self.assertEqual(restart["message"], "worker worker-0 is drained (new disk)")
        self.assertGreaterEqual(int(restart["step"]), 20)
        self.assertEqual(moved["restarts_without_progress"], 0)
        before = int(restart["step"])
        self.wait_for_steps(job, before + 5)
        steps = [event["step"] for event in self.watched_steps(job, before + 5)]
        self.assertEqual(steps, list(range(1, len(steps) + 1)), "no step is lost, and none is done twice")

        with self.subTest("it is shown"):
            self.assertEqual(self.node_states(), {"worker-0": "drained", "worker-1": "ready"})
            table = self.cli("nodes").out
            self.assertIn("worker-0: drained (new disk): no job is placed here until `terrace drain worker-0 --disable`", table)
            self.assertRegex(self.cli("drain").out, r"NODE +STATE +JOBS +SINCE.*\nworker-0 +drained +- .*new disk")
            self.wait_for_samples((("terrace_workers", (("state", "drained"),)), 1),
                                  (("terrace_job_restarts_total", (("cause", "drained"),)), 1))
            with urllib.request.urlopen(f"http://{self.web}/api/v1/nodes", timeout=10) as response:
                [node] = [node for node in json.load(response)["nodes"] if node["name"] == "worker-0"]
            self.assertEqual(node["state"], "drained")
            self.assertIn("new disk", node["problem"])
            self.assertIn("worker worker-0 is drained (new disk)", self.cli("status", job).out)
        with self.subTest("it outlives the coordinator"):
            coordinator.process.send_signal(signal.SIGKILL)
            coordinator.wait()
            self.start_coordinator()
            self.wait_until(lambda: self.node_states() == {"worker-0": "drained", "worker-1": "ready"}, "both workers are back")
            [node] = self.cli("drain", "-o", "json").json()["nodes"]
            self.assertEqual((node["drain"]["node"], node["drain"]["reason"], node["state"]), ("worker-0", "new disk", "drained"))
        with self.subTest("it is taken back"):
            self.assertEqual(self.cli("drain", "worker-0", "--disable").out, "worker-0 is back in use\n")
            self.assertEqual(self.node_states()["worker-0"], "ready")
            self.assertEqual(self.cli("drain").out, "no worker is drained\n")
        self.cli("cancel", job, "--force")

    def watched_steps(self, job, until):
        watcher = self.start("--coordinator", self.address, "watch", job, "-o", "json")
        watcher.wait_for(lambda event: event["event"] == "step" and event["step"] >= until)
        watcher.process.kill()
        return watcher.wait().events("step")

    def test_kept_jobs_stay_forced_ones_leave_and_wrong_words_are_refused(self):
        self.start_service(1)
        job = self.submit(self.job(ENDLESS))
        self.wait_for_steps(job, 3)
        kept = self.cli("drain", "worker-0", "--keep-jobs", "--no-deadline", "--detach", "-o", "json").json()
        self.assertEqual((kept["state"], kept["jobs"]), ("draining", [job]))
        self.wait_for_steps(job, self.step_of(job) + 5)
        self.assertEqual(self.node_states(), {"worker-0": "draining"})
        forced = self.cli("drain", "worker-0", "--force", "-o", "json").json()
        self.assertEqual((forced["state"], forced["jobs"]), ("drained", []))
        waiting = self.wait_for_state(job, "RECOVERING")
        self.assertIn("worker worker-0 is drained", waiting["message"])
        for words, code, told in (
                (("worker-9",), NOT_FOUND, "no worker worker-9: `terrace nodes` lists"),
                (("worker-0", "--deadline", "soon"), INVALID_INPUT, 'got "soon", which must be a time such as'),
                (("worker-0", "--deadline", "-3s"), INVALID_INPUT, "which must be a time"),
                (("worker-0", "--reason", "x" * 201), INVALID_INPUT, "got 201 bytes, the most are 200"),
                (("worker-0", "--disable", "--force"), 2, "excludes"),
                (("worker-1", "--disable"), NOT_FOUND, "worker-1 is not drained")):
            with self.subTest(words):
                self.assertIn(told, self.cli("drain", *words, code=code).err)
        self.cli("cancel", job, "--force")

    def test_the_script_before_a_container_ends_drains_its_worker_until_the_next(self):
        self.start_coordinator()
        worker = self.start_worker("worker-0")
        job = self.submit(self.job(ENDLESS))
        self.wait_for_steps(job, 3)
        self.start_worker("worker-1")
        script = ROOT / "deploy/containers/drain"
        ended = subprocess.run([script, "60", str(worker.pid)], env={"PATH": f"{BIN}:/usr/bin:/bin"}, capture_output=True, text=True, timeout=90)
        self.assertEqual(ended.returncode, OK, ended.stderr)
        self.assertEqual(worker.wait().code, OK, "the worker has ended")
        self.wait_for_state(job, "RUNNING")
        self.assertEqual(self.worker_of(job), "worker-1")
        self.assertIn("its container ends", self.cli("drain").out)
        self.start_worker("worker-0")  # ready, not drained
        self.cli("cancel", job, "--force")


if __name__ == "__main__":
    unittest.main(verbosity=2)

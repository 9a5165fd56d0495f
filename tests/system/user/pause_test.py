#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Jobs that are paused and resumed: they stop after a checkpoint, free their devices, outlive coordinator and workers, and end with the
losses of a job that was never paused."""
import json
import re
import signal
import time
import unittest

from service import ServiceTest, samples_of
from support import CANCELLED, INVALID_INPUT, NOT_FOUND, OK

ENDLESS = {"train.steps": 1_000_000}
STEPS = 1200
# One layout on every machine.
PINNED = {"train.steps": STEPS, "resources.nodes": 2, "layout.dp": 2, "layout.micro_batch": 4, "train.eval_every_steps": 400}
# More than a worker may be silent (3 s), and than a coordinator that has started again waits for its workers (10 s).
LONGER_THAN_ANY_LIMIT_SECONDS = 12


class PauseTest(ServiceTest):
    def watched(self, job, code=OK):
        return self.cli("watch", job, "-o", "json", code=code)

    def restart(self, coordinator):
        coordinator.process.send_signal(signal.SIGKILL)
        coordinator.wait()
        coordinator = self.start_coordinator()
        self.wait_until(lambda: set(self.node_states().values()) == {"ready"}, "the workers are back")
        return coordinator

    def spent(self, job):
        samples = samples_of(self.metrics(self.coordinator_metrics))
        causes = {dict(labels)["cause"]: value for (name, labels), value in samples.items()
                  if name == "terrace_job_spent_seconds_total" and dict(labels)["job"] == job}
        return causes, samples["terrace_job_wall_seconds_total", (("job", job),)]

    def test_a_paused_job_frees_its_devices_and_goes_on_to_the_bit(self):
        coordinator, _ = self.start_service(2)
        never_paused = self.submit(self.job(PINNED))
        whole = self.watched(never_paused)
        self.assertEqual(len(whole.losses), STEPS)

        path = self.job(PINNED)
        job = self.submit(path)
        watcher = self.start("--coordinator", self.address, "watch", job, "-o", "json")
        watcher.wait_for_step(50)
        paused = self.cli("pause", job, "--wait")
        self.assertEqual(paused.out, f"{job} is paused; let it go on with: terrace resume {job}\n")
        at = self.step_of(job)
        self.assertLess(at, STEPS, "it was paused before its end")
        self.assertEqual(self.checkpoints(path)[-1].name.lstrip("step-0"), str(at).lstrip("0"))

        with self.subTest("it is shown"):
            self.assertRegex(self.cli("ls").out, rf"{job} +PAUSED +PAUSED_BY_USER")
            status = self.cli("status", job).out
            self.assertIn(f"goes on from the checkpoint of step {at} when it is resumed: terrace resume {job}", status)
            self.assertRegex(status, r"paused +[\d.]+ (m?s) ago")
            watcher.wait_for(lambda event: event["event"] == "state" and event["state"] == "PAUSED")
        with self.subTest("nothing of it runs, and others run in its place"):
            self.wait_until(lambda: not self.rank_pids(), "its ranks have ended", seconds=5)
            other = self.submit(self.job({"train.steps": 20, "resources.nodes": 2}))
            self.cli("watch", other, code=OK)
        with self.subTest("it outlives the coordinator, longer than any limit"):
            coordinator = self.restart(coordinator)
            time.sleep(LONGER_THAN_ANY_LIMIT_SECONDS)
            status = self.status(job)
            self.assertEqual((status["state"], int(status["progress"]["step"]), status["restarts"], int(status["epoch"])),
                             ("PAUSED", at, 0, 1))
            self.assertEqual(self.rank_pids(), [])
            causes, wall = self.spent(job)
            self.assertGreater(causes["paused"], LONGER_THAN_ANY_LIMIT_SECONDS)
            self.assertEqual(causes["recovering"], 0)
            self.assertAlmostEqual(sum(causes.values()), wall, delta=0.01)
            self.wait_for_samples((("terrace_jobs", (("state", "paused"),)), 1))
        with self.subTest("paused again, nothing changes"):
            version = self.status(job)["version"]
            self.assertEqual(self.cli("pause", job, "-o", "json").json()["version"], version)
        resumed = self.cli("resume", job)
        self.assertRegex(resumed.out, rf"^{job} is resumed and (QUEUED|STARTING); watch it with: terrace watch {job}\n$")
        watched = watcher.wait()
        self.assertEqual(watched.code, OK, str(watched))
        self.assertEqual(watched.losses, whole.losses, "to the bit")
        self.assertEqual([event["step"] for event in watched.events("step")], list(range(1, STEPS + 1)), "each step once")
        self.assertEqual([(event["step"], event["loss"]) for event in watched.events("eval")],
                         [(event["step"], event["loss"]) for event in whole.events("eval")])
        ended = self.status(job)
        self.assertEqual((ended["restarts"], ended["epoch"]), (0, "2"))
        with self.subTest("an ended job"):
            for command in ("pause", "resume"):
                self.refused(self.cli(command, job, code=INVALID_INPUT), f"job {job} is SUCCEEDED: it has ended already")

    def test_a_held_job_lets_others_go_first(self):
        self.start_service(1)
        busy = self.submit(self.job(ENDLESS))
        self.wait_for_state(busy, "RUNNING")
        held, behind = self.submit(self.job({"train.steps": 10})), self.submit(self.job({"train.steps": 10}))
        self.assertEqual(self.cli("pause", held).out, f"{held} is paused; let it go on with: terrace resume {held}\n")
        self.assertIn("takes its place in the queue when it is resumed", self.status(held)["message"])
        self.cli("cancel", busy)
        self.cli("watch", behind, code=OK)
        self.assertEqual((self.status(held)["state"], self.status(held)["epoch"]), ("PAUSED", "0"))
        resumed = self.cli("resume", held, "-o", "json").json()
        self.assertIn(resumed["state"], ("QUEUED", "STARTING"))
        self.assertGreater(int(resumed["resumed_unix_ms"]), int(resumed["submitted_unix_ms"]))
        self.cli("watch", held, code=OK)

    def test_jobs_that_are_submitted_held_and_changed_several_at_a_time(self):
        self.start_service(1)
        held = self.cli("submit", self.job({"train.steps": 10}), "--hold")
        first = re.search(r"^submitted (\S+)$", held.out, re.M).group(1)
        self.assertIn(f"PAUSED: takes its place in the queue when it is resumed: terrace resume {first}\n", held.out)
        second = self.cli("submit", self.job({"train.steps": 10}), "--hold", "-o", "json").json()["id"]
        free = self.submit(self.job({"train.steps": 10}))
        self.cli("watch", free, code=OK)
        for job in (first, second):
            status = self.status(job)
            self.assertEqual((status["state"], status["epoch"]), ("PAUSED", "0"), "a free worker does not move it")
        with self.subTest("one of them is unknown: the others are resumed, and the exit code tells it"):
            resumed = self.cli("resume", first, "absent-9", second, first, code=NOT_FOUND)
            lines = resumed.out.splitlines()
            self.assertEqual([line.split()[0] for line in lines], [first, second], "each once")
            self.assertIn("no job absent-9", resumed.err)
        for job in (first, second):
            self.cli("watch", job, code=OK)
        with self.subTest("refused by the spec, it is not held either"):
            before = self.cli("ls", "--all", "-o", "json").json()
            self.refused(self.cli("submit", self.job({"train.steps": 0}), "--hold", code=INVALID_INPUT), "train.steps")
            self.assertEqual(self.cli("ls", "--all", "-o", "json").json(), before)

        running, waiting, last = (self.submit(self.job(ENDLESS)) for _ in range(3))
        self.wait_for_steps(running, 10)
        paused = self.cli("pause", "--wait", waiting, running)
        self.assertEqual(sorted(line.split(" is paused")[0] for line in paused.out.splitlines()), sorted([running, waiting]))
        self.wait_for_steps(last, 10)
        cancelled = self.cli("cancel", running, waiting, last, "-o", "json").out
        decoder, states, at = json.JSONDecoder(), {}, 0
        while at < len(cancelled.rstrip()):
            job, at = decoder.raw_decode(cancelled, at + len(cancelled[at:]) - len(cancelled[at:].lstrip()))
            states[job["id"]] = job["state"]
        self.assertEqual(states, {running: "CANCELLED", waiting: "CANCELLED", last: "RUNNING"})
        self.cli("watch", last, code=CANCELLED)
        again = self.cli("cancel", running, last, code=INVALID_INPUT)
        self.assertEqual(again.err.count("it has ended already"), 2)

    def test_a_pause_that_is_forced_repeats_steps_and_ends_alike(self):
        self.start_service(1)
        steps = {"train.steps": 3000, "layout.micro_batch": 4, "checkpoint.every_steps": 500}
        whole = self.watched(self.submit(self.job(steps)))
        job = self.submit(self.job(steps))
        self.wait_for_steps(job, 600)
        forced = self.cli("pause", job, "--force", "-o", "json").json()
        self.assertEqual(forced["state"], "PAUSED")
        self.assertRegex(forced["message"], "goes on from the checkpoint of step [1-9][05]*00 when it is resumed")
        self.wait_until(lambda: not self.rank_pids(), "no rank is left", seconds=5)
        self.cli("resume", job)
        watched = self.watched(job)
        self.assertEqual(watched.losses, whole.losses)
        self.assertGreater(len(watched.events("step")), 3000, "some steps were done twice")
        spent = {part["cause"]: part["seconds"] for part in self.status(job)["spent"]}
        self.assertGreater(spent["repeated"], 0)

    def test_workers_that_are_lost_and_jobs_that_are_cancelled_meanwhile(self):
        _, [first] = self.start_service(1)
        job = self.submit(self.job(ENDLESS))
        self.wait_for_steps(job, 10)
        self.cli("pause", job, "--wait")
        first.process.send_signal(signal.SIGKILL)
        self.start_worker("worker-1")
        self.wait_until(lambda: self.node_states().get("worker-0") == "lost", "the worker is lost")
        self.assertEqual(self.status(job)["state"], "PAUSED")
        at = self.step_of(job)
        self.cli("resume", job)
        self.wait_for_steps(job, at + 10)
        status = self.status(job)
        self.assertEqual((status["placement"]["ranks"][0]["worker"], status["restarts"]), ("worker-1", 0))
        with self.subTest("resumed before it has stopped"):
            self.cli("pause", job)
            self.cli("resume", job)
            self.wait_until(lambda: int(self.status(job)["epoch"]) == 3, "it goes on anew")
            self.assertEqual(self.status(job)["restarts"], 0)
            self.wait_for_state(job, "RUNNING")
            self.assertIn("was not paused: it is RUNNING", self.cli("resume", job).out)
        self.cli("pause", job, "--wait")
        self.cli("cancel", job)
        self.assertEqual(self.status(job)["state"], "CANCELLED", "at once: there is nothing to wait for")
        self.cli("watch", job, code=CANCELLED)

    def test_a_job_that_saves_nothing_is_not_paused_by_mistake(self):
        self.start_service(1)
        job = self.submit(self.job({**ENDLESS, "checkpoint.save": "never"}))
        self.wait_for_steps(job, 10)
        self.refused(self.cli("pause", job, code=INVALID_INPUT), "saves no checkpoints", "would lose its", "--force")
        self.wait_for_steps(job, self.step_of(job) + 10)
        self.cli("pause", job, "--force")
        self.assertIn("goes on from the beginning", self.status(job)["message"])
        self.cli("cancel", job)


if __name__ == "__main__":
    unittest.main(verbosity=2)

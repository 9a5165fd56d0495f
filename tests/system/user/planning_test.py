#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plans that take long, or kill whoever makes them, hold up nobody else: not the coordinator, not small jobs, not its end."""
import os
import pathlib
import signal
import time
import unittest

from memory_group import memory_group
from service import ServiceTest
from support import BIN, FAILURE, GPT, processes

HUGE = {**GPT, "n_layer": 4000}  # seconds, and a gigabyte


def resident_bytes(pid):
    pages = pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


class PlanningTest(ServiceTest):
    group = None  # memory control group of the coordinator

    def planners(self):
        """pid -> resident bytes."""
        found = {}
        for pid, command in processes(self.mark).items():
            if command.endswith("coordinator planner"):
                try:
                    found[pid] = resident_bytes(pid)
                except OSError:
                    continue
        return found

    def plan(self, job):
        return self.start("--coordinator", self.address, "plan", job)

    def wait_until_it_plans(self, count=1):
        self.wait_until(lambda: sum(size > 100e6 for size in self.planners().values()) >= count, "a large plan is being made")

    def test_small_jobs_pass_large_ones(self):
        coordinator, _ = self.start_service(workers=1)
        large = [self.plan(self.job({"model.config": HUGE, "train.seed": seed})) for seed in range(5)]  # more than are made at a time
        self.wait_until_it_plans(2)
        tiny = self.job({"train.steps": 5})
        begin = time.monotonic()
        job = self.submit(tiny)
        waited = time.monotonic() - begin
        print(f"a tiny submit behind {len(large)} plans of 4,000 layers waited {waited:.2f} s")
        self.assertLess(waited, 6)
        self.assertIsNone(large[-1].process.poll(), "they are still being made")
        self.assertEqual(self.wait_for_state(job, "SUCCEEDED", "FAILED")["state"], "SUCCEEDED")
        for one in large:
            one.end()
        self.wait_until(lambda: all(size < 100e6 for size in self.planners().values()), "what nobody waits for is ended")
        self.assertLess(resident_bytes(coordinator.pid), 300e6, "memory of plans is not the coordinator's")

    def test_sigterm_ends_the_coordinator_at_once_and_touches_no_job(self):
        coordinator, _ = self.start_service(workers=2)
        job = self.submit(self.job({"train.steps": 1_000_000, "resources.nodes": 2, "layout.dp": 2}))
        self.wait_for_steps(job, 5)
        ranks = self.rank_pids()
        large = [self.plan(self.job({"model.config": HUGE, "train.seed": seed})) for seed in range(3)]
        self.wait_until_it_plans(2)
        begin = time.monotonic()
        coordinator.signal(signal.SIGTERM)
        coordinator.wait(10)
        took = time.monotonic() - begin
        print(f"SIGTERM during {len(large)} plans of 4,000 layers took {took:.2f} s")
        self.assertLess(took, 2)
        self.assertEqual(self.planners(), {})
        for one in large:
            self.refused(one.wait(), "stopping")
        self.start_coordinator()
        self.wait_until(lambda: list(self.node_states().values()) == ["ready"] * 2, "the workers are back")
        self.wait_for_steps(job, self.step_of(job) + 5)
        status = self.status(job)
        self.assertEqual((status["state"], status.get("restarts", 0), int(status["epoch"])), ("RUNNING", 0, 1), status)
        self.assertEqual(self.rank_pids(), ranks)
        self.cli("cancel", job, "--force")

    def test_a_planner_that_is_killed_is_an_error_of_its_job_only(self):
        self.start_service(workers=1)
        large = self.plan(self.job({"model.config": HUGE}))
        self.wait_until_it_plans()
        for pid in self.planners():
            os.kill(pid, signal.SIGKILL)
        self.refused(large.wait(), "the planner process was killed by signal 9")
        self.assertEqual(large.result().code, FAILURE)
        job = self.submit(self.job({"train.steps": 5}))
        self.assertEqual(self.wait_for_state(job, "SUCCEEDED", "FAILED")["state"], "SUCCEEDED")

    def start(self, *arguments, program="terrace"):
        if program != "terrace-coordinator" or self.group is None:
            return super().start(*arguments, program=program)
        return self.run_command(["sh", "-c", 'echo $$ >"$0" && exec "$@"', self.group / "cgroup.procs", BIN / program, *arguments])

    def test_a_control_groups_limit_counts_for_a_plan_and_not_the_machines_memory(self):
        self.group, limit = memory_group(self)
        limit.write_text(str(1200 << 20))
        coordinator, _ = self.start_service(workers=1)
        self.refused(self.plan(self.job({"model.config": HUGE})).wait(), "more than 300 MiB", "--plan-memory", "layout")
        self.assertIsNone(coordinator.process.poll(), "the OOM killer has not been there")
        coordinator.end()

    def test_time_and_memory_of_a_plan_are_limited(self):
        self.coordinator_options = ["--plan-memory", "300MiB"]
        coordinator, _ = self.start_service(workers=1)
        self.refused(self.plan(self.job({"model.config": HUGE})).wait(), "more than 300 MiB", "--plan-memory", "layout")
        self.assertEqual(self.submit(self.job({"train.steps": 5}))[:4], "tiny")
        coordinator.end()
        self.coordinator_options = ["--plan-seconds", "1"]
        self.start_coordinator()
        self.wait_until(lambda: list(self.node_states().values()) == ["ready"], "the worker is back")
        self.refused(self.plan(self.job({"model.config": HUGE})).wait(), "longer than 1s", "--plan-seconds", "layout")


if __name__ == "__main__":
    unittest.main(verbosity=2)

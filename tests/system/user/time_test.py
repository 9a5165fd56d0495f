#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long the first step takes to come, and what a coordinator costs that has nothing to do.

The targets hold on two free cores; the limits asserted here leave room for machines that are shared. What was measured is
printed.
"""
import os
import pathlib
import time
import unittest

from service import ServiceTest
from support import processes

FIRST_STEP_TARGET, FIRST_STEP_LIMIT = 2.0, 6.0  # seconds
IDLE_SECONDS, IDLE_CPU_LIMIT, IDLE_RSS_LIMIT = 10, 0.01, 60 * 10**6


class TimeTest(ServiceTest):
    def test_first_step_comes_soon(self):
        job = self.job({"model.config": "gpt-bytes-10m", "data.sequence_length": 256, "train.global_batch": 8,
                        "train.precision": "bf16", "train.steps": 1000, "resources.threads_per_device": None})
        running = self.start("run", job, "-o", "json")
        times = {}
        for name, wanted in (("plan", lambda event: event["event"] == "plan"),
                             ("ranks start", lambda event: event.get("state") == "STARTING"),
                             ("go", lambda event: event.get("state") == "RUNNING"),
                             ("first step", lambda event: event["event"] == "step")):
            event = running.wait_for(wanted)
            times[name] = time.monotonic() - running.started
        print(f"\n  {', '.join(f'{name} {seconds:.2f} s' for name, seconds in times.items())} "
              f"(the step itself {event['step_seconds']:.2f} s); target {FIRST_STEP_TARGET} s")
        self.assertLess(times["first step"], FIRST_STEP_LIMIT)

    def test_idle_coordinator_costs_next_to_nothing(self):
        coordinator, _ = self.start_service(2)
        time.sleep(1)
        before, started = self.cpu_seconds(coordinator.pid), time.monotonic()
        time.sleep(IDLE_SECONDS)
        share = (self.cpu_seconds(coordinator.pid) - before) / (time.monotonic() - started)
        resident = int(pathlib.Path(f"/proc/{coordinator.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
        print(f"\n  idle coordinator with two workers: {share:.2%} of a core, {resident / 1e6:.1f} MB")
        self.assertLess(share, IDLE_CPU_LIMIT)
        self.assertLess(resident, IDLE_RSS_LIMIT)
        # A worker whose profile was taken on a busy machine measures it once more when it is idle; nothing else stays.
        self.wait_until(lambda: len(processes(self.mark)) == 3, "the coordinator and two workers are all that runs", 60)

    def cpu_seconds(self, pid):
        """From the scheduler's own count in nanoseconds: ticks of 10 ms are too coarse for one percent."""
        threads = pathlib.Path(f"/proc/{pid}/task").glob("*/schedstat")
        return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9


if __name__ == "__main__":
    unittest.main(verbosity=2)

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every query of every panel, asked of a real Prometheus beside a live run, has an answer."""
import math
import os
import signal
import unittest

from dashboards import queries
from monitoring import MonitoredTest, PROMETHEUS
from support import GPT

# Queries that this run can have no answer to: what they need.
UNANSWERED = {
    "cluster:terrace_tokens_per_joule:rate5m": "a GPU whose driver counts energy, or RAPL",
    "job:terrace_tokens_per_joule:rate5m": "a GPU whose driver counts energy",
}
WIDE = {**GPT, "n_embd": 128}


def filled_in(expression):
    for variable, value in (("$coordinator", ".*"), ("$job", ".*"), ("$rank", ".*"), ("$__rate_interval", "1m"), ("$__range", "3m")):
        expression = expression.replace(variable, value)
    return expression


@unittest.skipUnless(PROMETHEUS, "Prometheus (Debian package) is not installed")
class GrafanaTest(MonitoredTest):
    def start_jobs(self):
        """Two ranks with states on host and NVMe, evaluations, checkpoints and a loss scale, of which one has died once; a job that waits;
        a call that failed."""
        nvme = self.folder / "nvme"
        nvme.mkdir()
        job = self.submit(self.job({
            "model.config": WIDE, "train.steps": 1_000_000, "train.precision": "fp16", "train.eval_every_steps": 10, "checkpoint.every_steps": 20,
            "checkpoint.keep": 1, "resources.devices_per_node": 2, "layout.dp": 2, "resources.nvme": str(nvme),
            "layout.offload": {"optimizer": "nvme", "gradient": "host"}, "max_restarts": 100}))
        self.wait_until(lambda: int(self.status(job)["progress"].get("checkpoint_step", 0)) > 0, "there is a checkpoint")
        os.kill(self.pids_by_rank()[1], signal.SIGKILL)
        self.wait_until(lambda: int(self.status(job).get("restarts", 0)) > 0, "it restarts")
        self.wait_for_state(job, "RUNNING")
        return self.submit(self.job({"train.steps": 1_000_000})), job

    def unanswered(self):
        empty = {}
        for where, _, target in queries():
            if target["expr"].split("{")[0] in UNANSWERED:
                continue
            numbers = [number for _, number in self.query(filled_in(target["expr"]))]
            if all(math.isnan(number) for number in numbers):  # as of a quantile of nothing
                empty[where] = numbers
        return empty

    def test_every_query_has_an_answer(self):
        self.start_service(0)
        self.start_worker("worker-0", devices=2)
        self.start_monitoring()
        jobs = self.start_jobs()

        def all_answered():
            self.cli("status", "no-such-job", code=None)  # so that some call fails
            return not self.unanswered()
        try:
            self.wait_until(all_answered, "every query has an answer", seconds=60)
        except AssertionError:
            self.assertEqual("\n".join(sorted(self.unanswered())), "")
        for expression in UNANSWERED:  # queries all the same
            self.query(expression)
        for job in jobs:  # first the one that would start
            self.cli("cancel", "--force", job)


if __name__ == "__main__":
    unittest.main()

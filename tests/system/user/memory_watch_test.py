#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Memory that can be watched: what `terrace memory` shows of a running job, and what is said about a rank that was killed.

The case of the kernel's OOM killer is real: the worker runs in a memory control group whose limit is set below what the
rank needs. It is skipped where the test may not make such groups.
"""
import os
import pathlib
import pickle
import re
import shutil
import signal
import subprocess
import sys
import time
import unittest

from memory_group import memory_group
from service import ServiceTest, samples_of
from support import INVALID_INPUT, LLAMA, NOT_FOUND

ENDLESS = {"train.steps": 1_000_000}
EATER = """
import time
held = []
while True:
    held.append(bytearray(b'x' * (4 << 20)))
    time.sleep(0.05)
"""


def by_class(tier):
    return {line["class"]: int(line["bytes"]) for line in tier["live"]}


class WatchedJobTest(ServiceTest):
    def stop(self, job):
        self.cli("cancel", "--force", job)
        self.wait_until(lambda: not self.rank_pids(), "no rank is left", seconds=10)

    def ranks(self, job):
        """The newest report of each rank, once there is one that was made inside a step."""
        self.wait_for_state(job, "RUNNING")

        def reported():
            ranks = self.cli("memory", job, "-o", "json").json()["ranks"]
            return ranks if ranks and all(rank["sequence"] == "train" and rank["tiers"] for rank in ranks) else None
        return self.wait_until(reported, "ranks report what they hold")

    def planned(self, job):
        """(arena bytes, class -> bytes at the peak) of the device, by the plan."""
        memory = [line for line in self.status(job)["plan"]["memory"] if line["tier"] in ("DEVICE", "TIER_UNSPECIFIED")][0]
        return int(memory["arena_bytes"]), {line["class"]: int(line["bytes"]) for line in memory["lines"]}


class WatchTest(WatchedJobTest):
    def test_what_lives_is_shown_and_agrees_with_the_plan(self):
        self.start_service(1)
        job = self.submit(self.job({**ENDLESS, "model.config": LLAMA}))
        arena, peak = self.planned(job)
        seen = set()
        for _ in range(3):
            rank = self.ranks(job)[0]
            device = rank["tiers"][0]
            self.assertEqual((device["tier"], int(device["reserved_bytes"]), int(device["predicted_bytes"])),
                             ("DEVICE", arena, arena))
            live = by_class(device)
            self.assertLessEqual(sum(live.values()), arena)
            for persistent in ("PARAMETER", "OPTIMIZER"):
                self.assertEqual(live[persistent], peak[persistent])
            self.assertEqual(int(rank["allocator"]["allocated_bytes"]), sum(live.values()))
            self.assertGreater(int(rank["allocator"]["step_peak_bytes"]), 0)
            seen.add((rank["step"], rank["instruction"]))
            time.sleep(1.1)
        self.assertGreater(len(seen), 1, "the picture moves")
        self.assertRegex(self.cli("memory", job).out, r"RANK +STEP +TIER(.|\n)+device(.|\n)+planned")
        self.stop(job)

    def test_the_page_and_the_snapshot_are_of_the_whole_step(self):
        self.start_service(1)
        job = self.submit(self.job(ENDLESS))
        self.wait_for_state(job, "RUNNING")
        arena, _ = self.planned(job)
        page, snapshot = self.folder / "memory.html", self.folder / "memory.pickle"
        self.cli("memory", job, "--html", page, "--snapshot", snapshot)
        files = self.cli("memory", job, "--html", page, "--snapshot", snapshot, "-o", "json").json()["files"]
        self.assertEqual([(file["path"], int(file["bytes"])) for file in files],
                         [(str(path), path.stat().st_size) for path in (page, snapshot)])
        self.stop(job)
        text = page.read_text()
        self.assertIn(job, text)
        self.assertIn("first_moment.", text)
        self.assertEqual(text.count("Live bytes on"), 1, "one picture a tier")
        self.assertNotIn("<script", text)

        data = pickle.loads(snapshot.read_bytes())
        segment = data["segments"][0]
        self.assertEqual(segment["total_size"], arena)
        self.assertEqual(sum(block["size"] for block in segment["blocks"]), arena, "the blocks fill the segment")
        live, held, peak = {}, segment["active_size"], 0
        for event in data["device_traces"][0]:
            if event["action"] == "alloc":
                for address, size in live.items():
                    self.assertTrue(event["addr"] + event["size"] <= address or address + size <= event["addr"], event)
                live[event["addr"]] = event["size"]
                held += event["size"]
            elif event["action"] == "free_completed":
                held -= live.pop(event["addr"])
            peak = max(peak, held)
        self.assertEqual(live, {}, "what a step takes it gives back")
        self.assertEqual(held, segment["active_size"])
        self.assertTrue(0.9 * arena <= peak <= arena, (peak, arena))

    def test_fragmentation_is_told_with_advice(self):
        self.start_service(1)
        job = self.submit(self.job({**ENDLESS, "model.config": LLAMA, "layout.allocator": "caching"}))
        watching = self.start("--coordinator", self.address, "watch", job, "-o", "json")
        told = watching.wait_for(lambda event: event["event"] == "warning" and "allocator" in event["text"])
        self.assertRegex(told["text"], r"^\d\d % of the memory that the caching allocator reserved is free when most is in use, but not in "
                         r"one piece; layout\.allocator: expandable fragments less, planned not at all$")
        allocator = self.ranks(job)[0]["allocator"]
        share = 1 - int(allocator["allocated_bytes"]) / int(allocator["reserved_bytes"])
        self.assertGreater(share, 0.3)
        self.assertIn(f"{100 * share:.0f} % of", told["text"])
        self.stop(job)

    def test_jobs_that_do_not_run_are_refused_with_a_way_out(self):
        self.start_service(0)
        job = self.submit(self.job())
        self.refused(self.cli("memory", job, code=INVALID_INPUT), "QUEUED", "RUNNING")
        self.cli("memory", "nothing-1", code=NOT_FOUND)

    def test_series_are_those_of_the_documentation_and_end_with_the_job(self):
        self.start_service(1)
        job = self.submit(self.job(ENDLESS))
        rank = self.ranks(job)[0]
        address = self.nodes()[0]["metrics_address"]
        text = self.metrics(address)
        samples = samples_of(text)
        labels = (("job", job), ("rank", "0"))
        device = (("job", job), ("rank", "0"), ("tier", "device"))
        arena = int(rank["tiers"][0]["reserved_bytes"])
        for name in ("predicted", "reserved"):
            self.assertEqual(samples[f"terrace_memory_{name}_bytes", device], arena)
        live = sum(value for (name, found), value in samples.items() if name == "terrace_memory_bytes" and set(device) <= set(found))
        self.assertEqual(samples["terrace_allocator_allocated_bytes", labels], live)
        self.assertAlmostEqual(samples["terrace_allocator_fragmentation_ratio", labels], 1 - live / arena, places=6)
        self.assertTrue(0 <= samples["terrace_allocator_free_fragmentation_ratio", labels] <= 1)
        for name in ("active_bytes", "requested_bytes", "largest_free_block_bytes", "step_peak_bytes", "retries_total", "ooms_total"):
            self.assertIn((f"terrace_allocator_{name}", labels), samples)
        self.assertIn(("terrace_offload_stall_seconds_total", labels), samples)
        self.assertIn(("terrace_memory_capacity_bytes", (("tier", "host"),)), samples)
        if shutil.which("promtool"):
            linted = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=30)
            self.assertEqual(linted.returncode, 0, linted.stdout + linted.stderr)
        self.cli("cancel", "--force", job)
        self.wait_until(lambda: job not in self.metrics(address), "a job's series end with it", seconds=10)


class VerdictTest(WatchedJobTest):
    def failed(self, job):
        status = self.wait_for_state(job, "FAILED")
        pages = list(self.folder.glob("worker-0/runs/*/*/0/memory_verdict.txt"))
        self.assertEqual(len(pages), 1, pages)
        flight = pages[0].parent / "flight"
        self.assertTrue(flight.is_file() and not flight.is_symlink(), "the recorder lies in the run directory")
        return status["message"], pages[0].read_text()

    def test_a_killed_rank_is_told_with_what_it_held(self):
        self.start_service(1)
        job = self.submit(self.job({**ENDLESS, "max_restarts": 0}))
        self.ranks(job)
        shared = pathlib.Path(os.readlink(next(self.folder.glob("worker-0/runs/*/*/0/flight"))))
        os.kill(self.rank_pids()[0], signal.SIGKILL)
        message, page = self.failed(job)
        self.assertRegex(message, r"signal 9 \(SIGKILL\), sender unknown (while executing instruction \d+ .* of step \d+"
                                  r"|between two executions, at step \d+).*: device [\d.]+ \wiB live of [\d.]+ \wiB, outside the arenas")
        self.assertIn("largest buffers", page)
        self.assertIn("first_moment.", page)
        self.assertFalse(shared.exists(), "its shared memory is freed")

    def test_the_kernels_oom_killer_is_named_with_what_would_have_fit(self):
        group, limit = memory_group(self)
        self.start_coordinator()
        worker = self.start_worker("worker-0")
        (group / "cgroup.procs").write_text(str(worker.pid))
        job = self.submit(self.job({**ENDLESS, "max_restarts": 0, "train.global_batch": 64, "layout.micro_batch": 64,
                                    "model.config": {**LLAMA, "hidden_size": 256, "intermediate_size": 1024}}))
        self.ranks(job)
        time.sleep(1)  # samples of a healthy rank
        pid = self.rank_pids()[0]
        pathlib.Path(f"/proc/{pid}/oom_score_adj").write_text("1000")  # the group has other processes
        resident = int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text()).group(1)) * 1024
        limit.write_text(str(resident + (96 << 20)))
        eater = self.run_command([sys.executable, "-c", EATER])
        (group / "cgroup.procs").write_text(str(eater.pid))
        message, page = self.failed(job)
        eater.signal(signal.SIGKILL)
        eater.wait()
        self.assertIn("signal 9 (SIGKILL) by the kernel's OOM killer", message)
        self.assertIn(group.name, message)
        self.assertIn("what would have fit: ", message)
        self.assertIn("the process in its last seconds", page)
        self.assertRegex(page, r"oom_kill [1-9]")
        worker.end()
        self.wait_until_nothing_runs(10)


if __name__ == "__main__":
    unittest.main(verbosity=2)

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Drives and limits that fail a job which keeps its states on NVMe: each ends in a sentence that names file, operation, reason and
way out, or in a slower path that the log names; no number is wrong, nothing hangs, and the last checkpoint is intact.

The drive fails by a library that is loaded into every process of the test (tests/support/failing_drive.cc), the limits are the
system's own: seccomp, capabilities, memory control groups.
"""
import contextlib
import os
import pathlib
import re
import subprocess
import sys
import unittest

from memory_group import memory_group
from offload_run_test import NVME, WIDE, state_of
from support import BIN, FAILURE, INVALID_INPUT, OK, RESOURCES, TerraceTest

DRIVE = BIN.parent / "tests" / "libfailing_drive.so"
STEPS = 8
EIO = 5
EATER = "import sys, time; held = bytearray(b'x') * int(sys.argv[1]); print('held', flush=True); time.sleep(600)"


class FaultTest(TerraceTest):
    """What tests of a failing drive share."""
    undisturbed_runs = {}  # steps -> (losses, state), which are the same every time

    def setUp(self):
        super().setUp()
        self.nvme = self.folder / "nvme"
        self.nvme.mkdir()
        self.fault = self.folder / "fault"

    def offloaded(self, changes=None, **nvme):
        """A job that saves every second step, whose length does not change its losses."""
        return self.job({"model.config": WIDE, "train.steps": STEPS, "train.eval_batches": 1, "train.schedule": {"name": "constant"},
                         "layout.offload": NVME, "resources.nvme": {"paths": [str(self.nvme)], **nvme},
                         "resources.host_memory": "256MiB", "checkpoint.every_steps": 2, "max_restarts": 1, **(changes or {})})

    def endless(self, **nvme):
        return self.offloaded({"train.steps": 1_000_000}, **nvme)

    def load_drive(self):
        if not DRIVE.exists():
            self.skipTest("a build with sanitizers cannot preload the library")
        self.environment.update(LD_PRELOAD=str(DRIVE), TERRACE_FAILING_DRIVE=str(self.fault))

    def rank_log(self, result):
        return "".join(path.read_text() for path in sorted(pathlib.Path(result.done["logs"]).glob("**/rank.log")))

    def undisturbed(self, steps=STEPS):
        """(losses, state) of the job that nobody disturbs."""
        if steps not in self.undisturbed_runs:
            job = self.offloaded({"train.steps": steps})
            self.undisturbed_runs[steps] = (self.train(job).losses, state_of(self.checkpoints(job)[-1]))
        return self.undisturbed_runs[steps]

    def assert_goes_on(self, job, failed):
        """Without the fault the same job goes on from its checkpoint and comes to the bits of one that nobody disturbed."""
        saved = [int(path.name.split("-")[1]) for path in self.checkpoints(job)]
        self.assertTrue(saved, str(failed))
        self.terrace("ckpt", "verify", self.checkpoints(job)[-1])
        end = max(STEPS, saved[-1] + 2)
        expected, state = self.undisturbed(end)
        spec = job.read_text().replace('"steps": 1000000', f'"steps": {end}')
        job.write_text(spec)
        rest = self.train(job)
        self.assertEqual(min(rest.losses), saved[-1] + 1, "it goes on from what was saved")
        seen = {step: loss for step, loss in failed.losses.items() if step <= end}
        self.assertEqual({**seen, **rest.losses}, expected)
        self.assertEqual(seen, {step: expected[step] for step in seen}, "nothing that was printed before the fault was wrong")
        self.assertEqual(state_of(self.checkpoints(job)[-1]), state)

    def assert_failed_by_drive(self, failed, *words):
        self.assertEqual((failed.done["state"], failed.done["reason"]), ("FAILED", "RESTARTS_EXHAUSTED"), str(failed))
        self.assertEqual({event["reason"] for event in failed.events("state") if event["state"] == "RECOVERING"}, {"RANK_DIED"})
        self.refused(failed, f"{self.nvme}/.terrace-", "rank 0", "Input/output error", "nvme.paths", *words)

    def break_drive(self, fault, engine, words, **nvme):
        """Starts a job, breaks the drive while it trains, and expects the end that names why."""
        self.load_drive()
        job = self.endless(engine=engine, **nvme)
        running = self.start("run", job, "-o", "json")
        running.wait_for(lambda event: event["event"] == "checkpoint")
        self.fault.write_text(fault)
        failed = running.wait(30)
        self.assertEqual(failed.code, FAILURE, str(failed))
        self.assertEqual((failed.done["state"], failed.done["reason"]), ("FAILED", "RESTARTS_EXHAUSTED"))
        reasons = {event["reason"] for event in failed.events("state") if event["state"] == "RECOVERING"}
        self.assertEqual(reasons, {"RANK_DIED"}, "a fault of the machine, not of ours")
        self.refused(failed, f"{self.nvme}/.terrace-", "rank 0", *words)
        self.assertEqual(list(self.nvme.iterdir()), [], "nothing is left on the drive")
        self.fault.unlink()
        self.assert_goes_on(job, failed)


class OffloadFaultTest(FaultTest):
    def test_a_drive_that_fails(self):
        self.break_drive(f"fail read {EIO}", "io_uring", ("instruction", "load", "cannot read", "Input/output error", "nvme.paths"))

    def test_a_drive_that_fails_to_write_without_io_uring(self):
        self.break_drive(f"fail write {EIO}", "threads", ("cannot write", "Input/output error", "nvme.paths"))

    def test_a_drive_that_fails_from_the_start(self):
        self.load_drive()
        self.fault.write_text(f"fail write {EIO}")
        failed = self.train(self.offloaded(), code=FAILURE)
        self.assert_failed_by_drive(failed, "nvme.paths: cannot write to")
        self.assertEqual(failed.events("step"), [])

    def offload_files(self, rank):
        """What the rank has open of its file on NVMe. Other files of it come and go meanwhile."""
        files = []
        for entry in pathlib.Path(f"/proc/{rank}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                if "/.terrace-" in os.readlink(entry):
                    files.append(entry)
        return files

    def test_a_file_that_is_truncated_between_steps(self):
        job = self.endless()
        running = self.start("run", job, "-o", "json")
        running.wait_for(lambda event: event["event"] == "checkpoint")
        rank, = self.rank_pids()
        os.truncate(self.offload_files(rank)[0], 4096)
        recovering = running.wait_for(lambda event: event["event"] == "state" and event["state"] == "RECOVERING")
        for word in (f"{self.nvme}/.terrace-", "rank 0", "truncated"):
            self.assertIn(word, recovering["message"])
        # A write that was on its way may have let the file grow again, but never to its page behind the data.
        sizes = re.search(r"has (\d+) bytes instead of (\d+)", recovering["message"])
        self.assertIsNotNone(sizes, recovering["message"])
        self.assertLess(int(sizes.group(1)), int(sizes.group(2)))
        self.assertGreaterEqual(int(sizes.group(1)), 4096)
        # The next epoch has a file of its own, and goes on.
        step = int(re.search(r"checkpoint of step (\d+)", recovering["message"]).group(1))
        running.wait_for(lambda event: event["event"] == "step" and event["step"] > step + 4)
        self.assert_goes_on(job, running.end())

    def test_a_slow_drive_takes_time_and_changes_nothing(self):
        expected, state = self.undisturbed(3)
        self.load_drive()
        self.fault.write_text("slow any 5")
        for engine in ("io_uring", "threads"):
            job = self.offloaded({"train.steps": 3}, engine=engine)
            slow = self.train(job)
            self.assertEqual(slow.losses, expected)
            self.assertEqual(state_of(self.checkpoints(job)[-1]), state)
            stalled = [event["step_seconds"] for event in slow.events("step")]
            self.assertGreater(min(stalled), 0.02, "each step waited for the drive")

    def trains_as_without(self, command, job, expected, words):
        """Trains by way of another command, to the same bits, and names the slower path in the rank's log."""
        result = self.run_command([*command, BIN / "terrace", "run", job, "-o", "json"]).wait()
        self.assertEqual(result.code, OK, str(result))
        self.assertEqual((result.losses, state_of(self.checkpoints(job)[-1])), expected)
        log = self.rank_log(result)
        for word in words:
            self.assertIn(word, log)

    def test_without_io_uring_threads_take_over_and_are_named(self):
        wrapper = (sys.executable, pathlib.Path(__file__).parent / "without_io_uring.py")
        self.trains_as_without(wrapper, self.offloaded(), self.undisturbed(),
                               ("NVMe is slower", "the system refuses io_uring: Operation not permitted", "kernel.io_uring_disabled=0"))
        refused = self.run_command([*wrapper, BIN / "terrace", "run", self.offloaded(engine="io_uring"), "-o", "json"]).wait()
        self.assertEqual((refused.code, refused.events("step")), (INVALID_INPUT, []), str(refused))
        self.refused(refused, "nvme.engine", "Operation not permitted", "engine: auto")

    @unittest.skipUnless(os.geteuid() == 0, "without the capability the limit holds anyway, and this test lowers both")
    def test_memlock_that_is_too_small_is_named(self):
        wrapper = ("prlimit", "--memlock=65536:65536", "setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock")
        self.trains_as_without(wrapper, self.offloaded(), self.undisturbed(),
                               ("host memory is not locked", "RLIMIT_MEMLOCK is 65536 bytes", "ulimit -l", "NVMe is slower",
                                "memlock 64 KiB"))

    def in_group(self, group, command):
        return self.run_command(["sh", "-c", f"echo $$ > {group}/cgroup.procs; exec \"$@\"", "sh", *command])

    def test_host_memory_that_another_process_took(self):
        group, limit = memory_group(self)
        limit.write_text(str(768 << 20))
        eater = self.in_group(group, [sys.executable, "-c", EATER, str(448 << 20)])
        self.wait_until(lambda: "held" in eater.text(), "the other process has its memory")
        job = self.offloaded({"model.config": {**WIDE, "hidden_size": 256, "intermediate_size": 1024}, "train.global_batch": 256,
                              "layout.micro_batch": 256})
        failed = self.in_group(group, [BIN / "terrace", "run", job, "-o", "json"]).wait()
        eater.process.kill()
        eater.wait()
        self.assertEqual(failed.code, RESOURCES, str(failed))
        self.assertEqual(failed.done["reason"], "DOES_NOT_FIT")
        self.refused(failed, "rank 0", str(limit), "768.0 MiB", "are free", "resources.device_memory", "raise that limit")
        self.assertEqual(failed.events("step"), [], "told before it trains")

    def test_ranks_of_one_node_are_counted_together(self):
        group, limit = memory_group(self)
        limit.write_text(str(512 << 20))
        job = self.offloaded({"model.config": {**WIDE, "hidden_size": 256, "intermediate_size": 1024}, "layout.micro_batch": 64,
                              "train.global_batch": 128, "layout.dp": 2, "resources.devices_per_node": 2})
        plan = self.terrace("plan", job, "-o", "json").json()
        needed = sum(int(line["arena_bytes"]) for line in plan["memory"] if line["tier"] in ("DEVICE", "HOST"))
        # One rank fits into what is free, two do not.
        limit.write_text(str(needed * 3 // 2 + (64 << 20)))
        failed = self.in_group(group, [BIN / "terrace", "run", job, "-o", "json"]).wait()
        self.assertEqual(failed.code, RESOURCES, str(failed))
        self.assertEqual(failed.done["reason"], "DOES_NOT_FIT")
        self.refused(failed, str(limit), "for this job's other ranks here")
        self.assertEqual(failed.events("step"), [])


if __name__ == "__main__":
    unittest.main(verbosity=2)

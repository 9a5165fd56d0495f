#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kill -9 of a rank, of the daemon or of the command itself while a checkpoint is half written, for jobs whose state is more than
weights and moments in f32: what is there goes on to the bits of a job that nobody killed, and nothing unfinished is left."""
import json
import os
import pathlib
import random
import signal
import time
import unittest

from frozen_test import CONSTANT
from support import FAILURE, LLAMA, OK, TerraceTest, processes

STEPS = 24
TWO = {"resources.devices_per_node": 2}
EVERY_4 = {**CONSTANT, "model.config": LLAMA, "train.steps": STEPS, "checkpoint.every_steps": 4, "checkpoint.keep": 0}
FILES = ("model.safetensors", "optimizer.safetensors")


def unfinished(directory):
    return [name for name in (os.listdir(directory) if directory.exists() else ()) if name.startswith(".tmp-step-")]


def is_stopped(pid):
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"


class KillWhileSavingTest(TerraceTest):
    def documents(self):
        source = random.Random(5)
        rows = [{"text": source.choice("abcdefgh") * source.randint(2, 30)} for _ in range(400)]
        return str(self.write("documents.jsonl", "".join(json.dumps(row) + "\n" for row in rows)))

    def kinds(self):
        return {"adapters": {"model.lora": {"rank": 4, "alpha": 8}},
                "moments in codes": {**TWO, "formats.moments": "int8", "layout.dp": 2, "layout.zero": 3},
                "packed rows": {**TWO, "layout.dp": 2, "data.samples": "packed", "data.train": self.documents(),
                                "data.sequence_length": 64, "train.global_batch": 4, "train.eval_batches": 1},
                "muon": {"train.optimizer": {"name": "muon", "lr": 3e-3}}}

    def stopped_while_saving(self, job):
        """Starts the job and stops its ranks while the folder of a checkpoint has its temporary name. A folder that got its name
        before the ranks stood still was too quick, and so may be all of a job: then it is begun anew."""
        directory = job.parent / "checkpoints"
        for _ in range(10):
            running = self.start("run", job, "-o", "json")
            running.wait_for(lambda event: event["event"] == "state" and event["state"] == "RUNNING")
            ranks = self.rank_pids()
            while running.process.poll() is None:
                if not unfinished(directory):
                    continue
                try:
                    for pid in ranks:
                        os.kill(pid, signal.SIGSTOP)
                    self.wait_until(lambda: all(is_stopped(pid) for pid in ranks), "the ranks stand still")
                    if unfinished(directory):
                        return running, ranks
                    for pid in ranks:
                        os.kill(pid, signal.SIGCONT)
                except (ProcessLookupError, FileNotFoundError):
                    break  # the job had ended
            running.wait()
            for path in self.checkpoints(job):
                path.rename(self.folder / f"{time.monotonic_ns()}")
        self.fail("no checkpoint was seen while it was written")

    def kill(self, victim, running, ranks):
        if victim == "rank":
            os.kill(ranks[-1], signal.SIGKILL)
        elif victim == "command":
            running.signal(signal.SIGKILL)
        else:
            daemons = [pid for pid, command in processes(self.mark).items() if "terrace-worker" in command]
            os.kill(min(daemons), signal.SIGKILL)
        for pid in ranks[:-1] if victim == "rank" else ranks:
            os.kill(pid, signal.SIGCONT)

    def test_what_is_killed_goes_on_to_the_bit(self):
        for kind, changes in self.kinds().items():
            whole = self.job({**EVERY_4, **changes})
            expected = self.train(whole)
            for victim in ("rank", "daemon", "command"):
                with self.subTest(kind=kind, killed=victim):
                    job = self.job({**EVERY_4, **changes})
                    running, ranks = self.stopped_while_saving(job)
                    self.kill(victim, running, ranks)
                    result = running.wait()
                    losses = result.losses
                    if victim == "rank":  # the job starts again by itself
                        self.assertIn("RECOVERING", [event["state"] for event in result.events("state")])
                    else:
                        self.assertNotEqual(result.code, OK)
                        self.assertEqual(self.wait_until_nothing_runs(10), {})
                        result = self.train(job)
                        losses = {**losses, **result.losses}
                    self.assertEqual(result.code, OK, str(result))
                    self.assertEqual(losses, {step: expected.losses[step] for step in losses})
                    self.assertEqual(max(losses), STEPS)
                    for name in FILES:
                        ended, wanted = (self.checkpoints(which)[-1] / name for which in (job, whole))
                        self.assertEqual(ended.read_bytes(), wanted.read_bytes(), name)
                    self.assertEqual(unfinished(job.parent / "checkpoints"), [])


if __name__ == "__main__":
    unittest.main(verbosity=2)

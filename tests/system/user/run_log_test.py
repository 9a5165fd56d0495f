#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`--csv`, `--tensorboard` and `--wandb`: the readers of those formats find what the job told.

The readers are TensorBoard's and W&B's own where this Python has them (pip install tensorboard wandb); the table is
read here always.
"""
import csv
import importlib.util
import unittest

from support import INVALID_INPUT, TerraceTest

STEPS = 12


def has(module):
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of its parent
        return False


class RunLogTest(TerraceTest):
    def logged(self, *options):
        job = self.job({"train.steps": STEPS, "train.eval_every_steps": 6, "checkpoint.every_steps": 6})
        result = self.terrace("run", job, "-o", "json", *options)
        return [event["loss"] for event in result.events("step")]

    def test_a_table_has_every_step_once_and_every_evaluation(self):
        table = self.folder / "run.csv"
        losses = self.logged("--csv", table)
        with table.open() as text:
            rows = list(csv.DictReader(text))
        steps = [row for row in rows if row["train/loss"]]
        self.assertEqual([int(row["step"]) for row in steps], list(range(1, STEPS + 1)))
        for row, loss in zip(steps, losses):
            self.assertAlmostEqual(float(row["train/loss"]), loss, places=5)
        self.assertEqual([int(row["step"]) for row in rows if row["eval/loss"]], [6, 12])
        self.assertEqual([int(row["step"]) for row in rows if row["checkpoint/bytes"]], [6, 12])

    def test_a_log_that_cannot_be_written_is_refused_before_anything_begins(self):
        notes = self.write("notes.csv", b"my notes\n")
        result = self.terrace("run", self.job(), "--csv", notes, code=INVALID_INPUT)
        self.assertIn("--csv", result.err)
        self.assertEqual(notes.read_text(), "my notes\n")

    @unittest.skipUnless(has("tensorboard"), "this Python has no tensorboard")
    def test_tensorboard_reads_its_event_files(self):
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        folder = self.folder / "tb"
        losses = self.logged("--tensorboard", folder)
        events = EventAccumulator(str(folder))
        events.Reload()
        self.assertIn("eval/loss", events.Tags()["scalars"])
        scalars = events.Scalars("train/loss")
        self.assertEqual([scalar.step for scalar in scalars], list(range(1, STEPS + 1)))
        for scalar, loss in zip(scalars, losses):
            self.assertAlmostEqual(scalar.value, loss, places=5)

    @unittest.skipUnless(has("wandb.sdk.internal.datastore"), "this Python has no wandb with a reader (0.19)")
    def test_wandb_reads_its_offline_run(self):
        import json

        import wandb
        from wandb.proto import wandb_internal_pb2
        from wandb.sdk.internal.datastore import DataStore
        losses = self.logged("--wandb", self.folder)
        files = list(self.folder.glob("wandb/offline-run-*/run-*.wandb"))
        self.assertEqual(len(files), 1)
        wandb._assert_is_internal_process = True
        store = DataStore()
        store.open_for_scan(str(files[0]))
        records = []
        while (data := store.scan_data()) is not None:
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            records.append(record)
        store.close()
        rows = [{item.key: json.loads(item.value_json) for item in record.history.item}
                for record in records if record.WhichOneof("record_type") == "history"]
        told = [row["train/loss"] for row in rows if "train/loss" in row]
        self.assertEqual(len(told), STEPS)
        for value, loss in zip(told, losses):
            self.assertAlmostEqual(value, loss, places=5)
        kinds = [record.WhichOneof("record_type") for record in records]
        self.assertEqual(kinds[:2], ["header", "run"])
        self.assertEqual(kinds[-2:], ["summary", "exit"])
        config = {item.key: json.loads(item.value_json) for item in records[1].run.config.update}
        self.assertEqual(int(config["train"]["steps"]), STEPS)


if __name__ == "__main__":
    unittest.main(verbosity=2)

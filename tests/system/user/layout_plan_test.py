#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`terrace plan` and `terrace explain` of a pipelined job: what a person reads there is right."""
import re
import unittest

from support import GPT, INVALID_INPUT, LLAMA, TerraceTest

DEEP = {**LLAMA, "num_hidden_layers": 4}
LAYOUT = {"tp": 2, "pp": 2, "dp": 2, "zero": 1, "sequence_parallel": True, "micro_batch": 2, "schedule": "1f1b",
          "stage_layers": [1, 3]}


def cell(micro_batch, backward):
    return f"{micro_batch}'" if backward else str(micro_batch)


class LayoutPlanTest(TerraceTest):
    def pipelined(self, layout=None, **changes):
        return self.job({"model.config": DEEP, "resources.devices_per_node": 8, "layout": layout or LAYOUT,
                         "train.global_batch": 24, **changes})

    def table_of(self, text):
        """stage -> what it does at each clock, of the table that explain begins with."""
        return {int(match.group(1)): match.group(2).split() for match in re.finditer(r"^stage (\d+) +(.+)$", text, re.M)}

    def test_plan_tells_the_layout_and_the_memory_of_each_stage(self):
        job = self.pipelined()
        text, plan = self.terrace("plan", job).out, self.terrace("plan", job, "-o", "json").json()
        layout = plan["layout"]
        self.assertEqual({key: layout[key] for key in ("tensor_parallel", "pipeline_parallel", "data_parallel", "zero_stage", "ranks")},
                         {"tensor_parallel": 2, "pipeline_parallel": 2, "data_parallel": 2, "zero_stage": 1, "ranks": 8})
        self.assertEqual(layout["stage_layers"], [1, 3])
        self.assertEqual(layout["micro_batch"] * layout["micro_batches"] * layout["data_parallel"], 24)
        for words in ("8 on 1 node", "dp 2", "tp 2 + sequence", "pp 2 (1f1b", "zero 1", "6 micro-batches of 2 x 32 tokens"):
            self.assertIn(words, text)
        self.assertEqual(len(plan["program_sha256"]), 2)
        self.assertEqual([int(memory["stage"]) for memory in plan["memory"]], [0, 1])
        table = text[text.index("memory of a rank at the peak"):]
        self.assertEqual(re.findall(r"^ +(\d) +(\d-\d) +\d", table, re.M), [("0", "0-3"), ("1", "4-7")])
        arenas = [int(memory["arena_bytes"]) for memory in plan["memory"]]
        self.assertIn(f"arenas of {min(arenas):,} to {max(arenas):,} bytes", table)
        for arena, memory in zip(arenas, plan["memory"]):
            self.assertEqual(sum(int(line["bytes"]) for line in memory["lines"]), arena + int(memory["external_bytes"]))
            self.assertGreaterEqual(arena, int(memory["lower_bound_bytes"]))

    def test_stages_hold_the_weights_of_their_layers(self):
        """Without ZeRO a rank holds weights and twice as many moments, in f32: embedding + 1 layer, 3 layers + norm + head."""
        plan = self.terrace("plan", self.pipelined({**LAYOUT, "zero": 0}), "-o", "json").json()
        hidden, inner, head_dim, vocabulary = 32, 64, 8, 256
        qkv, out, gate_up, down = hidden * (4 + 2 * 2) * head_dim // 2, 4 * head_dim * hidden // 2, 2 * hidden * inner // 2, inner * hidden // 2

        def region(*parameters):
            """Elements of parameters one after the other: matrices of a page or more begin on one, the rest on 64 bytes."""
            end = 0
            for elements in parameters:
                alignment = 1024 if elements >= 1024 else 16
                end = -(-end // alignment) * alignment + elements
            return end

        layer, table = region(hidden, qkv, out, hidden, gate_up, down), vocabulary * hidden // 2
        for memory, elements in zip(plan["memory"], (table + layer, 3 * layer + region(hidden, table))):
            bytes_of = {line["class"]: int(line["bytes"]) for line in memory["lines"]}
            self.assertEqual(bytes_of["OPTIMIZER"], 2 * 4 * elements)
            rope = 32 * head_dim * 4  # a table of cosines and sines
            self.assertEqual(bytes_of["PARAMETER"], 4 * elements + rope)

    def test_memory_by_layer_sums_to_what_the_plan_holds(self):
        plan = self.terrace("plan", self.pipelined(), "--by", "layer", "-o", "json").json()
        self.assertEqual([one["stage"] for one in plan["layers"]], [0, 1])
        for one, memory in zip(plan["layers"], plan["memory"]):
            self.assertEqual(one["bytes"], sum(sum(layer["bytes"].values()) for layer in one["layers"]))
            self.assertLessEqual(one["bytes"], memory["arena_bytes"])
            self.assertGreater(one["bytes"], 0.9 * memory["arena_bytes"])
        self.assertIn("embedding", [layer["layer"] for layer in plan["layers"][0]["layers"]])
        self.assertIn("hot spots", self.terrace("plan", self.pipelined(), "--by", "layer").out)

    def test_explain_begins_with_the_table_of_1f1b(self):
        text = self.terrace("explain", self.pipelined()).out
        self.assertIn("schedule 1f1b: 2 stages, 6 micro-batches", text)
        bubble = float(re.search(r"ideal bubble ([\d.]+) %", text).group(1))
        self.assertAlmostEqual(bubble, 100 * (2 - 1) / 6, places=1, msg="(stages - 1) / micro-batches")
        table = self.table_of(text)
        self.assertEqual(sorted(table), [0, 1])
        for stage, cells in table.items():
            done = [entry for entry in cells if entry != "."]
            for micro_batch in range(6):
                self.assertEqual(done.count(cell(micro_batch, False)), 1, f"stage {stage}")
                self.assertEqual(done.count(cell(micro_batch, True)), 2, f"stage {stage}: a backward pass takes two clocks")
        # The last stage goes back with each micro-batch at once, the first is one ahead.
        self.assertEqual([entry for entry in table[1] if entry != "."][:6], ["0", "0'", "0'", "1", "1'", "1'"])
        self.assertEqual([entry for entry in table[0] if entry != "."][:5], ["0", "1", "0'", "0'", "2"])
        for micro_batch in range(6):
            self.assertLess(table[0].index(cell(micro_batch, False)), table[1].index(cell(micro_batch, False)))
            self.assertLess(table[1].index(cell(micro_batch, True)), table[0].index(cell(micro_batch, True)))

    def test_every_schedule_has_its_table_and_bubble(self):
        bubbles = {"gpipe": 1 / 6, "1f1b": 1 / 6, "interleaved": 1 / 12}
        for schedule in ("gpipe", "1f1b", "interleaved", "zb-h1", "zbv"):
            with self.subTest(schedule):
                text = self.terrace("explain", self.pipelined({"pp": 2, "tp": 4, "micro_batch": 4, "schedule": schedule})).out
                self.assertIn(f"schedule {schedule}: 2 stages, 6 micro-batches", text)
                bubble = float(re.search(r"ideal bubble ([\d.]+) %", text).group(1)) / 100
                if schedule in bubbles:
                    self.assertAlmostEqual(bubble, bubbles[schedule], places=3)
                else:
                    self.assertLess(bubble, bubbles["1f1b"])
                self.assertEqual(sorted(self.table_of(text)), [0, 1])

    def test_json_of_plan_and_programs_parses(self):
        job = self.pipelined()
        programs = self.terrace("explain", job, "-o", "json").json()["programs"]
        self.assertEqual([program["stage"] for program in programs], [0, 1])
        self.assertEqual([program["stages"] for program in programs], [2, 2])
        self.assertEqual(programs[0]["grid"], {"tensor": 2, "context": 1, "data_shard": 2, "data_replica": 1, "pipeline": 2})
        plan = self.terrace("plan", job, "-o", "json").json()
        self.assertEqual([program["arenas"][0]["bytes"] for program in programs],
                         [str(memory["arena_bytes"]) for memory in plan["memory"]])
        (last,) = self.terrace("explain", job, "--stage", 1, "-o", "json").json()["programs"]
        self.assertEqual(last, programs[1])

    def test_one_stage_on_request(self):
        job = self.pipelined()
        text = self.terrace("explain", job, "--stage", 1).out
        self.assertIn("stage 1 of 2", text)
        self.assertNotIn("stage 0 of 2", text)
        self.assertIn("pipeline_forward.from0", text)
        self.refused(self.terrace("explain", job, "--stage", 2, code=INVALID_INPUT), "--stage", "got 2", "0 to 1")

    def test_one_stage_has_no_table(self):
        text = self.terrace("explain", self.job({"model.config": GPT})).out
        self.assertNotIn("clock", text)


if __name__ == "__main__":
    unittest.main(verbosity=2)

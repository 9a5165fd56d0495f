#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`terrace plan --cluster`: plans for hardware that is not here, by name and by file, and what is refused."""
import unittest

from support import INVALID_INPUT, TerraceTest

LAYOUT = {"dp": 16, "zero": 3, "micro_batch": 1, "recompute": "selective", "offload": "device"}


class ClusterPlanTest(TerraceTest):
    def eight_billion(self, **changes):
        return self.job({"model.config": "llama-3.1-8b", "layout": LAYOUT, "train.global_batch": 16, "train.precision": "bf16",
                         "data.sequence_length": 8192, **changes})

    def test_a_laptop_plans_for_a_cluster_by_name(self):
        plan = self.terrace("plan", self.eight_billion(), "--cluster", "h100x8:2", "-o", "json").json()
        self.assertEqual((plan["layout"]["ranks"], plan["layout"]["nodes"]), (16, 2))
        self.assertEqual(plan["profile"]["name"], "H100-80GB")
        self.assertFalse(plan["profile"]["measured"])
        memory = plan["memory"][0]
        self.assertEqual(int(memory["limit_bytes"]), 81559 * 2**20)
        self.assertGreater(int(memory["external_bytes"]), 2**30)
        # Between a quarter and three quarters of the peak, as published runs of such models are.
        self.assertGreater(plan["time"]["mfu"], 0.25)
        self.assertLess(plan["time"]["mfu"], 0.75)

    def test_a_plan_on_paper_says_how_far_off_it_may_be(self):
        job = self.eight_billion()
        time = self.terrace("plan", job, "--cluster", "h100x8:2", "-o", "json").json()["time"]
        expected = time["uncertainty"]
        self.assertLess(expected["low_seconds"], time["step_seconds"])
        self.assertGreater(expected["high_seconds"], time["step_seconds"])
        self.assertEqual((expected["rate"], expected["runs"]), ("matmul, bf16", 83))
        self.assertTrue(0.3 < expected["rate_share"] < 1, expected)
        slow = self.write("slow.yaml", "nodes: 2\ndevice: h100\nlinks: {network: eth-10}\n")
        page = self.folder / "page.html"
        slowed = self.terrace("plan", job, "--cluster", str(slow), "--html", str(page))
        said = "it hangs on the rate of links between nodes most"
        self.assertIn(said, " ".join(slowed.out.split()))
        self.assertIn(said, page.read_text())

    def test_a_device_that_nothing_runs_on_says_so(self):
        job = self.eight_billion(**{"train.precision": "fp16", "data.sequence_length": 1024})
        volta = self.terrace("plan", job, "--cluster", "v100x8:2", "-o", "json").json()
        self.assertTrue(any("a V100 has 7.0" in remark for remark in volta["remarks"]), volta["remarks"])
        # Far above what the device does without its tensor cores.
        self.assertGreater(volta["time"]["tflops_per_device"], 25)
        self.assertLess(volta["time"]["mfu"], 0.6)
        self.assertNotIn("arithmetic alone", self.terrace("plan", self.eight_billion(), "--cluster", "a100x8:2").out)

    def test_the_same_cluster_gives_the_same_plan(self):
        job = self.eight_billion()
        self.assertEqual(self.terrace("plan", job, "--cluster", "H100x8:2").out, self.terrace("plan", job, "--cluster", "h100x8:2").out)

    def test_faster_hardware_is_faster(self):
        def seconds(cluster):
            return self.terrace("plan", self.eight_billion(), "--cluster", cluster, "-o", "json").json()["time"]["step_seconds"]

        self.assertLess(seconds("h200x8:2"), seconds("h100x8:2") * 1.001)
        self.assertLess(2 * seconds("h100x8:2"), seconds("a100x8:2") * 1.3)

    def test_a_file_describes_other_hardware(self):
        slow = self.write("slow.yaml", "name: slow\nnodes: 2\ndevice: h100\nlinks: {network: eth-10}\n")
        job = self.eight_billion()
        plans = [self.terrace("plan", job, "--cluster", cluster, "-o", "json").json() for cluster in (str(slow), "h100x8:2")]
        self.assertGreater(plans[0]["time"]["step_seconds"], 1.2 * plans[1]["time"]["step_seconds"])
        self.assertGreater(plans[0]["time"]["exposed_communication_seconds"], plans[1]["time"]["exposed_communication_seconds"])

    def test_explain_lists_the_programs_of_the_cluster(self):
        self.assertIn("matmul", self.terrace("explain", self.eight_billion(), "--cluster", "h100x8:2").out)

    def test_what_cannot_be_is_refused(self):
        job = self.eight_billion()

        def refusal(cluster, *words, code=INVALID_INPUT):
            result = self.terrace("plan", job, "--cluster", cluster, code=code)
            for word in words:
                self.assertIn(word, result.err)

        refusal("h100x0:2", "devices of a node: got '0'", "1 to 64")
        refusal("h100x8:0", "nodes: got '0'")
        bad = self.write("bad.yaml", "nodes: 2\ndevice: {like: h100, memry: 80GiB}\n")
        refusal(str(bad), "line 2, column 22", "device.memry", "try device.memory")
        more = self.eight_billion(**{"resources.device_memory": "96GiB"})
        result = self.terrace("plan", more, "--cluster", "h100x8:2", code=INVALID_INPUT)
        self.assertIn("resources.device_memory", result.err)


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A Llama of 1.1 billion parameters, whose states take 17.6 GB, trains in 512 MiB of device memory and 1 GiB of host memory, each of
its processes under a hard limit of 2 GiB. Takes minutes and 30 GB of disk."""
import pathlib
import unittest

from support import BIN, LLAMA, OK, TerraceTest

LARGE = {**LLAMA, "vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22,
         "num_attention_heads": 32, "num_key_value_heads": 4, "max_position_embeddings": 2048}
LIMIT = 2 << 30


class LargeTest(TerraceTest):
    def test_a_billion_parameters_in_half_a_gibibyte(self):
        nvme = self.folder / "nvme"
        nvme.mkdir()
        job = self.job({"model.config": LARGE, "data.sequence_length": 256, "train.steps": 2, "train.global_batch": 1,
                        "train.eval_batches": 1, "train.precision": "bf16", "resources.threads_per_device": 2,
                        "layout": {"micro_batch": 1, "recompute": "block", "tile_bytes": "64MiB",
                                   "offload": {"parameter": "nvme", "gradient": "nvme", "optimizer": "nvme"}},
                        "resources.device_memory": "512MiB", "resources.host_memory": "1GiB", "resources.nvme": str(nvme)})
        plan = self.terrace("plan", job, "-o", "json").json()
        self.assertEqual(int(plan["model"]["parameters"]), 1_100_048_384)
        running = self.run_command(["bash", "-c", f'ulimit -v {LIMIT >> 10}; exec "$@"', "bash", BIN / "terrace", "run", job, "-o", "json"])
        running.wait_for(lambda event: event["event"] == "step", seconds=900)
        pid, = self.rank_pids()
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
        resident = int(status.split("VmHWM:")[1].split()[0]) * 1024
        print(f"  the most that was resident: {resident / 2**20:.0f} MiB")
        self.assertLess(resident, (512 << 20) + (1 << 30))
        result = running.wait(900)
        self.assertEqual(result.code, OK, str(result))
        self.assertEqual(sorted(result.losses), [1, 2])
        print("  seconds a step:", [round(event["step_seconds"], 1) for event in result.events("step")])


if __name__ == "__main__":
    unittest.main()

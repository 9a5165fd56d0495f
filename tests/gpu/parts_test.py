#!/usr/bin/env python3
"""The parts of tests/gpu/run.sh against a `terrace` that prints what the test says: verdicts, tables, JSON, exit codes, skips.
What the real programs do there is rehearsal_test.py's."""
import json
import os
import pathlib
import stat
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import models  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent

# Prints a plan and steps; losses by what its job asks for, from the table beside it.
TERRACE = """#!/usr/bin/python3 -IS
import json, pathlib, sys, time
here = pathlib.Path(__file__).parent
if "devices" in sys.argv:
    print((here / "devices.json").read_text()); sys.exit(0)
if "probe" in sys.argv:
    rates = json.loads((here / "rates.json").read_text())
    (here / "rates.json").write_text(json.dumps(rates[1:] + rates[:1]))
    if not rates[0]:
        print("no room on the device", file=sys.stderr); sys.exit(8)
    names = ("bf16_flops", "f32_flops", "memory_bytes", "to_device_bytes", "to_host_bytes")
    print(json.dumps({"instruction_overhead_seconds": rates[0] * 1e-18, **{f"{name}_per_second": rates[0] for name in names}}))
    sys.exit(0)
spec = json.loads(pathlib.Path(next(a for a in sys.argv if a.endswith(".yaml"))).read_text())
answer = json.loads((here / "answer.json").read_text())
arena = 1000000 if "offload" in spec["layout"] else 2000000
memory = [{"tier": "DEVICE", "arena_bytes": str(arena), "external_bytes": "500000", "max_by_class": {"parameter": str(arena)}}]
away = ["HOST"] * ("host_memory" in spec.get("resources", {})) + ["NVME"] * ("nvme" in spec.get("resources", {}))
memory += [{"tier": tier, "arena_bytes": "700000", "max_by_class": {"optimizer": answer.get("state_bytes", "0")}} for tier in away]
plan = {"memory": memory, "break_even_tokens": answer.get("break_even", 0)}
if "plan" in sys.argv:
    print(json.dumps(plan)); sys.exit(0)
count = here / "count"
runs = int(count.read_text()) if count.exists() else 0
count.write_text(str(runs + 1))
if answer.get("without_fp8") and spec["train"]["precision"] == "fp8":
    print("terrace: rank 0: cuda: Fake 1GB has no units for 8-bit products: set train.precision to bf16", flush=True); sys.exit(5)
if answer.get("fails"):
    print("terrace: model.config: it is no good", flush=True); sys.exit(5)
time.sleep(answer.get("sleeps", 0))
print(json.dumps({"event": "plan", "plan": plan}))
speed = answer.get("offloaded", 1000) if "offload" in spec["layout"] else answer.get("speed", 1000)
(here / "spec.json").write_text(json.dumps(spec))
for step in range(1, spec["train"]["steps"] + 1):
    loss = 5.0 - 0.1 * step + answer["errors"][runs % len(answer["errors"])]
    norm = "null" if step <= answer.get("skipped", [0])[runs % len(answer.get("skipped", [0]))] else "1.5"
    print('{"event": "step", "step": %d, "loss": %.9g, "grad_norm": %s, "tokens_per_second": %d, "step_seconds": 0.1}' %
          (step, loss, norm, speed))
"""


class PartsTest(unittest.TestCase):
    def setUp(self):
        self.bin = pathlib.Path(tempfile.mkdtemp())
        for name in ("terrace", "terrace-rank"):
            path = self.bin / name
            path.write_text(TERRACE)
            path.chmod(path.stat().st_mode | stat.S_IXUSR)
        self.answer(errors=[0])
        self.report = None

    def answer(self, **answer):
        (self.bin / "answer.json").write_text(json.dumps(answer))

    def devices(self, **devices):
        (self.bin / "devices.json").write_text(json.dumps(devices))

    def run_part(self, name, *arguments):
        path = self.bin / "report.json"
        done = subprocess.run([sys.executable, "-B", HERE / f"{name}.py", "--bin", self.bin, "--json", path, *arguments],
                              capture_output=True, text=True, timeout=60)
        self.report = json.loads(path.read_text()) if path.exists() else None
        return done

    def test_equal_losses_pass(self):
        done = self.run_part("parity", "--device", "cpu")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual([row["passed"] for row in self.report["rows"]], [True] * 10)
        self.assertEqual(self.report["rows"][0]["loss"], "0.0e+00")
        self.assertRegex(done.stdout, r"(?m)^llama bf16 .*yes$")

    def test_a_loss_beyond_its_bound_fails(self):
        self.answer(errors=[0, 0.001, 0.001])  # the CPU's, the GPU's, the GPU's again
        done = self.run_part("parity", "--device", "cpu")
        self.assertEqual(done.returncode, 1)
        verdicts = {row["job"]: row["passed"] for row in self.report["rows"]}
        self.assertEqual(verdicts, {"gpt fp32": False, "gpt tf32": True, "gpt bf16": True, "gpt fp16": True, "gpt fp8": True,
                                    "llama fp32": False, "llama tf32": True, "llama bf16": True, "llama fp16": True, "llama fp8": True})
        self.assertRegex(done.stdout, r"(?m)^gpt fp32 .*NO$")

    def test_steps_are_skipped_on_both_devices_or_on_none(self):
        self.answer(errors=[0], skipped=[2])
        done = self.run_part("parity", "--device", "cpu")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.answer(errors=[0], skipped=[2, 3, 3])  # the CPU's, the GPU's, the GPU's again
        self.assertEqual(self.run_part("parity", "--device", "cpu").returncode, 1)
        self.assertEqual({row["grad_norm"] for row in self.report["rows"]}, {"inf"})

    def test_a_gpu_without_fp8_is_compared_in_all_else(self):
        self.answer(errors=[0], without_fp8=True)
        done = self.run_part("parity", "--device", "cpu")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual([row["job"] for row in self.report["rows"] if "fp8" in row["job"]], [])
        self.assertEqual(len(self.report["rows"]), 8)
        self.assertEqual(self.report["notes"], [f"{name} fp8 was not run: this GPU has no units for 8-bit products"
                                                for name in ("gpt", "llama")])

    def test_other_digits_in_a_second_run_fail(self):
        self.answer(errors=[0, 0, 1e-8])
        done = self.run_part("parity", "--device", "cpu")
        self.assertEqual(done.returncode, 1)
        self.assertEqual({row["same_digits_again"] for row in self.report["rows"]}, {"no"})

    def test_states_elsewhere_must_not_change_a_digit(self):
        self.assertEqual(self.run_part("offload", "--device", "cpu").returncode, 0)
        self.assertEqual([row["device_mib"] for row in self.report["rows"]], [1.9, 1.0, 1.0, 1.0])
        self.answer(errors=[0, 0, 1e-8, 0])
        self.assertEqual(self.run_part("offload", "--device", "cpu").returncode, 1)
        self.assertEqual([row["passed"] for row in self.report["rows"]], [True, True, False, True])

    def large(self, shape):
        self.devices(devices=1, name="NVIDIA H200", memory_bytes=141 * 2**30)
        return self.run_part("large", "--shape", shape)

    def test_above_break_even_the_offloaded_job_keeps_nine_tenths(self):
        self.answer(errors=[0], offloaded=910, break_even=20_000)
        self.assertEqual(self.large("7b").returncode, 0)
        self.assertEqual((self.report["rows"][0]["tokens"], self.report["rows"][0]["of_resident"]), (4 * 8 * 1024, "91%"))
        self.answer(errors=[0], offloaded=890, break_even=20_000)
        self.assertEqual(self.large("7b").returncode, 1)

    def test_states_beyond_the_device_are_all_held_somewhere(self):
        self.answer(errors=[0], state_bytes=str(16 * 13_015_864_320))
        self.assertEqual(self.large("13b").returncode, 0, self.report)
        self.answer(errors=[0], state_bytes="1000")
        self.assertEqual(self.large("13b").returncode, 1)
        self.answer(errors=[float("nan")], state_bytes=str(16 * 13_015_864_320))
        self.assertEqual(self.large("13b").returncode, 1)

    def rates(self, *rates, device="cuda"):
        """Of what the first, the second call measures; 0: it fails."""
        self.devices(devices=1, name="NVIDIA H100", memory_bytes=80 * 2**30)
        (self.bin / "rates.json").write_text(json.dumps(rates))
        return self.run_part("rates", "--device", device)

    def test_rates_that_do_not_agree_fail(self):
        self.assertEqual(self.rates(1e12, 1.05e12).returncode, 0)
        self.assertEqual([row["passed"] for row in self.report["rows"]], [True] * 6)
        done = self.rates(1e12, 1.2e12)
        self.assertEqual(done.returncode, 1)
        self.assertEqual([row["passed"] for row in self.report["rows"]], [False] * 5 + [True], "an instruction's time is not judged")
        self.assertRegex(done.stdout, r"memory, GB/s +1000 +1200 +20.0% +NO")
        self.assertEqual(self.rates(1e12, -1.0).returncode, 1)
        self.assertEqual(self.rates(1e12, 1.2e12, device="cpu").returncode, 0, "a rehearsal judges no speed")

    def test_a_probe_that_fails_is_a_failure_with_its_message(self):
        self.assertEqual(self.rates(0).returncode, 1)
        self.assertIn("no room on the device", " ".join(self.report["notes"]))

    def test_layouts_are_compared_with_one_rank(self):
        self.answer(errors=[0, 0, 0.01, 0, 0, 0, 0, 0])
        done = self.run_part("shared", "--device", "cpu")
        self.assertEqual(done.returncode, 1)
        self.assertEqual([row["layout"] for row in self.report["rows"] if row["passed"] is False], ["zero 3"])

    def test_a_job_that_fails_is_a_failure_with_its_message(self):
        self.answer(errors=[0], fails=True)
        done = self.run_part("shared", "--device", "cpu")
        self.assertEqual(done.returncode, 1)
        self.assertIn("it is no good", " ".join(self.report["notes"]))

    def test_a_part_that_is_out_of_time_has_not_passed(self):
        self.answer(errors=[0], sleeps=0.7)
        done = self.run_part("shared", "--device", "cpu", "--seconds", "1")
        self.assertEqual(done.returncode, 1)
        self.assertIn("out of time after 1 s", done.stdout)

    def test_a_gpu_is_named_and_its_absence_is_a_skip(self):
        self.devices(devices=0, problem="cuda: no NVIDIA driver on this machine: install it, or run on the CPU")
        done = self.run_part("parity")
        self.assertEqual(done.returncode, 77)
        self.assertEqual(done.stderr, "parity: not run: cuda: no NVIDIA driver on this machine: install it, or run on the CPU\n")
        self.assertEqual((self.report["exit_code"], self.report["rows"]), (77, []))
        self.devices(devices=1, name="NVIDIA H100", memory_bytes=80 * 2**30)
        done = self.run_part("shared")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.report["device"], "NVIDIA H100, 80.0 GiB, one of 1")
        self.assertFalse(self.report["rehearsal"])

    def test_a_python_without_torch_is_a_skip(self):
        done = self.run_part("bench_pytorch", "--device", "cpu", "--python", "/bin/false")
        self.assertEqual(done.returncode, 77)
        self.assertIn("/bin/false has no torch: install it (pip install torch)", done.stderr)

    def torch(self, script, model="gpt2-124m", gpus=1):
        """A Python whose torch sees a GPU, and whose training is `script`."""
        path = self.bin / "python-with-torch"
        path.write_text(f"#!/bin/sh\nif [ \"$1\" = -c ]; then echo 2.9.0 True; exit; fi\n{script}\n")
        path.chmod(0o755)
        self.devices(devices=gpus, name="NVIDIA H100 80GB HBM3", memory_bytes=80 * 2**30)
        return ("--python", path, "--model", model)

    def test_speed_and_memory_are_held_to_their_bounds(self):
        answer = '{"tokens_per_second": %d, "peak_bytes": %d, "loss": 9.0, "torch": "2.9.0"}'
        for speed, peak, passed in ((800, 4_000_000, True), (900, 4_000_000, False), (800, 2_500_000, False)):
            done = self.run_part("bench_pytorch", *self.torch(f"echo '{answer % (speed, peak)}'"))
            self.assertEqual([row["passed"] for row in self.report["rows"]], [passed], done.stderr)
            self.assertEqual(done.returncode, 0 if passed else 1)
        self.assertEqual(self.report["rows"][0]["mfu"], "0.1%")

    def test_a_shape_that_pytorch_cannot_hold_is_not_compared(self):
        done = self.run_part("bench_pytorch", *self.torch("echo torch.OutOfMemoryError >&2; exit 1"))
        self.assertEqual(done.returncode, 77)
        self.assertIn("gpt2-124m 1024: not compared, PyTorch ran out of memory (2 GiB of states)", done.stderr)
        self.assertEqual([(row["terrace_tokens_per_second"], row["passed"]) for row in self.report["rows"]], [(1000, None)])

    def test_terrace_runs_before_pytorch(self):
        answer = '{"tokens_per_second": 800, "peak_bytes": 4000000, "loss": 9.0, "torch": "2.9.0"}'
        done = self.run_part("bench_pytorch", *self.torch(f"test -f {self.bin}/count || exit 1; echo '{answer}'"))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_the_mfu_row_is_judged_without_a_pytorch_that_has_no_room(self):
        out_of_memory = "echo torch.OutOfMemoryError >&2; exit 1"
        self.answer(errors=[0], speed=30_000)
        done = self.run_part("bench_pytorch", *self.torch(out_of_memory, "mfu"))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual([(row["shape"], row["mfu"]) for row in self.report["rows"]], [("mfu: qwen2.5-3b 4096", "61.7%")])
        self.assertIn("PyTorch ran out of memory (46 GiB of states)", done.stdout)
        spec = json.loads((self.bin / "spec.json").read_text())
        self.assertEqual((spec["layout"]["recompute"], spec["train"]["global_batch"] * spec["data"]["sequence_length"]),
                         ("selective", 32768))
        self.answer(errors=[0], speed=20_000)
        self.assertEqual(self.run_part("bench_pytorch", *self.torch(out_of_memory, "mfu")).returncode, 1)

    def test_the_mfu_row_is_the_largest_shape_that_the_gpus_hold(self):
        self.answer(errors=[0], speed=30_000)
        done = self.run_part("bench_pytorch", *self.torch("exit 1", "mfu", gpus=2))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual([(row["shape"], row["passed"]) for row in self.report["rows"]], [("mfu: qwen2.5-7b 4096", True)])
        self.assertIn("not compared, PyTorch's side is for one GPU, and the shape takes 2", done.stdout)
        layout = json.loads((self.bin / "spec.json").read_text())["layout"]
        self.assertEqual((layout["dp"], layout["zero"], layout["micro_batch"]), (2, 3, 1))

    def test_a_shape_is_not_begun_without_time_for_it(self):
        done = self.run_part("bench_pytorch", *self.torch("exit 1"), "--seconds", "30")
        self.assertEqual(done.returncode, 77)
        self.assertRegex(done.stderr, "gpt2-124m 1024: not run, (29|30) s are too few: name the model with --model")

    def test_run_sh_sums_up(self):
        environment = {**os.environ, "TERRACE_GPU_DEVICE": "cpu", "TERRACE_GPU_OUT": str(self.bin / "out"), "TERRACE_BIN": str(self.bin),
                       "TERRACE_PYTHON": sys.executable}
        done = subprocess.run([HERE / "run.sh", "offload", "conformance"], capture_output=True, text=True, timeout=60, env=environment)
        self.assertEqual(done.returncode, 77, done.stderr)
        self.assertRegex(done.stdout, r"offload +\d+  passed\nconformance +\d+  not run\n")
        summary = json.loads((self.bin / "out/summary.json").read_text())
        self.assertEqual({name: part["exit_code"] for name, part in summary["parts"].items()}, {"offload": 0, "conformance": 77})
        self.assertEqual(json.loads((self.bin / "out/offload.json").read_text())["exit_code"], 0)
        self.answer(errors=[0, 1])
        failed = subprocess.run([HERE / "run.sh", "offload"], capture_output=True, text=True, timeout=60, env=environment)
        self.assertEqual(failed.returncode, 1)
        wrong = subprocess.run([HERE / "run.sh", "nothing"], capture_output=True, text=True, timeout=60, env=environment)
        self.assertEqual(wrong.returncode, 2)
        self.assertIn("there is no part 'nothing': build conformance", wrong.stderr)


class ModelsTest(unittest.TestCase):
    def test_parameters_are_the_published_ones(self):
        counts = {name: models.parameters_of(config)[0] for name, config in models.PUBLISHED.items()}
        self.assertEqual(counts, {"gpt2-124m": 124_439_808, "gpt2-1.5b": 1_557_611_200, "qwen2.5-0.5b": 494_032_768,
                                  "qwen2.5-1.5b": 1_543_714_304, "qwen2.5-3b": 3_085_938_688, "qwen2.5-7b": 7_615_616_512,
                                  "llama-13b": 13_015_864_320})


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Terrace as a service: submit, look, follow, cancel, queue; in tables for people and in JSON for programs; metrics."""
import concurrent.futures
import http.client
import json
import shutil
import socket
import ssl
import subprocess
import time
import unittest
import urllib.error
import urllib.request

from service import ServiceTest, free_port, samples_of
from support import CANCELLED, INVALID_INPUT, NOT_FOUND, OK, RESOURCES, UNAVAILABLE

ENDLESS = {"train.steps": 100_000}
WORKER_SERIES = {
    "terrace_memory_bytes", "terrace_memory_capacity_bytes", "terrace_memory_limit_bytes", "terrace_memory_predicted_bytes",
    "terrace_memory_external_bytes", "terrace_allocator_reserved_bytes", "terrace_step_seconds", "terrace_steps_total",
    "terrace_tokens_total", "terrace_loss", "terrace_grad_norm", "terrace_mfu_ratio",
    "terrace_step_last_completed_timestamp_seconds", "terrace_collective_seconds_total", "terrace_worker_connected"}
COORDINATOR_SERIES = {"terrace_jobs", "terrace_workers", "terrace_plan_memory_error_bytes", "terrace_plan_step_time_error_ratio", "terrace_rpc_seconds_count"}


class LifeTest(ServiceTest):
    def test_a_job_from_submission_to_its_end(self):
        self.start_service()
        steps = 1200  # six commands are typed meanwhile, on a busy machine too
        path = self.job({"train.steps": steps, "train.global_batch": 16, "resources.nodes": 2, "checkpoint.every_steps": 600,
                         "train.trace_steps": 3})
        submitted = self.cli("submit", path)
        self.assertIn("terrace watch tiny-1-1", submitted.out)
        job = "tiny-1-1"

        self.wait_for_steps(job, 20)
        with self.subTest("ls"):
            listed = self.cli("ls", "-o", "json").json()["jobs"]
            self.assertEqual([(item["id"], item["state"]) for item in listed], [(job, "RUNNING")])
            self.assertRegex(self.cli("ls").out, rf"JOB +STATE.*\n{job} +RUNNING")
        with self.subTest("status"):
            status = self.status(job)
            self.assertEqual(sorted(rank["worker"] for rank in status["placement"]["ranks"]), ["worker-0", "worker-1"])
            self.assertEqual(status["progress"]["arena_bytes"], status["plan"]["memory"][0]["arena_bytes"])
            table = self.cli("status", job).out
            for words in ("RUNNING", f"of {steps}", "loss", "arenas", "rank", "worker-1"):
                self.assertIn(words, table)
        with self.subTest("nodes"):
            self.assertEqual([node["devices_used"] for node in self.nodes()], [1, 1])
            self.assertRegex(self.cli("nodes").out, r"worker-1 +ready +1/1")
        with self.subTest("explain"):
            self.assertIn("all_reduce", self.cli("explain", job).out.lower())
        follower = self.start("--coordinator", self.address, "logs", job, "--rank", 1, "-f")
        watcher = self.start("--coordinator", self.address, "watch", job, "-o", "json")
        self.assertEqual(self.cli("watch", job, code=OK).code, OK)

        watched = watcher.wait()
        self.assertEqual(watched.code, OK)
        self.assertEqual(len(watched.events()), len(watched.out.splitlines()), "every line is JSON")
        self.assertEqual(sorted(watched.losses), list(range(1, steps + 1)))
        self.assertEqual(watched.events("state")[-1]["state"], "SUCCEEDED")
        followed = follower.wait()
        self.assertEqual(followed.code, OK, "it ends with the job")
        self.assertIn("rank 1", followed.out)
        with self.subTest("logs"):
            whole = self.cli("logs", job, "--rank", 0).out
            self.assertIn("memory: device", whole)
            self.assertEqual(self.cli("logs", job, "--rank", 0, "-n", 1).out, whole.splitlines(keepends=True)[-1])
        with self.subTest("trace"):
            trace = self.cli("trace", job, "--rank", 1, "-o", "json").json()["traceEvents"]
            slices = [event for event in trace if event["ph"] == "X"]
            self.assertEqual({event["args"]["step"] for event in slices}, {0, 1, 2})
            self.assertEqual({event["pid"] for event in trace}, {1})
            self.assertRegex(self.cli("trace", job).out, r"STREAM +OPERATION +CALLS +MS +OF THE STEP\n(.*\n)+step: [0-9.]+ ms\n$")
            path = self.folder / "trace.json"
            self.assertIn(str(path), self.cli("trace", job, "--output", path).out)
            self.assertEqual(len(json.loads(path.read_text())["traceEvents"]), len(trace))
            written = self.cli("trace", job, "--output", path, "-o", "json").json()["files"]
            self.assertEqual([(file["path"], file["bytes"]) for file in written], [(str(path), path.stat().st_size)])
        status = self.status(job)
        self.assertEqual((status["state"], status["reason"]), ("SUCCEEDED", "REASON_COMPLETED"))
        self.assertEqual(self.cli("ls", "-o", "json").json()["jobs"], [])
        self.assertEqual([item["id"] for item in self.cli("ls", "-a", "-o", "json").json()["jobs"]], [job])
        self.assertEqual(self.rank_pids(), [])

    def test_submit_and_watch_in_one_command(self):
        self.start_service(1)
        job = self.job({"train.steps": 20})
        result = self.cli("submit", "--watch", job, "-o", "json")
        self.assertEqual(sorted(result.losses), list(range(1, 21)))
        with self.subTest("again, with nothing left to do: no loss and no speed are known"):
            self.cli("submit", "--watch", job)
            self.assertRegex(self.cli("ls", "-a").out, r"tiny-1-2 +SUCCEEDED +COMPLETED +20/20 +- +- ")
            self.assertNotRegex(self.cli("status", "tiny-1-2").out, r"(?m)^(loss|speed) ")
        untraced = self.cli("trace", "tiny-1-1", code=NOT_FOUND)
        self.assertIn("train.trace_steps", untraced.err)
        self.assertNotIn("no coordinator", untraced.err)

    def test_plan_is_for_the_workers_of_the_coordinator(self):
        self.start_service(1)
        plan = self.cli("plan", self.job(), "-o", "json").json()
        self.assertTrue(plan["profile"]["measured"])
        memory = plan["memory"][0]
        self.assertLess(0, memory["max_by_class"]["activation"])
        for name, at_peak in memory["at_peak"].items():
            if name != "gaps":
                self.assertLessEqual(at_peak, memory["max_by_class"][name], name)
        self.assertEqual(self.cli("ls", "-a", "-o", "json").json()["jobs"], [], "a plan is no job")


class CancelTest(ServiceTest):
    def test_cancel_writes_a_checkpoint_and_force_does_not(self):
        self.start_service(1)
        gentle_path, forced_path = self.job(ENDLESS), self.job(ENDLESS)
        gentle = self.submit(gentle_path)
        self.wait_for_steps(gentle, 10)
        self.assertIn("after this step", self.cli("cancel", gentle).out)
        status = self.wait_for_state(gentle, "CANCELLED")
        self.assertEqual(status["reason"], "REASON_CANCELLED_BY_USER")
        saved = self.checkpoints(gentle_path)
        self.assertEqual(status["progress"]["checkpoint"], str(saved[-1]))
        self.cli("ckpt", "verify", saved[-1])
        self.cli("watch", gentle, code=CANCELLED)

        forced = self.submit(forced_path)
        self.wait_for_steps(forced, 10)
        self.cli("cancel", "--force", forced, "-o", "json")
        self.wait_for_state(forced, "CANCELLED")
        self.assertEqual(self.checkpoints(forced_path), [])
        self.wait_until(lambda: not self.rank_pids(), "no rank is left", seconds=5)

    def test_cancel_of_a_waiting_and_of_an_ended_job(self):
        self.start_service(1)
        busy = self.submit(self.job(ENDLESS))
        waiting = self.submit(self.job(ENDLESS))
        self.wait_for_state(busy, "RUNNING")
        self.cli("cancel", waiting)
        self.assertEqual(self.status(waiting)["state"], "CANCELLED")
        self.cli("cancel", waiting, code=None)
        self.assertEqual(self.status(waiting)["state"], "CANCELLED")
        self.cli("cancel", "--force", busy)
        self.wait_for_state(busy, "CANCELLED")

    def test_unknown_jobs_are_not_found(self):
        self.start_service(0)
        for command in ("cancel", "pause", "resume", "status", "watch", "logs", "explain"):
            with self.subTest(command):
                result = self.cli(command, "no-such-job-1", code=NOT_FOUND)
                self.refused(result, "no-such-job-1", "terrace ls")


class QueueTest(ServiceTest):
    def test_second_job_waits_for_devices_and_then_runs(self):
        self.start_service(1)
        first = self.submit(self.job(ENDLESS))
        self.wait_for_state(first, "RUNNING")
        second = self.submit(self.job({"train.steps": 10}))
        status = self.wait_for_state(second, "QUEUED")
        self.wait_until(lambda: self.status(second)["reason"] == "REASON_WAITING_FOR_DEVICES", "the reason is shown")
        message = self.status(second)["message"]
        self.assertRegex(message, r"\d.*device", "the sentence names numbers")
        self.assertRegex(self.cli("ls").out, rf"{second} +QUEUED +WAITING_FOR_DEVICES")
        self.assertIn(message, self.cli("status", second).out)
        self.cli("cancel", first)
        self.cli("watch", second, code=OK)

    def test_job_that_no_worker_could_hold_says_so_and_starts_when_one_comes(self):
        self.start_service(1)
        job = self.submit(self.job({"train.steps": 10, "resources.nodes": 2}))
        status = self.wait_for_state(job, "QUEUED")
        self.assertEqual(status["reason"], "REASON_NO_MATCHING_WORKER")
        self.assertRegex(status["message"], r"\b2\b.*\b1\b|\b1\b.*\b2\b")
        self.start_worker("late")
        self.cli("watch", job, code=OK)


class SharedThingsTest(ServiceTest):
    def test_two_jobs_do_not_write_into_one_checkpoint_directory(self):
        self.start_service(2)
        path = self.job({**ENDLESS, "checkpoint.every_steps": 20})
        directory = str(path.parent / "checkpoints")
        first = self.submit(path)
        self.wait_for_steps(first, 30)
        second = self.job({"train.steps": 10, "checkpoint.directory": directory})
        self.refused(self.cli("submit", second, code=INVALID_INPUT), "checkpoint.directory", directory, first, "RUNNING")
        # Another coordinator does not know of the job; the lock in the directory stops it.
        self.refused(self.terrace("run", second, code=None), "checkpoint_error", f"job {first} writes into", directory)
        # A folder has more than one name.
        alias = self.folder / "alias"
        alias.symlink_to(path.parent)
        third = self.job({"train.steps": 10, "checkpoint.directory": str(alias / "checkpoints")})
        self.refused(self.cli("submit", third, code=INVALID_INPUT), f"which is {directory}, into which job {first}")
        self.assertEqual(self.status(first)["state"], "RUNNING")
        self.cli("cancel", first)
        self.wait_for_state(first, "CANCELLED")
        self.cli("ckpt", "verify", directory)

    def test_job_larger_than_any_worker_is_refused_with_bytes(self):
        self.start_coordinator()
        self.start_worker("small", "--device-memory", "97MiB")
        result = self.cli("submit", self.job(), code=None)
        self.assertEqual(result.code, RESOURCES, str(result))
        self.refused(result, "bytes", "97.0 MiB", "cheapest change")


class AwayTest(ServiceTest):
    def test_every_command_says_that_no_coordinator_answers(self):
        self.start_coordinator().end()
        path = self.job()
        for command in (("ls",), ("status", "x-1"), ("watch", "x-1"), ("logs", "x-1"), ("cancel", "x-1"), ("pause", "x-1"), ("resume", "x-1"), ("nodes",),
                        ("submit", path), ("plan", path), ("explain", "x-1")):
            with self.subTest(command[0]):
                self.refused(self.cli(*command, code=UNAVAILABLE), self.address, "terrace-coordinator serve")
        error = self.cli("ls", "-o", "json", code=UNAVAILABLE).json()
        self.assertEqual((error["event"], error["exit_code"]), ("error", UNAVAILABLE))

    def test_port_that_is_in_use(self):
        self.start_coordinator()
        result = self.terrace("serve", "--listen", self.address, "--state-dir", self.folder / "other",
                              program="terrace-coordinator", code=UNAVAILABLE)
        self.refused(result, self.address, "in use", "port 0")
        self.assertEqual(self.nodes(), [], "the first one is unharmed")

    def test_state_that_is_in_use(self):
        self.start_coordinator()
        result = self.terrace("serve", "--listen", "127.0.0.1:0", "--state-dir", self.folder / "coordinator",
                              program="terrace-coordinator", code=None)
        self.assertNotEqual(result.code, OK, "two coordinators on one store would start every job twice")
        self.refused(result, str(self.folder / "coordinator"), "choose another")
        self.start_worker("worker-0")
        result = self.terrace("--coordinator", self.address, "--name", "twin", "--state-dir", self.folder / "worker-0",
                              program="terrace-worker", code=UNAVAILABLE)
        self.refused(result, "another worker", "choose another")

    def test_bad_spec_is_refused_before_it_is_a_job(self):
        self.start_service(0)
        self.refused(self.cli("submit", self.job({"train.steps": 0}), code=INVALID_INPUT), "train.steps", "line")
        self.assertEqual(self.cli("ls", "-a", "-o", "json").json()["jobs"], [])


class MetricsTest(ServiceTest):
    def check(self, text):
        if shutil.which("promtool"):
            linted = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=30)
            self.assertEqual(linted.returncode, 0, linted.stdout + linted.stderr)
        return samples_of(text)

    def test_both_daemons_export_the_documented_series(self):
        self.start_service(1)
        job = self.submit(self.job(ENDLESS))
        self.wait_for_steps(job, 50)
        address = self.nodes()[0]["metrics_address"]
        labels = (("job", job), ("rank", "0"))

        samples = self.wait_until(
            lambda: (found := self.check(self.metrics(address))).get(("terrace_steps_total", labels), 0) > 0 and found,
            "the rank's metrics arrive")
        self.assertLessEqual(WORKER_SERIES, {name for name, _ in samples})
        self.assertEqual(samples["terrace_memory_predicted_bytes", (*labels, ("tier", "device"))],
                         samples["terrace_allocator_reserved_bytes", labels])
        by_class = {dict(found)["class"]: value for (name, found), value in samples.items() if name == "terrace_memory_bytes"}
        self.assertLessEqual({"parameter", "optimizer"}, set(by_class), "what lives at every moment")
        self.assertGreater(samples["terrace_loss", labels], 0)

        samples = self.wait_until(  # the coordinator publishes them once a second
            lambda: (found := self.check(self.metrics(self.coordinator_metrics))).get(("terrace_job_step", labels[:1]), 0) > 0 and found,
            "the job's progress arrives")
        self.assertLessEqual(COORDINATOR_SERIES, {name for name, _ in samples})
        spent = [value for (name, found), value in samples.items() if name == "terrace_job_spent_seconds_total"]
        self.assertAlmostEqual(sum(spent), samples["terrace_job_wall_seconds_total", labels[:1]], 6)
        self.assertRegex(self.cli("status", job).out, r"\ntime +\d\S* \w+: \d+ % \w+")
        self.assertEqual(samples["terrace_jobs", (("state", "running"),)], 1)
        self.assertEqual(samples["terrace_workers", (("state", "ready"),)], 1)
        self.assertEqual(samples["terrace_plan_memory_error_bytes", (("job", job),)], 0)

        self.cli("cancel", "--force", job)
        self.wait_for_state(job, "CANCELLED")
        self.wait_until(lambda: job not in self.metrics(address), "a job's series end with it", seconds=10)

    def test_connections_that_never_speak_hold_nobody_up_and_are_closed(self):
        self.start_service(1)
        addresses = (self.address, self.coordinator_metrics, self.nodes()[0]["metrics_address"])
        silent = [socket.create_connection(tuple(address.split(":"))) for address in addresses for _ in range(20)]
        begin = time.monotonic()
        for address in addresses[1:]:
            self.check(self.metrics(address))
        self.assertEqual(self.node_states(), {"worker-0": "ready"})
        self.assertLess(time.monotonic() - begin, 3)
        for connection in silent:
            with connection:
                connection.settimeout(20)
                while connection.recv(1000):  # gRPC says its settings first
                    pass
        self.assertLess(time.monotonic() - begin, 15)

    def test_ten_thousand_scrapes_and_readers_that_are_slow_delay_no_heartbeat(self):
        self.start_service(1)
        job = self.submit(self.job(ENDLESS))
        self.wait_for_steps(job, 2)
        addresses = [self.coordinator_metrics, self.nodes()[0]["metrics_address"]]
        request = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
        slow = []
        for address in addresses:
            for sent in (b"GET /metr", request * 50) * 10:  # half a request; answers that nobody reads
                slow.append(socket.create_connection(tuple(address.split(":"))))
                slow[-1].sendall(sent)

        def scrape(address):
            connection = http.client.HTTPConnection(address, timeout=30)
            for _ in range(500):
                connection.request("GET", "/metrics")
                self.assertEqual(connection.getresponse().read()[:6], b"# HELP")
        with concurrent.futures.ThreadPoolExecutor(20) as pool:
            scrapes = [pool.submit(scrape, address) for address in addresses * 10]
            self.assert_trains_while(job, scrapes)
        for connection in slow:
            connection.close()
        self.cli("cancel", "--force", job)

    def certificates(self):
        """A certificate authority, and a certificate of this machine that it signed."""
        script = ("openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -days 2 -subj /CN=ca && "
                  "openssl req -newkey rsa:2048 -nodes -keyout node.key -out node.csr -subj /CN=localhost && "
                  "echo subjectAltName=DNS:localhost,IP:127.0.0.1 > node.ext && openssl x509 -req -in node.csr -CA ca.pem "
                  "-CAkey ca.key -CAcreateserial -days 2 -extfile node.ext -out node.pem")
        if shutil.which("openssl") is None:
            self.skipTest("there is no openssl program")
        subprocess.run(script, shell=True, cwd=self.folder, check=True, capture_output=True, timeout=60)
        return [str(self.folder / name) for name in ("node.pem", "node.key", "ca.pem")]

    def test_off_loopback_metrics_are_for_those_with_a_certificate(self):
        wide = ("serve", "--listen", "127.0.0.1:0", "--state-dir", self.folder / "other", "--metrics-listen")
        self.refused(self.terrace(*wide, "0.0.0.0:0", program="terrace-coordinator", code=INVALID_INPUT),
                     "--metrics-listen: 0.0.0.0:0", "--tls-cert", "--metrics-insecure")
        cert, key, ca = self.certificates()
        port = free_port()
        self.start(*wide, f"0.0.0.0:{port}", "--tls-cert", cert, "--tls-key", key, "--tls-ca", ca, program="terrace-coordinator")
        stranger = ssl.create_default_context(cafile=ca)
        member = ssl.create_default_context(cafile=ca)
        member.load_cert_chain(cert, key)
        url = f"https://localhost:{port}/metrics"

        def scraped():
            """The page answers before the coordinator has filled it for the first time."""
            try:
                page = urllib.request.urlopen(url, context=member, timeout=10).read().decode()
            except urllib.error.URLError:
                return None
            return page if "terrace_jobs" in page else None
        self.wait_until(scraped, "the metrics with the jobs are served")
        with self.assertRaises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(url, context=stranger, timeout=10)
        self.assertEqual(refused.exception.code, 403)

    def test_tls_files_that_do_not_fit_are_told_before_they_are_used(self):
        cert, key, ca = self.certificates()
        other = str(self.folder / "ca.key")
        wrong = ("--tls-cert", cert, "--tls-key", other, "--tls-ca", ca)
        state = ("--state-dir", self.folder / "other")
        for program, arguments in (("terrace", ("--coordinator", "127.0.0.1:1", *wrong, "nodes")),
                                   ("terrace-coordinator", ("serve", "--listen", "127.0.0.1:0", *state, *wrong)),
                                   ("terrace-worker", ("--coordinator", "127.0.0.1:1", *state, *wrong))):
            with self.subTest(program):
                self.refused(self.terrace(*arguments, program=program, code=INVALID_INPUT),
                             f"--tls-key: the key in {other} is not that of the certificate in {cert}")
        self.refused(self.terrace("--coordinator", "127.0.0.1:1", "--tls-ca", key, "nodes", code=INVALID_INPUT),
                     f"--tls-ca: {key} holds no certificate")


if __name__ == "__main__":
    unittest.main(verbosity=2)

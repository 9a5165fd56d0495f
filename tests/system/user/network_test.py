#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two machines on a network of their own, without a default route: ranks find each other there, an address that others cannot
reach is noticed before a job is placed, and addresses can be named. Network namespaces stand for the machines."""
import os
import subprocess
import time
import unittest
import uuid

from service import ServiceTest, Standstill
from support import BIN, INVALID_INPUT

ADDRESSES = ("10.77.0.1", "10.77.0.2")


def ip(*arguments):
    return subprocess.run(["ip", *arguments], capture_output=True, text=True)


def namespaces_can_be_made():
    name = f"terrace-{uuid.uuid4().hex[:8]}"
    made = os.geteuid() == 0 and ip("netns", "add", name).returncode == 0
    if made:
        ip("netns", "del", name)
    return made


@unittest.skipUnless(namespaces_can_be_made(), "network namespaces need root")
class IsolatedNetworkTest(ServiceTest):
    def setUp(self):
        super().setUp()
        mark = uuid.uuid4().hex[:8]
        self.machines = [f"terrace-{mark}-{index}" for index in range(2)]
        self.links = [f"t{mark}{index}" for index in range(2)]
        for machine in self.machines:
            self.assertEqual(ip("netns", "add", machine).returncode, 0)
            self.addCleanup(ip, "netns", "del", machine)
        ip("link", "add", self.links[0], "netns", self.machines[0], "type", "veth", "peer", "name", self.links[1], "netns",
           self.machines[1])
        for machine, link, address in zip(self.machines, self.links, ADDRESSES):
            ip("-n", machine, "address", "add", f"{address}/24", "dev", link)
            for device in ("lo", link):
                self.assertEqual(ip("-n", machine, "link", "set", device, "up").returncode, 0)
            self.assertEqual(ip("-n", machine, "route", "show", "default").stdout, "")
        self.address = f"{ADDRESSES[0]}:7070"

    def on(self, machine, *command):
        return self.run_command(["ip", "netns", "exec", self.machines[machine], *command])

    def start_coordinator(self):
        port_file = self.folder / "port"
        coordinator = self.on(0, BIN / "terrace-coordinator", "serve", "--listen", f"{self.links[0]}:7070", "--insecure", "--port-file",
                              port_file, "--state-dir", self.folder / "coordinator")
        self.wait_until(port_file.exists, "the coordinator listens")
        return coordinator

    def start_worker(self, machine, *options):
        worker = self.on(machine, BIN / "terrace-worker", "--coordinator", self.address, "--insecure", "--name",
                         f"worker-{machine}", "--state-dir", self.folder / f"worker-{machine}", "--threads-per-device", 1,
                         *options)
        self.wait_until(lambda: self.node_states().get(f"worker-{machine}") == "ready", f"worker-{machine} is ready")
        return worker

    def cli(self, *arguments, code=0, **options):
        result = self.on(0, BIN / "terrace", "--coordinator", self.address, *arguments).wait()
        self.assertEqual(result.code, code, str(result))
        return result

    def data_addresses(self):
        return {node["name"]: node["data_address"].rpartition(":")[0] for node in self.nodes()}

    def job_of_both(self):
        return self.job({"train.steps": 5, "resources.nodes": 2, "layout.dp": 2})

    def test_ranks_find_each_other_without_a_default_route(self):
        self.start_coordinator()
        for machine in range(2):
            self.start_worker(machine)
        self.assertEqual(self.data_addresses(), {"worker-0": ADDRESSES[0], "worker-1": ADDRESSES[1]})
        status = self.wait_for_state(self.submit(self.job_of_both()), "SUCCEEDED", "FAILED")
        self.assertEqual((status["state"], status.get("restarts", 0)), ("SUCCEEDED", 0), status)

    def test_an_address_that_others_cannot_reach_is_told_and_takes_no_job_of_several(self):
        self.start_coordinator()
        self.start_worker(0)
        worker = self.start_worker(1, "--data-address", "lo")
        problem = self.wait_until(lambda: {node["name"]: node.get("problem", "") for node in self.nodes()}["worker-1"],
                                  "what is wrong with worker-1 is told", 20)
        for word in ("worker-0 cannot reach it", "127.0.0.1", "--data-address"):
            self.assertIn(word, problem)
        self.assertIn(problem, self.cli("nodes").out)
        job = self.submit(self.job_of_both())
        status = self.status(job)
        self.assertEqual(status["state"], "QUEUED")
        self.assertIn(problem, status["message"])
        worker.end()
        self.start_worker(1, "--data-address", self.links[1])
        self.assertEqual(self.data_addresses()["worker-1"], ADDRESSES[1])
        status = self.wait_for_state(job, "SUCCEEDED", "FAILED")
        self.assertEqual((status["state"], status.get("restarts", 0)), ("SUCCEEDED", 0), status)

    def test_a_network_that_is_cut_between_ranks_alone_is_named(self):
        data = [link + "d" for link in self.links]
        ip("link", "add", data[0], "netns", self.machines[0], "type", "veth", "peer", "name", data[1], "netns", self.machines[1])
        for machine, link, address in zip(self.machines, data, ("10.78.0.1", "10.78.0.2")):
            ip("-n", machine, "address", "add", f"{address}/24", "dev", link)
            self.assertEqual(ip("-n", machine, "link", "set", link, "up").returncode, 0)
        self.start_coordinator()
        for machine in range(2):
            self.start_worker(machine, "--data-address", data[machine])
        job = self.submit(self.job({"train.steps": 1_000_000, "resources.nodes": 2, "layout.dp": 2, "watchdog.on_hang": "tell"}))
        self.wait_for_steps(job, 20)
        self.assertEqual(ip("-n", self.machines[1], "link", "set", data[1], "down").returncode, 0)
        cut = time.monotonic()
        with Standstill() as standstill:
            status = self.wait_until(lambda: (s := self.status(job)).get("hang") and s, "the hang is told", 30)
            took = time.monotonic() - cut
        self.assertLess(took, 15 + standstill.longest, "10 s, and until that is told")
        self.assertEqual((status["state"], status["reason"], status["hang"]["connection"]), ("RUNNING", "REASON_RANK_HANGS", True), status)
        self.assertIn("nothing comes through", status["message"])
        self.assertIn("worker-0", status["message"])
        self.assertIn("worker-1", status["message"])
        self.assertEqual(set(self.node_states().values()), {"ready"}, "the workers themselves are reached")
        step = self.step_of(job)
        self.assertEqual(ip("-n", self.machines[1], "link", "set", data[1], "up").returncode, 0)
        self.wait_until(lambda: self.step_of(job) > step and "hang" not in self.status(job), "it goes on")
        self.assertEqual(self.status(job)["restarts"], 0)
        self.cli("cancel", "--force", job)

    def test_a_name_that_is_no_address_of_the_machine_is_refused(self):
        worker = self.on(1, BIN / "terrace-worker", "--coordinator", self.address, "--insecure", "--data-address", "eth7",
                         "--state-dir", self.folder / "worker", "--threads-per-device", 1)
        result = worker.wait()
        self.assertEqual(result.code, INVALID_INPUT, str(result))
        self.refused(result, "--data-address: got eth7", self.links[1], ADDRESSES[1])


if __name__ == "__main__":
    unittest.main(verbosity=2)

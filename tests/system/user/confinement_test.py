#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a rank may do on its machine: which user it runs as, what it gets of its worker's environment, which files it reaches.
The parts that need root say so; what a kernel lacks is skipped by name."""
import ctypes
import os
import pathlib
import pwd
import sys
import unittest

from service import ServiceTest
from support import BIN, INVALID_INPUT, learnable_text

USER = "nobody"
SECRET = "d3b07384d113edec49eaa6238ad5ff00"
ROOT = unittest.skipUnless(os.geteuid() == 0, "only root starts ranks as another user")
HAS_LANDLOCK = ctypes.CDLL(None).syscall(444, None, 0, 1) > 0  # landlock_create_ruleset: which version there is
LONG = {"train.steps": 100000, "checkpoint.every_steps": 20, "checkpoint.keep": 2}


def status_of(pid):
    return dict(line.split(":\t", 1) for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line)


def limits_of(pid):
    return {line[:26].strip(): line[26:].split()[:2] for line in pathlib.Path(f"/proc/{pid}/limits").read_text().splitlines()[1:]}


class ConfinementTest(ServiceTest):
    def setUp(self):
        super().setUp()
        self.folder.chmod(0o755)  # others than its owner are to reach what is in it

    def service(self, *options):
        self.start_coordinator()
        return self.start_worker("worker-0", "--stop-ranks-on-exit", *options)

    def rank_of(self, changes, until=3):
        """(its job, its process) once it trains."""
        path = self.job({**LONG, **changes})
        job = self.submit(path)
        self.wait_for_steps(job, until)
        pid, = self.rank_pids()
        return path, job, pid

    def assert_confined(self, pid):
        status = status_of(pid)
        # To lock memory, where a container may do that and may not raise the limit instead.
        kept = 1 << 14 if int(status_of("self")["CapEff"], 16) >> 14 & 1 and limits_of(pid)["Max locked memory"][0] != "unlimited" else 0
        for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
            self.assertEqual(int(status[name], 16), kept, name)
        self.assertEqual((status["NoNewPrivs"], status["Seccomp"]), ("1", "2"))
        limits = limits_of(pid)
        self.assertEqual(limits["Max core file size"], ["0", "0"])
        self.assertLessEqual(int(limits["Max open files"][1]), 1 << 20)
        return status


class EnvironmentTest(ConfinementTest):
    def test_secrets_of_the_worker_do_not_reach_its_ranks(self):
        self.environment.update(AWS_SECRET_ACCESS_KEY=SECRET, TERRACE_SECRET=SECRET, NCCL_DEBUG="WARN", ASKED_FOR="yes",
                                LC_TIME="C")
        self.environment["TERRACE_RANK_ENV"] += ",ASKED_FOR"
        worker = self.service()
        self.assertIn(SECRET.encode(), pathlib.Path(f"/proc/{worker.process.pid}/environ").read_bytes())
        _, _, pid = self.rank_of({})
        environ = pathlib.Path(f"/proc/{pid}/environ").read_bytes()
        self.assertNotIn(SECRET.encode(), environ)
        variables = environ.split(b"\0")
        for listed in (b"NCCL_DEBUG=WARN", b"LC_TIME=C", b"ASKED_FOR=yes", b"PATH=" + os.environ["PATH"].encode()):
            self.assertIn(listed, variables)
        self.assert_confined(pid)


@ROOT
class UserTest(ConfinementTest):
    def test_a_worker_of_root_says_so(self):
        worker = self.service()
        said = str(worker.result())
        self.assertIn("runs as root, and so do its ranks", said)
        self.assertIn("--rank-user", said)
        _, _, pid = self.rank_of({})
        self.assertEqual(self.assert_confined(pid)["Uid"].split(), ["0"] * 4)

    def test_ranks_run_as_the_user_that_is_named(self):
        user = pwd.getpwnam(USER)
        worker = self.service("--rank-user", USER)
        self.assertNotIn("runs as root", str(worker.result()))
        (self.folder / "tokens").mkdir()
        for folder in ("tokens", "tiny-1", "tiny-1/checkpoints"):
            (self.folder / folder).mkdir(exist_ok=True)
            os.chown(self.folder / folder, user.pw_uid, user.pw_gid)
        path, job, pid = self.rank_of({}, until=40)
        status = self.assert_confined(pid)
        self.assertEqual(status["Uid"].split(), [str(user.pw_uid)] * 4)
        self.assertEqual(status["Gid"].split(), [str(user.pw_gid)] * 4)
        self.assertEqual(set(status["Groups"].split()), set(map(str, os.getgrouplist(USER, user.pw_gid))))
        self.assertIn(f"HOME={user.pw_dir}".encode(), pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
        with self.subTest("what it writes is its own, and the folders above are not"):
            run, = (self.folder / "worker-0/runs").glob("*/*/0")

            def owners():
                """None where a checkpoint was replaced by the next meanwhile."""
                own = (run, run / "link.sock", *self.checkpoints(path), *(self.folder / "tokens").glob("*.tokens"))
                try:
                    return self.checkpoints(path) and {one: one.stat().st_uid for one in own}
                except FileNotFoundError:
                    return None
            for own, owner in self.wait_until(owners, "there is a checkpoint").items():
                self.assertEqual(owner, user.pw_uid, own)
            for above in (run.parent, run.parent.parent, run / "rank.log", run / "config.pb"):
                self.assertEqual(above.stat().st_uid, 0, above)
        with self.subTest("logs, cancel and a second start go as ever"):
            self.assertIn("step 1 of", self.cli("logs", job).out)
            self.cli("cancel", job)
            self.wait_for_state(job, "CANCELLED")
            again = self.submit(path)
            self.assertGreater(self.wait_for_steps(again, 41), 0)

    def test_two_ranks_of_a_user_share_what_they_must(self):
        user = pwd.getpwnam(USER)
        self.start_coordinator()
        self.start_worker("worker-0", "--rank-user", USER, devices=2)
        self.folder.chmod(0o777)
        path = self.job({"resources.devices_per_node": 2, "layout.dp": 2, "layout.micro_batch": 4})
        path.parent.chmod(0o777)
        job = self.submit(path)
        self.assertEqual(self.wait_for_state(job, "SUCCEEDED", "FAILED")["state"], "SUCCEEDED")
        shared, = (self.folder / "worker-0/runs").glob("*/*/host_memory")
        self.assertEqual(shared.stat().st_uid, user.pw_uid)
        self.assertEqual(len(shared.read_text().split()), 3)

    def test_a_file_of_root_alone_is_not_trained_on(self):
        self.service("--rank-user", USER)
        path = self.job()
        (self.folder / "corpus.txt").chmod(0o600)
        self.folder.chmod(0o777)
        path.parent.chmod(0o777)
        refused = self.cli("submit", "--watch", path, "-o", "json", code=None)
        self.assertEqual(refused.code, INVALID_INPUT, str(refused))
        self.assertIn("Permission denied", refused.out + refused.err)
        self.assertFalse(list(self.folder.glob("tokens/*.tokens")))

    def test_what_cannot_be_is_refused_at_the_start(self):
        self.start_coordinator()
        for user, words in (("no-such-user", ("there is no such user",)), ("root", ("another user than root",))):
            refused = self.start("--coordinator", self.address, "--rank-user", user, program="terrace-worker").wait()
            self.assertNotEqual(refused.code, 0)
            self.refused(refused, "--rank-user", user, *words)
        hidden = self.folder / "hidden"
        hidden.mkdir(mode=0o700)
        refused = self.start("--coordinator", self.address, "--rank-user", USER, "--state-dir", hidden / "state",
                             program="terrace-worker").wait()
        self.assertNotEqual(refused.code, 0)
        self.refused(refused, "--state-dir", str(hidden / "state"), USER, "the folders above it")


class RootsTest(ConfinementTest):
    """Paths of jobs below the folders that an operator allows."""

    def setUp(self):
        super().setUp()
        for kind in ("data", "checkpoint", "cache", "offload"):
            (self.folder / kind).mkdir()
        self.roots = [word for kind in ("data", "checkpoint", "cache", "offload")
                      for word in (f"--{kind}-root", self.folder / kind)]

    def inside(self, changes=None):
        self.write("data/corpus.txt", learnable_text(60_000))
        return self.job({"data.train": str(self.folder / "data/corpus.txt"), "data.cache": str(self.folder / "cache/tokens"),
                         "checkpoint.directory": str(self.folder / f"checkpoint/{self.jobs}"), **(changes or {})})

    def refused_job(self, changes, *words):
        refused = self.cli("submit", "--watch", self.inside(changes), "-o", "json", code=None)
        self.assertEqual(refused.code, INVALID_INPUT, str(refused))
        self.refused(refused, *words)
        return refused

    def test_jobs_stay_below_the_roots(self):
        self.service(*self.roots)
        job = self.submit(self.inside({"train.steps": 40, "checkpoint.every_steps": 20}))
        self.assertEqual(self.wait_for_state(job, "SUCCEEDED", "FAILED")["state"], "SUCCEEDED")
        (self.folder / "data/out.txt").symlink_to("/etc/passwd")
        (self.folder / "data/up").symlink_to("../offload")
        os.mkfifo(self.folder / "data/pipe.txt")
        secret = self.write("secret.txt", learnable_text(60_000))
        for changes, words in (
                ({"data.train": str(secret)}, ("data.train", str(secret), "lies below none of", "--data-root")),
                ({"data.train": str(self.folder / "data/../secret.txt")}, ("data.train", str(secret), "--data-root")),
                ({"data.validation": str(self.folder / "data/out.txt")}, ("data.validation", "leads out of", "symbolic link")),
                ({"data.train": str(self.folder / "data/pipe.txt")}, ("data.train", "a FIFO")),
                ({"model.init": "/etc/terrace"}, ("model.init", "/etc/terrace", "--data-root or --checkpoint-root")),
                ({"data.cache": str(self.folder / "data/tokens")}, ("data.cache", "--cache-root", str(self.folder / "cache"))),
                ({"checkpoint.directory": str(self.folder / "data/up/x")}, ("checkpoint.directory", "--checkpoint-root"))):
            with self.subTest(changes=changes):
                refused = self.refused_job(changes, *words)
                self.assertEqual(refused.events("step"), [])
        self.assertEqual(list((self.folder / "offload").iterdir()), [])

    def test_a_coordinator_with_roots_refuses_at_submission(self):
        self.coordinator_options = tuple(self.roots)
        self.start_coordinator()
        secret = self.write("secret/config.json", '{"secret": 1}')
        for changes, words in (({"data.train": "/etc/passwd.txt"}, ("data.train", "/etc/passwd.txt", "--data-root")),
                               ({"model.config": str(secret)}, ("model.config", str(secret), "lies below none of")),
                               ({"model.config": str(secret.parent)}, ("model.config", "lies below none of"))):
            refused = self.cli("submit", self.inside(changes), "-o", "json", code=INVALID_INPUT)
            self.refused(refused, *words)
        self.assertEqual(self.cli("ls", "--all", "-o", "json").json()["jobs"], [])
        self.submit(self.inside())  # it waits for a worker

    def test_a_worker_without_a_root_of_a_kind_takes_no_such_paths(self):
        self.service(*self.roots[:4])
        self.refused_job({}, "data.cache", "there is no --cache-root")

    def test_roots_that_are_no_folders_end_the_worker(self):
        self.start_coordinator()
        refused = self.start("--coordinator", self.address, "--state-dir", self.folder / "state", "--data-root",
                             self.folder / "absent", program="terrace-worker").wait()
        self.assertNotEqual(refused.code, 0)
        self.refused(refused, "--data-root", str(self.folder / "absent"), "create it first")

    @unittest.skipUnless(HAS_LANDLOCK, "this kernel has no Landlock")
    def test_what_lies_behind_a_folder_of_weights_is_not_read(self):
        """The path itself is below a root; a link in the folder that it names leads out, which only the kernel sees."""
        self.service(*self.roots)
        weights = self.folder / "data/weights"
        weights.mkdir()
        self.write("hidden/model.safetensors", b"not for this job")
        (weights / "model.safetensors").symlink_to(self.folder / "hidden/model.safetensors")
        refused = self.refused_job({"model.init": str(weights)}, "model.init", "Permission denied")
        self.assertEqual(refused.events("step"), [])

    def test_without_landlock_it_is_said_and_jobs_train_on(self):
        self.start_coordinator()
        worker = self.run_command([sys.executable, pathlib.Path(__file__).parent / "without_io_uring.py", "--call", "444", BIN / "terrace-worker",
                                   "--coordinator", self.address, "--name", "worker-0", "--state-dir", self.folder / "worker-0",
                                   "--stop-ranks-on-exit", *self.roots])
        self.wait_until(lambda: self.node_states().get("worker-0") == "ready", "the worker is ready")
        self.assertIn("no Landlock, seccomp", str(worker.result()))
        job = self.submit(self.inside())
        self.assertEqual(self.wait_for_state(job, "SUCCEEDED", "FAILED")["state"], "SUCCEEDED")
        self.refused_job({"data.train": "/etc/passwd.txt"}, "data.train", "--data-root")


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""terrace certs: an authority, certificates that say who is who, and their renewal, looked at with openssl."""
import hashlib
import json
import shutil
import stat
import subprocess
import time
import unittest

from service import ServiceTest, free_port
from support import FAILURE, INVALID_INPUT, NOT_FOUND, USAGE, TerraceTest


class CertsTest(TerraceTest):
    def setUp(self):
        super().setUp()
        self.dir = self.folder / "certs"

    def certs(self, action, *arguments, **options):
        return self.terrace("certs", action, *arguments, "--dir", self.dir, **options)

    def issued(self, *arguments):
        one, = self.certs("issue", *arguments, "-o", "json").json()["certificates"]
        return one

    def verified_by_openssl(self, certificate):
        """By a program that is not ours; skips nothing else where there is none."""
        if shutil.which("openssl") is None:
            self.skipTest("there is no openssl program")
        return subprocess.run(["openssl", "verify", "-purpose", "sslclient", "-CAfile", self.dir / "ca.pem", certificate],
                              capture_output=True, timeout=60).returncode == 0

    def test_an_authority_signs_certificates_of_each_role(self):
        self.certs("init")
        for role, name in (("worker", "node-1"), ("submitter", "alice"), ("operator", "bob@example.org"), ("viewer", "eve")):
            one = self.issued(role, name, "--days", 30)
            self.assertEqual((one["role"], one["name"], one["trouble"], one["hosts"]), (role, name, "", []))
            self.assertTrue(29 < (one["not_after_unix_s"] - time.time()) / 86400 <= 30, one)
            self.assertTrue(self.verified_by_openssl(one["certificate"]))
        one = self.issued("coordinator", "--host", "head.example", "--host", "10.0.0.1")
        self.assertEqual((one["role"], one["hosts"]), ("coordinator", ["head.example", "10.0.0.1"]))
        self.assertEqual(self.issued("worker", "--any-name")["name"], "*")
        keys = sorted(self.dir.glob("*.key"))
        self.assertEqual(len(keys), 7)
        for key in keys:
            self.assertEqual(stat.S_IMODE(key.stat().st_mode), 0o600, key)
        self.assertEqual(stat.S_IMODE(self.dir.stat().st_mode), 0o700)
        listed = self.certs("ls", "-o", "json").json()["certificates"]
        self.assertEqual(sorted(one["role"] for one in listed),
                         ["authority", "coordinator", "operator", "submitter", "viewer", "worker", "worker"])
        self.assertIn("submitter-alice.pem", self.certs("ls").out)

    def test_renewed_certificates_say_the_same_with_another_key(self):
        self.certs("init")
        before = self.issued("worker", "node-1", "--host", "node-1", "--days", 3)
        key = (self.dir / "worker-node-1.key").read_text()
        self.certs("rotate", "--all", "--within", 2)
        self.assertEqual((self.dir / "worker-node-1.key").read_text(), key, "it does not run out within two days")
        after, = self.certs("rotate", "worker-node-1", "-o", "json").json()["certificates"]
        self.assertEqual({name: after[name] for name in ("role", "name", "hosts", "issuer")},
                         {name: before[name] for name in ("role", "name", "hosts", "issuer")})
        self.assertGreaterEqual(after["not_after_unix_s"], before["not_after_unix_s"])
        self.assertTrue(2.9 < (after["not_after_unix_s"] - time.time()) / 86400 <= 3, "as long as before")
        longer, = self.certs("rotate", "worker-node-1", "--days", 5, "-o", "json").json()["certificates"]
        self.assertTrue(4.9 < (longer["not_after_unix_s"] - time.time()) / 86400 <= 5, longer)
        self.assertNotEqual((self.dir / "worker-node-1.key").read_text(), key)

    def test_the_next_authority_is_trusted_beside_the_old_one_until_that_is_forgotten(self):
        self.certs("init")
        one = self.issued("viewer", "eve")
        old = (self.dir / "viewer-eve.pem").read_bytes()
        self.certs("rotate", "--authority")
        self.assertTrue(self.verified_by_openssl(one["certificate"]))
        self.refused(self.certs("rotate", "--forget-old", code=INVALID_INPUT), "viewer-eve.pem", "rotate --all")
        self.certs("rotate", "--all")
        self.certs("rotate", "--forget-old")
        self.assertTrue(self.verified_by_openssl(one["certificate"]))
        self.assertFalse(self.verified_by_openssl(self.write("old.pem", old)))
        (self.dir / "viewer-eve.pem").write_bytes(old)
        eve, = [one for one in self.certs("ls", "-o", "json").json()["certificates"] if one["name"] == "eve"]
        self.assertIn("is not signed by the authority that is trusted here", eve["trouble"])

    def test_a_token_is_printed_once_and_kept_as_its_hash(self):
        tokens = self.folder / "tokens"
        one = self.terrace("certs", "token", "submitter", "alice", "--tokens", tokens, "-o", "json").json()
        two = self.terrace("certs", "token", "viewer", "eve", "--tokens", tokens, "--days", 3).out.strip()
        lines = tokens.read_text().splitlines()
        self.assertEqual([line.split()[1:3] for line in lines], [["submitter", "alice"], ["viewer", "eve"]])
        self.assertEqual([line.split()[0] for line in lines],
                         [hashlib.sha256(token.encode()).hexdigest() for token in (one["token"], two)])
        self.assertEqual(stat.S_IMODE(tokens.stat().st_mode), 0o600)
        self.terrace("certs", "token", "worker", "node-1", "--tokens", tokens, code=USAGE)
        self.refused(self.terrace("certs", "token", "viewer", "a b", "--tokens", tokens, code=INVALID_INPUT), '"a b"', "letters, digits")
        tokens.write_text("nonsense")
        self.refused(self.terrace("certs", "token", "viewer", "eve", "--tokens", tokens, code=INVALID_INPUT), f"--tokens: {tokens}: line 1")
        self.refused(self.terrace("--token-file", tokens, "nodes", code=INVALID_INPUT), "--token-file", "--tls-ca")
        self.refused(self.terrace("serve", "--listen", "127.0.0.1:0", "--state-dir", self.folder / "state", "--tokens", tokens,
                                  program="terrace-coordinator", code=INVALID_INPUT), "--tokens: a token that travels without TLS")

    def test_what_is_wrong_is_told(self):
        self.refused(self.certs("issue", "viewer", "eve", code=NOT_FOUND), "there is no authority in", "terrace certs init")
        self.certs("init")
        self.refused(self.certs("init", code=INVALID_INPUT), "ca.pem exists already", "rotate --authority")
        self.certs("issue", "viewer", "eve")
        self.refused(self.certs("issue", "viewer", "eve", code=INVALID_INPUT), "viewer-eve.pem exists already",
                     "terrace certs rotate viewer-eve")
        for arguments, words in (
                (("viewer",), ("needs the person's name",)),
                (("worker",), ("--any-name",)),
                (("viewer", "--any-name"), ("--any-name: only a worker's",)),
                (("viewer", "../x"), ("the name of a viewer", '"../x"', "letters, digits")),
                (("operator", "*"), ("the name of an operator",)),
                (("coordinator",), ("--host",)),
                (("coordinator", "--host", "a b"), ("--host", '"a b"', "without a port"))):
            with self.subTest(arguments):
                self.refused(self.certs("issue", *arguments, code=INVALID_INPUT), *words)
        self.certs("issue", "root", "eve", code=USAGE)
        self.refused(self.certs("rotate", "viewer-nobody", code=NOT_FOUND), "viewer-nobody.pem")
        self.refused(self.certs("rotate", "ca", code=INVALID_INPUT), "is an authority", "--authority")
        self.write("certs/ca.key", (self.dir / "viewer-eve.key").read_text())
        self.refused(self.certs("issue", "viewer", "adam", code=INVALID_INPUT), "the authority's key is not that of its certificate")


class RolesTest(ServiceTest):
    """A service with TLS, as the people see it who type commands; what peers try by hand is in roles_test.cc."""

    def setUp(self):
        super().setUp()
        self.dir = self.folder / "certs"
        self.terrace("certs", "init", "--dir", self.dir)
        self.terrace("certs", "issue", "coordinator", "--host", "localhost", "--dir", self.dir)
        for role, name in (("worker", "node-1"), ("submitter", "alice"), ("submitter", "carol"), ("viewer", "eve"), ("operator", "bob")):
            self.terrace("certs", "issue", role, name, "--dir", self.dir)
        self.token = self.write("dora.token", self.terrace("certs", "token", "submitter", "dora", "--tokens", self.folder / "people").out)
        self.address = f"localhost:{free_port()}"
        self.coordinator_metrics = f"127.0.0.1:{free_port()}"
        self.coordinator_options = (*self.tls("coordinator"), "--tokens", self.folder / "people")
        self.start_coordinator()
        self.worker = self.start_worker("node-1", *self.tls("worker-node-1"))

    def tls(self, name):
        return ("--tls-cert", self.dir / f"{name}.pem", "--tls-key", self.dir / f"{name}.key", "--tls-ca", self.dir / "ca.pem")

    def cli(self, *arguments, who="viewer-eve", **options):
        return self.terrace("--coordinator", self.address, *self.tls(who), *arguments, **options)

    def with_token(self, *arguments, **options):
        return self.terrace("--coordinator", self.address, "--tls-ca", self.dir / "ca.pem", "--token-file", self.token, *arguments,
                            **options)

    def test_jobs_belong_to_who_submits_them(self):
        spec = self.job({"train.steps": 1_000_000})
        self.refused(self.cli("submit", spec, code=FAILURE), "refuses this: viewer eve may not Submit: a submitter or an operator may")
        job = self.cli("submit", spec, "-o", "json", who="submitter-alice").json()["id"]
        self.assertEqual(self.status(job)["owner"], "alice")
        self.assertIn("by alice", self.cli("status", job).out)
        self.assertIn("OWNER", self.cli("ls").out.splitlines()[0])
        for refused in (self.cli("cancel", job, who="submitter-carol", code=FAILURE), self.with_token("cancel", job, code=FAILURE)):
            self.refused(refused, f"may not Cancel job {job}, which alice submitted: alice or an operator may")
        self.refused(self.terrace("--coordinator", self.address, "--tls-ca", self.dir / "ca.pem", "ls", code=FAILURE),
                     "no certificate was shown", "--token-file")
        self.wait_for_steps(job, 3)
        self.cli("cancel", "--force", job, who="operator-bob")
        self.wait_for_state(job, "CANCELLED")
        other = self.with_token("submit", self.job({"train.steps": 1_000_000}), "-o", "json").json()["id"]
        self.assertEqual(self.status(other)["owner"], "dora")
        self.with_token("cancel", "--force", other)
        lines = [json.loads(line) for line in (self.folder / "coordinator/audit.jsonl").read_text().splitlines()]
        self.assertEqual([(line["call"], line.get("job"), line["by"][0]["name"], line["shown"], line["status"]) for line in lines],
                         [("Register", None, "node-1", "certificate", "OK"), ("Submit", job, "alice", "certificate", "OK"),
                          ("Cancel", job, "carol", "certificate", "PERMISSION_DENIED"), ("Cancel", job, "dora", "token", "PERMISSION_DENIED"),
                          ("Cancel", job, "bob", "certificate", "OK"), ("Submit", other, "dora", "token", "OK"),
                          ("Cancel", other, "dora", "token", "OK")])

    def test_a_worker_that_is_refused_says_why(self):
        self.worker.end()
        worker = self.start_worker("node-2", *self.tls("worker-node-1"), await_ready=False)
        sentence = "refuses this worker: worker node-1 may not Connect worker node-2: worker node-2 itself may"
        self.wait_until(lambda: sentence in "".join(worker.err), "the worker says why")
        worker.end()
        self.refused(self.start_worker("no name", await_ready=False).wait(), '--name: got "no name"', "letters, digits")


if __name__ == "__main__":
    unittest.main(verbosity=2)

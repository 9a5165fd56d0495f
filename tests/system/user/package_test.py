#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Debian package in a bare Debian: install, start, upgrade while a job trains, remove, purge. No systemd runs there: a small
systemctl plays its part as the unit files say, and records what the package's scripts ask of it. TERRACE_BUNDLE names an unpacked
bundle to pack instead of one that is made of the build."""
import json
import os
import pathlib
import shutil
import subprocess
import unittest

from service import free_port
from support import BIN, GPT, ROOT, TerraceTest, learnable_text, processes

TOOLS = ("debootstrap", "cpack", "dpkg-deb", "systemd-analyze", "unshare")
SYSTEMCTL = r"""#!/bin/sh
echo "$*" >>/var/log/systemctl
for unit; do :; done
file=/usr/lib/systemd/system/$unit
setting() { sed -n "s/^$1=-\{0,1\}//p" "$file"; }
running() { [ -s "/run/$1.pid" ] && kill -0 "$(cat "/run/$1.pid")" 2>/dev/null; }
stop() {
  running "$1" || return 0
  group=-; [ "$(setting KillMode)" = process ] && group=
  kill -TERM "$group$(cat "/run/$1.pid")"
  while running "$1"; do sleep 0.05; done
}
start() {
  (
    . "$(setting EnvironmentFile)"
    export $(setting Environment)
    umask "$(setting UMask)"
    exec setsid setpriv --reuid "$(setting User)" --regid "$(setting Group)" --clear-groups $(eval echo $(setting ExecStart))
  ) >>"/var/log/$1.log" 2>&1 &
  echo $! >"/run/$1.pid"
}
case $* in
  *is-enabled*) echo disabled; exit 1 ;;
  *is-active*) running "$unit" ;;
  *start* | *stop*)
    for unit; do
      case $unit in
        *.service)
          file=/usr/lib/systemd/system/$unit
          case $* in *restart* | *stop*) stop "$unit" ;; esac
          case $* in *start*) start "$unit" ;; esac
          ;;
      esac
    done ;;
esac
"""


class PackageTest(TerraceTest):
    def setUp(self):
        super().setUp()
        missing = [tool for tool in TOOLS if not shutil.which(tool)]
        if missing or os.getuid() != 0:
            self.skipTest(f"needs root and {missing}")
        self.root = self.folder / "root"

    def sh(self, *command, code=0, seconds=300):
        result = subprocess.run([str(part) for part in command], env=self.environment, capture_output=True, text=True, timeout=seconds)
        if code is not None:
            self.assertEqual(result.returncode, code, f"{command}\n{result.stdout[-3000:]}\n{result.stderr[-3000:]}")
        return result.stdout + result.stderr

    def inside(self, command, **options):
        """A command in the bare Debian, with the kernel's file systems; those end with its mount namespace."""
        return self.sh("unshare", "-m", "sh", "-c",
                       'mount --bind /proc "$0/proc" && mount --rbind /dev "$0/dev" && mount --rbind /sys "$0/sys" && '
                       'exec chroot "$0" env PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive sh -c "$1"',
                       self.root, command, **options)

    def make_packages(self):
        """Version 0.1.0 of this build and one that is called 0.1.1."""
        made = os.environ.get("TERRACE_BUNDLE") or self.sh(
            ROOT / "deploy/bundle.sh", "--build", BIN.parent, "--output", self.folder / "bundle", "--folder-only",
            seconds=900).splitlines()[-1]
        bundle = self.folder / "terrace"
        shutil.copytree(made, bundle)
        for library in (bundle / "lib").glob("libcublasLt*"):
            library.unlink()  # half a gigabyte, loaded only for a GPU
        first = (bundle / "VERSION").read_text().split()[0]
        second = first + ".1"
        packages = []
        for version in (first, second):
            (bundle / "VERSION").write_text(f"{version} test\n")
            made = self.sh(ROOT / "deploy/debian/package.sh", "--bundle", bundle, "--output", self.folder / version, seconds=900)
            package = pathlib.Path(made.splitlines()[-1])
            self.assertEqual(package.name, f"terrace_{version}_amd64.deb")
            shutil.copy(package, self.root / "tmp")
            packages.append(f"/tmp/{package.name}")
        declared = (ROOT / "CMakeLists.txt").read_text().split("project(terrace VERSION ")[1].split()[0]
        self.assertEqual(first, declared, "the version is CMake's")
        return packages

    def status(self, job):
        return json.loads(self.inside(f"terrace status {job} -o json"))

    def step_of(self, job):
        return int(self.status(job).get("progress", {}).get("step", 0))

    def daemons(self):
        return {name: pid for pid, command in processes(self.mark).items() for name in ("terrace-coordinator serve", "terrace-worker --state")
                if name in command and "/usr/lib/terrace" in command}

    def test_install_start_upgrade_remove_purge(self):
        self.sh("debootstrap", "--variant=minbase", "bookworm", self.root, seconds=600)
        first, second = self.make_packages()

        # Where no service may start none does, and what is installed works.
        policy = self.root / "usr/sbin/policy-rc.d"
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
        self.inside(f"dpkg -i {first}")
        self.assertEqual(self.daemons(), {})
        self.assertIn("0.1", self.inside("terrace --version && terrace-worker --help >/dev/null"))
        self.assertRegex(self.inside("stat -c '%U %a' /var/lib/terrace; id terrace"), r"terrace 750\nuid=\d+\(terrace\)")
        # systemd judges the units among its own, which a bare Debian lacks.
        shutil.copytree("/usr/lib/systemd/system", self.root / "usr/lib/systemd/system", symlinks=True, dirs_exist_ok=True)
        for unit in ("coordinator", "worker"):
            said = self.sh("systemd-analyze", "verify", "--man=no", f"--root={self.root}",
                           self.root / f"usr/lib/systemd/system/terrace-{unit}.service", code=None)
            self.assertNotIn(f"terrace-{unit}.service", said, "a line of systemd about our unit is a mistake in it")

        # systemd runs, and may.
        policy.unlink()
        (self.root / "run/systemd/system").mkdir(parents=True)
        systemctl = self.root / "usr/bin/systemctl"
        systemctl.write_text(SYSTEMCTL)
        systemctl.chmod(0o755)
        # Settings of the operator, which an upgrade keeps.
        coordinator, *metrics = (f"127.0.0.1:{free_port()}" for _ in range(3))
        for service, options in (("coordinator", f"--listen {coordinator} --metrics-listen {metrics[0]}"),
                                 ("worker", f"--coordinator {coordinator} --metrics-listen {metrics[1]}")):
            (self.root / f"etc/default/terrace-{service}").write_text(f'TERRACE_{service.upper()}_OPTIONS="{options}"\n')
        self.environment["TERRACE_COORDINATOR"] = coordinator
        self.inside("systemctl start terrace-coordinator.service && systemctl start terrace-worker.service")
        job_folder = self.root / "srv/job"
        job_folder.mkdir()
        (job_folder / "corpus.txt").write_text(learnable_text(60_000))
        (job_folder / "job.yaml").write_text(json.dumps({
            "name": "tiny", "model": {"config": GPT}, "data": {"train": "corpus.txt", "sequence_length": 32},
            "train": {"steps": 1_000_000, "global_batch": 8, "precision": "fp32", "optimizer": {"lr": 3e-3}},
            "resources": {"threads_per_device": 1}, "checkpoint": {"directory": "checkpoints"}}))
        self.inside("chown -R terrace /srv/job")
        self.wait_until(lambda: '"ready"' in self.inside("terrace nodes -o json", code=None), "the worker is ready")
        self.inside("terrace submit /srv/job/job.yaml")
        self.wait_until(lambda: self.step_of("tiny-1") > 10, "it trains")
        ranks, daemons = self.rank_pids(), self.daemons()
        self.assertEqual((len(ranks), len(daemons)), (1, 2))
        owner = pathlib.Path(f"/proc/{ranks[0]}").stat().st_uid
        self.assertNotEqual(owner, 0, "ranks are unprivileged")

        # An upgrade restarts what runs; the rank trains on.
        self.inside(f"dpkg -i {second}")
        self.assertIn("restart terrace-coordinator.service terrace-worker.service", (self.root / "var/log/systemctl").read_text())
        # They are asked to start, and become daemons a moment later.
        self.wait_until(lambda: len(self.daemons()) == 2, "both daemons run again")
        self.assertFalse(set(daemons.values()) & set(self.daemons().values()), "both daemons are new")
        self.wait_until(lambda: '"ready"' in self.inside("terrace nodes -o json", code=None), "the new worker is ready")
        before = self.step_of("tiny-1")
        self.wait_until(lambda: self.step_of("tiny-1") > before, "it trains on")
        self.assertEqual(self.rank_pids(), ranks, "the rank is the same process")
        self.assertEqual(int(self.status("tiny-1").get("restarts", 0)), 0)

        # Removal stops everything, with a last checkpoint; settings stay until the purge.
        self.inside("dpkg -r terrace")
        self.wait_until(lambda: not self.rank_pids() and not self.daemons(), "nothing runs")
        self.assertEqual(len(list((job_folder / "checkpoints").glob("step-*"))), 1)
        self.assertTrue((self.root / "etc/default/terrace-worker").exists())
        self.assertTrue((self.root / "var/lib/terrace/coordinator/state.db").exists())
        self.inside("dpkg -P terrace")
        for gone in ("etc/default/terrace-worker", "etc/terrace", "var/lib/terrace", "var/cache/terrace", "usr/lib/terrace"):
            self.assertFalse((self.root / gone).exists(), gone)
        self.assertEqual(len(list((job_folder / "checkpoints").glob("step-*"))), 1, "checkpoints are the user's")
        if shutil.which("lintian"):
            self.sh("lintian", "--allow-root", "--fail-on", "error", self.folder / second.split("_")[1] / second.split("/")[-1],
                    seconds=900)  # it unpacks half a gigabyte and reads all of it, on a busy machine too


if __name__ == "__main__":
    unittest.main(verbosity=2)

# SPDX-License-Identifier: Apache-2.0
"""A real Slurm on this machine for the tests of deploy/slurm: munged, slurmctld and two slurmd as two nodes, in a folder and on
ports of their own. The partition `high` takes nodes from `low`, whose jobs get GRACE_SECONDS."""
import os
import pathlib
import shutil
import socket
import subprocess

from service import free_port
from support import TerraceTest

DAEMONS = ("munged", "slurmctld", "slurmd", "sbatch", "openssl")
PLACES = "/usr/local/sbin:/usr/sbin:/sbin:"
GRACE_SECONDS = 60
CONFIGURATION = """
ClusterName=terrace
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=2,sched_interval=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
KillWait=30
InactiveLimit=0
ReturnToService=2
{nodes}
PartitionName=low Nodes=n1,n2 Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime={grace} MaxTime=60 State=UP
PartitionName=high Nodes=n1,n2 PriorityTier=10 PreemptMode=OFF MaxTime=60 State=UP
"""


class SlurmTest(TerraceTest):
    def setUp(self):
        super().setUp()
        path = PLACES + os.environ["PATH"]
        missing = [name for name in DAEMONS if not shutil.which(name, path=path)]
        if missing or os.getuid() != 0:
            self.doCleanups()
            self.skipTest(f"needs root and Slurm's daemons (Debian: munge, slurmctld, slurmd, slurm-client); missing: {missing}")
        self.environment["PATH"] = path
        self.slurm = self.folder / "slurm"
        (self.slurm / "state").mkdir(parents=True)
        for folder in (self.folder, self.slurm):
            folder.chmod(0o755)  # munged refuses a socket below a folder that others may not enter or may write
        self.start_slurm()

    def start_slurm(self):
        key = self.slurm / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        host = socket.gethostname()
        nodes = "\n".join(f"NodeName=n{index} NodeHostname={host} NodeAddr=127.0.0.1 Port={free_port()} CPUs=1 RealMemory=1000 State=UNKNOWN"
                          for index in (1, 2))
        configuration = self.slurm / "slurm.conf"
        configuration.write_text(CONFIGURATION.format(host=host, port=free_port(), folder=self.slurm, nodes=nodes, grace=GRACE_SECONDS))
        self.environment["SLURM_CONF"] = str(configuration)
        self.environment["TERRACE_BIN"] = str(pathlib.Path(os.environ.get("TERRACE_BIN", "build/release/bin")).resolve())
        self.environment["TERRACE_LOCAL"] = str(self.slurm)
        self.run_command(["munged", "--foreground", "--force", f"--key-file={key}", f"--socket={self.slurm}/munge.socket",
                          f"--pid-file={self.slurm}/munged.pid", f"--log-file={self.slurm}/munged.log",
                          f"--seed-file={self.slurm}/munged.seed"])
        self.wait_until((self.slurm / "munge.socket").exists, "munged listens", seconds=20)
        self.run_command(["slurmctld", "-D", "-f", configuration])
        for index in (1, 2):
            (self.slurm / f"spool-n{index}").mkdir()
            self.run_command(["slurmd", "-D", "-N", f"n{index}", "-f", configuration])
        self.wait_until(lambda: self.slurm_output("sinfo", "-h", "-o", "%D %t", "-p", "low").strip() == "2 idle", "two nodes are idle")

    def tearDown(self):
        self.slurm_output("scancel", "--quiet", "--user", "root")
        self.wait_until(lambda: not self.slurm_output("squeue", "-h").strip(), "no Slurm job is left")
        super().tearDown()

    def slurm_output(self, *command):
        return subprocess.run([str(part) for part in command], env=self.environment, capture_output=True, text=True, timeout=60).stdout

    def sbatch(self, *arguments):
        result = subprocess.run(["sbatch", "--parsable", *map(str, arguments)], env=self.environment, cwd=self.folder,
                                capture_output=True, text=True, timeout=60)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout.strip()

    def slurm_job(self, number):
        """Slurm's own words on a job: JobState, ExitCode, Restarts and the rest."""
        pairs = self.slurm_output("scontrol", "show", "job", number, "-o").split()
        return dict(pair.split("=", 1) for pair in pairs if "=" in pair)

    def log(self, number):
        path = self.folder / f"terrace-{number}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def wait_for_slurm(self, number, *states, seconds=120):
        def reached():
            job = self.slurm_job(number)
            return job if job.get("JobState") in states else None
        try:
            return self.wait_until(reached, f"Slurm job {number} is {' or '.join(states)}", seconds=seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.slurm_job(number)}\n{self.log(number)}") from None

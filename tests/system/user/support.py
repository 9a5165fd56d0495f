# SPDX-License-Identifier: Apache-2.0
"""What the user-level tests share: they type commands, as a person would, and look from outside.

Every process that a test starts, and every one that those start, inherits an environment variable that is unique to the
test: that is how a test finds them all, and shows at its end that nothing is left running.
"""
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import unittest
import uuid

ROOT = pathlib.Path(__file__).resolve().parents[3]
BIN = pathlib.Path(os.environ.get("TERRACE_BIN", ROOT / "build/release/bin"))
MARK = "TERRACE_TEST_MARK"
COMMAND_SECONDS = 60  # how long a command may take on a busy machine

OK, FAILURE, USAGE, NOT_FOUND, INVALID_INPUT, RESOURCES, UNAVAILABLE, CANCELLED, INTERRUPTED = 0, 1, 2, 3, 4, 5, 6, 7, 130

GPT = {"model_type": "gpt2", "vocab_size": 256, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4,
       "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "initializer_range": 0.02}
LLAMA = {"model_type": "llama", "vocab_size": 256, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
         "hidden_act": "silu", "rope_theta": 10000.0, "initializer_range": 0.02, "tie_word_embeddings": False}
QWEN3 = {**LLAMA, "model_type": "qwen3", "head_dim": 16, "tie_word_embeddings": True}


def learnable_text(size, seed=7):
    """English-like sentences from a small grammar: a model that learns gets far below the 5.5 nats of random bytes."""
    source = random.Random(seed)
    subjects, verbs, objects = ("the king", "a shepherd", "his brother"), ("saw", "gave", "took"), ("bread", "the ark", "gold")
    sentences, length = [], 0
    while length < size:
        sentences.append(f"{source.choice(subjects)} {source.choice(verbs)} {source.choice(objects)}. ")
        length += len(sentences[-1])
    return "".join(sentences)[:size]


def processes(mark):
    """pid -> command line of every live process whose environment holds the mark."""
    needle, found = f"{MARK}={mark}".encode(), {}
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if needle in (entry / "environ").read_bytes().split(b"\0"):
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
        except OSError:
            continue  # it ended, or belongs to somebody else
    return found


def events_of(text, **options):
    return [json.loads(line, **options) for line in text.splitlines() if line.startswith("{")]


def losses_of(text):
    """step -> loss as it was printed, digit for digit; of a step that was done twice the later one."""
    return {int(event["step"]): event["loss"] for event in events_of(text, parse_float=str) if event["event"] == "step"}


class Result:
    """How a command ended."""

    def __init__(self, arguments, code, out, err, seconds):
        self.arguments, self.code, self.out, self.err, self.seconds = arguments, code, out, err, seconds

    def __str__(self):
        return f"{' '.join(self.arguments)}\nexit {self.code} after {self.seconds:.1f} s\n{self.out[-3000:]}\n{self.err[-3000:]}"

    def json(self):
        return json.loads(self.out)

    def events(self, kind=None):
        return [event for event in events_of(self.out) if kind in (None, event["event"])]

    @property
    def losses(self):
        return losses_of(self.out)

    @property
    def done(self):
        return self.events("done")[-1]


class Running:
    """A command in the background; its output is read as it comes."""

    def __init__(self, arguments, environment, stdout=subprocess.PIPE):
        self.arguments, self.started = [str(argument) for argument in arguments], time.monotonic()
        self.process = subprocess.Popen(self.arguments, env=environment, stdout=stdout, stderr=subprocess.PIPE,
                                        stdin=subprocess.DEVNULL, encoding="utf-8", errors="surrogateescape")
        self.out, self.err = [], []
        self.readers = [threading.Thread(target=self._read, args=pair, daemon=True)
                        for pair in ((self.process.stdout, self.out), (self.process.stderr, self.err)) if pair[0]]
        for reader in self.readers:
            reader.start()

    @staticmethod
    def _read(stream, lines):
        for line in stream:
            lines.append(line)
        stream.close()

    @property
    def pid(self):
        return self.process.pid

    def text(self):
        return "".join(self.out)

    def result(self):
        return Result(self.arguments, self.process.poll(), self.text(), "".join(self.err), time.monotonic() - self.started)

    def wait(self, seconds=COMMAND_SECONDS):
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {seconds} s: {self.result()}") from None
        for reader in self.readers:
            reader.join(seconds)
        return self.result()

    def wait_for(self, wanted, seconds=COMMAND_SECONDS):
        """The first printed event for which `wanted` holds."""
        deadline, seen = time.monotonic() + seconds, 0
        while True:
            ended = self.process.poll() is not None and not any(reader.is_alive() for reader in self.readers)
            lines = self.out[seen:]
            seen += len(lines)
            for event in events_of("".join(lines)):
                if wanted(event):
                    return event
            if ended or time.monotonic() > deadline:
                raise AssertionError(f"the event that was waited for did not come: {self.result()}")
            time.sleep(0.01)

    def wait_for_step(self, step):
        return self.wait_for(lambda event: event["event"] == "step" and event["step"] >= step)

    def signal(self, number):
        self.process.send_signal(number)

    def end(self):
        if self.process.poll() is None:
            self.process.terminate()
        return self.wait(20)


class TerraceTest(unittest.TestCase):
    """A temporary folder, an environment of its own, commands with timeouts, and nothing left running afterwards."""

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="terrace-test-"))
        self.mark = uuid.uuid4().hex
        self.environment = {**os.environ, MARK: self.mark, "XDG_STATE_HOME": str(self.folder / "state"),
                            "XDG_CACHE_HOME": str(self.folder / "cache"),
                            # Ranks get listed variables only: the mark, and what preloaded libraries of tests ask for.
                            "TERRACE_RANK_ENV": f"{MARK},TERRACE_FAILING_DRIVE,GROW_MEMORY,GROW_MEMORY_IN",
                            # The machine is the same for all: measured once.
                            "TERRACE_PROFILE_DIR": os.path.join(tempfile.gettempdir(), f"terrace-profiles-{os.getuid()}")}
        self.environment.pop("TERRACE_COORDINATOR", None)
        self.running = []
        self.jobs = 0

    def tearDown(self):
        for running in reversed(self.running):
            running.end()
        left = self.wait_until_nothing_runs(10)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.assertEqual(left, {}, "processes were left running")

    def wait_until_nothing_runs(self, seconds):
        """What still runs after so long; {} as soon as nothing does."""
        deadline = time.monotonic() + seconds
        while (left := processes(self.mark)) and time.monotonic() < deadline:
            time.sleep(0.02)
        return left

    def wait_until(self, holds, what, seconds=COMMAND_SECONDS):
        deadline = time.monotonic() + seconds
        while not (value := holds()):
            self.assertLess(time.monotonic(), deadline, f"after {seconds} s not true: {what}")
            time.sleep(0.02)
        return value

    def keep_profile(self):
        """From here on this test has its own copy of the machine's profile: other tests measure the shared one anew when
        a run contradicts it, and two commands whose times are compared have to go by the same one."""
        self.terrace("plan", self.job(), "-o", "json")
        shared, own = pathlib.Path(self.environment["TERRACE_PROFILE_DIR"]), self.folder / "profiles"
        shutil.copytree(shared, own, ignore=lambda _, names: [name for name in names if not name.endswith(".json")])
        self.environment["TERRACE_PROFILE_DIR"] = str(own)

    # ---- commands ----

    def start(self, *arguments, program="terrace"):
        return self.run_command([BIN / program, *arguments])

    def run_command(self, command, **options):
        running = Running(command, self.environment, **options)
        self.running.append(running)
        return running

    def terrace(self, *arguments, code=OK, seconds=COMMAND_SECONDS, program="terrace"):
        """Types a command, expects its exit code, returns what it printed."""
        result = self.start(*arguments, program=program).wait(seconds)
        if code is not None:
            self.assertEqual(result.code, code, str(result))
        return result

    def train(self, job, code=OK, seconds=COMMAND_SECONDS):
        """`terrace run -o json`; afterwards nothing may be running."""
        result = self.terrace("run", job, "-o", "json", code=code, seconds=seconds)
        self.assertEqual(self.wait_until_nothing_runs(5), {}, "left running by terrace run")
        return result

    def refused(self, result, *words):
        """The message names what is wrong and the way out; with -o json it is an object as well."""
        for word in words:
            self.assertIn(word.lower(), (result.out + result.err).lower(), str(result))

    # ---- jobs ----

    def write(self, name, content):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def job(self, changes=None, name=None):
        """Writes the spec of a tiny job, which takes seconds; `changes` maps dotted keys to values, None removes a key.
        JSON is YAML, so no YAML library is needed. Each job has a folder, and so checkpoints, of its own."""
        self.jobs += 1
        name = name or f"tiny-{self.jobs}"
        spec = {"name": name,
                "model": {"config": GPT},
                "data": {"train": "../corpus.txt", "sequence_length": 32, "cache": "../tokens"},
                "train": {"steps": 30, "global_batch": 8, "precision": "fp32", "optimizer": {"lr": 3e-3}, "eval_batches": 4},
                "resources": {"threads_per_device": 1},
                "checkpoint": {"directory": "checkpoints"}}
        for key, value in (changes or {}).items():
            *sections, last = key.split(".")
            section = spec
            for part in sections:
                section = section.setdefault(part, {})
            if value is None:
                section.pop(last, None)
            else:
                section[last] = value
        if not (self.folder / "corpus.txt").exists():
            self.write("corpus.txt", learnable_text(60_000))
        return self.write(f"{name}/job.yaml", json.dumps(spec, indent=2))

    def checkpoints(self, job):
        return sorted((job.parent / "checkpoints").glob("step-*"))

    def rank_pids(self):
        return sorted(pid for pid, command in processes(self.mark).items() if "terrace-rank run" in command)

    def pids_by_rank(self):
        """The number of a rank is the folder of its configuration."""
        found = {}
        for pid, command in processes(self.mark).items():
            if match := re.search(r"terrace-rank run .*/(\d+)/config\.pb", command):
                found[int(match.group(1))] = pid
        return found

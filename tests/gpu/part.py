# SPDX-License-Identifier: Apache-2.0
"""What the parts of tests/gpu/run.sh share: arguments, a deadline, jobs and their events, tables, JSON and exit codes.

A part is a program `part.py`-style: `--bin FOLDER --device cuda|cpu --seconds N --json FILE`. It exits with 0 when all of its
checks hold, 1 when one does not, 2 for wrong usage, and 77 when something that it needs is not here, after one line that names
it. With `--device cpu` it takes the same steps on the CPU with small sizes: that shows that the part works, nothing about GPUs,
and says so in the table and in the JSON. Python's standard library only.
"""
import argparse
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

PASSED, FAILED, USAGE, SKIPPED = 0, 1, 2, 77
ROOT = pathlib.Path(__file__).resolve().parents[2]


class Skip(Exception):
    """Something is missing that this part cannot do without."""


class OutOfTime(Exception):
    """The part's share of the time is over; what was measured until then is kept."""


def binaries():
    """Beside the scripts in a bundle, in the build tree otherwise."""
    bundled = ROOT / "bin"
    return bundled if (bundled / "terrace").exists() else ROOT / "build/release/bin"


def parser(description, seconds):
    parsed = argparse.ArgumentParser(description=description.splitlines()[0])
    parsed.add_argument("--bin", type=pathlib.Path, default=binaries(), help="folder of terrace and the other programs")
    parsed.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: a rehearsal with small sizes")
    parsed.add_argument("--seconds", type=float, default=seconds, help="time that this part may take")
    parsed.add_argument("--json", type=pathlib.Path, help="file for the results")
    return parsed


def require_device(options):
    """What it is called, how many there are and the bytes of each. Skips where it is missing, with the line that the programs
    themselves have for it."""
    if not (options.bin / "terrace").exists():
        raise Skip(f"there is no {options.bin / 'terrace'}: build it, or name its folder with --bin")
    if options.device == "cpu":
        return "CPU (rehearsal: nothing here is about GPUs)", 1, 0
    asked = subprocess.run([options.bin / "terrace-rank", "devices", "-o", "json"], capture_output=True, text=True, timeout=60)
    try:
        answer = json.loads(asked.stdout)
    except ValueError:
        raise Skip((asked.stderr or asked.stdout).strip()[-300:] or "terrace-rank devices said nothing") from None
    if not answer.get("devices"):
        raise Skip(answer.get("problem", "terrace-rank devices lists no GPU"))
    count, memory = int(answer["devices"]), int(answer["memory_bytes"])
    return f"{answer['name']}, {memory / 2**30:.1f} GiB, one of {count}", count, memory


def text_file(folder, size=400_000, seed=7):
    """English-like sentences that a small model learns."""
    source = random.Random(seed)
    words = ("the king", "a shepherd", "his brother", "saw", "gave", "took", "bread", "the ark", "gold", "and")
    path, parts, length = folder / "corpus.txt", [], 0
    while length < size:
        parts.append(" ".join(source.choices(words, k=6)) + ". ")
        length += len(parts[-1])
    path.write_text("".join(parts)[:size])
    return path


class Job:
    """One `terrace run` and what it printed. Ended with the part's deadline; leaves no process behind."""

    def __init__(self, part, spec):
        self.part, self.spec, self.steps, self.plan, self.tail = part, spec, [], None, []
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="job-", dir=part.folder))
        spec.setdefault("checkpoint", {"directory": str(self.folder / "checkpoints"), "resume": "never"})
        path = self.folder / "job.yaml"
        path.write_text(json.dumps(spec))  # JSON is YAML
        self.process = subprocess.Popen(
            [part.options.bin / "terrace", "-o", "json", "run", path, "--state-dir", self.folder / "state"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True, env=part.environment)

    def events(self):
        """Its events as they come."""
        for line in self.process.stdout:
            self.tail = (self.tail + [line])[-20:]
            if line.startswith("{"):
                event = json.loads(line, parse_float=str if self.part.exact else None)
                if event.get("event") == "plan":
                    self.plan = event["plan"]
                if event.get("event") == "step":
                    self.steps.append(event)
                yield event
            if self.part.left() <= 0:
                self.end()
                raise OutOfTime
        if self.process.wait() not in (0, 130):
            raise RuntimeError(f"terrace run ended with {self.process.returncode}: {' '.join(self.tail).strip()[-1500:]}")

    def run(self):
        for _ in self.events():
            pass
        return self

    def rank_pids(self):
        """Of the ranks of this job: those whose command line names its state folder."""
        found = []
        for entry in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                command = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if command[0].endswith(b"terrace-rank") and any(str(self.folder).encode() in part for part in command):
                found.append(int(entry.name))
        return found

    def end(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
        self.process.stdout.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class Part:
    """Rows of results with their verdicts, and how the part ends."""

    def __init__(self, name, options, columns, exact=False):
        self.name, self.options, self.columns, self.exact = name, options, columns, exact
        self.rows, self.notes, self.began = [], [], time.monotonic()
        self.device, self.devices, self.memory_bytes = "", 0, 0
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix=f"terrace-gpu-{name}-"))
        self.environment = {**os.environ, "XDG_STATE_HOME": str(self.folder / "state"),
                            "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", str(pathlib.Path.home() / ".cache"))}

    def left(self):
        return self.options.seconds - (time.monotonic() - self.began)

    def add(self, holds, **values):
        """A row: `holds` is True, False, or None for a number without a bound."""
        self.rows.append({**values, "passed": holds})
        print("  ".join(f"{key} {value}" for key, value in values.items()) + {True: "", False: "  FAILED", None: ""}[holds],
              file=sys.stderr, flush=True)

    def job(self, spec):
        return Job(self, spec)

    def print_table(self):
        cells = [list(self.columns) + ["passed"]]
        cells += [[str(row.get(column, "")) for column in self.columns] + [{True: "yes", False: "NO", None: ""}[row["passed"]]]
                  for row in self.rows]
        widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
        print(f"\n{self.name} on {self.device}")
        for row in cells:
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
        for note in self.notes:
            print(f"note: {note}")

    def write_json(self, code):
        if self.options.json:
            self.options.json.write_text(json.dumps({
                "part": self.name, "device": self.device, "rehearsal": self.options.device == "cpu", "exit_code": code,
                "seconds": round(time.monotonic() - self.began, 1), "rows": self.rows, "notes": self.notes}, indent=1) + "\n")

    def main(self, body):
        """Runs body(self); returns the exit code."""
        code = PASSED
        try:
            self.device, self.devices, self.memory_bytes = require_device(self.options)
            body(self)
        except Skip as skip:
            self.notes.append(f"not run: {skip}")
            code = SKIPPED
        except OutOfTime:
            self.notes.append(f"out of time after {self.options.seconds:.0f} s: what is missing in the table was not run")
            code = FAILED
        except (RuntimeError, subprocess.SubprocessError, OSError, ValueError, KeyError) as error:
            self.notes.append(f"{type(error).__name__}: {error}")
            code = FAILED
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)
        if code == PASSED and (not self.rows or any(row["passed"] is False for row in self.rows)):
            code = FAILED
        if code == SKIPPED:
            print(f"{self.name}: {self.notes[-1]}", file=sys.stderr)
        else:
            self.print_table()
        self.write_json(code)
        return code

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""No message, page or note names a command or an option that does not exist.

Takes every command of Terrace's programs that stands in a string of the sources, in a page of the documentation or in the files for
deployment, asks the program for its --help, and looks up the options that are named with it.
"""
import functools
import os
import pathlib
import re
import subprocess
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
BIN = pathlib.Path(os.environ["TERRACE_BIN"])
SOURCES = ["base", "kernels", "proto", "coordinator", "worker", "client"]
PAGES = ["docs", "deploy", "README.md", "CONTRIBUTING.md"]
COMMAND = re.compile(r"(?<![\w/.-])(?<!-n )(?<!-t )(terrace(?:-coordinator|-worker|-rank)?) ([a-z][a-z-]*)((?: [^`|&#;\n]*)?)")
OPTION = re.compile(r"(?<![\w-])(--[a-z][a-z0-9-]*)")
STRING = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
# Words that follow a program's name in a sentence or a list. A namespace (-n) and a tag (-t) are no program.
PROSE = {"terrace", "terrace-coordinator", "terrace-worker", "terrace-rank", "is", "was", "and", "or", "has", "does", "where", "with", "on", "itself", "processes", "starts"}


@functools.lru_cache(maxsize=None)
def help_of(words):
    """The text of --help, or nothing where the program knows no such command."""
    done = subprocess.run([BIN / words[0], *words[1:], "--help"], capture_output=True, text=True, timeout=30)
    # An unknown word before --help is answered with the help of what stands before it.
    unknown = done.returncode != 0 or (len(words) > 1 and done.stdout == help_of(words[:-1]))
    return None if unknown else done.stdout


def strings(path):
    """String literals of a C++ file, those that follow each other joined: a message may be cut anywhere."""
    text = re.sub(r'"[ \t]*\n[ \t]*"', "", path.read_text())
    for line, content in enumerate(text.split("\n"), 1):
        if content.lstrip().startswith(("//", "#include")):
            continue
        for literal in STRING.findall(content):
            yield line, literal.replace('\\"', '"').replace("\\n", "\n")


def code(path):
    """What a page sets as code: spans in backticks, and blocks. Of other files all of it."""
    if path.suffix != ".md":
        yield from enumerate(path.read_text().split("\n"), 1)
        return
    fenced = False
    for line, content in enumerate(path.read_text().split("\n"), 1):
        if content.startswith("```"):
            fenced = not fenced
        elif fenced or content.startswith("    "):
            yield line, content
        else:
            yield from ((line, span) for span in re.findall(r"`([^`]+)`", content))


def mentions():
    for folder in SOURCES:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".cc", ".h", ".cu", ".cuh"):
                yield from ((path, line, text) for line, text in strings(path))
    for page in PAGES:
        place = ROOT / page
        for path in sorted(place.rglob("*")) if place.is_dir() else [place]:
            if path.is_file() and path.suffix in (".md", ".sh", ".yaml", ".yml", ".service", ".sbatch", ""):
                yield from ((path, line, text) for line, text in code(path))


def problem(program, command, rest):
    """What is wrong with a command, or nothing."""
    words, text = (program, command), help_of((program, command))
    if text is None:
        return f"{program} has no command {command}"
    if "Subcommands:" in text and (sub := re.match(r" ([a-z][a-z-]*)", rest)):
        words, text = (*words, sub.group(1)), help_of((*words, sub.group(1)))
        if text is None:
            return f"{program} {command} has no command {sub.group(1)}"
    known = set(OPTION.findall(text)) | set(OPTION.findall(help_of((program,)) or ""))
    for option in OPTION.findall(re.sub(r'"[^"]*"', "", rest)):
        if option not in known:
            return f"{' '.join(words)} has no option {option}"
    return None


class CommandsTest(unittest.TestCase):
    def test_every_command_that_is_named_exists(self):
        seen, wrong = set(), []
        for path, line, text in mentions():
            for program, command, rest in COMMAND.findall(text):
                if command in PROSE:
                    continue
                seen.add((program, command))
                if found := problem(program, command, rest):
                    wrong.append(f"{path.relative_to(ROOT)}:{line}: {found}: '{program} {command}{rest}'")
        self.assertEqual(wrong, [], "\n" + "\n".join(wrong))
        # The test reads something: the commands of a first session are among what it found.
        for command in ("run", "plan", "submit", "status", "import", "ckpt", "generate"):
            self.assertIn(("terrace", command), seen)
        self.assertGreater(len(seen), 20)

    def test_it_notices_what_does_not_exist(self):
        self.assertIn("no command frobnicate", problem("terrace", "frobnicate", ""))
        self.assertIn("no option --frob", problem("terrace", "plan", " job.yaml --frob"))
        self.assertIn("no command frob", problem("terrace", "ckpt", " frob checkpoints"))
        self.assertIsNone(problem("terrace", "plan", " job.yaml --cluster h100x8:1"))


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
"""Style as a test: who may include whom, forbidden libraries, how many files a folder has, line length of sources and pages,
banned words, one licence tag a file.

Prints every violation as file:line: rule, and exits 1 if there is one.
"""
import collections
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCE = {".h", ".cc", ".cu", ".cuh"}
MAX_LINE = 100
# Of prose in a page. Tables, code, headings, quotations of HTML and what has no space to break at may be longer.
MAX_PAGE_LINE = 110
# Of a folder of the product; kernels are many and alike.
MAX_FILES = 40
MANY_FILES = {"kernels/cpu", "kernels/cuda"}
OURS = ("base/", "kernels/", "proto/", "coordinator/", "worker/", "client/", "tests/")

# library header prefix -> files (regular expression on the path) that may include it
LIBRARIES = {
    r"<grpcpp/|\.grpc\.pb\.h": r"^(coordinator/(server|cli)/|worker/daemon|client/connection|tests)",
    r"<gloo/": r"^(worker/comm|tests)",
    r"<sqlite3": r"^(coordinator/store|tests)",
    r"<spdlog": r"^base/log",
    r"<yaml-cpp": r"^coordinator/(spec|import|hardware/cluster_file)",
    r"<(microhttpd|gnutls)": r"^base/http/",
    r"<prometheus/": r"^(coordinator/server|worker/daemon|tests)",
    r"<CLI/": r"^(client/commands/(main|checkpoint_options)|coordinator/cli/main|worker/(daemon|tools)/main)",
    r"<(cuda|cublas)": r"^(kernels/cuda|worker/comm/(cuda|nccl)_|tests)",
    r"<nccl": r"^(worker/comm/nccl_|tests)",
    r"google/protobuf|\.pb\.h": r"^(?!kernels|base|worker/memory|worker/comm)",
    r"<gtest|<gmock|<benchmark": r"^tests",
}
# Words that docs/terminology.md has the field's word for.
RETIRED = {
    r"\b[Hh]opeless": "infeasible",
    r"\b[Bb]outs?\b": "live range",
    r"\b[Ll]adder\b": "fallbacks",
    r"\b[Cc]ompanions\b": "co-running ranks",
    r"computed again": "recomputed",
    r"\bunearned\b|\bearn(s|ed)?\b": "reuse wait",
}
BANNED = [r"\bTODO\b", r"\bFIXME\b", r"\bXXX\b", r"ifdef TESTING", r"FRIEND_TEST", r"using namespace std;"]


MAX_FUNCTION = 70
# Tables of data that are written as functions.
TABLES = re.compile(r"^(coordinator/(hardware/catalogue_data|spec/keys_\w+|model/presets|model/config_keys_table|import/\w+_keys"
                    r"|import/megatron/flags|evaluation/techniques)|kernels/cuda/registry)\.cc$")
# From the root. Neither patterns nor what tests and builds make.
PATHS = r"(?<![\w/.${}-])((?:base|kernels|proto|coordinator|worker|client|deploy|tests|docs|cmake)/[\w/.-]*\w)(?![\w*-])"
# Pages that say what was, not what is.
HISTORY = re.compile(r"^(CHANGELOG\.md|docs/decisions/|tests/bench/results/)")


def known_paths(names):
    """Files, files without their ending (a unit), and folders."""
    known = set(names) | {name.rsplit(".", 1)[0] for name in names}
    for name in names:
        known.update(str(parent) for parent in pathlib.PurePath(name).parents)
    return known


def tracked():
    out = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / line for line in out.splitlines() if line]


def read_layers():
    layers = {}
    for line in (ROOT / "tests/tidy/layers.txt").read_text().splitlines():
        line = line.split("#")[0].strip()
        if line:
            name, _, allowed = line.partition(":")
            layers[name.strip()] = allowed.split()
    return layers


def layer_of(path, layers):
    """The longest layer that is a folder above `path` or its stem (coordinator/prepare/prepare.h -> coordinator/prepare/prepare)."""
    stem = path.rsplit(".", 1)[0]
    fits = [name for name in layers if stem == name or path.startswith(name + "/")]
    return max(fits, key=len) if fits else None


def check_includes(name, lines, layers, report):
    mine = layer_of(name, layers)
    for number, line in enumerate(lines, 1):
        match = re.match(r'\s*#include\s+(["<][^">]+[">])', line)
        if not match:
            continue
        header = match.group(1).strip('"<>')
        for library, where in LIBRARIES.items():
            if re.search(library, match.group(1)) and not re.search(where, name):
                report(name, number, f"{header} may not be included here")
        if not name.startswith("tests/") and header.startswith(OURS):
            theirs = layer_of(header, layers)
            if mine is None:
                report(name, number, "this file belongs to no layer of layers.txt")
            elif theirs != mine and theirs not in layers[mine]:
                report(name, number, f"{mine} may not include {theirs or header}")


def check_folders(names, report):
    """A folder of the product with more files than a reader takes in at once has more than one job."""
    files = collections.Counter(str(pathlib.PurePath(name).parent) for name in names)
    for folder, count in sorted(files.items()):
        ours = folder.startswith(tuple(top.rstrip("/") for top in OURS if top != "tests/"))
        if ours and folder not in MANY_FILES and count > MAX_FILES:
            report(folder, 1, f"{count} files, at most {MAX_FILES} lie in one folder: give a part of them a room")


def check_functions(name, lines, report):
    """Formatted code: a definition begins at column 0 (or 2, in a class) and ends with a brace in its column."""
    start = None
    for number, line in enumerate(lines, 1):
        if start is None:
            head = "".join(lines[max(0, number - 6):number])
            is_block = re.match(r"^ {0,2}(namespace|struct|class|enum|union|else|if|for|while|switch|do)\b", line)
            if re.match(r"^ {0,2}[A-Za-z_~]", line) and line.endswith("{") and "(" in head and not is_block \
                    and "=" not in line.split("(")[0]:
                start, indent = number, len(line) - len(line.lstrip())
        elif line.startswith(" " * indent + "}"):
            if number - start + 1 > MAX_FUNCTION:
                report(name, start, f"a function of {number - start + 1} lines, at most {MAX_FUNCTION}")
            start = None


def check_references(name, lines, known, report):
    """A path of ours in a page or a comment leads somewhere."""
    for number, line in enumerate(lines, 1):
        if not name.endswith(".md") and not re.match(r"\s*(//|#)", line):
            continue
        for path in re.findall(PATHS, line):
            if path not in known and not path.endswith(".pb.h"):
                report(name, number, f"there is no {path}")


def prose(lines):
    """(number, line) of what a page's renderer would break into lines of its own: no headings, tables or code."""
    fenced, code, in_list, after_blank = False, False, False, True
    for number, line in enumerate(lines, 1):
        starts_block, after_blank = after_blank, not line.strip()
        if re.match(r"\s*(```|~~~)", line):
            fenced = not fenced
        elif fenced or after_blank:
            continue
        elif line.startswith(" " * (8 if in_list else 4)) and (code or starts_block):
            code = True
        elif not re.match(r" {0,3}(\||#|<)", line):
            code = False
            in_list = bool(re.match(r"\s*([-*+]|\d+[.)])\s", line)) or (in_list and line.startswith(" "))
            yield number, line


def check_width(name, lines, report):
    # A link and a span of code are broken nowhere.
    atom = r"!?\[[^\]]*\]\([^)]*\)\S*|`[^`]*`\S*|\S+"
    for number, line in prose(lines):
        text = re.sub(r"^\s*([-*+]|\d+[.)])\s+", "", line)
        if len(line) > MAX_PAGE_LINE and len(re.findall(atom, text)) > 1:
            report(name, number, f"longer than {MAX_PAGE_LINE} columns: wrap it")


def check_tests(name, lines, tests, report):
    """A test that a page names, `Suite.Case`, is there."""
    for number, line in enumerate(lines, 1):
        for test in re.findall(r"`(\w+Test\.\w+)`", line):
            if test not in tests:
                report(name, number, f"there is no test {test}")


def check_retired(name, lines, report):
    """Words that docs/terminology.md replaces are in no source and no page; spans of code are names that stay."""
    for number, line in enumerate(lines, 1):
        text = re.sub(r"`[^`]*`", "", line) if name.endswith(".md") else line
        for word, instead in RETIRED.items():
            if re.search(word, text):
                report(name, number, f"a retired word: say {instead} (docs/terminology.md)")


def inside_raw_literal(lines, number):
    before = "\n".join(lines[: number - 1])
    return before.count('R"') > len(re.findall(r'\)\w*"', before))


def main():
    layers = read_layers()
    problems = []
    report = lambda name, number, rule: problems.append(f"{name}:{number}: {rule}")
    names = [str(path.relative_to(ROOT)) for path in tracked()]
    known = known_paths(names)
    tests = {
        f"{suite}.{case}"
        for path in ROOT.glob("tests/**/*_test.cc")
        for suite, case in re.findall(r"^TEST(?:_F|_P)?\((\w+),\s*(\w+)\)", path.read_text(), re.M)
    }
    check_folders(names, report)
    for path in tracked():
        name = str(path.relative_to(ROOT))
        if path.suffix not in SOURCE | {".md"} or not path.exists():
            continue
        lines = path.read_text().splitlines()
        if not HISTORY.match(name):
            check_references(name, lines, known, report)
            check_tests(name, lines, tests, report)
        if path.suffix == ".md":
            check_width(name, lines, report)
            if not HISTORY.match(name) and name != "docs/terminology.md":
                check_retired(name, lines, report)
            continue
        if not any("SPDX-License-Identifier: Apache-2.0" in line for line in lines[:30]):
            report(name, 1, "no SPDX licence tag")
        if path.suffix in {".h", ".cuh"} and "#pragma once" not in lines and not name.endswith("-inl.h"):
            report(name, 1, "no #pragma once")
        for number, line in enumerate(lines, 1):
            # clang-format breaks what can be broken; what is left is a literal (or text inside a raw one).
            if len(line) > MAX_LINE and '"' not in line and not inside_raw_literal(lines, number):
                report(name, number, f"longer than {MAX_LINE} columns")
            for word in BANNED:
                if re.search(word, line):
                    report(name, number, f"banned: {word}")
        check_retired(name, lines, report)
        check_includes(name, lines, layers, report)
        if not name.startswith("tests/") and not TABLES.match(name):
            check_functions(name, lines, report)
    for problem in problems:
        print(problem)
    print(f"tidy: {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

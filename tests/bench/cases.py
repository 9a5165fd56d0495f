#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What comes of inputs that people bring: a table of a folder of cases, before, now, and by an independent reference.

The kind of a case is its name (case_kinds.py): data_*.jsonl, tokenizer_*/, config_*.json, export_*/, deepspeed_*.json, megatron_*.txt,
planning/*.yaml. Each is given to the product's commands as a user would, and what comes out is compared with the file itself,
transformers, tokenizers, hjson, Megatron-LM's formulas, or the best of four pinned layouts. "Before" is the second column of the table
in the folder's README.md. Losses are of weights that transformers made, times 8 so that attention matters, with a learning rate of 0.

  PYTHON tests/bench/cases.py --bin build/release/bin --cases FOLDER [--markdown FILE] [--only PART] [--pins]

PYTHON has torch, transformers, tokenizers, hjson and PyYAML. --pins also plans what is compared with, which takes minutes.
Exit code 1 when a case comes out otherwise than its reference.
"""
import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

import case_kinds

VERDICTS = {True: "as the reference", False: "**otherwise**", None: "refused"}


def before_of(folder):
    """name -> the second column of the README's table."""
    readme, found = folder / "README.md", {}
    for line in readme.read_text().splitlines() if readme.exists() else []:
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]
        if len(cells) >= 2 and (name := re.fullmatch(r"`(.+?)/?`", cells[0])):
            found[name.group(1)] = cells[1]
    return found


def rows(options):
    before = before_of(options.cases)
    for path in sorted(options.cases.rglob("*")):
        name = str(path.relative_to(options.cases))
        kind = case_kinds.kind_of(name, path)
        if kind is None or options.only not in name:
            continue
        with tempfile.TemporaryDirectory(prefix="terrace-case-") as folder:
            case = case_kinds.Case(path, pathlib.Path(folder), options.bin.resolve(), options.pins)
            now, reference, same = kind(case)
            now = now.replace(f"{path.parent}/", "")
        print(f"{name}: {now} | {reference} | {VERDICTS[same]}", flush=True)
        yield name, before.get(name, ""), now, reference, same


def versions():
    import tokenizers
    import torch
    import transformers
    return f"transformers {transformers.__version__}, tokenizers {tokenizers.__version__}, torch {torch.__version__}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--cases", type=pathlib.Path, required=True)
    parser.add_argument("--markdown", type=pathlib.Path, help="where the table is written")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--pins", action="store_true")
    options = parser.parse_args()
    table = list(rows(options))
    if options.markdown:
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=pathlib.Path(__file__).parent, capture_output=True, text=True)
        lines = [f"Commit {commit.stdout.strip()}; {versions()}.", "", "| input | before | now | reference | |", "|---|---|---|---|---|"]
        for name, before, now, reference, same in table:
            lines.append(f"| `{name}` | {before} | {now} | {reference} | {VERDICTS[same]} |")
        options.markdown.write_text("\n".join(lines) + "\n")
    return 1 if any(row[-1] is False for row in table) else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What buckets of lengths are worth: useful tokens a second of documents padded to one length, and to the nearest of several.

The documents are verses of the King James Bible (Debian's bible-kjv and bible-kjv-text), each a sample of its own, or pieces of
one where it is longer than the longest length. Both jobs take the same steps of the same batch over the same verses, as many as
see each verse once; they run by turns. Useful tokens are those that are predicted, without padding; a run's speed is all of its
useful tokens over the seconds of all of its steps but the first of each length. The ratio is the median over rounds. The share of
padding is computed from the lengths: 1 - tokens / (samples x length of their bucket); of the one length it is compared with what
the run reports.

  tests/bench/buckets.py --bin build/release/bin [--rounds 3] [--buckets 96,160,256,512] [--documents 776] [--batch 8]
"""
import argparse
import bisect
import json
import pathlib
import random
import statistics
import subprocess
import tempfile

CONFIG = {"model_type": "llama", "vocab_size": 256, "hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4,
          "num_key_value_heads": 4, "intermediate_size": 384, "max_position_embeddings": 512, "rms_norm_eps": 1e-5,
          "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False}


def verses(count):
    """That many, drawn from all."""
    text = subprocess.run(["bible", "-f", "gen1:1-rev22:21"], capture_output=True, check=True, text=True).stdout
    lines = [line.split(" ", 1)[1] for line in text.splitlines() if " " in line]
    return random.Random(1).sample(lines, count)


def samples_of(texts, longest):
    """Targets of each sample: a document's last token has none."""
    counts = []
    for text in texts:
        rest = len(text.encode()) - 1
        while rest > 0:
            counts.append(min(rest, longest))
            rest -= counts[-1]
    return counts


def padding_of(counts, lengths):
    places = sum(lengths[bisect.bisect_left(lengths, count)] for count in counts)
    return 1 - sum(counts) / places


def spec_of(folder, name, lengths, steps, options):
    data = {"train": str(folder / "verses.jsonl"), "samples": "documents", "sequence_length": lengths[-1], "validation": str(folder / "held-out.jsonl"),
            "cache": str(folder / "tokens")}
    if len(lengths) > 1:
        data["buckets"] = lengths
    spec = {"name": name, "model": {"config": CONFIG}, "data": data,
            "train": {"steps": steps, "global_batch": options.batch, "precision": options.precision, "eval_batches": 1,
                      "optimizer": {"lr": 1e-3}},
            "layout": {"dp": 1, "micro_batch": options.batch}, "checkpoint": {"directory": str(folder / name)}}
    path = folder / f"{name}.yaml"
    path.write_text(json.dumps(spec))
    return path


def run(options, path):
    """(useful tokens a second, useful tokens a step, last loss)"""
    subprocess.run(["rm", "-rf", path.with_suffix("")], check=True)
    result = subprocess.run([options.bin / "terrace", "run", path, "-o", "json"], capture_output=True, text=True, timeout=600)
    if result.returncode != 0:
        raise SystemExit(result.stdout[-2000:] + result.stderr[-2000:])
    steps = [event for event in map(json.loads, filter(lambda line: line.startswith("{"), result.stdout.splitlines()))
             if event["event"] == "step"]
    tokens = [one["tokens"] - before for one, before in zip(steps, [0] + [step["tokens"] for step in steps])]
    warm = options.warm
    seconds = sum(step["step_seconds"] for step in steps[warm:])
    return sum(tokens[warm:]) / seconds, statistics.mean(tokens), steps[-1]["loss"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--buckets", default="96,160,256,512")
    parser.add_argument("--documents", type=int, default=776)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--warm", type=int, default=4, help="first steps that are left out")
    parser.add_argument("--precision", default="fp32")
    options = parser.parse_args()
    lengths = [int(length) for length in options.buckets.split(",")]
    texts = verses(options.documents)
    counts = samples_of(texts, lengths[-1])
    steps = len(counts) // options.batch
    print(f"{len(texts)} verses, {len(counts)} samples of {statistics.mean(counts):.0f} tokens on average (median "
          f"{statistics.median(counts):.0f}, most {max(counts)}); {steps} steps of {options.batch}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        for name, of in (("verses", texts), ("held-out", texts[:options.batch])):
            (folder / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in of))
        arms = {"one length": [lengths[-1]], "buckets": lengths}
        specs = {name: spec_of(folder, name.replace(" ", "-"), arm, steps, options) for name, arm in arms.items()}
        rounds = []
        for number in range(options.rounds):
            order = list(specs) if number % 2 == 0 else list(reversed(specs))
            rounds.append({name: run(options, specs[name]) for name in order})
        print("\n| samples padded to | padding | useful tokens/s | last loss |\n|---|---|---|---|")
        for name, arm in arms.items():
            print(f"| {', '.join(map(str, arm))} | {100 * padding_of(counts, arm):.1f} % | "
                  f"{statistics.median(one[name][0] for one in rounds):,.0f} | {rounds[-1][name][2]:.3f} |")
        ratios = [one["buckets"][0] / one["one length"][0] for one in rounds]
        padding = 1 - rounds[0]["one length"][1] / options.batch / lengths[-1]
        print(f"\nbuckets / one length: {statistics.median(ratios):.2f} (of {', '.join(f'{ratio:.2f}' for ratio in ratios)}); by "
              f"padding alone it would be {(1 - padding_of(counts, lengths)) / (1 - padding_of(counts, lengths[-1:])):.2f}. "
              f"Padding that the runs of one length report: {100 * padding:.1f} %")


if __name__ == "__main__":
    main()

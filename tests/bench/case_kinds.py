# SPDX-License-Identifier: Apache-2.0
"""The kinds of cases of cases.py: what each is given to, and what it must come to. A kind is a function from a Case to what came out, what
the reference says, and whether they are the same (None: the input was refused)."""
import array
import dataclasses
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

import case_imports

LENGTH = 64  # tokens whose loss is compared
TEXT = "the king saw bread. a shepherd gave the ark. his brother took gold. the king gave gold. a shepherd saw the ark. "
WORDS_MAX = 240
CLUSTERS = {"1024_a100": "a100x8:128"}  # by a part of the name; otherwise eight A800
GPT = {"model_type": "gpt2", "vocab_size": 256, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4}


@dataclasses.dataclass
class Case:
    path: pathlib.Path
    folder: pathlib.Path  # to work in
    bin: pathlib.Path
    pins: bool

    def terrace(self, *arguments, seconds=300):
        # The machine is the same for all cases: measured once.
        environment = {**os.environ, "XDG_STATE_HOME": str(self.folder / "state"), "XDG_CACHE_HOME": str(self.folder / "cache"),
                       "TERRACE_PROFILE_DIR": os.path.join(tempfile.gettempdir(), f"terrace-profiles-{os.getuid()}")}
        return subprocess.run([self.bin / "terrace", *map(str, arguments)], cwd=self.folder, env=environment, capture_output=True,
                              text=True, timeout=seconds)

    def spec(self, **sections):
        spec = {"name": "case", "model": {"config": GPT}, "data": {"sequence_length": 32},
                "train": {"steps": 1, "global_batch": 1, "precision": "fp32", "eval_batches": 1}, "resources": {"threads_per_device": 1},
                "checkpoint": {"directory": "checkpoints"}}
        for section, keys in sections.items():
            spec.setdefault(section, {}).update(keys)
        (self.folder / "job.yaml").write_text(json.dumps(spec))
        return "job.yaml"


def said(done):
    """Why a command failed, in one line."""
    objects = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    told = [one["error"]["message"] if "error" in one else one["message"] for one in objects if "error" in one or one.get("event") == "done"]
    words = told[-1] if told else done.stderr.strip().rpartition("\n")[2]
    words = " ".join(words.split()).replace("|", "\\|")
    return words if len(words) <= WORDS_MAX else words[:WORDS_MAX] + "..."


def events(done, kind):
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return [event for event in found if event["event"] == kind]


def data(case):
    """A line that is no JSON in UTF-8 with a text is one error with file and line, without a restart."""
    bad = None
    for number, line in enumerate(case.path.read_bytes().splitlines(), 1):
        try:
            json.loads(line.decode())["text"]
        except (ValueError, KeyError, TypeError):
            bad = number
            break
    done = case.terrace("run", case.spec(data={"train": str(case.path)}), "-o", "json")
    restarts = len(events(done, "restarted"))
    now = f"exit code {done.returncode}, {restarts} restarts: {said(done)}"
    if bad is None:
        return now, "the file is good", done.returncode == 0
    where = f"{case.path.name}:{bad}"
    return now, f"the file: {where}", done.returncode == 4 and restarts == 0 and where in said(done)


def tokenizer(case):
    from tokenizers import Tokenizer

    texts = sorted(case.path.glob("*.txt")) or [pathlib.Path(__file__).parents[2] / "README.md"]
    library, counts = Tokenizer.from_file(str(case.path / "tokenizer.json")), []
    for text in texts:
        shutil.copy(text, case.folder / "text.txt")
        done = case.terrace("tokenize", "--tokenizer", case.path, "--output", "out.bin", "text.txt")
        if done.returncode != 0:
            return said(done), "loads", None
        theirs = library.encode((case.folder / "text.txt").read_text(), add_special_tokens=False).ids
        header, ours = array.array("i"), array.array("H")
        stored = (case.folder / "out.bin").read_bytes()
        header.frombytes(stored[:1024])
        if header[0] == 20240801:
            ours = array.array("I")
        ours.frombytes(stored[1024:])
        # Documents end with an end token, where there is one.
        counts.append((len(theirs), list(ours[:len(theirs)]) == theirs and len(ours) <= len(theirs) + 1))
    same = all(equal for _, equal in counts)
    return f"{sum(count for count, _ in counts):,} ids, {'the same' if same else 'others'}", "tokenizers", same


def config(case):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    shutil.copy(case.path, case.folder / "config.json")
    torch.manual_seed(5)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(case.folder), attn_implementation="eager").eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.mul_(8)
    model.save_pretrained(case.folder / "made")
    text = (TEXT * 9)[:LENGTH + 1]
    (case.folder / "text.txt").write_text(text)
    (case.folder / "train.txt").write_text(TEXT * 20)
    job = case.spec(model={"config": "config.json", "init": "made"},
                    data={"train": "train.txt", "validation": "text.txt", "sequence_length": LENGTH}, train={"optimizer": {"lr": 0}})
    done = case.terrace("run", job, "-o", "json")
    ids = torch.tensor([list(text.encode())])
    with torch.no_grad():
        theirs = model(input_ids=ids, labels=ids).loss.item()
    reference = f"transformers: {model.num_parameters():,} parameters, loss {theirs:.4f}"
    if done.returncode != 0:
        return said(done), reference, None
    loss = events(done, "eval")[-1]["loss"]
    plan = json.loads(case.terrace("plan", job, "-o", "json").stdout)
    parameters = int(plan["model"]["parameters"])
    same = parameters == model.num_parameters() and abs(loss - theirs) < 1e-4 * theirs
    return f"{parameters:,} parameters, loss {loss:.4f}", reference, same


def export(case):
    """Trained and exported as its job.yaml says, then continued greedily by both: the same text, and both stop."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    shutil.copytree(case.path, case.folder / "job")
    for path in [case.folder / "job", *(case.folder / "job").iterdir()]:
        path.chmod(0o755)
    done = case.terrace("run", case.folder / "job/job.yaml", "-o", "json")
    if done.returncode != 0:
        return said(done), "trains", False
    checkpoint = events(done, "done")[-1]["checkpoint"]
    case.terrace("ckpt", "export", checkpoint, "--output", "out")
    model, names = AutoModelForCausalLM.from_pretrained(case.folder / "out"), AutoTokenizer.from_pretrained(case.folder / "out")
    prompts = ["say", "say \"", "say \"hello\" to", "say \"hello\" to all of"]
    told, equal, stopped = [], True, True
    for prompt in prompts:
        ours = json.loads(case.terrace("generate", checkpoint, "--prompt", prompt, "--tokens", 60, "--temperature", 0, "-o", "json").stdout)
        ids = torch.tensor([names.encode(prompt, add_special_tokens=False)])
        theirs = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=60, do_sample=False)[0][ids.shape[1]:]
        told.append(repr(ours["text"]))
        stopped = stopped and len(theirs) < 60
        equal = equal and ours["text"] == names.decode(theirs, skip_special_tokens=True)
    now = f"{len(prompts)} prompts: {'the same texts' if equal else 'other texts'}, {'both stop' if stopped else 'it goes on'}; {told[0]}"
    return now, "`generate()` of transformers", equal and stopped


def deepspeed(case):
    return imported(case, "deepspeed", case_imports.deepspeed(case.path.read_text()))


def megatron(case):
    return imported(case, "megatron", case_imports.megatron(case.path.read_text()))


def imported(case, source, wanted):
    """`wanted` maps dotted keys of the spec to values, None: left open; it is None where the import must be refused."""
    import yaml

    arguments = ["import", source, case.path, "--train", "text.txt", "-o", "json"]
    if source == "deepspeed":
        arguments += ["--model", "gpt2", "--sequence-length", "128"]
    done = case.terrace(*arguments)
    if wanted is None:
        return f"exit code {done.returncode}: {said(done)}", "refused: the importer makes no such model", done.returncode == 4
    if done.returncode not in (0, 4) or not done.stdout:
        return said(done), str(wanted), None
    spec, now = yaml.safe_load(json.loads(done.stdout)["spec_yaml"]), {}
    for key in wanted:
        value = spec
        for part in key.split("."):
            value = json.loads(value) if isinstance(value, str) else value
            value = value.get(part) if isinstance(value, dict) else None
        now[key] = value
    words = lambda values: ", ".join(f"{key} {'open' if value is None else value}" for key, value in values.items())
    return words(now), words(wanted), now == wanted


def planning(case):
    cluster = next((value for part, value in CLUSTERS.items() if part in case.path.name), "a800x8:1")
    devices = int(re.search(r"x(\d+):", cluster).group(1))
    text = case.path.read_text()

    def plan(layout):
        (case.folder / "job.yaml").write_text(text + layout)
        done = case.terrace("plan", "job.yaml", "--cluster", cluster, "-o", "json", seconds=900)
        # One that does not fit is planned too.
        plan = json.loads(done.stdout) if done.stdout.startswith("{") else {}
        return plan if "time" in plan and (done.returncode == 0 or "layout:" in text) else said(done)

    ours = plan("")
    if isinstance(ours, str):
        now, seconds = ours, None
    else:
        seconds = float(ours["time"]["step_seconds"])
        held = max(int(one["arena_bytes"]) + int(one.get("external_bytes", 0)) for one in ours["memory"] if one["tier"] == "DEVICE")
        now = f"{seconds:.1f} s a step, {held / 2**30:.1f} GiB on the device, the most is held at {ours['binding']['instruction']}"
    if "layout:" in text:
        return now, "eval needs no more than training", seconds is not None and "eval" not in ours["binding"]["instruction"]
    if not case.pins:
        return now, "plans", seconds is not None
    pinned = {}
    for pin in ("pp: 1", f"tp: {devices}", f"dp: {devices}", "zero: 3"):
        other = plan("layout: {" + pin + "}\n")
        if not isinstance(other, str):
            pinned[pin] = float(other["time"]["step_seconds"])
    words = ", ".join(f"`{pin}` {value:.1f} s" for pin, value in pinned.items()) or "nothing pinned fits"
    return now, words, not pinned or (seconds is not None and seconds <= 1.05 * min(pinned.values()))


KINDS = {r"data_.*\.jsonl": data, r"tokenizer_.*": tokenizer, r"config_.*\.json": config, r"export_.*": export,
         r"deepspeed_.*\.json": deepspeed, r"megatron_.*\.txt": megatron, r"planning/.*\.yaml": planning}


def kind_of(name, path):
    for pattern, kind in KINDS.items():
        if re.fullmatch(pattern, name) and "/" not in name.removeprefix("planning/") and path.is_dir() == (kind in (tokenizer, export)):
            return kind
    return None

#!/usr/bin/env python3
"""Makes preference.json of this folder: twenty steps of direct preference optimisation (Rafailov et al. 2023) of low-rank
adapters on the goldens' llama and gpt2, as TRL's DPOTrainer computes it, with PEFT and AdamW in fp32. The reference is
the same model with its adapters off.

    python3 make_preference.py [--check | --trl]     writes the file, or compares with what is there (to 1e-5), or
                                                     compares the first step with TRL's own loss

Needs torch, transformers, safetensors and peft, and for --trl trl and datasets. The test suite needs none of them: the
file is committed.

SPDX-License-Identifier: Apache-2.0
"""
import argparse
import json
import math
import sys

import torch
from make_goldens import HERE, VOCAB, load
from make_lora import adapted
from make_recipes import CLIP

ADAMW = {"lr": 2e-3, "betas": [0.9, 0.95], "eps": 1e-6, "weight_decay": 0.1}
STEPS, PAIRS, LENGTH, IGNORED = 20, 4, 24, -1
# As a job spec writes them under model.lora and train.preference.
RECIPES = {
    "plain": {"rank": 4, "alpha": 8.0, "targets": "all-linear", "preference": {"beta": 0.1, "label_smoothing": 0.0}},
    "smoothed": {"rank": 4, "alpha": 8.0, "targets": "all-linear", "preference": {"beta": 0.5, "label_smoothing": 0.1}},
}
FAMILIES = ("gpt2", "llama")


def rows():
    """Tokens and targets of pairs: a prompt that both answers share, answers of other lengths, and padding."""
    tokens, targets = [], []
    for pair in range(PAIRS):
        prompt = 3 + 2 * pair
        for which in range(2):
            answer = 5 + (3 * pair + 4 * which) % 9
            ids = [(31 * i + 7 * pair + (17 * (which + 1) * (i - prompt) if i >= prompt else 0)) % VOCAB
                   for i in range(prompt + answer + 1)]
            shown = prompt + answer
            tokens.append(ids[:shown] + [0] * (LENGTH - shown))
            targets.append([ids[i + 1] if i + 1 >= prompt else IGNORED for i in range(shown)] + [IGNORED] * (LENGTH - shown))
    return torch.tensor(tokens), torch.tensor(targets)


def answer_logps(model, tokens, targets):
    """Of each row, the sum over the answer, as TRL's DPOTrainer sums it."""
    logps = model(tokens).logits.float().log_softmax(-1)
    of_targets = logps.gather(2, targets.clamp(min=0).unsqueeze(2)).squeeze(2)
    return (of_targets * (targets != IGNORED)).sum(-1)


def losses_of(policy, reference, beta, label_smoothing):
    """The losses of pairs and their margins; loss_type "sigmoid" of TRL."""
    ratios = policy - reference
    margins = beta * (ratios[0::2] - ratios[1::2])
    logsigmoid = torch.nn.functional.logsigmoid
    return -(1 - label_smoothing) * logsigmoid(margins) - label_smoothing * logsigmoid(-margins), margins


def train(model, tokens, targets, preference):
    trained = [p for name, p in model.named_parameters() if "lora_" in name]
    optimizer = torch.optim.AdamW(trained, lr=ADAMW["lr"], betas=ADAMW["betas"], eps=ADAMW["eps"],
                                  weight_decay=ADAMW["weight_decay"])
    numbers = {"losses": [], "margins": [], "accuracies": [], "grad_norms": []}
    for _ in range(STEPS):
        model.zero_grad()
        with torch.no_grad(), model.disable_adapter():
            reference = answer_logps(model, tokens, targets)
        losses, margins = losses_of(answer_logps(model, tokens, targets), reference, **preference)
        losses.mean().backward()
        norm = math.sqrt(sum(float((p.grad.double() ** 2).sum()) for p in trained))
        for parameter in trained:
            parameter.grad.mul_(min(1.0, CLIP / norm))
        optimizer.step()
        numbers["losses"].append(losses.mean().item())
        numbers["margins"].append(margins.mean().item())
        numbers["accuracies"].append((margins > 0).float().mean().item())
        numbers["grad_norms"].append(norm)
    return numbers


def of_trl(model, tokens, targets, preference):
    """What TRL's DPOTrainer says of the same pairs: the loss, and the means of margins and of right answers."""
    import tempfile

    from datasets import Dataset
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast
    from trl import DPOConfig, DPOTrainer

    words = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"<eos>": 0, "a": 1}, unk_token="a")),
                                    eos_token="<eos>", pad_token="<eos>")
    data = Dataset.from_list([{"prompt": "a", "chosen": "a", "rejected": "a"}])  # the trainer wants some; it is not used
    options = DPOConfig(output_dir=tempfile.mkdtemp(), report_to="none", use_cpu=True, bf16=False,
                        gradient_checkpointing=False, beta=preference["beta"])
    trainer = DPOTrainer(model=model, args=options, train_dataset=data, processing_class=words)
    # A copy of an adapter that was there before is TRL's reference; ours is always the model without any.
    trainer.model.delete_adapter("ref")
    answers = targets != IGNORED
    last = answers.long().cumsum(-1).argmax(-1)  # of each row, where its last target stands
    ids = torch.cat([tokens, torch.zeros_like(tokens[:, :1])], dim=1)
    ids[torch.arange(len(ids)), last + 1] = targets[torch.arange(len(ids)), last]
    order = torch.tensor([*range(0, 2 * PAIRS, 2), *range(1, 2 * PAIRS, 2)])  # TRL has the chosen ones first
    inputs = {"input_ids": ids, "attention_mask": (torch.arange(ids.shape[1]) <= last.unsqueeze(1) + 1).long(),
              "completion_mask": torch.nn.functional.pad(answers.long(), (1, 0))}
    loss = trainer._compute_loss(trainer.model, {key: value[order] for key, value in inputs.items()}, False)
    metrics = trainer._metrics["train"]
    return loss.item(), metrics["rewards/margins"][-1], metrics["rewards/accuracies"][-1]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare instead of write")
    parser.add_argument("--trl", action="store_true", help="compare with TRL")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    path, numbers, of_both = HERE / "preference.json", {}, {}
    tokens, targets = rows()
    for name, recipe in RECIPES.items():
        numbers[name] = {"arguments": ADAMW, "clip_grad_norm": CLIP, "recipe": recipe, "length": LENGTH,
                         "tokens": tokens.flatten().tolist(), "targets": targets.flatten().tolist()}
        for family in FAMILIES:
            model = adapted(HERE / family, family, recipe)
            if arguments.trl and recipe["preference"]["label_smoothing"] == 0:  # which TRL's "sigmoid" has not
                of_both[name, family] = of_trl(adapted(HERE / family, family, recipe), tokens, targets, recipe["preference"])
            numbers[name][family] = train(model, tokens, targets, recipe["preference"])
            first, last = numbers[name][family]["losses"][0], numbers[name][family]["losses"][-1]
            print(f"{name} {family}: loss {first:.6f} -> {last:.6f}, accuracy "
                  f"{numbers[name][family]['accuracies'][-1]:.2f}")
    if arguments.trl:
        ours = {(name, family): [numbers[name][family][key][0] for key in ("losses", "margins", "accuracies")]
                for name, family in of_both}
        worst = max(abs(a - b) for which in of_both for a, b in zip(of_both[which], ours[which], strict=True))
        print(f"largest difference from TRL {worst:.2e}")
        sys.exit(0 if worst < 1e-5 else 1)
    if not arguments.check:
        path.write_text(json.dumps(numbers, indent=1) + "\n")
        return
    stored = json.loads(path.read_text())
    worst = max(abs(a - b) for name in RECIPES for family in FAMILIES for key in numbers[name][family]
                for a, b in zip(numbers[name][family][key], stored[name][family][key], strict=True))
    print(f"largest difference {worst:.2e}")
    sys.exit(0 if worst < 1e-5 else 1)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records what transformers makes of conversations with the templates of templates.py: text, ids, and which tokens are answers.

    pip install transformers jinja2
    tests/unit/worker/data/chat/make_recorded_chats.py

Writes recorded.jsonl: the conversations, then one template a line. Masks are transformers' own where a template marks its answers; elsewhere they are the tokens
that overlap what stands between the rendering of the messages before an answer, with the prompt for one, and that of the messages up to it.
"""
import json
import pathlib

import tokenizers
import transformers
from transformers import PreTrainedTokenizerFast

from templates import FAMILIES

HERE = pathlib.Path(__file__).resolve().parent
BASES = HERE.parent / "testdata"

TOOLS = [{"type": "function", "function": {
    "name": "get_weather", "description": "The weather of a place; <b>don't</b> & \"guess\".",
    "parameters": {"type": "object", "properties": {"place": {"type": "string", "description": "Größe & Ort, e.g. 東京"},
                                                    "days": {"type": "integer", "enum": [1, 2, 3]}}, "required": ["place"]}}}]
CALL = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": {"place": "東京", "days": 1.5, "deep": [None, True]}}}


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


def system(text):
    return {"role": "system", "content": text}


CHATS = [
    {"messages": [user("Hello!"), assistant("Hi, how can I help?")]},
    {"messages": [system("You are terse."), user("2 + 2?"), assistant("4"), user("And 3 + 3?"), assistant("6")]},
    {"messages": [user("  spaces around \n"), assistant("\n\n answers with\n\nlines and trailing  \n")]},
    {"messages": [user("Größe 你好 😀 e\u0301"), assistant("Ångström — 東京 👩‍👩‍👧‍👦 ok"), user("más"), assistant("sí é")]},
    {"messages": [user("What is <|im_end|> and </s> or <|eot_id|>?"), assistant("A token: <|im_start|>, <s>[INST]")]},
    {"messages": [user("{{ 7 * 7 }} {% raw %} <b>&amp;</b> 'q' \"d\""), assistant("def f(x):\n\treturn x  # {{ no }}\n")]},
    {"messages": [user("only a question")]},
    {"messages": [user("empty"), assistant("")]},
    {"messages": [assistant("I begin."), user("Good."), assistant("Yes.")]},
    {"messages": [user("a"), user("b"), assistant("c"), assistant("d")]},
    {"messages": [user("w" * 80), assistant("word " * 20)]},
    {"messages": [user("Weather?"), {"role": "assistant", "content": None, "tool_calls": [CALL]},
                  {"role": "tool", "name": "get_weather", "content": "{\"sun\": true}"}, assistant("Sunny.")], "tools": TOOLS},
    {"messages": [user("Weather?"), {"role": "assistant", "content": "", "tool_calls": [CALL]},
                  {"role": "tool", "content": "rain"}, {"role": "tool", "content": "wind"}, assistant("Rain, wind.")]},
    {"messages": [user("Think."), {"role": "assistant", "content": "Done.", "reasoning_content": "Let me see.\n"}]},
    {"messages": [user("Think."), {"role": "assistant", "content": "One.", "thinking": "hm"}, user("More."), assistant("Two.")]},
    {"messages": [user("Which?"), assistant("This.")], "documents": [{"title": "T1", "text": "some text"}, {"title": "Ü", "text": "{}"}]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "in parts "}, {"type": "text", "text": "of two"}]},
                  assistant("ok")]},
    {"messages": [user("Date?"), assistant("Today.")], "chat_template_kwargs": {"date_string": "1 Jan 2030", "enable_thinking": False}},
]


def tokenizer_of(base, added, names, template):
    document = json.loads((BASES / base).read_text())
    made = tokenizers.Tokenizer.from_str(json.dumps(document))
    made.add_special_tokens([tokenizers.AddedToken(token, special=True, normalized=False) for token in added])
    document["added_tokens"] = json.loads(made.to_str())["added_tokens"]
    made = tokenizers.Tokenizer.from_str(json.dumps(document))
    return document["added_tokens"], PreTrainedTokenizerFast(tokenizer_object=made, chat_template=template, **names)


def overlapping(offsets, spans):
    return [int(any(end > span[0] and begin < span[1] for span in spans)) for begin, end in offsets]


def answers(render, messages, text):
    """None: the renderings are no prefixes of each other, or some cannot be rendered."""
    spans = []
    for index, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        try:
            prompt, whole = render(messages[:index], True), render(messages[:index + 1], False)
        except Exception:
            return None
        if not (text.startswith(whole) and whole.startswith(prompt)):
            return None
        spans.append((len(prompt), len(whole)))
    return spans


def record(tokenizer, line):
    more = {key: line[key] for key in ("tools", "documents") if key in line}
    more.update(line.get("chat_template_kwargs", {}))

    def render(messages, prompt):
        if not messages:  # which apply_chat_template refuses before the template sees them
            messages = []
            return transformers.utils.chat_template_utils.render_jinja_template(
                conversations=[messages], chat_template=tokenizer.chat_template, add_generation_prompt=prompt,
                **{"tools": None, "documents": None, **more}, **tokenizer.special_tokens_map)[0][0]
        return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt, **more)

    item = {}
    try:
        item["text"] = render(line["messages"], False)
    except Exception as error:
        return {**item, "refused": type(error).__name__}
    coded = tokenizer(item["text"], add_special_tokens=False, return_offsets_mapping=True)
    item["ids"] = coded["input_ids"]
    if "endgeneration" in tokenizer.chat_template:
        marked = tokenizer.apply_chat_template(line["messages"], return_dict=True, return_assistant_tokens_mask=True, **more)
        assert marked["input_ids"] == item["ids"]
        item["mask"] = marked["assistant_masks"]
    else:
        spans = answers(render, line["messages"], item["text"])
        item["mask"] = None if spans is None else overlapping(coded["offset_mapping"], spans)
    if item["mask"] is not None:
        item["mask"] = "".join(map(str, item["mask"]))
    return item


def main():
    with open(HERE / "recorded.jsonl", "w", encoding="utf-8") as out:
        out.write(json.dumps({"lines": [json.dumps(line, ensure_ascii=False) for line in CHATS]}, ensure_ascii=False) + "\n")
        for family, (template, base, added, names) in FAMILIES.items():
            tokens, tokenizer = tokenizer_of(base, added, names, template)
            items = [record(tokenizer, line) for line in CHATS]  # in the order of "lines"
            out.write(json.dumps({"family": family, "template": template, "base": base, "added_tokens": tokens, "names": names,
                                  "items": items}, ensure_ascii=False) + "\n")
            counts = [sum("refused" in item for item in items), sum(item.get("mask", "") is None for item in items)]
            print(f"{family}: {len(items)} conversations, {counts[0]} refused, {counts[1]} without answers that can be found")


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Renders conversations with a chat template, as transformers' apply_chat_template does, and says which parts are answers.

Lines of JSON in, a line of JSON out for each. The first one in holds what does not change:
  {"templates": {"default": TEXT, "tool_use": TEXT}, "tokens": {"bos_token": "<s>"}, "answers": true, "cpu_seconds": 10,
   "bytes_max": 16777216}
Each other one is a line of a .jsonl file. Out comes {"text": TEXT, "answers": [[BEGIN, END]]}, in bytes of UTF-8, or
{"error": SENTENCE}; with "way": "loss_on" where only the answers cannot be found.

Templates are what others wrote: they run in Jinja's sandbox, and the process that runs this is bounded in memory and time."""
import json
import re
import signal
import sys

GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
NAME = "chat template"
ROLES = ("system", "developer", "user", "assistant", "tool", "function")
SHAREGPT_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "chatgpt": "assistant",
                  "system": "system", "tool": "tool", "observation": "tool"}
REASONING = ("reasoning_content", "thinking", "reasoning")


class Refused(Exception):
    """A sentence for people, and perhaps the way out."""

    def __init__(self, sentence, way=""):
        super().__init__(sentence)
        self.way = way


def answer(fields):
    sys.stdout.buffer.write(json.dumps(fields, ensure_ascii=False).encode("utf-8") + b"\n")
    sys.stdout.buffer.flush()


try:
    import jinja2
    import jinja2.ext
    import jinja2.nodes
    import jinja2.sandbox
    import jinja2.utils
except ImportError as error:
    sys.stdin.buffer.readline()
    answer({"error": f"chat templates need Jinja for {sys.executable} ({error}); install it (Debian: python3-jinja2)"})
    sys.exit(1)


class GenerationTag(jinja2.ext.Extension):
    """{% generation %}: what it holds is an answer. It stands where the text that has left the template ends."""
    tags = {"generation"}

    def __init__(self, environment):
        super().__init__(environment)
        environment.written = 0
        environment.marked = []

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

    def _mark(self, caller):
        text = caller()
        self.environment.marked.append((self.environment.written, self.environment.written + len(text)))
        return text


class Dictionary:
    """The global "dict", without what leads from a class to the interpreter."""

    def __call__(self, *args, **kwargs):
        return dict(*args, **kwargs)

    def fromkeys(self, *args, **kwargs):
        return dict.fromkeys(*args, **kwargs)


class Namespace(jinja2.utils.Namespace):
    def __init__(*args, **kwargs):  # no named parameter: "self" may be a name in a template
        self, args = args[0], args[1:]
        names = dict(*args, **kwargs)
        for name in names:
            Namespace.check(name)
        jinja2.utils.Namespace.__init__(self, names)

    def __setitem__(self, name, value):
        Namespace.check(name)
        jinja2.utils.Namespace.__setitem__(self, name, value)

    @staticmethod
    def check(name):
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"a namespace may have no attribute {name!r}")


def raise_exception(message):
    raise Refused(f"the template refuses it: {message}")


def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def strftime_now(form):
    from datetime import datetime
    return datetime.now().strftime(form)


def environment():
    made = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                        extensions=[GenerationTag, jinja2.ext.loopcontrols])
    made.filters["tojson"] = to_json
    made.globals.update(raise_exception=raise_exception, strftime_now=strftime_now, dict=Dictionary(), namespace=Namespace)
    return made


class Template:
    def __init__(self, text):
        self.text = text
        self.marks = GENERATION.search(text) is not None
        self.environment = environment()
        try:
            code = self.environment.compile(text, name=NAME, filename=NAME)
        except jinja2.TemplateSyntaxError as error:
            raise Refused(f"Jinja cannot read line {error.lineno} of the template: {error.message}") from None
        self.template = jinja2.Template.from_code(self.environment, code, self.environment.make_globals(None))

    def takes(self, role):
        return role in ROLES or f"'{role}'" in self.text or f'"{role}"' in self.text

    def render(self, bytes_max, **variables):
        self.environment.written, self.environment.marked = 0, []
        try:
            return self.written(bytes_max, variables)
        except (Refused, MemoryError, RecursionError):
            raise
        except Exception as error:
            raise Refused(f"the template fails{self.place_of(error)}: {type(error).__name__}: {error}") from None

    def written(self, bytes_max, variables):
        blocks, size = [], 0
        for block in self.template.root_render_func(self.template.new_context(variables)):
            blocks.append(block)
            self.environment.written += len(block)
            size += len(block) if block.isascii() else len(block.encode("utf-8", "replace"))
            if size > bytes_max:
                raise Refused(f"the template makes more than {bytes_max} bytes of it; split the conversation, or mend the template")
        return "".join(blocks)

    def place_of(self, error):
        place, trace = "", error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == NAME:
                place = f" at its line {self.template.get_corresponding_lineno(trace.tb_lineno)}"
            trace = trace.tb_next
        return place


def messages_of(line):
    """In OpenAI's form, each with the place where it stands; and how many of them are the prompt of a completion, as TRL has it, which
    counts as a whole: None where answers are found by their role."""
    if isinstance(line.get("prompt"), list) and isinstance(line.get("completion"), list):
        prompt = messages_in(line, "prompt")
        return prompt + messages_in(line, "completion"), len(prompt)
    return messages_in(line, "messages" if line.get("messages") is not None else "conversations"), None


def messages_in(line, field):
    rows = line[field]
    if not isinstance(rows, list) or not rows:
        raise Refused(f'"{field}" must be a list of at least one message')
    messages = []
    for index, row in enumerate(rows):
        where = f"{field}[{index}]"
        if not isinstance(row, dict):
            raise Refused(f"{where} must be an object with a role and a content")
        if field == "conversations" and "from" in row:
            if row["from"] not in SHAREGPT_ROLES:
                raise Refused(f'{where} has "from": {quoted(row["from"])}, must be one of {", ".join(SHAREGPT_ROLES)}')
            row = {"role": SHAREGPT_ROLES[row["from"]], "content": row.get("value")}
            if not isinstance(row["content"], str):
                raise Refused(f'{where} has no text as its "value"')
        if not isinstance(row.get("role"), str):
            raise Refused(f'{where} has no text as its "role"')
        if row.get("content") is not None and not isinstance(row["content"], (str, list)):
            raise Refused(f'{where} has "content": {quoted(row["content"])}, must be a text or a list of parts')
        if row.get("content") is None and not row.get("tool_calls"):
            raise Refused(f'{where} has neither "content" nor "tool_calls"')
        messages.append((where, row))
    return messages


def quoted(value):
    return json.dumps(value)[:60]


def cleaned(message):
    """Without nulls, and with the text of reasoning under each name that templates know it by."""
    message = {key: value for key, value in message.items() if value is not None}
    reasoning = next((message[key] for key in REASONING if key in message), None)
    return message if reasoning is None else {"thinking": reasoning, **message, "reasoning_content": reasoning}


def objects(line, field):
    """A list of objects, also written as a text of JSON, as data sets of one type a column have it."""
    value = line.get(field)
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.strip() else None
        except ValueError as error:
            raise Refused(f'"{field}" is a text that is no JSON: {error}') from None
    if value is not None and not (isinstance(value, list) and all(isinstance(one, dict) for one in value)):
        raise Refused(f'"{field}" must be a list of objects')
    return value


class Renderer:
    def __init__(self, setup):
        self.setup = setup
        self.templates = {name: Template(text) for name, text in setup["templates"].items()}

    def template(self, tools):
        """As transformers chooses among several."""
        if tools is not None and "tool_use" in self.templates:
            return self.templates["tool_use"]
        if "default" not in self.templates:
            raise Refused(f"there is no template named default, only {', '.join(sorted(self.templates))}")
        return self.templates["default"]

    def render(self, line):
        placed, prompt = messages_of(line)
        tools, documents = objects(line, "tools"), objects(line, "documents")
        template = self.template(tools)
        for where, message in placed:
            if not template.takes(message["role"]):
                raise Refused(f"{where} has the role {quoted(message['role'])}, which the template does not know; must be "
                              f"one of {', '.join(ROLES)}, or named in the template")
        messages = [cleaned(message) for _, message in placed]
        more = line.get("chat_template_kwargs") or {}
        if not isinstance(more, dict):
            raise Refused('"chat_template_kwargs" must be an object')
        variables = {"tools": tools, "documents": documents, **self.setup["tokens"], **more}

        def rendered(count, prompt):
            return template.render(self.setup["bytes_max"],
                                   **{**variables, "messages": messages[:count], "add_generation_prompt": prompt})

        text = rendered(len(messages), self.setup["asks"])
        if not self.setup["answers"]:
            return text, []
        if prompt is not None:
            return text, [self.answer(rendered, prompt, text, text, placed[prompt][0])]
        if template.marks:
            return text, list(template.environment.marked)
        return text, [self.answer(rendered, index, text if index + 1 == len(messages) else None, text, where)
                      for index, (where, message) in enumerate(placed) if message["role"] == "assistant"]

    def answer(self, rendered, index, whole, text, where):
        """Behind the prompt that asks for the message, up to where the conversation with it ends, or `whole`."""
        try:
            prompt = rendered(index, True)
            whole = rendered(index + 1, False) if whole is None else whole
        except Exception as error:
            raise Refused(f"the template cannot render the conversation up to {where} alone, so that where its answer "
                          f"stands is not known ({error})", "loss_on") from None
        if text.startswith(whole) and whole.startswith(prompt):
            return len(prompt), len(whole)
        raise Refused(f"the template renders the conversation up to {where} in other words than the whole of it begins with, "
                      "so that where its answer stands is not known", "loss_on")


def in_bytes(text, spans):
    if text.isascii():
        return spans
    offsets = {}
    place, size = 0, 0
    for border in sorted({border for span in spans for border in span}):
        size += len(text[place:border].encode("utf-8"))
        place = border
        offsets[border] = size
    return [(offsets[begin], offsets[end]) for begin, end in spans]


def reply(work):
    """What comes of `work`, with every failure as a sentence."""
    try:
        return work()
    except Refused as error:
        return {"error": str(error), "way": error.way}
    except MemoryError:
        return {"error": "the template needs more memory than it may have; mend it, or split the conversation"}
    except RecursionError:
        return {"error": "the template, or the line, is nested too deeply"}
    except UnicodeEncodeError:
        return {"error": "the text holds half of a pair of surrogates, which is no character"}
    except Exception as error:
        return {"error": f"it cannot be rendered: {type(error).__name__}: {error}"}


def main():
    setup = json.loads(sys.stdin.buffer.readline())
    renderer = None

    def start():
        nonlocal renderer
        renderer = Renderer(setup)
        return {}

    def render(line):
        text, spans = renderer.render(json.loads(line))
        text.encode("utf-8")
        return {"text": text, "answers": in_bytes(text, spans)}

    answer(reply(start))
    if renderer is None:
        return
    for line in sys.stdin.buffer:
        # The signal's default action ends the process: a loop within C code could not be interrupted otherwise.
        signal.setitimer(signal.ITIMER_PROF, setup["cpu_seconds"])
        result = reply(lambda: render(line))
        signal.setitimer(signal.ITIMER_PROF, 0)
        answer(result)


main()

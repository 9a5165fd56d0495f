# SPDX-License-Identifier: Apache-2.0
"""Chat templates in the forms in which families of models publish theirs, written anew after their conventions: what each does with
roles, white space, begin and end tokens, tools, reasoning, and the turns that it refuses."""

CHATML = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
          "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")

CHATML_LINES = """{%- for message in messages %}
    {%- if loop.first and message.role != 'system' %}
        {{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}
    {%- endif %}
    {{- '<|im_start|>' ~ message.role ~ '\\n' ~ (message.content | trim) ~ '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

CHATML_GENERATION = """{% for message in messages %}
{% if message.role == 'assistant' %}
<|im_start|>assistant
{% generation %}{{ message.content }}<|im_end|>
{% endgeneration %}
{% else %}
<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endif %}
{% endfor %}
{% if add_generation_prompt %}
<|im_start|>assistant
{% endif %}
"""

LLAMA2 = """{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}\
{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}\
{% for message in loop_messages %}\
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}\
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}\
{% if loop.index0 == 0 and system_message != false %}\
{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}\
{% else %}{% set content = message['content'] %}{% endif %}\
{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}\
{% elif message['role'] == 'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"""

LLAMA3 = """{% set loop_messages = messages %}{% for message in loop_messages %}\
{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' %}\
{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}\
{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"""

LLAMA31_TOOLS = """{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}
    {{- "Environment: ipython\\n" }}
{%- endif %}
{{- "Cutting Knowledge Date: December 2023\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{%- if tools is not none %}
    {{- "You have access to the following functions. " }}
    {{- 'Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}.\\n\\n' }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
        {{- '{"name": "' + tool_call.name + '", ' }}
        {{- '"parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- "}" }}
        {{- "<|eot_id|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable and message.content is not string %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

MISTRAL = """{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}\
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}\
{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}\
{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token}}\
{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"""

MISTRAL_SYSTEM = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set ns = namespace(index=0) %}
{%- for message in loop_messages %}
    {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
        {{- raise_exception("After the optional system message, conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif %}
    {%- set ns.index = ns.index + 1 %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if loop.first and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token }}
    {%- endif %}
{%- endfor %}
"""

GEMMA = """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}\
{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}\
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}\
{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}\
{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}\
{% if add_generation_prompt %}{{'<start_of_turn>model\\n'}}{% endif %}"""

GEMMA_PARTS = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set first_user_prefix = messages[0]['content'] + '\n\n' -%}
    {%- else -%}
        {%- set first_user_prefix = messages[0]['content'][0]['text'] + '\n\n' -%}
    {%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'text' -%}
                {{ item['text'] | trim }}
            {%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("Invalid content type") }}
    {%- endif -%}
    {{ '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model\n'}}
{%- endif -%}
"""

PHI3 = """{% for message in messages %}{% if message['role'] == 'system' %}{{'<|system|>\\n' + message['content'] + '<|end|>\\n'}}\
{% elif message['role'] == 'user' %}{{'<|user|>\\n' + message['content'] + '<|end|>\\n'}}\
{% elif message['role'] == 'assistant' %}{{'<|assistant|>\\n' + message['content'] + '<|end|>\\n'}}{% endif %}{% endfor %}\
{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"""

PHI3_EOS = PHI3[:PHI3.index("{% if add_generation_prompt")] + \
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}"

ZEPHYR = """{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>\n' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>\n' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>\n'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}"""

VICUNA = """{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}\
{% else %}{% set loop_messages = messages %}{% set system_message = 'A chat between a curious user and an artificial intelligence \
assistant. The assistant gives helpful, detailed, and polite answers to the user\\'s questions.' %}{% endif %}{{ system_message }}\
{% for message in loop_messages %}{% if message['role'] == 'user' %}{{ ' USER: ' + message['content'].strip() }}\
{% elif message['role'] == 'assistant' %}{{ ' ASSISTANT: ' + message['content'].strip() + eos_token }}{% endif %}{% endfor %}\
{% if add_generation_prompt %}{{ ' ASSISTANT:' }}{% endif %}"""

COMMAND_R = """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}\
{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}\
{% if system_message != false %}{{ '<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>' + system_message + '<|END_OF_TURN_TOKEN|>' }}{% endif %}\
{% for message in loop_messages %}{% set content = message['content'] %}\
{% if message['role'] == 'user' %}{{ '<|START_OF_TURN_TOKEN|><|USER_TOKEN|>' + content.strip() + '<|END_OF_TURN_TOKEN|>' }}\
{% elif message['role'] == 'assistant' %}\
{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' + content.strip() + '<|END_OF_TURN_TOKEN|>' }}{% endif %}{% endfor %}\
{% if add_generation_prompt %}{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' }}{% endif %}"""

COMMAND_R_DOCUMENTS = """{{ bos_token }}<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>
{%- for document in documents %}{{ '\nDocument: ' }}{{ loop.index0 }}
{% for key, value in document.items() %}{{ key }}: {{ value }}
{% endfor %}{%- endfor %}<|END_OF_TURN_TOKEN|>
{%- for message in messages %}<|START_OF_TURN_TOKEN|>
{%- if message.role == 'assistant' %}<|CHATBOT_TOKEN|>{% else %}<|USER_TOKEN|>{% endif -%}
{{ message.content }}<|END_OF_TURN_TOKEN|>{%- endfor %}
{%- if add_generation_prompt %}<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>{% endif %}"""

DEEPSEEK = """{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}{{ bos_token }}\
{% for message in messages %}{% if message['role'] == 'user' %}{{ 'User: ' + message['content'] + '\\n\\n' }}\
{% elif message['role'] == 'assistant' %}{{ 'Assistant: ' + message['content'] + eos_token }}\
{% elif message['role'] == 'system' %}{{ message['content'] + '\\n\\n' }}{% endif %}{% endfor %}\
{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"""

DEEPSEEK_V3 = """{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}\
{% set ns = namespace(is_first=false, is_last_user=false, system_prompt='') %}\
{%- for message in messages %}{%- if message['role'] == 'system' %}{% set ns.system_prompt = ns.system_prompt + message['content'] %}\
{%- endif %}{%- endfor %}{{bos_token}}{{ns.system_prompt}}\
{%- for message in messages %}{%- if message['role'] == 'user' %}{{'<|User|>' + message['content']}}\
{%- elif message['role'] == 'assistant' %}{% set content = message['content'] %}\
{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}\
{{'<|Assistant|>' + content + eos_token}}{%- endif %}{%- endfor %}{% if add_generation_prompt %}{{'<|Assistant|>'}}{% endif %}"""

QWEN_TOOLS = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You are Qwen.' }}
    {%- endif %}
    {{- "\\n\\n# Tools\\n\\nYou may call one or more functions.\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>system\\nYou are Qwen.<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\\n' + message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' }}
        {{- message.content }}
        {{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

QWEN_REASONING = """{%- set ns = namespace(last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if message.role == "user" %}
        {%- set ns.last = index %}
        {%- break %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role != "assistant" %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- else %}
        {%- set reasoning = message.reasoning_content if message.reasoning_content is string else '' %}
        {%- if reasoning and loop.index0 > ns.last %}
            {{- '<|im_start|>assistant\\n<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' + message.content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>assistant\\n' + message.content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""

OLMO_GENERATION = """{{ bos_token }}{% for message in messages %}{% if message['role'] == 'system' %}<|system|>
{{ message['content'] }}
{% elif message['role'] == 'user' %}<|user|>
{{ message['content'] }}
{% elif message['role'] == 'assistant' %}<|assistant|>
{% generation %}{{ message['content'] }}{{ eos_token }}{% endgeneration %}{% if not loop.last %}{{ '\\n' }}{% endif %}{% endif %}\
{% if loop.last and add_generation_prompt %}<|assistant|>
{% endif %}{% endfor %}"""

LLAMA3_GENERATION = """{{- bos_token }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' }}
    {%- if message.role == 'assistant' %}
        {%- generation %}
        {{- message.content | trim + '<|eot_id|>' }}
        {%- endgeneration %}
    {%- else %}
        {{- message.content | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}"""

MACRO_GENERATION = """{% macro turn(role, text) %}<|{{ role }}|>{{ text }}{% endmacro %}
{% for message in messages %}
{% if message.role == "assistant" %}
<|assistant|>{% generation %}{{ message.content }}{{ eos_token }}{% endgeneration %}

{% else %}
{{ turn(message.role, message.content) }}
{% endif %}
{% endfor %}"""

ALPACA = """{% for message in messages %}{% if message['role'] == 'system' %}{{ message['content'] + '\\n\\n' }}\
{% elif message['role'] == 'user' %}{{ '### Instruction:\\n' + message['content'] + '\\n\\n' }}\
{% elif message['role'] == 'assistant' %}{{ '### Response:\\n' + message['content'] + eos_token + '\\n\\n' }}{% endif %}{% endfor %}\
{% if add_generation_prompt %}{{ '### Response:\\n' }}{% endif %}"""

FALCON = """{% for message in messages %}{% if not loop.first %}{{ '\n' }}{% endif %}\
{% if message['role'] == 'system' %}{{ 'System: ' }}{% elif message['role'] == 'user' %}{{ 'User: ' }}\
{% elif message['role'] == 'assistant' %}{{ 'Falcon: ' }}{% endif %}{{ message['content'] }}{% endfor %}\
{% if add_generation_prompt %}{{ '\n' + 'Falcon: ' }}{% endif %}"""

OPENCHAT = """{{ bos_token }}{% for message in messages %}\
{{ 'GPT4 Correct ' + message['role'].title() + ': ' + message['content'] + '<|end_of_turn|>'}}{% endfor %}\
{% if add_generation_prompt %}{{ 'GPT4 Correct Assistant:' }}{% endif %}"""

BLENDER = """{% for message in messages %}{% if message['role'] == 'user' %}{{ ' ' }}{% endif %}{{ message['content'] }}\
{% if not loop.last %}{{ '  ' }}{% endif %}{% endfor %}{{ eos_token }}"""

GRANITE = """{%- for message in messages %}
{%- if message['role'] == 'system' %}
{{- '<|start_of_role|>system<|end_of_role|>' + message['content'] + '<|end_of_text|>\n' }}
{%- elif message['role'] == 'user' %}
{{- '<|start_of_role|>user<|end_of_role|>' + message['content'] + '<|end_of_text|>\n' }}
{%- elif message['role'] == 'assistant' %}
{{- '<|start_of_role|>assistant<|end_of_role|>'  + message['content'] + '<|end_of_text|>\n' }}
{%- endif %}
{%- if loop.last and add_generation_prompt %}
{{- '<|start_of_role|>assistant<|end_of_role|>' }}
{%- endif %}
{%- endfor %}"""

INTERNLM = """{{ bos_token }}{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}\
{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

GLM = """[gMASK]<sop>{% for item in messages %}{% if item['tools'] is defined %}<|system|>
{{ item['tools'] | tojson(ensure_ascii=True) }}{% endif %}{% if item['content'] %}<|{{ item['role'] }}|>{{ item['metadata'] }}
{{ item['content'] }}{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"""

DICTIONARIES = """{%- set names = dict(user='Q', assistant='A') %}
{%- set ns = namespace(turns=0, items=[]) %}
{%- for message in messages if message.role in names %}
    {%- if message.content | length > 200 %}{% continue %}{% endif %}
    {%- set ns.turns = ns.turns + 1 %}
    {{- names[message.role] ~ ns.turns ~ ': ' ~ message.content | replace('\\n', ' ') ~ '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ 'A' ~ (ns.turns + 1) ~ ': ' }}{% endif %}"""

# name: template, tokenizer, special tokens that it has besides, names of tokens
IM = ["<|im_start|>", "<|im_end|>"]
HEADERS = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
QWEN_NAMES = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
LLAMA2_NAMES = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
LLAMA3_NAMES = {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}
GPT_NAMES = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}
TURNS = ["<bos>", "<start_of_turn>", "<end_of_turn>"]
COHERE = ["<BOS_TOKEN>", "<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|SYSTEM_TOKEN|>", "<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>"]
COHERE_NAMES = {"bos_token": "<BOS_TOKEN>", "eos_token": "<|END_OF_TURN_TOKEN|>"}

FAMILIES = {
    "chatml": (CHATML, "qwen.json", IM, QWEN_NAMES),
    "chatml_lines": (CHATML_LINES, "qwen.json", IM, QWEN_NAMES),
    "chatml_generation": (CHATML_GENERATION, "qwen.json", IM, QWEN_NAMES),
    "llama2": (LLAMA2, "llama2.json", [], LLAMA2_NAMES),
    "llama3": (LLAMA3, "llama3.json", HEADERS, LLAMA3_NAMES),
    "llama31_tools": (LLAMA31_TOOLS, "llama3.json", HEADERS, LLAMA3_NAMES),
    "llama3_generation": (LLAMA3_GENERATION, "llama3.json", HEADERS, LLAMA3_NAMES),
    "mistral": (MISTRAL, "llama2.json", [], LLAMA2_NAMES),
    "mistral_system": (MISTRAL_SYSTEM, "llama2.json", ["[INST]", "[/INST]"], LLAMA2_NAMES),
    "gemma": (GEMMA, "llama2.json", TURNS, {"bos_token": "<bos>", "eos_token": "</s>"}),
    "gemma_parts": (GEMMA_PARTS, "llama3.json", TURNS, {"bos_token": "<bos>", "eos_token": "<end_of_turn>"}),
    "phi3": (PHI3, "llama2.json", ["<|system|>", "<|user|>", "<|assistant|>", "<|end|>"], LLAMA2_NAMES),
    "phi3_eos": (PHI3_EOS, "gpt2.json", ["<|end|>"], GPT_NAMES),
    "zephyr": (ZEPHYR, "llama2.json", [], LLAMA2_NAMES),
    "vicuna": (VICUNA, "llama2.json", [], LLAMA2_NAMES),
    "command_r": (COMMAND_R, "gpt2.json", COHERE, COHERE_NAMES),
    "command_r_documents": (COMMAND_R_DOCUMENTS, "gpt2.json", COHERE, COHERE_NAMES),
    "deepseek": (DEEPSEEK, "qwen.json", [], GPT_NAMES),
    "deepseek_v3": (DEEPSEEK_V3, "llama3.json", ["<|User|>", "<|Assistant|>"],
                    {"bos_token": "<|end_of_text|>", "eos_token": "<|end_of_text|>"}),
    "qwen_tools": (QWEN_TOOLS, "qwen.json", IM + ["<tool_call>", "</tool_call>"], QWEN_NAMES),
    "qwen_reasoning": (QWEN_REASONING, "qwen.json", IM + ["<think>", "</think>"], QWEN_NAMES),
    "olmo_generation": (OLMO_GENERATION, "gpt2.json", ["<|user|>", "<|assistant|>"], GPT_NAMES),
    "macro_generation": (MACRO_GENERATION, "digits.json", [], GPT_NAMES),
    "alpaca": (ALPACA, "llama2.json", [], LLAMA2_NAMES),
    "falcon": (FALCON, "gpt2.json", [], GPT_NAMES),
    "openchat": (OPENCHAT, "llama2.json", ["<|end_of_turn|>"], LLAMA2_NAMES),
    "blender": (BLENDER, "gpt2.json", [], GPT_NAMES),
    "granite": (GRANITE, "llama3.json", ["<|start_of_role|>", "<|end_of_role|>"], {"eos_token": "<|end_of_text|>"}),
    "internlm": (INTERNLM, "llama2.json", IM, LLAMA2_NAMES),
    "glm": (GLM, "qwen.json", ["[gMASK]", "<sop>", "<|assistant|>"], {"eos_token": "<|endoftext|>"}),
    "dictionaries": (DICTIONARIES, "digits.json", [], {}),
}

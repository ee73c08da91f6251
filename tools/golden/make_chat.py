"""Generate tests/golden/chat: random conversations and their texts by transformers' apply_chat_template.

usage: make_chat.py --trl TRL --axolotl AXOLOTL [--inputs inputs] [--output tests/golden/chat]

TRL and AXOLOTL are wheels, or folders with their contents, of the PyPI packages `trl` and `axolotl`, which contain the
templates of published models; that of SmolLM2 is in inputs/smollm2. The repository contains only the templates written
in this file. tests/golden/README.md describes the format.
"""

import argparse
import json
import os
import random
import zipfile

import transformers
from transformers.utils.chat_template_utils import render_jinja_template

from jsonfiles import write_json

TRL, AXOLOTL = "trl/chat_templates/", "axolotl/utils/chat_templates/templates/"
LLAMA2 = (
    "{% if messages[0]['role'] == 'system' %}{% set rest = messages[1:] %}{% set system = messages[0]['content'] %}"
    "{% else %}{% set rest = messages %}{% set system = false %}{% endif %}{% for message in rest %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}"
    "{% endif %}{% if loop.index0 == 0 and system != false %}"
    "{% set content = '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' + message['content'] %}"
    "{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}"
    "{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}"
    "{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}")
ZEPHYR = (
    "{% for message in messages %}\n{% if message['role'] == 'user' %}\n{{ '<|user|>\n' + message['content'] + eos_token }}"
    "\n{% elif message['role'] == 'system' %}\n{{ '<|system|>\n' + message['content'] + eos_token }}\n"
    "{% elif message['role'] == 'assistant' %}\n{{ '<|assistant|>\n'  + message['content'] + eos_token }}\n{% endif %}\n"
    "{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}")

LLAMA_TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
LLAMA3_TOKENS = {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}
# {name: (built-in template of Hawser or None, location of the model's own template, tokens, has tools)}
TEMPLATES = {
    "chatml": ("chatml", AXOLOTL + "chatml.jinja", {}, False),
    "smollm2": ("smollm2", "smollm2", {}, False),
    "qwen-2.5": ("qwen-2.5", TRL + "qwen2_5.jinja", {}, True),
    "qwen-3": ("qwen-3", TRL + "qwen3.jinja", {}, True),
    "llama-2": ("llama-2", LLAMA2, LLAMA_TOKENS, False),
    "llama-3": ("llama-3", TRL + "llama3.jinja", LLAMA3_TOKENS, False),
    "llama-3.1": ("llama-3.1", TRL + "llama3_1.jinja", LLAMA3_TOKENS, True),
    "llama-3.2": ("llama-3.1", TRL + "llama3_2.jinja", LLAMA3_TOKENS, True),
    "mistral-v1": ("mistral-v1", AXOLOTL + "mistral_v1.jinja", LLAMA_TOKENS, False),
    "mistral-v3": ("mistral-v3", AXOLOTL + "mistral_v2v3.jinja", LLAMA_TOKENS, True),
    "zephyr": ("zephyr", ZEPHYR, LLAMA_TOKENS, False),
    "gemma": ("gemma", TRL + "gemma.jinja", {"bos_token": "<bos>", "eos_token": "<eos>"}, False),
    "phi-3": ("phi-3", TRL + "phi3.jinja", {"bos_token": "<s>", "eos_token": "<|endoftext|>"}, False),
    "gemma-3": ("gemma-3", TRL + "gemma3.jinja", {"bos_token": "<bos>"}, False),
    # Templates without a built-in equivalent. Those of "training" mark the text to train on themselves.
    "deepseek-v3": (None, TRL + "deepseekv3.jinja", {"bos_token": "<bos>"}, False),
    "qwen-3-training": (None, TRL + "qwen3_training.jinja", {}, True),
    "llama-3-training": (None, TRL + "llama3_training.jinja", LLAMA3_TOKENS, False),
    "phi-3-training": (None, TRL + "phi3_training.jinja", {"eos_token": "<|endoftext|>"}, False),
}

WORDS = ["a", "ship", "of", "the", "line", "Whale!", "naïve", "日本語", "🙂", "\n", "\n\n", "  ", "\t", "'quoted'",
         '"double"', "\\", "1,024", "{{ x }}", "<b>", "é", "- item", "\u3000", "done."]


def text(draw, min_words=0):
    words = [draw.choice(WORDS) for _ in range(draw.randint(min_words, 9))]
    return "".join(word + draw.choice([" ", " ", ""]) for word in words)


def tool(draw):
    name = draw.choice(["look_up", "add", "weather"])
    return {"type": "function", "function": {"name": name, "description": text(draw, 1), "parameters": {
        "type": "object", "properties": {"x": {"type": "string", "description": text(draw)}, "n": {"type": "number"}},
        "required": ["x"]}}}


def conversation(draw, with_tools):
    messages = []
    if draw.random() < 0.4:
        messages.append({"role": "system", "content": text(draw)})
    for _ in range(draw.randint(1, 4)):
        messages.append({"role": "user", "content": text(draw)})
        answer = {"role": "assistant", "content": text(draw, 1)}
        kind = draw.random()
        if kind < 0.15:
            answer["content"] = "<think>\n" + text(draw, 1) + "\n</think>\n\n" + answer["content"]
        elif kind < 0.25:
            answer["reasoning_content"] = text(draw, 1)
        if with_tools and draw.random() < 0.3:
            call = {"id": "abcdefgh1", "type": "function", "function": {
                "name": "add", "arguments": {"x": text(draw), "n": draw.choice([1, 2.5, -7, True, None, 1e-7, 1e22]),
                                             "list": [1, "é", {}], "empty": {}}}}
            messages.append({"role": "assistant", "content": draw.choice(["", text(draw, 1)]), "tool_calls": [call]})
            messages.append({"role": "tool", "content": text(draw, 1), "tool_call_id": "abcdefgh1", "name": "add"})
        messages.append(answer)
    if draw.random() < 0.2:
        messages.append({"role": "user", "content": text(draw, 1)})
    if draw.random() < 0.15:
        messages.insert(draw.randint(0, len(messages)), {"role": "user", "content": text(draw, 1)})
    return {"messages": messages, "tools": [tool(draw) for _ in range(draw.randint(1, 2))] if with_tools else None}


def render(template, conversation, tokens, prompt):
    """The text, None if the template rejects the conversation, and the byte ranges that it marks as generated."""
    try:
        texts, generated = render_jinja_template(
            conversations=[conversation["messages"]], tools=conversation["tools"], chat_template=template,
            return_assistant_tokens_mask="{% generation" in template or "{%- generation" in template,
            add_generation_prompt=prompt, date_string="26 Jul 2024", **tokens)
    except Exception:  # raise_exception, or an operation that fails for these values
        return {"text": None}
    result = {"text": texts[0]}
    if generated and generated[0]:
        result["generated"] = [[len(texts[0][:begin].encode()), len(texts[0][:end].encode())] for begin, end in generated[0]]
    return result


# ChatML that marks the text to train on.
CHATML_ANSWERS = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}{{ '\n' }}{% else %}"
    "{{ message['content'] + '<|im_end|>\n' }}{% endif %}{% endfor %}")


def answers(tokenizer, template, conversations, **tokens):
    """Ids of conversations, and a mask of the ids that are answers."""
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=tokenizer, **tokens)
    out = []
    for one in conversations:
        encoded = tokenizer.apply_chat_template(one["messages"], chat_template=template, tokenize=True, return_dict=True,
                                                return_assistant_tokens_mask=True)
        out.append({"ids": encoded["input_ids"], "answers": encoded["assistant_masks"]})
    return out


def main():
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--trl", required=True)
    parser.add_argument("--axolotl", required=True)
    parser.add_argument("--inputs", default=os.path.join(root, "inputs"))
    parser.add_argument("--output", default=os.path.join(root, "tests", "golden", "chat"))
    parser.add_argument("--templates", help="also write the templates to this folder")
    arguments = parser.parse_args()

    def read(where):
        if where.startswith("{%"):
            return where
        if where == "smollm2":
            with open(os.path.join(arguments.inputs, "smollm2", "tokenizer_config.json"), encoding="utf-8") as file:
                return json.load(file)["chat_template"]
        source = arguments.trl if where.startswith("trl/") else arguments.axolotl
        if os.path.isdir(source):
            with open(os.path.join(source, where), encoding="utf-8") as file:
                return file.read()
        with zipfile.ZipFile(source) as archive:
            return archive.read(where).decode()

    draw = random.Random(20)
    plain = [conversation(draw, False) for _ in range(24)]
    tools = [conversation(draw, True) for _ in range(10)]
    result = {"made_with": {"transformers": transformers.__version__}, "plain": plain, "tools": tools, "templates": {}}
    for name, (named, where, tokens, has_tools) in TEMPLATES.items():
        template = read(where)
        if arguments.templates:
            os.makedirs(arguments.templates, exist_ok=True)
            with open(os.path.join(arguments.templates, name + ".jinja"), "w", encoding="utf-8") as file:
                file.write(template)
        part = {"named": named, "tokens": tokens}
        for group, conversations in (("plain", plain), ("tools", tools)):
            if group == "tools" and not has_tools:
                continue
            part[group] = [render(template, one, tokens, prompt) for one in conversations for prompt in (False, True)]
        result["templates"][name] = part
        print(name, sum(one["text"] is not None for one in part["plain"]), "of", len(part["plain"]),
              sum(one["text"] is not None for one in part.get("tools", [])), "of", len(part.get("tools", [])), flush=True)
    inputs = arguments.inputs
    result["answers"] = {
        "llama3": answers(os.path.join(inputs, "tokenizers", "llama3", "tokenizer.json"), read(TRL + "llama3_training.jinja"),
                          plain[:12], **LLAMA3_TOKENS),
        "smollm2": answers(os.path.join(inputs, "smollm2", "tokenizer.json"), CHATML_ANSWERS, plain[:12],
                           bos_token="<|im_start|>", eos_token="<|im_end|>"),
    }
    os.makedirs(arguments.output, exist_ok=True)
    write_json(os.path.join(arguments.output, "expected.json"), result)


if __name__ == "__main__":
    main()

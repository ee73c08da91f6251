"""Generate tests/golden/chat/trl.json: seven conversations by every chat template of the PyPI package `trl`.

usage: make_trl_chats.py --trl TRL [--output tests/golden/chat/trl.json] [--table]

TRL is the wheel or a folder with its contents. The templates stay there; scripts/fetch-inputs downloads them for the
test. The texts are those of transformers' apply_chat_template, of which the file has length and hash. The answers, as
ranges of bytes, are those of transformers for templates with {% generation %} blocks. For the others they follow the
rule of docs/data.md, which is written here once more, in its plain and slow form: an answer begins where the text
stops to equal the messages before it with the generation prompt, and ends with the last special token before the next
turn.
"""

import argparse
import datetime
import json
import os
import re
import zipfile

import transformers
from transformers.utils import chat_template_utils
from transformers.utils.chat_template_utils import render_jinja_template

from jsonfiles import write_json

FOLDER = "trl/chat_templates/"
TOKENS = {"bos_token": "<|bos|>", "eos_token": "<|eos|>"}
# What a tokenizer would have as a special token: <|im_end|>, <turn|>, <｜User｜>, <end_of_turn>, [gMASK].
SPECIAL = re.compile(r"<\|[^\s<>|{}'\"]+\|?>|<[^\s<>|{}'\"]+\|>|<｜[^\s<>｜{}'\"]+｜>|<(?:start|end)_of_[a-z]+>|\[gMASK\]|<sop>")


class TemplateDate(datetime.datetime):
    """The date that strftime_now gives templates: the default of data.template_date."""

    @classmethod
    def now(cls, tz=None):
        return cls(2024, 7, 26)


chat_template_utils.datetime = TemplateDate


def call(name, number, **arguments):
    return {"id": f"abcdefgh{number}", "type": "function", "function": {"name": name, "arguments": arguments}}


def tool(name, *parameters):
    return {"type": "function", "function": {"name": name, "description": f"The tool {name}.", "parameters": {
        "type": "object", "properties": {one: {"type": "string", "description": f"The {one}."} for one in parameters},
        "required": list(parameters)}}}


def result(name, number, content):
    return {"role": "tool", "name": name, "tool_call_id": f"abcdefgh{number}", "content": content}


def user(content):
    return {"role": "user", "content": content}


def assistant(content, **more):
    return {"role": "assistant", "content": content, **more}


TOOLS = [tool("find_city", "city"), tool("add_up", "first", "second")]
# Every text is unique within its conversation, so that it can be found in the result.
CONVERSATIONS = {
    "turns": {"messages": [user("Who wrote it?"), assistant("A sailor did."), user("When was that?"),
                           assistant("In 1851.")]},
    "system": {"messages": [{"role": "system", "content": "Be brief."}, user("Name one whale."),
                            assistant("  Moby-Dick\n"), user("One more?")]},
    "thoughts": {"messages": [user("Two plus two?"), assistant("Four.", reasoning_content="Twice two."),
                              user("And twice that?"), assistant("Eight.", reasoning_content="Two fours.\n\nYes.")]},
    "null content": {"messages": [user("Where is it warm?"),
                                  assistant(None, tool_calls=[call("find_city", 1, city="Lima", days=3)]),
                                  result("find_city", 1, "{\"degrees\": 21}"), assistant("It is 21 in Lima now.")],
                     "tools": TOOLS},
    "several calls": {"messages": [user("Compare both towns."),
                                   assistant("I look both up.", tool_calls=[call("find_city", 1, city="Oslo"),
                                                                            call("add_up", 2, first="7", second="b")]),
                                   result("find_city", 1, "cold there"), result("add_up", 2, "seven and b"),
                                   assistant("Oslo is cold."), user("Thank you."), assistant("You are welcome.")],
                      "tools": TOOLS},
    "thoughts and calls": {"messages": [user("Is it late?"),
                                        assistant("", reasoning_content="I must look.",
                                                  tool_calls=[call("find_city", 1, city="Rome")]),
                                        result("find_city", 1, "past midnight"),
                                        assistant("Yes, it is.", reasoning_content="It says so.")], "tools": TOOLS},
    "ends in a call": {"messages": [{"role": "system", "content": "Use the tools."}, user("Add them."),
                                    assistant(None, tool_calls=[call("add_up", 1, first="x", second="y")])],
                       "tools": TOOLS},
}


def fnv1a(text):
    value = 14695981039346656037
    for byte in text.encode():
        value = (value ^ byte) * 1099511628211 % 2**64
    return f"{value:016x}"


def render(template, messages, tools, prompt=False, mask=False, tokens=TOKENS):
    """Text and ranges that it marks as generated; None for what the template rejects."""
    messages = [{key: value for key, value in one.items() if value is not None} for one in messages]
    try:
        texts, marked = render_jinja_template(
            conversations=[messages], tools=tools, chat_template=template, add_generation_prompt=prompt,
            return_assistant_tokens_mask=mask, **tokens)
    except Exception:  # raise_exception, or an operation that fails for these values
        return None
    return texts[0], marked[0] if marked else []


def content_of(message):
    """The content as text; an object, which a tool may return, as JSON."""
    content = message.get("content") or ""
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)


class Places:
    """Where the contents of the messages are in a rendered text; None for those that are not in it."""

    def __init__(self, text, messages):
        self.spans, end = [], 0
        for message in messages:
            spans = []
            names = [one["function"]["name"] for one in message.get("tool_calls") or []]
            texts = [content_of(message), message.get("reasoning_content")]
            for one in message.get("tool_calls") or []:
                given = one["function"]["arguments"]
                given = json.loads(given) if isinstance(given, str) else given
                texts += [value for value in given.values() if isinstance(value, str)]
            for one, again in [(one, False) for one in texts] + [(one, True) for one in names]:
                one = (one or "").strip()
                found = text.find(one, end) if one else -1
                if found < 0 and one and not again:
                    one = json.dumps(one, ensure_ascii=False)[1:-1]
                    found = text.find(one)
                if found >= 0:
                    spans.append((found, found + len(one)))
            if message["role"] == "tool":  # a template may write its name first
                found = text.rfind(message["name"], end, spans[0][0]) if spans else -1
                spans += [(found, found + len(message["name"]))] if found >= 0 else []
            self.spans.append((min(s[0] for s in spans), max(s[1] for s in spans)) if spans else None)
            end = max([end] + [s[1] for s in spans])

    def end(self, count):
        return max([0] + [span[1] for span in self.spans[:count] if span])


def common(a, b):
    return len(os.path.commonprefix([a, b]))


def by_rule(template, conversation, text, special=SPECIAL, tokens=TOKENS):
    messages, tools = conversation["messages"], conversation.get("tools")
    places, ranges = Places(text, messages), []
    for i, message in enumerate(messages):
        if message["role"] != "assistant" or places.spans[i] is None:
            continue
        given = render(template, messages[:i], tools, prompt=True, tokens=tokens)
        if given is None:
            return None
        given, start = given[0], places.end(i)
        begin = start + common(given[Places(given, messages[:i]).end(i):], text[start:])
        end = places.spans[i][1]
        later = [span[0] for span in places.spans[i + 1:] if span and span[0] >= end]
        until = min(later) if later else len(text)
        here = [(one.group(), end + one.end()) for one in special.finditer(text[end:until])]
        if not here and message.get("tool_calls"):
            return None  # the end of the call is not known
        if any(span and places.spans[i][0] <= span[0] and span[1] <= places.spans[i][1] for span in places.spans[i + 1:]):
            return None  # a later message is within this one
        if here and until == len(text):
            end = here[-1][1]
        elif here:
            alone = render(template, messages[:i + 1], tools, tokens=tokens)[0]
            own = special.findall(alone[Places(alone, messages[:i + 1]).end(i + 1):])
            same = common([one for one, _ in here], own)
            prompt = special.findall(given[Places(given, messages[:i]).end(i):])
            opening = render(template, [user("x")], None, prompt=True, tokens=tokens)
            opening = opening[0][len(render(template, [user("x")], None, tokens=tokens)[0]):] if opening else ""
            first = (special.findall(opening) or [None])[0]
            names = [one for one, _ in here]
            if same:
                end = here[same - 1][1]
            elif first in names and names.index(first) > 0:
                end = here[names.index(first) - 1][1]
            else:
                end = here[0][1]
        ranges.append([begin, end])
    return ranges


def dropped(template, conversation, text, tokens=TOKENS):
    """Whether the template leaves out a content, a call or the thoughts of the last answer."""
    messages = conversation["messages"]
    places = Places(text, messages)
    question = max(i for i, one in enumerate(messages) if one["role"] == "user")
    thinks = render(template, [user("x"), assistant("y", reasoning_content="a thought")], None, tokens=tokens)
    writes_thoughts = bool(thinks) and "a thought" in thinks[0]
    for i, message in enumerate(messages):
        before, after = places.end(i), len(text)
        later = [span[0] for span in places.spans[i + 1:] if span]
        turn = text[before:min(later) if later else after]
        content = content_of(message).strip()
        if content and content not in text and json.dumps(content, ensure_ascii=False)[1:-1] not in text:
            return True
        if any(one["function"]["name"] not in turn for one in message.get("tool_calls") or []):
            return True
        thoughts = message.get("reasoning_content", "").strip()
        if thoughts and thoughts not in text and (i > question or not writes_thoughts):
            return True
    return False


def in_bytes(text, ranges):
    return [[len(text[:begin].encode()), len(text[:end].encode())] for begin, end in ranges]


def main():
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--trl", required=True)
    parser.add_argument("--output", default=os.path.join(root, "tests", "golden", "chat", "trl.json"))
    parser.add_argument("--table", action="store_true", help="print what each template does with each conversation")
    arguments = parser.parse_args()
    if os.path.isdir(arguments.trl):
        folder = os.path.join(arguments.trl, FOLDER)
        sources = {name[:-6]: open(os.path.join(folder, name), encoding="utf-8").read()
                   for name in sorted(os.listdir(folder)) if name.endswith(".jinja")}
    else:
        with zipfile.ZipFile(arguments.trl) as archive:
            sources = {name[len(FOLDER):-6]: archive.read(name).decode() for name in sorted(archive.namelist())
                       if name.startswith(FOLDER) and name.endswith(".jinja")}

    out = {"made_with": {"transformers": transformers.__version__}, "tokens": TOKENS,
           "conversations": CONVERSATIONS, "templates": {}}
    for name, template in sources.items():
        mask = re.search(r"\{%-?\s*generation", template) is not None
        expected, special = {}, set(TOKENS.values())
        for kind, one in CONVERSATIONS.items():
            made = render(template, one["messages"], one.get("tools"), mask=mask)
            if made is None:
                expected[kind] = None
                continue
            text, marked = made
            special.update(SPECIAL.findall(text))
            answers = marked if mask else by_rule(template, one, text)
            expected[kind] = {"bytes": len(text.encode()), "fnv1a": fnv1a(text), "dropped": dropped(template, one, text),
                              "answers": None if answers is None else in_bytes(text, answers)}
        out["templates"][name] = {"generation": mask, "special": sorted(special), "expected": expected}
        if arguments.table:
            print(f"{name:40}", *("-" if one is None else "d" if one["dropped"] else "?" if one["answers"] is None
                                  else str(len(one["answers"])) for one in expected.values()))
    write_json(arguments.output, out)


if __name__ == "__main__":
    main()

"""Generate tests/golden/chat/tools.json: conversations with tools by the published templates of built-in ones.

usage: make_tool_chats.py [--inputs inputs] [--output tests/golden/chat/tools.json]

The templates stay in inputs/chat_templates, where scripts/fetch-inputs puts them. The texts are those of transformers'
apply_chat_template. They are in segments: what the model is given, what it learns, and so on in turn, by the rule of
docs/data.md as make_trl_chats.py writes it. null: the template rejects the conversation, or leaves a part of it out.

Before a conversation is rendered, it is written as docs/data.md says that Hawser reads it: see `as_read`.
"""

import argparse
import copy
import json
import os
import re

import transformers

from jsonfiles import write_json
from make_trl_chats import assistant, by_rule, call, dropped, render, result, tool, user

LLAMA_TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
LLAMA3_TOKENS = {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}
CHATML_SPECIAL = ["<|im_start|>", "<|im_end|>"]
LLAMA3_SPECIAL = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
MISTRAL_SPECIAL = ["<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]",
                   "[TOOL_RESULTS]", "[/TOOL_RESULTS]"]
# {built-in template: (file of the published one, tokens, special tokens, what the published one takes)}. ChatML has no
# published form: Qwen3-Instruct-2507's is ChatML with Hermes' tools, without a default system message or thoughts.
TEMPLATES = {
    "chatml": ("trl/qwen3_instruct_2507.jinja", {}, CHATML_SPECIAL, {"text of arguments"}),
    "qwen-2.5": ("qwen-2.5.jinja", {}, CHATML_SPECIAL, set()),
    "qwen-3": ("qwen-3.jinja", {}, CHATML_SPECIAL, {"text of arguments"}),
    "llama-3.1": ("llama-3.1.jinja", LLAMA3_TOKENS, LLAMA3_SPECIAL, {"objects"}),
    "mistral-v3": ("mistral-v3.jinja", LLAMA_TOKENS, MISTRAL_SPECIAL, set()),
}
ALIKE = {"llama-3.1": "llama-3.2.jinja"}  # published templates that must give the same texts


def system(content):
    return {"role": "system", "content": content}


def described(name, description, **properties):
    return {"type": "function", "function": {"name": name, "description": description, "parameters": {
        "type": "object", "properties": properties, "required": list(properties)[:1]}}}


def in_text(one):
    """A call with its arguments as JSON text."""
    one = copy.deepcopy(one)
    one["function"]["arguments"] = json.dumps(one["function"]["arguments"], separators=(" , ", ":"))
    return one


TOOLS = [tool("find_city", "city"), tool("add_up", "first", "second")]
QUOTED = [described("measure", "Measures \"depth\", in fathoms.\nNot in m²: 深さ \\ 🐋", depth={
    "type": "integer", "minimum": -11034, "enum": [1, 2.5, None, True]}, unit={"type": "string", "default": "ft's"})]
QUOTED[0]["function"]["strict"] = True
# Every text is unique within its conversation, so that it can be found in the result.
CONVERSATIONS = {
    "no tools": {"messages": [user("Who wrote it?"), assistant("A sailor did."), user("When was that?"),
                              assistant("In 1851.")]},
    "no tools, system": {"messages": [system("Be brief."), user("Name one whale."), assistant("Moby-Dick"),
                                      user("One more?"), assistant("None.")]},
    "no call": {"messages": [user("Hello?"), assistant("Good day."), user("Which tools?"), assistant("Two of them.")],
                "tools": TOOLS},
    "no call, system": {"messages": [system("Be kind."), user("Hello?"), assistant("Good day.")], "tools": TOOLS},
    "one call": {"messages": [user("Where is it warm?"),
                              assistant("", tool_calls=[call("find_city", 1, city="Lima", days=3)]),
                              result("find_city", 1, "{\"degrees\": 21}"), assistant("It is 21 in Lima now.")],
                 "tools": TOOLS},
    "null content, system": {"messages": [system("Use them."), user("Where is it cold?"),
                                          assistant(None, tool_calls=[call("find_city", 1, city="Oslo")]),
                                          result("find_city", 1, "minus five"), assistant("North."),
                                          user("Thank you."), assistant("You are welcome.")], "tools": TOOLS},
    "null content": {"messages": [user("Add seven to it."), assistant(None, tool_calls=[call("add_up", 1, first=7)])],
                     "tools": TOOLS},
    "calls without tools": {"messages": [user("Again?"), assistant(None, tool_calls=[call("add_up", 1, first="it")]),
                                         result("add_up", 1, "eight"), assistant("That is 8.")]},
    "several calls": {"messages": [user("Compare both towns."),
                                   assistant(None, tool_calls=[call("find_city", 1, city="Oslo"),
                                                               call("add_up", 2, first="7", second="b")]),
                                   result("find_city", 1, "cold there"), result("add_up", 2, "seven and b"),
                                   assistant("One is cold.")], "tools": TOOLS},
    "content and a call": {"messages": [user("And Bergen?"),
                                        assistant("I look it up.", tool_calls=[call("find_city", 1, city="Bergen")]),
                                        result("find_city", 1, "rain"), assistant("It is wet.")], "tools": TOOLS},
    "content and calls": {"messages": [system("Be exact."), user("What of all three?"),
                                       assistant("I need several.\n",
                                                 tool_calls=[call("find_city", 1, city="Rome"),
                                                             call("find_city", 2, city="Bonn"),
                                                             call("add_up", 3, first=1, second=2)]),
                                       result("find_city", 1, "sun"), result("find_city", 2, "fog"),
                                       result("add_up", 3, "three"), assistant("Sun, fog and 3.")], "tools": TOOLS},
    "calls in a row": {"messages": [user("First this, then that."),
                                    assistant("", tool_calls=[call("find_city", 1, city="Cork")]),
                                    result("find_city", 1, "mild"),
                                    assistant(None, tool_calls=[call("add_up", 2, first="x")]),
                                    result("add_up", 2, "y"), assistant("Both are done.")], "tools": TOOLS},
    "two questions": {"messages": [system("Take care."), user("How deep is it?"),
                                   assistant("", tool_calls=[call("measure", 1, depth=12)]),
                                   result("measure", 1, "[12, \"ft\"]"), assistant("Twelve feet."),
                                   user("And further out?"),
                                   assistant(None, tool_calls=[call("measure", 2, unit="fathoms")]),
                                   result("measure", 2, "thirty"), assistant("Thirty of them.")], "tools": QUOTED},
    "result as an object": {"messages": [user("What does it hold?"),
                                         assistant(None, tool_calls=[call("add_up", 1, first="all")]),
                                         result("add_up", 1, {"sum": 10.0, "of": ["é", None, {}], "done": True}),
                                         assistant("Ten.")], "tools": TOOLS},
    "unicode and numbers": {"messages": [user("Wie heißt der Wal?"),
                                         assistant(None, tool_calls=[call(
                                             "measure", 1, title="Möby \"Dick\"\n\\ 白鯨 🐳 <|x|> </b>",
                                             large=9223372036854775807, negative=-9223372036854775808,
                                             reals=[1e22, 0.1, -2.50, 1e-7, 100.0], nested={"empty": {}, "none": None,
                                                                                           "yes": True, "list": []})]),
                                         result("measure", 1, "très grand"), assistant("Möby.")], "tools": QUOTED},
    "no arguments": {"messages": [user("What time is it?"), assistant(None, tool_calls=[call("clock", 1)]),
                                  result("clock", 1, "noon"), assistant("It is midday.")],
                     "tools": [described("clock", "Tells the time.")]},
    "arguments as text": {"messages": [user("Once more?"),
                                       assistant("", tool_calls=[in_text(call("find_city", 1, city="Paris", days=[1, 2],
                                                                              exact=12345678901234567890))]),
                                       result("find_city", 1, "spring"), assistant("It is spring.")], "tools": TOOLS},
    "empty lists": {"messages": [user("Nothing?"), assistant("Nothing at all.", tool_calls=[]), user("Sure?"),
                                 assistant("I am.", tool_calls=[])], "tools": []},
    "ends in calls": {"messages": [system("Use the tools."), user("Add them."),
                                   assistant(None, tool_calls=[call("add_up", 1, first="x", second="y"),
                                                               call("find_city", 2, city="z")])], "tools": TOOLS},
    "thoughts": {"messages": [user("Two plus two?"), assistant("Four.", reasoning_content="Twice two."),
                              user("Is it late?"),
                              assistant("", reasoning_content="I must look.\n",
                                        tool_calls=[call("find_city", 1, city="Rome")]),
                              result("find_city", 1, "past midnight"),
                              assistant("I check that.", tool_calls=[call("add_up", 2, first="h")]),
                              result("add_up", 2, "24"),
                              assistant("Yes, it is.", reasoning_content="It says so.")], "tools": TOOLS},
    "result as a question": {"messages": [user("Say when."), assistant("Now.", reasoning_content="A guess."),
                                          user("<tool_response>\nlater\n</tool_response>"),
                                          assistant("Then.", reasoning_content="I was wrong.")], "tools": TOOLS},
    "long ids": {"messages": [user("Is it near?"), assistant(None, tool_calls=[call("find_city", 10, city="Delft")]),
                              result("find_city", 10, "near"), assistant("It is.")], "tools": TOOLS},
}


def as_read(conversation, name, takes):
    """The conversation as the published template of the built-in one `name` gets it, by the rules of docs/data.md."""
    one = copy.deepcopy(conversation)
    for message in one["messages"]:
        if not message.get("tool_calls"):
            message.pop("tool_calls", None)
        for each in message.get("tool_calls") or []:
            function = each["function"]
            if isinstance(function["arguments"], str) and "text of arguments" not in takes:
                function["arguments"] = json.loads(function["arguments"])
        if isinstance(message["content"], dict) and "objects" not in takes:
            message["content"] = json.dumps(message["content"], ensure_ascii=False)
    if name == "mistral-v3":
        # mistral-common writes the system message before the last question, also if an answer follows.
        if one["messages"][0]["role"] == "system":
            first = one["messages"].pop(0)
            last = [message for message in one["messages"] if message["role"] == "user"][-1]
            last["content"] = first["content"] + "\n\n" + last["content"]
        one["tools"] = one.get("tools") or None  # the published template writes half a list
    return one


def segments(text, ranges):
    """The text cut at the ranges: given, learned, given, ... Ranges that touch are one."""
    bounds = [0]
    for begin, end in ranges:
        if len(bounds) > 1 and bounds[-1] == begin:
            bounds.pop()
        else:
            bounds.append(begin)
        bounds.append(end)
    bounds.append(len(text))
    return [text[begin:end] for begin, end in zip(bounds, bounds[1:])]


def main():
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--inputs", default=os.path.join(root, "inputs"))
    parser.add_argument("--output", default=os.path.join(root, "tests", "golden", "chat", "tools.json"))
    arguments = parser.parse_args()

    def published(file):
        with open(os.path.join(arguments.inputs, "chat_templates", file), encoding="utf-8") as opened:
            return opened.read()

    out = {"made_with": {"transformers": transformers.__version__},
           "templates": {name: {"published": file, "special": special}
                         for name, (file, _, special, _) in TEMPLATES.items()},
           "conversations": CONVERSATIONS, "expected": {}}
    for name, (file, tokens, special, takes) in TEMPLATES.items():
        template = published(file)
        pattern = re.compile("|".join(re.escape(one) for one in special))
        expected = out["expected"][name] = {}
        for kind, conversation in CONVERSATIONS.items():
            one = as_read(conversation, name, takes)
            made = render(template, one["messages"], one.get("tools"), tokens=tokens)
            if name in ALIKE:
                assert made == render(published(ALIKE[name]), one["messages"], one.get("tools"), tokens=tokens), kind
            if made is None or dropped(template, one, made[0], tokens=tokens):
                expected[kind] = None
                continue
            expected[kind] = segments(made[0], by_rule(template, one, made[0], special=pattern, tokens=tokens))
        print(name, sum(one is not None for one in expected.values()), "of", len(expected))
    write_json(arguments.output, out)


if __name__ == "__main__":
    main()

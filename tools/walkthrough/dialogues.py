"""Extract the dialogues of novels as JSONL conversations for chat fine-tuning.

usage: dialogues.py FOLDER OUTPUT.jsonl

Two or more consecutive paragraphs of speech become one line of {"messages": [...]}, alternately user and assistant,
without the narrator's words.
"""

import json
import pathlib
import re
import sys


def speech(paragraph):
    """The quoted speech of a paragraph, or "" if less than 60% of it is speech."""
    if not re.search(r'(^|\s)"[^"]', paragraph) or paragraph.count('"') % 2:
        return ""
    said = " ".join(part.strip() for part in re.findall(r'"([^"]+)"', paragraph))
    return said if len(said) >= 0.6 * len(paragraph) else ""


def conversations(text):
    turns = []
    for paragraph in [" ".join(part.split()) for part in re.split(r"\n\s*\n", text)] + [""]:
        said = speech(paragraph.translate(str.maketrans("\u201c\u201d", '""')))
        if said:
            turns.append(said)
            continue
        turns = turns[: len(turns) // 2 * 2]
        if turns:
            yield [{"role": ("user", "assistant")[i % 2], "content": turn} for i, turn in enumerate(turns)]
        turns = []


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__.strip())
    lines = 0
    with open(sys.argv[2], "w", encoding="utf-8") as output:
        for path in sorted(pathlib.Path(sys.argv[1]).glob("*.txt")):
            for messages in conversations(path.read_text(encoding="utf-8")):
                output.write(json.dumps({"messages": messages}, ensure_ascii=False) + "\n")
                lines += 1
    print(f"{sys.argv[2]}: {lines} conversations")


if __name__ == "__main__":
    main()

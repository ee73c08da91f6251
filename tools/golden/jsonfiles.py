"""Reads and writes golden files: JSON with one line per list of numbers, and JSONL."""

import json
import os


def write_json(path, value):
    """Writes JSON with one line per innermost list of numbers; replaces the file atomically."""
    def text(item, indent):
        if isinstance(item, dict):
            inner = ",\n".join(f"{indent} {json.dumps(key)}: {text(entry, indent + ' ')}" for key, entry in item.items())
            return "{\n" + inner + "\n" + indent + "}" if item else "{}"
        if isinstance(item, list) and item and isinstance(item[0], (list, dict)):
            return "[\n" + ",\n".join(indent + " " + text(entry, indent + " ") for entry in item) + "\n" + indent + "]"
        return json.dumps(item, ensure_ascii=False)

    temporary = f"{path}.tmp"
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text(value, "") + "\n")
    os.replace(temporary, path)


def write_lines(path, lines):
    """Writes a JSONL file; replaces it atomically."""
    temporary = f"{path}.tmp"
    with open(temporary, "w", encoding="utf-8") as file:
        for line in lines:
            file.write(json.dumps(line, separators=(",", ":")) + "\n")
    os.replace(temporary, path)


def read_lines(path):
    """Returns the objects of a JSONL file."""
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]

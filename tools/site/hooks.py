"""Hooks of mkdocs: languages of code blocks that name none, and the search index as a script.

Pages that are opened as files may load scripts but not JSON, so site.js could not read search_index.json there.
"""
import json
import pathlib
import re

COMMANDS = {"apt-get", "cd", "cmake", "curl", "docker", "echo", "export", "git", "hawser", "mpirun", "pip", "python",
            "python3", "source", "srun", "tar", "tensorboard"}  # fmt: skip


def language(block):
    """The language of a code block: a session with prompts, commands, JSON, or text."""
    words = block.split()
    if not words:
        return "text"
    if words[0] == "$":
        return "console"
    if block.startswith(("{", "[")):
        return "json"
    command = words[0] in COMMANDS or re.match(r"(\.|build|scripts|tools|hawser)/[\w./-]+$", words[0])
    return "bash" if command or block.startswith("#!/bin/bash") else "text"


def on_page_markdown(markdown, **_):
    def named(fence):
        return f"```{fence[1] or language(fence[2])}\n{fence[2]}```"

    return re.sub(r"^```(\w*)\n(.*?)^```$", named, markdown, flags=re.S | re.M)


def on_post_build(config, **_):
    path = pathlib.Path(config.site_dir) / "search" / "search_index.json"
    # Entries of full pages repeat the text of their sections.
    entries = json.loads(path.read_text())["docs"]
    pages = {entry["location"]: entry["title"] for entry in entries if "#" not in entry["location"]}
    sections = [{**entry, "page": pages[entry["location"].partition("#")[0]]}
                for entry in entries if "#" in entry["location"]]
    (path.parent / "search_index.js").write_text(f"var searchIndex = {json.dumps(sections)};\n")
    path.unlink()

"""Run the commands of tools/walkthrough/steps.py, from a clone to a fine-tuned model, and write docs/walkthrough.md.

usage: python3 tools/walkthrough/walk.py [--output docs/walkthrough.md] [--from TITLE] [--chroot FOLDER]

Run it in a clone on a bare Debian 12 machine, as root: it installs packages, builds, fetches a model and text, trains,
kills the training and resumes it. --from starts at the section with that title. --chroot runs the commands in a chroot
made by debootstrap, in the clone at its root/hawser.
"""

import argparse
import os
import pathlib
import platform
import re
import signal
import subprocess
import sys
import time

from steps import STEPS

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Walk:
    def __init__(self, path, machine):
        self.out = open(path, "w", encoding="utf-8")
        self.clone = (machine / "root/hawser") if machine else ROOT
        home = "/root/hawser" if machine else str(ROOT)
        settings = {"HOME": os.environ.get("HOME", "/root"), "COLUMNS": "110", "LANG": "C.UTF-8",
                    "PATH": f"{home}/build/release:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
        for name in ("PIP_CERT", "PIP_INDEX_URL", "PIP_DEFAULT_TIMEOUT"):  # access to package indexes
            if name in os.environ:
                settings[name] = os.environ[name]
        self.command = (["chroot", str(machine)] if machine else []) + ["env", "-i"]
        self.command += [f"{name}={value}" for name, value in settings.items()] + ["bash", "-c"]
        self.home = home

    def write(self, text):
        self.out.write(text + "\n")
        self.out.flush()
        print(text, flush=True)

    def run(self, step):
        began = time.time()
        process = subprocess.Popen(self.command + [f"cd {self.home}\n{step['run']}"], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
        text = process.communicate(timeout=3600)[0].decode("utf-8", "replace")
        seconds = time.time() - began
        if process.returncode not in step.get("codes", [0]):
            self.write(text)
            sys.exit(f"{step['run']}: ended with code {process.returncode}")
        missing = [word for word in step.get("says", []) if word not in text]
        if missing:
            self.write(text)
            sys.exit(f"{step['run']}: {missing} not in the output")
        if "show" in step:
            text = (self.clone / step["show"]).read_text(encoding="utf-8")
        # As on a terminal: of a line that was overwritten, only the last state.
        lines = [re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", line).rsplit("\r", 1)[-1].rstrip() for line in text.split("\n")]
        lines = [line.replace(self.home, "~/hawser") for line in lines]
        while lines and not lines[-1]:
            lines.pop()
        first, last = step.get("lines", (12, 12))
        if len(lines) > first + last + 1:
            gone = len(lines) - first - last
            lines = lines[:first] + [f"[... {gone} lines ...]"] + lines[len(lines) - last:]
        note = f"  # {seconds:.0f} s" if seconds >= 2 else ""
        self.write("```")
        self.write("$ " + step["run"].replace("\n", "\n> ") + note)
        for line in lines:
            self.write(line if len(line) <= 160 else line[:157] + "...")
        self.write("```")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "docs/walkthrough.md")
    parser.add_argument("--from", dest="begin")
    parser.add_argument("--chroot", type=pathlib.Path)
    arguments = parser.parse_args()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    walk = Walk(arguments.output, arguments.chroot)
    going = arguments.begin is None
    walk.write("# A session, step by step\n")
    walk.write("The output of every command from a bare machine to a fine-tuned model. Machine: Debian 12, "
               f"{os.cpu_count()} cores, {platform.machine()}, no GPU, only\nthe packages of `debootstrap "
               "--variant=minbase`. `tools/walkthrough/walk.py` wrote this page: it runs the\ncommands of `steps.py` "
               "and records their output, with the middle of long output left out. Times are shown for\n"
               "commands of two seconds or more.")
    for step in STEPS:
        if "title" in step:
            going = going or step["title"] == arguments.begin
            if going:
                walk.write(f"\n## {step['title']}\n")
        elif going and "text" in step:
            walk.write(step["text"].strip() + "\n")
        elif going and "run" in step:
            walk.run(step)


if __name__ == "__main__":
    main()

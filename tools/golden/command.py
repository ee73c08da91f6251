"""What the command lines of the scripts that generate golden files have in common."""

import argparse
import os
import shutil

import torch
import transformers

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def golden(*names):
    """A path in tests/golden."""
    return os.path.join(ROOT, "tests", "golden", *names)


def parser_of(doc):
    return argparse.ArgumentParser(description=doc.split("\n")[0])


def prepare(threads=1):
    """Sets the number of PyTorch's threads and silences transformers."""
    torch.set_num_threads(threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def made_with():
    return {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__}


def make_cases(doc, name, cases, make):
    """The command of a script that writes a folder for each of `cases`: make(case, folder) returns a line to print."""
    parser = parser_of(doc)
    parser.add_argument("--output", default=golden(name))
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"default: all of {', '.join(cases)}")
    arguments = parser.parse_args()
    unknown = [case for case in arguments.cases if case not in cases]
    if unknown:
        parser.error(f"no such case: {', '.join(unknown)}")
    prepare()
    for case in arguments.cases or cases:
        folder = os.path.join(arguments.output, case)
        shutil.rmtree(folder, ignore_errors=True)
        print(make(case, folder), flush=True)


def folder_size(folder):
    """KiB of the files of a folder, which everyone may read from now on."""
    paths = [os.path.join(folder, file) for file in os.listdir(folder)]
    for path in paths:
        os.chmod(path, 0o644)
    return sum(os.path.getsize(path) for path in paths) // 1024

"""Hawser: trains transformer language models on long sequences. This package starts the program `hawser`.

    import hawser
    hawser.run("fit", "recipe.yaml")
    for row in hawser.metrics("runs/novels"):
        print(row["step"], row["loss"])
"""

import json
import os
import subprocess
import sys

__all__ = ["BINARY", "environment", "main", "metrics", "run"]


def _binary():
    """The program of hawser-trainer-cuda, where `hawser-trainer[cuda]` is installed, or else the one for CPUs."""
    here = os.path.dirname(__file__)
    cuda = os.path.join(os.path.dirname(here), "hawser_cuda", "bin", "hawser")
    return cuda if os.path.exists(cuda) else os.path.join(here, "bin", "hawser")


BINARY = _binary()


def environment():
    """The environment of the program: its ranks are started by this Python environment's mpirun, if there is one."""
    variables = dict(os.environ)
    mpirun = os.path.join(sys.prefix, "bin", "mpirun")
    if os.access(mpirun, os.X_OK):
        variables.setdefault("HAWSER_MPIRUN", mpirun)
    return variables


def run(*arguments, **options):
    """Run the program with these arguments; options are those of subprocess.run. CalledProcessError if it fails."""
    return subprocess.run([BINARY, *map(str, arguments)], check=options.pop("check", True),
                          env=options.pop("env", environment()), **options)


def metrics(run_folder):
    """The rows of a run's metrics.jsonl, a dict for each step."""
    with open(os.path.join(run_folder, "metrics.jsonl"), encoding="utf-8") as rows:
        for row in rows:
            yield json.loads(row)


def main():
    os.execve(BINARY, [BINARY, *sys.argv[1:]], environment())

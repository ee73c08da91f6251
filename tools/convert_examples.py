#!/usr/bin/env python3
"""Convert all example files of a release of axolotl or LLaMA-Factory with `hawser recipe convert`.

  tools/convert_examples.py build/release/hawser axolotl-0.19.0             a line for each YAML of its examples/
  tools/convert_examples.py build/release/hawser llamafactory-0.9.5 --keys  how often each key is dropped, and why

FOLDER is the unpacked source package of a release (`pip download --no-deps --no-binary :all: axolotl`). A line has the
numbers of keys that are converted, dropped and unknown, or the error of a file that Hawser cannot train. Each recipe is
read by `hawser plan`, whose only error may be that the model is not downloaded. Exit code 1: another error, or a program
that crashed. Unknown keys are those that a new release has added: add a rule to src/config/convert/. Needs the standard
library only.
"""

import argparse
import collections
import pathlib
import re
import subprocess
import sys
import tempfile

COUNTS = re.compile(r"(\d+) keys? converted, (\d+) dropped, (\d+) unknown")
MISSING = re.compile(r"no such folder, and no such model|no such file|no such model|not a model folder")


def run(hawser, folder, *words):
    return subprocess.run([hawser, *words], cwd=folder, capture_output=True, text=True)


def errors_of_recipe(hawser, folder, recipe):
    """Errors of `hawser plan`, except for files that are not there."""
    planned = run(hawser, folder, "plan", recipe, "--target", "h200")
    return [line for line in planned.stderr.splitlines() if planned.returncode != 0 and not MISSING.search(line)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("hawser")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--keys", action="store_true", help="print reasons and keys in place of files")
    options = parser.parse_args()
    hawser = str(pathlib.Path(options.hawser).resolve())
    files = sorted(path for path in options.folder.glob("examples/**/*.y*ml") if path.is_file())
    if not files:
        sys.exit(f"{options.folder}: no YAML in examples/")
    totals, reasons, failed = collections.Counter(), collections.Counter(), 0
    with tempfile.TemporaryDirectory() as temporary:
        recipe = f"{temporary}/recipe.yaml"
        for path in files:
            name = str(path.relative_to(options.folder))
            ran = run(hawser, options.folder, "recipe", "convert", name, "--output", recipe, "--force")
            first = ran.stderr.splitlines()[0] if ran.stderr else "no output"
            if ran.returncode == 0:
                counts = COUNTS.search(first).groups()
                wrong = errors_of_recipe(hawser, options.folder, recipe)
                line = "{} converted, {} dropped, {} unknown".format(*counts)
                totals.update(files=1, converted=int(counts[0]), dropped=int(counts[1]), unknown=int(counts[2]))
            else:
                wrong = [] if ran.returncode == 2 else [f"exit code {ran.returncode}"]
                line = "rejected: " + first.removeprefix(f"hawser: {name}: ")
                totals.update(rejected=1)
            failed += bool(wrong)
            if not options.keys:
                print(f"{name}: {line}", *(f"  ERROR {error}" for error in wrong), sep="\n")
            for dropped in re.findall(r"^hawser: dropped (.*?): (.*)$", ran.stderr, re.MULTILINE):
                reasons.update((dropped[1], key) for key in dropped[0].split(", "))
    if options.keys:
        for (reason, key), count in sorted(reasons.items()):
            print(f"{count:5} {key}: {reason}")
    print(f"{len(files)} files: {totals['files']} converted ({totals['converted']} keys converted, {totals['dropped']} "
          f"dropped, {totals['unknown']} unknown), {totals['rejected']} rejected; {failed} with errors")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Fine-tune at several learning rates and print the loss on held-out data: the measurement behind the rates that
`hawser recipe init` writes.

usage: learning_rates.py --hawser HAWSER --model FOLDER --data NAME=TRAIN,VALIDATION... [options]

For each data set, `recipe init` writes a recipe with its defaults; it is run once for each rate and seed. Evaluations
read the whole validation file. A line of the table: the median over the seeds of the last validation loss, and of the
lowest one of a run, with the range of the seeds.
"""

import argparse
import concurrent.futures
import json
import pathlib
import statistics
import subprocess
import sys
import time


def call(log, *command):
    with open(log, "ab") as out:
        return subprocess.run([str(c) for c in command], stdout=out, stderr=out, check=False).returncode


def validation_losses(folder):
    """Those of all evaluations of a run, in order."""
    losses = []
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        values = json.loads(line)
        losses += [values[key] for key in ("initial_validation_loss", "validation_loss") if key in values]
    return losses


def ranges(values, of_median=statistics.median):
    return f"{of_median(values):.4f} ({min(values):.4f}-{max(values):.4f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--hawser", default="build/release/hawser")
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", action="append", required=True, metavar="NAME=TRAIN,VALIDATION")
    parser.add_argument("--rates", default="5e-5,1e-4,2e-4,5e-4,1e-3,2e-3,5e-3")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--set", action="append", default=["adapter.kind=lora"], metavar="KEY=VALUE")
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("/tmp/learning-rates"))
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    keys = [word for item in options.set for word in ("--set", item)]

    runs = []
    for item in options.data:
        name, files = item.split("=")
        train, validation = files.split(",")
        recipe, log = options.folder / f"{name}.yaml", options.folder / f"{name}.log"
        shared = ["--set", f"data.prepared={options.folder / name}-tokens"]
        code = call(log, options.hawser, "recipe", "init", "--model", options.model, "--data", train, *keys, *shared,
                    "--set", f"data.validation={validation}", "--set", "train.evaluate_batches=0", "--output", recipe)
        code = code or call(log, options.hawser, "prepare", recipe)
        if code != 0:
            sys.exit(f"learning_rates.py: {name}: exit code {code}\n{log.read_text()}")
        runs += [(name, recipe, float(rate), int(seed))
                 for rate in options.rates.split(",") for seed in options.seeds.split(",")]

    def run(job):
        name, recipe, rate, seed = job
        folder = options.folder / f"{name}-{rate:g}-{seed}"
        began = time.monotonic()
        code = call(f"{folder}.log", options.hawser, "fit", recipe, "--ranks", 1, "--set",
                    f"optimizer.learning_rate={rate}", "--set", f"train.seed={seed}", "--set", f"output={folder}")
        losses = validation_losses(folder) if (folder / "metrics.jsonl").exists() else []
        print(f"{name} rate {rate:g} seed {seed}: exit code {code}, {time.monotonic() - began:.0f} s, "
              f"{losses[:1]} -> {losses[-1:]}", flush=True)
        return {"data": name, "rate": rate, "seed": seed, "code": code, "losses": losses}

    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        results = list(pool.map(run, runs))
    (options.folder / "results.json").write_text("\n".join(json.dumps(result) for result in results) + "\n")
    print("| data | rate | last validation loss | lowest | before training |\n| --- | --- | --- | --- | --- |")
    for name, rate in dict.fromkeys((r["data"], r["rate"]) for r in results):
        of = [r["losses"] for r in results if (r["data"], r["rate"]) == (name, rate) and r["losses"]]
        if of:
            print(f"| {name} | {rate:g} | {ranges([losses[-1] for losses in of])} | "
                  f"{ranges([min(losses) for losses in of])} | {of[0][0]:.4f} |")


if __name__ == "__main__":
    main()

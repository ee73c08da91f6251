"""Train in FP8 and in bf16 on the same data, and compare the losses.

usage: fp8_training.py run --hawser BIN --tokenizer FILE --train FILE... --validation FILE --out DIR [--model DIR]
       fp8_training.py plot RESULTS.json PICTURE.svg                                       (requires matplotlib)

`run` trains a Llama of 151M parameters from random weights for 300 steps of 16,384 tokens, in bf16, in FP8, and in FP8
with a layer that overflows: its checkpoint of step 150 is copied, the scales and histories of one MLP's inputs are
divided by 1,000, and the run resumes. It does so with the guard (precision.fp8.saturation_limit) and without. With
--model it also fine-tunes that model for 100 steps, in both. It prints a table and writes results.json. Requires a GPU
and xxhash. --device cpu with --steps is a dry run.
"""

import argparse
import json
import os
import re
import shutil
import struct
import subprocess
import sys

LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 768, "intermediate_size": 2048,
         "num_hidden_layers": 12, "num_attention_heads": 12, "num_key_value_heads": 4, "vocab_size": 49152,
         "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": 2048, "tie_word_embeddings": False,
         "hidden_act": "silu", "bos_token_id": 0, "eos_token_id": 0, "torch_dtype": "bfloat16"}
OVERFLOWS = "layer.11/up_projection/x"  # the MLP of block 5: layers are attention, MLP, attention …


def overflow(checkpoint, name=OVERFLOWS, factor=1e-3):
    """Multiplies the scale and the amaxes of one operand in a checkpoint, and renews the checksums."""
    import xxhash
    path = os.path.join(checkpoint, "manifest.json")
    with open(path, encoding="utf-8") as file:
        text = file.read()
    manifest = json.loads(text)

    def compact(document):
        return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)

    changed = 0
    for tensor in manifest["tensors"]:
        if not re.fullmatch(r"quantization/(scale|amax_history)/" + re.escape(name), tensor["name"]):
            continue
        before = compact(tensor)
        for box in tensor["boxes"]:
            with open(os.path.join(checkpoint, manifest["files"][box[0]][0]), "r+b") as file:
                file.seek(box[1])
                values = struct.unpack(f"<{box[2] // 4}f", file.read(box[2]))
                data = struct.pack(f"<{len(values)}f", *(v * factor for v in values))
                file.seek(box[1])
                file.write(data)
            box[5] = xxhash.xxh3_64_hexdigest(data)
            changed += 1
        text = text.replace(before, compact(tensor))
    if changed != 2:
        raise SystemExit(f"{checkpoint}: {changed} tensors of {name}, expected 2")
    checksum = manifest.pop("checksum")
    with open(path, "w", encoding="utf-8") as file:
        file.write(text.replace(checksum, xxhash.xxh3_64_hexdigest(compact(manifest).encode())))


class Runs:
    def __init__(self, arguments):
        self.arguments = arguments
        self.results = {}
        os.makedirs(arguments.out, exist_ok=True)

    def recipe(self, name, model, precision, train, optimizer, length):
        a = self.arguments
        recipe = {"model": model,
                  "data": {"train": a.train, "validation": [a.validation], "sequence_length": length, "pack": "chunks"},
                  "precision": precision, "train": {"seed": 7, **train}, "optimizer": optimizer,
                  "checkpoint": {"every_steps": train["steps"] // 2, "keep_last": 9},
                  "run": {"device": a.device, "ranks": 1}, "output": os.path.join(a.out, name)}
        if "config" in model:
            recipe["data"]["tokenizer"] = a.tokenizer
        path = os.path.join(a.out, name + ".yaml")  # JSON is YAML
        with open(path, "w", encoding="utf-8") as file:
            json.dump(recipe, file)
        return path

    def fit(self, name, words):
        output = os.path.join(self.arguments.out, name)
        with open(output + ".log", "w", encoding="utf-8") as log:
            command = [self.arguments.hawser, "fit", *words]
            code = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False).returncode
        if code != 0:
            with open(output + ".log", encoding="utf-8") as log:
                sys.stderr.write(log.read()[-2000:])
            raise SystemExit(f"{name}: exit code {code}")
        steps, validation, replays = [], [], 0
        with open(os.path.join(output, "metrics.jsonl"), encoding="utf-8") as file:
            for line in map(json.loads, file):
                if "loss" in line:
                    steps.append(line["loss"])
                replays += line.get("replays", 0)
                for key in ("validation_loss", "eval_loss"):
                    if key in line:
                        validation.append([line["step"], line[key]])
        self.results[name] = {"loss": steps, "validation": validation, "replays": replays}
        last = sum(steps[-10:]) / len(steps[-10:])
        print(f"{name:16} loss {last:.4f} (mean of the last 10), held out "
              f"{validation[-1][1] if validation else float('nan'):.4f}, {replays} replays", flush=True)

    def write(self):
        with open(os.path.join(self.arguments.out, "results.json"), "w", encoding="utf-8") as file:
            json.dump(self.results, file)


def run(arguments):
    runs = Runs(arguments)
    config = os.path.join(arguments.out, "llama.json")
    with open(config, "w", encoding="utf-8") as file:
        json.dump(LLAMA, file)
    steps, tuned = arguments.steps, max(2, arguments.steps // 3)
    scratch = {"steps": steps, "global_batch_size": 16, "micro_batch_size": 16, "evaluate_every": max(1, steps // 6),
               "evaluate_batches": 8}
    rate = {"learning_rate": 1e-3, "schedule": "cosine", "warmup_steps": max(1, steps // 10)}
    paths = {p: runs.recipe(p, {"config": config}, {"compute": p}, scratch, rate, 1024) for p in ("bf16", "fp8")}
    runs.fit("bf16", [paths["bf16"]])
    runs.fit("fp8", [paths["fp8"]])
    for name, words in (("fp8-guarded", []), ("fp8-unguarded", ["--set", "precision.fp8.saturation_limit=1"])):
        output = os.path.join(arguments.out, name)
        shutil.copytree(os.path.join(arguments.out, "fp8"), output)
        half = os.path.join(output, "checkpoints", f"step-{steps // 2:08}")
        for later in range(steps // 2 + 1, steps + 1):
            shutil.rmtree(os.path.join(output, "checkpoints", f"step-{later:08}"), ignore_errors=True)
        overflow(half)
        runs.fit(name, [paths["fp8"], "--resume", "--set", "output=" + output, *words])
    if arguments.model:
        train = {"steps": tuned, "global_batch_size": 8, "micro_batch_size": 8, "evaluate_every": tuned,
                 "evaluate_batches": 0}
        rate = {"learning_rate": 5e-5, "schedule": "cosine", "warmup_steps": max(1, tuned // 10)}
        for precision in ("bf16", "fp8"):
            name = "tuned-" + precision
            runs.fit(name, [runs.recipe(name, {"path": arguments.model}, {"compute": precision}, train, rate, 1024)])
    runs.write()


def plot(results, picture):
    import matplotlib
    matplotlib.use("svg")
    from matplotlib import pyplot
    with open(results, encoding="utf-8") as file:
        runs = json.load(file)
    figure, (curves, difference) = pyplot.subplots(2, 1, sharex=True, figsize=(8, 6), height_ratios=(2, 1))
    names = {"bf16": ("bf16", "#4878a8"), "fp8": ("FP8", "#d1603d"),
             "fp8-guarded": ("FP8, a layer overflows", "#6a9a58")}
    base = runs["bf16"]["loss"]
    for name, (label, color) in names.items():
        loss = runs[name]["loss"]
        curves.plot(range(1, len(loss) + 1), loss, label=label, color=color, linewidth=1)
        if name != "bf16":
            percent = [100 * (a / b - 1) for a, b in zip(loss, base)]
            difference.plot(range(1, len(percent) + 1), percent, color=color, linewidth=1)
    curves.set_ylabel("training loss")
    curves.legend(frameon=False)
    difference.axhline(0, color="#888888", linewidth=0.5)
    difference.set_ylabel("difference to bf16, %")
    difference.set_xlabel("step")
    for axes in (curves, difference):
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(picture)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    training = commands.add_parser("run")
    training.add_argument("--hawser", required=True)
    training.add_argument("--tokenizer", required=True)
    training.add_argument("--train", required=True, nargs="+")
    training.add_argument("--validation", required=True)
    training.add_argument("--model", help="a Hugging Face folder to fine-tune")
    training.add_argument("--steps", type=int, default=300)
    training.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    training.add_argument("--out", required=True)
    drawing = commands.add_parser("plot")
    drawing.add_argument("results")
    drawing.add_argument("picture")
    arguments = parser.parse_args()
    if arguments.command == "plot":
        plot(arguments.results, arguments.picture)
        return
    for name in ("hawser", "tokenizer", "validation", "model", "out"):
        value = getattr(arguments, name)
        setattr(arguments, name, os.path.abspath(value) if value else value)
    arguments.train = [os.path.abspath(path) for path in arguments.train]
    run(arguments)


if __name__ == "__main__":
    main()

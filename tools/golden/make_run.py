"""Make tests/golden/runs/e0aa1b5: the folder of a short run of an earlier build, and what that build computes from it.

usage: make_run.py --hawser BINARY [--output tests/golden/runs/e0aa1b5]

BINARY is a hawser of commit e0aa1b5: a newer one writes the newer names, and the folder would prove nothing.
tests/golden/README.md describes the files. Needs the standard library, libxxhash and two cores.
"""

import argparse
import ctypes
import hashlib
import json
import pathlib
import random
import re
import shutil
import subprocess
import tempfile

import jsonfiles

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SAVED, STEPS = 9, 15  # steps of the run in the folder, and of the run that resumes it
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "attention_bias": True, "attention_dropout": 0.0, "bos_token_id": 1,
    "eos_token_id": 2, "head_dim": 6, "hidden_act": "silu", "hidden_size": 18, "initializer_range": 0.05,
    "intermediate_size": 23, "max_position_embeddings": 128, "mlp_bias": False, "model_type": "llama",
    "num_attention_heads": 3, "num_hidden_layers": 2, "num_key_value_heads": 1, "rms_norm_eps": 1e-05,
    "rope_scaling": None, "rope_theta": 10000.0, "tie_word_embeddings": True, "torch_dtype": "float32",
    "use_cache": True, "vocab_size": 67,
}
RECIPE = f"""# The run was made with `--ranks 2 --set train.steps={SAVED}`.
name: earlier
output: run
model: {{config: config.json}}
data: {{train: tokens/train, validation: tokens/valid, sequence_length: 37}}
parallel: {{context_parallel_degree: 2}}
precision: {{compute: float32}}
train: {{steps: {STEPS}, global_batch_size: 2, evaluate_every: 3, seed: 5}}
optimizer: {{learning_rate: 2.0e-2, schedule: constant, warmup_steps: 4, gradient_clip: 0.5}}
checkpoint: {{every_steps: 5, keep_last: 2}}
"""
# The algorithms that a run chooses for its GEMMs. Only a run on a GPU writes them; these are invented, in its form: 13
# numbers of a shape, then 8 words of cuBLASLt's in hexadecimal. A line with # is a GEMM that cuBLASLt rejects.
GEMM_ALGORITHMS = """cublasLt 130100 on NVIDIA H100 80GB HBM3
74 18 18 18 18 18 0 0 0 0 1 0 1 43 1400000012 c0012 0 200000000 0 0 0 \n\
74 46 18 18 18 46 0 0 0 0 1 0 1 43 1400000012 c0014 0 200000000 0 0 0 \n\
# 37 x 67 x 18, strides 18 18 67, float32 to bfloat16: our own kernel, slow: no algorithm
"""


def documents(seed, count, regular):
    """Lines of ids, some with masked labels; what is learned of regular ones makes the loss on others rise."""
    source = random.Random(seed)
    for number in range(count):
        length = source.choice((1, 2, 3, 5, 7, 12, 19, 30, 41))
        at, stride = source.randrange(3, 67), source.randrange(1, 5)
        noise = 2 if regular else 64
        ids = [3 + (at + stride * i + source.randrange(noise)) % 64 for i in range(length)]
        line = {"input_ids": ids}
        if number % 5 == 2:
            line["labels"] = [-100 if i < length // 3 else token for i, token in enumerate(ids)]
        yield line


class Work:
    """A folder in which the binary runs."""

    def __init__(self, hawser, folder):
        self.hawser, self.folder = hawser, folder

    def run(self, *arguments):
        command = [str(self.hawser), *map(str, arguments)]
        done = subprocess.run(command, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              check=False)
        if done.returncode != 0:
            raise SystemExit(f"make_run: `{' '.join(command)}` ended with {done.returncode}:\n{done.stderr}")
        return done.stdout

    def prepare(self):
        (self.folder / "config.json").write_text(json.dumps(CONFIG, indent=1) + "\n")
        jsonfiles.write_lines(self.folder / "train.jsonl", documents(1, 40, regular=True))
        jsonfiles.write_lines(self.folder / "valid.jsonl", documents(2, 9, regular=False))
        text = RECIPE.replace("tokens/train", "train.jsonl").replace("tokens/valid", "valid.jsonl")
        (self.folder / "text.yaml").write_text(text)
        self.run("prepare", "text.yaml", "--set", "data.prepared=tokens")
        (self.folder / "tokens/prepared.json").unlink()
        for name in ("text.yaml", "train.jsonl", "valid.jsonl"):
            (self.folder / name).unlink()
        (self.folder / "recipe.yaml").write_text(RECIPE)

    def copy(self, name):
        folder = self.folder.parent / name
        shutil.copytree(self.folder, folder)
        return Work(self.hawser, folder)

    def metrics(self):
        return (self.folder / "run/metrics.jsonl").read_text().splitlines(keepends=True)


def add_gemm_algorithms(checkpoint):
    """Writes GEMM_ALGORITHMS into a manifest, as a run on a GPU does, with the manifest's checksum."""
    library = ctypes.CDLL("libxxhash.so.0")
    library.XXH3_64bits.restype = ctypes.c_uint64
    library.XXH3_64bits.argtypes = (ctypes.c_char_p, ctypes.c_size_t)

    def dump(value):
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)

    def checksum(document):
        data = dump(document).encode()
        return f"{library.XXH3_64bits(data, len(data)):016x}"

    path = checkpoint / "manifest.json"
    text = path.read_text()
    document = json.loads(text)
    meta, saved = dump(document["meta"]), document.pop("checksum")
    if checksum(document) != saved or text.count(meta) != 1:
        raise SystemExit(f"make_run: {path}: not in the form that this script knows")
    document["meta"]["products"] = GEMM_ALGORITHMS
    text = text.replace(meta, dump(document["meta"])).replace(saved, checksum(document))
    path.unlink()  # best/ may share it by a hard link
    path.write_text(text)


def summary(line):
    """The numbers of a step, by the keys of today."""
    step = json.loads(line)
    named = {"step": step["step"], "loss": step["loss"], "grad_norm": step["gradient_norm"],
             "lr": step["learning_rate"], "targets": step["targets"]}
    return {**named, **({"validation_loss": step["validation_loss"]} if "validation_loss" in step else {})}


def expected(work):
    """What BINARY computes from the folder."""
    two, one = work.copy("two"), work.copy("one")
    two.run("fit", "recipe.yaml", "--ranks", 2, "--resume")
    one.run("fit", "recipe.yaml", "--ranks", 1, "--resume", "--set", "parallel.context_parallel_degree=1")
    three = work.copy("three")
    three.run("export", "run", "out")
    evaluation = json.loads(three.run("eval", "--model", "run/best", "--data", "tokens/valid"))
    best = json.loads((work.folder / "run/best/manifest.json").read_text())
    return {
        "saved_step": SAVED,
        "steps": STEPS,
        "two_ranks": [summary(line) for line in two.metrics()[SAVED:]],
        "one_rank": [summary(line) for line in one.metrics()[SAVED:]],
        "best_step": best["step"],
        "best_loss": evaluation["loss"],
        "best_tokens": evaluation["tokens"],
        "exported_sha256": hashlib.sha256((three.folder / "out/model.safetensors").read_bytes()).hexdigest(),
    }, two.metrics()[SAVED]


def neutral_report(path, folder):
    """The report without the machine that made the run."""
    text = path.read_text().replace(str(folder) + "/", "")
    for name in ("host", "system", "CPU", "cores", "memory"):
        text = re.sub(rf"<td>{name}</td><td>[^<]*</td>", f"<td>{name}</td><td>-</td>", text)
    path.write_text(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--hawser", required=True, type=pathlib.Path, help="the binary of commit e0aa1b5")
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "tests/golden/runs/e0aa1b5")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        work = Work(arguments.hawser.resolve(), pathlib.Path(scratch).resolve() / "work")
        work.folder.mkdir()
        work.prepare()
        work.run("fit", "recipe.yaml", "--ranks", 2, "--set", f"train.steps={SAVED}")
        run = work.folder / "run"
        for lock in run.rglob(".lock"):
            lock.unlink()
        shutil.rmtree(run / "data", ignore_errors=True)
        neutral_report(run / "report.html", work.folder)
        (run / "products.txt").write_text(GEMM_ALGORITHMS)
        add_gemm_algorithms(run / f"checkpoints/step-{SAVED:08}")
        numbers, next_line = expected(work)
        with (run / "metrics.jsonl").open("a") as file:
            file.write(next_line)  # of a run that was killed after its last checkpoint
        jsonfiles.write_json(work.folder / "expected.json", numbers)
        shutil.rmtree(arguments.output, ignore_errors=True)
        shutil.copytree(work.folder, arguments.output)
    files = [path for path in arguments.output.rglob("*") if path.is_file()]
    print(f"{arguments.output}: {len(files)} files, {sum(path.stat().st_size for path in files):,} bytes")


if __name__ == "__main__":
    main()

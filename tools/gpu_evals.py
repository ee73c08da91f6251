#!/usr/bin/env python3
"""Compare losses and gradient norms of `hawser eval` on GPUs with a reference; for scripts/gpu-check.

  gpu_evals.py model --hawser BIN --golden DIR [--model DIR --data FILE]
      every case of DIR on one GPU: in float32 with transformers' float64 (expected.json), in bf16 with the CPU's bf16;
      with --model, also that model, in both dtypes with the CPU's float32
  gpu_evals.py mesh --hawser BIN --golden DIR --gpus N
      the cases with packed documents and odd sizes on each mesh of N GPUs (and of 2, if N is larger) with one GPU

Several runs of `hawser` run concurrently, since they are small. If a run times out, the stacks of its processes are
printed. Prints a table of the largest relative differences; a norm smaller than a thousandth of the largest norm (in
bf16: a fifth) is compared relative to that fraction. The last line is `checks N failed M: FIGURES`. Exits with 1 if a
check failed. A run of `hawser` that fails or times out is a failed check.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

DTYPES = ("float32", "bf16")
# Bounds of loss and gradient norms. float32: another order of summation. bf16: other roundings of activations; on a
# mesh also of the partial sums of attention.
BOUNDS = {
    "model": {"float32": (1e-5, 1e-4), "bf16": (1e-2, 5e-2)},
    "mesh": {"float32": (1e-5, 1e-4), "bf16": (2e-3, 2e-2)},
}
FLOOR = {"float32": 1e-3, "bf16": 0.2}  # of the largest norm
MESH_CASES = ["packed", "odd_sizes", "everything"]


class Checks:
    def __init__(self, bounds):
        self.bounds = bounds
        self.count = self.failed = 0
        self.worst = {}  # dtype: (loss, norms)

    def compare(self, what, dtype, got, reference):
        self.count += 1
        got, reference = (one.result() if isinstance(one, concurrent.futures.Future) else one
                          for one in (got, reference))
        if got is None or reference is None:
            self.failed += 1
            print(f"{what:<52} {dtype:<8} FAILED: no result")
            return
        loss = abs(got["loss"] - reference["loss"]) / abs(reference["loss"])
        norms = reference["gradient_norms"]
        floor = FLOOR[dtype] * max(norms.values())
        missing = norms.keys() ^ got["gradient_norms"].keys()
        name, worst = "", 0.0
        for key, norm in norms.items():
            if key in missing:
                continue
            difference = abs(got["gradient_norms"][key] - norm) / max(norm, floor)
            if not difference <= worst:  # a NaN is the worst
                name, worst = key, difference
        bounds = self.bounds[dtype]
        good = loss <= bounds[0] and worst <= bounds[1] and not missing and got["tokens"] == reference["tokens"]
        self.failed += not good
        was = self.worst.get(dtype, (0.0, 0.0))
        self.worst[dtype] = (max(was[0], loss), max(was[1], worst))
        print(f"{what:<52} {dtype:<8} loss {loss:8.1e}  gradient norms {worst:8.1e} {name}{'' if good else '  FAILED'}",
              flush=True)

    def end(self):
        figures = "; ".join(f"{dtype} loss {loss:.1e}, gradients {norms:.1e}"
                            for dtype, (loss, norms) in self.worst.items())
        print(f"checks {self.count} failed {self.failed}: largest differences: {figures or 'none'}")
        return 1 if self.failed else 0


def tree_of(root):
    """{process: (parent, command line)} of a process and all its descendants."""
    every = {}
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            every[int(folder.name)] = parent, (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(
                errors="replace")
        except OSError:
            continue  # the process has ended
    tree, found = {}, {root} & every.keys()
    while found:
        tree |= {pid: every[pid] for pid in found}
        found = {pid for pid, (parent, _) in every.items() if parent in found} - tree.keys()
    return tree


def print_stacks(tree, binary):
    debugger = shutil.which("gdb") or shutil.which("cuda-gdb")
    parents = {parent for parent, _ in tree.values()}
    for pid, (_, line) in sorted(tree.items()):
        print(f"  -- process {pid}: {line[:160]}")
        for thread in sorted(pathlib.Path(f"/proc/{pid}/task").glob("*")):
            try:
                print("    ", thread.name, *((thread / name).read_text().strip()[:60] for name in ("comm", "wchan")))
            except OSError:
                continue
        sys.stdout.flush()
        if debugger and line.startswith(binary) and pid not in parents:  # a rank
            try:
                subprocess.run([debugger, "-batch", "-p", str(pid), "-ex", "thread apply all bt 16"], timeout=30,
                               check=False, stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT)
            except subprocess.TimeoutExpired:
                print(f"     {debugger} did not end", flush=True)


class Evals:
    def __init__(self, arguments):
        self.binary = arguments.hawser
        self.limit = arguments.seconds_each
        self.workers = concurrent.futures.ThreadPoolExecutor(arguments.at_once)

    def __call__(self, *arguments):
        """A future of the JSON printed by `hawser eval`, or of None after a failure."""
        return self.workers.submit(self.run, *arguments)

    def run(self, model, data, length, *options):
        command = [self.binary, "eval", "--model", str(model), "--data", str(data), "--gradient-norms",
                   "--sequence-length", str(length), *options]
        started = time.monotonic()
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True) as process:
            try:
                out, errors = process.communicate(timeout=self.limit)
            except subprocess.TimeoutExpired:
                print(f"not done within {self.limit:.0f} s: {' '.join(command)}", flush=True)
                tree = tree_of(process.pid)
                print_stacks(tree, self.binary)
                for pid in tree:
                    try:
                        os.kill(pid, signal.SIGKILL)
                    except ProcessLookupError:
                        pass
                return None
        try:
            if process.returncode == 0:
                return json.loads(out.strip().splitlines()[-1])
        except (ValueError, IndexError):
            pass
        print(f"ended with {process.returncode} after {time.monotonic() - started:.0f} s: {' '.join(command)}\n"
              f"{out}{errors}", flush=True)
        return None


def precision(dtype):
    return "--set", f"precision.compute={dtype}"


def check_model(arguments, evaluate):
    """Yields the arguments of Checks.compare."""
    folders = sorted(path.parent for path in arguments.golden.glob("*/expected.json"))
    if not folders:
        raise SystemExit(f"gpu_evals: no cases in {arguments.golden}")
    for folder in folders:
        expected = json.loads((folder / "expected.json").read_text())
        here = (folder, folder / "data.jsonl", expected.get("sequence_length", 4096))
        gpu = ("--device", arguments.device)
        yield f"{folder.name}, transformers", "float32", evaluate(*here, *gpu, *precision("float32")), expected
        yield (f"{folder.name}, CPU in bf16", "bf16", evaluate(*here, *gpu, *precision("bf16")),
               evaluate(*here, "--device", "cpu", *precision("bf16")))
    if arguments.model:
        here = (arguments.model, arguments.data, 1024)
        reference = evaluate(*here, "--device", "cpu", *precision("float32"))
        for dtype in DTYPES:
            yield (f"{arguments.model.name}, CPU in float32", dtype,
                   evaluate(*here, "--device", arguments.device, *precision(dtype)), reference)


def meshes(gpus):
    """(ranks, name, keys) of the meshes of 2 GPUs and of all GPUs."""
    for ranks in sorted({2, gpus} if gpus >= 2 else set()):
        yield ranks, f"shard {ranks}", {}
        yield ranks, f"replicate {ranks}", {"hybrid_shard_degree": 1}
        yield ranks, f"context {ranks}", {"context_parallel_degree": ranks}
        yield ranks, f"context {ranks}, zig-zag", {"context_parallel_degree": ranks, "context_chunks": 2}
        if ranks >= 4 and ranks % 2 == 0:
            half = ranks // 2
            yield ranks, f"context 2, shard {half}", {"context_parallel_degree": 2}
            yield ranks, f"shard 2, replicate {half}", {"hybrid_shard_degree": 2}
            yield ranks, f"context 2, replicate {half}", {"context_parallel_degree": 2, "hybrid_shard_degree": 2}


def check_mesh(arguments, evaluate):
    for name in arguments.cases:
        folder = arguments.golden / name
        expected = json.loads((folder / "expected.json").read_text())
        here = (folder, folder / "data.jsonl", expected["sequence_length"], "--device", arguments.device)
        for dtype in DTYPES:
            one = evaluate(*here, *precision(dtype))
            for ranks, mesh, keys in meshes(arguments.gpus):
                options = [word for key, value in keys.items() for word in ("--set", f"parallel.{key}={value}")]
                yield (f"{name}, {mesh}", dtype,
                       evaluate(*here, *precision(dtype), "--ranks", str(ranks), *options), one)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=("model", "mesh"))
    parser.add_argument("--hawser", required=True)
    parser.add_argument("--golden", required=True, type=pathlib.Path)
    parser.add_argument("--gpus", type=int, default=1, help="mesh: number of GPUs")
    parser.add_argument("--cases", nargs="+", default=MESH_CASES, help="mesh: cases of the golden folder")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: a dry run")
    parser.add_argument("--model", type=pathlib.Path)
    parser.add_argument("--data", type=pathlib.Path)
    parser.add_argument("--seconds-each", type=float, default=40, help="timeout of one run of hawser")
    parser.add_argument("--at-once", type=int, default=4, help="concurrent runs of hawser")
    arguments = parser.parse_args()
    if bool(arguments.model) != bool(arguments.data):
        parser.error("--model and --data must be given together")
    checks = Checks(BOUNDS[arguments.what])
    check = {"model": check_model, "mesh": check_mesh}[arguments.what]
    for one in list(check(arguments, Evals(arguments))):  # submit all runs before waiting for the first
        checks.compare(*one)
    return checks.end()


if __name__ == "__main__":
    sys.exit(main())

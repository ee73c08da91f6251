"""Compare the training step on the CPU with PyTorch's, on SmolLM2-135M's shape.

usage: cpu_step.py --hawser BIN [--threads 1 2] [--rounds 3] [--steps 2] [--tokens 1024] [--torch PYTHON]
                   [--ops BENCH_OPS] [--cpus N ...] [--variants NAME ...]

Runs Hawser (float32, bf16) and PyTorch (bench/peers/torch_step.py: its defaults; SDPA and fused AdamW; the same with
torch.compile; each in float32 and with bf16 autocast) on the same pinned cores, one after the other, in --rounds
rounds of --steps steps each. PyTorch processes are started and warmed up together on all CPUs that this process may use
(taskset bounds them), are then pinned, and wait between their turns: all together need about 30 GiB of memory.
Reports each turn as it ends, then prints a table with the median seconds per step, tokens/s, and the ratio of Hawser's
tokens/s to those of the fastest PyTorch variant of the same dtype, and then one line of JSON. --ops: also prints the
rates of the GEMMs that bench_ops measures. --cpus: the CPUs to pin to; choose different cores where a virtual machine
hides that CPUs share one. A variant that fails is printed with its error and left out.
--torch: the Python with the packages of tools/requirements-golden.txt; torch.compile also needs a C++ compiler.
"""

import argparse
import concurrent.futures
import json
import os
import re
import select
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PEERS = Path(__file__).resolve().parent / "peers"
sys.path.insert(0, str(PEERS))
from torch_step import SMOLLM2_135M  # noqa: E402

HAWSER = {"hawser": []}
TORCH = {"torch eager": [], "torch sdpa": ["--tuned"], "torch compile": ["--tuned", "--compile"]}
DTYPES = ("float32", "bf16")
START_SECONDS = 300  # limit for a process to start and compile
TURN_SECONDS = 300   # limit for one turn


def cores(count):
    """The first `count` allowed CPUs, on different physical cores if there are enough."""
    allowed = sorted(os.sched_getaffinity(0))
    first, rest, seen = [], [], set()
    for cpu in allowed:
        try:
            siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text().strip()
        except OSError:
            siblings = str(cpu)
        (rest if siblings in seen else first).append(cpu)
        seen.add(siblings)
    return (first + rest)[:count]


class Torch:
    """A PyTorch process that runs steps on request."""

    def __init__(self, python, options, threads, tokens, log):
        command = [python, str(PEERS / "torch_step.py"), "--serve", "--threads", str(threads), "--tokens", str(tokens)]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        self.log = log
        self.process = subprocess.Popen(command + options, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                                        text=True, env=environment)
        self.version = self.read(START_SECONDS)["torch"]

    def read(self, seconds):
        ready, _, _ = select.select([self.process.stdout], [], [], seconds)
        line = self.process.stdout.readline() if ready else ""
        if not line:
            self.close()
            self.log.seek(0)
            last = [text for text in self.log.read().splitlines() if text.strip()][-1:]
            raise RuntimeError("".join(last) or f"no answer in {seconds} s")
        return json.loads(line)

    def pin(self, cpus):
        for thread in os.listdir(f"/proc/{self.process.pid}/task"):
            os.sched_setaffinity(int(thread), cpus)

    def run(self, steps):
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        return self.read(TURN_SECONDS)["seconds"]

    def close(self):
        self.process.kill()
        self.process.wait()


def hawser_step(binary, config, dtype, threads, tokens, steps):
    command = [binary, "bench", "step", "--model", str(config), "--sequence-length", str(tokens), "--threads",
               str(threads), "--steps", str(steps), "--device", "cpu", "--json"]
    if dtype == "bf16":
        command += ["--set", "precision.compute=bf16"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TURN_SECONDS)
    if done.returncode != 0:
        raise RuntimeError((done.stderr.strip().splitlines() or ["failed"])[-1])
    return json.loads(done.stdout)["steps"]


def gemm_rates(binary, threads):
    """GFLOP/s of bench_ops' GEMMs, by name."""
    done = subprocess.run([binary, str(threads), "0.3", "gemm"], capture_output=True, text=True, timeout=TURN_SECONDS)
    return {name.strip(): float(rate) for name, rate in re.findall(r"^(.*?)\s+[\d.]+ ms\s+([\d.]+) GFLOP/s",
                                                                   done.stdout, re.MULTILINE)}


def measure(arguments, threads, config):
    pinned = (arguments.cpus or cores(threads))[:threads]
    if len(pinned) < threads:
        sys.exit(f"cpu_step.py: --threads {threads}: only {len(pinned)} CPUs are available")
    torch = {name: TORCH[name] for name in arguments.variants}
    seconds, errors, workers, logs, version = {}, {}, {}, [], None
    print(f"starting PyTorch, {threads} threads", file=sys.stderr, flush=True)
    with concurrent.futures.ThreadPoolExecutor(2 * len(TORCH)) as pool:
        started = {}
        for dtype in DTYPES:
            for name, options in torch.items():
                logs.append(tempfile.TemporaryFile("w+"))
                bf16 = ["--bf16"] if dtype == "bf16" else []
                started[name, dtype] = pool.submit(Torch, arguments.torch, options + bf16, threads, arguments.tokens,
                                                   logs[-1])
    for key, worker in started.items():
        try:
            workers[key] = worker.result()
            workers[key].pin(pinned)
            version = workers[key].version
        except (RuntimeError, OSError, ValueError) as error:
            errors[key] = str(error)
    os.sched_setaffinity(0, pinned)  # inherited by the hawser processes that are started below
    for number in range(arguments.rounds):
        print(f"round {number + 1} of {arguments.rounds}, {threads} threads", file=sys.stderr, flush=True)
        for dtype in DTYPES:
            for name in [*HAWSER, *torch]:
                key = (name, dtype)
                if key in errors:
                    continue
                try:
                    if name in HAWSER:
                        times = hawser_step(arguments.hawser, config, dtype, threads, arguments.tokens, arguments.steps)
                    else:
                        times = workers[key].run(arguments.steps)
                    seconds.setdefault(key, []).extend(times)
                    print(f"  {name}, {dtype}: {' '.join(f'{s:.3f}' for s in times)} s", file=sys.stderr, flush=True)
                except (RuntimeError, OSError, ValueError, subprocess.TimeoutExpired) as error:
                    errors[key] = str(error)
    for worker in workers.values():
        worker.close()
    for log in logs:
        log.close()
    results = []
    for dtype in DTYPES:
        medians = {name: statistics.median(seconds[name, dtype]) for name in [*HAWSER, *torch]
                   if (name, dtype) in seconds and (name, dtype) not in errors}
        best = min((value for name, value in medians.items() if name in torch), default=None)
        for name in [*HAWSER, *torch]:
            result = {"variant": name, "dtype": dtype, "threads": threads, "cpus": pinned}
            if name in medians:
                result.update(median_seconds=round(medians[name], 4), seconds=[round(s, 4) for s in
                              seconds[name, dtype]], tokens_per_second=round(arguments.tokens / medians[name], 1))
                if name in HAWSER and best is not None:
                    result["ratio_to_best_torch"] = round(best / medians[name], 3)
            else:
                result["error"] = errors.get((name, dtype), "not run")
            results.append(result)
    return results, version


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--hawser", required=True, help="the hawser binary")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=2, help="steps of each variant in a round")
    parser.add_argument("--tokens", type=int, default=1024, help="sequence length")
    parser.add_argument("--torch", default=sys.executable, help="Python with PyTorch and transformers")
    parser.add_argument("--cpus", type=int, nargs="+", help="CPUs to pin to; default: the first allowed ones")
    parser.add_argument("--variants", nargs="+", choices=TORCH, default=list(TORCH), metavar="NAME",
                        help="PyTorch variants to run: " + ", ".join(TORCH))
    parser.add_argument("--ops", help="the bench_ops binary")
    arguments = parser.parse_args()
    if min(arguments.rounds, arguments.steps, arguments.tokens, *arguments.threads) < 1:
        parser.error("--rounds, --steps, --tokens and --threads: at least 1")
    started, all_cpus = time.time(), os.sched_getaffinity(0)
    results, rates, version = [], {}, None
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.json"
        shape = {key: value for key, value in SMOLLM2_135M.items() if key != "rope_parameters"}
        config.write_text(json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"],
                                      "rope_theta": SMOLLM2_135M["rope_parameters"]["rope_theta"], **shape}))
        for threads in arguments.threads:
            os.sched_setaffinity(0, all_cpus)
            measured, seen = measure(arguments, threads, config)
            results, version = results + measured, version or seen
            if arguments.ops:
                rates[threads] = gemm_rates(arguments.ops, threads)
    print(f"{'threads':>7}  {'dtype':8} {'variant':14} {'s/step':>8} {'tokens/s':>9}  to the best PyTorch")
    for r in results:
        head = f"{r['threads']:>7}  {r['dtype']:8} {r['variant']:14}"
        if "error" in r:
            print(f"{head} failed: {r['error']}")
            continue
        ratio = f"{r['ratio_to_best_torch']:.2f} x" if "ratio_to_best_torch" in r else ""
        print(f"{head} {r['median_seconds']:>8.3f} {r['tokens_per_second']:>9.1f}  {ratio}".rstrip())
    for threads, by_name in rates.items():
        for name, rate in by_name.items():
            print(f"{threads:>7}  {name}: {rate} GFLOP/s")
    print(json.dumps({"tokens": arguments.tokens, "torch": version, "load_average": os.getloadavg()[0],
                      "elapsed_seconds": round(time.time() - started), "results": results, "gemm_gflops": rates}))


if __name__ == "__main__":
    main()

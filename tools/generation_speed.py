#!/usr/bin/env python3
"""Compare tokens/s of `hawser generate` and of transformers with its KV cache, in float32 on the CPU, alternately.

usage: generation_speed.py MODEL --hawser BINARY [--prompt 16] [--new 64] [--threads 2] [--rounds 3]

Greedy, one prompt of synthetic ids. Loading is excluded on both sides. Also prints the CPU time of a token, which is
more reliable on a shared machine; with one thread it includes no busy waiting. Needs torch and transformers
(tools/requirements-golden.txt).
"""

import argparse
import json
import resource
import subprocess
import time

import torch
import transformers
from transformers import AutoModelForCausalLM


def of_transformers(model, ids, new):
    """Seconds and CPU seconds of a prompt token, then of a generated token."""
    with torch.inference_mode():
        started = time.monotonic(), time.process_time()
        out = model(torch.tensor([ids]), use_cache=True, logits_to_keep=1)
        middle = time.monotonic(), time.process_time()
        for _ in range(new):
            best = out.logits[:, -1].argmax(-1, keepdim=True)
            out = model(best, past_key_values=out.past_key_values, use_cache=True)
        ended = time.monotonic(), time.process_time()
    return [(middle[i] - started[i]) / len(ids) for i in (0, 1)] + [(ended[i] - middle[i]) / new for i in (0, 1)]


def of_hawser(arguments, ids, new):
    """The same for hawser: seconds as reported, CPU seconds from the difference between runs of different length."""
    def run(count, tokens):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([arguments.hawser, "generate", "--model", arguments.model, "--json", "--max-tokens",
                               str(tokens), "--device", "cpu", "--set", f"run.threads={arguments.threads}",
                               "--prompt-ids", ",".join(map(str, ids[:count]))], capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return (json.loads(done.stdout)["tokens_per_second"],
                after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)

    base, one = run(1, 1)[1], run(len(ids), 1)[1]
    rates, all_tokens = run(len(ids), new + 1)
    return [1 / rates["prompt"], max(one - base, 0) / max(len(ids) - 1, 1), 1 / rates["answer"],
            (all_tokens - one) / new]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--hawser", required=True)
    parser.add_argument("--prompt", type=int, default=16)
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32).eval()
    ids = [3 + i * 37 % (model.config.vocab_size - 3) for i in range(arguments.prompt)]
    of_transformers(model, ids, 4)
    for _ in range(arguments.rounds):
        theirs, ours = of_transformers(model, ids, arguments.new), of_hawser(arguments, ids, arguments.new)
        for name, at in (("prompt", 0), ("answer", 2)):
            print(f"{name}: transformers {1 / theirs[at]:.1f} tokens/s ({1e3 * theirs[at + 1]:.1f} ms of CPU "
                  f"each), hawser {1 / ours[at]:.1f} ({1e3 * ours[at + 1]:.1f} ms)", flush=True)


if __name__ == "__main__":
    main()

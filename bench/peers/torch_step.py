"""Benchmark a PyTorch training step on SmolLM2-135M's shape, for comparison with Hawser's step on the CPU.

usage: torch_step.py [--tuned] [--bf16] [--threads N] [--tokens 1024] [--steps 7] [--batch 1] [--compile] [--serve]

A step is forward, backward, gradient norm clipping and AdamW, in float32, with transformers' LlamaForCausalLM and
random weights. Default: eager attention and PyTorch's default AdamW. --tuned: scaled_dot_product_attention and fused
AdamW, the fastest in PyTorch without a compiler. --compile adds torch.compile. --bf16: the forward runs under
torch.autocast with bfloat16; weights and AdamW stay float32. Prints one line of JSON; two warm-up steps are not
counted. `median_cpu_seconds` is CPU time over all threads, for machines with other load. Quote `median_seconds`, from
an idle machine (see `load_average`). --serve: after the warm-up, prints a line with the seconds of each step for each
line of standard input, which is a number of steps.
Requires tools/requirements-golden.txt.
"""

import argparse
import json
import os
import resource
import statistics
import sys
import time

SMOLLM2_135M = {
    "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
    "num_attention_heads": 9, "num_key_value_heads": 3, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True, "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0},
}
WARM_UP = 2


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tuned", action="store_true", help="sdpa attention and fused AdamW")
    parser.add_argument("--compile", action="store_true", help="torch.compile the model")
    parser.add_argument("--bf16", action="store_true", help="autocast to bfloat16")
    parser.add_argument("--serve", action="store_true", help="measure on request; see above")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--tokens", type=int, default=1024, help="sequence length")
    parser.add_argument("--batch", type=int, default=1, help="sequences per step")
    parser.add_argument("--steps", type=int, default=7, help="measured steps, at least 5")
    parser.add_argument("--layers", type=int, default=SMOLLM2_135M["num_hidden_layers"], help="fewer for a quick test")
    arguments = parser.parse_args()
    if arguments.steps < 5 and not arguments.serve:
        parser.error("--steps: at least 5, for a median worth quoting")
    # Imported here: cpu_step.py reads the model's shape without PyTorch.
    import torch
    import transformers
    from transformers import LlamaConfig, LlamaForCausalLM

    transformers.logging.set_verbosity_error()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(7)

    config = LlamaConfig(**{**SMOLLM2_135M, "num_hidden_layers": arguments.layers},
                         attn_implementation="sdpa" if arguments.tuned else "eager")
    model = LlamaForCausalLM(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, betas=(0.9, 0.95), weight_decay=0.1,
                                  fused=True if arguments.tuned else None)
    run = torch.compile(model) if arguments.compile else model
    ids = torch.randint(0, config.vocab_size, (arguments.batch, arguments.tokens))

    times, cpu_times = [], []

    def run_steps(count):
        for _ in range(count):
            started, cpu_started = time.perf_counter(), time.process_time()
            with torch.autocast("cpu", torch.bfloat16, enabled=arguments.bf16):
                loss = run(input_ids=ids, labels=ids, use_cache=False).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            value = loss.item()
            times.append(time.perf_counter() - started)
            cpu_times.append(time.process_time() - cpu_started)
            print(f"step {len(times) - 1}: {times[-1]:.3f} s, loss {value:.4f}", file=sys.stderr, flush=True)

    run_steps(WARM_UP)
    if arguments.serve:
        print(json.dumps({"ready": True, "torch": torch.__version__}), flush=True)
        for line in sys.stdin:
            run_steps(int(line))
            print(json.dumps({"seconds": times[-int(line):]}), flush=True)
        return
    run_steps(arguments.steps)
    counted = times[WARM_UP:]
    median = statistics.median(counted)
    print(json.dumps({
        "peer": "torch", "torch": torch.__version__, "transformers": transformers.__version__,
        "attention": config._attn_implementation, "optimizer": "adamw fused" if arguments.tuned else "adamw",
        "compile": arguments.compile, "parameters": sum(p.numel() for p in model.parameters()),
        "dtype": "bfloat16 autocast" if arguments.bf16 else "float32",
        "threads": arguments.threads, "batch": arguments.batch, "tokens": arguments.tokens, "steps": len(counted),
        "median_seconds": round(median, 4), "fastest_seconds": round(min(counted), 4),
        "median_cpu_seconds": round(statistics.median(cpu_times[WARM_UP:]), 4), "load_average": os.getloadavg()[0],
        "tokens_per_second": round(arguments.batch * arguments.tokens / median, 2),
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }))


if __name__ == "__main__":
    main()

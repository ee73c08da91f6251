"""Generate tests/golden/gemma3: loss, gradients and greedy text of Gemma 3 270M on 2,048 tokens of Emma.

usage: make_gemma3.py [--inputs inputs] [--output tests/golden/gemma3]

Runs transformers' Gemma3ForCausalLM on the weights of inputs/gemma3 as make_smollm2.py does for SmolLM2: in float64, for
the expected values, and in float32, for the error that rounding causes. The tokens begin with <bos>, without which this
model predicts badly, and are longer than its windows of 512 keys. tests/golden/README.md describes the format. Needs
`scripts/fetch-inputs --what text --what gemma3`; takes 4 to 25 minutes and 9 GB of memory.
"""

import argparse
import os
import resource
import time

import tokenizers
import torch
import transformers
from transformers import Gemma3ForCausalLM

import jsonfiles
import oracle
from make_smollm2 import generate, loss_and_gradients, relative_errors

TOKENS = 2048
PROMPTS = ["The capital of France is", "Once upon a time, in a small village by the sea,"]
HEAD_CHUNK = 128  # positions; their logits in float64 are 0.25 GiB


def main():
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--inputs", default=os.path.join(root, "inputs"))
    parser.add_argument("--output", default=os.path.join(root, "tests", "golden", "gemma3"))
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    folder = os.path.join(arguments.inputs, "gemma3")
    tokenizer = tokenizers.Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    with open(os.path.join(arguments.inputs, "text", "austen", "emma.txt"), encoding="utf-8", newline="") as file:
        ids = tokenizer.encode(file.read(40 * TOKENS)).ids[:TOKENS]
    os.makedirs(arguments.output, exist_ok=True)
    jsonfiles.write_lines(os.path.join(arguments.output, "tokens.jsonl"), [{"input_ids": ids}])

    started = time.monotonic()
    model = oracle.load_double(folder, attention="sdpa")
    assert ids[0] == model.config.bos_token_id and TOKENS > model.config.sliding_window
    # transformers sets the gradient of the padding token's embedding to 0; the data do not contain this token.
    assert model.config.pad_token_id not in ids
    loss = loss_and_gradients(model, ids, head_chunk=HEAD_CHUNK)
    summary = oracle.gradient_summary(model, digits=10)
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    print(f"float64: loss {loss:.9f}, {time.monotonic() - started:.0f} s", flush=True)
    model.zero_grad(set_to_none=True)
    generations = []
    for prompt in PROMPTS:
        prompt_ids = tokenizer.encode(prompt).ids
        new, margin = generate(model, prompt_ids)
        assert model.config.eos_token_id not in new
        generations.append({"prompt": prompt, "prompt_ids": prompt_ids, "ids": new, "text": tokenizer.decode(new),
                            "smallest_margin": oracle.rounded(margin, 6)})
        print(f"{prompt!r} {generations[-1]['text']!r}, smallest margin {margin:.4f}", flush=True)
    del model

    started = time.monotonic()
    model = Gemma3ForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
    plain_loss = loss_and_gradients(model, ids, head_chunk=HEAD_CHUNK)
    errors = relative_errors(model, gradients)
    assert all(generate(model, entry["prompt_ids"])[0] == entry["ids"] for entry in generations)
    print(f"float32: loss {plain_loss:.9f}, gradients off by {max(errors.values()):.1e} at most; "
          f"{time.monotonic() - started:.0f} s", flush=True)
    assert abs(plain_loss - loss) < 1e-5 * loss and max(errors.values()) < 1e-3

    jsonfiles.write_json(os.path.join(arguments.output, "expected.json"), {
        "about": f"Gemma 3 270M (Q4_K_M, de-quantised to bfloat16) on the first {TOKENS} tokens of Emma",
        "made_with": {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__},
        "sequence_length": TOKENS, "loss": loss, "tokens": TOKENS - 1, "generations": generations,
        "float32": {"loss": plain_loss, "relative_gradient_errors": errors},
        **summary,
    })
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.1f} GiB")


if __name__ == "__main__":
    main()

"""Generate tests/golden/smollm2: loss, gradients and greedy text of SmolLM2-135M-Instruct on 4,096 tokens of Emma.

usage: make_smollm2.py [--inputs inputs] [--output tests/golden/smollm2]

Runs transformers' LlamaForCausalLM on the float32 weights of inputs/smollm2 in float64, for the expected values, and in
float32, for the error that rounding causes in a correct program. The float32 model runs twice, because PyTorch's
cross-entropy is less accurate than rounding explains: on the CPU, the sum of its float32 log_softmax over 49,152
entries is too small by 8e-6, which changes gradients by up to 3e-3. The first run computes the loss of the float32
logits in float64 and measures rounding; the second uses PyTorch's float32 cross-entropy.
tests/golden/README.md describes the format. Needs `scripts/fetch-inputs`; takes 6 to 15 minutes and 8 GB of memory.
"""

import argparse
import os
import resource
import time

import tokenizers
import torch
import transformers
from transformers import LlamaForCausalLM

import jsonfiles
import oracle

TOKENS = 4096
PROMPTS = [
    "Once upon a time",
    "The first ten prime numbers are",
    "<|im_start|>user\nList five facts about ropes.<|im_end|>\n<|im_start|>assistant\n",
]
NEW_TOKENS = 32
HEAD_CHUNK = 512


def loss_and_gradients(model, ids, accurate_loss=True, head_chunk=HEAD_CHUNK):
    """Mean loss of predicting each next token; accumulates gradients in the parameters.

    With `accurate_loss`, logits are converted to float64 before the cross-entropy, for any dtype of the model. To save
    memory, computes the head and the loss in chunks and recomputes the layers in the backward pass; the sums are the
    same."""
    model.zero_grad(set_to_none=True)
    model.train()  # the model has no dropout; transformers recomputes layers only in this mode
    model.activation_checkpointing_enable()
    with oracle.precision_of(model):
        hidden = model.model(torch.tensor([ids]), use_cache=False).last_hidden_state[0]
        leaf = hidden.detach().requires_grad_()
        targets = torch.tensor(ids[1:])
        total = 0.0
        for start in range(0, len(targets), head_chunk):
            piece = targets[start:start + head_chunk]
            logits = model.lm_head(leaf[start:start + len(piece)])
            logits = logits.double() if accurate_loss else logits
            loss = torch.nn.functional.cross_entropy(logits, piece, reduction="sum")
            (loss / len(targets)).backward()
            total += loss.item()
        hidden.backward(leaf.grad)
    model.activation_checkpointing_disable()
    model.eval()
    return total / len(targets)


def relative_errors(model, gradients):
    """Norm of the difference between each parameter's gradient and `gradients`, relative to the norm of the latter."""
    return {name: oracle.rounded(((parameter.grad.double() - gradients[name]).norm() / gradients[name].norm()).item(), 4)
            for name, parameter in model.named_parameters()}


def generate(model, ids):
    """NEW_TOKENS greedy tokens, and the smallest margin of the top logit over the second."""
    ids, margin, start = list(ids), float("inf"), len(ids)
    with torch.no_grad(), oracle.precision_of(model):
        for _ in range(NEW_TOKENS):
            best = model(torch.tensor([ids]), use_cache=False, logits_to_keep=1).logits[0, -1].topk(2)
            margin = min(margin, (best.values[0] - best.values[1]).item())
            ids.append(int(best.indices[0]))
    return ids[start:], margin


def main():
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--inputs", default=os.path.join(root, "inputs"))
    parser.add_argument("--output", default=os.path.join(root, "tests", "golden", "smollm2"))
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    folder = os.path.join(arguments.inputs, "smollm2")
    tokenizer = tokenizers.Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    with open(os.path.join(arguments.inputs, "text", "austen", "emma.txt"), encoding="utf-8", newline="") as file:
        ids = tokenizer.encode(file.read(40 * TOKENS), add_special_tokens=False).ids[:TOKENS]
    os.makedirs(arguments.output, exist_ok=True)
    jsonfiles.write_lines(os.path.join(arguments.output, "tokens.jsonl"), [{"input_ids": ids}])

    started = time.monotonic()
    model = oracle.load_double(folder, attention="sdpa")
    # transformers sets the gradient of the padding token's embedding to 0; the data do not contain this token.
    assert model.config.pad_token_id not in ids
    loss = loss_and_gradients(model, ids)
    summary = oracle.gradient_summary(model, digits=10)
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    print(f"float64: loss {loss:.9f}, {time.monotonic() - started:.0f} s", flush=True)
    model.zero_grad(set_to_none=True)
    generations = []
    for prompt in PROMPTS:
        prompt_ids = tokenizer.encode(prompt, add_special_tokens=False).ids
        new, margin = generate(model, prompt_ids)
        assert model.config.eos_token_id not in new
        generations.append({"prompt": prompt, "prompt_ids": prompt_ids, "ids": new, "text": tokenizer.decode(new),
                            "smallest_margin": oracle.rounded(margin, 6)})
        print(f"{prompt!r} {generations[-1]['text']!r}, smallest margin {margin:.4f}", flush=True)
    del model

    started = time.monotonic()
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
    plain_loss = loss_and_gradients(model, ids)
    errors = relative_errors(model, gradients)
    torch_loss = loss_and_gradients(model, ids, accurate_loss=False)
    torch_errors = relative_errors(model, gradients)
    assert all(generate(model, entry["prompt_ids"])[0] == entry["ids"] for entry in generations)
    print(f"float32: loss {plain_loss:.9f}, gradients off by {max(errors.values()):.1e} at most; with PyTorch's "
          f"cross-entropy: {torch_loss:.9f}, {max(torch_errors.values()):.1e}; {time.monotonic() - started:.0f} s",
          flush=True)
    assert abs(plain_loss - loss) < 1e-5 * loss and max(errors.values()) < 1e-3

    jsonfiles.write_json(os.path.join(arguments.output, "expected.json"), {
        "about": f"SmolLM2-135M-Instruct (Q4_1, de-quantised) on the first {TOKENS} tokens of Emma",
        "made_with": {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__},
        "sequence_length": TOKENS, "loss": loss, "tokens": TOKENS - 1, "generations": generations,
        "float32": {"loss": plain_loss, "relative_gradient_errors": errors},
        "float32_torch_cross_entropy": {"loss": torch_loss,
                                        "largest_relative_gradient_error": max(torch_errors.values())},
        **summary,
    })
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.1f} GiB")


if __name__ == "__main__":
    main()

"""Load an adapter that Hawser exported with PEFT, and compare what it computes with Hawser's figures.

usage: check_adapter_export.py BASE ADAPTER TOKENS [--sequence-length N] [--eval FILE] [--other FOLDER]

BASE is the model's folder, ADAPTER a folder with adapter_config.json and adapter_model.safetensors, TOKENS a JSONL file
with input_ids, as `hawser eval --data` reads it. PEFT computes in float64. Prints

- its loss, and with --eval the relative differences of loss and gradient norms from FILE, which is the output of
  `hawser eval --model BASE --adapter ADAPTER --data TOKENS --sequence-length N --gradient-norms --json`, or the same
  without gradient norms for a merged export;
- with --other the largest difference of a log-probability, over all tokens, from another adapter of BASE (the one that
  training started from) or from a model's folder (a merged export).

The exit status is 1 if a difference is larger than the limits: 1e-5 of the loss, 1e-4 of a gradient norm and --max.
Needs the packages of tools/requirements-golden.txt.
"""

import argparse
import json
import os
import sys

import torch
import transformers

import jsonfiles
import make_adapters
import make_families
import oracle

LOSS_LIMIT, GRADIENT_LIMIT = 1e-5, 1e-4


def load_other(base, folder):
    """An adapter of the base model, or a model."""
    if os.path.exists(os.path.join(folder, "adapter_config.json")):
        return make_adapters.load_double(base, folder)
    return oracle.load_double(folder)


def log_probabilities_differ(model, other, lines):
    """The largest difference of a log-probability of two models."""
    largest = 0.0
    for line in lines:
        ours, theirs = (oracle.line_logits(of, line).log_softmax(-1) for of in (model, other))
        largest = max(largest, (ours - theirs).abs().max().item())
    return largest


def compare_figures(model, losses, loss, router, figures):
    """Prints the differences from the output of `hawser eval`; returns whether they are small."""
    assert figures["tokens"] == losses.count, (figures["tokens"], losses.count)
    difference = abs(figures["loss"] / loss.item() - 1)
    print(f"hawser's loss {figures['loss']:.9f}: relative difference {difference:.1e}")
    good = difference <= LOSS_LIMIT
    if router is not None:
        difference = abs(figures["router_loss"] / (losses.coefficient * router.item()) - 1)
        print(f"hawser's loss of routers: relative difference {difference:.1e}")
        good = good and difference <= LOSS_LIMIT
    if "gradient_norms" not in figures:
        return good
    loss.backward()
    gradients = make_adapters.file_tensors(
        model, {key: p.grad for key, p in model.named_parameters() if p.requires_grad})
    names, own = set(figures["gradient_norms"]), set(gradients)
    if names != own:
        print(f"gradients of other tensors: only hawser's {sorted(names - own)[:3]}, "
              f"only PEFT's {sorted(own - names)[:3]}")
        return False
    worst, name = max((abs(figures["gradient_norms"][name] / gradient.norm().item() - 1), name)
                      for name, gradient in gradients.items())
    print(f"{len(gradients)} gradient norms: largest relative difference {worst:.1e}, of {name}")
    return good and worst <= GRADIENT_LIMIT


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("base", metavar="BASE")
    parser.add_argument("adapter", metavar="ADAPTER")
    parser.add_argument("tokens", metavar="TOKENS")
    parser.add_argument("--sequence-length", type=int, metavar="N", help="cut longer lines, as `hawser eval` does")
    parser.add_argument("--eval", metavar="FILE", help="output of `hawser eval --json`")
    parser.add_argument("--other", metavar="FOLDER", help="an adapter or a model to compare log-probabilities with")
    parser.add_argument("--max", type=float, default=1e-4, help="limit of --other (default: 1e-4)")
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    lines = jsonfiles.read_lines(arguments.tokens)
    if arguments.sequence_length:
        lines = oracle.cut(lines, arguments.sequence_length)
    model = make_adapters.load_double(arguments.base, arguments.adapter)
    losses = make_families.Losses(model, lines)
    with torch.set_grad_enabled(arguments.eval is not None):
        loss, _, router = losses()
    print(f"PEFT's loss {loss.item():.9f} over {losses.count} tokens")
    good = True
    if arguments.eval:
        with open(arguments.eval, encoding="utf-8") as file:
            good = compare_figures(model, losses, loss, router, json.load(file))
    if arguments.other:
        difference = log_probabilities_differ(model, load_other(arguments.base, arguments.other), lines)
        print(f"log-probabilities of {arguments.other}: largest difference {difference:.1e}")
        good = good and difference <= arguments.max
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()

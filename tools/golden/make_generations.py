"""Make tests/golden/generations.json: what transformers' generate gives for the tiny models, and its filters.

usage: make_generations.py [--golden tests/golden]

For each model of tests/golden/tiny, greedy tokens behind prompts of several lengths: from `generate` with its cache in
float32, of each prompt alone and of all together, padded on the left; they agree with each other and with forward
passes over everything in float64, where the smallest lead of a winning logit over the second is taken. For
temperature, top-k and top-p, the probabilities that transformers' processors leave of synthetic logits, in its order.
tests/golden/README.md tells the format. Takes half a minute.
"""

import argparse
import os

import torch
import transformers
from transformers import LlamaForCausalLM
from transformers.generation import logits_process

import jsonfiles
import oracle

LENGTHS = [1, 7, 33]
NEW_TOKENS = 24
FILTERS = [
    {"temperature": 0.7},
    {"temperature": 1.0, "top_k": 5},
    {"temperature": 1.0, "top_p": 0.8},
    {"temperature": 0.5, "top_k": 12, "top_p": 0.9},
    {"temperature": 2.0, "top_k": 3, "top_p": 0.5},
    {"temperature": 1.5, "top_k": 40, "top_p": 0.05},
    {"temperature": 0.1, "top_p": 0.999},
]


def exact(model, ids):
    """NEW_TOKENS greedy tokens without a cache, and the smallest lead of a winner over the second."""
    ids, start, margin = list(ids), len(ids), float("inf")
    with torch.no_grad(), oracle.precision_of(model):
        for _ in range(NEW_TOKENS):
            best = model(torch.tensor([ids]), use_cache=False).logits[0, -1].topk(2)
            margin = min(margin, (best.values[0] - best.values[1]).item())
            ids.append(int(best.indices[0]))
    return ids[start:], margin


def generate(model, prompts):
    """The same by transformers' generate with its cache, of all prompts as one batch."""
    longest = max(len(ids) for ids in prompts)
    padded = torch.tensor([[0] * (longest - len(ids)) + ids for ids in prompts])
    mask = torch.tensor([[0] * (longest - len(ids)) + [1] * len(ids) for ids in prompts])
    model.generation_config.eos_token_id = None
    out = model.generate(padded, attention_mask=mask, max_new_tokens=NEW_TOKENS, do_sample=False, use_cache=True,
                         pad_token_id=0)
    return out[:, longest:].tolist()


def of_model(folder, random):
    """Prompts whose every winner leads by so much that float32 finds it too."""
    model, double = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32), oracle.load_double(folder)
    model.eval()
    entries = []
    for length in LENGTHS:
        while True:
            prompt = torch.randint(3, model.config.vocab_size, (length,), generator=random).tolist()
            ids, margin = exact(double, prompt)
            if margin > 1e-4:
                break
        assert generate(model, [prompt]) == [ids], folder
        entries.append({"prompt_ids": prompt, "ids": ids, "smallest_margin": oracle.rounded(margin, 4)})
    assert generate(model, [entry["prompt_ids"] for entry in entries]) == [entry["ids"] for entry in entries], folder
    return entries


def of_filters(random):
    """Probabilities behind temperature, top-k and top-p; logits are exact in float32, two of them equal."""
    logits = (torch.randn(40, generator=random) * 3 * 64).round() / 64
    logits[7] = logits[31]
    entries = []
    for settings in FILTERS:
        chain = transformers.LogitsProcessorList([logits_process.TemperatureLogitsWarper(settings["temperature"])])
        if "top_k" in settings:
            chain.append(logits_process.TopKLogitsWarper(settings["top_k"]))
        if "top_p" in settings:
            chain.append(logits_process.TopPLogitsWarper(settings["top_p"]))
        scores = chain(torch.zeros(1, 1, dtype=torch.long), logits[None].double())
        entries.append({**settings, "probabilities": [oracle.rounded(p, 8) for p in scores[0].softmax(-1).tolist()]})
    return {"logits": logits.tolist(), "cases": entries}


def main():
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--golden", default=os.path.join(root, "tests", "golden"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    random = torch.Generator().manual_seed(11)
    tiny = os.path.join(arguments.golden, "tiny")
    jsonfiles.write_json(os.path.join(arguments.golden, "generations.json"), {
        "made_with": {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__},
        "new_tokens": NEW_TOKENS,
        "filters": of_filters(random),
        "tiny": {name: of_model(os.path.join(tiny, name), random) for name in sorted(os.listdir(tiny))},
    })


if __name__ == "__main__":
    main()

"""Generate tests/golden/generations.json: text of the tiny models by transformers' generate, and its sampling filters.

usage: make_generations.py [--golden tests/golden]

For each model of tests/golden/tiny: greedy tokens after prompts of several lengths, by `generate` with the KV cache in
float32, for each prompt alone and for all as one batch with left padding. The script checks that both agree with full
float64 forward passes without a cache, from which it records the smallest margin of the top logit over the second. For
temperature, top-k and top-p: the probabilities after transformers' processors, in its order, for synthetic logits.
tests/golden/README.md describes the format. Takes half a minute.
"""

import os

import torch
import transformers
from transformers import LlamaForCausalLM
from transformers.generation import logits_process

import command
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


def generate(model, prompts):
    """NEW_TOKENS greedy tokens by transformers' generate with the KV cache, for all prompts as one batch."""
    longest = max(len(ids) for ids in prompts)
    padded = torch.tensor([[0] * (longest - len(ids)) + ids for ids in prompts])
    mask = torch.tensor([[0] * (longest - len(ids)) + [1] * len(ids) for ids in prompts])
    model.generation_config.eos_token_id = None
    out = model.generate(padded, attention_mask=mask, max_new_tokens=NEW_TOKENS, do_sample=False, use_cache=True,
                         pad_token_id=0)
    return out[:, longest:].tolist()


def of_model(folder, random):
    """Entries for prompts whose margins are large enough that float32 chooses the same tokens."""
    model, double = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32), oracle.load_double(folder)
    model.eval()
    entries = []
    for length in LENGTHS:
        while True:
            prompt = torch.randint(3, model.config.vocab_size, (length,), generator=random).tolist()
            ids, margin = oracle.greedy(double, prompt, NEW_TOKENS)
            if margin > 1e-4:
                break
        assert generate(model, [prompt]) == [ids], folder
        entries.append({"prompt_ids": prompt, "ids": ids, "smallest_margin": oracle.rounded(margin, 4)})
    assert generate(model, [entry["prompt_ids"] for entry in entries]) == [entry["ids"] for entry in entries], folder
    return entries


def of_filters(random):
    """Probabilities after temperature, top-k and top-p; the logits are exact in float32, and two are equal."""
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
    parser = command.parser_of(__doc__)
    parser.add_argument("--golden", default=command.golden())
    arguments = parser.parse_args()
    command.prepare()
    random = torch.Generator().manual_seed(11)
    tiny = os.path.join(arguments.golden, "tiny")
    jsonfiles.write_json(os.path.join(arguments.golden, "generations.json"), {
        "made_with": command.made_with(),
        "new_tokens": NEW_TOKENS,
        "filters": of_filters(random),
        "tiny": {name: of_model(os.path.join(tiny, name), random) for name in sorted(os.listdir(tiny))},
    })


if __name__ == "__main__":
    main()

"""Generate tests/golden/gemma3: loss, gradients and greedy text of Gemma 3 270M on 2,048 tokens of Emma.

usage: make_gemma3.py [--inputs inputs] [--output tests/golden/gemma3]

Runs transformers' Gemma3ForCausalLM on the weights of inputs/gemma3 as make_smollm2.py does for SmolLM2: in float64, for
the expected values, and in float32, for the error that rounding causes. The tokens begin with <bos>, without which this
model predicts badly, and are longer than its windows of 512 keys. tests/golden/README.md describes the format. Needs
`scripts/fetch-inputs --what text --what gemma3`; takes 4 to 25 minutes and 9 GB of memory.
"""

from transformers import Gemma3ForCausalLM

import real_model

TOKENS = 2048
PROMPTS = ["The capital of France is", "Once upon a time, in a small village by the sea,"]
HEAD_CHUNK = 128  # positions; their logits in float64 are 0.25 GiB


def check(config, ids):
    assert ids[0] == config.bos_token_id and TOKENS > config.sliding_window


def main():
    real = real_model.RealModel(__doc__, "gemma3", TOKENS, HEAD_CHUNK)
    real.compute(PROMPTS, check)
    _, values = real.compare(Gemma3ForCausalLM)
    real.write("Gemma 3 270M (Q4_K_M, de-quantised to bfloat16)", {"float32": values})


if __name__ == "__main__":
    main()

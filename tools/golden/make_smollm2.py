"""Generate tests/golden/smollm2: loss, gradients and greedy text of SmolLM2-135M-Instruct on 4,096 tokens of Emma.

usage: make_smollm2.py [--inputs inputs] [--output tests/golden/smollm2]

Runs transformers' LlamaForCausalLM on the float32 weights of inputs/smollm2 in float64, for the expected values, and in
float32, for the error that rounding causes in a correct program. The float32 model runs twice, because PyTorch's
cross-entropy is less accurate than rounding explains: on the CPU, the sum of its float32 log_softmax over 49,152
entries is too small by 8e-6, which changes gradients by up to 3e-3. The first run computes the loss of the float32
logits in float64 and measures rounding; the second uses PyTorch's float32 cross-entropy.
tests/golden/README.md describes the format. Needs `scripts/fetch-inputs`; takes 6 to 15 minutes and 8 GB of memory.
"""

from transformers import LlamaForCausalLM

import real_model

TOKENS = 4096
PROMPTS = [
    "Once upon a time",
    "The first ten prime numbers are",
    "<|im_start|>user\nList five facts about ropes.<|im_end|>\n<|im_start|>assistant\n",
]
HEAD_CHUNK = 512


def main():
    real = real_model.RealModel(__doc__, "smollm2", TOKENS, HEAD_CHUNK, add_special_tokens=False)
    real.compute(PROMPTS)
    model, values = real.compare(LlamaForCausalLM)
    torch_loss = real.loss_and_gradients(model, accurate_loss=False)
    torch_error = max(real_model.relative_errors(model, real.gradients).values())
    print(f"with PyTorch's cross-entropy: {torch_loss:.9f}, {torch_error:.1e}", flush=True)
    real.write("SmolLM2-135M-Instruct (Q4_1, de-quantised)", {
        "float32": values,
        "float32_torch_cross_entropy": {"loss": torch_loss, "largest_relative_gradient_error": torch_error}})


if __name__ == "__main__":
    main()

"""Generate tests/golden/families_fp8: models whose sizes are multiples of 16, as FP8 needs them on a GPU.

usage: make_fp8_families.py [--output tests/golden/families_fp8] [CASE ...]

What make_families.py computes, for other sizes.
"""

import command
import make_families

SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2,
         "head_dim": 16}
CASES = {
    "mistral": {
        "about": "all sizes of weights are multiples of 16, as FP8 needs them on a GPU", "style": 5,
        "config": {**SIZES, "model_type": "mistral", "sliding_window": 7, "rope_theta": 500.0},
        "other": {"window": {"sliding_window": 8}}, "documents": [[19, 1, 8], [30]]},
    "qwen3": {
        "about": "the same sizes; norms of queries and keys", "style": 5,
        "config": {**SIZES, "model_type": "qwen3", "rms_norm_eps": 1e-05},
        "other": {"epsilon": {"rms_norm_eps": 1e-1}}, "documents": [[22, 9], [1, 27]]},
    "mixtral": {
        "about": "the same sizes; 2 of 4 experts and the load-balancing loss", "style": 5,
        "config": {**SIZES, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2,
                   "output_router_logits": True, "router_aux_loss_coef": 0.05, "rope_theta": 1000000.0,
                   "rms_norm_eps": 1e-05, "router_jitter_noise": 0.0},
        "other": {"top_k": {"num_experts_per_tok": 3}}, "documents": [[29, 1, 16]]},
}


def make(name, folder):
    # Its generator is seeded by the number of the case among all.
    key = f"{name}, FP8"
    return make_families.make(key, folder)


def main():
    make_families.CASES.update({f"{name}, FP8": case for name, case in CASES.items()})
    command.make_cases(__doc__, "families_fp8", CASES, make)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Print the table of docs/adapters.md: the largest model whose training fits on one GPU, in full and with LoRA.

usage: tools/largest_models.py [--hawser build/cpu/hawser]

Plans (hawser plan, target h200, bf16, one sequence per step, memory.activation_checkpointing: full) the shapes below for
each memory and length. The shapes are those of the config.json on the Hugging Face Hub.
"""

import argparse
import json
import pathlib
import subprocess
import tempfile

# name: model_type, width, MLP width, blocks, heads, key heads, vocabulary, tied embedding
SHAPES = {
    "SmolLM2-360M": ("llama", 960, 2560, 32, 15, 5, 49152, True),
    "Qwen2.5-0.5B": ("qwen2", 896, 4864, 24, 14, 2, 151936, True),
    "Llama-3.2-1B": ("llama", 2048, 8192, 16, 32, 8, 128256, True),
    "Qwen2.5-1.5B": ("qwen2", 1536, 8960, 28, 12, 2, 151936, True),
    "Qwen2.5-3B": ("qwen2", 2048, 11008, 36, 16, 2, 151936, True),
    "Llama-3.2-3B": ("llama", 3072, 8192, 28, 24, 8, 128256, True),
    "Mistral-7B": ("mistral", 4096, 14336, 32, 32, 8, 32768, False),
    "Qwen2.5-7B": ("qwen2", 3584, 18944, 28, 28, 4, 152064, False),
    "Llama-3.1-8B": ("llama", 4096, 14336, 32, 32, 8, 128256, False),
    "Qwen2.5-14B": ("qwen2", 5120, 13824, 48, 40, 8, 152064, False),
    "Qwen2.5-32B": ("qwen2", 5120, 27648, 64, 40, 8, 152064, False),
    "Llama-3.1-70B": ("llama", 8192, 28672, 80, 64, 8, 128256, False),
}
MEMORY = (24, 40, 80, 141)  # GB
LENGTHS = (8192, 32768)


def config_of(shape):
    kind, width, inner, blocks, heads, key_heads, vocabulary, tied = shape
    config = {"model_type": kind, "hidden_size": width, "intermediate_size": inner, "num_hidden_layers": blocks,
              "num_attention_heads": heads, "num_key_value_heads": key_heads, "vocab_size": vocabulary,
              "tie_word_embeddings": tied, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
              "rope_theta": 500000.0, "hidden_act": "silu"}
    return config | ({"sliding_window": None} if kind == "mistral" else {})


def needed_bytes(hawser, folder, shape, length, lora):
    """What a rank needs, with memory.activation_checkpointing: full."""
    (folder / "config.json").write_text(json.dumps(config_of(shape)))
    recipe = {"model": {"path": "."}, "data": {"train": ["none.jsonl"], "sequence_length": length},
              "train": {"steps": 1, "global_batch_size": 1}, "run": {"ranks": 1},
              "memory": {"activation_checkpointing": "full", "capacity": "10TB"}, "output": "out"}
    if lora:
        recipe["adapter"] = {"kind": "lora", "rank": 16}
    (folder / "recipe.yaml").write_text(json.dumps(recipe))
    ran = subprocess.run([hawser, "plan", str(folder / "recipe.yaml"), "--target", "h200", "--json"],
                         capture_output=True, text=True, check=True)
    return max(ranks["needed"] for ranks in json.loads(ran.stdout)["memory"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--hawser", default="build/cpu/hawser")
    hawser = str(pathlib.Path(parser.parse_args().hawser).resolve())
    with tempfile.TemporaryDirectory() as name:
        needs = {(shape, length, lora): needed_bytes(hawser, pathlib.Path(name), SHAPES[shape], length, lora)
                 for shape in SHAPES for length in LENGTHS for lora in (False, True)}
    print("| tokens | | " + " | ".join(f"{memory} GB" for memory in MEMORY) + " |")
    print("| --- " * (2 + len(MEMORY)) + "|")
    for length in LENGTHS:
        for lora in (False, True):
            row = []
            for memory in MEMORY:
                fits = [shape for shape in SHAPES if needs[shape, length, lora] <= memory * 1e9]
                row.append(f"{fits[-1]} ({needs[fits[-1], length, lora] / 1e9:.1f} GB)" if fits else "none")
            print(f"| {length:,} | {'LoRA' if lora else 'all weights'} | " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Print the table of docs/adapters.md: the largest model whose training fits on one GPU, in full, with LoRA and QLoRA.

usage: tools/largest_models.py [--hawser build/cpu/hawser]

Plans (hawser plan, target h200, bf16, one sequence per step, memory.activation_checkpointing: full) the shapes below for
each memory and length; also with activations, optimizer state and, if they train, weights in at most 128 GiB of host
memory. The shapes are those of the config.json on the Hugging Face Hub.
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
    "Llama-3.1-405B": ("llama", 16384, 53248, 126, 128, 8, 128256, False),
}
MEMORY = (16, 24, 40, 80, 141)  # GB
LENGTHS = (8192, 32768)
HOST = 128 << 30
ADAPTERS = {"all weights": None, "LoRA": "lora", "QLoRA": "qlora"}


def config_of(shape):
    kind, width, inner, blocks, heads, key_heads, vocabulary, tied = shape
    config = {"model_type": kind, "hidden_size": width, "intermediate_size": inner, "num_hidden_layers": blocks,
              "num_attention_heads": heads, "num_key_value_heads": key_heads, "vocab_size": vocabulary,
              "tie_word_embeddings": tied, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
              "rope_theta": 500000.0, "hidden_act": "silu"}
    return config | ({"sliding_window": None} if kind == "mistral" else {})


def needed_bytes(hawser, folder, shape, length, adapter, offload):
    """What a rank needs; infinite if that is more host memory than there is."""
    (folder / "config.json").write_text(json.dumps(config_of(shape)))
    memory = {"activation_checkpointing": "full", "capacity": "10TB"}
    if offload:
        memory |= {"activation_checkpointing": "block", "activation_offload": True, "mlp_tile_rows": 4096}
        memory |= {"optimizer_offload": True, "weight_offload": True} if adapter is None else {}
    recipe = {"model": {"path": "."}, "data": {"train": ["none.jsonl"], "sequence_length": length},
              "train": {"steps": 1, "global_batch_size": 1}, "run": {"ranks": 1}, "memory": memory, "output": "out"}
    if adapter:
        recipe["adapter"] = {"kind": adapter, "rank": 16}
    (folder / "recipe.yaml").write_text(json.dumps(recipe))
    ran = subprocess.run([hawser, "plan", str(folder / "recipe.yaml"), "--target", "h200", "--host-memory", "10TB",
                          "--json"], capture_output=True, text=True, check=True)
    memory = json.loads(ran.stdout)["memory"]
    pinned = max(ranks["pinned"] for ranks in memory)
    return max(ranks["needed"] for ranks in memory) if pinned <= HOST else float("inf")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--hawser", default="build/cpu/hawser")
    hawser = str(pathlib.Path(parser.parse_args().hawser).resolve())
    print("| tokens | | " + " | ".join(f"{memory} GB" for memory in MEMORY) + " |")
    print("| --- " * (2 + len(MEMORY)) + "|")
    for length in LENGTHS:
        for name, adapter in ADAPTERS.items():
            for offload in (False, True):
                with tempfile.TemporaryDirectory() as folder:
                    needs = {shape: needed_bytes(hawser, pathlib.Path(folder), SHAPES[shape], length, adapter, offload)
                             for shape in SHAPES}
                row = []
                for memory in MEMORY:
                    fits = [shape for shape in SHAPES if needs[shape] <= memory * 1e9]
                    row.append(f"{fits[-1]} ({needs[fits[-1]] / 1e9:.1f} GB)" if fits else "none")
                print(f"| {length:,} | {name}{', host memory' if offload else ''} | " + " | ".join(row) + " |",
                      flush=True)


if __name__ == "__main__":
    main()

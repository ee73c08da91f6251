"""Convert a GGUF file of a Llama-like model to a Hugging Face folder with float32 weights and a tokenizer.json.

usage: gguf_to_hf.py MODEL.gguf FOLDER

Weights are dequantized. The rows of the query and key projections, which GGUF permutes for its rotary embedding, are
restored to the original order. The tokenizer is rebuilt from the file's tokens and merges. Supports only
SmolLM2 (general.architecture `llama`, tokenizer.ggml.pre `smollm`).
"""

import json
import os
import sys

import gguf
import numpy as np
import safetensors.numpy

LAYER_NAMES = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}
NORMAL, CONTROL = 1, 3  # token types


def hugging_face_name(name):
    """The Hugging Face name of a GGUF tensor."""
    outside = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight",
               "output.weight": "lm_head.weight"}
    if name in outside:
        return outside[name]
    block, layer, part, kind = name.split(".")
    assert block == "blk" and kind == "weight", name
    return f"model.layers.{layer}.{LAYER_NAMES[part]}.weight"


def restore_rows(weights, heads):
    """Undoes GGUF's permutation of a projection's rows, which interleaves the two halves of each head."""
    rows, columns = weights.shape
    return weights.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def tokenizer_json(tokens, types, merges):
    """tokenizer.json of a byte-level BPE that splits digits individually."""
    special = [{"id": index, "content": token, "single_word": False, "lstrip": False, "rstrip": False,
                "normalized": False, "special": True}
               for index, (token, kind) in enumerate(zip(tokens, types)) if kind == CONTROL]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "normalizer": None,
        "pre_tokenizer": {"type": "Sequence",
                          "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level]},
        "post_processor": None, "decoder": byte_level | {"add_prefix_space": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {token: index for index, token in enumerate(tokens)},
                  "merges": [merge.split(" ") for merge in merges]},
    }


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    reader, folder = gguf.GGUFReader(sys.argv[1]), sys.argv[2]

    def field(key):
        return reader.fields[key].contents()

    assert (field("general.architecture"), field("tokenizer.ggml.pre")) == ("llama", "smollm")
    os.makedirs(folder, exist_ok=True)

    def write(name, value):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            json.dump(value, file, ensure_ascii=False, indent=1)
            file.write("\n")

    heads, key_heads = field("llama.attention.head_count"), field("llama.attention.head_count_kv")
    weights = {}
    for tensor in reader.tensors:
        value = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        assert list(value.shape) == [int(size) for size in reversed(tensor.shape)], tensor.name
        if tensor.name.endswith(("attn_q.weight", "attn_k.weight")):
            value = restore_rows(value, heads if ".attn_q." in tensor.name else key_heads)
        weights[hugging_face_name(tensor.name)] = np.ascontiguousarray(value)
    path = os.path.join(folder, "model.safetensors")
    safetensors.numpy.save_file(weights, path, metadata={"format": "pt"})
    os.chmod(path, 0o644)

    bos, eos, pad = (field(f"tokenizer.ggml.{kind}_token_id") for kind in ("bos", "eos", "padding"))
    hidden = field("llama.embedding_length")
    assert field("llama.rope.dimension_count") == hidden // heads
    write("config.json", {
        "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "bos_token_id": bos, "eos_token_id": eos, "pad_token_id": pad, "hidden_act": "silu", "hidden_size": hidden,
        "initializer_range": 0.041666666666666664, "intermediate_size": field("llama.feed_forward_length"),
        "max_position_embeddings": field("llama.context_length"), "mlp_bias": False, "model_type": "llama",
        "num_attention_heads": heads, "num_hidden_layers": field("llama.block_count"),
        "num_key_value_heads": key_heads, "pretraining_tp": 1,
        "rms_norm_eps": float(np.format_float_positional(
            np.float32(field("llama.attention.layer_norm_rms_epsilon")), unique=True)),
        "rope_interleaved": False, "rope_scaling": None, "rope_theta": field("llama.rope.freq_base"),
        "tie_word_embeddings": "lm_head.weight" not in weights, "torch_dtype": "float32", "use_cache": True,
        "vocab_size": field("llama.vocab_size"),
    })
    write("generation_config.json", {"bos_token_id": bos, "eos_token_id": eos, "pad_token_id": pad})

    tokens, types = field("tokenizer.ggml.tokens"), field("tokenizer.ggml.token_type")
    assert set(types) == {NORMAL, CONTROL} and len(set(tokens)) == len(tokens)
    write("tokenizer.json", tokenizer_json(tokens, types, field("tokenizer.ggml.merges")))
    write("tokenizer_config.json", {
        "tokenizer_class": "GPT2Tokenizer", "add_prefix_space": False, "clean_up_tokenization_spaces": False,
        "bos_token": tokens[bos], "eos_token": tokens[eos], "pad_token": tokens[pad],
        "unk_token": tokens[field("tokenizer.ggml.unknown_token_id")],
        "model_max_length": field("llama.context_length"), "chat_template": field("tokenizer.chat_template"),
    })


if __name__ == "__main__":
    main()

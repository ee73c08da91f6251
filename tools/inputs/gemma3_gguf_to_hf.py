"""Convert the GGUF file of Gemma 3 270M to a Hugging Face folder with bfloat16 weights and a tokenizer.json.

usage: gemma3_gguf_to_hf.py MODEL.gguf FOLDER

Weights are dequantized and stored as bfloat16, the dtype of the original. GGUF stores the factors 1 + w of Gemma's norms,
rounded to float32; the folder has w. The file keeps the order of the rows of the query and key projections, as for all
models but Llama's, and omits what llama.cpp knows about the family: which layers have a window, and their RoPE.

The tokenizer is rebuilt from the tokens, which are in the order of their merges: a merge is any pair of tokens that
together are a token, and its rank is that token's id. That is how `tokenizers` represents a BPE of SentencePiece.
"""

import json
import os
import sys

import gguf
import numpy as np
import safetensors

LAYER_NAMES = {
    "attn_norm": "input_layernorm", "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm", "post_ffw_norm": "post_feedforward_layernorm",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}
NORMAL, CONTROL, USER_DEFINED, BYTE = 1, 3, 4, 6  # token types
SPACE = "\u2581"
FULL_ATTENTION_EVERY, LOCAL_THETA = 6, 10000.0  # of the published model; not in the file


def hugging_face_name(name):
    """The Hugging Face name of a GGUF tensor."""
    outside = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
    if name in outside:
        return outside[name]
    block, layer, part, kind = name.split(".")
    assert block == "blk" and kind == "weight", name
    return f"model.layers.{layer}.{LAYER_NAMES[part]}.weight"


def to_bfloat16(values):
    """The bits of the nearest bfloat16 values, ties to even, as uint16."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) >> 16).astype(np.uint16)


def norm_bits(factors):
    """The bfloat16 bits of w, for the factors 1 + w; checks that these w give exactly these factors."""
    bits = to_bfloat16(factors - np.float32(1))
    restored = (bits.astype(np.uint32) << 16).view(np.float32) + np.float32(1)
    assert np.array_equal(restored, factors)
    return bits


def merges_of(vocabulary):
    """All pairs of tokens whose concatenation is a token, by the id of that token, shorter left parts first."""
    return [[token[:cut], token[cut:]] for token in vocabulary for cut in range(1, len(token))
            if token[:cut] in vocabulary and token[cut:] in vocabulary]


def tokenizer_json(tokens, types, bos, unknown):
    """tokenizer.json of a BPE of characters that falls back to bytes, with spaces as U+2581."""
    # GGUF has runs of spaces in tokens of users with plain spaces.
    tokens = [token.replace(" ", SPACE) for token in tokens]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    assert len(vocabulary) == len(tokens)
    # SentencePiece merges no special tokens; those of users, such as runs of spaces, are ordinary merges here.
    mergeable = {token: index for token, index in vocabulary.items() if types[index] in (NORMAL, USER_DEFINED)}
    added = [{"id": index, "content": token, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": kind == CONTROL}
             for index, (token, kind) in enumerate(zip(tokens, types)) if kind in (CONTROL, USER_DEFINED)]
    begin = {"SpecialToken": {"id": tokens[bos], "type_id": 0}}
    a, b = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
        "pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious",
                          "invert": False},
        "post_processor": {"type": "TemplateProcessing", "single": [begin, a], "pair": [begin, a, begin, b],
                           "special_tokens": {tokens[bos]: {"id": tokens[bos], "ids": [bos], "tokens": [tokens[bos]]}}},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}, {"type": "ByteFallback"},
            {"type": "Fuse"}]},
        "model": {"type": "BPE", "dropout": None, "unk_token": tokens[unknown], "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
                  "vocab": vocabulary, "merges": merges_of(mergeable)},
    }


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    reader, folder = gguf.GGUFReader(sys.argv[1]), sys.argv[2]

    def field(key):
        return reader.fields[key].contents()

    assert (field("general.architecture"), field("tokenizer.ggml.model")) == ("gemma3", "llama")
    os.makedirs(folder, exist_ok=True)

    def write(name, value, indent=1):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            json.dump(value, file, ensure_ascii=False, indent=indent)
            file.write("\n")

    weights = {}
    for tensor in reader.tensors:
        value = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        assert list(value.shape) == [int(size) for size in reversed(tensor.shape)], tensor.name
        weights[hugging_face_name(tensor.name)] = norm_bits(value) if "norm" in tensor.name else to_bfloat16(value)
    path = os.path.join(folder, "model.safetensors")
    # NumPy has no bfloat16: this gives safetensors the bits with their dtype.
    safetensors.serialize_file({
        name: safetensors.TensorSpec(dtype="bfloat16", shape=bits.shape, data_ptr=bits.ctypes.data,
                                     data_len=bits.nbytes) for name, bits in weights.items()
    }, path, metadata={"format": "pt"})
    os.chmod(path, 0o644)

    bos, eos, pad, unknown = (field(f"tokenizer.ggml.{kind}_token_id") for kind in ("bos", "eos", "padding", "unknown"))
    layers, head_dim = field("gemma3.block_count"), field("gemma3.attention.key_length")
    assert field("gemma3.attention.value_length") == head_dim and "lm_head.weight" not in weights
    tokens, types = field("tokenizer.ggml.tokens"), field("tokenizer.ggml.token_type")
    write("config.json", {
        "architectures": ["Gemma3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "attn_logit_softcapping": None, "bos_token_id": bos, "eos_token_id": eos, "pad_token_id": pad,
        "final_logit_softcapping": None, "head_dim": head_dim, "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": field("gemma3.embedding_length"), "initializer_range": 0.02,
        "intermediate_size": field("gemma3.feed_forward_length"),
        "layer_types": ["sliding_attention" if (layer + 1) % FULL_ATTENTION_EVERY else "full_attention"
                        for layer in range(layers)],
        "max_position_embeddings": field("gemma3.context_length"), "model_type": "gemma3_text",
        "num_attention_heads": field("gemma3.attention.head_count"), "num_hidden_layers": layers,
        "num_key_value_heads": field("gemma3.attention.head_count_kv"), "query_pre_attn_scalar": head_dim,
        "rms_norm_eps": float(np.format_float_positional(
            np.float32(field("gemma3.attention.layer_norm_rms_epsilon")), unique=True)),
        "rope_local_base_freq": LOCAL_THETA, "rope_scaling": None, "rope_theta": field("gemma3.rope.freq_base"),
        "sliding_window": field("gemma3.attention.sliding_window"), "tie_word_embeddings": True,
        "torch_dtype": "bfloat16", "use_cache": True, "vocab_size": len(tokens),
    })
    write("generation_config.json", {"bos_token_id": bos, "eos_token_id": eos, "pad_token_id": pad})

    assert set(types) == {NORMAL, CONTROL, USER_DEFINED, BYTE}
    ordinary = [score for score, kind in zip(field("tokenizer.ggml.scores"), types) if kind == NORMAL]
    assert all(one > two for one, two in zip(ordinary, ordinary[1:])), "tokens are not in the order of their merges"
    write("tokenizer.json", tokenizer_json(tokens, types, bos, unknown), indent=None)
    write("tokenizer_config.json", {
        "tokenizer_class": "GemmaTokenizer", "add_bos_token": True, "add_eos_token": False,
        "clean_up_tokenization_spaces": False, "bos_token": tokens[bos], "eos_token": tokens[eos],
        "pad_token": tokens[pad], "unk_token": tokens[unknown], "model_max_length": field("gemma3.context_length"),
    })


if __name__ == "__main__":
    main()

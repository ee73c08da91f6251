"""Generate tests/golden/tiny: tiny random Llamas, with loss, logits and gradients by transformers in float64.

usage: make_tiny_llamas.py [--output tests/golden/tiny] [CASE ...]

Each case is a Hugging Face folder (config.json, model.safetensors) with data.jsonl and expected.json;
tests/golden/README.md describes the format. The script checks the values of a case before it writes them: gradients
against a difference quotient of the loss, packed documents against separate documents, a tied head against an untied
one, and RoPE scaling against none. The output depends only on this file and the versions in
tools/requirements-golden.txt.
"""

import copy
import os
import shutil
import tempfile

import numpy as np
import safetensors.torch
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import command
import jsonfiles
import oracle

LLAMA3_ROPE = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 64}

# Cases: the difference of config.json from BASE, and the shape of the test data.
BASE = {
    "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 1,
    "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 32, "initializer_range": 0.02, "intermediate_size": 48,
    "max_position_embeddings": 128, "mlp_bias": False, "model_type": "llama", "num_attention_heads": 4,
    "num_hidden_layers": 2, "num_key_value_heads": 4, "rms_norm_eps": 1e-05, "rope_scaling": None,
    "rope_theta": 10000.0, "tie_word_embeddings": False, "torch_dtype": "float32", "use_cache": True,
    "vocab_size": 96,
}
CASES = {
    "mha": {"about": "as many key heads as query heads", "config": {}, "lengths": [17, 24, 9]},
    "gqa": {"about": "two query heads to a key head", "config": {"num_key_value_heads": 2}, "lengths": [21, 30, 2]},
    "mqa": {"about": "one key head for all", "config": {"num_key_value_heads": 1}, "lengths": [16, 33]},
    "head_dim": {
        "about": "head_dim apart from hidden_size / heads",
        "config": {"hidden_size": 40, "intermediate_size": 16, "head_dim": 20, "num_key_value_heads": 2,
                   "vocab_size": 64}, "lengths": [19, 26]},
    "odd_sizes": {
        "about": "sizes that no power of two divides; one layer; three heads to a key head",
        "config": {"hidden_size": 30, "intermediate_size": 37, "num_attention_heads": 3, "num_key_value_heads": 1,
                   "vocab_size": 131, "num_hidden_layers": 1, "rms_norm_eps": 1e-06}, "lengths": [13, 31, 7, 1]},
    "attention_bias": {"about": "biases of q, k, v and o", "config": {"attention_bias": True, "num_key_value_heads": 2},
                       "lengths": [22, 15]},
    "mlp_bias": {"about": "biases of gate, up and down", "config": {"mlp_bias": True}, "lengths": [18, 20]},
    "tied": {"about": "the head is the embedding; the file has no lm_head.weight",
             "config": {"tie_word_embeddings": True, "num_key_value_heads": 2}, "lengths": [25, 11]},
    "rope_theta": {"about": "rope_theta 500000", "config": {"rope_theta": 500000.0, "num_key_value_heads": 2,
                                                            "head_dim": 16}, "lengths": [40, 28]},
    "rope_linear": {"about": "linear RoPE scaling, named by the older key `type`",
                    "config": {"rope_scaling": {"type": "linear", "factor": 3.0}, "num_key_value_heads": 2},
                    "lengths": [45, 29]},
    "rope_llama3": {
        "about": "Llama 3.1's RoPE scaling; its three frequency bands all occur",
        "config": {"rope_scaling": LLAMA3_ROPE, "head_dim": 16, "num_key_value_heads": 2}, "lengths": [90, 70]},
    "rope_parameters": {
        "about": "config.json as transformers 5 writes it: rope_parameters and dtype",
        "config": {"rope_parameters": {**LLAMA3_ROPE, "rope_theta": 10000.0}, "dtype": "float32", "head_dim": 16,
                   "num_key_value_heads": 1, "transformers_version": "5.23.0"},
        "without": ["rope_theta", "rope_scaling", "torch_dtype"], "lengths": [80, 60]},
    "packed": {
        "about": "packed documents of odd lengths, some of one token; masked labels; a line without any target",
        "config": {"num_key_value_heads": 2},
        "documents": [[7, 1, 13, 5], [31], [3, 3, 3, 2, 1], [1, 1, 17, 1], None, [5, 20], [1], [11, 2]],
        "lengths": [26, 31, 12, 20, 23, 25, 1, 13], "masked": [0, 2, 5, 7], "without_targets": [7]},
    "masked": {"about": "labels of -100, and labels that differ from the tokens", "config": {},
               "lengths": [20, 32, 14, 6], "masked": [0, 1, 3], "relabelled": [1]},
    "cut": {"about": "lines longer than the sequence length, one with documents", "config": {"num_key_value_heads": 2},
            "lengths": [50, 33, 16, 17, 40], "documents": [None, None, None, None, [9, 14, 17]], "masked": [1, 4],
            "sequence_length": 16},
    "sharded": {"about": "two safetensors files and an index", "config": {"num_key_value_heads": 2},
                "lengths": [17, 22], "files": 2},
    "bfloat16": {"about": "weights stored as bfloat16", "config": {"torch_dtype": "bfloat16", "num_key_value_heads": 2},
                 "lengths": [24, 18]},
    "everything": {
        "about": "all of it together",
        "config": {"hidden_size": 36, "intermediate_size": 29, "num_attention_heads": 6, "num_key_value_heads": 2,
                   "head_dim": 10, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True,
                   "vocab_size": 101, "rope_theta": 5000.0, "rope_scaling": LLAMA3_ROPE, "rms_norm_eps": 1e-06},
        "documents": [[37, 1, 41], [6, 29], None, [1, 2, 3, 4, 5]], "lengths": [79, 35, 48, 15],
        "masked": [0, 3], "relabelled": [3]},
}


def config_of(case):
    """config.json of a case."""
    config = copy.deepcopy({**BASE, **case["config"]})
    for key in case.get("without", ()):
        config.pop(key)
    return dict(sorted(config.items()))


def random_weights(config, generator):
    """{name: float32 tensor}, large enough that attention is peaked and every gradient is significant."""
    model = LlamaForCausalLM(LlamaConfig(**copy.deepcopy(config)))
    weights = {}
    for name, parameter in model.named_parameters():
        noise = generator.standard_normal(tuple(parameter.shape))
        if "norm" in name:
            value = 1.0 + 0.2 * noise
        elif "embed_tokens" in name:
            value = (0.3 if config["tie_word_embeddings"] else 0.7) * noise
        elif "q_proj.weight" in name or "k_proj.weight" in name:
            value = 0.3 * noise
        elif name.endswith(".bias"):
            value = 0.3 * noise
        else:
            value = 0.2 * noise
        weights[name] = torch.tensor(value, dtype=torch.float32)
    return weights


def random_lines(case, vocabulary, generator):
    """Lines of data.jsonl."""
    lines = []
    for index, length in enumerate(case["lengths"]):
        ids = generator.integers(0, vocabulary, length).tolist()
        line = {"input_ids": ids}
        if index in case.get("masked", ()) or index in case.get("relabelled", ()):
            labels = list(ids)
            if index in case.get("relabelled", ()):
                labels = generator.integers(0, vocabulary, length).tolist()
            if index in case.get("masked", ()):
                labels = [oracle.IGNORED if dropped else label
                          for label, dropped in zip(labels, generator.random(length) < 0.4)]
            if index in case.get("without_targets", ()):
                labels = [oracle.IGNORED] * length
            line["labels"] = labels
        lengths = (case.get("documents") or [None] * len(case["lengths"]))[index]
        if lengths:
            line["document_lengths"] = lengths
        lines.append(line)
    return lines


def save(folder, config, weights, files):
    """Writes config.json and the weights, in one file or in several with an index."""
    jsonfiles.write_json(os.path.join(folder, "config.json"), config)
    kind = getattr(torch, config.get("torch_dtype") or config["dtype"])
    weights = {name: value.to(kind).contiguous() for name, value in weights.items()}
    if files == 1:
        safetensors.torch.save_file(weights, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
        return
    names = list(weights)
    share = (len(names) + files - 1) // files
    where = {}
    for number in range(files):
        file = f"model-{number + 1:05d}-of-{files:05d}.safetensors"
        part = {name: weights[name] for name in names[number * share:(number + 1) * share]}
        safetensors.torch.save_file(part, os.path.join(folder, file), metadata={"format": "pt"})
        where.update(dict.fromkeys(part, file))
    size = sum(value.numel() * value.element_size() for value in weights.values())
    jsonfiles.write_json(os.path.join(folder, "model.safetensors.index.json"),
                      {"metadata": {"total_size": size}, "weight_map": where})


def check_gradient(model, lines, generator):
    """Checks the gradient along a random direction against a difference quotient of the loss; requires float64."""
    directions = [torch.tensor(generator.standard_normal(tuple(p.shape))) for p in model.parameters()]
    slope = sum((p.grad * d).sum().item() for p, d in zip(model.parameters(), directions))
    gradients = [p.grad for p in model.parameters()]
    step, values = 1e-5, {}
    originals = [p.detach().clone() for p in model.parameters()]
    with torch.no_grad():
        for multiple in (-2, -1, 1, 2):
            for p, original, d in zip(model.parameters(), originals, directions):
                p.copy_(original + multiple * step * d)
            values[multiple] = oracle.packed_loss(model, lines)
        for p, original in zip(model.parameters(), originals):
            p.copy_(original)
    for p, gradient in zip(model.parameters(), gradients):
        p.grad = gradient
    quotient = (8 * (values[1] - values[-1]) - (values[2] - values[-2])) / (12 * step)
    error = abs(quotient - slope) / sum(gradient.square().sum().item() for gradient in gradients) ** 0.5
    assert error < 1e-8, f"gradient off by {error:.1e}: {slope} {quotient}"
    return error


def check_tied(folder, config, lines, gradient):
    """Checks that the gradient of a tied head is the sum of those of embedding and head of the untied model."""
    with tempfile.TemporaryDirectory() as twin:
        weights = safetensors.torch.load_file(os.path.join(folder, "model.safetensors"))
        assert "lm_head.weight" not in weights
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
        save(twin, {**config, "tie_word_embeddings": False}, weights, 1)
        model = oracle.load_double(twin)
        oracle.loss_and_gradients(model, lines)
        total = model.model.embed_tokens.weight.grad + model.lm_head.weight.grad
    assert torch.allclose(total, gradient, rtol=1e-11, atol=1e-14)


def loss_without_scaling(folder, config, lines):
    """Loss with the same weights and without RoPE scaling."""
    plain = copy.deepcopy(config)
    if "rope_parameters" in plain:
        plain["rope_parameters"] = {"rope_type": "default", "rope_theta": plain["rope_parameters"]["rope_theta"]}
    else:
        plain["rope_scaling"] = None
    with tempfile.TemporaryDirectory() as twin:
        shutil.copy(os.path.join(folder, "model.safetensors"), twin)
        jsonfiles.write_json(os.path.join(twin, "config.json"), plain)
        return oracle.packed_loss(oracle.load_double(twin), lines)


def check_bands(model):
    """Checks that Llama 3's scaling keeps, divides and blends some frequencies each; returns their numbers."""
    rotary = model.model.rotary_emb
    with oracle.all_double():
        plain, _ = rotary.compute_default_rope_parameters(rotary.config)
    ratio = plain / rotary.inv_freq
    factor = rotary.config.rope_parameters["factor"]
    kept, divided = (ratio - 1).abs() < 1e-9, (ratio - factor).abs() < 1e-9
    assert kept.any() and divided.any() and (~kept & ~divided).any(), ratio
    return [int(kept.sum()), int((~kept & ~divided).sum()), int(divided.sum())]


def make(name, folder):
    """Writes one case; returns a line to print."""
    case = CASES[name]
    config = config_of(case)
    generator = np.random.Generator(np.random.PCG64([20260101, list(CASES).index(name)]))
    weights = random_weights(config, generator)
    lines = random_lines(case, config["vocab_size"], generator)
    os.makedirs(folder, exist_ok=True)
    save(folder, config, weights, case.get("files", 1))
    jsonfiles.write_lines(os.path.join(folder, "data.jsonl"), lines)

    length = case.get("sequence_length") or max(case["lengths"])
    pieces = oracle.cut(lines, length)
    plain = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    float32_loss = oracle.packed_loss(plain.eval(), pieces)
    model = oracle.load_double(folder)
    loss, count = oracle.loss_and_gradients(model, pieces)
    assert abs(oracle.packed_loss(model, pieces) - loss) < 1e-12 * loss
    assert abs(float32_loss - loss) < 1e-5 * loss
    error = check_gradient(model, pieces, generator)
    notes = []
    if config["tie_word_embeddings"]:
        check_tied(folder, config, pieces, model.model.embed_tokens.weight.grad)
        notes.append("tied")
    scaling = config.get("rope_scaling") or config.get("rope_parameters")
    if scaling:
        effect = loss_without_scaling(folder, config, pieces) - loss
        assert abs(effect) > 1e-3, effect
        notes.append(f"scaling moves the loss by {effect:+.3f}")
        if scaling.get("rope_type") == "llama3":
            notes.append("bands {}/{}/{}".format(*check_bands(model)))
    logits = oracle.line_logits(model, pieces[0])
    rows = sorted({0, 1, logits.shape[0] // 2, logits.shape[0] - 1})
    summary = oracle.gradient_summary(model, digits=12)
    assert min(summary["gradient_norms"].values()) > 1e-4, summary["gradient_norms"]
    jsonfiles.write_json(os.path.join(folder, "expected.json"), {
        "about": case["about"],
        "made_with": command.made_with(),
        "sequence_length": length, "loss": loss, "tokens": count,
        "logits_sample": {"line": 0, "shape": list(logits.shape), "rows": rows, "values": logits[rows].tolist()},
        **summary,
    })
    norms = summary["gradient_norms"].values()
    return (f"{name:16} loss {loss:.6f} over {count:3} targets, float32 off by {abs(float32_loss - loss):.0e}, "
            f"slope off by {error:.0e}, norms {min(norms):.2g} to {max(norms):.2g}, {command.folder_size(folder)} KiB  "
            f"{', '.join(notes)}")


def main():
    command.make_cases(__doc__, "tiny", CASES, make)


if __name__ == "__main__":
    main()

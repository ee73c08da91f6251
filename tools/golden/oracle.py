"""Shared by the scripts that generate golden files: transformers' models in float64, and the loss of a data file.

transformers computes some steps (RMSNorm, rotary angles, softmax) in float32 for any dtype of the weights. Models
loaded by `load_double` compute those steps in float64 too, so that golden values have no float32 rounding errors.
"""

import contextlib
from unittest import mock

import torch
from transformers import AutoModelForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

import philox

IGNORED = -100


@contextlib.contextmanager
def all_double():
    """Inside the block, every request for float32 means float64. Files must not be loaded inside it."""
    def to_double(tensor, *_, **__):
        return tensor.double()

    with mock.patch.object(torch, "float32", torch.float64), mock.patch.object(torch, "float", torch.float64), \
            mock.patch.object(torch.Tensor, "float", to_double):
        yield


def precision_of(model):
    """Context in which to run a model: all_double() for float64, else no effect."""
    return all_double() if next(model.parameters()).dtype == torch.float64 else contextlib.nullcontext()


def load_double(folder, attention="eager"):
    """The model of a folder with all values in float64; recomputes the rotary frequencies in float64."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation=attention)
    model.config._experts_implementation = "eager"  # grouped GEMMs have no float64
    model.eval()
    rotary = model.base_model.rotary_emb
    # Gemma 3 has one set of frequencies for each kind of layer.
    kinds = rotary.rope_type.items() if isinstance(rotary.rope_type, dict) else [(None, rotary.rope_type)]
    for layer_type, rope_type in kinds:
        arguments, prefix = ({}, "") if layer_type is None else ({"layer_type": layer_type}, f"{layer_type}_")
        with all_double():
            if rope_type == "default":
                frequencies, scaling = rotary.compute_default_rope_parameters(rotary.config, **arguments)
            else:
                frequencies, scaling = ROPE_INIT_FUNCTIONS[rope_type](rotary.config, **arguments)
        assert frequencies.dtype == torch.float64
        setattr(rotary, f"{prefix}inv_freq", frequencies)
        setattr(rotary, f"{prefix}original_inv_freq", frequencies.clone())
        setattr(rotary, f"{prefix}attention_scaling", scaling)
    embedding = model.get_input_embeddings()
    if hasattr(embedding, "embed_scale"):
        embedding.embed_scale = torch.tensor(embedding.scalar_embed_scale, dtype=torch.float64)
    assert all(parameter.dtype == torch.float64 for parameter in model.parameters())
    return model


def documents(line):
    """Yields (start, stop) of each document of a line."""
    lengths = line.get("document_lengths") or [len(line["input_ids"])]
    assert sum(lengths) == len(line["input_ids"]) and min(lengths) > 0
    start = 0
    for length in lengths:
        yield start, start + length
        start += length


def cut(lines, length):
    """Cuts lines into pieces of at most `length` tokens, like `hawser eval --sequence-length`."""
    pieces = []
    for line in lines:
        labels = line.get("labels") or line["input_ids"]
        for start in range(0, len(line["input_ids"]), length):
            stop = min(start + length, len(line["input_ids"]))
            piece = {"input_ids": line["input_ids"][start:stop], "labels": labels[start:stop]}
            overlaps = [min(b, stop) - max(a, start) for a, b in documents(line)]
            piece["document_lengths"] = [overlap for overlap in overlaps if overlap > 0]
            pieces.append(piece)
    return pieces


def next_labels(line, start, stop):
    """Targets of the document start..stop-1: for each token the label of the next one, for the last token none."""
    labels = line.get("labels") or line["input_ids"]
    return list(labels[start + 1:stop]) + [IGNORED]


def count_targets(lines):
    """Number of targets of the lines."""
    return sum(label != IGNORED for line in lines for a, b in documents(line) for label in next_labels(line, a, b))


def line_logits(model, line):
    """Logits of a line (tokens, vocabulary); each document is a forward pass of its own."""
    with torch.no_grad(), precision_of(model):
        return torch.cat([model(torch.tensor([line["input_ids"][a:b]]), use_cache=False).logits[0]
                          for a, b in documents(line)])


def loss_and_gradients(model, lines):
    """(mean loss over all targets, number of targets); accumulates gradients in the parameters.

    Each document is a sequence of its own, so the result does not depend on how a library masks packed documents."""
    count = count_targets(lines)
    model.zero_grad(set_to_none=True)
    total = 0.0
    for line in lines:
        for start, stop in documents(line):
            targets = torch.tensor(next_labels(line, start, stop))
            if bool((targets == IGNORED).all()):
                continue
            with precision_of(model):
                logits = model(torch.tensor([line["input_ids"][start:stop]]), use_cache=False).logits[0]
                loss = torch.nn.functional.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum")
                (loss / count).backward()
            total += loss.item()
    return total / count, count


def packed_loss(model, lines):
    """The same loss with one forward pass per line: transformers detects documents by positions that restart at 0."""
    total = 0.0
    for line in lines:
        positions = torch.cat([torch.arange(b - a) for a, b in documents(line)])[None]
        targets = torch.tensor([label for a, b in documents(line) for label in next_labels(line, a, b)])
        if bool((targets == IGNORED).all()):
            continue
        with torch.no_grad(), precision_of(model):
            logits = model(torch.tensor([line["input_ids"]]), position_ids=positions, use_cache=False).logits[0]
        total += torch.nn.functional.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum").item()
    return total / count_targets(lines)


def greedy(model, ids, count, **options):
    """`count` greedy tokens without a KV cache, and the smallest margin of the top logit over the second."""
    ids, start, margin = list(ids), len(ids), float("inf")
    with torch.no_grad(), precision_of(model):
        for _ in range(count):
            best = model(torch.tensor([ids]), use_cache=False, **options).logits[0, -1].topk(2)
            margin = min(margin, (best.values[0] - best.values[1]).item())
            ids.append(int(best.indices[0]))
    return ids[start:], margin


def gradient_summary(model, digits=17):
    """{"gradient_norms": …, "projections": …} of the gradients, by parameter name as in the files of the folder."""
    gradients = {}
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        gradients[name] = parameter.grad
    return summary_of(gradients, digits)


def summary_of(gradients, digits, projection_digits=None):
    """The same of {name in the file: gradient}."""
    norms, projections = {}, {}
    for name, gradient in gradients.items():
        norms[name] = rounded(gradient.double().norm().item(), digits)
        projections[name] = [rounded(value, projection_digits or digits)
                             for value in philox.project(name, gradient.numpy()).tolist()]
    return {"gradient_norms": norms, "projections": projections}


def rounded(value, digits):
    """Rounds a float to `digits` significant digits."""
    return float(f"{value:.{digits}g}")

"""What the golden-file makers share: transformers' Llama computing wholly in float64, and the loss of a data file.

transformers computes some steps (RMSNorm, rotary angles, softmax) in float32 whatever the type of the weights. Models
that `load_double` loads run those steps in float64 too, so that a golden value is the model's true value and not one
rounding of it.
"""

import contextlib
from unittest import mock

import torch
from transformers import LlamaForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

import philox

IGNORED = -100


@contextlib.contextmanager
def all_double():
    """Let every request for float32 inside the block mean float64 (loading files inside it would read them wrongly)."""
    def to_double(tensor, *_, **__):
        return tensor.double()

    with mock.patch.object(torch, "float32", torch.float64), mock.patch.object(torch, "float", torch.float64), \
            mock.patch.object(torch.Tensor, "float", to_double):
        yield


def precision_of(model):
    """The block in which a model computes: nothing special, but for float64."""
    return all_double() if next(model.parameters()).dtype == torch.float64 else contextlib.nullcontext()


def load_double(folder, attention="eager"):
    """LlamaForCausalLM of a folder with every number float64, the rotary frequencies computed anew in float64."""
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation=attention)
    model.eval()
    rotary = model.model.rotary_emb
    with all_double():
        if rotary.rope_type == "default":
            frequencies, scaling = rotary.compute_default_rope_parameters(rotary.config)
        else:
            frequencies, scaling = ROPE_INIT_FUNCTIONS[rotary.rope_type](rotary.config)
    rotary.inv_freq = frequencies
    rotary.original_inv_freq = frequencies.clone()
    rotary.attention_scaling = scaling
    assert rotary.inv_freq.dtype == torch.float64
    assert all(parameter.dtype == torch.float64 for parameter in model.parameters())
    return model


def documents(line):
    """(start, stop) of each document of a line."""
    lengths = line.get("document_lengths") or [len(line["input_ids"])]
    assert sum(lengths) == len(line["input_ids"]) and min(lengths) > 0
    start = 0
    for length in lengths:
        yield start, start + length
        start += length


def cut(lines, length):
    """The lines cut into pieces of at most `length` tokens, as `hawser eval --sequence-length` does."""
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
    """What each token of the document start..stop-1 is to predict: its successor's label; the last predicts nothing."""
    labels = line.get("labels") or line["input_ids"]
    return list(labels[start + 1:stop]) + [IGNORED]


def count_targets(lines):
    """How many targets the lines hold."""
    return sum(label != IGNORED for line in lines for a, b in documents(line) for label in next_labels(line, a, b))


def line_logits(model, line):
    """The logits of a line, every document run on its own: tokens by vocabulary."""
    with torch.no_grad(), precision_of(model):
        return torch.cat([model(torch.tensor([line["input_ids"][a:b]]), use_cache=False).logits[0]
                          for a, b in documents(line)])


def loss_and_gradients(model, lines):
    """(mean loss over all targets, targets); the gradients are left in the parameters.

    Every document is a sequence of its own, so nothing depends on how a library masks packed documents."""
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
    """The same loss with each line run whole: positions that start anew tell transformers where documents begin."""
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


def gradient_summary(model, digits=17):
    """{"gradient_norms": …, "projections": …} of the parameters' gradients, by the names in the folder's files."""
    norms, projections = {}, {}
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        assert gradient is not None, name
        norms[name] = rounded(gradient.double().norm().item(), digits)
        projections[name] = [rounded(value, digits) for value in philox.project(name, gradient.numpy()).tolist()]
    return {"gradient_norms": norms, "projections": projections}


def rounded(value, digits):
    """A float kept to so many significant digits."""
    return float(f"{value:.{digits}g}")

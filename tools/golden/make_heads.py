"""Generate tests/golden/heads: tiny models whose heads predict masked tokens or classes, with loss and gradients in
float64.

usage: make_heads.py [--output tests/golden/heads]

Each case is a folder with model/model.safetensors, gradients/model.safetensors (float32, rounded once) and
expected.json: documents with ids, token types and labels, and the mean loss of all labels by transformers, which gets
one document at a time. A document has labels of its tokens, or one, of which -100 is none. tests/parity/heads_test.cpp
describes these models as data. The output depends only on this file, make_blocks.py and the versions in
tools/requirements-golden.txt.
"""

import numpy as np
import torch
from transformers import (
    BertConfig, BertForMaskedLM, BertForSequenceClassification, BertForTokenClassification, LlamaConfig,
    LlamaForSequenceClassification, RobertaConfig, RobertaForSequenceClassification)

import make_blocks
import oracle

SIZES = {"vocab_size": 23, "hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2,
         "intermediate_size": 14}
ENCODER = {**SIZES, "max_position_embeddings": 16, "layer_norm_eps": 1e-5, "hidden_dropout_prob": 0.0,
           "attention_probs_dropout_prob": 0.0}
LLAMA = LlamaConfig(**SIZES, num_key_value_heads=1, max_position_embeddings=16, rms_norm_eps=1e-6, pad_token_id=22,
                    num_labels=3, rope_parameters={"rope_type": "default", "rope_theta": 10000.0})
CASES = {
    # The token that some rows hide; a tied projection.
    "bert_masked": (BertForMaskedLM, BertConfig(**ENCODER)),
    # A class of some rows, from the last layer's output.
    "bert_tokens": (BertForTokenClassification, BertConfig(**ENCODER, num_labels=5)),
    # A class of a document, from its first row by way of the pooler.
    "bert_sequences": (BertForSequenceClassification, BertConfig(**ENCODER, num_labels=3)),
    # The same, whose head has the pooler.
    "roberta_sequences": (RobertaForSequenceClassification, RobertaConfig(
        **{**ENCODER, "max_position_embeddings": 18}, type_vocab_size=1, pad_token_id=1, num_labels=3)),
    # A class of a document, from its last row.
    "llama_sequences": (LlamaForSequenceClassification, LLAMA),
}
LENGTHS = [7, 4, 9, 6, 3]  # of the documents


def documents(name, config, generator):
    """Different numbers of labels in each document; one document has none."""
    out = []
    for number, length in enumerate(LENGTHS):
        # Rows without attention are those of padding, to transformers.
        ids = generator.integers(2, config.vocab_size - 1, length).tolist()
        document = {"ids": ids}
        if name.startswith("bert"):
            document["token_type_ids"] = generator.integers(0, config.type_vocab_size, length).tolist()
        classes = config.vocab_size if name == "bert_masked" else config.num_labels
        if name.endswith("sequences"):
            document["labels"] = oracle.IGNORED if number == 3 else int(generator.integers(0, classes))
        else:
            labels = generator.integers(0, classes, length).tolist()
            chosen = generator.random(length) < (0.0 if number == 3 else 0.3 + 0.1 * number)
            document["labels"] = [label if one else oracle.IGNORED for label, one in zip(labels, chosen)]
        out.append(document)
    return out


def mean_loss(model, given):
    """The loss of all labels, and their number."""
    total, count = torch.zeros((), dtype=torch.float64), 0
    for document in given:
        labels = torch.tensor([document["labels"]])
        own = int((labels != oracle.IGNORED).sum())
        if own == 0:
            continue
        inputs = {key: torch.tensor([values]) for key, values in document.items() if key != "labels"}
        with oracle.all_double():
            loss = model(input_ids=inputs.pop("ids"), labels=labels, **inputs).loss
        assert loss.dtype == torch.float64
        total, count = total + own * loss, count + own
    return total / count, count


def make(name, folder):
    """Writes one case; returns a line to print."""
    kind, config = CASES[name]
    config._attn_implementation = "eager"
    generator = np.random.Generator(np.random.PCG64([20261127, list(CASES).index(name)]))
    model, weights = make_blocks.with_random_weights(kind(config).eval(), generator)
    given = documents(name, config, generator)
    loss, count = mean_loss(model, given)
    loss.backward()
    gradients = {key: parameter.grad for key, parameter in model.named_parameters()}
    # The softmax ignores a bias of all keys.
    assert min(gradient.norm().item() for key, gradient in gradients.items() if not key.endswith("key.bias")) > 1e-4
    slope_error = make_blocks.check_slope(model, lambda: mean_loss(model, given)[0], gradients, generator)
    make_blocks.write(folder, weights, gradients, {"documents": given, "loss": loss.item()})
    return f"{name}: {count} labels, loss {loss.item():.6f}, slope off by {slope_error:.0e}"


if __name__ == "__main__":
    make_blocks.make_all(__doc__.split("\n\n")[0], "heads", CASES, make)

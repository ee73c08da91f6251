"""Shared by make_smollm2.py and make_gemma3.py: loss, gradients and greedy text of a model with its real weights."""

import os
import resource
import time

import tokenizers
import torch

import command
import jsonfiles
import oracle

NEW_TOKENS = 32


def loss_and_gradients(model, ids, head_chunk, accurate_loss=True):
    """Mean loss of predicting each next token; accumulates gradients in the parameters.

    With `accurate_loss`, logits are converted to float64 before the cross-entropy, for any dtype of the model. To save
    memory, computes the head and the loss in chunks and recomputes the layers in the backward pass; the sums are the
    same."""
    model.zero_grad(set_to_none=True)
    model.train()  # the model has no dropout; transformers recomputes layers only in this mode
    model.activation_checkpointing_enable()
    with oracle.precision_of(model):
        hidden = model.model(torch.tensor([ids]), use_cache=False).last_hidden_state[0]
        leaf = hidden.detach().requires_grad_()
        targets = torch.tensor(ids[1:])
        total = 0.0
        for start in range(0, len(targets), head_chunk):
            piece = targets[start:start + head_chunk]
            logits = model.lm_head(leaf[start:start + len(piece)])
            logits = logits.double() if accurate_loss else logits
            loss = torch.nn.functional.cross_entropy(logits, piece, reduction="sum")
            (loss / len(targets)).backward()
            total += loss.item()
        hidden.backward(leaf.grad)
    model.activation_checkpointing_disable()
    model.eval()
    return total / len(targets)


def relative_errors(model, gradients):
    """Norm of the difference between each parameter's gradient and `gradients`, relative to the norm of the latter."""
    def error(gradient, expected):
        return oracle.rounded(((gradient.double() - expected).norm() / expected.norm()).item(), 4)

    return {name: error(parameter.grad, gradients[name]) for name, parameter in model.named_parameters()}


def generate(model, ids):
    """NEW_TOKENS greedy tokens, and the smallest margin of the top logit over the second."""
    return oracle.greedy(model, ids, NEW_TOKENS, logits_to_keep=1)


class RealModel:
    """The model in inputs/NAME and the first `count` tokens of Emma; `options`: of the tokenizer's encode."""

    def __init__(self, doc, name, count, head_chunk, **options):
        parser = command.parser_of(doc)
        parser.add_argument("--inputs", default=os.path.join(command.ROOT, "inputs"))
        parser.add_argument("--output", default=command.golden(name))
        parser.add_argument("--threads", type=int, default=1)
        arguments = parser.parse_args()
        command.prepare(arguments.threads)
        self.output, self.head_chunk, self.options = arguments.output, head_chunk, options
        self.folder = os.path.join(arguments.inputs, name)
        self.tokenizer = tokenizers.Tokenizer.from_file(os.path.join(self.folder, "tokenizer.json"))
        emma = os.path.join(arguments.inputs, "text", "austen", "emma.txt")
        with open(emma, encoding="utf-8", newline="") as file:
            self.ids = self.encode(file.read(40 * count))[:count]
        os.makedirs(self.output, exist_ok=True)
        jsonfiles.write_lines(os.path.join(self.output, "tokens.jsonl"), [{"input_ids": self.ids}])

    def encode(self, text):
        return self.tokenizer.encode(text, **self.options).ids

    def loss_and_gradients(self, model, accurate_loss=True):
        return loss_and_gradients(model, self.ids, self.head_chunk, accurate_loss)

    def compute(self, prompts, check=lambda config, ids: None):
        """Expected values, in float64."""
        started = time.monotonic()
        model = oracle.load_double(self.folder, attention="sdpa")
        check(model.config, self.ids)
        # transformers sets the gradient of the padding token's embedding to 0; the data do not contain this token.
        assert model.config.pad_token_id not in self.ids
        self.loss = self.loss_and_gradients(model)
        self.summary = oracle.gradient_summary(model, digits=10)
        self.gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
        print(f"float64: loss {self.loss:.9f}, {time.monotonic() - started:.0f} s", flush=True)
        model.zero_grad(set_to_none=True)
        self.generations = []
        for prompt in prompts:
            prompt_ids = self.encode(prompt)
            new, margin = generate(model, prompt_ids)
            assert model.config.eos_token_id not in new
            text = self.tokenizer.decode(new)
            self.generations.append({"prompt": prompt, "prompt_ids": prompt_ids, "ids": new, "text": text,
                                     "smallest_margin": oracle.rounded(margin, 6)})
            print(f"{prompt!r} {text!r}, smallest margin {margin:.4f}", flush=True)

    def compare(self, kind):
        """The model of a class of transformers in float32, and its values: those of expected.json."""
        model = kind.from_pretrained(self.folder, dtype=torch.float32, attn_implementation="sdpa")
        loss = self.loss_and_gradients(model)
        errors = relative_errors(model, self.gradients)
        assert all(generate(model, entry["prompt_ids"])[0] == entry["ids"] for entry in self.generations)
        assert abs(loss - self.loss) < 1e-5 * self.loss and max(errors.values()) < 1e-3
        print(f"float32: loss {loss:.9f}, gradients off by {max(errors.values()):.1e} at most", flush=True)
        return model, {"loss": loss, "relative_gradient_errors": errors}

    def write(self, about, values):
        """Writes expected.json; `values`: its entries besides the common ones."""
        count = len(self.ids)
        jsonfiles.write_json(os.path.join(self.output, "expected.json"), {
            "about": f"{about} on the first {count} tokens of Emma", "made_with": command.made_with(),
            "sequence_length": count, "loss": self.loss, "tokens": count - 1, "generations": self.generations, **values,
            **self.summary})
        print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.1f} GiB")

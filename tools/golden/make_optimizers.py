"""Generate tests/golden/optimizers: 50 steps of each optimizer, as PyTorch, transformers and bitsandbytes take them.

usage: make_optimizers.py [--output tests/golden/optimizers]

cases.json lists the cases: the keys of a recipe, and the largest relative difference that a test allows.
NAME/model.safetensors has the weights after the last step, "weights/TENSOR", and states, "state/SLOT/TENSOR".
code_books.json has the code books of bitsandbytes' 8-bit optimizers.

Initial weights and the gradients of a step are functions of the tensor and the element alone: with the four words of
Philox for counter (element, 0, step, 0) and key (17, number of the tensor), a gradient is (words[0] >> 8) / 2^24 - 1/2,
divided by 2^(element % 5), and a weight (words[1] >> 8) / 2^24 - 1/2 of step 0. Both are exact in float32.
"""

import argparse
import json
import os

import bitsandbytes.functional as bnb
import numpy as np
import torch
import transformers
from safetensors.numpy import save_file
from torch.optim import swa_utils

import jsonfiles
import philox

STEPS = 50
RATE = 0.01
SEED = 7
SHAPES = {"matrix": (48, 96), "tall": (80, 16), "norm": (96,)}  # "matrix" has more than 4096 elements
DECAY = 0.1


def words(name, step):
    """The four words of each element of a tensor."""
    count = int(np.prod(SHAPES[name]))
    index = list(SHAPES).index(name)
    element = np.arange(count, dtype=np.uint64)
    return philox.philox4x32((element, 0, step, 0), (17, index)), element


def fraction(word):
    return ((word >> np.uint64(8)).astype(np.float64) / 2.0**24 - 0.5).astype(np.float32)


def gradient(name, step):
    values, element = words(name, step)
    scaled = fraction(values[0]) / np.exp2((element % np.uint64(5)).astype(np.float32))
    return torch.from_numpy(scaled.astype(np.float32).reshape(SHAPES[name]))


def initial_weight(name):
    values, _ = words(name, 0)
    return torch.from_numpy(fraction(values[1]).reshape(SHAPES[name]))


def trained(make, after_step=lambda weights: None):
    """Weights after the steps of make(parameters by name), and its optimizers."""
    weights = {name: torch.nn.Parameter(initial_weight(name)) for name in SHAPES}
    optimizers = make(weights)
    for step in range(1, STEPS + 1):
        for name, weight in weights.items():
            weight.grad = gradient(name, step)
        for optimizer in optimizers:
            optimizer.step()
        after_step(weights)
    return weights, optimizers


def groups(weights, decay=DECAY):
    return [{"params": [weights["matrix"], weights["tall"]], "weight_decay": decay},
            {"params": [weights["norm"]], "weight_decay": 0.0}]


def tensors_of(weights, optimizers=(), slots=()):
    out = {f"weights/{name}": weight.detach().float().numpy() for name, weight in weights.items()}
    for optimizer in optimizers:
        for name, weight in weights.items():
            for slot in slots:
                state = optimizer.state.get(weight, {})
                if state.get(slot) is not None:
                    out[f"state/{slot}/{name}"] = state[slot].detach().float().numpy()
    return out


def sgd(momentum, nesterov=False, decay=0.0):
    weights, optimizers = trained(
        lambda w: [torch.optim.SGD(groups(w, decay), lr=RATE, momentum=momentum, nesterov=nesterov)])
    return tensors_of(weights, optimizers, ["momentum_buffer"])


def adamw():
    weights, optimizers = trained(lambda w: [torch.optim.AdamW(groups(w), lr=RATE, betas=(0.9, 0.95), eps=1e-8)])
    return tensors_of(weights, optimizers, ["exp_avg", "exp_avg_sq"])


def adamw_ema(decay):
    """AdamW with PyTorch's exponential moving average of the weights."""
    model = torch.nn.ParameterDict({name: initial_weight(name) for name in SHAPES})
    averages = swa_utils.AveragedModel(model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(decay))

    def average(weights):
        for name, weight in weights.items():
            model[name].data.copy_(weight.data)
        averages.update_parameters(model)

    weights, optimizers = trained(
        lambda w: [torch.optim.AdamW(groups(w), lr=RATE, betas=(0.9, 0.95), eps=1e-8)], average)
    out = tensors_of(weights, optimizers, ["exp_avg", "exp_avg_sq"])
    for name, value in averages.module.items():
        out[f"state/ema/{name}"] = value.detach().numpy()
    return out


class ByHand:
    """Weights and states in float32 (or rounded to bf16), advanced by step(name, weight, gradient, number)."""

    def __init__(self, weights):
        self.weights, self.number, self.states = weights, 0, {}

    def state(self, slot, name):
        return self.states.setdefault((slot, name), torch.zeros(SHAPES[name]))

    @torch.no_grad()
    def step(self):
        self.number += 1
        for name, weight in self.weights.items():
            self.advance(name, weight, weight.grad, DECAY if weight.dim() > 1 else 0.0)


class Lion(ByHand):
    """Algorithm 2 of Chen et al., 2023."""

    def advance(self, name, weight, grad, decay):
        average = self.state("exp_avg", name)
        weight.mul_(1 - RATE * decay).add_(torch.sign(0.9 * average + 0.1 * grad), alpha=-RATE)
        average.mul_(0.99).add_(grad, alpha=0.01)


def random_stream(name):
    """The key of Hawser's RandomStream(SEED, name): base/philox.h."""
    hashed = philox.fnv1a64(name)
    mixed = philox.philox4x32((hashed & 0xFFFFFFFF, hashed >> 32, 0x68617773, 0), (SEED & 0xFFFFFFFF, SEED >> 32))
    return int(mixed[0][0]), int(mixed[1][0])


def rounded(value, name, step, word):
    """Stochastic rounding to bf16 (ops/update/rounding.h)."""
    bits = value.numpy().view(np.uint32).reshape(-1).astype(np.uint64)
    element = np.arange(bits.size, dtype=np.uint64)
    noise = philox.philox4x32((element, 0, step, 0), random_stream(name))[word] & np.uint64(0xFFFF)
    out = (((bits + noise) >> np.uint64(16)) << np.uint64(16)).astype(np.uint32).view(np.float32)
    return torch.from_numpy(out.reshape(SHAPES[name]).copy())


class RoundedAdamW(ByHand):
    """AdamW with weights and moments in bf16, each rounded stochastically after the step."""

    def advance(self, name, weight, grad, decay):
        if self.number == 1:
            weight.copy_(weight.bfloat16().float())
        m, v = self.state("exp_avg", name), self.state("exp_avg_sq", name)
        m.mul_(0.9).add_(grad, alpha=1 - 0.9)
        v.mul_(0.95).addcmul_(grad, grad, value=1 - 0.95)
        root = v.sqrt() / (1 - 0.95**self.number) ** 0.5
        weight.mul_(1 - RATE * decay).sub_(RATE / (1 - 0.9**self.number) * m / (root + 1e-8))
        for word, value in enumerate((weight, m, v)):
            value.copy_(rounded(value.detach(), name, self.number, word))


def nearest_codes(value, code_book):
    """Codes and maxima of blocks of 256, as bitsandbytes' optimizers have them (quantize_8bit_blockwise_kernel_util).

    bitsandbytes.functional.quantize_blockwise is another: on the CPU it rounds some numbers that are near the middle of
    two codes to the farther one.
    """
    blocks = value.reshape(-1, 256)
    absmax = blocks.abs().amax(1)
    distances = (blocks / absmax[:, None]).reshape(-1)[:, None] - code_book[None]
    return distances.abs().argmin(1), absmax


class AdamW8bit(ByHand):
    """bitsandbytes' AdamW8bit (backends/triton/kernels_optim.py), which needs a GPU, with its code books."""

    MAPS = {"exp_avg": bnb.create_dynamic_map(signed=True), "exp_avg_sq": bnb.create_dynamic_map(signed=False)}

    def __init__(self, weights):
        super().__init__(weights)
        self.codes = {}

    def moment(self, slot, name):
        if (slot, name) not in self.codes:
            return torch.zeros(SHAPES[name])
        codes, absmax = self.codes[slot, name]
        values = self.MAPS[slot][codes].reshape(-1, 256) * absmax[:, None]
        return values.reshape(SHAPES[name])

    def advance(self, name, weight, grad, decay):
        small = weight.numel() < 4096
        m = self.state("exp_avg", name) if small else self.moment("exp_avg", name)
        v = self.state("exp_avg_sq", name) if small else self.moment("exp_avg_sq", name)
        m.mul_(0.9).add_(grad, alpha=1 - 0.9)
        v.mul_(0.95).addcmul_(grad, grad, value=1 - 0.95)
        root = v.sqrt() / (1 - 0.95**self.number) ** 0.5
        weight.mul_(1 - RATE * decay).sub_(RATE / (1 - 0.9**self.number) * m / (root + 1e-8))
        if not small:
            for slot, value in (("exp_avg", m), ("exp_avg_sq", v)):
                self.codes[slot, name] = nearest_codes(value, self.MAPS[slot])
                self.states[slot, name] = self.moment(slot, name)


def by_hand(kind):
    made = []

    def make(weights):
        made.append(kind(weights))
        return made

    weights, _ = trained(make)
    out = tensors_of(weights)
    for (slot, name), value in made[0].states.items():
        out[f"state/{slot}/{name}"] = value.numpy()
    return out


def adafactor(scale_parameter):
    weights, optimizers = trained(lambda w: [
        transformers.Adafactor(groups(w, 0.0), lr=RATE, scale_parameter=scale_parameter, relative_step=False)])
    return tensors_of(weights, optimizers, ["exp_avg_sq_row", "exp_avg_sq_col", "exp_avg_sq"])


def muon():
    def make(weights):
        return [torch.optim.Muon([weights["matrix"], weights["tall"]], lr=RATE, weight_decay=DECAY, momentum=0.95,
                                 nesterov=True, adjust_lr_fn="match_rms_adamw"),
                torch.optim.AdamW([weights["norm"]], lr=RATE, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)]

    weights, optimizers = trained(make)
    return tensors_of(weights, optimizers, ["momentum_buffer", "exp_avg", "exp_avg_sq"])


# Name, keys of the recipe besides optimizer.learning_rate, tolerance, steps. Codes of 8 bits, bf16 and the products of
# Muon in bf16 may round differently where PyTorch adds in another order.
CASES = [
    ("adamw", ["optimizer.kind=adamw"], 1e-5, adamw),
    ("adamw_ema", ["optimizer.kind=adamw", "optimizer.ema=0.9"], 1e-5, lambda: adamw_ema(0.9)),
    ("adamw_bf16", ["optimizer.kind=adamw", "optimizer.state_dtype=bf16", "optimizer.master_dtype=bf16"], 1e-3,
     lambda: by_hand(RoundedAdamW)),
    ("adamw_8bit", ["optimizer.kind=adamw_8bit"], 1e-4, lambda: by_hand(AdamW8bit)),
    ("adafactor", ["optimizer.kind=adafactor"], 1e-5, lambda: adafactor(False)),
    ("adafactor_scaled", ["optimizer.kind=adafactor", "optimizer.scale_parameter=true"], 1e-5, lambda: adafactor(True)),
    ("lion", ["optimizer.kind=lion"], 1e-5, lambda: by_hand(Lion)),
    ("sgd", ["optimizer.kind=sgd", "optimizer.momentum=0"], 1e-5, lambda: sgd(0.0)),
    ("sgd_momentum", ["optimizer.kind=sgd", "optimizer.weight_decay=0.1"], 1e-5, lambda: sgd(0.9, decay=DECAY)),
    ("sgd_nesterov", ["optimizer.kind=sgd", "optimizer.nesterov=true"], 1e-5, lambda: sgd(0.9, nesterov=True)),
    ("muon", ["optimizer.kind=muon"], 1e-2, muon),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    here = os.path.dirname(os.path.abspath(__file__))
    parser.add_argument("--output", default=os.path.join(here, "..", "..", "tests", "golden", "optimizers"))
    output = parser.parse_args().output
    os.makedirs(output, exist_ok=True)
    torch.set_num_threads(1)
    books = {"signed": bnb.create_dynamic_map(signed=True).tolist(),
             "unsigned": bnb.create_dynamic_map(signed=False).tolist()}
    jsonfiles.write_json(os.path.join(output, "code_books.json"), books)
    cases = []
    for name, keys, tolerance, steps in CASES:
        tensors = {key: np.ascontiguousarray(value, dtype=np.float32) for key, value in steps().items()}
        os.makedirs(os.path.join(output, name), exist_ok=True)
        save_file(tensors, os.path.join(output, name, "model.safetensors"))
        cases.append({"name": name, "keys": keys, "tolerance": tolerance})
        print(name, json.dumps(keys))
    jsonfiles.write_json(os.path.join(output, "cases.json"),
                         {"steps": STEPS, "learning_rate": RATE, "seed": SEED, "cases": cases})


if __name__ == "__main__":
    main()

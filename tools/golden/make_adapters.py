"""Generate tests/golden/adapters: adapters of tiny models, computed and trained by PEFT in float64.

usage: make_adapters.py [--output tests/golden/adapters] [CASE ...]

The base models and their data are those of tests/golden/tiny and tests/golden/families. Each case is a folder that PEFT
saved (adapter_config.json, adapter_model.safetensors) with expected.json; tests/golden/README.md describes the format.
The script checks the values of a case before it writes them: gradients against a difference quotient of the loss, the
loss of the saved folder, and that the features of the case (rsLoRA, DoRA) change the loss. The output depends only on
this file, make_families.py, the base models and the versions in tools/requirements-golden.txt.
"""

import contextlib
import json
import os
from unittest import mock

import numpy as np
import peft
import torch
import transformers
from peft.tuners.lora.dora import DoraLinearLayer

import command
import jsonfiles
import make_families
import oracle

LLAMA_TARGETS = ["q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]

# `base`: a folder in tests/golden. `lora`: of peft.LoraConfig. `other`: a change of it with which the same tensors must
# have another loss.
CASES = {
    "llama_lora": {
        "about": "all-linear; packed documents", "base": "tiny/packed",
        "lora": {"r": 4, "lora_alpha": 8, "target_modules": "all-linear"}, "other": {"lora_alpha": 9}},
    "llama_rslora": {
        "about": "scale lora_alpha / sqrt(r)", "base": "tiny/packed",
        "lora": {"r": 4, "lora_alpha": 3, "target_modules": ["q_proj", "v_proj", "down_proj"], "use_rslora": True},
        "other": {"use_rslora": False}},
    "llama_dora": {
        "about": "DoRA of Linears with biases; a tied head", "base": "tiny/everything",
        "lora": {"r": 3, "lora_alpha": 6, "target_modules": LLAMA_TARGETS, "use_dora": True},
        "other": {"use_dora": False}},
    "llama_modules_to_save": {
        "about": "trained copies of the embedding, the head and all norms, whose names end with norm",
        "base": "tiny/packed",
        "lora": {"r": 2, "lora_alpha": 4, "target_modules": ["q_proj", "v_proj"],
                 "modules_to_save": ["embed_tokens", "lm_head", "norm"]},
        "other": {"lora_alpha": 8}},
    "gpt_neox": {
        "about": "fused query_key_value", "base": "families/gpt_neox",
        "lora": {"r": 4, "lora_alpha": 8,
                 "target_modules": ["query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"]},
        "other": {"target_modules": ["dense"]}},
    "gpt_neox_dora": {
        "about": "DoRA of a fused query_key_value, rsLoRA's scale", "base": "families/gpt_neox_serial",
        "lora": {"r": 2, "lora_alpha": 3, "target_modules": ["query_key_value", "dense_4h_to_h"], "use_dora": True,
                 "use_rslora": True},
        "other": {"use_dora": False}},
    "mixtral": {
        "about": "attention's Linears beside frozen experts, with their load-balancing loss",
        "base": "families/mixtral",
        "lora": {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]},
        "other": {"target_modules": ["q_proj", "o_proj"]}},
}


def base_folder(case):
    return command.golden(case["base"])


def config_of(case, change=None):
    lora = {"task_type": "CAUSAL_LM", "lora_dropout": 0.0, **case["lora"], **(change or {})}
    return peft.LoraConfig(**lora)


def random_adapter(model, generator):
    """Values large enough that the adapter changes the loss and every gradient is significant."""
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        noise = torch.tensor(generator.standard_normal(tuple(parameter.shape)))
        if ".lora_A." in name:
            value = 0.3 * noise
        elif ".lora_B." in name:
            value = 0.15 * noise
        elif ".lora_magnitude_vector." in name:
            value = parameter.detach() * (1 + 0.2 * noise)
        else:
            value = parameter.detach() + 0.1 * noise
        parameter.data = value.to(torch.float32)


def save(model, case, folder):
    """The folder as PEFT saves it; without its model card, and lists sorted that PEFT writes in the order of a set."""
    model.peft_config["default"].base_model_name_or_path = case["base"]
    model.save_pretrained(folder, save_embedding_layers=False)
    os.remove(os.path.join(folder, "README.md"))
    path = os.path.join(folder, "adapter_config.json")
    with open(path, encoding="utf-8") as file:
        config = json.load(file)
    for key in ("target_modules", "modules_to_save"):
        if isinstance(config[key], list):
            config[key] = sorted(config[key])
    with open(path, "w", encoding="utf-8") as file:
        file.write(json.dumps(config, indent=2, sort_keys=True))


def load_double(base, folder, config=None):
    """A base model with a saved adapter, trainable, in float64. `config`: in place of that of the folder."""
    model = peft.PeftModel.from_pretrained(oracle.load_double(base), folder, is_trainable=True, config=config)
    assert all(parameter.dtype == torch.float64 for parameter in model.parameters())
    return model.eval()


def file_tensors(model, values):
    """{name in adapter_model.safetensors: tensor} of {name of a trainable parameter: tensor}."""
    return peft.get_peft_model_state_dict(model, state_dict={**model.state_dict(), **values},
                                          save_embedding_layers=False)


@contextlib.contextmanager
def constant_norms(model):
    """DoRA's norms stay those of the first forward pass, as its gradients assume."""
    norms, compute = {}, DoraLinearLayer.get_weight_norm

    def first(self, *arguments, **keywords):
        if id(self) not in norms:
            norms[id(self)] = compute(self, *arguments, **keywords)
        return norms[id(self)]

    with mock.patch.object(DoraLinearLayer, "get_weight_norm", first):
        yield


def make(name, folder):
    """Writes one case; returns a line to print."""
    case = CASES[name]
    base = base_folder(case)
    lines = jsonfiles.read_lines(os.path.join(base, "data.jsonl"))
    with open(os.path.join(base, "expected.json"), encoding="utf-8") as file:
        of_base = json.load(file)
    generator = np.random.Generator(np.random.PCG64([20261126, list(CASES).index(name)]))
    os.makedirs(folder, exist_ok=True)
    torch.manual_seed(0)  # of the values that PEFT starts with, all of which are replaced
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    model = peft.get_peft_model(model, config_of(case))
    random_adapter(model, generator)
    save(model, case, folder)
    saved = peft.get_peft_model_state_dict(model, save_embedding_layers=False)

    model = load_double(base, folder)
    loaded = peft.get_peft_model_state_dict(model, save_embedding_layers=False)
    assert saved.keys() == loaded.keys()
    assert all(torch.equal(saved[key].double(), loaded[key]) for key in saved)
    losses = make_families.Losses(model, lines)
    model.zero_grad(set_to_none=True)
    with constant_norms(model):
        loss, cross_entropy, router = losses()
        loss.backward()
        error = make_families.check_gradient(model, losses, generator)
    assert losses.count == of_base["tokens"]
    assert abs(loss.item() - of_base["loss"]) > 0.02, (loss.item(), of_base["loss"])
    other = make_families.Losses(load_double(base, folder, config_of(case, case["other"])), lines).value() - loss.item()
    assert abs(other) > 5e-4, other
    gradients = file_tensors(model, {key: p.grad for key, p in model.named_parameters() if p.requires_grad})
    assert gradients.keys() == saved.keys()
    summary = oracle.summary_of(gradients, digits=10, projection_digits=6)
    norms = summary["gradient_norms"].values()
    assert min(norms) > 1e-4, summary["gradient_norms"]
    steps, clipped = make_families.train(model, lines, fall=0.05)
    trained = peft.get_peft_model_state_dict(model, save_embedding_layers=False)
    steps["norms"] = {key: oracle.rounded(trained[key].norm().item(), 10) for key in summary["gradient_norms"]}
    expected = {
        "about": case["about"],
        "made_with": command.made_with() | {"peft": peft.__version__},
        "base": case["base"], "sequence_length": of_base["sequence_length"], "loss": loss.item(),
        "tokens": losses.count}
    if router is not None:
        expected.update(cross_entropy=cross_entropy.item(), router_loss=router.item())
    expected.update(**summary, steps=steps)
    jsonfiles.write_json(os.path.join(folder, "expected.json"), expected)
    size = command.folder_size(folder)
    return (f"{name:22} loss {loss.item():.6f}, base {of_base['loss']:.3f}, slope off by {error:.0e}, "
            f"{len(norms)} norms {min(norms):.2g} to {max(norms):.2g}, steps to {steps['losses'][-1]:.3f}, {clipped} "
            f"clipped, {size} KiB  other {other:+.3f}")


if __name__ == "__main__":
    command.make_cases(__doc__, "adapters", CASES, make)

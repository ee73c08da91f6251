"""Generate tests/golden/families: tiny random models of every family, computed by transformers in float64.

usage: make_families.py [--output tests/golden/families] [CASE ...]

Each case is a folder as in tests/golden/tiny, with more in expected.json: losses of training steps, greedy text, and
for experts the load-balancing loss; tests/golden/README.md describes the format. transformers saves the weights, so
that tensors have the names of its files; config.json is its own, or for some cases as transformers 4 writes it. The
script checks the values of a case before it writes them: gradients against a difference quotient of the loss, and that
the features of the case (windows, RoPE and others) change the loss. The output depends only on this file and the
versions in tools/requirements-golden.txt.
"""

import copy
import json
import os
import shutil
import tempfile

import numpy as np
import safetensors.torch
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

import command
import jsonfiles
import oracle

STEPS = {"count": 20, "learning_rate": 3e-3, "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "weight_decay": 0.1,
         "gradient_clip": 1.0}
NEW_TOKENS = 12
MIN_MARGIN = 1e-3
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}

# Keys of all cases. Sizes are odd where a family allows it.
SIZES = {"vocab_size": 67, "hidden_size": 24, "intermediate_size": 22, "num_hidden_layers": 2, "num_attention_heads": 3,
         "num_key_value_heads": 1, "max_position_embeddings": 128}

# `config`: keys besides SIZES. `style` 4: config.json has exactly these keys, as transformers 4 writes them; 5: that of
# transformers. `other`: for each feature a change of the config, whose loss with the same weights must differ.
# `documents`: the lines of data.jsonl, as lengths of their documents.
CASES = {
    "mistral": {
        "about": "a window of 7 keys; lines of documents longer than it", "style": 5,
        "config": {"model_type": "mistral", "sliding_window": 7, "head_dim": 10, "rope_theta": 500.0,
                   "num_attention_heads": 4, "num_key_value_heads": 2},
        "other": {"window": {"sliding_window": 8}}, "documents": [[19, 1, 8], [30]]},
    "mistral_yarn": {
        "about": "no window, as in version 0.3; yarn", "style": 4,
        "config": {"model_type": "mistral", "sliding_window": None, "head_dim": 12, "rope_theta": 1000.0,
                   "rope_scaling": YARN, "rms_norm_eps": 1e-05, "max_position_embeddings": 512},
        "other": {"yarn": {"rope_scaling": None}, "bounds": {"rope_scaling": {**YARN, "beta_fast": 2.0}}},
        "documents": [[61], [33, 2]]},
    "qwen2": {
        "about": "biases of q, k and v; a window from the second layer on; a tied head", "style": 4,
        "config": {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1,
                   "tie_word_embeddings": True, "rope_theta": 1000000.0},
        "other": {"layers": {"max_window_layers": 0}}, "documents": [[25, 7], [18, 3, 1]]},
    "qwen3": {
        "about": "norms of queries and keys; heads of 10 dims", "style": 5,
        "config": {"model_type": "qwen3", "head_dim": 10, "rms_norm_eps": 1e-05},
        "other": {"epsilon": {"rms_norm_eps": 1e-1}}, "documents": [[22, 9], [1, 27]]},
    "mixtral": {
        "about": "2 of 5 experts, a window, and the load-balancing loss", "style": 4,
        "config": {"model_type": "mixtral", "num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 9,
                   "output_router_logits": True, "router_aux_loss_coef": 0.05, "rope_theta": 1000000.0,
                   "rms_norm_eps": 1e-05, "router_jitter_noise": 0.0, "intermediate_size": 14},
        "other": {"top_k": {"num_experts_per_tok": 3}}, "documents": [[29, 1, 16]]},
    "qwen3_moe": {
        "about": "3 of 5 experts in all layers but the first, weights divided by their sum", "style": 5,
        "config": {"model_type": "qwen3_moe", "head_dim": 10, "num_experts": 5, "num_experts_per_tok": 3,
                   "moe_intermediate_size": 14, "mlp_only_layers": [0], "norm_topk_prob": True,
                   "num_hidden_layers": 3, "intermediate_size": 30, "router_aux_loss_coef": 0.0},
        "other": {"norm_topk_prob": {"norm_topk_prob": False}}, "documents": [[26, 12], [21, 1]]},
    "qwen3_moe_sparse": {
        "about": "1 of 3 experts in every second layer, weights as they are, and the load-balancing loss", "style": 4,
        "config": {"model_type": "qwen3_moe", "head_dim": 8, "num_experts": 3, "num_experts_per_tok": 1,
                   "moe_intermediate_size": 18, "decoder_sparse_step": 2, "norm_topk_prob": False,
                   "output_router_logits": True, "router_aux_loss_coef": 0.02, "tie_word_embeddings": True},
        "other": {"norm_topk_prob": {"norm_topk_prob": True}}, "documents": [[31, 2, 14]]},
    "gemma3": {
        "about": "every second layer with a window and a RoPE of its own", "style": 4,
        "config": {"model_type": "gemma3_text", "head_dim": 10, "query_pre_attn_scalar": 17, "sliding_window": 6,
                   "sliding_window_pattern": 2, "rope_theta": 1000.0, "rope_local_base_freq": 30.0,
                   "hidden_activation": "gelu_pytorch_tanh", "attn_logit_softcapping": None,
                   "final_logit_softcapping": None, "num_hidden_layers": 3},
        "other": {"local base": {"rope_local_base_freq": 1000.0}, "scale": {"query_pre_attn_scalar": 10}},
        "documents": [[23, 1, 7], [20]]},
    "gemma3_nested": {
        "about": "rope_parameters for each kind of layer, the full ones with linear scaling; layer_types", "style": 5,
        "config": {"model_type": "gemma3_text", "head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 5,
                   "layer_types": ["full_attention", "sliding_attention"], "pad_token_id": None,
                   "rope_parameters": {
                       "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 300.0},
                       "sliding_attention": {"rope_type": "default", "rope_theta": 20.0}}},
        "other": {"order": {"layer_types": ["sliding_attention", "full_attention"]}}, "documents": [[17, 6], [24]]},
    "gpt_neox": {
        "about": "a quarter of each head rotated; attention and MLP side by side; embed_out", "style": 4,
        "config": {"model_type": "gpt_neox", "hidden_act": "gelu", "rotary_pct": 0.25, "rotary_emb_base": 100,
                   "use_parallel_residual": True, "layer_norm_eps": 1e-05, "attention_dropout": 0.0,
                   "hidden_dropout": 0.0},
        "other": {"rotary": {"rotary_pct": 0.5}, "residual": {"use_parallel_residual": False}},
        "documents": [[28, 1, 5], [19]]},
    "gpt_neox_serial": {
        "about": "attention, then MLP; another GELU; no biases in attention", "style": 5,
        "config": {"model_type": "gpt_neox", "hidden_act": "gelu_new", "rotary_pct": 0.5, "attention_bias": False,
                   "use_parallel_residual": False, "rotary_emb_base": 300, "tie_word_embeddings": True},
        "other": {"residual": {"use_parallel_residual": True}}, "documents": [[21, 3], [16, 4]]},
}
COMMON = {"attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
          "initializer_range": 0.02, "rms_norm_eps": 1e-06, "tie_word_embeddings": False, "torch_dtype": "float32",
          "transformers_version": "4.51.0", "use_cache": True}


def config_of(case):
    """The keys of a case; with style 4 they are its config.json."""
    config = {**SIZES, **(COMMON if case["style"] == 4 else {"bos_token_id": 1, "eos_token_id": 2}), **case["config"]}
    if config["model_type"] == "gpt_neox":
        for key in ("num_key_value_heads", "rms_norm_eps", "rope_theta"):
            config.pop(key, None)
    if config["model_type"] == "gemma3_text" and case["style"] == 4:
        config.pop("hidden_act")
        config.pop("tie_word_embeddings")  # the default of the family, which transformers 4 does not write
    return copy.deepcopy(config)


def transformers_config(keys):
    """The config that transformers reads from a config.json of these keys."""
    with tempfile.TemporaryDirectory() as folder:
        jsonfiles.write_json(os.path.join(folder, "config.json"), keys)
        return AutoConfig.from_pretrained(folder)


def random_weights(model, generator):
    """Values large enough that attention is peaked and every gradient is significant."""
    for name, parameter in model.named_parameters():
        noise = generator.standard_normal(tuple(parameter.shape))
        if "norm" in name and name.endswith("weight"):
            value = parameter.detach().numpy() + 0.2 * noise  # around the value that it starts with, 0 or 1
        elif "embed" in name and "out" not in name:
            scale = getattr(model.get_input_embeddings(), "scalar_embed_scale", 1.0)
            value = (0.3 if model.config.tie_word_embeddings else 0.7) / scale ** 0.5 * noise
        elif "q_proj.weight" in name or "k_proj.weight" in name or "query_key_value.weight" in name:
            value = 0.3 * noise
        elif name.endswith(".bias"):
            value = 0.3 * noise
        elif "mlp.gate.weight" in name:
            value = 0.6 * noise  # routers: margins of the choice of experts
        elif ".experts." in name:
            value = 0.4 * noise
        else:
            value = 0.25 * noise
        parameter.data = torch.tensor(value, dtype=torch.float32)


def random_lines(case, vocabulary, generator):
    """Lines of data.jsonl, some labels masked. No token is 0, which some families take for padding."""
    lines = []
    for index, lengths in enumerate(case["documents"]):
        ids = generator.integers(3, vocabulary, sum(lengths)).tolist()
        line = {"input_ids": ids}
        if index == 0:
            line["labels"] = [oracle.IGNORED if dropped else label
                              for label, dropped in zip(ids, generator.random(len(ids)) < 0.2)]
        if len(lengths) > 1:
            line["document_lengths"] = lengths
        lines.append(line)
    return lines


def save(model, keys, style, folder):
    """Writes the folder as transformers does; with style 4, config.json has just the keys."""
    model.save_pretrained(folder)
    os.remove(os.path.join(folder, "generation_config.json"))
    if style == 4:
        os.remove(os.path.join(folder, "config.json"))
        jsonfiles.write_json(os.path.join(folder, "config.json"), dict(sorted(keys.items())))


def file_tensors(model, tensors):
    """Renames and splits {name in the model: tensor} to the names of transformers' files."""
    out = {}
    mixtral = model.config.model_type == "mixtral"
    for name, tensor in tensors.items():
        if ".mlp.experts." in name:
            base, part = name.rsplit(".", 1)
            names = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}[part]
            for expert in range(tensor.shape[0]):
                for new, piece in zip(names, tensor[expert].chunk(len(names))):
                    out[f"{base}.{expert}.{new}.weight"] = piece.contiguous()
        else:
            out[name] = tensor
    if mixtral:
        renamed = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}
        out = {name.replace(".mlp.", ".block_sparse_moe."): tensor for name, tensor in out.items()}
        for old, new in renamed.items():
            out = {name.replace(f".{old}.weight", f".{new}.weight"): tensor for name, tensor in out.items()}
    if model.config.model_type == "gpt_neox":
        out = {name.replace("lm_head.", "embed_out."): tensor for name, tensor in out.items()}
    return out


class Losses:
    """The loss of lines that transformers computes: cross entropy over all targets, and with output_router_logits the
    load-balancing loss of all tokens as one batch. Each document is a sequence of its own."""

    def __init__(self, model, lines):
        self.model, self.lines = model, lines
        self.count = oracle.count_targets(lines)
        config = model.config
        self.routed = bool(getattr(config, "output_router_logits", False))
        self.coefficient = config.router_aux_loss_coef if self.routed else 0.0

    def __call__(self):
        """(total, cross entropy, load-balancing loss or None), as tensors with gradients."""
        total, logits_of = 0.0, []
        with oracle.precision_of(self.model):
            for line in self.lines:
                for start, stop in oracle.documents(line):
                    ids = torch.tensor([line["input_ids"][start:stop]])
                    out = self.model(ids, use_cache=False, **({"output_router_logits": True} if self.routed else {}))
                    targets = torch.tensor(oracle.next_labels(line, start, stop))
                    total = total + torch.nn.functional.cross_entropy(
                        out.logits[0], targets, ignore_index=oracle.IGNORED, reduction="sum")
                    if self.routed:
                        logits_of.append(out.router_logits)
            loss = total / self.count
            if not self.routed:
                return loss, loss, None
            config = self.model.config
            joined = tuple(torch.cat(layer) for layer in zip(*logits_of))
            router = load_balancing_loss_func(joined, joined[0].shape[-1], config.num_experts_per_tok)
            return loss + self.coefficient * router, loss, router

    def value(self):
        with torch.no_grad():
            return self()[0].item()


def trainable(model):
    return [p for p in model.parameters() if p.requires_grad]


def check_gradient(model, losses, generator):
    """Checks the gradient along a random direction against a difference quotient; requires float64."""
    parameters = trainable(model)
    directions = [torch.tensor(generator.standard_normal(tuple(p.shape))) for p in parameters]
    slope = sum((p.grad * d).sum().item() for p, d in zip(parameters, directions))
    originals = [p.detach().clone() for p in parameters]
    step, values = 1e-6, {}
    with torch.no_grad():
        for multiple in (-2, -1, 1, 2):
            for p, original, d in zip(parameters, originals, directions):
                p.copy_(original + multiple * step * d)
            values[multiple] = losses.value()
        for p, original in zip(parameters, originals):
            p.copy_(original)
    quotient = (8 * (values[1] - values[-1]) - (values[2] - values[-2])) / (12 * step)
    error = abs(quotient - slope) / sum(p.grad.square().sum().item() for p in parameters) ** 0.5
    assert error < 1e-7, f"gradient off by {error:.1e}: {slope} {quotient}"
    return error


def loss_of_other(folder, keys, change, lines):
    """The loss of the same weights with another config."""
    changed = {**keys, **change}
    with tempfile.TemporaryDirectory() as twin:
        shutil.copy(os.path.join(folder, "model.safetensors"), twin)
        jsonfiles.write_json(os.path.join(twin, "config.json"), changed)
        return Losses(oracle.load_double(twin), lines).value()


def train(model, lines, fall=0.3):
    """Losses before each of STEPS, by torch's AdamW in float64: all lines are the batch of every step. Changes the model.
    The loss falls by more than `fall`."""
    losses = Losses(model, lines)
    parameters = trainable(model)
    matrices, others = [p for p in parameters if p.dim() > 1], [p for p in parameters if p.dim() <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": STEPS["weight_decay"]}, {"params": others, "weight_decay": 0.0}],
        lr=STEPS["learning_rate"], betas=(STEPS["beta1"], STEPS["beta2"]), eps=STEPS["epsilon"])
    values, clipped = [], 0
    for _ in range(STEPS["count"]):
        optimizer.zero_grad()
        loss = losses()[0]
        loss.backward()
        clipped += torch.nn.utils.clip_grad_norm_(parameters, STEPS["gradient_clip"]).item() > STEPS["gradient_clip"]
        optimizer.step()
        values.append(loss.item())
    assert values[-1] < values[0] - fall, values
    return {**STEPS, "losses": values}, clipped


def generation(model, generator):
    """Greedy text after a prompt longer than the window, with large enough margins."""
    while True:
        prompt = generator.integers(3, model.config.vocab_size, 11).tolist()
        ids, margin = oracle.greedy(model, prompt, NEW_TOKENS)
        if margin > MIN_MARGIN:
            return {"prompt_ids": prompt, "ids": ids, "smallest_margin": oracle.rounded(margin, 4)}


def make(name, folder):
    """Writes one case; returns a line to print."""
    case = CASES[name]
    keys = config_of(case)
    generator = np.random.Generator(np.random.PCG64([20261125, list(CASES).index(name)]))
    model = AutoModelForCausalLM.from_config(transformers_config(keys), dtype=torch.float32).eval()
    random_weights(model, generator)
    lines = random_lines(case, keys["vocab_size"], generator)
    os.makedirs(folder, exist_ok=True)
    save(model, keys, case["style"], folder)
    jsonfiles.write_lines(os.path.join(folder, "data.jsonl"), lines)

    saved = safetensors.torch.load_file(os.path.join(folder, "model.safetensors"))
    mapped = file_tensors(model, {key: p.detach() for key, p in model.named_parameters()})
    assert saved.keys() == mapped.keys(), saved.keys() ^ mapped.keys()
    assert all(torch.equal(saved[key], mapped[key]) for key in saved)

    model = oracle.load_double(folder)
    losses = Losses(model, lines)
    model.zero_grad(set_to_none=True)
    loss, cross_entropy, router = losses()
    loss.backward()
    error = check_gradient(model, losses, generator)
    notes = []
    for feature, change in case["other"].items():
        effect = loss_of_other(folder, json.load(open(os.path.join(folder, "config.json"), encoding="utf-8"))
                               if case["style"] == 5 else keys, change, lines) - loss.item()
        assert abs(effect) > 5e-4, (feature, effect)
        notes.append(f"{feature} {effect:+.3f}")
    steps, clipped = train(oracle.load_double(folder), lines)
    gradients = file_tensors(model, {key: p.grad for key, p in model.named_parameters()})
    summary = oracle.summary_of(gradients, digits=10, projection_digits=6)
    norms = summary["gradient_norms"].values()
    assert min(norms) > 1e-4, summary["gradient_norms"]
    expected = {
        "about": case["about"],
        "made_with": command.made_with(),
        "sequence_length": max(len(line["input_ids"]) for line in lines), "loss": loss.item(), "tokens": losses.count}
    if router is not None:
        expected.update(cross_entropy=cross_entropy.item(), router_loss=router.item())
    expected.update(**summary, steps=steps, generation=generation(model, generator))
    jsonfiles.write_json(os.path.join(folder, "expected.json"), expected)
    return (f"{name:16} loss {loss.item():.6f}, slope off by {error:.0e}, norms {min(norms):.2g} to {max(norms):.2g}, "
            f"steps to {steps['losses'][-1]:.3f}, {clipped} clipped, {command.folder_size(folder)} KiB  "
            f"{', '.join(notes)}")


def main():
    command.make_cases(__doc__, "families", CASES, make)


if __name__ == "__main__":
    main()

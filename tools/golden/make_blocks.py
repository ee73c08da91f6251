"""Generate tests/golden/blocks: tiny models of several families, with loss and gradients in float64.

usage: make_blocks.py [--output tests/golden/blocks]

Each case is a folder with model/model.safetensors, gradients/model.safetensors (float32, rounded once) and
expected.json: ids of one document, the loss of its tokens by transformers, and with experts the routers' loss, which the
gradients include. tests/parity/blocks_test.cpp describes these models as data. The
output depends only on this file and the versions in tools/requirements-golden.txt.
"""

import argparse
import os
import shutil

import numpy as np
import safetensors.torch
import torch
import transformers
from transformers import (
    BertConfig, BertForMaskedLM, BloomConfig, BloomForCausalLM, FalconConfig, FalconForCausalLM, Gemma2Config,
    Gemma2ForCausalLM, Gemma3ForCausalLM, Gemma3TextConfig, GPT2Config, GPT2LMHeadModel, GPTJConfig, GPTJForCausalLM,
    GPTNeoXConfig, GPTNeoXForCausalLM, LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM, Qwen3Config,
    Qwen3ForCausalLM, RobertaConfig, RobertaForMaskedLM)
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

import jsonfiles
import oracle


class ParallelLlamaLayer(LlamaDecoderLayer):
    """Llama's layer as y = x + attention(norm(x)) + mlp(norm(x)), with one norm."""

    def __init__(self, config, layer_idx):
        super().__init__(config, layer_idx)
        del self.post_attention_layernorm

    def forward(self, hidden_states, **kwargs):
        normed = self.input_layernorm(hidden_states)
        return hidden_states + self.self_attn(hidden_states=normed, **kwargs)[0] + self.mlp(normed)


class ParallelLlama(LlamaForCausalLM):
    """Llama with parallel layers; transformers has no such model with an RMS norm."""

    def __init__(self, config):
        super().__init__(config)
        for i in range(config.num_hidden_layers):
            self.model.layers[i] = ParallelLlamaLayer(config, i)


CASES = {
    # LayerNorm, GELU, parallel residual, a part of each head rotated, q, k and v of a head side by side in the file.
    "neox": (GPTNeoXForCausalLM, GPTNeoXConfig(
        vocab_size=67, hidden_size=36, num_hidden_layers=2, num_attention_heads=3, intermediate_size=50,
        hidden_act="gelu", max_position_embeddings=64, use_parallel_residual=True, tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5})),
    # LayerNorm, GELU by tanh, learned positions, transposed weights, a tied head.
    "gpt2": (GPT2LMHeadModel, GPT2Config(
        vocab_size=67, n_embd=36, n_layer=2, n_head=3, n_inner=50, n_positions=64, activation_function="gelu_new",
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)),
    # Norms before and after each layer and of q and k, whose factor is 1 + weight; GELU gate; a factor of the
    # embeddings; windows and RoPE bases that alternate; an odd width; a tied head.
    "gemma3": (Gemma3ForCausalLM, Gemma3TextConfig(
        vocab_size=67, hidden_size=33, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=1, head_dim=10,
        intermediate_size=50, hidden_activation="gelu_pytorch_tanh", max_position_embeddings=64, rms_norm_eps=1e-6,
        query_pre_attn_scalar=14, sliding_window=5, layer_types=["sliding_attention", "full_attention"],
        attention_bias=False, attention_dropout=0.0, tie_word_embeddings=True, pad_token_id=None,
        rope_parameters={"sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
                         "full_attention": {"rope_type": "linear", "rope_theta": 20000.0, "factor": 2.0}})),
    # Norms of q and k, grouped heads.
    "qwen3": (Qwen3ForCausalLM, Qwen3Config(
        vocab_size=67, hidden_size=36, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2, head_dim=8,
        intermediate_size=50, hidden_act="silu", max_position_embeddings=64, rms_norm_eps=1e-6, attention_bias=False,
        attention_dropout=0.0, use_sliding_window=False, tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0})),
    # Experts in place of an MLP; the load-balancing loss is part of the model's.
    "mixtral": (MixtralForCausalLM, MixtralConfig(
        vocab_size=67, hidden_size=36, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=3, head_dim=6,
        intermediate_size=22, num_local_experts=5, num_experts_per_tok=2, max_position_embeddings=64,
        router_aux_loss_coef=0.2, output_router_logits=True, tie_word_embeddings=False, sliding_window=None,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0})),
    # One LayerNorm for attention and MLP, which are side by side; one key head, GELU, no biases, a tied head.
    "falcon": (FalconForCausalLM, FalconConfig(
        vocab_size=67, hidden_size=36, num_hidden_layers=2, num_attention_heads=3, ffn_hidden_size=50,
        multi_query=True, parallel_attn=True, new_decoder_architecture=False, bias=False, alibi=False,
        hidden_dropout=0.0, attention_dropout=0.0, max_position_embeddings=64, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0})),
    # The same with an RMS norm and SwiGLU.
    "parallel_llama": (ParallelLlama, LlamaConfig(
        vocab_size=67, hidden_size=36, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2, head_dim=8,
        intermediate_size=50, max_position_embeddings=64, rms_norm_eps=1e-6, tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0})),
    # Soft-capped scores, with and without a window, soft-capped logits, and the norms of Gemma.
    "gemma2": (Gemma2ForCausalLM, Gemma2Config(
        vocab_size=67, hidden_size=33, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=1, head_dim=10,
        intermediate_size=50, hidden_activation="gelu_pytorch_tanh", max_position_embeddings=64, rms_norm_eps=1e-6,
        query_pre_attn_scalar=14, sliding_window=5, layer_types=["sliding_attention", "full_attention"],
        attention_bias=False, attention_dropout=0.0, tie_word_embeddings=True, pad_token_id=None,
        attn_logit_softcapping=1.5, final_logit_softcapping=2.0,
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0})),
    # ALiBi of a number of heads that is no power of two; no RoPE and no positions of the embedding, but a norm.
    "bloom": (BloomForCausalLM, BloomConfig(
        vocab_size=67, hidden_size=36, n_layer=2, n_head=3, hidden_dropout=0.0, attention_dropout=0.0,
        tie_word_embeddings=True)),
    # Interleaved rotation of a part of each head, one norm for attention and MLP, biases of the MLP and of the head.
    "gptj": (GPTJForCausalLM, GPTJConfig(
        vocab_size=67, n_embd=36, n_layer=2, n_head=3, n_inner=50, n_positions=64, rotary_dim=6,
        activation_function="gelu_new", resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, tie_word_embeddings=False)),
    # Attention to later tokens, norms of sums, token types, the transform and the bias of a head of masks.
    "bert": (BertForMaskedLM, BertConfig(
        vocab_size=67, hidden_size=36, num_hidden_layers=2, num_attention_heads=3, intermediate_size=50,
        max_position_embeddings=64, layer_norm_eps=1e-5, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)),
    # The same with one token type and positions that begin at 2.
    "roberta": (RobertaForMaskedLM, RobertaConfig(
        vocab_size=67, hidden_size=36, num_hidden_layers=2, num_attention_heads=3, intermediate_size=50,
        max_position_embeddings=66, type_vocab_size=1, layer_norm_eps=1e-5, pad_token_id=1, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0)),
}


def set_double_frequencies(model):
    """Computes the rotary frequencies again, in float64; GPT-J has a table of sines and cosines."""
    for module in model.modules():
        if hasattr(module, "embed_positions"):
            positions, dims = module.embed_positions.shape
            frequencies = 10000.0 ** (-torch.arange(0, dims, 2, dtype=torch.float64) / dims)
            angles = torch.arange(positions, dtype=torch.float64)[:, None] * frequencies
            module.embed_positions = torch.cat((angles.sin(), angles.cos()), dim=1)
    rotary = next((module for key, module in model.named_modules() if key.endswith("rotary_emb")), None)
    if rotary is None:
        return
    with oracle.all_double():
        for layer_type in getattr(rotary, "layer_types", [None]):
            kind = rotary.rope_type if layer_type is None else rotary.rope_type[layer_type]
            compute = rotary.compute_default_rope_parameters if kind == "default" else ROPE_INIT_FUNCTIONS[kind]
            options = {} if layer_type is None else {"layer_type": layer_type}
            frequencies, factor = compute(rotary.config, **options)
            assert frequencies.dtype == torch.float64 and factor == 1.0
            setattr(rotary, "inv_freq" if layer_type is None else f"{layer_type}_inv_freq", frequencies)


def with_random_weights(model, generator, norm=1.0):
    """The model in float64, and its weights in float32, which are the same; those of norms are near to `norm`."""
    weights = {}
    for key, parameter in model.named_parameters():
        noise = generator.standard_normal(tuple(parameter.shape))
        of_norm = ("norm" in key.lower() or ".ln_" in key) and key.endswith(".weight")
        weights[key] = torch.tensor(norm + 0.2 * noise if of_norm else 0.25 * noise, dtype=torch.float32)
    model = model.double()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            parameter.copy_(weights[key].double())
    set_double_frequencies(model)
    return model, weights


def make(name, folder):
    """Writes one case; returns a line to print."""
    kind, config = CASES[name]
    config._attn_implementation = config._experts_implementation = "eager"
    generator = np.random.Generator(np.random.PCG64([20261124, list(CASES).index(name)]))
    model = kind(config).eval()
    model, weights = with_random_weights(model, generator, 0.0 if name.startswith("gemma") else 1.0)
    ids = generator.integers(0, config.vocab_size, 29).tolist()
    more = {}
    if name == "bert":
        more["token_type_ids"] = generator.integers(0, config.type_vocab_size, len(ids)).tolist()
    if name == "roberta":
        ids = [2 if i == config.pad_token_id else i for i in ids]  # padding has no position
    loss, router_loss = losses(model, ids, more)
    assert loss.dtype == torch.float64
    (loss + router_loss).backward()
    gradients = {key: parameter.grad for key, parameter in model.named_parameters()}
    # The softmax ignores a bias of all keys.
    assert min(gradient.norm().item() for key, gradient in gradients.items() if not key.endswith("key.bias")) > 1e-4
    slope_error = check_slope(model, lambda: sum(losses(model, ids, more)), gradients, generator)

    if name == "mixtral":
        weights, gradients = by_expert(weights), by_expert(gradients)
    write(folder, weights, gradients, {"ids": ids, **more, "loss": loss.item(),
                                       **({"router_loss": router_loss.item()} if name == "mixtral" else {})})
    return f"{name}: loss {loss.item():.6f}, slope off by {slope_error:.0e}"


def write(folder, weights, gradients, expected):
    """Writes the files of a case."""
    os.makedirs(folder, exist_ok=True)
    for file, tensors in (("model", weights), ("gradients", gradients)):
        os.makedirs(os.path.join(folder, file), exist_ok=True)
        tensors = {key: value.to(torch.float32).contiguous() for key, value in tensors.items()}
        path = os.path.join(folder, file, "model.safetensors")
        safetensors.torch.save_file(tensors, path, metadata={"format": "pt"})
        os.chmod(path, 0o644)
    jsonfiles.write_json(os.path.join(folder, "expected.json"), {
        "made_with": {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__}, **expected})


def losses(model, ids, more):
    """The loss of the tokens and that of the routers, which is 0 without any. more: the model's other inputs."""
    with oracle.all_double():
        output = model(torch.tensor([ids]), **{key: torch.tensor([values]) for key, values in more.items()})
    loss = torch.nn.functional.cross_entropy(output.logits[0, :-1], torch.tensor(ids[1:]))
    router_loss = getattr(output, "aux_loss", None)
    if router_loss is None:
        return loss, torch.zeros((), dtype=torch.float64)
    assert router_loss.dtype == torch.float64
    return loss, model.config.router_aux_loss_coef * router_loss


def by_expert(tensors):
    """Names and tensors of the file: transformers 5 has the experts of a layer in one parameter."""
    out = {}
    for key, value in tensors.items():
        prefix = key.rsplit(".experts.", 1)[0].replace(".mlp", ".block_sparse_moe")
        if key.endswith(".experts.gate_up_proj"):
            for expert, both in enumerate(value):
                out[f"{prefix}.experts.{expert}.w1.weight"], out[f"{prefix}.experts.{expert}.w3.weight"] = both.chunk(2)
        elif key.endswith(".experts.down_proj"):
            for expert, down in enumerate(value):
                out[f"{prefix}.experts.{expert}.w2.weight"] = down
        else:
            out[key.replace(".mlp.gate.", ".block_sparse_moe.gate.")] = value
    return out


def check_slope(model, compute, gradients, generator):
    """Checks the gradient along a random direction against a difference quotient of the loss that `compute` returns."""
    directions = {key: torch.tensor(generator.standard_normal(tuple(g.shape))) for key, g in gradients.items()}
    slope = sum((gradients[key] * directions[key]).sum().item() for key in gradients)
    step, values = 1e-5, {}
    originals = {key: parameter.detach().clone() for key, parameter in model.named_parameters()}
    with torch.no_grad(), oracle.all_double():
        for multiple in (-2, -1, 1, 2):
            for key, parameter in model.named_parameters():
                parameter.copy_(originals[key] + multiple * step * directions[key])
            values[multiple] = compute().item()
    quotient = (8 * (values[1] - values[-1]) - (values[2] - values[-2])) / (12 * step)
    error = abs(quotient - slope) / sum(g.square().sum().item() for g in gradients.values()) ** 0.5
    assert error < 1e-8, f"gradient off by {error:.1e}: {slope} {quotient}"
    return error


def make_all(description, folder, cases, make_one):
    """Writes each case to a folder of its own, and prints a line for it."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--output", default=os.path.join(root, "tests", "golden", folder))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name in cases:
        of_case = os.path.join(arguments.output, name)
        shutil.rmtree(of_case, ignore_errors=True)
        print(make_one(name, of_case), flush=True)


if __name__ == "__main__":
    make_all(__doc__.split("\n")[0], "blocks", CASES, make)

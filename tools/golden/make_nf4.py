"""Generate tests/golden/nf4: LoRA on a base that bitsandbytes has quantized to NF4 (QLoRA), in float64.

usage: make_nf4.py [--output tests/golden/nf4] [CASE ...]

Each case is a folder that PEFT saved, as in tests/golden/adapters, whose expected.json is of the base with the weights
that bitsandbytes dequantizes, and `quantized`, the base as transformers and bitsandbytes save it. `base` has the weights
before. `scales` of expected.json are the scales of all blocks of one tensor. Scales are rounded to the nearest code, as
on GPUs: on CPUs bitsandbytes takes the code beside it for some. The checks are those of make_adapters.py.
The output depends only on this file, make_adapters.py, make_families.py and the versions in
tools/requirements-golden.txt.
"""

import json
import os
import shutil
from unittest import mock

import bitsandbytes
import bitsandbytes.functional
import numpy as np
import peft
import torch
import transformers

import command
import jsonfiles
import make_adapters
import make_families
import oracle

# `double`: bnb_4bit_use_double_quant. `skip`: llm_int8_skip_modules.
CASES = {
    "double": {"about": "double quantization; packed documents", "double": True, "skip": None,
               "lora": {"r": 4, "lora_alpha": 8, "target_modules": "all-linear"}},
    "single": {"about": "float32 scales; down_proj is not quantized", "double": False, "skip": ["lm_head", "down_proj"],
               "lora": {"r": 2, "lora_alpha": 4, "target_modules": ["q_proj", "v_proj", "down_proj"]}},
}
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 1,
    "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 64, "initializer_range": 0.02, "intermediate_size": 320,
    "max_position_embeddings": 128, "mlp_bias": False, "model_type": "llama", "num_attention_heads": 4,
    "num_hidden_layers": 2, "num_key_value_heads": 2, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "vocab_size": 96}
LENGTH = 48
STEPS, LEARNING_RATE = 50, 1e-3
SCALED = "model.layers.1.mlp.up_proj"  # 320 blocks: two groups


def write_base(folder):
    """A random model in bfloat16, and lines of several documents."""
    generator = np.random.Generator(np.random.PCG64([20261130, 1]))
    config = transformers.LlamaConfig(**{key: value for key, value in CONFIG.items() if key != "torch_dtype"})
    model = transformers.LlamaForCausalLM(config)
    for name, parameter in model.named_parameters():
        values = torch.tensor(generator.standard_normal(tuple(parameter.shape)))
        # Magnitudes of rows differ, so that scales of blocks do.
        rows = torch.tensor(np.exp(generator.normal(0, 0.5, (parameter.shape[0], 1)))) if values.dim() == 2 else 1
        parameter.data = (1 + 0.1 * values if "norm" in name else 0.15 * rows * values).to(torch.bfloat16)
    model.save_pretrained(folder)
    os.remove(os.path.join(folder, "generation_config.json"))
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        file.write(json.dumps(CONFIG, indent=1, sort_keys=True))
    lines = []
    for count in (40, 48, 33):
        ids = generator.integers(3, CONFIG["vocab_size"], count).tolist()
        lines.append({"input_ids": ids, "labels": ids})
    jsonfiles.write_lines(os.path.join(folder, "data.jsonl"), lines)


def nearest_codes(values, blocksize=256, **_):
    """bitsandbytes.functional.quantize_blockwise as its CUDA kernel computes it."""
    code = bitsandbytes.functional.create_dynamic_map()
    largest = torch.stack([part.abs().max() for part in values.split(blocksize)])
    shares = values * (1 / largest).repeat_interleave(blocksize)[:len(values)]
    codes = torch.bucketize(shares, (code[:-1] + code[1:]) / 2).to(torch.uint8)
    state = bitsandbytes.functional.QuantState(absmax=largest, code=code, blocksize=blocksize, dtype=values.dtype)
    return codes, state


def quantize(case, base, folder):
    """Saves the base as transformers and bitsandbytes quantize it; returns {name of a module: its values}."""
    config = transformers.BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=case["double"],
        bnb_4bit_compute_dtype=torch.float32, llm_int8_skip_modules=case["skip"])
    with mock.patch.object(bitsandbytes.functional, "quantize_blockwise", nearest_codes):
        model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, quantization_config=config,
                                                                  device_map="cpu")
    model.save_pretrained(folder)
    for file in os.listdir(folder):
        if file not in ("config.json", "model.safetensors"):
            os.remove(os.path.join(folder, file))
    values = {}
    for name, module in model.named_modules():
        if isinstance(module, bitsandbytes.nn.Linear4bit):
            values[name] = bitsandbytes.functional.dequantize_4bit(module.weight.data, module.weight.quant_state)
    assert len(values) == (14 if case["skip"] is None else 12), sorted(values)
    return values


def load_dequantized(base, values):
    model = oracle.load_double(base)
    for name, module in model.named_modules():
        if name in values:
            module.weight.data = values[name].double()
    return model


def make(name, folder):
    """Writes one case; returns a line to print."""
    case = CASES[name]
    base = os.path.join(os.path.dirname(folder), "base")
    if not os.path.exists(base):
        write_base(base)
    lines = jsonfiles.read_lines(os.path.join(base, "data.jsonl"))
    generator = np.random.Generator(np.random.PCG64([20261130, 2, list(CASES).index(name)]))
    os.makedirs(folder, exist_ok=True)
    torch.manual_seed(0)
    values = quantize(case, base, os.path.join(folder, "quantized"))
    model = peft.get_peft_model(load_dequantized(base, values).float(), make_adapters.config_of(case))
    make_adapters.random_adapter(model, generator)
    make_adapters.save(model, {**case, "base": "nf4/base"}, folder)

    model = peft.PeftModel.from_pretrained(load_dequantized(base, values), folder, is_trainable=True).eval()
    losses = make_families.Losses(model, lines)
    model.zero_grad(set_to_none=True)
    loss = losses()[0]
    loss.backward()
    error = make_families.check_gradient(model, losses, generator)
    plain = peft.PeftModel.from_pretrained(oracle.load_double(base), folder)
    other = make_families.Losses(plain, lines).value() - loss.item()
    assert abs(other) > 1e-3, other
    gradients = make_adapters.file_tensors(model, {key: p.grad for key, p in model.named_parameters() if p.requires_grad})
    summary = oracle.summary_of(gradients, digits=10, projection_digits=6)
    # Slower than other cases: over 50 steps float32 stays near float64.
    make_families.STEPS.update(count=STEPS, learning_rate=LEARNING_RATE)
    steps, clipped = make_families.train(model, lines, fall=0.05)
    trained = peft.get_peft_model_state_dict(model, save_embedding_layers=False)
    steps["norms"] = {key: oracle.rounded(trained[key].norm().item(), 10) for key in summary["gradient_norms"]}
    scales = values[SCALED].reshape(-1, 64).abs().max(dim=1).values
    jsonfiles.write_json(os.path.join(folder, "expected.json"), {
        "about": case["about"],
        "made_with": command.made_with() | {"peft": peft.__version__, "bitsandbytes": bitsandbytes.__version__},
        "base": "nf4/base", "double_quantization": case["double"], "sequence_length": LENGTH, "loss": loss.item(),
        "tokens": losses.count, "scaled": SCALED + ".weight", "scales": scales.tolist(), **summary, "steps": steps})
    size = command.folder_size(os.path.join(folder, "quantized"))
    return (f"{name:8} loss {loss.item():.6f}, slope off by {error:.0e}, steps to {steps['losses'][-1]:.3f}, {clipped} "
            f"clipped, {size} KiB  not quantized {other:+.4f}")


if __name__ == "__main__":
    shutil.rmtree(os.path.join(command.golden("nf4"), "base"), ignore_errors=True)
    command.make_cases(__doc__, "nf4", CASES, make)

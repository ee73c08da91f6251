"""Benchmark a LoRA training step of PEFT and transformers on one GPU, for comparison with `hawser bench step`.

usage: peft_gpu.py --config config.json --length 16384 [options]

A model of the config's shape with random bf16 weights on the GPU, LoRA on all Linears of the blocks (PEFT), SDPA
attention, AdamW (fused) of the adapters in float32, random tokens. --compile: torch.compile of each block.
--checkpointing: gradient checkpointing of each block, non-reentrant. --chunked-loss computes head and loss in chunks of
rows, which spares the full float32 logits; transformers itself has no such option. --four-bits: the Linears of the
blocks are bitsandbytes' Linear4bit, NF4 with double quantization. --liger: kernels of Liger. A step is forward,
backward, gradient norm clipping and AdamW; the host reads the loss.

Prints one line of JSON: the median of the measured steps, tokens per second, the peak of PyTorch's allocator and the
driver's count (used now minus used before the model was made), or "out of memory". Requires PyTorch, transformers and
PEFT, and what the options name; needs no network.
"""

import argparse
import json
import statistics
import time

import torch
import torch.nn.functional as F
import transformers
from torch.utils.checkpoint import checkpoint

CHUNK = 2048


def quantize(model):
    import bitsandbytes

    for block in model.model.layers:
        for module in list(block.modules()):
            for name, linear in list(module.named_children()):
                if type(linear) is not torch.nn.Linear:
                    continue
                packed = bitsandbytes.nn.Linear4bit(linear.in_features, linear.out_features, bias=False,
                                                    compute_dtype=torch.bfloat16, compress_statistics=True,
                                                    quant_type="nf4", device="meta")
                packed.weight = bitsandbytes.nn.Params4bit(linear.weight.data, requires_grad=False,
                                                           compress_statistics=True, quant_type="nf4").to("cuda")
                setattr(module, name, packed)
    model.is_loaded_in_4bit = True
    torch.cuda.empty_cache()


def model_of(arguments):
    import peft

    if arguments.liger:
        from liger_kernel.transformers import apply_liger_kernel_to_llama

        apply_liger_kernel_to_llama(fused_linear_cross_entropy=not arguments.chunked_loss)

    config = transformers.AutoConfig.from_pretrained(arguments.config)
    config.use_cache = False
    config._attn_implementation = "sdpa"
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    torch.set_default_dtype(torch.float32)
    if arguments.four_bits:
        quantize(model)
    model = peft.get_peft_model(model, peft.LoraConfig(r=arguments.rank, lora_alpha=2 * arguments.rank,
                                                       target_modules="all-linear", lora_dropout=0.0))
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = parameter.data.float()  # PEFT's default: autocast_adapter_dtype
    if arguments.checkpointing:
        model.enable_input_require_grads()
        model.gradient_checkpointing_enable({"use_reentrant": False})
    if arguments.compile:
        for layer in model.base_model.model.model.layers:
            layer.compile()
    return model.train()


def chunk_loss(hidden, targets, head):
    return F.cross_entropy(F.linear(hidden, head).float(), targets, reduction="sum")


def loss_of(model, ids, arguments):
    if not arguments.chunked_loss:
        return model(input_ids=ids, labels=ids).loss
    inner = model.base_model.model
    hidden = inner.model(input_ids=ids).last_hidden_state[:, :-1].flatten(0, 1)
    targets = ids[:, 1:].flatten()
    total = sum(checkpoint(chunk_loss, rows, labels, inner.lm_head.weight, use_reentrant=False)
                for rows, labels in zip(hidden.split(CHUNK), targets.split(CHUNK)))
    return total / targets.numel()


def measure(arguments):
    torch.manual_seed(1)
    free = torch.cuda.mem_get_info()[0]
    model = model_of(arguments)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=2e-4, fused=True)
    ids = torch.randint(0, model.config.vocab_size, (arguments.sequences, arguments.length), device="cuda")
    seconds, loss = [], None
    for _ in range(arguments.warm_up + arguments.steps):
        torch.cuda.synchronize()
        begin = time.time()
        with torch.autocast("cuda", torch.bfloat16):
            loss = loss_of(model, ids, arguments)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss = loss.item()
        seconds.append(time.time() - begin)
    step = statistics.median(seconds[arguments.warm_up:])
    return {"step_seconds": step, "tokens_per_second": arguments.sequences * arguments.length / step, "loss": loss,
            "trained": sum(parameter.numel() for parameter in trained),
            "allocated_gib": torch.cuda.max_memory_allocated() / 2**30,
            "driver_gib": (free - torch.cuda.mem_get_info()[0]) / 2**30, "all_seconds": seconds}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--config", required=True)
    parser.add_argument("--length", type=int, default=16384)
    parser.add_argument("--sequences", type=int, default=1)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--warm-up", type=int, default=2)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--chunked-loss", action="store_true")
    parser.add_argument("--four-bits", action="store_true")
    parser.add_argument("--liger", action="store_true")
    arguments = parser.parse_args()
    result = {key: value for key, value in vars(arguments).items() if key != "config"}
    result |= {"torch": torch.__version__, "transformers": transformers.__version__,
               "gpu": torch.cuda.get_device_name()}
    try:
        result |= measure(arguments)
    except torch.OutOfMemoryError as error:
        result |= {"out of memory": str(error).split(".")[0]}
    print(json.dumps(result))


if __name__ == "__main__":
    main()

"""Benchmark a PyTorch training step on GPUs, for comparison with Hawser's step on GPUs.

usage: torchrun --nproc-per-node N torch_gpu.py --config config.json --length 16384 [options]     (or under mpirun)

A Llama of the config's shape, built from plain modules, with random weights and tokens, tuned as is usual in PyTorch:
FSDP2 (fully_shard of each block: float32 shards, bf16 all-gather, gradients reduced in bf16 or float32), torch.compile
of each block, cuDNN attention through scaled_dot_product_attention, fused AdamW, and the head with its loss in chunks
of rows, so that the full float32 logits are never stored. --float8 converts the Linears of the blocks with torchao:
tensorwise dynamic scaling and float8 all-gather, scales of weights computed once after each update. A step is forward,
backward, gradient norm clipping and AdamW, and the host reads the loss. Rotary frequencies are not scaled, which does
not affect speed.

--context-parallel N splits sequences over N ranks with torch.distributed.tensor.experimental.context_parallel.

--tensor N splits the layers over N ranks with torch.distributed.tensor.parallel, laid out as torchtitan does it: query,
key, value, gate and up by columns, output and down by rows, norms sequence-parallel, embedding and head by vocabulary.
Each rank computes the loss of its part of the vocabulary in the same chunks of rows. A group of N ranks is one data
rank, and FSDP2 shards over the groups. With a single group FSDP2 shards nothing and only casts float32 weights to bf16
(once a step with --reshard no). --sequences is per group: --tensor 2 --sequences 1 on 4 ranks trains on two sequences.
--fold splits the tokens of all sequences as one dimension, which saves copies before and after collectives.

--async-tensor has torch.compile split each collective and its GEMM into chunks that overlap (_micro_pipeline_tp over
symmetric memory). PyTorch skips what it cannot fuse without an error, so "fused_collectives" in the result counts the
fused and the other collectives in the compiled graphs: four graphs are forward and backward of a block, compiled once
for the first block and once for all others. PyTorch 2.11 fuses collectives of a forward and all-gathers of a backward,
but no all-gather with --sequences 1 unless --fold is given. Symmetric memory uses no multicast unless
TORCH_SYMM_MEM_DISABLE_MULTICAST=0 is set; NCCL_NVLS_ENABLE=0 turns off NCCL's.

    torchrun --nproc-per-node 2 torch_gpu.py --config config.json --tensor 2 --sequences 2 [--fold] [--async-tensor]

Rank 0 prints one line of JSON: the median of the measured steps, tokens per second and GPU, memory as counted by
PyTorch and by the driver (for the process if NVML is available, otherwise for the device: used now minus used before
the process started to use it), all as maximum over ranks; and all settings. Requires PyTorch 2.11, and
torchao for --float8; needs no network.
--device cpu is a dry run over gloo without compilation, context parallelism and --async-tensor; its times are
meaningless.
"""

import argparse
import contextlib
import json
import os
import statistics
import sys
import time
import warnings

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._attention import set_rotate_method
from torch.distributed.tensor.parallel import (ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel,
                                               parallelize_module)
from torch.nn.attention import SDPBackend, sdpa_kernel

WARM_UP = 3
NO_MULTICAST = "TORCH_SYMM_MEM_DISABLE_MULTICAST"
BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION, "math": SDPBackend.MATH}


class Shape:
    """Shape from a Llama's Hugging Face config.json; rejects unsupported settings."""

    def __init__(self, path):
        with open(path, encoding="utf-8") as file:
            config = json.load(file)
        if config.get("model_type") != "llama" or config.get("hidden_act", "silu") != "silu":
            raise SystemExit(f"{path}: not a Llama with SiLU")
        if config.get("attention_bias") or config.get("mlp_bias"):
            raise SystemExit(f"{path}: biases are not supported")
        self.width = config["hidden_size"]
        self.inner = config["intermediate_size"]
        self.layers = config["num_hidden_layers"]
        self.heads = config["num_attention_heads"]
        self.kv_heads = config.get("num_key_value_heads") or self.heads
        self.head_dim = config.get("head_dim") or self.width // self.heads
        self.vocabulary = config["vocab_size"]
        self.epsilon = config.get("rms_norm_eps", 1e-6)
        self.theta = config.get("rope_theta") or (config.get("rope_parameters") or {}).get("rope_theta") or 10000.0
        self.tied = config.get("tie_word_embeddings", False)


def attend(q, k, v, grouped):
    if not grouped:
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    # Looked up in F at each call, since context_parallel replaces it.
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, **({"enable_gqa": True} if grouped else {}))


class Attention(nn.Module):
    def __init__(self, shape, grouped, opaque, parts):
        super().__init__()
        self.heads, self.kv_heads = shape.heads // parts, shape.kv_heads // parts  # of this rank
        self.head_dim = shape.head_dim
        self.grouped = grouped and shape.heads != shape.kv_heads
        self.attend = torch.compiler.disable(attend) if opaque else attend
        self.q = nn.Linear(shape.width, shape.heads * shape.head_dim, bias=False)
        self.k = nn.Linear(shape.width, shape.kv_heads * shape.head_dim, bias=False)
        self.v = nn.Linear(shape.width, shape.kv_heads * shape.head_dim, bias=False)
        self.o = nn.Linear(shape.heads * shape.head_dim, shape.width, bias=False)

    def rotate(self, x, cos, sin):
        first, second = x.float().chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)

    def forward(self, x, cos, sin):
        # x has the shape [batch, length, width], or [batch * length, width] with --fold.
        q, k, v = (p(x).view(-1, cos.shape[0], n, self.head_dim)
                   for p, n in ((self.q, self.heads), (self.k, self.kv_heads), (self.v, self.kv_heads)))
        q, k = self.rotate(q, cos, sin), self.rotate(k, cos, sin)
        out = self.attend(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2),
                          self.grouped or self.heads == self.kv_heads)
        return self.o(out.transpose(1, 2).reshape(*x.shape[:-1], -1))


class Mlp(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.gate = nn.Linear(shape.width, shape.inner, bias=False)
        self.up = nn.Linear(shape.width, shape.inner, bias=False)
        self.down = nn.Linear(shape.inner, shape.width, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, shape, grouped, opaque, parts):
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.width, eps=shape.epsilon)
        self.attention = Attention(shape, grouped, opaque, parts)
        self.mlp_norm = nn.RMSNorm(shape.width, eps=shape.epsilon)
        self.mlp = Mlp(shape)

    def forward(self, x, cos, sin):
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.mlp(self.mlp_norm(x))


def loss_and_logit_gradient(logits, labels, scale):
    dtype, logits = logits.dtype, logits.float()
    normaliser = torch.logsumexp(logits, dim=-1, keepdim=True)
    loss = (normaliser.squeeze(-1) - logits.gather(-1, labels[:, None]).squeeze(-1)).sum() * scale
    one_hot = (torch.arange(logits.shape[-1], device=logits.device) == labels[:, None]).float()
    return loss, ((torch.exp(logits - normaliser) - one_hot) * scale).to(dtype)


def statistics_of_part(logits, labels, first):
    """Of each row of a part of the vocabulary that begins at id first: the logarithm of the sum of exponentials, and
    the label's logit, 0 where another rank has it."""
    logits = logits.float()
    inside = (labels >= first) & (labels < first + logits.shape[-1])
    label = logits.gather(-1, (labels - first).clamp(0, logits.shape[-1] - 1)[:, None]).squeeze(-1)
    return torch.stack((torch.logsumexp(logits, dim=-1), torch.where(inside, label, 0.0)))


def loss_and_gradient_of_part(logits, labels, scale, first, every):
    """Loss of the whole vocabulary and gradient of this part's logits, from the statistics of every part."""
    dtype, logits = logits.dtype, logits.float()
    normaliser = torch.logsumexp(every[:, 0], dim=0)
    loss = (normaliser - every[:, 1].sum(dim=0)).sum() * scale
    one_hot = (torch.arange(logits.shape[-1], device=logits.device) + first == labels[:, None]).float()
    return loss, ((torch.exp(logits - normaliser[:, None]) - one_hot) * scale).to(dtype)


class LossOfPart:
    """loss_and_logit_gradient for logits of a tensor rank's part of the vocabulary."""

    def __init__(self, mesh, part, compiled):
        self.mesh, self.first = mesh, part * mesh.get_local_rank()
        self.statistics = torch.compile(statistics_of_part) if compiled else statistics_of_part
        self.finish = torch.compile(loss_and_gradient_of_part) if compiled else loss_and_gradient_of_part

    def __call__(self, logits, labels, scale):
        mine = self.statistics(logits, labels, self.first)
        every = mine.new_empty(self.mesh.size() * mine.shape[0], mine.shape[1])
        dist.all_gather_into_tensor(every, mine, group=self.mesh.get_group())
        return self.finish(logits, labels, scale, self.first, every.view(-1, *mine.shape))


class ChunkedHead(torch.autograd.Function):
    """Mean cross-entropy of x @ weight.T. Forward computes both gradients, so that only one chunk of logits exists at a
    time."""

    @staticmethod
    def forward(ctx, x, weight, labels, rows, kernel):
        dx, dweight = torch.empty_like(x), torch.zeros_like(weight)
        total = torch.zeros((), dtype=torch.float32, device=x.device)
        for begin in range(0, x.shape[0], rows):
            part = x[begin:begin + rows]
            loss, dlogits = kernel(part @ weight.t(), labels[begin:begin + rows], 1.0 / x.shape[0])
            total += loss
            torch.mm(dlogits, weight, out=dx[begin:begin + rows])
            dweight.addmm_(dlogits.t(), part)
        ctx.save_for_backward(dx, dweight)
        return total

    @staticmethod
    def backward(ctx, gradient):
        dx, dweight = ctx.saved_tensors
        return dx.mul_(gradient), dweight.mul_(gradient), None, None, None


class Head(nn.Module):
    def __init__(self, shape, arguments, compiled, tensor_mesh):
        super().__init__()
        self.norm = nn.RMSNorm(shape.width, eps=shape.epsilon)
        self.linear = nn.Linear(shape.width, shape.vocabulary, bias=False)
        self.rows = arguments.loss_rows
        # Compiled separately from the blocks, once per chunk size.
        if tensor_mesh is not None:
            self.kernel = LossOfPart(tensor_mesh, shape.vocabulary // arguments.tensor, compiled)
        else:
            self.kernel = torch.compile(loss_and_logit_gradient) if compiled else loss_and_logit_gradient
        self.plain = torch.compile(F.cross_entropy) if compiled else F.cross_entropy

    def forward(self, x, labels):
        x, weight = self.norm(x), self.linear.weight
        if isinstance(self.kernel, LossOfPart):  # every rank of the group needs all rows, and computes a part of dx
            x = x.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])
            weight = weight.to_local()
        x = x.flatten(0, -2)
        if self.rows > 0 or isinstance(self.kernel, LossOfPart):
            return ChunkedHead.apply(x, weight, labels.flatten(), self.rows or x.shape[0], self.kernel)
        return self.plain(self.linear(x).float(), labels.flatten())


def split_layers(model, mesh, dim):
    """Tensor parallelism; between the layers, tokens are split along dim of the hidden states."""
    parallelize_module(model, mesh, {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(dim)),
        "head.norm": SequenceParallel(sequence_dim=dim),
        "head.linear": ColwiseParallel(),  # splits its weight; Head computes with it
    })
    for block in model.blocks:
        parallelize_module(block, mesh, {
            "attention_norm": SequenceParallel(sequence_dim=dim),
            "attention": PrepareModuleInput(input_layouts=(Shard(dim), None, None),
                                            desired_input_layouts=(Replicate(), None, None)),
            "attention.q": ColwiseParallel(),
            "attention.k": ColwiseParallel(),
            "attention.v": ColwiseParallel(),
            "attention.o": RowwiseParallel(output_layouts=Shard(dim)),
            "mlp_norm": SequenceParallel(sequence_dim=dim),
            "mlp": PrepareModuleInput(input_layouts=(Shard(dim),), desired_input_layouts=(Replicate(),)),
            "mlp.gate": ColwiseParallel(),
            "mlp.up": ColwiseParallel(),
            "mlp.down": RowwiseParallel(output_layouts=Shard(dim)),
        })


def overlap_tensor_collectives(mesh):
    """Has compiled blocks overlap collectives of the mesh with GEMMs. Returns counts, which grow as blocks compile."""
    import torch._functorch.config
    import torch._inductor.config
    from torch._inductor.fx_passes import post_grad
    from torch.distributed._symmetric_memory import enable_symm_mem_for_group

    torch._inductor.config._micro_pipeline_tp = True
    # A graph from a cache would not be counted.
    torch._inductor.config.fx_graph_cache = False
    torch._functorch.config.enable_autograd_cache = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        enable_symm_mem_for_group(mesh.get_group().group_name)
    kinds = {"all_gather_into_tensor": "all_gather", "reduce_scatter_tensor": "reduce_scatter",
             "fused_all_gather_matmul": "all_gather_fused", "fused_matmul_reduce_scatter": "reduce_scatter_fused"}
    counts = dict.fromkeys(("graphs", *kinds.values()), 0)
    fuse = post_grad.micro_pipeline_tp_pass

    def fuse_and_count(graph):
        fuse(graph)
        found = [kinds[name] for node in graph.nodes if node.op == "call_function"
                 if (name := getattr(node.target, "_opname", None)) in kinds]
        counts["graphs"] += bool(found)
        for kind in found:
            counts[kind] += 1

    post_grad.micro_pipeline_tp_pass = fuse_and_count
    return counts


class Llama(nn.Module):
    def __init__(self, shape, arguments, grouped, compiled, tensor_mesh):
        super().__init__()
        self.fold = arguments.fold
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        opaque = arguments.context_parallel > 1
        self.blocks = nn.ModuleList(Block(shape, grouped, opaque, arguments.tensor) for _ in range(shape.layers))
        self.head = Head(shape, arguments, compiled, tensor_mesh)
        if tensor_mesh is not None:
            split_layers(self, tensor_mesh, 0 if self.fold else 1)
        if shape.tied:
            self.head.linear.weight = self.embedding.weight

    def forward(self, ids, labels, cos, sin):
        x = self.embedding(ids.flatten() if self.fold else ids)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(x, labels)


def start_ranks(device):
    """Joins the process group; ranks from torchrun's variables, else Open MPI's, else a single rank."""
    # Read when symmetric memory is first used.
    os.environ.setdefault(NO_MULTICAST, "1")
    for name, other, alone in (("RANK", "OMPI_COMM_WORLD_RANK", "0"), ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "1"),
                               ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "0")):
        os.environ.setdefault(name, os.environ.get(other, alone))
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29511")
    local = int(os.environ["LOCAL_RANK"])
    if device == "cuda":
        torch.cuda.set_device(local)
        dist.init_process_group("nccl", device_id=torch.device("cuda", local))
        return torch.device("cuda", local)
    dist.init_process_group("gloo")
    return torch.device("cpu")


class DriverCount:
    """Device memory in bytes, as counted by the driver."""

    def __init__(self, device):
        self.handle = self.nvml = None
        self.before = 0
        if device != "cuda":
            return
        try:
            import pynvml
            pynvml.nvmlInit()
            visible = os.environ.get("CUDA_VISIBLE_DEVICES")
            local = int(os.environ.get("LOCAL_RANK", os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK", "0")))
            chosen = visible.split(",")[local].strip() if visible else str(local)
            if chosen.isdigit():
                self.handle = pynvml.nvmlDeviceGetHandleByIndex(int(chosen))
            else:
                self.handle = pynvml.nvmlDeviceGetHandleByUUID(chosen)
            self.nvml = pynvml
            self.before = self.used()
        except Exception as error:  # NVML is missing or fails: use PyTorch's call
            print(f"torch_gpu: no NVML ({error})", file=sys.stderr)
            self.handle = None

    def used(self):
        if self.handle is not None:
            return self.nvml.nvmlDeviceGetMemoryInfo(self.handle).used
        free, total = torch.cuda.mem_get_info()
        return total - free

    def of_process(self):
        if self.handle is None:
            return None
        try:
            mine = [p.usedGpuMemory for p in self.nvml.nvmlDeviceGetComputeRunningProcesses(self.handle)
                    if p.pid == os.getpid()]
        except self.nvml.NVMLError:
            return None
        return mine[0] if mine and mine[0] else None


def takes_groups(device, shape, backend):
    """Whether this backend supports grouped-query attention, forward and backward."""
    if shape.heads == shape.kv_heads:
        return True
    try:
        q, k, v = (torch.randn(1, n, 256, shape.head_dim, device=device, dtype=torch.bfloat16, requires_grad=True)
                   for n in (shape.heads, shape.kv_heads, shape.kv_heads))
        with sdpa_kernel(backend):
            attend(q, k, v, grouped=True).sum().backward()
        return True
    except RuntimeError:
        return False


def build(shape, arguments, device, mesh, tensor_mesh, grouped):
    compiled = arguments.compile == "yes"
    with torch.device("meta"):
        model = Llama(shape, arguments, grouped, compiled, tensor_mesh)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16,
                                  reduce_dtype=torch.bfloat16 if arguments.reduce == "bf16" else torch.float32)
    if arguments.float8:
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training
        convert_to_float8_training(model.blocks, config=Float8LinearConfig(enable_fsdp_float8_all_gather=True))
    for i, block in enumerate(model.blocks):
        if arguments.full_recompute:
            block = checkpoint_wrapper(block, preserve_rng_state=False)
        if compiled:
            block = torch.compile(block, fullgraph=arguments.context_parallel == 1)
        model.blocks[i] = block
    settings = {"mesh": mesh, "mp_policy": policy, "reshard_after_forward": arguments.reshard == "yes"}
    if not shape.tied:
        fully_shard(model.embedding, **settings)
    for block in model.blocks:
        fully_shard(block, **settings)
    if not shape.tied:
        fully_shard(model.head, **{**settings, "reshard_after_forward": False})
    fully_shard(model, **settings)
    model.to_empty(device=device)
    torch.manual_seed(7 + dist.get_rank())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            local = parameter.to_local()
            local = getattr(local, "_tensor", local)  # of torchao's subclass
            if "norm" in name:
                local.fill_(1.0)
            else:
                local.normal_(0.0, 0.02)
    return model


def rope_tables(shape, length, device):
    frequencies = shape.theta ** (-torch.arange(0, shape.head_dim, 2, device=device, dtype=torch.float32) /
                                  shape.head_dim)
    angles = torch.outer(torch.arange(length, device=device, dtype=torch.float32), frequencies)
    return angles.cos()[:, None, :], angles.sin()[:, None, :]


def largest(value):
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, value)
    known = [one for one in every if one is not None]
    return max(known) if known else None


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--config", required=True, help="a config.json of a Llama")
    parser.add_argument("--length", type=int, default=16384, help="sequence length")
    parser.add_argument("--sequences", type=int, default=1,
                        help="sequences per step and group of context-parallel or tensor-parallel ranks")
    parser.add_argument("--steps", type=int, default=5, help="measured steps, at least 5, after 3 warm-up steps")
    parser.add_argument("--context-parallel", type=int, default=1, metavar="N", help="ranks per sequence")
    parser.add_argument("--rotate", choices=("allgather", "alltoall"), default="allgather",
                        help="how context parallelism exchanges keys and values")
    parser.add_argument("--tensor", type=int, default=1, metavar="N", help="ranks that the layers are split over")
    parser.add_argument("--fold", action="store_true",
                        help="with --tensor: split the tokens of all sequences as one dimension, which saves copies")
    parser.add_argument("--async-tensor", action="store_true",
                        help="with --tensor: overlap its collectives with GEMMs, by torch.compile")
    parser.add_argument("--float8", action="store_true", help="Linears of the blocks in FP8, by torchao")
    parser.add_argument("--full-recompute", action="store_true", help="recompute each block's forward in backward")
    parser.add_argument("--reduce", choices=("bf16", "float32"), default="bf16", help="dtype of gradient reduction")
    parser.add_argument("--reshard", choices=("yes", "no"), default="yes",
                        help="no: weights stay gathered between forward and backward (faster, if they fit)")
    parser.add_argument("--attention", choices=tuple(BACKENDS), default="cudnn")
    parser.add_argument("--loss-rows", type=int, default=2048, help="rows of logits per chunk; 0: all at once")
    parser.add_argument("--compile", choices=("yes", "no"), default="yes")
    parser.add_argument("--layers", type=int, default=0, help="number of layers; 0: as in the config")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    arguments = parser.parse_args()
    if arguments.steps < 5:
        parser.error("--steps: at least 5, for a median worth quoting")
    if arguments.float8 and arguments.device == "cpu":
        parser.error("--float8: requires a GPU")
    if arguments.context_parallel < 1 or arguments.tensor < 1:
        parser.error("--context-parallel, --tensor: at least 1")
    if arguments.tensor > 1 and (arguments.context_parallel > 1 or arguments.float8):
        parser.error("--tensor: not supported together with --context-parallel or --float8")
    if arguments.tensor == 1 and (arguments.fold or arguments.async_tensor):
        parser.error("--fold, --async-tensor: require --tensor of at least 2")
    if arguments.async_tensor and (arguments.device == "cpu" or arguments.compile == "no"):
        parser.error("--async-tensor: requires a GPU and --compile yes")
    if arguments.device == "cpu":
        arguments.compile, arguments.attention = "no", "math"
        if arguments.context_parallel > 1:
            parser.error("--context-parallel: not supported by PyTorch on the CPU")
    elif not torch.cuda.is_available():
        parser.error("no GPU; --device cpu is a dry run")
    return arguments


def check_sizes(shape, arguments, world):
    context, parts = arguments.context_parallel, arguments.tensor
    if context > 1 and (world % context != 0 or arguments.length % (2 * context) != 0):
        raise SystemExit(f"--context-parallel {context}: must divide the {world} ranks; twice it, the sequence length")
    tokens = ("tokens", arguments.sequences * arguments.length) if arguments.fold else ("length", arguments.length)
    sizes = (("ranks", world), ("heads", shape.heads), ("key/value heads", shape.kv_heads),
             ("intermediate size", shape.inner), ("vocabulary", shape.vocabulary), tokens)
    undivided = ", ".join(f"{name} {size}" for name, size in sizes if size % parts != 0)
    if undivided:
        raise SystemExit(f"--tensor {parts}: must divide ranks, heads, intermediate size, vocabulary and length "
                         f"(does not divide {undivided})")


def main():
    arguments = parse()
    shape = Shape(arguments.config)
    shape.layers = arguments.layers or shape.layers
    driver = DriverCount(arguments.device)
    device = start_ranks(arguments.device)
    rank, world, context = dist.get_rank(), dist.get_world_size(), arguments.context_parallel
    check_sizes(shape, arguments, world)
    if arguments.device == "cuda" and driver.handle is None:
        driver.before = driver.used()  # includes the process's context, which this call creates
    # Sequences are those of a data rank: a group of context-parallel or of tensor-parallel ranks, or a single rank.
    group = context * arguments.tensor
    axis = "tensor" if arguments.tensor > 1 else "context"
    meshes = init_device_mesh(arguments.device, (world // group, group), mesh_dim_names=("data", axis))
    tensor_mesh = meshes["tensor"] if arguments.tensor > 1 else None
    everyone = meshes["data", axis]._flatten("everyone")  # gradient norms are summed over it
    sharded = everyone if tensor_mesh is None else meshes["data"]
    if context > 1:
        set_rotate_method(arguments.rotate)
    fused = overlap_tensor_collectives(tensor_mesh) if arguments.async_tensor else None

    backend = BACKENDS[arguments.attention]
    # PyTorch's context-parallel attention does not support grouped heads.
    grouped = context == 1 and takes_groups(device, shape, backend)
    model = build(shape, arguments, device, sharded, tensor_mesh, grouped)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    generator = torch.Generator().manual_seed(11 + rank // group)
    precompute = None
    if arguments.float8:
        from torchao.float8 import precompute_float8_dynamic_scale_for_fsdp as precompute
    tokens = torch.randint(0, shape.vocabulary, (arguments.sequences, arguments.length + 1), generator=generator)
    tokens = tokens.to(device)
    ids, labels = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    cos, sin = rope_tables(shape, arguments.length, device)

    def cut():
        if context == 1:
            return contextlib.nullcontext()
        return context_parallel(meshes["context"], buffers=[ids, labels, cos, sin], buffer_seq_dims=[1, 1, 0, 0])

    times = []
    for step in range(WARM_UP + arguments.steps):
        dist.barrier()
        if device.type == "cuda":
            torch.cuda.synchronize()
        started = time.perf_counter()
        with cut(), sdpa_kernel(backend):
            loss = model(ids, labels, cos, sin)
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if precompute:
            precompute(model)
        optimizer.zero_grad(set_to_none=True)
        total = loss.detach().clone()
        dist.all_reduce(total)
        value = total.item() / world
        times.append(time.perf_counter() - started)
        if rank == 0:
            print(f"step {step}: {times[-1]:.3f} s, loss {value:.4f}", file=sys.stderr, flush=True)

    counted = times[WARM_UP:]
    median = largest(statistics.median(counted))
    result = {
        "peer": "torch", "torch": torch.__version__, "device": arguments.device, "gpus": world,
        "tokens_per_second_per_gpu": world // group * arguments.sequences * arguments.length / median / world,
        "median_seconds": median, "fastest_seconds": largest(min(counted)), "steps": len(counted), "loss": value,
        "parameters": sum(p.numel() for p in model.parameters()),
    }
    if device.type == "cuda":
        used, mine = driver.used(), driver.of_process()
        result.update({
            "gpu": torch.cuda.get_device_name(), "cudnn": torch.backends.cudnn.version(),
            "nccl": ".".join(map(str, torch.cuda.nccl.version())),
            "torch_peak_allocated_bytes": largest(torch.cuda.max_memory_allocated()),
            "torch_peak_reserved_bytes": largest(torch.cuda.max_memory_reserved()),
            "driver_process_bytes": largest(mine), "driver_used_less_before_bytes": largest(used - driver.before),
            "driver_before_bytes": largest(driver.before),
            "driver_before_has_context": driver.handle is None,
        })
    if fused is not None:
        result["fused_collectives"] = fused
    result["settings"] = {
        **{name: value for name, value in vars(arguments).items() if name not in ("config", "device", "steps")},
        "layers": shape.layers, "sharded_over": sharded.size(), "grouped_heads_in_attention": grouped,
        "precision": f"{'FP8 Linears, ' if arguments.float8 else ''}bf16 compute, float32 shards",
        "optimizer": "AdamW, fused",
        "environment": {name: os.environ.get(name) for name in ("NCCL_NVLS_ENABLE", NO_MULTICAST)},
    }
    if rank == 0:
        print(json.dumps(result), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

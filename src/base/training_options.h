// The values that options of a run take. Every module may read them; the recipe that collects them is config/recipe.h.
#pragma once

#include <array>

namespace hawser {

enum class DeviceChoice { automatic, cpu, cuda };
enum class Packing { documents, chunks };            // separate documents with masks | one token stream
enum class LongDocuments { split, truncate, drop };  // documents longer than a sequence, with Packing::documents
// How the ranks that share a sequence exchange keys and values. hybrid: all_to_all in groups, and a ring of groups.
enum class ContextComm { all_gather, ring, all_to_all, hybrid, automatic };
// The order in which pipeline stages run the passes of micro-batches (step/pipeline_passes.h).
enum class PipelineSchedule { one_forward_one_backward, gpipe, interleaved, zero_bubble };
// What the cuts between pipeline stages minimise: the time of a step, or the memory of the stage that needs the most.
enum class PipelineOptimize { speed, memory };
// What the ranks that share a copy of the model shard.
enum class ShardPolicy {
  parameters,  // weights, master weights, moments and reduced gradients: FSDP, ZeRO-3
  optimizer,   // all but the weights in the compute dtype, which every rank keeps: ZeRO-1 and, with
               // GradientAccumulation::sharded, ZeRO-2
};
enum class GradientAccumulation { sharded, local };  // reduce every micro-batch | accumulate locally, reduce once
// Activation checkpointing: what the backward of a block recomputes. In order of recompute time per byte saved.
enum class Checkpointing {
  none,
  selective,    // norms and SwiGLU
  gate_up,      // selective, and the MLP's first GEMM
  qkv,          // norms, SwiGLU, attention's first GEMM and RoPE
  projections,  // norms, SwiGLU and both GEMMs; attention's output and log-sum-exp are saved
  full,         // all but the layers' inputs, attention too
  block,        // all but the block's input: the inputs of its other layers, too
  automatic,    // the planner chooses one of the others for each block
};
// The loss that keeps the experts of a mixture equally loaded. model: if the model's config has output_router_logits,
// as in transformers.
enum class ExpertBalancing { model, aux_loss, none };
// What trains in place of all weights.
enum class AdapterKind {
  none,   // nothing: all weights train
  lora,   // low-rank matrices beside frozen Linears
  qlora,  // the same, with AdapterBase::nf4
};
// How the frozen weights of Linears and experts are stored beside an adapter.
enum class AdapterBase {
  automatic,  // fp8 if GEMMs of FP8 read them so, nf4 with AdapterKind::qlora, otherwise bf16
  bf16,       // not quantized: in the compute dtype
  fp8,        // E4M3, as GEMMs of FP8 read them
  nf4,        // 4 bits (tensor/nf4.h)
};
// What the operands of a Linear's GEMMs are rounded to (nn/quantizer.h).
enum class LinearFormat {
  compute,      // the compute dtype: they are not rounded again
  fp8_delayed,  // FP8, one scale for each of x and dy, from the maxima of earlier steps
  fp8_current,  // FP8, one scale from the matrix itself
  fp8_block,    // FP8, a scale for each 128 x 128 block of the weight and each 1 x 128 block of x and dy
};
enum class ComputePrecision {
  automatic,  // float32 on the CPU, bf16 on CUDA
  float32,
  bf16,
  fp8,  // the GEMMs of Linears and experts in FP8 (Fp8Recipe), everything else as automatic
};
enum class Fp8Scaling { delayed, current, block };  // LinearFormat::fp8_delayed, fp8_current, fp8_block
enum class AmaxAlgorithm { maximum, most_recent };  // of a history
// docs/optimizers.md says which state each has.
enum class OptimizerKind { adamw, adamw_8bit, adafactor, lion, sgd, muon };
enum class StateDType { f32, bf16 };  // of the optimizer's state and of master weights
enum class LearningRateSchedule { constant, linear, cosine, wsd, inverse_sqrt, polynomial };  // optim/lr_schedule.h
enum class DecayType { linear, cosine, one_minus_sqrt };  // of LearningRateSchedule::wsd

// Named chat templates; text/chat has their text. Any other data.chat_template is a file.
inline constexpr std::array<const char*, 13> kChatTemplateNames = {
    "chatml",     "smollm2",    "qwen-2.5", "qwen-3", "llama-2", "llama-3", "llama-3.1",
    "mistral-v1", "mistral-v3", "zephyr",   "gemma",  "gemma-3", "phi-3"};

}  // namespace hawser

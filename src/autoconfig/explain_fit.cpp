#include "autoconfig/explain_fit.h"

#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "base/units.h"
#include "config/config.h"

namespace hawser::autoconfig {
namespace {

constexpr const char* kContext = "parallel.context_parallel_degree";
constexpr const char* kTensor = "parallel.tensor_parallel_degree";
constexpr const char* kPipeline = "parallel.pipeline_parallel_degree";

class Explanation {
 public:
  Explanation(const Asked& asked, const Fitted& fitted, const Place& place, RecipeNotes& notes)
      : asked_(asked), fitted_(fitted), recipe_(fitted.recipe), place_(place), notes_(notes) {}

  void run() {
    explain_memory();
    explain_tiles();
    explain_offload();
    explain_layout();
  }

 private:
  bool fixed(const std::string& key) const { return recipe_.places.contains(key); }
  void why(const std::string& key, const std::string& text) { notes_.why[key] = text; }

  void explain_memory() {
    const plan::Forecast& f = fitted_.forecast;
    if (recipe_.data.sequence_length < fitted_.wanted_length) {
      why("data.sequence_length",
          cat("the longest that fits in memory: ", fitted_.wanted_length, " is halved until it fits"));
    }
    const std::int64_t batch = recipe_.train.global_batch_size;
    const bool smaller = batch < asked_.wanted_batch;
    if (!fixed("train.global_batch_size") && (smaller || recipe_.data.sequence_length < fitted_.wanted_length)) {
      why("train.global_batch_size",
          cat(tokens_text(double(batch * recipe_.data.sequence_length)), " tokens per step",
              smaller ? cat("; a batch of ", asked_.wanted_batch,
                            " does not fit in memory: it accumulates the gradients of several micro-batches")
                      : ""));
    }
    if (!fixed("memory.activation_checkpointing")) {
      MemoryRecipe chosen;
      chosen.per_layer = f.checkpointing();
      const bool nothing =
          std::ranges::all_of(chosen.per_layer, [](Checkpointing policy) { return policy == Checkpointing::none; });
      why("memory.activation_checkpointing",
          nothing ? std::string("all activations fit, so no recompute")
                  : cat("the fastest policy that fits, found by the plan: ", checkpointing_text(chosen)));
    }
    if (!fixed("train.micro_batch_size")) {
      const auto micro = f.layout.micro_batches;
      why("train.micro_batch_size",
          cat(micro == 1 ? std::string("one micro-batch per rank and step")
                         : cat("each step accumulates the gradients of ", micro, " micro-batches per rank"),
              recipe_.train.micro_batch_size == 1 ? ": one sequence at a time uses the least memory"
                                                  : ", the size predicted to be fastest"));
    }
  }

  void explain_tiles() {
    const std::int64_t rows = recipe_.memory.mlp_tile_rows;
    if (rows == 0 || fixed("memory.mlp_tile_rows")) return;
    why("memory.mlp_tile_rows", cat("MLPs of ", with_commas(rows),
                                    " tokens at a time: their inner activations do not "
                                    "fit for all tokens of a sequence"));
  }

  // What is in host memory, with its cost in time.
  void explain_offload() {
    const plan::Forecast& f = fitted_.forecast;
    const MemoryRecipe& memory = recipe_.memory;
    const auto& busy = f.largest().time.busy;
    const auto copies = busy.find("host transfers");
    const std::string reason =
        cat("it does not fit on the device; copies of ", format_seconds(copies == busy.end() ? 0 : copies->second),
            " in a step of ", format_seconds(f.seconds), ", mostly during computation");
    const auto explain = [&](const char* key, bool used) {
      if (used && !fixed(key)) why(key, reason);
    };
    explain("memory.activation_offload", memory.activation_offload.value_or(true));
    explain("memory.optimizer_offload", memory.optimizer_offload.value_or(true));
    explain("memory.weight_offload", memory.weight_offload);
  }

  void explain_layout() {
    const plan::Forecast& f = fitted_.forecast;
    const Recipe& before = asked_.before;
    if (place_.world > 1) {
      const bool tensor_changed = before.parallel.tensor_parallel_degree != recipe_.parallel.tensor_parallel_degree;
      const bool context_changed = before.parallel.context_parallel_degree != recipe_.parallel.context_parallel_degree;
      if (tensor_changed && recipe_.parallel.tensor_parallel_degree > 1) {
        why(kTensor, "ranks share the matrices of each layer: predicted to be the fastest layout that fits");
      }
      const int stages = recipe_.parallel.pipeline_parallel_degree;
      if (stages > 1 && before.parallel.pipeline_parallel_degree != stages) {
        why(kPipeline, cat("ranks have different blocks, with ", f.layout.micro_batches,
                           " micro-batches in a step: predicted to be the fastest layout that fits"));
      }
      if (!fixed("parallel.hybrid_shard_degree")) {
        const int shards = place_.world / recipe_.parallel.tensor_parallel_degree / stages;
        why("parallel.hybrid_shard_degree",
            recipe_.parallel.hybrid_shard_degree == 0
                ? shards == 1
                      ? std::string("a stage has one rank, or tensor ranks alone: no other ranks share its state")
                      : cat("state is sharded over all ", shards, stages > 1 ? " ranks of a stage" : " ranks",
                            ": minimum memory")
                : std::string("predicted to be the fastest layout that fits"));
      }
      if (!fixed(kContext) && (context_changed || recipe_.parallel.context_parallel_degree == 1)) {
        why(kContext, recipe_.parallel.context_parallel_degree == 1
                          ? std::string("a full sequence fits on one rank: ranks process different sequences")
                          : std::string("ranks share each sequence: predicted to be the fastest layout that fits"));
      }
    }
    if (before.parallel.sharding != recipe_.parallel.sharding) {
      why("parallel.sharding", "each rank keeps the weights of its stage: no micro-batch gathers them");
    }
    if (before.parallel.gradient_accumulation != recipe_.parallel.gradient_accumulation) {
      why("parallel.gradient_accumulation", "predicted to be the fastest layout that fits");
    }
  }

  const Asked& asked_;
  const Fitted& fitted_;
  const Recipe& recipe_;
  const Place& place_;
  RecipeNotes& notes_;
};

}  // namespace

std::string tokens_text(double tokens) {
  return tokens < 10000 ? cat(std::llround(tokens)) : format_count(tokens);
}

void explain_fit(const Asked& asked, const Fitted& fitted, const Place& place, RecipeNotes& notes) {
  Explanation(asked, fitted, place, notes).run();
}

std::string summary_of(const Fitted& fitted, const Place& place) {
  const plan::Forecast& f = fitted.forecast;
  return cat(plural(place.world, "rank"), " of ", place.target.name, ", sequences of ",
             fitted.recipe.data.sequence_length, " tokens: a rank needs ", format_bytes(Bytes(f.needed())), " of ",
             format_bytes(Bytes(f.capacity)), ", about ", format_count(f.tokens_per_second), " tokens/s predicted");
}

}  // namespace hawser::autoconfig

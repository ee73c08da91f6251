#include "config/schema.h"

#include <algorithm>

#include "base/name_pattern.h"
#include "base/nearest.h"
#include "config/block_range.h"
#include "config/rows.h"

namespace hawser {
namespace {

Key needed(Needed when, Key key) {
  key.needed = when;
  return key;
}

Key example(const char* value, Key key) {
  key.example = value;
  return key;
}

Key instead(const char* hint, Key key) {
  key.instead = hint;
  return key;
}

Key unset(const char* meaning, Key key) {
  key.unset = meaning;
  return key;
}

// 0 means that the key is not set.
Key unset_at_zero(const char* meaning, Key key) {
  key.unset = meaning;
  key.write = [write = key.write](const Recipe& recipe) {
    const nlohmann::json value = write(recipe);
    return value == 0 ? nlohmann::json() : value;
  };
  return key;
}

// Not written where `fit` has computed it from train.epochs: one of the two is set.
Key steps() {
  Key key = rows::integer("train.steps", HAWSER_FIELD(train.steps), {.min = 1}, "optimizer steps");
  key.unset = "none: set this or train.epochs";
  key.write = [](const Recipe& recipe) {
    const TrainRecipe& train = recipe.train;
    return train.steps == 0 || train.epochs > 0 ? nlohmann::json() : nlohmann::json(train.steps);
  };
  return key;
}

// Not written where optimizer.warmup_ratio is set: one of the two is.
Key warmup_steps() {
  Key key = rows::integer("optimizer.warmup_steps", HAWSER_FIELD(optimizer.warmup_steps), {.min = 0},
                          "steps of linear warmup, from 0 (wsd: from the minimum)");
  key.write = [](const Recipe& recipe) {
    const OptimizerRecipe& optimizer = recipe.optimizer;
    return optimizer.warmup_ratio > 0 ? nlohmann::json() : nlohmann::json(optimizer.warmup_steps);
  };
  return key;
}

// A key whose default depends on optimizer.kind; written as the value that the run has.
Key by_kind(const char* meaning, Key key, double (OptimizerRecipe::*value)() const) {
  key.unset = meaning;
  key.write = [value](const Recipe& recipe) { return nlohmann::json((recipe.optimizer.*value)()); };
  return key;
}

Key state_dtype(const char* name, rows::FieldOf<StateDType> field, const char* help) {
  return rows::word(name, field, {{"float32", StateDType::f32}, {"bf16", StateDType::bf16}}, {}, help,
                    {{"fp32", "float32"}, {"bfloat16", "bf16"}});
}

// Names of modules and regular expressions.
rows::Entries modules(const char* hint) {
  return {.valid = [](const std::string& entry) { return !is_pattern(entry) || compiled_pattern(entry).has_value(); },
          .what = "not a regular expression",
          .hint = hint};
}

// Limits beyond any real use, small enough that sizes computed from them do not overflow.
constexpr std::int64_t kMaxTokens = std::int64_t{1} << 26;     // per sequence
constexpr std::int64_t kMaxSequences = std::int64_t{1} << 24;  // per step
constexpr std::int64_t kMaxRanks = std::int64_t{1} << 20;
constexpr std::int64_t kMaxThreads = 1024;

// One row per key, in the order of the docs and of `hawser recipe init`.
std::vector<Key> make_schema() {
  using namespace rows;
  using enum Needed;
  const RealRange positive{.min = 0, .min_open = true};
  const RealRange not_negative{.min = 0};
  const RealRange fraction{.min = 0, .max = 1, .max_open = true};
  return {
      text("name", HAWSER_FIELD(name), "the recipe's file name", "name of the run in reports"),

      path("model.path", HAWSER_FIELD(model.path), "",
           "Hugging Face model folder, or ORG/NAME of the Hub; training starts from its weights"),
      path("model.config", HAWSER_FIELD(model.config), "", "or a config.json; training starts from random weights"),

      example("[text/*.jsonl]",
              data_sets("data.train",
                        "training data: .jsonl, .json, .csv, .tsv or .txt, also .gz or .zst, .parquet, "
                        "or token files by prefix")),
      validation_sets("data.validation", "a part of data.train",
                      "validation data, same formats; or named sets: {support: [a.jsonl], novels: b.txt}"),
      name_map("data.columns", HAWSER_FIELD(data.columns),
               "what the files call the keys of lines and messages: {messages: dialogue, content: said}"),
      name_map("data.roles", HAWSER_FIELD(data.roles),
               "what the files call roles: {assistant: agent, user: [customer]}"),
      path("data.tokenizer", HAWSER_FIELD(data.tokenizer), "the model folder's", "a tokenizer.json"),
      path_or_name("data.chat_template", HAWSER_FIELD(data.chat_template), kChatTemplateNames, "the tokenizer's",
                   "chat template for lines with messages: a name or a file, see docs/data.md"),
      day("data.template_date", HAWSER_FIELD(data.template_date),
          "the date that strftime_now gives a chat template: the same data give the same tokens on every day"),
      path("data.prepared", HAWSER_FIELD(data.prepared), "OUTPUT/data", "folder of the token files"),
      needed(always, integer("data.sequence_length", HAWSER_FIELD(data.sequence_length),
                             {.min = 2, .max = kMaxTokens, .in_units = true}, "tokens per sequence; 32K: 32,768")),
      word("data.pack", HAWSER_FIELD(data.pack), {{"documents", Packing::documents}, {"chunks", Packing::chunks}}, {},
           "documents: masked from each other; chunks: one token stream"),
      word("data.long_documents", HAWSER_FIELD(data.long_documents),
           {{"split", LongDocuments::split}, {"truncate", LongDocuments::truncate}, {"drop", LongDocuments::drop}}, {},
           "documents longer than a sequence: split into pieces, truncate, or drop; see docs/data.md"),
      integer("data.max_documents", HAWSER_FIELD(data.max_documents), {.min = 0, .max = kMaxTokens},
              "maximum documents per sequence; 0: sequence_length / 64, at least 8"),
      number("data.validation_fraction", HAWSER_FIELD(data.validation_fraction), fraction,
             "fraction of data.train held out if data.validation is not set"),
      flag("data.deduplicate", HAWSER_FIELD(data.deduplicate), "drop documents with duplicate content"),

      integer(
          "parallel.hybrid_shard_degree", HAWSER_FIELD(parallel.hybrid_shard_degree), {.min = 0, .max = kMaxRanks},
          "ranks (context included) that model state is sharded over; 0: all of a stage but tensor's (FSDP), 1: none, "
          "else HSDP"),
      word("parallel.sharding", HAWSER_FIELD(parallel.sharding),
           {{"parameters", ShardPolicy::parameters}, {"optimizer", ShardPolicy::optimizer}}, {},
           "what is sharded: all model state (ZeRO-3), or all but the weights (ZeRO-1, ZeRO-2)",
           {{"zero1", "optimizer"},
            {"zero2", "optimizer"},
            {"zero3", "parameters"},
            {"ZeRO-1", "optimizer"},
            {"ZeRO-2", "optimizer"},
            {"ZeRO-3", "parameters"}}),
      integer("parallel.context_parallel_degree", HAWSER_FIELD(parallel.context_parallel_degree),
              {.min = 1, .max = kMaxRanks}, "ranks that each sequence is split over"),
      word("parallel.context_comm", HAWSER_FIELD(parallel.context_comm),
           {{"all_gather", ContextComm::all_gather},
            {"ring", ContextComm::ring},
            {"all_to_all", ContextComm::all_to_all},
            {"hybrid", ContextComm::hybrid},
            {"auto", ContextComm::automatic}},
           {}, "how context-parallel ranks exchange K and V; see docs/long-sequences.md"),
      integer("parallel.context_all_to_all_degree", HAWSER_FIELD(parallel.context_all_to_all_degree),
              {.min = 0, .max = kMaxRanks},
              "hybrid: ranks of a group; 0: the most that divide the key-value heads and stay on a host"),
      integer(
          "parallel.context_chunks", HAWSER_FIELD(parallel.context_chunks), {.min = 0, .max = 1024},
          "chunks of each sequence per rank; 0: 2 (zig-zag), or 4 to 16 for packed documents, the fewest that balance"),
      integer("parallel.tensor_parallel_degree", HAWSER_FIELD(parallel.tensor_parallel_degree),
              {.min = 1, .max = kMaxRanks}, "ranks that each layer's matrices are split over, by heads and channels"),
      flag("parallel.sequence_parallel", HAWSER_FIELD(parallel.sequence_parallel),
           "tensor-parallel ranks also split the tokens of norms and of what is kept between layers"),
      names("parallel.tensor_parallel_modules", HAWSER_FIELD(parallel.tensor_parallel_modules),
            "what tensor-parallel ranks split: attention, mlp, vocabulary; each rank has all of the others",
            {.valid = [](const std::string& entry) { return std::ranges::count(kTensorModules, entry) > 0; },
             .what = "unknown value",
             .expected = "attention, mlp or vocabulary"}),
      integer("parallel.pipeline_parallel_degree", HAWSER_FIELD(parallel.pipeline_parallel_degree),
              {.min = 1, .max = kMaxRanks}, "stages that the blocks are split into; see docs/pipeline.md"),
      word("parallel.pipeline_schedule", HAWSER_FIELD(parallel.pipeline_schedule),
           {{"1f1b", PipelineSchedule::one_forward_one_backward},
            {"gpipe", PipelineSchedule::gpipe},
            {"interleaved", PipelineSchedule::interleaved},
            {"zero_bubble", PipelineSchedule::zero_bubble}},
           {}, "the order in which stages run the passes of micro-batches",
           {{"1F1B", "1f1b"}, {"simple", "gpipe"}, {"zb", "zero_bubble"}, {"zb-h1", "zero_bubble"}}),
      integer("parallel.pipeline_virtual_stages", HAWSER_FIELD(parallel.pipeline_virtual_stages),
              {.min = 0, .max = 1024}, "interleaved: model chunks of a stage; 0: 2"),
      pipeline_partition("parallel.pipeline_partition",
                         "blocks of each stage, interleaved of each model chunk, in the order of the model"),
      word("parallel.pipeline_optimize", HAWSER_FIELD(parallel.pipeline_optimize),
           {{"speed", PipelineOptimize::speed}, {"memory", PipelineOptimize::memory}}, {},
           "pipeline_partition: auto: for the time of a step, or the memory of the largest stage"),
      instead("parallel.hybrid_shard_degree=0, which shards the experts over all ranks",
              integer("parallel.expert_parallel_degree", HAWSER_FIELD(parallel.expert_parallel_degree),
                      {.min = 1, .supported = 1}, "ranks that the experts of a layer are split over")),
      integer("parallel.prefetch", HAWSER_FIELD(parallel.prefetch), {.min = 0, .max = 1024},
              "layers whose parameters are gathered ahead of use"),
      word("parallel.gradient_accumulation", HAWSER_FIELD(parallel.gradient_accumulation),
           {{"sharded", GradientAccumulation::sharded}, {"local", GradientAccumulation::local}}, {},
           "sharded: reduce every micro-batch; local: accumulate unsharded gradients, reduce once"),

      checkpointing("memory.activation_checkpointing", "what backward recomputes"),
      integer("memory.mlp_tile_rows", HAWSER_FIELD(memory.mlp_tile_rows),
              {.min = 0, .max = 1 << 30, .multiple_of = kMlpTileStep, .in_units = true},
              "rows (tokens) of a tile in which MLPs are computed, again in backward; 0: whole"),
      automatic_flag("memory.activation_offload", HAWSER_FIELD(memory.activation_offload),
                     "keep what blocks save in host memory until backward; auto: where that beats recompute"),
      integer("memory.activation_offload_window", HAWSER_FIELD(memory.activation_offload_window),
              {.min = 1, .max = 1 << 20},
              "layers (half blocks) whose offloaded activations are on the device besides the running one's"),
      automatic_flag("memory.optimizer_offload", HAWSER_FIELD(memory.optimizer_offload),
                     "keep master weights and optimizer state in host memory; auto: as much as does not fit"),
      flag("memory.weight_offload", HAWSER_FIELD(memory.weight_offload),
           "keep the weights that layers read in host memory, too, and load them before each use"),
      unset("the device's memory",
            bytes("memory.capacity", HAWSER_FIELD(memory.capacity), "memory limit per rank; same as --memory")),
      unset("the machine's free memory",
            bytes("memory.host_capacity", HAWSER_FIELD(memory.host_capacity),
                  "host memory for the ranks of a machine together; same as --host-memory")),

      word("precision.compute", HAWSER_FIELD(precision.compute),
           {{"auto", ComputePrecision::automatic},
            {"float32", ComputePrecision::float32},
            {"bf16", ComputePrecision::bf16},
            {"fp8", ComputePrecision::fp8}},
           {"fp16"}, "compute dtype; auto: float32 on the CPU, bf16 on CUDA; fp8: block GEMMs in FP8, else auto",
           {{"bfloat16", "bf16"},
            {"fp32", "float32"},
            {"f32", "float32"},
            {"float16", "fp16"},
            {"half", "fp16"},
            {"float8", "fp8"}}),
      word("precision.fp8.scaling", HAWSER_FIELD(precision.fp8.scaling),
           {{"delayed", Fp8Scaling::delayed}, {"current", Fp8Scaling::current}, {"block", Fp8Scaling::block}}, {},
           "FP8 scales: from amaxes of earlier steps, from the tensor's own, or one for each block"),
      integer("precision.fp8.amax_history", HAWSER_FIELD(precision.fp8.amax_history), {.min = 1, .max = 4096},
              "delayed scaling: steps whose amaxes are kept"),
      word("precision.fp8.amax_algorithm", HAWSER_FIELD(precision.fp8.amax_algorithm),
           {{"max", AmaxAlgorithm::maximum}, {"most_recent", AmaxAlgorithm::most_recent}}, {},
           "delayed scaling: which amax of the history gives the scale"),
      integer("precision.fp8.margin", HAWSER_FIELD(precision.fp8.margin), {.min = 0, .max = 16},
              "scales are 2^margin times larger than an amax needs"),
      number("precision.fp8.saturation_limit", HAWSER_FIELD(precision.fp8.saturation_limit), {.min = 0, .max = 1},
             "delayed scaling: a step in which a larger share of a tensor saturates is replayed; 1: none"),
      integer("precision.fp8.fallback_after", HAWSER_FIELD(precision.fp8.fallback_after), {.min = 0, .max = 100},
              "delayed scaling: a Linear that makes N of 100 steps replay leaves FP8 for good; 0: never"),
      integer("precision.fp8.verify_every", HAWSER_FIELD(precision.fp8.verify_every), {.min = 0},
              "steps between computations of a step with bf16 inputs and gradients, for comparison; 0: never"),
      names("precision.fp8.layers", HAWSER_FIELD(precision.fp8.layers),
            "transformer blocks whose Linears and experts are in FP8: all, numbers from 0, or ranges such as 2-29",
            {.valid = [](const std::string& entry) { return block_range_of(entry).has_value(); },
             .what = "not a block or a range of blocks",
             .expected = "all, numbers from 0, or ranges such as 2-29"}),
      names("precision.fp8.exclude", HAWSER_FIELD(precision.fp8.exclude),
            "Linears and experts of these blocks that are not in FP8, by name (down_proj) or regular expression",
            modules("a name such as down_proj, or .*[.][01][.].*down_proj")),

      steps(),
      unset_at_zero("none: set this or train.steps",
                    number("train.epochs", HAWSER_FIELD(train.epochs), {.min = 0, .max = 1e5, .min_open = true},
                           "passes over the training data")),
      integer("train.global_batch_size", HAWSER_FIELD(train.global_batch_size), {.min = 1, .max = kMaxSequences},
              "sequences per step, over all ranks"),
      integer("train.micro_batch_size", HAWSER_FIELD(train.micro_batch_size), {.min = 1, .max = kMaxSequences},
              "sequences per data-parallel rank and micro-batch"),
      integer("train.seed", HAWSER_FIELD(train.seed), {.min = 0},
              "seed of initial weights, data order and validation split"),
      integer("train.evaluate_every", HAWSER_FIELD(train.evaluate_every), {.min = 0},
              "steps between evaluations; 0: only before the first step and at the end"),
      integer("train.evaluate_batches", HAWSER_FIELD(train.evaluate_batches), {.min = 0},
              "global batches per evaluation of each validation set, the same text on any layout; 0: all of it"),
      integer("train.early_stopping.patience", HAWSER_FIELD(train.early_stopping_patience), {.min = 0},
              "evaluations without a lower validation loss after which the run ends; 0: it runs to its end"),
      text("train.early_stopping.metric", HAWSER_FIELD(train.early_stopping_metric), "",
           "loss for early stopping and OUTPUT/best: validation (all sets), or the name of a set of data.validation"),
      integer("train.log_every", HAWSER_FIELD(train.log_every), {.min = 1},
              "steps between progress lines; metrics.jsonl has every step"),
      names("train.freeze", HAWSER_FIELD(train.freeze),
            "names of parameters or modules that do not train: [embed_tokens, layers.0]; see docs/fine-tune.md",
            modules("a name such as embed_tokens, or .*layers[.][0-3]")),

      word(
          "moe.balancing", HAWSER_FIELD(moe.balancing),
          {{"model", ExpertBalancing::model}, {"aux_loss", ExpertBalancing::aux_loss}, {"none", ExpertBalancing::none}},
          {}, "load-balancing loss of experts; model: with output_router_logits or a coefficient"),
      unset("the model's config", number("moe.aux_loss_coefficient", HAWSER_FIELD(moe.aux_loss_coefficient),
                                         not_negative, "models with experts: coefficient of the load-balancing loss")),
      unset("the model's config", number("moe.z_loss_coefficient", HAWSER_FIELD(moe.z_loss_coefficient), not_negative,
                                         "models with experts: coefficient of the router z-loss")),

      word("adapter.kind", HAWSER_FIELD(adapter.kind),
           {{"none", AdapterKind::none}, {"lora", AdapterKind::lora}, {"qlora", AdapterKind::qlora}}, {},
           "lora: train low-rank adapters beside a frozen model; qlora: the model in NF4; none: all weights"),
      word("adapter.base", HAWSER_FIELD(adapter.base),
           {{"auto", AdapterBase::automatic},
            {"bf16", AdapterBase::bf16},
            {"fp8", AdapterBase::fp8},
            {"nf4", AdapterBase::nf4}},
           {}, "frozen weights: nf4 (4 bits), fp8, bf16 (not quantized); auto: as Linears compute"),
      flag("adapter.double_quantization", HAWSER_FIELD(adapter.double_quantization),
           "with adapter.base: nf4: store the scales of its blocks in 8 bits"),
      integer("adapter.rank", HAWSER_FIELD(adapter.rank), {.min = 1, .max = 1 << 16}, "rank of the adapters' matrices"),
      number("adapter.alpha", HAWSER_FIELD(adapter.alpha), positive, "an adapter's output is scaled by alpha / rank"),
      number("adapter.dropout", HAWSER_FIELD(adapter.dropout), fraction, "dropout of the adapters' input"),
      names("adapter.targets", HAWSER_FIELD(adapter.targets),
            "Linears with adapters, by name (q_proj), regular expression, or all-linear",
            modules("a name such as q_proj, or .*[qv]_proj")),
      names("adapter.modules_to_save", HAWSER_FIELD(adapter.modules_to_save),
            "modules that train in full beside the adapters, such as lm_head or norm"),
      flag("adapter.rslora", HAWSER_FIELD(adapter.rslora), "scale by alpha / sqrt(rank) instead (rsLoRA)"),
      flag("adapter.dora", HAWSER_FIELD(adapter.dora), "a trained magnitude for each row of the weight too (DoRA)"),

      word("optimizer.kind", HAWSER_FIELD(optimizer.kind),
           {{"adamw", OptimizerKind::adamw},
            {"adamw_8bit", OptimizerKind::adamw_8bit},
            {"adafactor", OptimizerKind::adafactor},
            {"lion", OptimizerKind::lion},
            {"sgd", OptimizerKind::sgd},
            {"muon", OptimizerKind::muon}},
           {}, "update rule and its state; see docs/optimizers.md"),
      state_dtype("optimizer.state_dtype", HAWSER_FIELD(optimizer.state_dtype),
                  "moments of the optimizer; bf16: half of the memory, with stochastic rounding"),
      state_dtype("optimizer.master_dtype", HAWSER_FIELD(optimizer.master_dtype),
                  "trained weights between steps; bf16: no second copy, with stochastic rounding"),
      unset_at_zero("none",
                    number("optimizer.ema", HAWSER_FIELD(optimizer.ema), fraction,
                           "decay of a moving average of the trained weights, such as 0.999; see docs/optimizers.md")),
      number("optimizer.learning_rate", HAWSER_FIELD(optimizer.learning_rate), positive, "learning rate after warmup"),
      word("optimizer.schedule", HAWSER_FIELD(optimizer.schedule),
           {{"cosine", LearningRateSchedule::cosine},
            {"linear", LearningRateSchedule::linear},
            {"constant", LearningRateSchedule::constant},
            {"wsd", LearningRateSchedule::wsd},
            {"inverse_sqrt", LearningRateSchedule::inverse_sqrt},
            {"polynomial", LearningRateSchedule::polynomial}},
           {}, "learning rate after warmup; wsd: constant, then a decay",
           {{"cosine_with_min_lr", "cosine"},
            {"constant_with_warmup", "constant"},
            {"warmup_stable_decay", "wsd"},
            {"WSD", "wsd"},
            {"inverse-square-root", "inverse_sqrt"}}),
      warmup_steps(),
      unset_at_zero("none", number("optimizer.warmup_ratio", HAWSER_FIELD(optimizer.warmup_ratio), fraction,
                                   "or warmup as a share of the run's steps, rounded up")),
      integer("optimizer.decay_steps", HAWSER_FIELD(optimizer.decay_steps), {.min = 0},
              "wsd: last steps of the run, in which the learning rate decays; 0: a tenth of the run"),
      word("optimizer.decay_type", HAWSER_FIELD(optimizer.decay_type),
           {{"cosine", DecayType::cosine}, {"linear", DecayType::linear}, {"1-sqrt", DecayType::one_minus_sqrt}}, {},
           "wsd: form of the decay"),
      number("optimizer.power", HAWSER_FIELD(optimizer.power), positive, "polynomial: power of the decay"),
      number("optimizer.minimum_learning_rate", HAWSER_FIELD(optimizer.minimum_learning_rate), not_negative,
             "final learning rate of a decay; inverse_sqrt has none"),
      number("optimizer.beta1", HAWSER_FIELD(optimizer.beta1), fraction,
             "adamw: decay rate of the first moment; lion: share of the momentum in the update"),
      by_kind("0.95; lion: 0.99",
              number("optimizer.beta2", HAWSER_FIELD(optimizer.beta2), fraction,
                     "adamw: decay rate of the second moment; lion: of the momentum"),
              &OptimizerRecipe::beta2_or_default),
      number("optimizer.epsilon", HAWSER_FIELD(optimizer.epsilon), positive, "adamw: added to the denominator"),
      unset("0.9; muon: 0.95", number("optimizer.momentum", HAWSER_FIELD(optimizer.momentum), fraction,
                                      "sgd, muon: decay rate of the momentum; sgd with 0 has no state")),
      automatic_flag("optimizer.nesterov", HAWSER_FIELD(optimizer.nesterov),
                     "sgd, muon: Nesterov's momentum; auto: that of muon"),
      flag("optimizer.scale_parameter", HAWSER_FIELD(optimizer.scale_parameter),
           "adafactor: learning rate relative to the size of each tensor's weights"),
      flag("optimizer.relative_step", HAWSER_FIELD(optimizer.relative_step),
           "adafactor: learning rate at most 1 / sqrt(n) in update n"),
      by_kind("0.1; sgd, adafactor: 0",
              number("optimizer.weight_decay", HAWSER_FIELD(optimizer.weight_decay), not_negative,
                     "weight decay of matrices; norms and biases have none"),
              &OptimizerRecipe::weight_decay_or_default),
      number("optimizer.gradient_clip", HAWSER_FIELD(optimizer.gradient_clip), not_negative,
             "maximum global gradient norm; 0: no clipping"),
      param_groups("optimizer.groups", "learning rates and weight decays of some parameters; see docs/fine-tune.md"),

      integer("checkpoint.every_steps", HAWSER_FIELD(checkpoint.every_steps), {.min = 0},
              "steps between checkpoints; 0: off; one is always saved at the end"),
      unset("15; 0 if checkpoint.every_steps is set",
            number("checkpoint.every_minutes", HAWSER_FIELD(checkpoint.every_minutes), not_negative,
                   "minutes between checkpoints, by rank 0's clock; 0: off")),
      integer("checkpoint.keep_last", HAWSER_FIELD(checkpoint.keep_last), {.min = 1},
              "number of checkpoints kept; older ones are removed, except OUTPUT/best"),
      flag("checkpoint.asynchronous", HAWSER_FIELD(checkpoint.asynchronous),
           "steps wait only for a copy to host memory; disk writes run in the background (docs/checkpoints.md)"),

      integer("run.ranks", HAWSER_FIELD(run.ranks), {.min = 0, .max = kMaxRanks},
              "processes; 0: one per GPU, on the CPU what the degrees of parallel need; same as --ranks"),
      integer("run.threads", HAWSER_FIELD(run.threads), {.min = 0, .max = kMaxThreads},
              "CPU threads per rank; 0: cores / ranks"),
      word("run.device", HAWSER_FIELD(run.device),
           {{"auto", DeviceChoice::automatic}, {"cpu", DeviceChoice::cpu}, {"cuda", DeviceChoice::cuda}}, {},
           "device to run on; auto: CUDA if this build supports it and there is a GPU; same as --device"),
      number("run.collective_timeout_s", HAWSER_FIELD(run.collective_timeout_s), positive,
             "timeout of a collective in seconds; on expiry the run ends and the missing rank is reported"),
      automatic_flag("run.deterministic", HAWSER_FIELD(run.deterministic),
                     "bitwise reproducible runs; auto: off on CUDA, where it costs time (docs/performance.md)"),

      flag("report.html", HAWSER_FIELD(report.html), "write OUTPUT/report.html, every minute and at the end of a run"),
      flag("report.rules", HAWSER_FIELD(report.rules),
           "warn of exploding or vanishing gradients, a loss that does not fall, stalls, overfitting"),
      flag("report.tensorboard", HAWSER_FIELD(report.tensorboard), "write event files to OUTPUT/tensorboard"),
      integer("report.prometheus_port", HAWSER_FIELD(report.prometheus_port), {.min = 0, .max = 65535},
              "port of the HTTP endpoint /metrics, for example 9400; 0: none"),
      address("report.prometheus_address", HAWSER_FIELD(report.prometheus_address),
              "address to listen on; 0.0.0.0 or :: accepts other hosts"),
      server("report.mlflow", HAWSER_FIELD(report.mlflow), "none", "MLflow server that receives the run's metrics"),
      text("report.mlflow_experiment", HAWSER_FIELD(report.mlflow_experiment), "hawser",
           "MLflow experiment; created if missing"),
      flag("report.wandb", HAWSER_FIELD(report.wandb),
           "write an offline run of Weights & Biases to OUTPUT/wandb; `wandb sync` uploads it"),
      text("report.wandb_project", HAWSER_FIELD(report.wandb_project), "hawser", "Weights & Biases project"),

      needed(to_train, path("output", HAWSER_FIELD(output), "",
                            "folder for checkpoints, metrics and reports; files of an earlier run are moved to "
                            "earlier-N and never deleted")),
  };
}

}  // namespace

std::string Key::section() const {
  const auto dot = name.find('.');
  return dot == std::string::npos ? "" : name.substr(0, dot);
}

std::string Key::leaf() const {
  const auto dot = name.find('.');
  return dot == std::string::npos ? name : name.substr(dot + 1);
}

const std::vector<Key>& schema() {
  static const std::vector<Key> table = make_schema();
  return table;
}

const std::vector<Section>& sections() {
  static const std::vector<Section> table = {
      {"model", "The model to train: set one of the two."},
      {"data",
       "Training data. Relative paths start at the recipe's folder; those of `--set` at the working directory; `~` is "
       "the home folder."},
      {"parallel",
       "Parallelism; docs/layout.md tells what to choose. Ranks = pipeline_parallel_degree x tensor_parallel_degree x "
       "hybrid_shard_degree x replicas; a context-parallel group is part of the ranks that shard."},
      {"memory", "Activation checkpointing and memory limits."},
      {"precision", "Compute precision."},
      {"train", "Steps, batch sizes, evaluation."},
      {"moe",
       "Routers of models with experts: the losses that they add, each a mean over the micro-batches of a step."},
      {"adapter", "Training of adapters instead of all weights; see docs/adapters.md."},
      {"optimizer", "The optimizer and the learning-rate schedule."},
      {"checkpoint", "When checkpoints are saved, and how many are kept."},
      {"run", "Ranks, devices and timeouts."},
      {"report", "Monitoring and reporting; see docs/watching.md."},
  };
  return table;
}

const Key* find_key(std::string_view name) {
  const auto found = std::ranges::find(schema(), name, &Key::name);
  return found == schema().end() ? nullptr : &*found;
}

bool is_section(std::string_view name) {
  return std::ranges::find(sections(), name, &Section::name) != sections().end();
}

bool is_key_group(std::string_view name) {
  const std::string prefix = std::string(name) + ".";
  return std::ranges::any_of(schema(), [&](const Key& key) { return key.name.starts_with(prefix); });
}

std::string nearest_key(std::string_view name) {
  const auto dot = name.find('.');
  const std::string section(dot == std::string_view::npos ? "" : name.substr(0, dot));
  const std::string leaf(dot == std::string_view::npos ? name : name.substr(dot + 1));
  for (const Key& key : schema())
    if (key.leaf() == leaf) return key.name;

  std::vector<std::string> leaves;  // of its own section; for a top-level key, also the sections
  for (const Key& key : schema())
    if (key.section() == section) leaves.push_back(key.leaf());
  if (section.empty())
    for (const Section& other : sections()) leaves.push_back(other.name);
  const std::string in_section = nearest(leaf, leaves);
  if (!in_section.empty()) return section.empty() ? in_section : section + "." + in_section;

  std::vector<std::string> names;
  leaves.clear();
  for (const Key& key : schema()) {
    names.push_back(key.name);
    leaves.push_back(key.leaf());
  }
  const std::string anywhere = nearest(leaf, leaves);
  for (const Key& key : schema())
    if (!anywhere.empty() && key.leaf() == anywhere) return key.name;
  return nearest(name, names);
}

}  // namespace hawser

// `Recipe`: the settings of a run as the user gave them, after reading and checking. config/ fills it from YAML through
// the schema table (one row per key: name, default, help, check). Field names are the YAML keys.
//
// What runs does not read it: plan/run_plan.h resolves defaults, automatic values and relative paths once.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/training_options.h"
#include "base/units.h"
#include "base/validation_metric.h"

namespace hawser {

struct ModelRecipe {
  std::string path;    // a Hugging Face model folder: fine-tune its weights
  std::string config;  // or a config.json: train from random weights
};

// A data set of a data.train that mixes several.
struct DataSetRecipe {
  std::vector<std::string> paths;  // as DataRecipe::train
  std::optional<double> weight;    // share of the tokens, relative to the other sets'; of all sets or of none
  std::optional<double> repeat;    // without weights: times that an epoch has it; default 1

  bool operator==(const DataSetRecipe&) const = default;
};

// Validation data with a loss of their own.
struct ValidationSetRecipe {
  std::string name;                // "": the recipe has a list in place of a map, and this is the only set
  std::vector<std::string> paths;  // as DataRecipe::train

  bool operator==(const ValidationSetRecipe&) const = default;
};

struct DataRecipe {
  std::vector<std::string> train;   // files and globs, relative to the recipe; .jsonl or .txt; or a token-file prefix
  std::vector<DataSetRecipe> sets;  // of which `train` is; empty: all of it is one set
  std::vector<ValidationSetRecipe> validation;  // held-out files, sorted by name; else validation_fraction of train
  std::string tokenizer;                        // a tokenizer.json; default: the model folder's
  std::string chat_template;                    // a name or a file; default: the tokenizer's; for lines with messages
  // Names of keys and roles, each with what files call it: messages -> dialogue, assistant -> agent.
  std::map<std::string, std::vector<std::string>> columns, roles;
  std::string template_date = "2024-07-26";  // that strftime_now gives a chat template
  std::string prepared;                      // folder of token files; default OUTPUT/data
  std::int64_t sequence_length = 0;
  Packing pack = Packing::documents;
  LongDocuments long_documents = LongDocuments::split;
  std::int64_t max_documents = 0;  // maximum documents per sequence; 0: sequence_length / 64, at least 8
  double validation_fraction = 0.0;
  bool deduplicate = false;
};

// Entries of parallel.tensor_parallel_modules: what tensor-parallel ranks may divide.
inline constexpr std::array<std::string_view, 3> kTensorModules = {"attention", "mlp", "vocabulary"};

// Micro-batches of a step for each pipeline stage, where nothing else is said: stages wait for less than a fifth of it.
inline constexpr int kMicroBatchesAStage = 4;
// Of memory.mlp_tile_rows: it is a multiple of the first, the rows of a block of FP8 scales; the second is proposed.
inline constexpr std::int64_t kMlpTileStep = 128, kMlpTileRows = 8192;

struct ParallelRecipe {
  // Of the ranks that tensor and pipeline parallelism leave. 0: all; 1: none; N: shard over N of them (context
  // included), replicate across.
  int hybrid_shard_degree = 0;
  ShardPolicy sharding = ShardPolicy::parameters;
  int context_parallel_degree = 1;
  ContextComm context_comm = ContextComm::all_gather;
  int context_all_to_all_degree = 0;  // ranks of a group of hybrid; 0: plan/context_form.h
  int context_chunks = 0;             // chunks of each sequence per rank; 0: 2 (zig-zag), packed batches 4 to 16
  int tensor_parallel_degree = 1;
  bool sequence_parallel = true;
  std::vector<std::string> tensor_parallel_modules{kTensorModules.begin(), kTensorModules.end()};
  int pipeline_parallel_degree = 1;
  PipelineSchedule pipeline_schedule = PipelineSchedule::one_forward_one_backward;
  int pipeline_virtual_stages = 0;           // model chunks of a stage; 0: 2 if interleaved, else 1
  std::vector<int> pipeline_partition = {};  // blocks of each model chunk, in model order; empty: plan/pipeline_form.h
  PipelineOptimize pipeline_optimize = PipelineOptimize::speed;
  int expert_parallel_degree = 1;
  int prefetch = 1;  // units gathered ahead of use
  GradientAccumulation gradient_accumulation = GradientAccumulation::sharded;

  // Ranks that have the same sequences: tensor x context x pipeline. Of degrees whose product is too large for an int,
  // its largest number.
  int ranks_of_a_data_rank() const {
    const double product = double{1} * tensor_parallel_degree * context_parallel_degree * pipeline_parallel_degree;
    return product < std::numeric_limits<int>::max() ? static_cast<int>(product) : std::numeric_limits<int>::max();
  }
  // At least 1, also where `world` ranks are too few for the degrees.
  int data_ranks(int world) const { return std::max(1, world / ranks_of_a_data_rank()); }
  // Without the caller's choice: one for each data rank, and enough for pipeline stages to work at the same time.
  std::int64_t micro_batches_to_try() const {
    return pipeline_parallel_degree > 1 ? std::int64_t{kMicroBatchesAStage} * pipeline_parallel_degree : 1;
  }
};

struct MemoryRecipe {
  Checkpointing activation_checkpointing = Checkpointing::none;
  std::vector<Checkpointing> per_layer;  // one entry per block if the recipe has a list; empty: the one above for all
  std::int64_t mlp_tile_rows = 0;        // MLPs run in tiles of this many rows; 0: whole
  // What blocks save is in host memory between forward and backward; nullopt (auto): where that is predicted to be
  // faster than to recompute.
  std::optional<bool> activation_offload = false;
  std::vector<bool> offloaded_blocks;          // the planner's choice for auto, by block; not a key
  std::int64_t activation_offload_window = 1;  // layers whose tensors are on the device besides the running one's
  // Master weights and the optimizer's state are in host memory; nullopt (auto): those that do not fit on the device.
  std::optional<bool> optimizer_offload = false;
  std::optional<int> offloaded_flats;  // the planner's choice for auto: flats of a stage (plan::Candidate); not a key
  bool weight_offload = false;         // weights as layers read them are, too
  std::optional<Bytes> capacity;       // memory limit per rank; `--memory`
  std::optional<Bytes> host_capacity;  // of host memory, for the ranks of a machine together; `--host-memory`
};

// True for `auto` before the planner has replaced it with a list.
inline bool is_automatic(const MemoryRecipe& memory) {
  return memory.per_layer.empty() && memory.activation_checkpointing == Checkpointing::automatic;
}

// True for memory.optimizer_offload: auto before the planner has chosen.
inline bool is_offload_automatic(const MemoryRecipe& memory) {
  return !memory.optimizer_offload && !memory.offloaded_flats;
}

// Linears and experts in FP8 (nn/precision/).
struct Fp8Recipe {
  Fp8Scaling scaling = Fp8Scaling::delayed;
  std::int64_t amax_history = 16;
  AmaxAlgorithm amax_algorithm = AmaxAlgorithm::maximum;
  int margin = 0;
  // Share of an input's or a gradient's elements that are beyond the range of a delayed scale, from which on a step is
  // replayed; 1: none is.
  double saturation_limit = 5e-3;
  // A Linear that makes this many of 100 steps replay is not in FP8 from then on (engine/fp8_fallback.h); 0: never.
  std::int64_t fallback_after = 10;
  std::int64_t verify_every = 0;              // steps; 0: never
  std::vector<std::string> layers = {"all"};  // numbers of blocks, from 0, and ranges of them: "2-29"
  std::vector<std::string> exclude;           // Linears of these blocks that are not in FP8 (models/linear_names.h)
};

struct PrecisionRecipe {
  ComputePrecision compute = ComputePrecision::automatic;
  Fp8Recipe fp8;
};

struct TrainRecipe {
  // How long to train: one of the two; the other is 0. `fit` computes steps from epochs when it has read the data.
  std::int64_t steps = 0;
  double epochs = 0;                   // passes over the training data
  std::int64_t global_batch_size = 1;  // sequences per step
  std::int64_t micro_batch_size = 1;   // sequences per data rank and micro-batch
  std::uint64_t seed = 1234;
  std::int64_t evaluate_every = 0;    // steps; 0: only before the first step and at the end
  std::int64_t evaluate_batches = 0;  // batches of global_batch_size sequences of each validation set; 0: all
  // Evaluations without a lower validation loss after which the run ends (report/early_stopping.h); 0: it does not.
  std::int64_t early_stopping_patience = 0;
  std::string early_stopping_metric = kAllSets;  // or the name of a validation set; also decides what OUTPUT/best is
  std::int64_t log_every = 1;
  std::vector<std::string> freeze;  // names of parameters that do not train (models/param_names.h)
};

// Losses that routers of experts add; only for models that have experts.
struct MoeRecipe {
  ExpertBalancing balancing = ExpertBalancing::model;
  std::optional<double> aux_loss_coefficient, z_loss_coefficient;  // none: the model's config
};

// An adapter trains beside frozen weights. Names and their meaning: models/lora.h.
struct AdapterRecipe {
  AdapterKind kind = AdapterKind::none;
  std::int64_t rank = 16;
  double alpha = 32;
  double dropout = 0;
  std::vector<std::string> targets = {"all-linear"};
  std::vector<std::string> modules_to_save;  // train in full beside the adapter
  bool rslora = false;
  bool dora = false;
  AdapterBase base = AdapterBase::automatic;
  bool double_quantization = true;  // with NF4: scales of blocks in 8 bits

  bool in_nf4() const {
    return base == AdapterBase::nf4 || (base == AdapterBase::automatic && kind == AdapterKind::qlora);
  }
};

// Parameters that learn otherwise than the rest. Of the learning rates at most one.
struct ParamGroupRecipe {
  std::vector<std::string> match;  // names of parameters (models/param_names.h)
  std::optional<double> learning_rate, learning_rate_factor, weight_decay;

  bool operator==(const ParamGroupRecipe&) const = default;
};
constexpr std::size_t kMaxParamGroups = 15;

struct OptimizerRecipe {
  OptimizerKind kind = OptimizerKind::adamw;
  StateDType state_dtype = StateDType::f32;   // of the kinds that have a choice
  StateDType master_dtype = StateDType::f32;  // of trained weights between steps
  double ema = 0.0;                           // decay of the average of trained weights; 0: there is none
  double learning_rate = 3.0e-4;
  LearningRateSchedule schedule = LearningRateSchedule::cosine;
  // How long the warm-up is: one of the two; the other is 0. warmup_ratio is a share of the run's steps.
  std::int64_t warmup_steps = 0;
  double warmup_ratio = 0.0;
  std::int64_t decay_steps = 0;  // of the wsd schedule, at the end of the run; 0: a tenth of the steps
  DecayType decay_type = DecayType::cosine;
  double power = 1.0;  // of the polynomial schedule
  double minimum_learning_rate = 0.0;
  double beta1 = 0.9;
  std::optional<double> beta2;  // none: beta2_or_default()
  double epsilon = 1.0e-8;
  std::optional<double> momentum;                       // none: momentum_or_default()
  std::optional<bool> nesterov;                         // none: nesterov_or_default()
  bool scale_parameter = false, relative_step = false;  // of adafactor
  std::optional<double> weight_decay;    // matrices only, not norms and biases; none: weight_decay_or_default()
  double gradient_clip = 1.0;            // maximum global norm; 0: no clipping
  std::vector<ParamGroupRecipe> groups;  // the first that matches a parameter has it

  // What each kind usually has: Lion's averages are slower, the decay of SGD is an L2 penalty on the
  // loss, and Adafactor has none.
  double beta2_or_default() const { return beta2.value_or(kind == OptimizerKind::lion ? 0.99 : 0.95); }
  double momentum_or_default() const {
    return momentum.value_or(kind == OptimizerKind::sgd ? 0.9 : kind == OptimizerKind::muon ? 0.95 : 0.0);
  }
  bool nesterov_or_default() const { return nesterov.value_or(kind == OptimizerKind::muon); }
  double weight_decay_or_default() const {
    const bool none = kind == OptimizerKind::sgd || kind == OptimizerKind::adafactor;
    return weight_decay.value_or(none ? 0.0 : 0.1);
  }

  // Steps of the warm-up and of the wsd decay, in a run of `steps`. A ratio is rounded up, as in transformers
  // (TrainingArguments.get_warmup_steps). The default decay does not begin before the end of the warm-up.
  std::int64_t warmup_of(std::int64_t steps) const {
    if (warmup_ratio <= 0) return warmup_steps;
    return static_cast<std::int64_t>(std::ceil(static_cast<double>(steps) * warmup_ratio));
  }
  std::int64_t decay_of(std::int64_t steps) const {
    if (decay_steps > 0) return decay_steps;
    return std::max<std::int64_t>(0, std::min((steps + 9) / 10, steps - warmup_of(steps)));
  }
};

struct CheckpointRecipe {
  std::int64_t every_steps = 0;         // 0: off
  std::optional<double> every_minutes;  // 0: off; none: minutes_between()
  int keep_last = 3;
  bool asynchronous = true;  // steps wait for a snapshot in host memory, not for the disk

  // 0: off. Without any setting a crash loses at most a quarter of an hour.
  double minutes_between() const { return every_minutes.value_or(every_steps > 0 ? 0.0 : 15.0); }
};

struct RunRecipe {
  int ranks = 0;    // 0: one per GPU; on the CPU what the degrees need (default_ranks)
  int threads = 0;  // CPU threads per rank; 0: cores / ranks of this machine
  DeviceChoice device = DeviceChoice::automatic;
  double collective_timeout_s = 120.0;
  std::optional<bool> deterministic;  // none: true on the CPU, where it is free, false on CUDA
};

// Reports in addition to the progress bar and metrics.jsonl.
struct ReportRecipe {
  bool html = true;   // report.html
  bool rules = true;  // warnings about the training curve
  bool tensorboard = false;
  int prometheus_port = 0;  // 0: none
  std::string prometheus_address = "127.0.0.1";
  std::string mlflow;             // address of a server; "": none
  std::string mlflow_experiment;  // "": "hawser"
  bool wandb = false;
  std::string wandb_project;  // "": "hawser"
};

struct Recipe {
  std::string name;
  ModelRecipe model;
  DataRecipe data;
  ParallelRecipe parallel;
  MemoryRecipe memory;
  PrecisionRecipe precision;
  TrainRecipe train;
  MoeRecipe moe;
  AdapterRecipe adapter;
  OptimizerRecipe optimizer;
  CheckpointRecipe checkpoint;
  RunRecipe run;
  ReportRecipe report;
  std::string output;

  std::string file;                           // the file it was read from; "" if built in memory
  std::string folder;                         // start of relative paths
  std::map<std::string, std::string> places;  // where each given key was set: "line 12", "--set"
  // Keys whose value is not what the user means: it was rejected, or is missing. Checks that depend on one are skipped.
  std::set<std::string> rejected;
};

}  // namespace hawser

#include "config/schema.h"

#include <algorithm>

#include "config/nearest.h"
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

Key unset(const char* meaning, Key key) {
  key.unset = meaning;
  return key;
}

// Beyond what anybody has, and small enough that sizes made of them stay whole numbers.
constexpr std::int64_t kMaxTokens = std::int64_t{1} << 26;     // a sequence
constexpr std::int64_t kMaxSequences = std::int64_t{1} << 24;  // a step
constexpr std::int64_t kMaxRanks = std::int64_t{1} << 20;
constexpr std::int64_t kMaxThreads = 1024;

// One row a key. The order is that of the docs and of `hawser recipe init`.
std::vector<Key> make_schema() {
  using namespace rows;
  using enum Needed;
  const RealRange positive{.min = 0, .min_open = true};
  const RealRange not_negative{.min = 0};
  const RealRange fraction{.min = 0, .max = 1, .max_open = true};
  return {
      text("name", HAWSER_FIELD(name), "the recipe's file name", "what the run is called in reports"),

      path("model.path", HAWSER_FIELD(model.path), "", "a Hugging Face model folder; training starts from its weights"),
      path("model.config", HAWSER_FIELD(model.config), "", "or a config.json; training starts from random weights"),

      example("[text/*.jsonl]", paths("data.train", HAWSER_FIELD(data.train), "",
                                      "training text: .jsonl or .txt, also .gz or .zst, or token files by prefix")),
      paths("data.validation", HAWSER_FIELD(data.validation), "a part of data.train", "held-out text, same kinds"),
      path("data.tokenizer", HAWSER_FIELD(data.tokenizer), "the model folder's", "a tokenizer.json"),
      path_or_name("data.chat_template", HAWSER_FIELD(data.chat_template), kChatTemplateNames, "the tokenizer's",
                   "how lines with messages become text: a name or a file, see docs/data.md"),
      path("data.prepared", HAWSER_FIELD(data.prepared), "OUTPUT/data", "folder of the token files"),
      needed(always, integer("data.sequence_length", HAWSER_FIELD(data.sequence_length), {.min = 2, .max = kMaxTokens},
                             "tokens a sequence")),
      word("data.pack", HAWSER_FIELD(data.pack), {{"documents", Packing::documents}, {"chunks", Packing::chunks}}, {},
           "documents: each sees itself only; chunks: one running text"),
      integer("data.max_documents", HAWSER_FIELD(data.max_documents), {.min = 0, .max = kMaxTokens},
              "documents a sequence at most; 0: sequence_length / 64, at least 8"),
      number("data.validation_fraction", HAWSER_FIELD(data.validation_fraction), fraction,
             "share of data.train held out when data.validation is not given"),
      flag("data.deduplicate", HAWSER_FIELD(data.deduplicate), "leave out documents whose content was there before"),

      integer("parallel.hybrid_shard_degree", HAWSER_FIELD(parallel.hybrid_shard_degree), {.min = 0, .max = kMaxRanks},
              "ranks (context included) that share one copy of the state; 0: all, 1: none"),
      integer("parallel.context_parallel_degree", HAWSER_FIELD(parallel.context_parallel_degree),
              {.min = 1, .max = kMaxRanks}, "ranks that share each sequence"),
      word("parallel.context_comm", HAWSER_FIELD(parallel.context_comm), {{"all_gather", ContextComm::all_gather}},
           {"ring", "all_to_all", "auto"}, "how those ranks exchange keys and values"),
      integer(
          "parallel.context_chunks", HAWSER_FIELD(parallel.context_chunks), {.min = 0, .max = 1024},
          "chunks of each sequence a rank holds; 0: 2 (zig-zag), or with packed documents 4 to 16, as few as balance"),
      integer("parallel.tensor_parallel_degree", HAWSER_FIELD(parallel.tensor_parallel_degree),
              {.min = 1, .supported = 1}, "ranks that share each matrix"),
      integer("parallel.pipeline_parallel_degree", HAWSER_FIELD(parallel.pipeline_parallel_degree),
              {.min = 1, .supported = 1}, "stages the layers are cut into"),
      integer("parallel.expert_parallel_degree", HAWSER_FIELD(parallel.expert_parallel_degree),
              {.min = 1, .supported = 1}, "ranks that share the experts of a layer"),
      integer("parallel.prefetch", HAWSER_FIELD(parallel.prefetch), {.min = 0, .max = 1024},
              "layers whose parameters are gathered ahead of use"),
      word("parallel.gradient_accumulation", HAWSER_FIELD(parallel.gradient_accumulation),
           {{"sharded", GradientAccumulation::sharded}, {"local", GradientAccumulation::local}}, {},
           "sharded: reduce every micro-batch; local: keep whole gradients, reduce once"),

      checkpointing("memory.activation_checkpointing", "what backward computes again"),
      later_flag("memory.activation_offload", "keep activations in host memory between forward and backward"),
      later_flag("memory.optimizer_offload", "keep the optimizer's state in host memory"),
      unset("what the device has", bytes("memory.capacity", "memory a rank may use; --memory says the same")),

      word("precision.compute", HAWSER_FIELD(precision.compute),
           {{"auto", ComputePrecision::automatic},
            {"float32", ComputePrecision::float32},
            {"bf16", ComputePrecision::bf16}},
           {"fp16", "fp8"}, "arithmetic of the layers; auto: float32 on the CPU, bf16 on CUDA",
           {{"bfloat16", "bf16"},
            {"fp32", "float32"},
            {"f32", "float32"},
            {"float16", "fp16"},
            {"half", "fp16"},
            {"float8", "fp8"}}),

      needed(to_train, integer("train.steps", HAWSER_FIELD(train.steps), {.min = 1}, "optimizer steps of the run")),
      integer("train.global_batch_size", HAWSER_FIELD(train.global_batch_size), {.min = 1, .max = kMaxSequences},
              "sequences a step, over all ranks"),
      integer("train.micro_batch_size", HAWSER_FIELD(train.micro_batch_size), {.min = 1, .max = kMaxSequences},
              "sequences a data rank computes at a time"),
      integer("train.seed", HAWSER_FIELD(train.seed), {.min = 0}, "of initial weights, data order and the split"),
      integer("train.evaluate_every", HAWSER_FIELD(train.evaluate_every), {.min = 0},
              "steps between evaluations; 0: at the end only"),
      integer("train.evaluate_batches", HAWSER_FIELD(train.evaluate_batches), {.min = 0},
              "global batches an evaluation reads, the same text on any layout; 0: the whole validation set"),
      integer("train.log_every", HAWSER_FIELD(train.log_every), {.min = 1}, "steps between lines of metrics"),

      number("optimizer.learning_rate", HAWSER_FIELD(optimizer.learning_rate), positive, "its peak, after warm-up"),
      word("optimizer.schedule", HAWSER_FIELD(optimizer.schedule),
           {{"cosine", LearningRateSchedule::cosine},
            {"linear", LearningRateSchedule::linear},
            {"constant", LearningRateSchedule::constant}},
           {}, "how the learning rate falls after warm-up"),
      integer("optimizer.warmup_steps", HAWSER_FIELD(optimizer.warmup_steps), {.min = 0},
              "steps over which it rises from 0"),
      number("optimizer.minimum_learning_rate", HAWSER_FIELD(optimizer.minimum_learning_rate), not_negative,
             "where it ends"),
      number("optimizer.beta1", HAWSER_FIELD(optimizer.beta1), fraction, "AdamW: decay of the first moment"),
      number("optimizer.beta2", HAWSER_FIELD(optimizer.beta2), fraction, "AdamW: decay of the second moment"),
      number("optimizer.epsilon", HAWSER_FIELD(optimizer.epsilon), positive, "AdamW: added to the denominator"),
      number("optimizer.weight_decay", HAWSER_FIELD(optimizer.weight_decay), not_negative,
             "AdamW: on matrices only, not on norms and biases"),
      number("optimizer.gradient_clip", HAWSER_FIELD(optimizer.gradient_clip), not_negative,
             "largest norm of the whole gradient; 0: no clipping"),

      integer("checkpoint.every_steps", HAWSER_FIELD(checkpoint.every_steps), {.min = 0},
              "steps between checkpoints; 0: not by steps; there is always one at the end"),
      number("checkpoint.every_minutes", HAWSER_FIELD(checkpoint.every_minutes), not_negative,
             "minutes between checkpoints, as rank 0's clock has them; 0: not by time"),
      integer("checkpoint.keep_last", HAWSER_FIELD(checkpoint.keep_last), {.min = 1},
              "checkpoints kept; older ones are removed, OUTPUT/best never"),
      flag("checkpoint.asynchronous", HAWSER_FIELD(checkpoint.asynchronous),
           "steps wait for a copy in host memory only, and the disk is written beside them (docs/checkpoints.md)"),

      integer("run.ranks", HAWSER_FIELD(run.ranks), {.min = 0, .max = kMaxRanks},
              "processes; 0: one a GPU, on the CPU the product of the degrees; --ranks says the same"),
      integer("run.threads", HAWSER_FIELD(run.threads), {.min = 0, .max = kMaxThreads},
              "CPU threads a rank; 0: cores / ranks"),
      word("run.device", HAWSER_FIELD(run.device),
           {{"auto", DeviceChoice::automatic}, {"cpu", DeviceChoice::cpu}, {"cuda", DeviceChoice::cuda}}, {},
           "where it runs; auto: CUDA where it is built in and a GPU is there; --device says the same"),
      number("run.collective_timeout_s", HAWSER_FIELD(run.collective_timeout_s), positive,
             "seconds a collective may take before the run is ended and the rank named"),
      automatic_flag("run.deterministic", HAWSER_FIELD(run.deterministic),
                     "two runs give the same bits; auto: not on CUDA, where it costs (docs/performance.md)"),

      flag("report.html", HAWSER_FIELD(report.html), "OUTPUT/report.html at the end of a run"),
      flag("report.rules", HAWSER_FIELD(report.rules),
           "warn of exploding or vanishing gradients, a loss that does not fall, a stall, overfitting"),
      flag("report.tensorboard", HAWSER_FIELD(report.tensorboard), "event files in OUTPUT/tensorboard"),
      integer("report.prometheus_port", HAWSER_FIELD(report.prometheus_port), {.min = 0, .max = 65535},
              "port of an HTTP endpoint /metrics, as in 9400; 0: none"),
      address("report.prometheus_address", HAWSER_FIELD(report.prometheus_address),
              "where it listens; 0.0.0.0 or ::: other hosts may ask too"),
      server("report.mlflow", HAWSER_FIELD(report.mlflow), "none", "an MLflow server that gets the run's metrics"),
      text("report.mlflow_experiment", HAWSER_FIELD(report.mlflow_experiment), "hawser",
           "the experiment there; made when missing"),

      needed(to_train, path("output", HAWSER_FIELD(output), "",
                            "folder of checkpoints, metrics and reports; a new run moves an earlier one's to "
                            "earlier-N, kept until you remove it")),
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
      {"model", "What is trained: one of the two."},
      {"data",
       "What it reads. Relative paths start at the recipe's folder; those of `--set` at the working directory; `~` is "
       "the home folder."},
      {"parallel", "How the ranks share the work. Ranks = replicas x shard x context."},
      {"memory", "What is kept, and what is computed again."},
      {"precision", "Arithmetic."},
      {"train", "How long, in which pieces."},
      {"optimizer", "AdamW and its learning rate."},
      {"checkpoint", "What is saved, how often."},
      {"run", "Where it runs."},
      {"report", "How it is watched; docs/watching.md shows each."},
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

std::string nearest_key(std::string_view name) {
  const auto dot = name.find('.');
  const std::string section(dot == std::string_view::npos ? "" : name.substr(0, dot));
  const std::string leaf(dot == std::string_view::npos ? name : name.substr(dot + 1));
  for (const Key& key : schema())
    if (key.leaf() == leaf) return key.name;

  std::vector<std::string> leaves;  // of its own section; at the top, the sections too
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

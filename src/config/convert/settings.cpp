#include "config/convert/settings.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <vector>

#include "base/hub_name.h"
#include "base/text.h"
#include "io/files.h"

namespace hawser::convert {
namespace {

namespace fs = std::filesystem;

// Other names of an optimizer, in transformers, bitsandbytes and torchao.
struct OptimizerNames {
  std::string_view kind;   // optimizer.kind
  std::string_view names;  // separated by spaces
  bool bf16 = false;       // optimizer.state_dtype
  const char* remark = "";
};
constexpr OptimizerNames kOptimizers[] = {
    {"adamw",
     "adamw adamw_hf adamw_torch adamw_torch_fused adamw_torch_xla adamw_torch_npu_fused adamw_apex_fused "
     "optimi_adamw paged_adamw_32bit paged_adamw flash_adamw"},
    {"adamw", "adamw_anyprecision", true, "stochastic rounding in place of Kahan's sum"},
    {"adamw_8bit", "adamw_8bit adamw_bnb_8bit adamw_torch_8bit ao_adamw_8bit"},
    {"adamw_8bit", "paged_adamw_8bit", false, "its state stays on the device: memory.optimizer_offload moves it"},
    {"adamw_8bit", "adamw_torch_4bit ao_adamw_4bit ao_adamw_fp8", false, "moments of 8 bits, as bitsandbytes has them"},
    {"adafactor", "adafactor"},
    {"lion", "lion lion_32bit paged_lion paged_lion_32bit lion_pytorch"},
    {"lion", "lion_8bit paged_lion_8bit", true, "a momentum of bf16 in place of 8 bits"},
    {"sgd", "sgd"},
    {"muon", "muon"},
};

}  // namespace

void convert_model(Conversion& c, std::string_view revision, std::string_view from_scratch) {
  const std::string_view model = c.trainer().keys.model;
  const std::string named = c.text(model);
  if (named.empty()) return c.problem(model, {.what = "missing key", .hint = cat(model, ": ORG/NAME, or a folder")});
  const bool here = Conversion::exists(named);
  const bool hub = !here && parse_hub_name(named).has_value();
  std::string path = hub ? named : c.path(named);
  if (hub && c.has(revision) && c.text(revision) != "main") path += "@" + c.text(revision);
  if (!hub && c.has(revision)) c.drop(revision, WhyDropped::not_needed, "the model is a folder");
  if (hub && c.text(revision) == "main") c.drop(revision, WhyDropped::automatic, "main is the default");
  if (hub) c.download("hawser pull " + (c.has(revision) ? named + "@" + c.text(revision) : named));
  if (!c.is_on(from_scratch)) {
    c.drop_if_off(from_scratch);
    return c.set("model.path", path, model);
  }
  c.set("model.config", here ? (fs::path(path) / "config.json").string() : path, model,
        cat(c.trainer_name(), "'s ", model, " with ", from_scratch));
}

void convert_tokenizer(Conversion& c, std::string_view tokenizer) {
  const std::string named = c.text(tokenizer);
  if (named.empty()) return;
  if (!Conversion::exists(named)) {
    return c.drop(tokenizer, WhyDropped::unsupported,
                  cat("a tokenizer of another model by name: set data.tokenizer to the tokenizer.json of ", named));
  }
  c.set("data.tokenizer", c.path(fs::path(named).extension() == ".json" ? named : named + "/tokenizer.json"),
        tokenizer);
}

void convert_output(Conversion& c) {
  if (c.has("output_dir")) {
    c.set("output", c.path(c.text("output_dir")), "output_dir");
  } else {
    c.set_default("output", c.path(c.trainer().keys.output_default), "output_dir");
  }
}

void convert_sequence_length(Conversion& c) {
  const TrainerKeys& keys = c.trainer().keys;
  if (!c.has(keys.sequence_length)) {
    c.set_default("data.sequence_length", keys.sequence_length_default, keys.sequence_length);
  }
}

void convert_precision(Conversion& c) {
  std::string_view bf16;
  for (const std::string_view name : {"pure_bf16", "bfloat16", "bf16"}) {
    if (c.is_on(name)) bf16 = name;
  }
  const bool fp16 = c.is_on("fp16") || c.is_on("float16");
  c.drop_if_off("fp8");
  if (c.is_on("fp8")) {
    c.set("precision.compute", "fp8", "fp8");
  } else if (!bf16.empty()) {
    c.set("precision.compute", c.text(bf16) == "auto" ? "auto" : "bf16", bf16);
    if (bf16 == "pure_bf16") c.set("optimizer.master_dtype", "bf16", bf16);
  } else if (c.is_on("float32") || (c.has("bf16") && !fp16)) {
    c.set("precision.compute", "float32", c.is_on("float32") ? "float32" : "bf16");
  }
}

void convert_optimizer(Conversion& c) {
  const TrainerKeys& keys = c.trainer().keys;
  const std::string_view optimizer = keys.optimizer;
  const std::string name = c.has(optimizer) ? c.text(optimizer) : "adamw";
  const auto found =
      std::ranges::find_if(kOptimizers, [&](const OptimizerNames& one) { return is_among(one.names, name); });
  std::string_view kind = "adamw";
  if (found == std::ranges::end(kOptimizers)) {
    c.drop(optimizer, WhyDropped::unsupported,
           cat("the optimizer ", name, "; the recipe has AdamW, which its learning rate may not suit"));
  } else {
    kind = found->kind;
    if (kind == "adamw" && !found->bf16) c.drop(optimizer, WhyDropped::automatic, "AdamW is the default");
    if (kind != "adamw") c.set("optimizer.kind", std::string(kind), optimizer);
    if (found->bf16) c.set("optimizer.state_dtype", "bf16", optimizer);
    if (*found->remark != '\0') c.remark(cat(optimizer, " ", name, ": ", found->remark));
  }
  // What the kind does not read is an error in a recipe.
  const auto setting = [&](std::string_view ours, std::string_view theirs, bool reads) {
    each_name(theirs, [&](std::string_view one) {
      if (!c.has(one)) return;
      if (reads) return c.set(ours, *c.find(one), one);
      c.drop(one, WhyDropped::not_needed, cat(kind, " does not read it"));
    });
  };
  const bool betas = is_among("adamw adamw_8bit lion muon", kind);
  setting("optimizer.beta1", "adam_beta1", betas);
  setting("optimizer.beta2", "adam_beta2", betas);
  setting("optimizer.epsilon", "adam_epsilon adam_eps", is_among("adamw adamw_8bit muon", kind));
  if (kind == "sgd") c.set("optimizer.momentum", "0", optimizer, "transformers' SGD has no momentum");
  if (!c.has("weight_decay")) c.set_default("optimizer.weight_decay", keys.weight_decay_default, "weight_decay");
  if (betas && !c.has("adam_beta2")) c.set_default("optimizer.beta2", "0.999", "adam_beta2");
}

void convert_checkpointing(Conversion& c, std::initializer_list<std::string_view> keys) {
  for (const std::string_view key : keys) {
    if (!c.is_on(key)) continue;
    const std::string how = c.text(key);
    if (how.starts_with("offload") || how == "unsloth") c.set("memory.activation_offload", "true", key);
    if (how == "offload_disk")
      c.remark(cat(key, " ", how, ": activations are offloaded to host memory, not to a disk"));
    return c.set("memory.activation_checkpointing", "full", key,
                 cat(c.trainer_name(), "'s ", key, "; auto is often faster: it recomputes only what does not fit"));
  }
}

void convert_offload(Conversion& c, std::string_view key) {
  if (!c.is_on(key)) return c.drop_if_off(key);
  c.set("memory.activation_offload", "true", key);
}

void convert_deepspeed(Conversion& c, std::string_view key, const std::string& otherwise) {
  if (!c.has(key)) return;
  const YAML::Node* const given = c.find(key);
  const std::string file = given->IsScalar() ? given->Scalar() : "";
  YAML::Node all = *given;
  try {
    if (Conversion::exists(file)) all = YAML::Load(io::read_text(c.path(file), 1 << 20));
  } catch (const std::exception&) {  // not a file that can be read: as if there were none
  }
  const YAML::Node zero = all.IsMap() ? all["zero_optimization"] : YAML::Node();
  if (!zero || !zero.IsMap()) return c.drop(key, WhyDropped::automatic, otherwise);
  const std::string stage = zero["stage"] ? zero["stage"].as<std::string>("") : "";
  if (stage == "0") c.set("parallel.hybrid_shard_degree", "1", key, "stage 0 shards nothing");
  if (stage == "1" || stage == "2")
    c.set("parallel.sharding", "optimizer", key, cat("zero_optimization.stage: ", stage));
  if (stage == "3") c.set("parallel.sharding", "parameters", key, "zero_optimization.stage: 3");
  const auto offloads = [&](const char* what, const char* ours) {
    const YAML::Node part = zero[what];
    const std::string device = part && part.IsMap() && part["device"] ? part["device"].as<std::string>("") : "none";
    if (device == "none") return;
    c.set(ours, "true", key, cat(what, ".device: ", device));
    if (device != "cpu") c.remark(cat(key, ": ", what, " to ", device, ": host memory is the only place of offload"));
  };
  offloads("offload_optimizer", "memory.optimizer_offload");
  offloads("offload_param", "memory.weight_offload");
  c.remark(cat(key, ": of DeepSpeed's settings only zero_optimization's stage and offload are converted"));
}

void convert_timeout(Conversion& c) {
  constexpr double kDay = 86400;
  const auto seconds = c.number("ddp_timeout");
  if (seconds && *seconds > kDay) {
    c.drop("ddp_timeout", WhyDropped::not_needed, "longer than a day; run.collective_timeout_s is 120 s");
  } else if (seconds) {
    c.set("run.collective_timeout_s", *seconds, "ddp_timeout");
  }
}

void convert_reports(Conversion& c) {
  if (const auto every = c.number("logging_steps"); every && *every >= 1) {
    c.set("train.log_every", *every, "logging_steps");
  } else if (every) {
    c.drop("logging_steps", WhyDropped::not_needed,
           "train.log_every is a number of steps; metrics.jsonl has every step");
  }
  const std::vector<std::string> to = c.has("report_to") ? list_of(*c.find("report_to")) : std::vector<std::string>();
  const auto reports = [&](const char* name) {
    return std::ranges::any_of(to, [&](const std::string& one) { return one == name || one == "all"; });
  };
  c.drop_if_off("report_to");
  const bool off = c.has("use_wandb") && !c.is_on("use_wandb");
  if (off) c.drop("wandb_project", WhyDropped::not_needed, "use_wandb is off");
  c.drop_if_off("use_wandb");
  if (!off && (c.has("wandb_project") || c.is_on("use_wandb") || reports("wandb"))) {
    const char* key = c.has("wandb_project") ? "wandb_project" : c.has("use_wandb") ? "use_wandb" : "report_to";
    c.set("report.wandb", "true", key);
    if (c.has("wandb_project")) c.set("report.wandb_project", c.text("wandb_project"), "wandb_project");
  }
  if (reports("tensorboard")) c.set("report.tensorboard", "true", "report_to");
  if (c.has("mlflow_tracking_uri")) {
    const std::string server = c.text("mlflow_tracking_uri");
    if (server.starts_with("http")) {
      c.set("report.mlflow", server, "mlflow_tracking_uri");
    } else {
      c.drop("mlflow_tracking_uri", WhyDropped::unsupported, "a store of MLflow without a server");
    }
  } else if (reports("mlflow") || c.is_on("use_mlflow")) {
    c.remark("MLflow: set report.mlflow to the address of the server, as in MLFLOW_TRACKING_URI");
    c.drop("use_mlflow", WhyDropped::unsupported, "MLflow without mlflow_tracking_uri");
  }
  c.drop_if_off("use_mlflow");
  for (const std::string& one : to) {
    if (is_among("wandb tensorboard mlflow none all", one)) continue;
    c.drop("report_to", WhyDropped::unsupported, "reports go to TensorBoard, Prometheus, MLflow and Weights & Biases");
  }
  std::string_view named;
  for (const std::string_view key : {"wandb_name", "run_name", "mlflow_run_name"}) {
    if (!c.has(key)) continue;
    if (named.empty()) {
      c.set("name", c.text(named = key), key);
    } else {
      c.drop(key, WhyDropped::not_needed, cat("a run has one name: that of ", named));
    }
  }
}

void convert_unpacked(Conversion& c, std::string_view packing) {
  c.set("data.max_documents", "1", packing,
        cat("without ", packing,
            " a sample is a sequence; 0 packs, which is much faster, and a step then has more "
            "samples"));
  c.remark(cat("no ", packing,
               ": data.max_documents 1 gives a step as many samples as before; 0 packs short samples, which is much "
               "faster"));
}

void convert_lora_plus(Conversion& c, std::string_view ratio) {
  const auto factor = c.number(ratio);
  if (!factor) return;
  YAML::Node group(YAML::NodeType::Map), groups(YAML::NodeType::Sequence);
  group["match"] = ".*lora_B";
  group["learning_rate_factor"] = c.text(ratio);
  groups.push_back(group);
  c.set("optimizer.groups", groups, ratio);
}

void convert_adapter(Conversion& c, const AdapterKeys& keys) {
  const std::array<std::string_view, 8> all = {keys.rank,        keys.alpha,           keys.dropout, keys.targets,
                                               keys.all_linears, keys.modules_to_save, keys.rslora,  keys.dora};
  if (!keys.trains) {
    if (c.has(keys.kind)) c.set("adapter.kind", "none", keys.kind);
    for (const std::string_view key : all) {
      c.drop(key, WhyDropped::not_needed, "all weights train, no adapter");
    }
    return;
  }
  const bool quantizes = keys.four_bits && !c.is_on(keys.dora);
  c.set("adapter.kind", quantizes ? "qlora" : "lora", keys.kind);
  const auto copy = [&](const char* ours, std::string_view theirs) {
    if (!c.has(theirs)) return false;
    c.set(ours, *c.find(theirs), theirs);
    return true;
  };
  if (keys.four_bits && !quantizes) {
    c.remark(
        "NF4 with DoRA is not supported: adapter.kind is lora, and the frozen weights stay in bf16, in four times the "
        "memory of 4 bits; hawser plan shows whether they fit");
  }
  const bool factory = c.trainer().id == OtherTrainer::llama_factory;
  if (!copy("adapter.rank", keys.rank) && factory) c.set_default("adapter.rank", "8", keys.rank);
  if (!copy("adapter.alpha", keys.alpha) && factory) {
    c.set("adapter.alpha", static_cast<double>(2 * c.recipe().adapter.rank), keys.alpha,
          "LLaMA-Factory's default: twice the rank");
  }
  copy("adapter.dropout", keys.dropout);
  copy("adapter.rslora", keys.rslora);
  copy("adapter.dora", keys.dora);
  if (c.has(keys.modules_to_save)) {
    c.set("adapter.modules_to_save", node_of(list_of(*c.find(keys.modules_to_save))), keys.modules_to_save);
  }
  const std::vector<std::string> named =
      c.has(keys.targets) ? list_of(*c.find(keys.targets)) : std::vector<std::string>();
  const bool every =
      std::ranges::any_of(named, [](const std::string& one) { return one == "all" || one == "all-linear"; });
  if (c.is_on(keys.all_linears) || every || (named.empty() && factory)) {
    const bool given = c.is_on(keys.all_linears) || every;
    const std::string_view key = c.is_on(keys.all_linears) ? keys.all_linears : keys.targets;
    if (given) c.set("adapter.targets", "all-linear", key);
    if (!given) c.set_default("adapter.targets", "all-linear", key);
    if (!every && !named.empty()) c.drop(keys.targets, WhyDropped::not_needed, "all Linears have adapters");
    return;
  }
  c.drop_if_off(keys.all_linears);
  if (named.empty()) {
    c.set("adapter.targets", node_of({"q_proj", "v_proj"}), keys.targets, "PEFT's default for most models");
  } else {
    c.set("adapter.targets", node_of(named), keys.targets);
  }
}

}  // namespace hawser::convert

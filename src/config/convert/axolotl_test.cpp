#include <gtest/gtest.h>

#include "config/testing/converted_file.h"

namespace hawser {
namespace axolotl_test {

using testing::ConvertedKey;

class ConvertAxolotl : public testing::ConvertedFile {
 protected:
  ConvertAxolotl() {
    base_ =
        "base_model: org/model\n"
        "datasets: [{path: chats.jsonl, type: chat_template}]\n"
        "learning_rate: 1e-4\n"
        "sample_packing: true\n";
  }
  // The file with one data set.
  Converted data_set(const std::string& keys) { return convert("datasets: [{" + keys + "}]\n"); }
};

constexpr ConvertedKey kCases[] = {
    {"base_model: org/other", "model.path", R"("org/other")"},
    {"model_revision: v1", "model.path", R"("org/model@v1")"},
    {"revision_of_model: v1", "model.path", R"("org/model@v1")"},
    {"reinit_weights: true", "model.config", R"("org/model")"},
    {"output_dir: ./runs/a", "output", R"("runs/a")"},
    {"", "output", R"("model-out")"},
    {"tokenizer_config: /proc", "data.tokenizer", R"("/proc/tokenizer.json")"},
    {"chat_template: qwen_25", "data.chat_template", R"("qwen-2.5")"},
    {"chat_template: jinja\nchat_template_jinja: my.jinja", "data.chat_template", R"("my.jinja")"},

    {"datasets: [{path: a.jsonl}, {path: b.jsonl}]", "data.train", R"(["a.jsonl","b.jsonl"])"},
    {"datasets: [{path: json, data_files: [a.jsonl, b.jsonl]}]", "data.train", R"(["a.jsonl","b.jsonl"])"},
    {"datasets: [{path: org/data, data_files: part.parquet}]", "data.train", R"(["org/data/part.parquet"])"},
    {"datasets: [{path: org/data, name: en, split: test, revision: abc}]", "data.train", R"(["org/data/en/**/test*"])"},
    {"datasets: [{path: org/data, split: train+validation}]", "data.train",
     R"(["org/data","org/data/**/validation*"])"},
    {"datasets:\npretraining_dataset: [{path: org/text}]", "data.train", R"(["org/text"])"},
    {"test_datasets: [{path: held.jsonl, type: chat_template}]", "data.validation", R"(["held.jsonl"])"},
    {"val_set_size: 0.05", "data.validation_fraction", "0.05"},
    {"sequence_len: 4096", "data.sequence_length", "4096"},
    {"", "data.sequence_length", "512"},
    {"dataset_exact_deduplication: true", "data.deduplicate", "true"},
    {"excess_length_strategy: truncate", "data.long_documents", R"("truncate")"},
    {"", "data.long_documents", R"("drop")"},
    {"sample_packing: true", "data.max_documents", "0"},
    {"sample_packing: false", "data.max_documents", "1"},
    {"datasets: [{path: a, type: completion}]\npretrain_multipack_attn: false", "data.pack", R"("chunks")"},
    {"datasets: [{path: a, type: completion}]\npretraining_sample_concatenation: true", "data.pack", R"("chunks")"},
    {"datasets: [{path: a, type: completion}]", "data.long_documents", R"("split")"},

    {"datasets: [{path: a, field: body}]", "data.columns", R"({"text":"body"})"},
    {"datasets: [{path: a, text_column: body}]", "data.columns", R"({"text":"body"})"},
    {"datasets: [{path: a, field_messages: turns}]", "data.columns", R"({"messages":"turns"})"},
    {"datasets: [{path: a, field_tools: functions}]", "data.columns", R"({"tools":"functions"})"},
    {"datasets: [{path: a, field_thinking: thought}]", "data.columns", R"({"reasoning_content":"thought"})"},
    {"datasets: [{path: a, field_human: q, field_model: a}]", "data.columns", R"({"instruction":"q","output":"a"})"},
    {"datasets: [{path: a, message_property_mappings: {role: from, content: value}}]", "data.columns",
     R"({"content":"value","role":"from"})"},
    {"datasets: [{path: a, message_field_role: from, message_field_content: value, message_field_training: learn}]",
     "data.columns", R"({"content":"value","role":"from","train":"learn"})"},
    {"datasets: [{path: a, type: {field_instruction: q, field_output: a, field_system: s, field_input: i}}]",
     "data.columns", R"({"input":"i","instruction":"q","output":"a","system":"s"})"},
    {"datasets: [{path: a, roles: {assistant: [agent], user: [caller, human]}}]", "data.roles",
     R"({"assistant":"agent","user":["caller","human"]})"},
    {"datasets: [{path: a, chat_template: llama3}]", "data.chat_template", R"("llama-3")"},
    {"datasets: [{path: a, chat_template_jinja: my.jinja}]", "data.chat_template", R"("my.jinja")"},

    {"micro_batch_size: 2\ngradient_accumulation_steps: 4", "train.global_batch_size", "8"},
    {"micro_batch_size: 2\ngradient_accumulation_steps: 4", "train.micro_batch_size", "2"},
    {"micro_batch_size: 2\nbatch_size: 16", "train.global_batch_size", "16"},
    {"max_steps: 70\nnum_epochs: 2", "train.steps", "70"},
    {"num_epochs: 2.5", "train.epochs", "2.5"},
    {"max_steps: -1", "train.epochs", "1.0"},
    {"seed: 7", "train.seed", "7"},
    {"val_set_size: 0.1\neval_strategy: steps\neval_steps: 20", "train.evaluate_every", "20"},
    {"val_set_size: 0.1\nevaluation_strategy: steps\neval_steps: 20", "train.evaluate_every", "20"},
    {"val_set_size: 0.1\neval_steps: 0.05\nmax_steps: 70", "train.evaluate_every", "4"},
    {"val_set_size: 0.1\nevals_per_epoch: 4\nmax_steps: 70\nnum_epochs: 2", "train.evaluate_every", "9"},
    {"val_set_size: 0.1\neval_strategy: 'no'\neval_steps: 20", "train.evaluate_every", "0"},
    {"eval_steps: 20", "train.evaluate_every", "0"},
    {"val_set_size: 0.1\neval_steps: 20\nearly_stopping_patience: 3", "train.early_stopping.patience", "3"},
    {"logging_steps: 5", "train.log_every", "5"},
    {"learning_rate: 3e-5", "optimizer.learning_rate", "3e-05"},
    {"lr_scheduler: linear", "optimizer.schedule", R"("linear")"},
    {"lr_scheduler: constant_with_warmup", "optimizer.schedule", R"("constant")"},
    {"", "optimizer.schedule", R"("cosine")"},
    {"warmup_ratio: 0.1", "optimizer.warmup_ratio", "0.1"},
    {"", "optimizer.warmup_ratio", "0.03"},
    {"warmup_steps: 0.1", "optimizer.warmup_ratio", "0.1"},
    {"warmup_steps: 10", "optimizer.warmup_steps", "10"},
    {"warmup_steps: 10\nwarmup_ratio: 0.1", "optimizer.warmup_steps", "10"},
    {"warmup_steps: 0\nwarmup_ratio: 0.1", "optimizer.warmup_ratio", "0.1"},
    {"warmup_steps: 100\nmax_steps: 30", "optimizer.warmup_steps", "30"},
    {"cosine_min_lr_ratio: 0.1", "optimizer.minimum_learning_rate", "1e-05"},
    {"lr_scheduler_kwargs: {min_lr_rate: 0.1}", "optimizer.minimum_learning_rate", "1e-05"},
    {"lr_scheduler_kwargs: {min_lr_ratio: 0.1}", "optimizer.minimum_learning_rate", "1e-05"},
    {"lr_scheduler_kwargs: {min_lr: 1e-6}", "optimizer.minimum_learning_rate", "1e-06"},
    {"lr_scheduler_kwargs: {lr_end: 1e-6}", "optimizer.minimum_learning_rate", "1e-06"},
    {"lr_scheduler: warmup_stable_decay\nlr_scheduler_kwargs: {num_decay_steps: 9}", "optimizer.decay_steps", "9"},
    {"lr_scheduler: warmup_stable_decay\nlr_scheduler_kwargs: {decay_type: linear}", "optimizer.decay_type",
     R"("linear")"},
    {"lr_scheduler: polynomial\nlr_scheduler_kwargs: {power: 2}", "optimizer.power", "2.0"},
    {"adapter: lora\nloraplus_lr_ratio: 16", "optimizer.groups",
     R"([{"learning_rate_factor":16.0,"match":".*lora_B"}])"},
    {"embedding_lr: 1e-5", "optimizer.groups",
     R"([{"learning_rate":1e-05,"match":["embed_tokens","lm_head"],"weight_decay":0.0}])"},
    {"embedding_lr_scale: 0.5", "optimizer.groups",
     R"([{"learning_rate_factor":0.5,"match":["embed_tokens","lm_head"],"weight_decay":0.0}])"},
    {"lr_groups: [{name: mlp, modules: [up_proj, down_proj], lr: 1e-6}]", "optimizer.groups",
     R"([{"learning_rate":1e-06,"match":[".*up_proj.*",".*down_proj.*"]}])"},
    {"unfrozen_parameters: [lm_head.weight, 'model.layers.2[0-9]+.']", "train.freeze",
     R"(["(?!lm_head[.]weight|model[.]layers[.]2[0-9]+[.]).*"])"},
    {"optimizer: lion", "optimizer.kind", R"("lion")"},
    {"adam_beta1: 0.8", "optimizer.beta1", "0.8"},
    {"adam_beta2: 0.95", "optimizer.beta2", "0.95"},
    {"", "optimizer.beta2", "0.999"},
    {"adam_epsilon: 1e-6", "optimizer.epsilon", "1e-06"},
    {"adam_eps: 1e-6", "optimizer.epsilon", "1e-06"},
    {"weight_decay: 0.2", "optimizer.weight_decay", "0.2"},
    {"", "optimizer.weight_decay", "0.0"},
    {"max_grad_norm: 0.3", "optimizer.gradient_clip", "0.3"},
    {"save_strategy: steps\nsave_steps: 50", "checkpoint.every_steps", "50"},
    {"saves_per_epoch: 2\nmax_steps: 70\nnum_epochs: 1", "checkpoint.every_steps", "35"},
    {"saves_per_epoch: 2\nmax_steps: 80\nnum_epochs: 2", "checkpoint.every_steps", "20"},
    {"saves_per_epoch: 2", "checkpoint.every_steps", "0"},
    {"save_strategy: 'no'", "checkpoint.every_minutes", "0.0"},
    {"save_total_limit: 5", "checkpoint.keep_last", "5"},

    {"context_parallel_size: 2", "parallel.context_parallel_degree", "2"},
    {"sequence_parallel_degree: 2", "parallel.context_parallel_degree", "2"},
    {"context_parallel_size: 2\nring_attn_func: batch_zigzag", "parallel.context_comm", R"("ring")"},
    {"context_parallel_size: 2\nring_attn_func: varlen_llama3", "parallel.context_comm", R"("all_gather")"},
    {"tensor_parallel_size: 2", "parallel.tensor_parallel_degree", "2"},
    {"dp_shard_size: 4\ndp_replicate_size: 2", "parallel.hybrid_shard_degree", "4"},
    {"dp_shard_size: 4\ndp_replicate_size: 2", "run.ranks", "8"},
    {"gradient_checkpointing: true", "memory.activation_checkpointing", R"("full")"},
    {"activation_offloading: true", "memory.activation_offload", "true"},
    {"gradient_checkpointing: offload", "memory.activation_offload", "true"},
    {"gradient_checkpointing: offload", "memory.activation_checkpointing", R"("full")"},
    {"layer_offloading: true", "memory.weight_offload", "true"},
    {"tiled_mlp: true", "memory.mlp_tile_rows", "8192"},
    {"tiled_mlp: true\nsequence_len: 65536\ntiled_mlp_num_shards: 6", "memory.mlp_tile_rows", "11008"},
    {"tiled_mlp: true\ntensor_parallel_size: 2", "memory.mlp_tile_rows", "0"},
    {"tiled_mlp: false\ntiled_mlp_num_shards: 4\ntiled_mlp_use_original_mlp: true", "memory.mlp_tile_rows", "0"},
    {"fsdp_config: {offload_params: true}", "memory.optimizer_offload", "true"},
    {"fsdp_config: {fsdp_offload_params: true}", "memory.optimizer_offload", "true"},
    {"deepspeed: {zero_optimization: {stage: 2}}", "parallel.sharding", R"("optimizer")"},
    {"gradient_checkpointing: false", "memory.activation_checkpointing", R"("none")"},
    {"activation_checkpointing: true", "memory.activation_checkpointing", R"("full")"},
    {"fsdp_config: {activation_checkpointing: true}", "memory.activation_checkpointing", R"("full")"},
    {"fsdp_config: {fsdp_activation_checkpointing: true}", "memory.activation_checkpointing", R"("full")"},
    {"bf16: auto", "precision.compute", R"("auto")"},
    {"bf16: true", "precision.compute", R"("bf16")"},
    {"bf16: false", "precision.compute", R"("float32")"},
    {"bfloat16: true", "precision.compute", R"("bf16")"},
    {"float32: true", "precision.compute", R"("float32")"},
    {"fp16: true\nbf16: false", "precision.compute", R"("auto")"},
    {"fp8: true\nbf16: true", "precision.compute", R"("fp8")"},
    {"ddp_timeout: 900", "run.collective_timeout_s", "900.0"},
    {"ddp_timeout: 180000000", "run.collective_timeout_s", "120.0"},

    {"adapter: lora", "adapter.kind", R"("lora")"},
    {"", "adapter.kind", R"("none")"},
    {"adapter: qlora\nload_in_4bit: true", "adapter.kind", R"("qlora")"},
    {"adapter: lora\nload_in_4bit: true", "adapter.kind", R"("qlora")"},
    {"adapter: qlora\npeft_use_dora: true", "adapter.kind", R"("lora")"},
    {"adapter: lora\nlora_r: 64", "adapter.rank", "64"},
    {"adapter: lora\nlora_alpha: 24", "adapter.alpha", "24.0"},
    {"adapter: lora\nlora_dropout: 0.1", "adapter.dropout", "0.1"},
    {"adapter: lora\nlora_target_modules: [q_proj, o_proj]", "adapter.targets", R"(["q_proj","o_proj"])"},
    {"adapter: lora\nlora_target_linear: true", "adapter.targets", R"(["all-linear"])"},
    {"adapter: lora", "adapter.targets", R"(["q_proj","v_proj"])"},
    {"adapter: lora\nlora_modules_to_save: [lm_head]", "adapter.modules_to_save", R"(["lm_head"])"},
    {"adapter: lora\npeft_use_rslora: true", "adapter.rslora", "true"},
    {"adapter: lora\npeft_use_dora: true", "adapter.dora", "true"},
    {"model_config: {output_router_logits: true}", "moe.balancing", R"("aux_loss")"},
    {"model_config: {router_aux_loss_coef: 0.02}", "moe.aux_loss_coefficient", "0.02"},

    {"use_wandb: true", "report.wandb", "true"},
    {"wandb_project: tides", "report.wandb_project", R"("tides")"},
    {"wandb_project: tides\nuse_wandb: false", "report.wandb", "false"},
    {"wandb_name: first", "name", R"("first")"},
    {"mlflow_run_name: first", "name", R"("first")"},
    {"use_tensorboard: true", "report.tensorboard", "true"},
    {"use_mlflow: true\nmlflow_tracking_uri: http://host:5000", "report.mlflow", R"("http://host:5000")"},
    {"mlflow_experiment_name: tides", "report.mlflow_experiment", R"("tides")"},
};

TEST_F(ConvertAxolotl, EveryKeyOfTheRecipe) {
  check(kCases);
  expect_all_checked(convert::axolotl());
}

TEST_F(ConvertAxolotl, RejectsOtherKindsOfTraining) {
  for (const char* keys :
       {"rl: dpo", "rl: orpo", "rl: grpo", "reward_model: true", "process_reward_model: true", "kd_trainer: true",
        "diffusion: {noise_schedule: cosine}", "plugins: [axolotl.integrations.diffusion.DiffusionPlugin]"}) {
    const std::string found = errors(std::string(keys) + "\n");
    EXPECT_TRUE(
        found.starts_with("other.yaml: this kind of training is not supported (expected supervised fine-tuning "
                          "or pre-training"))
        << keys << ": " << found;
    EXPECT_NE(found.find(", line 5"), std::string::npos) << found;
  }
  EXPECT_EQ(errors("processor_type: AutoProcessor\n"),
            "other.yaml: this kind of training is not supported (expected training on text, got AutoProcessor) at "
            "processor_type, line 5; try removing processor_type, if the data have no images or sounds");
  EXPECT_EQ(errors("adapter: ia3\nrl: kto\n"),
            "other.yaml: this kind of training is not supported (expected supervised fine-tuning or pre-training, got "
            "kto) at rl, line 6\n"
            "other.yaml: this kind of training is not supported (expected lora, or no adapter, got ia3) at adapter, "
            "line 5");
  EXPECT_EQ(errors("rl: false\nreward_model:\nadapter: none\n"), "");
}

TEST_F(ConvertAxolotl, GlobalBatchSizeIsForTheRanks) {
  const std::string batch = "micro_batch_size: 2\ngradient_accumulation_steps: 4\n";
  EXPECT_EQ(value(convert(batch, {.ranks = 8}), "train.global_batch_size"), 64);
  const Converted context = convert(batch + "context_parallel_size: 2\n", {.ranks = 8});
  EXPECT_EQ(value(context, "train.global_batch_size"), 32) << "two ranks share a sequence";
  // Ranks of tensor parallelism share sequences.
  const Converted tensor = convert("micro_batch_size: 4\ntensor_parallel_size: 2\n", {.ranks = 4});
  EXPECT_EQ(value(tensor, "train.global_batch_size"), 8);
  EXPECT_EQ(value(tensor, "train.micro_batch_size"), 4);
  EXPECT_EQ(value(tensor, "parallel.tensor_parallel_degree"), 2);
  EXPECT_TRUE(has_remark(convert(batch),
                         "train.global_batch_size 8 is micro_batch_size 2 x gradient_accumulation_steps "
                         "4 x 1 rank; for a run of more, convert with --ranks N"));
}

TEST_F(ConvertAxolotl, DataOfTheHubAreDownloadedToTheirNames) {
  const Converted converted = data_set("path: org/data, name: en, revision: abc, type: chat_template");
  EXPECT_EQ(converted.downloads.back(),
            "hf download org/data --repo-type dataset --local-dir org/data --revision abc --include 'en/*'");
  EXPECT_EQ(data_set("path: data/a.jsonl, type: alpaca").downloads.size(), 1u) << "the model alone";
}

TEST_F(ConvertAxolotl, DataThatAreReadOtherwiseAreNamed) {
  EXPECT_EQ(dropped(data_set("path: a, split: 'train[:10%]'"), "datasets[].split"),
            "not supported: no part of a split is read: all of it is; train.steps ends a run earlier");
  EXPECT_EQ(dropped(data_set("path: a, type: input_output"), "datasets[].type").substr(0, 42),
            "not supported: lines of type input_output;");
  EXPECT_EQ(dropped(data_set("path: a, type: my_strategy"), "datasets[].type").substr(0, 14), "not supported:");
  EXPECT_EQ(dropped(data_set("path: a, type: chat_template"), "datasets[].type").substr(0, 10), "automatic:");
  EXPECT_TRUE(has_remark(data_set("path: a, type: alpaca"), "axolotl writes '### Instruction:'"));
  EXPECT_EQ(dropped(data_set("path: a, roles_to_train: [user]"), "datasets[].roles_to_train").substr(0, 14),
            "not supported:");
  EXPECT_EQ(dropped(data_set("path: a, roles_to_train: [gpt]"), "datasets[].roles_to_train").substr(0, 10),
            "automatic:");
  EXPECT_EQ(dropped(data_set("path: a, train_on_eos: all"), "datasets[].train_on_eos").substr(0, 14), "not supported:");
  EXPECT_EQ(dropped(data_set("path: a, shards: 4"), "datasets[].shards").substr(0, 14), "not supported:");
  EXPECT_EQ(dropped(data_set("path: a, colour: blue"), "datasets[].colour").substr(0, 8), "unknown:");
  EXPECT_EQ(errors("datasets: [{type: alpaca}]\n"),
            "other.yaml: a data set without a path (expected path: FOLDER, FILE or ORG/NAME) at datasets, line 5");
  EXPECT_EQ(errors("datasets: chats.jsonl\n"),
            "other.yaml: wrong type (expected a list of data sets, got chats.jsonl) at datasets, line 5");
}

TEST_F(ConvertAxolotl, AKeyOfAnyDataSetIsListed) {
  const Converted converted =
      convert("datasets: [{path: a, split_thinking: false}, {path: b, split_thinking: true}]\n");
  EXPECT_EQ(dropped(converted, "datasets[].split_thinking").substr(0, 14), "not supported:");
}

TEST_F(ConvertAxolotl, LossOverQuestionsIsNotSupported) {
  EXPECT_EQ(dropped(convert("train_on_inputs: true\n"), "train_on_inputs").substr(0, 14), "not supported:");
  EXPECT_EQ(dropped(convert("train_on_inputs: false\n"), "train_on_inputs"), "not needed: empty or off");
  EXPECT_EQ(dropped(convert("train_on_inputs: true\ndatasets: [{path: a, type: completion}]\n"), "train_on_inputs"),
            "automatic: the loss is over all of a text");
}

TEST_F(ConvertAxolotl, HasTheOptimizer) {
  EXPECT_EQ(dropped(convert("optimizer: adamw_torch\n"), "optimizer"), "automatic: AdamW is the default");
  const auto kind = [&](const char* name) { return value(convert(cat("optimizer: ", name, "\n")), "optimizer.kind"); };
  EXPECT_EQ(kind("adamw_torch_fused"), "adamw");
  EXPECT_EQ(kind("adamw_bnb_8bit"), "adamw_8bit");
  EXPECT_EQ(kind("paged_lion_32bit"), "lion");
  EXPECT_EQ(kind("adafactor"), "adafactor");
  EXPECT_EQ(kind("muon"), "muon");
  EXPECT_EQ(value(convert("optimizer: lion_8bit\n"), "optimizer.state_dtype"), "bf16");
  EXPECT_EQ(value(convert("optimizer: lion\nadam_beta2: 0.98\n"), "optimizer.beta2"), 0.98);
  EXPECT_TRUE(has_remark(convert("optimizer: paged_adamw_8bit\n"), "memory.optimizer_offload"));
  const Converted sgd = convert("optimizer: sgd\nadam_beta1: 0.8\n");
  EXPECT_EQ(value(sgd, "optimizer.kind"), "sgd");
  EXPECT_EQ(value(sgd, "optimizer.momentum"), 0.0);
  EXPECT_EQ(dropped(sgd, "adam_beta1"), "not needed: sgd does not read it");
  EXPECT_EQ(dropped(convert("optimizer: dion\n"), "optimizer"),
            "not supported: the optimizer dion; the recipe has AdamW, which its learning rate may not suit");
}

TEST_F(ConvertAxolotl, ReplacesWhatItCannotDo) {
  const Converted rex = convert("lr_scheduler: rex\n");
  EXPECT_EQ(value(rex, "optimizer.schedule"), "cosine");
  EXPECT_EQ(dropped(rex, "lr_scheduler"), "not supported: the schedule rex; cosine in its place");
  EXPECT_TRUE(has_remark(convert("adapter: qlora\npeft_use_dora: true\n"), "NF4 with DoRA is not supported"));
  EXPECT_EQ(dropped(convert("wandb_name: a\nmlflow_run_name: b\n"), "mlflow_run_name"),
            "not needed: a run has one name: that of wandb_name");
  EXPECT_EQ(dropped(convert("use_mlflow: true\n"), "use_mlflow"), "not supported: MLflow without mlflow_tracking_uri");
  EXPECT_EQ(dropped(convert("lora_r: 8\n"), "lora_r"), "not needed: all weights train, no adapter");
  EXPECT_EQ(
      dropped(convert("adapter: lora\nunfrozen_parameters: [lm_head.weight]\n"), "unfrozen_parameters").substr(0, 37),
      "not supported: with an adapter, the m");
  EXPECT_EQ(dropped(convert("plugins: [axolotl.integrations.liger.LigerPlugin]\n"), "plugins").substr(0, 10),
            "automatic:");
  EXPECT_EQ(dropped(convert("plugins: [my.Plugin]\n"), "plugins"), "not supported: the plugin my.Plugin does not run");
  EXPECT_EQ(dropped(convert("deepspeed: no_such_file.json\n"), "deepspeed").substr(0, 10), "automatic:");
  EXPECT_EQ(dropped(convert("fsdp_config: {offload_params: false}\n"), "fsdp_config.offload_params"),
            "not needed: empty or off");
  EXPECT_EQ(dropped(convert("special_tokens: {pad_token: <pad>}\n"), "special_tokens.pad_token"),
            "automatic: sequences are packed, and have no padding");
  EXPECT_EQ(dropped(convert("val_set_size: 500\n"), "val_set_size").substr(0, 39),
            "not supported: data.validation_fraction");
}

TEST_F(ConvertAxolotl, DeepSpeedFiles) {
  const auto with = [&](const std::string& zero) {
    std::ofstream(folder_ / "ds.json") << cat("{\"zero_optimization\": ", zero, ", \"bf16\": {\"enabled\": true}}");
    return convert(cat("deepspeed: ", (folder_ / "ds.json").string(), "\n"));
  };
  const Converted three = with(R"({"stage": 3, "offload_optimizer": {"device": "cpu", "pin_memory": true},
                                   "offload_param": {"device": "nvme"}})");
  EXPECT_EQ(value(three, "parallel.sharding"), "parameters");
  EXPECT_EQ(value(three, "memory.optimizer_offload"), true);
  EXPECT_EQ(value(three, "memory.weight_offload"), true);
  EXPECT_TRUE(has_remark(three, "offload_param to nvme"));
  EXPECT_TRUE(dropped(three, "deepspeed").empty());
  const Converted two = with(R"({"stage": 2, "offload_optimizer": {"device": "none"}})");
  EXPECT_EQ(value(two, "parallel.sharding"), "optimizer");
  EXPECT_EQ(value(two, "memory.optimizer_offload"), false);
  EXPECT_EQ(value(with(R"({"stage": 0})"), "parallel.hybrid_shard_degree"), 1);
  EXPECT_EQ(value(convert("deepspeed: {zero_optimization: {stage: 1}}\n"), "parallel.sharding"), "optimizer");
}

TEST_F(ConvertAxolotl, SchedulesOfTransformers) {
  const bool has_wsd = find_key("optimizer.decay_steps") != nullptr;
  const Converted wsd = convert("lr_scheduler: warmup_stable_decay\nlr_scheduler_kwargs: {num_decay_steps: 9}\n");
  EXPECT_EQ(value(wsd, "optimizer.schedule"), has_wsd ? "wsd" : "constant");
  EXPECT_EQ(dropped(wsd, "lr_scheduler").empty(), has_wsd);
  const Converted polynomial = convert("lr_scheduler: polynomial\n");
  EXPECT_EQ(value(polynomial, "optimizer.schedule"), has_wsd ? "polynomial" : "linear");
  const Converted constant = convert("lr_scheduler: constant\nwarmup_steps: 10\ncosine_min_lr_ratio: 0.1\n");
  EXPECT_EQ(value(constant, "optimizer.warmup_steps"), 0);
  EXPECT_EQ(dropped(constant, "warmup_steps"), "not needed: the schedule constant has no warmup");
  EXPECT_EQ(dropped(constant, "cosine_min_lr_ratio"), "not needed: the schedule constant has no minimum");
}

}  // namespace axolotl_test
}  // namespace hawser

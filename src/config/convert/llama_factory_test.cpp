#include <gtest/gtest.h>

#include "base/cat.h"
#include "config/testing/converted_file.h"

namespace hawser {
namespace llama_factory_test {

using testing::ConvertedKey;

class ConvertLlamaFactory : public testing::ConvertedFile {
 protected:
  ConvertLlamaFactory() {
    base_ =
        "model_name_or_path: org/model\n"
        "stage: sft\n"
        "do_train: true\n"
        "finetuning_type: full\n"
        "dataset: chats\n"
        "packing: true\n";
  }
  // The file with this dataset_info.json.
  Converted described(const std::string& index, const std::string& yaml = "") {
    folder_.write("data/dataset_info.json", index);
    return convert("dataset_dir: " + folder_.path("data") + "\n" + yaml);
  }
};

constexpr ConvertedKey kCases[] = {
    {"model_name_or_path: org/other", "model.path", R"("org/other")"},
    {"model_revision: v1", "model.path", R"("org/model@v1")"},
    {"train_from_scratch: true", "model.config", R"("org/model")"},
    {"output_dir: saves/a", "output", R"("saves/a")"},
    {"", "output", R"("saves")"},
    {"template: llama3", "data.chat_template", R"("llama-3")"},
    {"template: qwen3", "data.chat_template", R"("qwen-3")"},
    {"template: qwen3_nothink", "data.chat_template", R"("chatml")"},
    {"dataset: org/data, b.jsonl", "data.train", R"(["org/data","data/b.jsonl.json"])"},
    {"dataset: a\ndataset_dir: files", "data.train", R"(["files/a.json"])"},
    {"dataset: a,b\nmix_strategy: interleave_under\ninterleave_probs: 0.7,0.3", "data.train",
     R"([{"path":"data/a.json","weight":0.7},{"path":"data/b.json","weight":0.3}])"},
    {"eval_dataset: held", "data.validation", R"(["data/held.json"])"},
    {"eval_dataset: held, more.v2\neval_on_each_dataset: false", "data.validation",
     R"(["data/held.json","data/more.v2.json"])"},
    {"eval_dataset: held, more.v2\neval_on_each_dataset: true", "data.validation",
     R"({"held":"data/held.json","more-v2":"data/more.v2.json"})"},
    {"val_size: 0.1", "data.validation_fraction", "0.1"},
    {"cutoff_len: 4096", "data.sequence_length", "4096"},
    {"", "data.sequence_length", "2048"},
    {"packing: true", "data.long_documents", R"("drop")"},
    {"packing: false\nneat_packing: true", "data.max_documents", "0"},
    {"packing: false", "data.max_documents", "1"},
    {"packing: false", "data.long_documents", R"("truncate")"},
    {"stage: pt", "data.pack", R"("chunks")"},

    {"per_device_train_batch_size: 2\ngradient_accumulation_steps: 4", "train.global_batch_size", "8"},
    {"", "train.micro_batch_size", "8"},
    {"max_steps: 70", "train.steps", "70"},
    {"num_train_epochs: 2", "train.epochs", "2.0"},
    {"", "train.epochs", "3.0"},
    {"seed: 7", "train.seed", "7"},
    {"val_size: 0.1\neval_strategy: steps\neval_steps: 20", "train.evaluate_every", "20"},
    {"val_size: 0.1\nevaluation_strategy: steps\neval_steps: 20", "train.evaluate_every", "20"},
    {"val_size: 0.1\neval_strategy: steps\nlogging_steps: 7", "train.evaluate_every", "7"},
    {"val_size: 0.1\neval_strategy: epoch\nmax_steps: 60", "train.evaluate_every", "20"},
    {"val_size: 0.1\neval_strategy: steps\neval_steps: 20\nearly_stopping_steps: 3", "train.early_stopping.patience",
     "3"},
    {"logging_steps: 5", "train.log_every", "5"},
    {"learning_rate: 3e-5", "optimizer.learning_rate", "3e-05"},
    {"", "optimizer.learning_rate", "5e-05"},
    {"lr_scheduler_type: cosine", "optimizer.schedule", R"("cosine")"},
    {"", "optimizer.schedule", R"("linear")"},
    {"warmup_ratio: 0.1", "optimizer.warmup_ratio", "0.1"},
    {"warmup_steps: 10", "optimizer.warmup_steps", "10"},
    {"lr_scheduler_type: constant_with_warmup\nwarmup_steps: 0.2", "optimizer.warmup_ratio", "0.2"},
    {"lr_scheduler_kwargs: {min_lr: 1e-6}", "optimizer.minimum_learning_rate", "1e-06"},
    {"lr_scheduler_kwargs: {lr_end: 1e-6}", "optimizer.minimum_learning_rate", "1e-06"},
    {"lr_scheduler_kwargs: {min_lr_rate: 0.1}", "optimizer.minimum_learning_rate", "5e-06"},
    {"lr_scheduler_kwargs: {min_lr_ratio: 0.1}", "optimizer.minimum_learning_rate", "5e-06"},
    {"lr_scheduler_type: warmup_stable_decay\nlr_scheduler_kwargs: {num_decay_steps: 9}", "optimizer.decay_steps", "9"},
    {"lr_scheduler_type: warmup_stable_decay\nlr_scheduler_kwargs: {decay_type: linear}", "optimizer.decay_type",
     R"("linear")"},
    {"lr_scheduler_type: polynomial\nlr_scheduler_kwargs: {power: 2}", "optimizer.power", "2.0"},
    {"finetuning_type: lora\nloraplus_lr_ratio: 16", "optimizer.groups",
     R"([{"learning_rate_factor":16.0,"match":".*lora_B"}])"},
    {"optim: lion_32bit", "optimizer.kind", R"("lion")"},
    {"adam_beta1: 0.8", "optimizer.beta1", "0.8"},
    {"adam_beta2: 0.95", "optimizer.beta2", "0.95"},
    {"", "optimizer.beta2", "0.999"},
    {"adam_epsilon: 1e-6", "optimizer.epsilon", "1e-06"},
    {"weight_decay: 0.2", "optimizer.weight_decay", "0.2"},
    {"", "optimizer.weight_decay", "0.0"},
    {"max_grad_norm: 0.3", "optimizer.gradient_clip", "0.3"},
    {"save_strategy: steps\nsave_steps: 50", "checkpoint.every_steps", "50"},
    {"", "checkpoint.every_steps", "500"},
    {"save_total_limit: 5", "checkpoint.keep_last", "5"},
    {"disable_gradient_checkpointing: true", "memory.activation_checkpointing", R"("none")"},
    {"gradient_checkpointing: true", "memory.activation_checkpointing", R"("full")"},
    {"deepspeed: {zero_optimization: {stage: 2}}", "parallel.sharding", R"("optimizer")"},
    {"", "memory.activation_checkpointing", R"("full")"},
    {"bf16: true", "precision.compute", R"("bf16")"},
    {"pure_bf16: true", "precision.compute", R"("bf16")"},
    {"pure_bf16: true", "optimizer.master_dtype", R"("bf16")"},
    {"fp16: true", "precision.compute", R"("auto")"},
    {"fp8: true", "precision.compute", R"("fp8")"},
    {"ddp_timeout: 900", "run.collective_timeout_s", "900.0"},
    {"sequence_parallel_size: 2", "parallel.context_parallel_degree", "2"},
    {"pipeline_model_parallel_size: 2", "parallel.pipeline_parallel_degree", "2"},
    {"pipeline_model_parallel_size: 2\nvirtual_pipeline_model_parallel_size: 4", "parallel.pipeline_virtual_stages",
     "4"},
    {"pipeline_model_parallel_size: 2\nvirtual_pipeline_model_parallel_size: 4", "parallel.pipeline_schedule",
     R"("interleaved")"},
    {"sequence_parallel_size: 2\nsequence_parallel_mode: ulysses", "parallel.context_comm", R"("all_to_all")"},
    {"sequence_parallel_size: 2\nsequence_parallel_mode: zigzag-ring", "parallel.context_comm", R"("ring")"},
    {"tensor_model_parallel_size: 2", "parallel.tensor_parallel_degree", "2"},
    {"sequence_parallel: false", "parallel.sequence_parallel", "false"},

    {"finetuning_type: lora", "adapter.kind", R"("lora")"},
    {"finetuning_type: lora\nquantization_bit: 4", "adapter.kind", R"("qlora")"},
    {"finetuning_type: lora\nquantization_bit: 8", "adapter.kind", R"("lora")"},
    {"finetuning_type: lora\nquantization_bit: 4\ndouble_quantization: false", "adapter.double_quantization", "false"},
    {"finetuning_type: full", "adapter.kind", R"("none")"},
    {"finetuning_type: lora", "adapter.rank", "8"},
    {"finetuning_type: lora\nlora_rank: 32", "adapter.rank", "32"},
    {"finetuning_type: lora\nlora_rank: 32", "adapter.alpha", "64.0"},
    {"finetuning_type: lora\nlora_alpha: 24", "adapter.alpha", "24.0"},
    {"finetuning_type: lora\nlora_dropout: 0.1", "adapter.dropout", "0.1"},
    {"finetuning_type: lora\nlora_target: 'q_proj, o_proj'", "adapter.targets", R"(["q_proj","o_proj"])"},
    {"finetuning_type: lora\nlora_target: all", "adapter.targets", R"(["all-linear"])"},
    {"finetuning_type: lora", "adapter.targets", R"(["all-linear"])"},
    {"finetuning_type: lora\nadditional_target: 'lm_head,embed_tokens'", "adapter.modules_to_save",
     R"(["lm_head","embed_tokens"])"},
    {"finetuning_type: lora\nuse_rslora: true", "adapter.rslora", "true"},
    {"finetuning_type: lora\nuse_dora: true", "adapter.dora", "true"},
    {"moe_aux_loss_coef: 0.02", "moe.aux_loss_coefficient", "0.02"},
    {"report_to: wandb", "report.wandb", "true"},
    {"report_to: [tensorboard]", "report.tensorboard", "true"},
    {"run_name: first", "name", R"("first")"},
};

// Of the second generation of its files.
constexpr ConvertedKey kCasesOfV1[] = {
    {"", "optimizer.learning_rate", "0.0001"},
    {"", "optimizer.schedule", R"("constant")"},
    {"", "optimizer.weight_decay", "0.01"},
    {"", "checkpoint.every_steps", "0"},
    {"", "adapter.kind", R"("none")"},
    {"lr_scheduler_config: {name: cosine}", "optimizer.schedule", R"("cosine")"},
    {"optim_config: {name: sgd}", "optimizer.kind", R"("sgd")"},
    {"train_dataset: org/other", "data.train", R"(["org/other"])"},
    {"micro_batch_size: 2", "train.micro_batch_size", "2"},
    {"micro_batch_size: 2\nglobal_batch_size: 16", "train.global_batch_size", "16"},
    {"enable_activation_checkpointing: false", "memory.activation_checkpointing", R"("none")"},
    {"dist_config: {name: fsdp2, cp_size: 2}", "parallel.context_parallel_degree", "2"},
    {"peft_config: {name: lora, r: 32}", "adapter.rank", "32"},
    {"peft_config: {name: lora, lora_alpha: 24}", "adapter.alpha", "24.0"},
    {"peft_config: {name: lora, lora_dropout: 0.1}", "adapter.dropout", "0.1"},
    {"peft_config: {name: lora, target_modules: [q_proj]}", "adapter.targets", R"(["q_proj"])"},
    {"peft_config: {name: lora, use_rslora: true}", "adapter.rslora", "true"},
    {"peft_config: {name: lora, use_dora: true}", "adapter.dora", "true"},
};

TEST_F(ConvertLlamaFactory, EveryKeyOfTheRecipe) {
  check(kCases);
  base_ = "model: org/model\ntrain_dataset: org/data\n";
  check(kCasesOfV1);
  expect_all_checked(convert::llama_factory());
}

TEST_F(ConvertLlamaFactory, RejectsOtherKindsOfTraining) {
  for (const char* stage : {"dpo", "kto", "ppo", "rm"}) {
    EXPECT_EQ(errors(cat("stage: ", stage, "\n")),
              cat("other.yaml: this kind of training is not supported (expected sft or pt, got ", stage,
                  ") at stage, line 7"));
  }
  EXPECT_EQ(errors("finetuning_type: oft\n"),
            "other.yaml: this kind of training is not supported (expected full or lora, got oft) at finetuning_type, "
            "line 7");
  EXPECT_EQ(errors("finetuning_type: freeze\n").substr(0, 44), "other.yaml: frozen layers are not converted ");
  EXPECT_EQ(errors("do_train: false\ndo_predict: true\n"),
            "other.yaml: the file trains nothing (expected do_train: true) at do_predict; try hawser generate");
  EXPECT_EQ(errors("do_train: false\nexport_dir: out\n"),
            "other.yaml: the file trains nothing (expected do_train: true) at export_dir; try hawser export");
}

TEST_F(ConvertLlamaFactory, DataSetsAreDescribedByTheirIndex) {
  const Converted file = described(R"({"chats": {"file_name": "c.json", "formatting": "sharegpt",
      "columns": {"messages": "turns", "system": "rules", "tools": "functions"},
      "tags": {"role_tag": "who", "content_tag": "said", "user_tag": "caller", "assistant_tag": "agent"}}})");
  EXPECT_EQ(value(file, "data.train"), nlohmann::json({folder_.path("data/c.json")}));
  EXPECT_EQ(value(file, "data.columns").dump(),
            R"({"content":"said","messages":"turns","role":"who","system":"rules","tools":"functions"})");
  EXPECT_EQ(value(file, "data.roles").dump(), R"({"assistant":"agent","user":"caller"})");
  const Converted pairs = described(R"({"chats": {"file_name": "c.json",
      "columns": {"prompt": "q", "query": "more", "response": "a", "history": "before"}}})");
  EXPECT_EQ(value(pairs, "data.columns").dump(),
            R"({"history":"before","input":"more","instruction":"q","output":"a"})");
  const Converted hub = described(R"({"chats": {"hf_hub_url": "org/chats", "subset": "en", "split": "dev"}})");
  EXPECT_EQ(value(hub, "data.train"), nlohmann::json({"org/chats/en/**/dev*"}));
  EXPECT_EQ(hub.downloads.back(), "hf download org/chats --repo-type dataset --local-dir org/chats --include 'en/*'");
  EXPECT_TRUE(
      has_remark(described(R"({"other": {"file_name": "c.json"}})"), " is a guess; set data.train to its file"));
  EXPECT_TRUE(
      has_remark(described(R"({"chats": {"file_name": "c.json", "num_samples": 9}})"), "chats: all of its split"));
}

TEST_F(ConvertLlamaFactory, RejectsDataThatAreNoText) {
  folder_.write("data/dataset_info.json", R"({"chats": {"file_name": "c.json", "columns": {"images": "images"}},
                                              "pairs": {"file_name": "p.json", "ranking": true}})");
  const std::string folder = "dataset_dir: " + folder_.path("data") + "\n";
  EXPECT_EQ(errors(folder),
            "other.yaml: a data set that is not text (expected text, got chats has images) at dataset, line 5; try "
            "dataset without chats");
  EXPECT_EQ(
      errors(folder + "dataset: pairs\n"),
      "other.yaml: a data set of preferences (expected answers to learn, got pairs) at dataset, line 8; try dataset "
      "without pairs");
}

TEST_F(ConvertLlamaFactory, WeightsAreOnePerDataSet) {
  EXPECT_EQ(errors("dataset: a,b\nmix_strategy: interleave_over\ninterleave_probs: 0.7\n"),
            "other.yaml: wrong type (expected 2 numbers above 0, got 0.7) at interleave_probs, line 9");
  const Converted equal = convert("dataset: a,b\nmix_strategy: interleave_over\n");
  EXPECT_EQ(value(equal, "data.train")[1]["weight"], 1.0);
  EXPECT_EQ(dropped(convert("interleave_probs: 0.7\n"), "interleave_probs"), "not needed: mix_strategy is concat");
}

TEST_F(ConvertLlamaFactory, ReplacesWhatItCannotDo) {
  EXPECT_TRUE(has_remark(convert("finetuning_type: lora\nquantization_bit: 8\n"), "frozen weights stay in bf16"));
  EXPECT_EQ(dropped(convert("quantization_type: fp4\n"), "quantization_type").substr(0, 29),
            "not supported: frozen weights");
  EXPECT_EQ(dropped(convert("use_galore: true\n"), "use_galore"),
            "not supported: an optimizer that there is not: optimizer.kind has those that there are");
  EXPECT_EQ(value(convert("optim: adamw_8bit\n"), "optimizer.kind"), "adamw_8bit");
  EXPECT_EQ(dropped(convert("use_galore: false\n"), "use_galore"), "not needed: empty or off");
  EXPECT_EQ(dropped(convert("image_max_pixels: 4\n"), "image_max_pixels"),
            "not supported: images and sounds: only text is trained on");
  EXPECT_EQ(dropped(convert("max_samples: 1000\n"), "max_samples").substr(0, 14), "not supported:");
  EXPECT_EQ(dropped(convert("train_on_prompt: true\n"), "train_on_prompt").substr(0, 14), "not supported:");
  EXPECT_EQ(dropped(convert("mask_history: false\n"), "mask_history"), "not needed: empty or off");
  EXPECT_EQ(dropped(convert("template: default\n"), "template").substr(0, 38),
            "not supported: a template named defaul");
  EXPECT_EQ(dropped(convert("stage: pt\ntemplate: llama3\n"), "template"), "not needed: texts have no chat template");
  EXPECT_EQ(dropped(convert("deepspeed: ds_z3_config.json\n"), "deepspeed").substr(0, 10), "automatic:");
}

}  // namespace llama_factory_test
}  // namespace hawser

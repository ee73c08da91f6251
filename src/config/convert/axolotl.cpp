#include "config/convert/axolotl.h"

#include <array>
#include <cmath>

#include "base/hub_name.h"
#include "base/text.h"
#include "base/units.h"
#include "config/convert/converted_data.h"
#include "config/convert/settings.h"

namespace hawser::convert {
namespace {

constexpr const char* kSupervised = "supervised fine-tuning or pre-training";
constexpr const char* kSharded =
    "model state is sharded over all ranks (ZeRO-3), and nothing is offloaded; no zero_optimization was found";

constexpr auto kRules = std::to_array<Rule>({
    // Model and output.
    joins("model.path", "base_model revision_of_model model_revision reinit_weights"),
    joins("output", "output_dir"),
    joins("data.tokenizer", "tokenizer_config"),
    joins("data.chat_template", "chat_template chat_template_jinja"),

    // Data. The entries of the lists: kDataRules.
    joins("data.train", "datasets pretraining_dataset"),
    joins("data.validation", "test_datasets"),
    joins("data.validation_fraction", "val_set_size"),
    sets("data.sequence_length", "sequence_len"),
    sets("data.deduplicate", "dataset_exact_deduplication"),
    joins("data.long_documents", "excess_length_strategy"),
    joins("data.pack", "sample_packing pretrain_multipack_attn pretraining_sample_concatenation"),

    // Batch, duration, learning rate.
    joins("train.global_batch_size", "micro_batch_size gradient_accumulation_steps batch_size"),
    joins("train.steps", "max_steps num_epochs"),
    sets("train.seed", "seed"),
    joins("train.evaluate_every", "eval_steps evals_per_epoch eval_strategy evaluation_strategy"),
    joins("train.early_stopping.patience", "early_stopping_patience"),
    joins("train.log_every", "logging_steps"),
    sets("optimizer.learning_rate", "learning_rate"),
    joins("optimizer.schedule", "lr_scheduler"),
    joins("optimizer.warmup_ratio", "warmup_ratio warmup_steps"),
    joins("optimizer.minimum_learning_rate",
          "cosine_min_lr_ratio lr_scheduler_kwargs.min_lr lr_scheduler_kwargs.min_lr_rate "
          "lr_scheduler_kwargs.min_lr_ratio lr_scheduler_kwargs.lr_end"),
    joins("optimizer.decay_steps", "lr_scheduler_kwargs.num_decay_steps"),
    joins("optimizer.decay_type", "lr_scheduler_kwargs.decay_type"),
    joins("optimizer.power", "lr_scheduler_kwargs.power"),
    joins("optimizer.groups", "loraplus_lr_ratio embedding_lr embedding_lr_scale lr_groups"),
    joins("train.freeze", "unfrozen_parameters"),
    joins("optimizer.kind", "optimizer"),
    joins("optimizer.beta1", "adam_beta1"),
    joins("optimizer.beta2", "adam_beta2"),
    joins("optimizer.epsilon", "adam_epsilon adam_eps"),
    sets("optimizer.weight_decay", "weight_decay"),
    sets("optimizer.gradient_clip", "max_grad_norm"),
    joins("checkpoint.every_steps", "save_steps saves_per_epoch save_strategy"),
    sets("checkpoint.keep_last", "save_total_limit"),

    // Parallelism, memory, precision.
    joins("parallel.tensor_parallel_degree", "tensor_parallel_size"),
    joins("parallel.context_parallel_degree", "context_parallel_size sequence_parallel_degree"),
    joins("parallel.context_comm", "ring_attn_func"),
    joins("parallel.hybrid_shard_degree", "dp_shard_size dp_replicate_size"),
    joins("memory.activation_checkpointing",
          "gradient_checkpointing activation_checkpointing fsdp_config.activation_checkpointing "
          "fsdp_config.fsdp_activation_checkpointing"),
    joins("memory.activation_offload", "activation_offloading"),
    joins("memory.mlp_tile_rows", "tiled_mlp tiled_mlp_num_shards"),
    sets("memory.weight_offload", "layer_offloading"),
    joins("memory.optimizer_offload", "fsdp_config.offload_params fsdp_config.fsdp_offload_params"),
    joins("parallel.sharding", "deepspeed"),
    joins("precision.compute", "bf16 bfloat16 float32 fp8"),
    joins("run.collective_timeout_s", "ddp_timeout"),

    // Adapters and experts.
    joins("adapter.kind", "adapter load_in_4bit"),
    joins("adapter.rank", "lora_r"),
    joins("adapter.alpha", "lora_alpha"),
    joins("adapter.dropout", "lora_dropout"),
    joins("adapter.targets", "lora_target_modules lora_target_linear"),
    joins("adapter.modules_to_save", "lora_modules_to_save"),
    joins("adapter.rslora", "peft_use_rslora"),
    joins("adapter.dora", "peft_use_dora"),
    joins("moe.balancing", "model_config.output_router_logits"),
    sets("moe.aux_loss_coefficient", "model_config.router_aux_loss_coef"),

    // Reports.
    joins("report.wandb", "use_wandb wandb_project"),
    joins("name", "wandb_name mlflow_run_name"),
    sets("report.tensorboard", "use_tensorboard"),
    joins("report.mlflow", "mlflow_tracking_uri use_mlflow"),
    sets("report.mlflow_experiment", "mlflow_experiment_name"),

    // What Hawser does without a key.
    automatic("attention is always fused, and never crosses documents",
              "flash_attention flash_attn_* flash_optimum attn_implementation flex_attention flex_attn_compile_kwargs "
              "sdp_attention sdpa_varlen xformers_attention sage_attention eager_attention fused_attn_kernel "
              "gemma4_hybrid_attn_impl batch_flattening s2_attention"),
    automatic("keys of context-parallel ranks are gathered in groups of heads", "heads_k_stride"),
    automatic("kernels are fused ahead of time; nothing is compiled at run time",
              "torch_compile torch_compile_backend torch_compile_mode torch_compile_options deepcompile liger_* "
              "cut_cross_entropy chunked_cross_entropy chunked_cross_entropy_num_chunks use_kernels lora_mlp_kernel "
              "lora_qkv_kernel lora_o_kernel lora_embedding_kernel unsloth_* "
              "experts_implementation use_scattermoe use_sonicmoe use_dsv4_kernels use_glm_dsa_kernels "
              "moe_grouped_backend expert_backend large_head_attention"),
    automatic("tiles compute the MLP of the model", "tiled_mlp_use_original_mlp"),
    automatic("the keys of the plugins are converted, or are listed here", "plugins"),
    automatic(kSharded,
              "fsdp fsdp_config fsdp_config.* fsdp_version fsdp_final_state_dict_type accelerator_config "
              "qlora_sharded_model_loading"),
    automatic("data parallelism needs no settings; parallel.hybrid_shard_degree: 1 is DDP",
              "ddp ddp_* data_parallel_size"),
    automatic("sequences are packed to their full length; the pad token is not used",
              "pad_to_sequence_len pad_to_multiple_of eval_sample_packing multipack_real_batches group_by_length "
              "dataloader_drop_last sample_packing_* streaming_multipack_buffer_size pretrain_multipack_buffer_size "
              "eval_batch_size total_num_tokens total_supervised_tokens min_sample_len max_packed_sequence_len"),
    automatic("text is read and tokenized by threads of its own, in bounded memory, into OUTPUT/data",
              "dataset_processes dataset_num_proc dataset_keep_in_memory dataloader_* dataset_prepared_path streaming "
              "num_dataset_shards_to_save skip_prepare_dataset remove_unused_columns preprocess_iterable"),
    automatic("data are shuffled by train.seed, in an order of their own each epoch",
              "shuffle_merged_datasets shuffle_before_merging_datasets"),
    automatic("the end of turn of the chat template ends an answer, as in training", "eot_tokens"),
    automatic("OUTPUT/best keeps the checkpoint with the lowest validation loss",
              "load_best_model_at_end metric_for_best_model greater_is_better"),
    automatic("FP8 weights are gathered in FP8", "fp8_enable_fsdp_float8_all_gather"),
    automatic("sequences are packed, and have no padding", "special_tokens.pad_token tokens.pad_token"),
    automatic("hawser fit RECIPE --resume continues a run", "resume_from_checkpoint auto_resume_from_checkpoints"),
    automatic("hawser export writes the weights of any checkpoint; checkpoints hold the complete state",
              "save_only_model save_first_step save_safetensors merge_lora merge_method"),
    automatic("progress, tokens per second and gradient norms are always in metrics.jsonl and report.html",
              "include_tokens_per_second include_tkps profiler_steps profiler_steps_start do_bench_eval bench_*"),
    automatic("training stops at a loss or a gradient that is not finite; report.rules warns of others",
              "loss_watchdog_threshold loss_watchdog_patience"),
    automatic("float32 is float32; bf16 GEMMs have float32 sums", "tf32 fp32_norms fp32_norm_classes"),
    automatic("the offline run of report.wandb is uploaded by `wandb sync`, which asks for the rest",
              "wandb_entity wandb_mode wandb_watch wandb_run_id wandb_log_model"),
    automatic("memory is planned before the run",
              "gc_steps gc_collect_steps torch_empty_cache_steps max_memory "
              "gpu_memory_limit low_cpu_mem_usage lora_on_cpu auto_find_batch_size experimental_skip_move_to_device"),

    // Settings of the other program.
    not_needed(
        "axolotl's own program alone has it",
        "strict debug axolotl_config_path is_preprocess local_rank world_size device device_map hf_use_auth_token "
        "push_dataset_to_hub torchdistx_path use_ray ray_* resources_per_worker gradio_* hub_* trust_remote_code "
        "use_otel_metrics otel_metrics_* capabilities env_capabilities dynamic_checkpoint save_strategy_* "
        "base_model_ignore_patterns processor_kwargs lora_fan_in_fan_out gptq_* project_name bnb_config_kwargs "
        "gradient_checkpointing_kwargs log_multimodal fp8_config"),
    not_needed("the model's config.json and its tokenizer decide it",
               "model_type type_of_model cls_model_config tokenizer_type tokenizer_use_fast tokenizer_legacy "
               "tokenizer_use_mistral_common tokenizer_save_jinja_files is_falcon_derived_model is_llama_derived_model "
               "is_mistral_derived_model is_qwen_derived_model base_model_config torch_dtype dtype "
               "resize_token_embeddings_to_32x mean_resizing_embeddings shrink_embeddings embeddings_skip_upcast "
               "fix_untrained_tokens"),
    not_needed("only training by preferences or rewards uses it",
               "rl_beta dpo_* orpo_alpha rpo_alpha kto_* cpo_alpha simpo_gamma trl trl.* vllm vllm.* num_labels "
               "center_rewards_coefficient max_prompt_len precompute_ref_log_probs beta"),

    // What Hawser does not do.
    unsupported("frozen weights are in bf16, in NF4 (adapter.kind: qlora), or in FP8 beside precision.compute: fp8",
                "load_in_8bit gptq quantization quantize_moe_experts model_quantization_config "
                "model_quantization_config_kwargs nonexpert_quantization"),
    unsupported("fp16: precision.compute: auto is bf16 on GPUs, and float32 on CPUs", "fp16 float16"),
    unsupported("quantization-aware training and pruning: the weights train in bf16, and stay dense",
                "qat llmcompressor llmcompressor.* use_onebitllms "
                "nvfp4_merge_aware nvfp4_merge_aware_start_step dsv4_* gemma4_fp8_nonexpert gemma4_nf4_nonexpert "
                "moe_bnb_fast moe_dequant_chunk_size"),
    unsupported(
        "adapters are LoRA, rsLoRA or DoRA with one rank, on the Linears of adapter.targets, from random values",
        "lora_target_parameters lora_rank_pattern lora_alpha_pattern peft peft.* peft_layers_* "
        "peft_layer_replication peft_init_lora_weights peft_trainable_token_indices peft_ensure_weight_tying "
        "peft_autocast_adapter_dtype loraplus_lr_embedding relora relora_* jagged_restart_* mora mora.* "
        "use_mora"),
    unsupported("the same parameters train in all steps", "lisa_* spectrum_* freeze_mm_modules"),
    unsupported(
        "a run starts from a base model: merge the adapter with hawser export --model BASE --adapter A --merge DIR",
        "lora_model_dir"),
    unsupported("warmup is linear, and the decay ends with the run",
                "lr_quadratic_warmup cosine_constant_lr_ratio lr_scheduler_kwargs lr_scheduler_kwargs.* eta_min "
                "lr_div_factor"),
    unsupported("the keys of optimizer have its settings",
                "optim_args optim_target_modules adam_beta3 adam_epsilon2 dion_* qgalore_* grokfast_*"),
    unsupported("expert parallelism: experts are sharded as other weights are", "expert_parallel_*"),
    unsupported("offload of per-layer embeddings; memory.weight_offload has all weights in host memory",
                "ple_cpu_offload"),
    unsupported("selective recomputation by op; memory.activation_checkpointing: auto chooses for each block",
                "selective_checkpointing"),
    unsupported("images: only text is trained on", "processor_type image_size image_resize_algorithm"),
    unsupported("no token is added to a model; its tokenizer declares the special tokens",
                "special_tokens special_tokens.* tokens tokens.* added_tokens_overrides additional_special_tokens "
                "default_system_message"),
    unsupported("variables of the chat template come from the lines of data, in chat_template_kwargs",
                "chat_template_kwargs chat_template_kwargs.*"),
    unsupported("changes of config.json: edit it in the model's folder",
                "model_config model_config.* overrides_of_model_config rope_scaling model_kwargs "
                "overrides_of_model_kwargs"),
    unsupported("the loss is cross-entropy, without noise; attention is the model's",
                "neftune_noise_alpha noisy_embedding_alpha label_smoothing_factor use_eaft eaft_alpha eaft_k use_pose "
                "pose_* scaling_softmax scaling_softmax_* dense_mixer llama4_linearized_experts"),
    unsupported("the loss is over the answers alone, and not over questions", "train_on_inputs"),
    unsupported("data are shuffled", "curriculum_sampling"),
    unsupported("evaluations compute the loss alone, on sequences of the training length",
                "do_causal_lm_eval eval_causal_lm_metrics eval_table_size eval_max_new_tokens eval_sequence_len "
                "lm_eval_* generate_samples num_generation_samples generation_*"),
    unsupported("reports go to TensorBoard, Prometheus, MLflow and Weights & Biases",
                "use_comet comet_* use_trackio trackio_* use_swanlab swanlab_* hf_mlflow_log_artifacts"),
    unsupported("a trainer of one's own", "trainer_cls"),
    unsupported("a part of the data: all of data.train is read", "dataset_shard_num dataset_shard_idx"),
    unsupported("training by preferences or rewards, and distillation",
                "rl reward_model process_reward_model diffusion diffusion.* ebft ebft.* kd_* nemo_gym_* "
                "hatchery hatchery.*"),
});

constexpr auto kDataRules = std::to_array<Rule>({
    joins("data.train", "path data_files split name revision"),
    joins("data.columns",
          "field text_column field_messages field_tools field_thinking field_human field_model "
          "message_property_mappings message_field_role message_field_content message_field_training type"),
    joins("data.roles", "roles"),
    joins("data.chat_template", "chat_template chat_template_jinja"),
    automatic("the assistant's turns are learned", "roles_to_train train_on_eos train_on_eot"),
    automatic("templates get thoughts as reasoning_content and as thinking", "template_thinking_key"),
    automatic("the ending of its name, or its first bytes, decide how a file is read", "ds_type"),
    automatic("token files are prepared in bounded memory, and an interrupted prepare continues", "preprocess_shards"),
    not_needed("axolotl's own program alone has it", "trust_remote_code conversation input_format"),
    not_needed(
        "only training by preferences or rewards uses it",
        "field_chosen field_rejected step_separator max_completion_length train_on_last_step_only logprobs_field "
        "temperature"),
    unsupported("parts of a message: a message is learned or not", "message_field_training_detail"),
    unsupported("messages are learned as the files have them",
                "drop_system_message split_thinking input_transform system_prompt"),
    unsupported("a part of the data: all of data.train is read",
                "shards shards_idx skip length sequence_length min_input_id max_input_id seed"),
});

constexpr auto kLists = std::to_array<std::string_view>({"datasets", "pretraining_dataset", "test_datasets"});

constexpr auto kStops = std::to_array<Stop>({
    {.name = "rl", .expected = kSupervised},
    {.name = "reward_model", .expected = kSupervised},
    {.name = "process_reward_model", .expected = kSupervised},
    {.name = "diffusion", .expected = kSupervised},
    {.name = "kd_trainer", .expected = kSupervised},
    {.name = "processor_type",
     .expected = "training on text",
     .hint = "removing processor_type, if the data have no images or sounds"},
    {.name = "adapter", .except = "lora qlora", .expected = "lora, or no adapter"},
});

// axolotl's own plugins have keys, which the rules convert. Others are code of the user.
void convert_plugins(Conversion& c) {
  if (!c.has("plugins")) return;
  for (const std::string& plugin : list_of(*c.find("plugins"))) {
    if (plugin.find("Diffusion") != std::string::npos || plugin.find(".kd.") != std::string::npos) {
      c.problem("plugins", {.what = "this kind of training is not supported", .expected = kSupervised, .got = plugin});
    } else if (!plugin.starts_with("axolotl.integrations.")) {
      c.drop("plugins", WhyDropped::unsupported, cat("the plugin ", plugin, " does not run"));
    }
  }
}

// axolotl matches the beginnings of names, and escapes dots, except those before a plus sign.
std::string pattern_of(const std::string& theirs) {
  std::string out;
  for (std::size_t i = 0; i < theirs.size(); ++i) {
    const bool any = i + 1 < theirs.size() && theirs[i + 1] == '+';
    const bool escaped = i > 0 && theirs[i - 1] == '\\';
    out += theirs[i] == '.' && !any && !escaped ? std::string("[.]") : std::string(1, theirs[i]);
  }
  return out;
}

// train.freeze names what does not train: all but the parameters of unfrozen_parameters.
void convert_unfrozen(Conversion& c) {
  if (!c.has("unfrozen_parameters")) return;
  if (c.is_on("adapter")) {
    return c.drop("unfrozen_parameters", WhyDropped::unsupported,
                  "with an adapter, the model is frozen; adapter.modules_to_save names what trains beside it");
  }
  std::vector<std::string> patterns;
  bool rows = false;  // "embed_tokens.weight[:32000]"
  for (const std::string& theirs : list_of(*c.find("unfrozen_parameters"))) {
    rows = rows || (theirs.ends_with(']') &&
                    theirs.find_first_not_of("0123456789:]", theirs.rfind('[') + 1) == std::string::npos);
    patterns.push_back(pattern_of(theirs));
  }
  const YAML::Node frozen = node_of({cat("(?!", joined(patterns, "|"), ").*")});
  if (rows) {
    return c.drop("unfrozen_parameters", WhyDropped::unsupported,
                  "a parameter trains with all of its rows; all parameters train");
  }
  c.set("train.freeze", frozen, "unfrozen_parameters");
}

// optimizer.groups: parameters with a learning rate of their own.
void convert_groups(Conversion& c) {
  YAML::Node groups(YAML::NodeType::Sequence);
  const auto add = [&](const std::vector<std::string>& match, const char* key, const std::string& value) {
    YAML::Node group(YAML::NodeType::Map);
    group["match"] = node_of(match);
    group[key] = value;
    groups.push_back(group);
    return group;
  };
  std::string_view from;
  if (c.has("embedding_lr_scale") || c.has("embedding_lr")) {
    const bool scaled = c.has("embedding_lr_scale");
    from = scaled ? "embedding_lr_scale" : "embedding_lr";
    YAML::Node group =
        add({"embed_tokens", "lm_head"}, scaled ? "learning_rate_factor" : "learning_rate", c.text(from));
    group["weight_decay"] = "0";  // axolotl's
    if (scaled) c.drop("embedding_lr", WhyDropped::not_needed, "embedding_lr_scale comes first");
  }
  if (c.has("lr_groups")) from = "lr_groups";
  for (const YAML::Node& group : c.entries("lr_groups")) {
    std::vector<std::string> modules;
    for (const std::string& part : list_of(group["modules"])) modules.push_back(".*" + part + ".*");
    add(modules, "learning_rate", group["lr"] ? group["lr"].as<std::string>("") : "");
  }
  if (!from.empty()) c.set("optimizer.groups", groups, from);
}

// Shards are tiles; without their number, tiles have as many rows as the model's width, which is not known here.
void convert_tiled_mlp(Conversion& c) {
  if (c.number("tensor_parallel_size").value_or(1) > 1) {
    const char* const why = "tensor-parallel ranks have parts of the MLP's activations already";
    c.drop("tiled_mlp", WhyDropped::not_needed, why);
    return c.drop("tiled_mlp_num_shards", WhyDropped::not_needed, why);
  }
  if (c.is_on("tiled_mlp")) {
    const double length = c.number("sequence_len").value_or(0), shards = c.number("tiled_mlp_num_shards").value_or(0);
    if (c.has("tiled_mlp_num_shards") && (shards < 1 || shards != std::floor(shards))) {
      c.problem(
          "tiled_mlp_num_shards",
          {.what = "wrong value", .expected = "a whole number of at least 1", .got = c.text("tiled_mlp_num_shards")});
    }
    const bool given = length >= 1 && shards >= 1;
    const auto rows = given ? static_cast<std::int64_t>(std::ceil(length / shards)) : kMlpTileRows;
    return c.set("memory.mlp_tile_rows", cat(round_up(rows, kMlpTileStep)), "tiled_mlp");
  }
  c.drop_if_off("tiled_mlp");
  c.drop("tiled_mlp_num_shards", WhyDropped::not_needed, "it is for tiled_mlp");
}

// What has a form of its own, or depends on several keys.
void convert_own(Conversion& c) {
  const bool newer = c.has("model_revision");
  convert_model(c, newer ? "model_revision" : "revision_of_model", "reinit_weights");
  if (newer) c.drop("revision_of_model", WhyDropped::not_needed, "model_revision comes first");
  convert_tokenizer(c, "tokenizer_config");
  convert_checkpointing(c, {"gradient_checkpointing", "activation_checkpointing",
                            "fsdp_config.activation_checkpointing", "fsdp_config.fsdp_activation_checkpointing"});
  convert_offload(c, "activation_offloading");
  convert_tiled_mlp(c);
  for (const std::string_view key : {"fsdp_config.offload_params", "fsdp_config.fsdp_offload_params"}) {
    if (c.is_on(key)) c.set("memory.optimizer_offload", "true", key);
    c.drop_if_off(key);
  }
  convert_deepspeed(c, "deepspeed", kSharded);
  convert_plugins(c);
  convert_unfrozen(c);
  convert_groups(c);
  convert_lora_plus(c, "loraplus_lr_ratio");
  convert_axolotl_data(c);
  if (const std::string name = c.text("chat_template"); name == "jinja") {
    c.drop("chat_template", WhyDropped::not_needed, "chat_template_jinja counts");
  } else if (!name.empty()) {
    convert_chat_template(c, "chat_template", name);
  }
  if (c.has("chat_template_jinja")) convert_chat_template(c, "chat_template_jinja", c.text("chat_template_jinja"));

  const std::string adapter = c.text("adapter");
  convert_adapter(c, {.kind = "adapter",
                      .trains = c.is_on("adapter"),
                      .four_bits = adapter == "qlora" || c.is_on("load_in_4bit"),
                      .rank = "lora_r",
                      .alpha = "lora_alpha",
                      .dropout = "lora_dropout",
                      .targets = "lora_target_modules",
                      .all_linears = "lora_target_linear",
                      .modules_to_save = "lora_modules_to_save",
                      .rslora = "peft_use_rslora",
                      .dora = "peft_use_dora"});
  if (c.is_on("model_config.output_router_logits")) {
    c.set("moe.balancing", "aux_loss", "model_config.output_router_logits");
  }
}

constexpr Trainer kAxolotl{
    .id = OtherTrainer::axolotl,
    .keys = {.model = "base_model",
             .micro_batch = "micro_batch_size",
             .epochs = "num_epochs",
             .steps = "max_steps",
             .schedule = "lr_scheduler",
             .optimizer = "optimizer",
             .sequence_length = "sequence_len",
             .validation_size = "val_set_size",
             .warmup_ratio_default = "0.03",
             .output_default = "model-out"},
    .rules = kRules,
    .data_rules = kDataRules,
    .data_lists = kLists,
    .stops = kStops,
    .convert = convert_own,
};

}  // namespace

void convert_chat_template(Conversion& c, const std::string& key, const std::string& value) {
  const bool is_text = value.find('{') != std::string::npos;
  if (is_text) {
    return c.drop(key, WhyDropped::unsupported,
                  "the text of a template: write it to a .jinja file, and name that in data.chat_template");
  }
  const std::string fallback = "tokenizer_default_fallback_";
  if (value == "tokenizer_default" || value.starts_with(fallback)) {
    return c.drop(key, WhyDropped::automatic, "the tokenizer's own chat template is the default");
  }
  const std::string ours = chat_template_of(value);
  if (!ours.empty()) return c.set("data.chat_template", ours, key);
  if (value.ends_with(".jinja") || Conversion::exists(value)) {
    return c.set("data.chat_template", c.path(value), key);
  }
  c.drop(key, WhyDropped::unsupported,
         cat("a template named ", value, "; the tokenizer's own is used, or set data.chat_template to a file"));
}

const Trainer& axolotl() {
  return kAxolotl;
}

}  // namespace hawser::convert

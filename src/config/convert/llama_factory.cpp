#include "config/convert/llama_factory.h"

#include <array>

#include "base/text.h"
#include "config/convert/converted_data.h"
#include "config/convert/settings.h"

namespace hawser::convert {
namespace {

constexpr auto kFactoryRules = std::to_array<Rule>({
    joins("model.path", "model_name_or_path model model_revision train_from_scratch"),
    joins("output", "output_dir"),
    joins("data.chat_template", "template"),
    joins("data.train", "dataset train_dataset dataset_dir mix_strategy interleave_probs"),
    joins("data.validation", "eval_dataset eval_on_each_dataset"),
    joins("data.validation_fraction", "val_size"),
    sets("data.sequence_length", "cutoff_len"),
    joins("data.pack", "packing neat_packing stage"),

    joins("train.global_batch_size",
          "per_device_train_batch_size gradient_accumulation_steps micro_batch_size global_batch_size"),
    joins("train.steps", "max_steps num_train_epochs"),
    sets("train.seed", "seed"),
    joins("train.evaluate_every", "eval_steps eval_strategy evaluation_strategy"),
    automatic("held-out data are evaluated before the first step and at the end", "do_eval eval_on_start"),
    joins("train.early_stopping.patience", "early_stopping_steps"),
    joins("train.log_every", "logging_steps"),
    sets("optimizer.learning_rate", "learning_rate"),
    joins("optimizer.schedule", "lr_scheduler_type lr_scheduler_config.name"),
    joins("optimizer.warmup_ratio", "warmup_ratio warmup_steps"),
    joins("optimizer.minimum_learning_rate",
          "lr_scheduler_kwargs.min_lr lr_scheduler_kwargs.min_lr_rate lr_scheduler_kwargs.min_lr_ratio "
          "lr_scheduler_kwargs.lr_end"),
    joins("optimizer.decay_steps", "lr_scheduler_kwargs.num_decay_steps"),
    joins("optimizer.decay_type", "lr_scheduler_kwargs.decay_type"),
    joins("optimizer.power", "lr_scheduler_kwargs.power"),
    joins("optimizer.groups", "loraplus_lr_ratio"),
    joins("optimizer.kind", "optim optim_config.name"),
    joins("optimizer.beta1", "adam_beta1"),
    joins("optimizer.beta2", "adam_beta2"),
    joins("optimizer.epsilon", "adam_epsilon"),
    sets("optimizer.weight_decay", "weight_decay"),
    sets("optimizer.gradient_clip", "max_grad_norm"),
    joins("checkpoint.every_steps", "save_steps save_strategy"),
    sets("checkpoint.keep_last", "save_total_limit"),
    joins("memory.activation_checkpointing",
          "disable_gradient_checkpointing gradient_checkpointing enable_activation_checkpointing"),
    joins("parallel.sharding", "deepspeed"),
    joins("precision.compute", "bf16 pure_bf16 fp8"),
    joins("run.collective_timeout_s", "ddp_timeout"),
    joins("parallel.tensor_parallel_degree", "tensor_model_parallel_size"),
    sets("parallel.sequence_parallel", "sequence_parallel"),
    joins("parallel.pipeline_parallel_degree", "pipeline_model_parallel_size"),
    joins("parallel.pipeline_virtual_stages", "virtual_pipeline_model_parallel_size"),
    joins("parallel.context_parallel_degree", "dist_config.cp_size sequence_parallel_size"),
    joins("parallel.context_comm", "sequence_parallel_mode"),

    joins("adapter.kind", "finetuning_type peft_config.name quantization_bit"),
    joins("adapter.double_quantization", "double_quantization"),
    joins("adapter.rank", "lora_rank peft_config.r"),
    joins("adapter.alpha", "lora_alpha peft_config.lora_alpha"),
    joins("adapter.dropout", "lora_dropout peft_config.lora_dropout"),
    joins("adapter.targets", "lora_target peft_config.target_modules"),
    joins("adapter.modules_to_save", "additional_target"),
    joins("adapter.rslora", "use_rslora peft_config.use_rslora"),
    joins("adapter.dora", "use_dora peft_config.use_dora"),
    sets("moe.aux_loss_coefficient", "moe_aux_loss_coef"),
    joins("report.wandb", "report_to"),
    joins("name", "run_name"),

    automatic("attention is always fused, and never crosses documents", "flash_attn shift_attn block_diag_attn"),
    automatic("kernels are fused ahead of time; nothing is compiled at run time",
              "enable_liger_kernel use_liger_kernel liger_kernel_config use_unsloth use_v1_kernels kernel_config "
              "torch_compile torch_compile_backend torch_compile_mode bias_activation_fusion apply_rope_fusion "
              "moe_grouped_gemm jit_mode_eval"),
    automatic(
        "model state is sharded over all ranks (ZeRO-3), and nothing is offloaded; the files that it names are not "
        "read",
        "fsdp fsdp_config fsdp_transformer_layer_cls_to_wrap fsdp_min_num_params "
        "dist_config.name dist_config.config_file dist_config.dcp_path "
        "dist_config.* use_distributed_optimizer overlap_param_gather overlap_grad_reduce accelerator_config "
        "parallelism_config init_config"),
    automatic("sequences are packed to their full length; the pad token is not used",
              "group_by_length length_column_name dataloader_drop_last per_device_eval_batch_size batching_strategy "
              "train_sampling_strategy ignore_pad_token_for_loss eval_batch_size auto_find_batch_size"),
    automatic(
        "text is read and tokenized by threads of its own, in bounded memory, into OUTPUT/data",
        "preprocessing_num_workers preprocessing_batch_size dataloader_* overwrite_cache tokenized_path streaming "
        "buffer_size data_shared_file_system remove_unused_columns batching_workers"),
    automatic("OUTPUT/best keeps the checkpoint with the lowest validation loss",
              "load_best_model_at_end metric_for_best_model greater_is_better"),
    automatic("hawser fit RECIPE --resume continues a run; files of an earlier run are moved, never deleted",
              "resume_from_checkpoint overwrite_output_dir ignore_data_skip"),
    automatic("hawser export writes the weights of any checkpoint; checkpoints hold the complete state",
              "save_only_model save_safetensors save_on_each_node save_ckpt_as_hf save_epochs"),
    automatic("OUTPUT/report.html plots the loss, and metrics.jsonl has every step",
              "plot_loss logging_dir logging_strategy logging_first_step logging_nan_inf_filter disable_tqdm "
              "log_level log_level_replica log_on_each_node include_num_input_tokens_seen "
              "include_effective_tokens_per_second include_tokens_per_second print_param_status skip_memory_metrics "
              "enable_torch_profiler profiler_* profile_modules"),
    automatic("data parallelism needs no settings; parallel.hybrid_shard_degree: 1 is DDP", "ddp_*"),
    automatic("float32 is float32; bf16 GEMMs have float32 sums", "tf32 upcast_layernorm upcast_lmhead_output"),
    automatic("memory is planned before the run", "low_cpu_mem_usage torch_empty_cache_steps offload_folder"),
    automatic("an epoch has an order of its own, by train.seed", "data_seed full_determinism"),

    not_needed("hawser fit trains", "do_train"),
    not_needed("LLaMA-Factory's own program alone has it",
               "trust_remote_code cache_dir hf_hub_token ms_hub_token om_hub_token local_rank debug use_cpu no_cuda "
               "device_map use_mca use_hyper_parallel hyper_parallel_args ray_* master_addr master_port hub_* "
               "push_to_hub project trackio_* use_cache use_reentrant_gc gradient_checkpointing_kwargs media_dir "
               "compute_dtype model_max_length label_names restore_callback_states_from_checkpoint "
               "enable_jit_checkpoint average_tokens_across_devices"),
    not_needed("the model's config.json and its tokenizer decide it",
               "use_fast_tokenizer model_class split_special_tokens"),
    not_needed("only generation uses it: hawser generate has options of its own",
               "do_predict predict_with_generate infer_backend infer_dtype do_sample temperature top_p top_k num_beams "
               "eval_num_beams max_length max_new_tokens repetition_penalty length_penalty skip_special_tokens "
               "use_kv_cache vllm_* sglang_* sample_backend generation_* sortish_sampler"),
    not_needed("hawser export writes the trained model", "export_*"),
    not_needed("only training by preferences or rewards uses it",
               "pref_* dpo_* kto_* simpo_gamma ppo_* ref_model* reward_model* ld_alpha"),
    not_needed("only LLaMA-Factory's optimizer or adapter of that name uses it",
               "galore_* apollo_* badam_* oft_* module_dropout pissa_iter pissa_convert freeze_extra_modules "
               "freeze_trainable_layers freeze_trainable_modules"),

    unsupported("frozen weights are in bf16, in NF4 (adapter.kind: qlora), or in FP8 beside precision.compute: fp8",
                "quantization_method quantization_type quantization_device_map "
                "quant_config quant_config.*"),
    unsupported(
        "an optimizer that there is not: optimizer.kind has those that there are",
        "use_galore use_apollo use_badam use_adam_mini use_muon optim_args optim_target_modules optim_config.*"),
    unsupported("adapters are LoRA, rsLoRA or DoRA on the Linears of adapter.targets, from random values",
                "loraplus_lr_embedding pissa_init create_new_adapter peft_config "
                "peft_config.*"),
    unsupported(
        "a run starts from a base model: merge the adapter with hawser export --model BASE --adapter A --merge DIR",
        "adapter_name_or_path adapter_folder peft_config.adapter_name_or_path"),
    unsupported("fp16: precision.compute: auto is bf16 on GPUs, and float32 on CPUs", "fp16"),
    unsupported("expert parallelism: experts are sharded as other weights are",
                "expert_model_parallel_size moe_token_dispatcher_type"),
    unsupported("selective recomputation by op; memory.activation_checkpointing: auto chooses for each block",
                "recompute_granularity recompute_method recompute_num_layers use_unsloth_gc"),
    unsupported("images and sounds: only text is trained on",
                "image_* video_* audio_* crop_to_patches use_audio_in_video freeze_vision_tower "
                "freeze_multi_modal_projector freeze_language_model"),
    unsupported("no token is added to a model; its tokenizer declares the special tokens",
                "add_tokens add_special_tokens new_special_tokens_config init_special_tokens resize_vocab"),
    unsupported("messages are learned as the files have them", "default_system tool_format preserve_thinking"),
    unsupported("the loss is over all answers, and not over questions", "train_on_prompt mask_history"),
    unsupported("a part of the data: all of it is read; train.steps ends a run earlier", "max_samples"),
    unsupported("the data are shuffled", "disable_shuffling"),
    unsupported("changes of config.json: edit it in the model's folder", "rope_scaling mixture_of_depths"),
    unsupported("the loss is cross-entropy, without noise",
                "neftune_noise_alpha label_smoothing_factor use_dft_loss use_asft_loss asft_alpha use_eaft_loss "
                "eaft_alpha"),
    unsupported("evaluations compute the loss alone",
                "compute_accuracy include_for_metrics batch_eval_metrics eval_do_concat_batches "
                "prediction_loss_only eval_accumulation_steps eval_delay eval_use_gather_object bf16_full_eval "
                "fp16_full_eval"),
    unsupported("all experts are on the ranks; nothing runs in host memory", "use_kt kt_*"),
    unsupported("reports go to TensorBoard, Prometheus, MLflow and Weights & Biases", "use_swanlab swanlab_*"),
    unsupported("warmup is linear, and the decay ends with the run",
                "lr_scheduler_kwargs lr_scheduler_kwargs.* lr_scheduler_config.*"),
    automatic("FP8 weights are gathered in FP8", "fp8_enable_fsdp_float8_all_gather"),
    not_needed("FP8 has one implementation", "fp8_backend"),
    unsupported("blocks that are added to a model", "use_llama_pro"),
    automatic("thoughts in answers are learned as the chat template writes them", "enable_thinking"),
});

constexpr auto kFactoryStops = std::to_array<Stop>({
    {.name = "stage", .except = "sft pt", .expected = "sft or pt"},
    {.name = "finetuning_type", .except = "full lora freeze", .expected = "full or lora"},
    {.name = "peft_config.name", .except = "lora freeze", .expected = "lora, or no peft_config"},
});

// Templates that a prompt has in place of a conversation.
bool has_no_format(const std::string& name) {
  return name == "default" || name == "empty";
}

void convert_template(Conversion& c) {
  const std::string name = c.text("template");
  if (name.empty()) return;
  if (c.text("stage") == "pt") return c.drop("template", WhyDropped::not_needed, "texts have no chat template");
  const std::string ours = chat_template_of(name);
  if (!ours.empty()) return c.set("data.chat_template", ours, "template");
  c.drop("template", WhyDropped::unsupported,
         cat("a template named ", name, has_no_format(name) ? ", which is for base models" : "",
             "; the tokenizer's own is used, or set data.chat_template to a name or a file"));
}

// Layers from the end of the model are frozen, whose number the file does not have.
bool freezes(Conversion& c, std::string_view kind) {
  if (c.text(kind) != "freeze") return false;
  c.problem(kind, {.what = "frozen layers are not converted",
                   .expected = "full or lora",
                   .got = "freeze",
                   .hint = "full, and then train.freeze in the recipe"});
  return true;
}

void convert_shared(Conversion& c) {
  convert_model(c, "model_revision", "train_from_scratch");
  if (c.is_on("disable_gradient_checkpointing")) {
    c.set("memory.activation_checkpointing", "none", "disable_gradient_checkpointing");
  } else if (c.has("gradient_checkpointing") || c.has("enable_activation_checkpointing")) {
    convert_checkpointing(c, {"gradient_checkpointing", "enable_activation_checkpointing"});
  } else {
    c.set("memory.activation_checkpointing", "full", "disable_gradient_checkpointing",
          "LLaMA-Factory's default; auto is often faster: it recomputes only what does not fit");
  }
  convert_deepspeed(c, "deepspeed", "model state is sharded over all ranks (ZeRO-3), and nothing is offloaded");
  convert_llama_factory_data(c);
  convert_template(c);
}

void convert_factory(Conversion& c) {
  if (freezes(c, "finetuning_type")) return;
  convert_shared(c);
  const bool lora = c.text("finetuning_type") != "full";  // the default is lora
  convert_adapter(c, {.kind = "finetuning_type",
                      .trains = lora,
                      .four_bits = c.text("quantization_bit") == "4",
                      .rank = "lora_rank",
                      .alpha = "lora_alpha",
                      .dropout = "lora_dropout",
                      .targets = "lora_target",
                      .all_linears = "",
                      .modules_to_save = "additional_target",
                      .rslora = "use_rslora",
                      .dora = "use_dora"});
  if (c.is_on("quantization_bit") && c.text("quantization_bit") != "4") {
    c.remark("frozen weights stay in bf16: of quantized ones there are those of 4 bits, adapter.kind: qlora");
  }
  if (c.has("double_quantization") && c.recipe().adapter.kind == AdapterKind::qlora) {
    c.set("adapter.double_quantization", *c.find("double_quantization"), "double_quantization");
  }
  convert_lora_plus(c, "loraplus_lr_ratio");
}

void convert_factory_v1(Conversion& c) {
  if (freezes(c, "peft_config.name")) return;
  convert_shared(c);
  convert_adapter(c, {.kind = "peft_config.name",
                      .trains = c.has("peft_config.name"),
                      .four_bits = c.is_on("quant_config.name"),
                      .rank = "peft_config.r",
                      .alpha = "peft_config.lora_alpha",
                      .dropout = "peft_config.lora_dropout",
                      .targets = "peft_config.target_modules",
                      .all_linears = "",
                      .modules_to_save = "additional_target",
                      .rslora = "peft_config.use_rslora",
                      .dora = "peft_config.use_dora"});
}

constexpr Trainer kFactory{
    .id = OtherTrainer::llama_factory,
    .keys = {.model = "model_name_or_path",
             .micro_batch = "per_device_train_batch_size",
             .epochs = "num_train_epochs",
             .steps = "max_steps",
             .schedule = "lr_scheduler_type",
             .optimizer = "optim",
             .sequence_length = "cutoff_len",
             .validation_size = "val_size",
             .micro_batch_default = 8,
             .epochs_default = "3",
             .learning_rate_default = "5e-5",
             .schedule_default = "linear",
             .sequence_length_default = "2048",
             .save_steps_default = "500",
             .output_default = "saves"},
    .rules = kFactoryRules,
    .data_rules = {},
    .data_lists = {},
    .stops = kFactoryStops,
    .convert = convert_factory,
};

constexpr Trainer kFactoryV1 = [] {
  Trainer trainer = kFactory;
  trainer.keys.model = "model";
  trainer.keys.micro_batch = "micro_batch_size";
  trainer.keys.schedule = "lr_scheduler_config.name";
  trainer.keys.optimizer = "optim_config.name";
  trainer.keys.micro_batch_default = 1;
  trainer.keys.learning_rate_default = "1e-4";
  trainer.keys.schedule_default = "constant";
  trainer.keys.weight_decay_default = "0.01";
  trainer.keys.save_steps_default = nullptr;
  trainer.convert = convert_factory_v1;
  return trainer;
}();

}  // namespace

const Trainer& llama_factory() {
  return kFactory;
}

const Trainer& llama_factory_v1() {
  return kFactoryV1;
}

}  // namespace hawser::convert

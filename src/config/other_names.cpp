#include "config/other_names.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "config/schema.h"

namespace hawser {
namespace {

constexpr auto kOtherNames = std::to_array<OtherNames>({
    {"name", "run_name experiment_name"},
    {"model.path",
     "model.name base_model model_name_or_path model_id pretrained_model_name_or_path hf_assets_path checkpoint_dir "
     "checkpointer.checkpoint_dir hf_checkpoint_path load"},
    {"model.config", "base_model_config config_name"},

    {"data.train", "datasets dataset train_file data_files dataset_name dataset.source dataset_path data_path"},
    {"data.validation", "test_datasets eval_dataset validation_file eval_file dataset_val valid_data_path"},
    {"data.train (an entry is {path, weight} or {path, repeat})",
     "data.weights data.weight data.mixture data.sampling interleave_probs mix_strategy data_weights blend "
     "dataset_probs data_blend data_mix"},
    {"data.columns",
     "field_messages message_property_mappings dataset_text_field text_column column_mapping message_field_role "
     "message_field_content"},
    {"data.roles", "roles role_mapping"},
    {"data.template_date", "date_string"},
    {"data.tokenizer",
     "tokenizer tokenizer.path tokenizer_config tokenizer_name tokenizer_name_or_path tokenizer_model tokenizer_path "
     "processing_class"},
    {"data.chat_template", "chat_template_path chat_template_jinja tokenizer.prompt_template template conversation"},
    {"data.prepared", "dataset_prepared_path tokenized_path data_cache_path"},
    {"data.sequence_length",
     "seq seq_len sequence_len seq_length max_seq_length max_seq_len max_length block_size cutoff_len "
     "model_max_length tokenizer.max_seq_len decoder_seq_length max_position_embeddings"},
    {"data.pack", "sample_packing packing dataset.packed packed neat_packing"},
    {"data.long_documents", "excess_length_strategy drop_long_sequences truncation truncation_mode"},
    {"data.validation_fraction", "val_set_size val_size validation_split_percentage test_size split"},
    {"data.deduplicate", "dataset_exact_deduplication"},

    {"parallel.hybrid_shard_degree (0: FSDP, ZeRO-3; 1: DDP; else HSDP)",
     "fsdp fsdp_config fsdp_version fsdp_transformer_layer_cls_to_wrap deepspeed dp_shard_size data_parallel_shard_dim "
     "data_parallel_shard_degree data_parallel_replicate_dim data_parallel_replicate_degree dp_replicate_size "
     "use_torch_fsdp2 ddp"},
    {"parallel.sharding (parameters: ZeRO-3; optimizer: ZeRO-1, ZeRO-2)",
     "zero_optimization zero_stage sharding_strategy data_parallel_sharding_strategy use_distributed_optimizer "
     "reshard_after_forward fsdp_reshard_after_forward"},
    {"parallel.context_parallel_degree",
     "context_parallel_size context_parallel_dim cp_size cp sequence_parallel_degree sequence_parallel_size "
     "ulysses_sequence_parallel_size"},
    {"parallel.context_comm", "cp_comm_type context_parallel_rotate_method ring_attn_func"},
    {"parallel.context_all_to_all_degree (of context_comm: hybrid)",
     "ulysses_degree ulysses_size hierarchical_context_parallel_sizes"},
    {"parallel.context_comm (ring, or hybrid)", "ring_degree ring_attention_size"},
    {"parallel.tensor_parallel_degree",
     "tensor_parallel_size tensor_parallel_dim tensor_model_parallel_size tp_size tp_degree autotp_size "
     "tensor_parallel "
     "tensor_parallel.autotp_size tp tensor_parallel_dims"},
    {"parallel.tensor_parallel_degree (its exchanges overlap with GEMMs, and the vocabulary is padded)",
     "enable_async_tensor_parallel async_tensor_parallel tp_comm_overlap make_vocab_size_divisible_by"},
    {"parallel.tensor_parallel_modules (without vocabulary, the loss is not split)",
     "disable_loss_parallel enable_loss_parallel loss_parallel"},
    {"parallel.sequence_parallel (true by default)",
     "sequence_parallel_enabled enable_sequence_parallel use_sequence_parallel sp_enabled"},
    {"parallel.tensor_parallel_modules", "tp_plan parallelize_plan tensor_parallel_plan optimize_for_tp"},
    {"parallel.pipeline_parallel_degree",
     "pipeline_model_parallel_size pipeline_parallel_size pipeline_parallel_dim pp_size pp pp_degree "
     "pipeline_parallel"},
    {"parallel.pipeline_schedule", "pipeline_parallel_schedule pp_schedule pipeline pipeline_type"},
    {"parallel.pipeline_virtual_stages (of pipeline_schedule: interleaved)",
     "virtual_pipeline_model_parallel_size num_virtual_stages_per_pipeline_rank num_model_chunks"},
    {"parallel.pipeline_virtual_stages (blocks / stages / the layers of a virtual stage)",
     "num_layers_per_virtual_pipeline_stage"},
    {"parallel.pipeline_partition",
     "pipeline_model_parallel_layout pipeline_parallel_layers_per_stage pipeline_parallel_split_points "
     "decoder_first_pipeline_num_layers decoder_last_pipeline_num_layers account_for_embedding_in_pipeline_split "
     "account_for_loss_in_pipeline_split module_fqns_per_model_part auto_partition default_partition "
     "partition_method"},
    {"parallel.pipeline_optimize", "optimize"},
    {"parallel.expert_parallel_degree", "expert_model_parallel_size ep_size"},

    {"memory.activation_checkpointing",
     "gradient_checkpointing gradient_checkpointing_kwargs enable_activation_checkpointing activation_checkpoint "
     "activation_checkpoint.* recompute_granularity recompute_method recompute_num_layers recompute_activations"},
    {"memory.mlp_tile_rows", "tiled_mlp tiled_mlp_num_shards mlp_tile_size chunked_mlp mlp_chunks"},
    {"memory.activation_offload",
     "activation_offloading enable_activation_offloading cpu_offloading fine_grained_activation_offloading "
     "cpu_checkpointing sm_activation_offloading offload_activations"},
    {"memory.activation_offload_window",
     "activation_loading_horizon sm_activation_loading_horizon activation_offload_layers cpu_offloading_num_layers"},
    {"memory.optimizer_offload",
     "offload_optimizer optimizer_cpu_offload fsdp_cpu_offload cpu_offload fsdp_offload_params offload_params"},
    {"memory.weight_offload", "offload_param offload_parameters cpu_offload_param param_offload layer_offloading"},
    {"memory.host_capacity", "host_memory cpu_memory pinned_memory"},
    {"precision.compute", "bf16 fp16 tf32 float16 float32 bfloat16 fp8 half mixed_precision dtype torch_dtype"},

    {"train.steps",
     "max_steps train_iters train_samples max_steps_per_epoch training.steps total_steps max_train_steps"},
    {"train.epochs", "num_train_epochs num_epochs epochs max_epochs"},
    {"train.global_batch_size (micro_batch_size x data-parallel ranks x accumulation steps)",
     "gradient_accumulation_steps train_batch_size total_batch_size"},
    {"train.micro_batch_size",
     "batch_size per_device_train_batch_size per_device_eval_batch_size train_micro_batch_size_per_gpu "
     "eval_batch_size local_batch_size"},
    {"train.seed", "data_seed random_seed"},
    {"train.early_stopping.patience",
     "early_stopping_patience early_stopping_steps early_stopping patience train.patience early_stop"},
    {"train.early_stopping.metric", "metric_for_best_model early_stopping_metric train.metric"},
    {"train.evaluate_every",
     "eval_steps eval_interval evals_per_epoch eval_strategy evaluation_strategy do_eval run_val_every_n_steps "
     "validation.freq val_check_interval"},
    {"train.evaluate_batches", "eval_iters max_eval_samples eval_max_batches validation.steps"},
    {"train.log_every", "logging_steps log_every_n_steps log_interval log_freq logging_strategy"},
    {"train.freeze (it names what does not train)",
     "freeze unfrozen_parameters freeze_layers freeze_trainable_layers freeze_trainable_modules freeze_extra_modules "
     "freeze_parameters frozen_parameters frozen_modules freeze_embeddings"},

    {"moe.aux_loss_coefficient", "router_aux_loss_coef moe_aux_loss_coeff aux_loss_coef"},
    {"moe.z_loss_coefficient", "moe_z_loss_coeff router_z_loss_coef z_loss_coef"},

    {"optimizer.learning_rate", "lr peak_lr max_lr base_lr"},
    {"optimizer.schedule",
     "lr_scheduler lr_scheduler_type scheduler lr_decay_style lr_scheduler.decay_type lr_scheduler._component_"},
    {"optimizer.warmup_steps",
     "warmup num_warmup_steps lr_warmup_iters lr_warmup_samples warmup_iters lr_scheduler.num_warmup_steps"},
    {"optimizer.warmup_ratio", "warmup_ratio lr_warmup_fraction warmup_fraction warmup_proportion"},
    {"optimizer.decay_steps",
     "num_decay_steps lr_wsd_decay_iters lr_wsd_decay_samples lr_scheduler.decay_ratio decay_fraction wsd_decay_steps"},
    {"optimizer.decay_type", "lr_wsd_decay_style wsd_decay_type"},
    {"optimizer.power", "poly_power lr_scheduler_power"},
    {"optimizer.minimum_learning_rate",
     "min_lr cosine_min_lr_ratio lr_scheduler_kwargs lr_scheduler.min_lr_factor min_lr_ratio lr_min lr_end"},
    {"optimizer.beta1", "adam_beta1"},
    {"optimizer.beta2", "adam_beta2"},
    {"optimizer.epsilon", "adam_epsilon adam_eps eps"},
    {"optimizer.weight_decay", "wd adam_weight_decay"},
    {"optimizer.gradient_clip",
     "max_grad_norm clip_grad clip_grad_norm gradient_clipping gradient_clip_val grad_clip max_norm"},
    {"optimizer.groups (an entry is {match, learning_rate or learning_rate_factor, weight_decay})",
     "param_groups lr_groups embedding_lr embedding_lr_scale embedding_learning_rate loraplus_lr_ratio "
     "loraplus_lr_embedding decoupled_lr decoupled_min_lr"},
    {"optimizer.kind", "optim optimizer_type optimizer.type optimizer.name optimizer._component_ optimizer.optimizer"},
    {"optimizer.momentum", "sgd_momentum optimizer.mu"},
    {"optimizer.nesterov", "use_nesterov muon_use_nesterov"},
    {"optimizer.ema", "ema_decay use_ema model_ema ema.decay ema.enable optimizer.ema_decay"},
    {"optimizer.state_dtype (bf16: half of the memory)",
     "exp_avg_dtype exp_avg_sq_dtype optimizer.state_bits optim_bits"},
    {"optimizer.master_dtype (bf16: no second copy)",
     "main_params_dtype use_precision_aware_optimizer pure_bf16 master_weights use_master_weights"},
    {"removing it: the keys of optimizer have its settings", "optim_args"},

    {"checkpoint.every_steps",
     "save_steps saves_per_epoch save_interval save_strategy save_every_n_steps checkpoint.interval "
     "save_every_epoch checkpoint.enable save_checkpoint_every"},
    {"checkpoint.keep_last",
     "save_total_limit keep_last_n_checkpoints checkpoint.keep_latest_k max_checkpoints keep_n_checkpoints"},
    {"checkpoint.asynchronous", "async_save checkpoint.async_mode enable_async_checkpointing async_checkpoint"},
    {"hawser fit RECIPE --resume", "resume_from_checkpoint auto_resume_from_checkpoints resume"},
    {"output", "output_dir save save_dir dump_folder job.dump_folder logging_dir log_dir"},

    {"run.ranks", "nproc_per_node num_processes world_size num_gpus n_gpu devices"},
    {"run.threads", "omp_num_threads num_threads"},
    {"run.device", "use_cpu no_cuda use_cuda device_map"},
    {"run.collective_timeout_s",
     "ddp_timeout distributed_timeout_minutes init_timeout_seconds train_timeout_seconds nccl_timeout"},
    {"run.deterministic", "full_determinism deterministic_mode cudnn_deterministic_mode"},
    {"report.tensorboard", "use_tensorboard tensorboard_dir enable_tensorboard report_to metric_logger"},
    {"report.mlflow", "mlflow_tracking_uri use_mlflow mlflow_run_name hf_mlflow_log_artifacts"},
    {"report.mlflow_experiment", "mlflow_experiment_name"},
    {"report.wandb", "wandb wandb.* wandb_entity wandb_run_id wandb_mode wandb_watch enable_wandb use_wandb"},
    {"report.wandb_project", "wandb_project"},

    {"adapter.kind (lora)", "lora peft use_peft peft_config finetuning_type peft.peft_type peft_type"},
    {"adapter.rank",
     "lora_r lora_rank lora.r lora.rank peft.dim peft.r lora_config.r model.lora_rank adapter.r lora_dim"},
    {"adapter.alpha", "lora_alpha lora.alpha lora.lora_alpha peft.alpha model.lora_alpha"},
    {"adapter.dropout", "lora_dropout lora.dropout lora.lora_dropout peft.dropout model.lora_dropout"},
    {"adapter.targets",
     "lora_target_modules lora_target_linear lora_target target_modules lora.target_modules peft.target_modules "
     "lora_attn_modules model.lora_attn_modules adapter.target_modules"},
    {"adapter.modules_to_save", "lora_modules_to_save modules_to_save additional_target lora.modules_to_save"},
    {"adapter.rslora", "use_rslora peft_use_rslora lora.use_rslora rslora_scaling"},
    {"adapter.dora", "use_dora peft_use_dora lora.use_dora model.use_dora"},
    {"removing it: quantized weights are not supported yet",
     "load_in_4bit load_in_8bit load_in_kbit quantization quantization_bit bnb_4bit_quant_type quantize_base"},
    {"removing it: the data decide: a text is learned completely, a conversation by its answers",
     "train.objective train.loss train.task objective task training_type stage"},
    {"removing it: preference training is not supported yet",
     "dpo rlhf rl beta dpo_beta pref_loss rl_beta simpo_gamma"},
    {"removing it, and starting hawser fit on every host with srun or mpirun (docs/cluster.md)",
     "run.nodes nodes num_nodes nnodes num_machines"},
    {"removing it: the loss is over every token, of conversations over the answers",
     "train_on_inputs train_on_input completion_only_loss assistant_only_loss train_on_prompt roles_to_train "
     "dataset.train_on_input"},
    {"removing it: every sequence is packed to its full length",
     "pad_to_sequence_len pad_to_max_length group_by_length "
     "multipack_real_batches eval_sample_packing padding_side dataloader_drop_last"},
    {"removing it: attention is always fused",
     "flash_attention flash_attn flash_attn_2 attn_implementation xformers_attention sdp_attention use_flash_attn "
     "attention_backend attn_type"},
    {"removing it: nothing is compiled at run time",
     "torch_compile torch_compile_backend compile compile.* enable_compile liger_kernel use_liger_kernel plugins"},
    {"removing it: text is read by its own threads",
     "dataloader_num_workers dataset_processes num_workers preprocessing_num_workers dataset_num_proc "
     "dataloader_pin_memory dataloader_prefetch_factor"},
});

bool listed(std::string_view names, std::string_view name) {
  while (!names.empty()) {
    const std::size_t end = std::min(names.find(' '), names.size());
    if (names.substr(0, end) == name) return true;
    names.remove_prefix(std::min(end + 1, names.size()));
  }
  return false;
}

std::string hint_of(std::string_view name) {
  const auto found = std::ranges::find_if(kOtherNames, [&](const OtherNames& row) { return listed(row.names, name); });
  return found == kOtherNames.end() ? "" : std::string(found->hint);
}

}  // namespace

std::span<const OtherNames> other_names() {
  return kOtherNames;
}

std::string hint_for_other_name(std::string_view name) {
  std::string given(name.substr(std::min(name.find_first_not_of('-'), name.size())));
  for (char& c : given) c = c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (std::string hint = hint_of(given); !hint.empty()) return hint;
  const auto dot = given.find('.');
  if (dot == std::string::npos) return "";
  if (std::string hint = hint_of(given.substr(0, dot) + ".*"); !hint.empty()) return hint;
  const std::string leaf = given.substr(given.rfind('.') + 1);
  const bool own = std::ranges::any_of(schema(), [&](const Key& key) { return key.leaf() == leaf; });
  return own ? "" : hint_of(leaf);
}

}  // namespace hawser

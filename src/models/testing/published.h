// For tests: the config.json of published models of each family, and their published numbers of parameters.
#pragma once

#include <cstdint>

namespace hawser::models::testing {

struct Published {
  const char* name;
  std::int64_t parameters;
  const char* config;
};

// Values of the config.json on the Hugging Face Hub; keys that only name tokens and versions are left out.
inline const Published kPublished[] = {
    {"Mistral-7B-v0.3", 7'248'023'552,
     R"({"architectures": ["MistralForCausalLM"], "attention_dropout": 0.0, "hidden_act": "silu", "hidden_size": 4096,
      "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 32768,
      "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
      "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "sliding_window": null, "tie_word_embeddings": false,
      "torch_dtype": "bfloat16", "use_cache": true, "vocab_size": 32768})"},
    {"Mixtral-8x7B-v0.1", 46'702'792'704,
     R"({"architectures": ["MixtralForCausalLM"], "attention_dropout": 0.0, "hidden_act": "silu",
      "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 32768,
      "model_type": "mixtral", "num_attention_heads": 32, "num_experts_per_tok": 2, "num_hidden_layers": 32,
      "num_key_value_heads": 8, "num_local_experts": 8, "output_router_logits": false, "rms_norm_eps": 1e-05,
      "rope_theta": 1000000.0, "router_aux_loss_coef": 0.02, "sliding_window": null, "tie_word_embeddings": false,
      "torch_dtype": "bfloat16", "use_cache": true, "vocab_size": 32000})"},
    {"Qwen2.5-7B", 7'615'616'512,
     R"({"architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "hidden_act": "silu", "hidden_size": 3584,
      "initializer_range": 0.02, "intermediate_size": 18944, "max_position_embeddings": 131072,
      "max_window_layers": 28, "model_type": "qwen2", "num_attention_heads": 28, "num_hidden_layers": 28,
      "num_key_value_heads": 4, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 131072,
      "tie_word_embeddings": false, "torch_dtype": "bfloat16", "use_cache": true, "use_mrope": false,
      "use_sliding_window": false, "vocab_size": 152064})"},
    {"Qwen3-8B", 8'190'735'360,
     R"({"architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "head_dim": 128,
      "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 12288,
      "max_position_embeddings": 40960, "max_window_layers": 36, "model_type": "qwen3", "num_attention_heads": 32,
      "num_hidden_layers": 36, "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": null,
      "rope_theta": 1000000, "sliding_window": null, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
      "use_cache": true, "use_sliding_window": false, "vocab_size": 151936})"},
    {"Qwen3-30B-A3B", 30'532'122'624,
     R"({"architectures": ["Qwen3MoeForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
      "decoder_sparse_step": 1, "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048,
      "initializer_range": 0.02, "intermediate_size": 6144, "max_position_embeddings": 40960,
      "max_window_layers": 48, "mlp_only_layers": [], "model_type": "qwen3_moe", "moe_intermediate_size": 768,
      "norm_topk_prob": true, "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8,
      "num_hidden_layers": 48, "num_key_value_heads": 4, "output_router_logits": false, "rms_norm_eps": 1e-06,
      "rope_scaling": null, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001, "sliding_window": null,
      "tie_word_embeddings": false, "torch_dtype": "bfloat16", "use_cache": true, "use_sliding_window": false,
      "vocab_size": 151936})"},
    {"gemma-3-1b", 999'885'952,
     R"({"architectures": ["Gemma3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
      "attn_logit_softcapping": null, "cache_implementation": "hybrid", "final_logit_softcapping": null,
      "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 1152, "initializer_range": 0.02,
      "intermediate_size": 6912, "max_position_embeddings": 32768, "model_type": "gemma3_text",
      "num_attention_heads": 4, "num_hidden_layers": 26, "num_key_value_heads": 1, "query_pre_attn_scalar": 256,
      "rms_norm_eps": 1e-06, "rope_local_base_freq": 10000, "rope_scaling": null, "rope_theta": 1000000,
      "sliding_window": 512, "sliding_window_pattern": 6, "torch_dtype": "bfloat16", "use_cache": true,
      "vocab_size": 262144})"},
    {"gemma-3-270m", 268'098'176,
     R"({"_sliding_window_pattern": 6, "architectures": ["Gemma3ForCausalLM"], "attention_bias": false,
      "attention_dropout": 0.0, "attn_logit_softcapping": null, "final_logit_softcapping": null, "head_dim": 256,
      "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 640, "initializer_range": 0.02,
      "intermediate_size": 2048, "layer_types": [
       "sliding_attention", "sliding_attention", "sliding_attention", "sliding_attention", "sliding_attention",
       "full_attention", "sliding_attention", "sliding_attention", "sliding_attention", "sliding_attention",
       "sliding_attention", "full_attention", "sliding_attention", "sliding_attention", "sliding_attention",
       "sliding_attention", "sliding_attention", "full_attention"],
      "max_position_embeddings": 32768, "model_type": "gemma3_text", "num_attention_heads": 4,
      "num_hidden_layers": 18, "num_key_value_heads": 1, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06,
      "rope_local_base_freq": 10000.0, "rope_scaling": null, "rope_theta": 1000000.0, "sliding_window": 512,
      "torch_dtype": "bfloat16", "use_bidirectional_attention": false, "use_cache": true, "vocab_size": 262144})"},
    {"pythia-6.9b", 6'857'302'016,
     R"({"architectures": ["GPTNeoXForCausalLM"], "hidden_act": "gelu", "hidden_size": 4096,
      "initializer_range": 0.02, "intermediate_size": 16384, "layer_norm_eps": 1e-05,
      "max_position_embeddings": 2048, "model_type": "gpt_neox", "num_attention_heads": 32,
      "num_hidden_layers": 32, "rotary_emb_base": 10000, "rotary_pct": 0.25, "tie_word_embeddings": false,
      "torch_dtype": "float16", "use_cache": true, "use_parallel_residual": true, "vocab_size": 50432})"},
};

}  // namespace hawser::models::testing

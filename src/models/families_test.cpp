#include <nlohmann/json.hpp>

#include "models/testing/model_files.h"

namespace hawser::models {
namespace families_test {

using Json = nlohmann::ordered_json;

const Json kPlain = Json::parse(R"({
  "model_type": "llama", "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
  "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_act": "silu", "max_position_embeddings": 128,
  "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "rope_scaling": null, "tie_word_embeddings": false})");

ModelDescription read(const Json& json, Problems& problems) {
  const TemporaryFolder folder;
  return read_description(folder.write("config.json", json.dump()), problems);
}

// kPlain with the keys of `patch`; null removes a key.
Json patched(const std::string& patch) {
  Json json = kPlain;
  json.merge_patch(Json::parse(patch));
  return json;
}

TEST(Families, ReadEveryGoldenFolder) {
  for (const std::string& name : golden_names()) {
    SCOPED_TRACE(name);
    const auto model = load_model(golden(name));
    const Json json = Json::parse(read_file(golden(name) + "/config.json"));
    const ModelDescription& d = model->description();
    EXPECT_EQ(d.family, "llama");
    EXPECT_EQ(d.embedding.vocabulary, json["vocab_size"]);
    EXPECT_EQ(d.embedding.width, json["hidden_size"]);
    EXPECT_EQ(d.blocks.size(), json["num_hidden_layers"]);
    EXPECT_EQ(d.blocks[0].attention.kv_heads, json["num_key_value_heads"]);
    EXPECT_EQ(d.blocks[0].attention.qkv_bias, json["attention_bias"]);
    EXPECT_EQ(d.blocks[0].mlp.bias, json["mlp_bias"]);
    EXPECT_EQ(d.blocks[0].mlp.norm_config.epsilon, json["rms_norm_eps"]);
    EXPECT_EQ(d.head.tied, json["tie_word_embeddings"]);
    EXPECT_EQ(d.max_position, 128);
    EXPECT_EQ(d.ropes.front().head_dim, d.blocks[0].attention.head_dim);
  }
}

// transformers reads both: a folder of LlamaModel, and one of LlamaForCausalLM.
TEST(Families, TensorsHaveTheNamesOfTheirFiles) {
  const auto names = [](const TensorNames* of) {
    Problems problems;
    const ModelDescription description = read_description(golden("tied"), problems, of);
    EXPECT_EQ(problems.lines(), "");
    return std::vector<std::string>{description.embedding.table, description.head.norm, description.head.output,
                                    description.blocks.back().mlp.up};
  };
  const TensorNames with({"model.embed_tokens.weight"}), without({"embed_tokens.weight"}), other({"wte.weight"});
  const std::vector<std::string> usual = {"model.embed_tokens", "model.norm", "lm_head", "model.layers.1.mlp.up_proj"};
  EXPECT_EQ(names(nullptr), usual);
  EXPECT_EQ(names(&with), usual);
  EXPECT_EQ(names(&other), usual);
  EXPECT_EQ(names(&without), (std::vector<std::string>{"embed_tokens", "norm", "lm_head", "layers.1.mlp.up_proj"}));
}

TEST(Families, ReadRopeInBothStyles) {
  const auto classic = load_model(golden("rope_llama3")), recent = load_model(golden("rope_parameters"));
  for (const Model* model : {classic.get(), recent.get()}) {
    const ops::RopeConfig& rope = model->description().ropes.front();
    EXPECT_EQ(rope.kind, ops::RopeKind::llama3);
    EXPECT_EQ(rope.theta, 10000.0);
    EXPECT_EQ(rope.factor, 8.0);
    EXPECT_EQ(rope.low_freq_factor, 1.0);
    EXPECT_EQ(rope.high_freq_factor, 4.0);
    EXPECT_EQ(rope.original_max_position, 64);
  }
  const auto linear = load_model(golden("rope_linear"));
  EXPECT_EQ(linear->description().ropes.front().kind, ops::RopeKind::linear);
  EXPECT_EQ(linear->description().ropes.front().factor, 3.0);
  EXPECT_EQ(load_model(golden("rope_theta"))->description().ropes.front().theta, 500000.0);

  Problems problems;
  // An empty rope_scaling counts as none; rope_scaling takes precedence over rope_parameters, the inner theta over the
  // outer.
  EXPECT_EQ(
      read(patched(R"({"rope_scaling": {}, "rope_parameters": {"rope_theta": 7.0}})"), problems).ropes.front().theta,
      7.0);
  const ops::RopeConfig both = read(patched(R"({"rope_scaling": {"type": "linear", "factor": 2, "rope_type": "default"},
                       "rope_parameters": {"rope_type": "linear", "factor": 9, "rope_theta": 7.0}})"),
                                    problems)
                                   .ropes.front();
  EXPECT_EQ(both.kind, ops::RopeKind::standard);
  EXPECT_EQ(both.theta, 10000.0);
  EXPECT_EQ(problems.lines(), "");
}

// Shapes of all parameters are equal in each of these; the computed function is not.
TEST(Families, ListWhatADescriptionComputesDifferently) {
  const auto changes = [](const Json& before, const Json& now) {
    Problems problems;
    const std::string out = description_changes(read(before, problems), read(now, problems));
    EXPECT_EQ(problems.lines(), "");
    return out;
  };
  EXPECT_EQ(changes(kPlain, kPlain), "");
  EXPECT_EQ(changes(kPlain, patched(R"({"num_attention_heads": 2, "num_key_value_heads": 1})")),
            "num_attention_heads was 4 and is 2, num_key_value_heads was 2 and is 1, head_dim was 8 and is 16");
  EXPECT_EQ(changes(kPlain, patched(R"({"rms_norm_eps": 1e-6})")), "rms_norm_eps was 1e-05 and is 1e-06");
  EXPECT_EQ(changes(kPlain, patched(R"({"rope_theta": 500000.0})")), "rope_theta was 10000.0 and is 500000.0");
  const Json stretched = patched(R"({"rope_scaling": {"rope_type": "linear", "factor": 2.0}})");
  EXPECT_NE(changes(kPlain, stretched).find("rope_scaling was null and is {"), std::string::npos);
  EXPECT_EQ(changes(stretched, patched(R"({"rope_scaling": {"rope_type": "linear", "factor": 4.0}})")),
            "rope_scaling.factor was 2.0 and is 4.0");
  EXPECT_EQ(changes(kPlain, patched(R"({"tie_word_embeddings": true})")), "tie_word_embeddings was false and is true");
  // The same model in the style of transformers 5, defaults written out, for longer sequences.
  EXPECT_EQ(changes(kPlain, patched(R"({"rope_theta": null, "rope_scaling": null, "max_position_embeddings": 4096,
                       "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, "head_dim": 8})")),
            "");
}

TEST(Families, AbsentAndNullKeysHaveTheDefaultsOfTransformers) {
  Problems problems;
  const ModelDescription d = read(patched(R"({"num_key_value_heads": null, "hidden_act": null, "rms_norm_eps": null,
      "max_position_embeddings": null, "rope_theta": null, "rope_scaling": null, "tie_word_embeddings": null})"),
                                  problems);
  EXPECT_EQ(problems.lines(), "");
  EXPECT_EQ(d.blocks[0].attention.kv_heads, 4);
  EXPECT_EQ(d.blocks[0].attention.head_dim, 8);
  EXPECT_EQ(d.blocks[0].attention.norm_config.epsilon, 1e-6);
  EXPECT_EQ(d.blocks[0].attention.initial_std, 0.02);
  EXPECT_EQ(d.max_position, 2048);
  EXPECT_EQ(d.ropes.front().theta, 10000.0);
  EXPECT_FALSE(d.head.tied);
  read(patched(R"({"pretraining_tp": 2, "attention_dropout": 0, "head_dim": 6, "is_causal": true, "unheard_of": {}})"),
       problems);
  EXPECT_EQ(problems.lines(), "");
}

TEST(Families, EachErrorIsOneLineWithItsKey) {
  const struct {
    const char* patch;
    const char* line;  // after "config.json: "
  } kCases[] = {
      {R"({"model_type": "gpt2"})",
       "model family not supported (expected llama, mistral, mixtral, qwen2, qwen3, qwen3_moe, gemma3_text, gpt_neox, "
       "got 'gpt2') at model_type"},
      {R"({"model_type": null})",
       "model family not supported (expected llama, mistral, mixtral, qwen2, qwen3, qwen3_moe, gemma3_text, gpt_neox, "
       "got none) at model_type"},
      {R"({"model_type": ["llama"]})",
       "model family not supported (expected llama, mistral, mixtral, qwen2, qwen3, qwen3_moe, gemma3_text, gpt_neox, "
       "got a list) at model_type"},
      {R"({"hidden_size": null})", "missing key (expected a whole number from 1 to 1048576) at hidden_size"},
      {R"({"hidden_size": "32"})",
       "invalid value (expected a whole number from 1 to 1048576, got '32') at hidden_size"},
      {R"({"vocab_size": 0})", "invalid value (expected a whole number from 1 to 2147483647, got 0) at vocab_size"},
      {R"({"vocab_size": 99999999999})",
       "invalid value (expected a whole number from 1 to 2147483647, got 99999999999) at vocab_size"},
      {R"({"intermediate_size": 1.5})",
       "invalid value (expected a whole number from 1 to 16777216, got 1.5) at intermediate_size"},
      {R"({"num_hidden_layers": -1})",
       "invalid value (expected a whole number from 1 to 10000, got -1) at num_hidden_layers"},
      {R"({"num_key_value_heads": 3})",
       "heads do not divide (expected a divisor of num_attention_heads 4, got 3) at num_key_value_heads"},
      {R"({"num_attention_heads": 6})",
       "heads do not divide (expected a divisor of hidden_size 32, got 6) at num_attention_heads; try head_dim: the "
       "size "
       "of one head"},
      {R"({"head_dim": 7})",
       "invalid head size (expected an even number up to 4096: RoPE rotates pairs, got 7) at head_dim"},
      {R"({"num_attention_heads": 32})",
       "invalid head size (expected an even number up to 4096: RoPE rotates pairs, got 1) at "
       "num_attention_heads"},
      {R"({"hidden_size": 1048576, "intermediate_size": 16777216, "num_hidden_layers": 10000, "head_dim": 128})",
       "too many parameters (expected at most 2.81475e+14, got 5.27782e+17) at num_hidden_layers"},
      {R"({"hidden_act": "gelu"})", "not supported (expected silu or swish, got 'gelu') at hidden_act"},
      {R"({"rms_norm_eps": 0})", "invalid value (expected a number above 0, got 0) at rms_norm_eps"},
      {R"({"rope_theta": "big"})", "invalid value (expected a number above 0, got 'big') at rope_theta"},
      {R"({"rope_theta": 1e300})", "invalid value (expected a number above 0, got 1e+300) at rope_theta"},
      {R"({"initializer_range": -0.1})",
       "invalid value (expected a number, at least 0, got -0.1) at initializer_range"},
      {R"({"tie_word_embeddings": 1})", "invalid value (expected true or false, got 1) at tie_word_embeddings"},
      {R"({"attention_bias": "no"})", "invalid value (expected true or false, got 'no') at attention_bias"},
      {R"({"mlp_bias": []})", "invalid value (expected true or false, got a list) at mlp_bias"},
      {R"({"is_causal": false})", "not supported (expected true, got false) at is_causal"},
      {R"({"attention_dropout": 0.1})", "not supported (expected 0, got 0.1) at attention_dropout"},
      {R"({"partial_rotary_factor": 0.5})", "not supported (expected 1, got 0.5) at partial_rotary_factor"},
      {R"({"quantization_config": {"bits": 4}})",
       "not supported (expected weights that are not quantised, or in NF4 by bitsandbytes, got other ones) at "
       "quantization_config"},
      {R"({"max_position_embeddings": 0})",
       "invalid value (expected a whole number from 1 to 2147483647, got 0) at max_position_embeddings"},
      {R"({"rope_scaling": "linear"})", "invalid value (expected an object, got 'linear') at rope_scaling"},
      {R"({"rope_scaling": {"rope_type": "longrope", "factor": 4}})",
       "not supported (expected default or linear or llama3 or yarn, got 'longrope') at rope_scaling.rope_type"},
      {R"({"rope_scaling": {"type": "dynamic", "factor": 4}})",
       "not supported (expected default or linear or llama3 or yarn, got 'dynamic') at rope_scaling.type"},
      {R"({"rope_scaling": {"type": "linear"}})", "missing key (expected a number, at least 1) at rope_scaling.factor"},
      {R"({"rope_scaling": {"type": "linear", "factor": 0.5}})",
       "invalid value (expected a number, at least 1, got 0.5) at rope_scaling.factor"},
      {R"({"rope_parameters": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4,
           "original_max_position_embeddings": 64}})",
       "invalid value (expected more than low_freq_factor 4, got 4) at rope_parameters.high_freq_factor"},
      {R"({"rope_parameters": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4}})",
       "missing key (expected a whole number from 1 to 2147483647) at "
       "rope_parameters.original_max_position_embeddings"},
      {R"({"rope_parameters": {"full_attention": {"rope_theta": 7}}})",
       "not supported (expected one set of RoPE parameters, got one for each kind of layer) at rope_parameters"},
  };
  for (const auto& [patch, line] : kCases) {
    Problems problems;
    const ModelDescription description = read(patched(patch), problems);
    ASSERT_EQ(problems.size(), 1u) << patch << "\n" << problems.lines();
    const std::string got = problems.lines();
    EXPECT_EQ(got.substr(got.find("config.json: ") + 13), line);
    EXPECT_TRUE(description.blocks.empty());
  }
}

// transformers takes null for false.
TEST(Families, IsCausalMustBeTrueIfItIsThere) {
  Json config = kPlain;
  config["is_causal"] = nullptr;
  Problems problems;
  read(config, problems);
  EXPECT_NE(problems.lines().find("not supported (expected true, got null) at is_causal"), std::string::npos);
}

TEST(Families, AllErrorsAreReportedAndEarlierProblemsDoNotCount) {
  Problems problems;
  problems.add({.what = "something else"});
  EXPECT_EQ(read(kPlain, problems).blocks.size(), 2u);
  EXPECT_TRUE(read(patched(R"({"hidden_size": 0, "hidden_act": "relu", "rope_theta": 0, "mlp_bias": 3})"), problems)
                  .blocks.empty());
  EXPECT_EQ(problems.size(), 5u) << problems.lines();
}

TEST(Families, FilesThatAreNotConfigs) {
  const TemporaryFolder folder;
  const auto lines = [](const std::string& path) {
    Problems problems;
    read_description(path, problems);
    return problems.lines();
  };
  EXPECT_EQ(lines(folder.path("none")),
            folder.path("none") + ": no such model (expected a Hugging Face folder or a config.json)");
  EXPECT_EQ(lines(folder.path()), folder.path() + ": no config.json in this folder; try a Hugging Face model folder");
  EXPECT_EQ(lines(folder.write("list.json", "[1]")),
            folder.path("list.json") + ": not a model's configuration (expected a JSON object, got a list)");
  EXPECT_NE(lines(folder.write("cut.json", "{\"model_type\": ")), "");
  EXPECT_NE(lines(folder.write("empty.json", "")), "");
  EXPECT_NE(lines(folder.write("twice.json", R"({"hidden_size": 32, "hidden_size": 64})")), "");
}

TEST(Families, SpecialTokens) {
  const TemporaryFolder folder;
  Problems problems;
  const std::string path = folder.write("config.json", R"({"bos_token_id": 1, "eos_token_id": 2})");
  SpecialTokens tokens = read_special_tokens(folder.path(), problems);
  EXPECT_EQ(tokens.begin, 1);
  EXPECT_EQ(tokens.ends, std::vector<std::int64_t>{2});
  folder.write("generation_config.json", R"({"eos_token_id": [7, 8]})");
  tokens = read_special_tokens(path, problems);
  EXPECT_EQ(tokens.begin, 1);
  EXPECT_EQ(tokens.ends, (std::vector<std::int64_t>{7, 8}));
  EXPECT_EQ(tokens.not_applied, std::vector<std::string>());
  folder.write("generation_config.json",
               R"({"repetition_penalty": 1.05, "num_beams": 1, "no_repeat_ngram_size": 0, "suppress_tokens": [],
                   "bad_words_ids": null, "begin_suppress_tokens": [0], "do_sample": true, "temperature": 0.6})");
  EXPECT_EQ(read_special_tokens(path, problems).not_applied,
            (std::vector<std::string>{"repetition_penalty", "begin_suppress_tokens"}));
  // An adapter's file takes the place of the model's.
  tokens = read_special_tokens(path, problems);
  read_special_tokens_of_adapter(folder.path("none"), tokens, problems);
  EXPECT_EQ(tokens.ends, std::vector<std::int64_t>{2});
  folder.write("adapter/generation_config.json", R"({"eos_token_id": [2, 9], "num_beams": 2})");
  read_special_tokens_of_adapter(folder.path("adapter"), tokens, problems);
  EXPECT_EQ(tokens.ends, (std::vector<std::int64_t>{2, 9}));
  EXPECT_EQ(tokens.begin, 1);
  EXPECT_EQ(tokens.not_applied, std::vector<std::string>{"num_beams"});
  EXPECT_EQ(problems.lines(), "");
  folder.write("config.json", R"({"eos_token_id": "</s>"})");
  read_special_tokens(folder.path(), problems);
  EXPECT_EQ(problems.lines(),
            path + ": invalid value (expected a token id, or a list of them, got '</s>') at eos_token_id");
}

TEST(Families, ConfigRoundTrip) {
  for (const std::string& name : golden_names()) {
    SCOPED_TRACE(name);
    const ModelDescription a = load_model(golden(name))->description();
    const TemporaryFolder folder;
    const std::string text = config_json(a, DType::bf16);
    EXPECT_EQ(Json::parse(text)["torch_dtype"], "bfloat16");
    folder.write("config.json", text);
    const ModelDescription b = load_model(folder.path())->description();
    EXPECT_EQ(config_json(b, DType::bf16), text);
    EXPECT_EQ(a.ropes.front().kind, b.ropes.front().kind);
    EXPECT_EQ(ops::rope_frequencies(a.ropes.front()), ops::rope_frequencies(b.ropes.front()));
    EXPECT_EQ(a.blocks[0].attention.norm_config.epsilon, b.blocks[0].attention.norm_config.epsilon);
    EXPECT_EQ(a.blocks[0].attention.output_bias, b.blocks[0].attention.output_bias);
    EXPECT_EQ(a.blocks[0].mlp.inner, b.blocks[0].mlp.inner);
    EXPECT_EQ(a.head.tied, b.head.tied);
  }
}

TEST(Families, OriginalConfigIsKeptExceptTheStoredDtype) {
  const ModelDescription d = load_model(golden("gqa"))->description();
  Json json = Json::parse(config_json(d, DType::bf16, R"({"torch_dtype": "float32", "answer": 42})"));
  EXPECT_EQ(json, Json::parse(R"({"torch_dtype": "bfloat16", "answer": 42})"));
  json = Json::parse(config_json(d, DType::f32, R"({"dtype": "bfloat16", "answer": 42})"));
  EXPECT_EQ(json, Json::parse(R"({"dtype": "float32", "answer": 42})"));
  json = Json::parse(config_json(d, DType::f32, R"({"answer": 42})"));
  EXPECT_EQ(json, Json::parse(R"({"answer": 42, "torch_dtype": "float32"})"));
}

}  // namespace families_test
}  // namespace hawser::models

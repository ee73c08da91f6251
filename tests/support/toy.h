// Small random Llamas and packed sequences of odd lengths, for tests that compare layouts.
#pragma once

#include <memory>

#include "base/philox.h"
#include "batches/batch_loader.h"
#include "batches/labels.h"
#include "models/model.h"
#include "plan/layout.h"

namespace hawser::testing {

struct ToySizes {
  std::int64_t width = 64, heads = 4, kv_heads = 2, head_dim = 16, inner = 176, vocabulary = 256;
  int blocks = 3;
  bool tied = true;
  double initial_std = 0.05;
  bool biases = false;  // attention's in even blocks, the MLP's in odd ones
  std::int64_t max_position = 1 << 20;
};

inline models::ModelDescription llama_description(const ToySizes& s) {
  models::ModelDescription d;
  d.family = "llama";
  d.embedding = {
      .vocabulary = s.vocabulary, .width = s.width, .initial_std = s.initial_std, .table = "model.embed_tokens"};
  for (int b = 0; b < s.blocks; ++b) {
    const std::string p = cat("model.layers.", b, ".");
    const bool even = b % 2 == 0;
    d.blocks.push_back({.attention = {.width = s.width,
                                      .heads = s.heads,
                                      .kv_heads = s.kv_heads,
                                      .head_dim = s.head_dim,
                                      .qkv_bias = s.biases && even,
                                      .output_bias = s.biases && even,
                                      .initial_std = s.initial_std,
                                      .output_std = s.initial_std,
                                      .norm = p + "input_layernorm",
                                      .q = p + "self_attn.q_proj",
                                      .k = p + "self_attn.k_proj",
                                      .v = p + "self_attn.v_proj",
                                      .output = p + "self_attn.o_proj",
                                      .fused = p + "self_attn.qkv_proj"},
                        .mlp = {.width = s.width,
                                .inner = s.inner,
                                .bias = s.biases && !even,
                                .initial_std = s.initial_std,
                                .output_std = s.initial_std,
                                .norm = p + "post_attention_layernorm",
                                .gate = p + "mlp.gate_proj",
                                .up = p + "mlp.up_proj",
                                .down = p + "mlp.down_proj",
                                .fused = p + "mlp.gate_up_proj"}});
  }
  d.head = {.vocabulary = s.vocabulary,
            .width = s.width,
            .tied = s.tied,
            .initial_std = s.initial_std,
            .norm = "model.norm",
            .output = "lm_head"};
  d.ropes = {{.theta = 10000.0, .head_dim = s.head_dim}};
  d.max_position = s.max_position;
  return d;
}

// Small enough for float64 differences, with biases and an odd inner size.
inline models::ModelDescription toy_description(bool tied = true, int blocks = 2) {
  return llama_description({.width = 24,
                            .heads = 4,
                            .kv_heads = 2,
                            .head_dim = 10,
                            .inner = 37,
                            .vocabulary = 67,
                            .blocks = blocks,
                            .tied = tied,
                            .initial_std = 0.3,
                            .biases = true,
                            .max_position = 1024});
}

// The description with experts in place of the MLP of a block.
inline void set_experts(models::ModelDescription& description, int block, std::int64_t experts, std::int64_t top_k) {
  const std::string p = cat("model.layers.", block, ".");
  description.blocks.at(static_cast<std::size_t>(block)).moe =
      nn::MoeConfig{.width = description.embedding.width,
                    .experts = experts,
                    .top_k = top_k,
                    .inner = 13,
                    .initial_std = 0.3,
                    .output_std = 0.3,
                    .auxiliary_loss = 0.3,
                    .router_z_loss = 0.05,
                    .norm = p + "post_attention_layernorm",
                    .router = p + "block_sparse_moe.gate",
                    .gate = p + "block_sparse_moe.experts.{}.w1",
                    .up = p + "block_sparse_moe.experts.{}.w3",
                    .down = p + "block_sparse_moe.experts.{}.w2"};
}

// The toy with experts in place of its MLPs.
inline models::ModelDescription toy_with_experts(std::int64_t experts = 5, std::int64_t top_k = 2) {
  models::ModelDescription description = toy_description();
  for (int b = 0; b < static_cast<int>(description.blocks.size()); ++b) set_experts(description, b, experts, top_k);
  return description;
}

// Adapters of rank 3 on all Linears of the blocks. `magnitudes`: of all adapters (DoRA).
inline void add_toy_adapters(models::ModelDescription& description, double dropout, bool magnitudes = false) {
  for (models::BlockDescription& block : description.blocks) {
    nn::AttentionConfig& a = block.attention;
    nn::MlpConfig& m = block.mlp;
    for (const std::string& name : {a.q, a.k, a.v, a.output}) a.adapters.push_back({name, 3, 2.0, dropout, magnitudes});
    for (const std::string& name : {m.gate, m.up, m.down}) m.adapters.push_back({name, 3, 2.0, dropout, magnitudes});
  }
}

inline models::ModelDescription toy_with_adapters(double dropout, bool magnitudes = false) {
  models::ModelDescription description = toy_description();
  add_toy_adapters(description, dropout, magnitudes);
  return description;
}

// A toy whose Linears have rows of whole blocks of NF4, also on two tensor ranks.
inline models::ModelDescription toy_of_nf4_blocks() {
  return llama_description({.width = 64,
                            .heads = 4,
                            .kv_heads = 2,
                            .head_dim = 32,
                            .inner = 128,
                            .vocabulary = 67,
                            .blocks = 2,
                            .initial_std = 0.2,
                            .biases = true,
                            .max_position = 1024});
}

// Sequence i has documents of odd lengths, random by i; some labels are masked. Lengths are less than `slack` shorter
// than `length`. `tables` of int32 have 0 to 2, those of float32 1/2 to 3/2. Of other labels than next tokens, every
// third sequence has few, and some documents have none.
class ToySequences : public batches::SequenceSet {
 public:
  ToySequences(std::int64_t count, std::int64_t length, std::int64_t documents, std::uint64_t slack = 5,
               std::vector<TableSpec> tables = {}, LabelSpec labels = {})
      : count_(count),
        length_(length),
        documents_(documents),
        slack_(slack),
        tables_(std::move(tables)),
        labels_(labels) {}
  std::int64_t size() const override { return count_; }
  std::int64_t max_documents() const override { return documents_; }
  LabelRows label_rows() const override { return labels_.rows; }

  batches::Sequence get(std::int64_t index) const override {
    const RandomStream random(11, static_cast<std::uint64_t>(index));
    batches::Sequence sequence;
    std::uint64_t draw = 0;
    const std::int64_t total = length_ - static_cast<std::int64_t>(random.below(slack_, draw++));
    std::int64_t left = total;
    for (std::int64_t d = 0; d < documents_ && left > 0; ++d) {
      const std::int64_t size =
          d + 1 == documents_ ? left
                              : 1 + static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(left), draw++));
      for (std::int64_t i = 0; i < size; ++i) {
        sequence.ids.push_back(static_cast<std::int32_t>(random.below(67, 1000 + draw++)));
        const bool target = i + 1 < size && random.below(8, 1000 + draw++) != 0;
        sequence.labels.push_back(target ? static_cast<std::int32_t>(random.below(67, 1000 + draw++)) : -100);
        sequence.positions.push_back(static_cast<std::int32_t>(i));
      }
      sequence.document_lengths.push_back(static_cast<std::int32_t>(size));
      left -= size;
    }
    for (const TableSpec& table : tables_) {
      const bool of_tokens = table.entry == TableSpec::Entry::token;
      const auto elements = static_cast<std::size_t>((of_tokens ? sequence.length() : 1) * table.width);
      std::vector<std::int32_t> numbers;
      while (numbers.size() < elements) numbers.push_back(static_cast<std::int32_t>(random.below(101, 1000 + draw++)));
      std::vector<float> fractions;
      for (std::int32_t& number : numbers) {
        fractions.push_back(0.5f + static_cast<float>(number) / 100);
        number %= 3;
      }
      const bool whole = table.dtype == DType::i32;
      sequence.tables.emplace(table.name, whole ? TableValues(numbers) : TableValues(fractions));
    }
    if (labels_.rows != LabelRows::next_token) set_labels(sequence, index);
    return sequence;
  }

 private:
  void set_labels(batches::Sequence& sequence, std::int64_t index) const {
    const RandomStream random(12, static_cast<std::uint64_t>(index));
    std::uint64_t draw = 0;
    const auto labels = [&](std::size_t count) {
      std::vector<std::int32_t> out;
      while (out.size() < count) {
        const bool has = random.below(index % 3 == 1 ? 20 : 3, draw++) == 0;
        const std::uint64_t label = random.below(static_cast<std::uint64_t>(labels_.values), draw++);
        out.push_back(has ? static_cast<std::int32_t>(label) : -100);
      }
      return out;
    };
    if (labels_.rows == LabelRows::own) {
      sequence.labels = labels(sequence.ids.size());
      return;
    }
    const std::vector<std::int32_t>& lengths = sequence.document_lengths;
    std::vector<std::int32_t> classes = labels(lengths.size());
    if (index % 3 == 0) classes.back() = 0;  // a step has one
    sequence.labels = batches::labels_of_documents(lengths, classes, labels_.rows);
  }

  std::int64_t count_, length_, documents_;
  std::uint64_t slack_;
  std::vector<TableSpec> tables_;
  LabelSpec labels_;
};

}  // namespace hawser::testing

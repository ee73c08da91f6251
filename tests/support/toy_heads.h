// The toy with heads that predict masked tokens, and classes of tokens and of documents.
#pragma once

#include "support/toy.h"

namespace hawser::testing {

enum class Head { masked, tokens, first_rows, last_rows };
inline constexpr Head kHeads[] = {Head::masked, Head::tokens, Head::first_rows, Head::last_rows};

// Masked tokens have a tied projection; classes of first rows a pooler and no norm.
inline models::ModelDescription toy_with(Head head) {
  models::ModelDescription d = toy_description(head == Head::masked);
  nn::HeadConfig& h = d.head;
  h.bias = head != Head::last_rows;
  if (head != Head::last_rows) {
    for (models::BlockDescription& block : d.blocks) block.attention.causal = false;
  }
  if (head == Head::masked) {
    h.kind = nn::HeadKind::masked_language_model;
    return d;
  }
  h.kind = head == Head::tokens ? nn::HeadKind::token_classification : nn::HeadKind::sequence_classification;
  h.classes = 5;
  h.vocabulary = 0;
  h.output = "classifier";
  h.last_row = head == Head::last_rows;
  if (head == Head::first_rows) {
    h.transform = nn::HeadTransformConfig{.dense = "pooler", .activation = nn::Activation::tanh};
  }
  if (head != Head::last_rows) h.norm = "";
  return d;
}

inline const char* text_of(Head head) {
  constexpr const char* kTexts[] = {"masked tokens", "tokens", "first rows", "last rows"};
  return kTexts[static_cast<int>(head)];
}

}  // namespace hawser::testing

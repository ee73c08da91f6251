// Greedy text from a model: always the likeliest next token.
//
//   Problems problems;
//   auto input = open_generation({.model = folder, .prompt = "It is a truth", .max_tokens = 32}, problems);
//   problems.throw_if_any();
//   Generation text = generate(*input);
//
// Every token is a forward pass over all before it, on this process alone; keys and values are not kept between tokens.
// Rows are padded to a power of two, so that the plan, and with it the memory, is made anew only when that is used up.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/recipe.h"
#include "train/open_model.h"
#include "train/rank_device.h"

namespace hawser::train {

struct GenerateRequest {
  std::string model;                  // a Hugging Face folder, a checkpoint or a run's folder
  std::optional<std::string> prompt;  // text, encoded as the model's tokenizer does; this or the next
  std::vector<std::int64_t> prompt_ids;
  std::int64_t max_tokens = 64;
  Recipe recipe;  // memory, precision, run
  int threads = 1;
  RankDevice device;
};

// A request whose parts were found sound.
struct OpenGeneration {
  OpenModel open;
  std::unique_ptr<data::Tokenizer> tokenizer;  // null: the folder has none
  std::vector<std::int32_t> prompt_ids;        // one at least
  std::vector<std::int64_t> ends;              // a token that ends the text; it is still part of the answer
  std::int64_t max_tokens = 0;
  Recipe recipe;
  int threads = 1;
  RankDevice device;
};

// Adds every problem, and returns none when there is one; where there is none, throws Error(does_not_fit) if the
// longest text asked for needs more memory than there may be used.
std::optional<OpenGeneration> open_generation(const GenerateRequest& request, Problems& problems);

struct Generation {
  std::vector<std::int32_t> ids;   // after the prompt
  std::vector<std::string> notes;  // which kernels it took, for people
  bool ended = false;              // by one of OpenGeneration::ends, not by max_tokens
};

// `on_token` hears each token as it comes.
Generation generate(OpenGeneration& input, const std::function<void(std::int32_t)>& on_token = nullptr);

// Rows that a forward pass over `tokens` is planned for: the next power of two, 32 at least.
std::int64_t padded_rows(std::int64_t tokens);

}  // namespace hawser::train

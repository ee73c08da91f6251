// A request to generate, checked: the model's config and weight headers, its tokenizer, every prompt, and whether it
// all fits, before anything is taken.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/recipe.h"
#include "generate/passes.h"
#include "generate/prompts.h"
#include "generate/sampler.h"
#include "train/open_model.h"
#include "train/rank_device.h"

namespace hawser::generate {

struct GenerateRequest {
  std::string model;  // a Hugging Face folder, a checkpoint or a run's folder
  // One of these:
  std::optional<std::string> prompt;
  std::vector<std::int64_t> prompt_ids;
  std::string prompts;  // a file (read_prompts)
  bool chat = false;
  std::string system;            // of a chat; "": none
  std::string chat_template;     // as data.chat_template; "": the run's, or the one beside the tokenizer
  std::int64_t max_tokens = 64;  // of an answer
  std::int64_t batch = 0;        // sequences at once; 0: as many as fit, kBatchCpu or kBatchCuda at most
  std::int64_t context = 0;      // chat: tokens of a conversation at most; 0: the model's positions, kContext at most
  Sampling sampling;
  std::vector<std::string> stops;
  Recipe recipe;  // memory, precision, run
  int threads = 1;
  train::RankDevice device;
};

constexpr std::int64_t kBatchCpu = 8, kBatchCuda = 32;
constexpr std::int64_t kContext = 4096;

// A request whose parts were found sound.
struct OpenGeneration {
  train::OpenModel open;
  std::unique_ptr<data::Tokenizer> tokenizer;  // null: the model has none
  std::unique_ptr<PromptEncoder> encoder;
  std::vector<Prompt> prompts;      // one at least, but for a chat
  std::vector<std::int64_t> ends;   // a token that ends the text; it is still part of the answer
  std::vector<std::int64_t> turns;  // the same for conversations: ends, and the template's end of turn
  std::int64_t max_tokens = 0;
  Sampling sampling;
  std::vector<std::string> stops;
  CacheSize size;
  Recipe recipe;
  int threads = 1;
  train::RankDevice device;
};

// Adds every problem, and returns none when there is one; where there is none, throws Error(does_not_fit) if the
// sequences asked for need more memory than there may be used.
std::optional<OpenGeneration> open_generation(const GenerateRequest& request, Problems& problems);

}  // namespace hawser::generate

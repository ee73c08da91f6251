// Checks of a generation request before memory is reserved: the model's config and weight headers, its tokenizer, all
// prompts, and that the KV cache fits.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/units.h"
#include "config/recipe.h"
#include "engine/open_model.h"
#include "engine/rank_device.h"
#include "generate/passes.h"
#include "generate/prompts.h"
#include "generate/token_sampler.h"

namespace hawser::generate {

struct GenerateRequest {
  std::string model;                       // a Hugging Face folder, a checkpoint or a run's folder
  std::vector<std::string> adapters = {};  // folders of PEFT, on a Hugging Face folder
  bool averages = false;                   // of a run: the average of its weights
  // Exactly one of these four:
  std::optional<std::string> prompt;
  std::vector<std::int64_t> prompt_ids;
  std::string prompts;  // a file (read_prompts)
  bool chat = false;
  std::string system;  // the system message of a chat, if it is not ""
  // As data.chat_template. If it is "", the template is the run's, or the one in the tokenizer's folder.
  std::string chat_template;
  std::optional<std::int64_t> max_tokens;  // of an answer, in place of kChatTokens in a chat, else kPromptTokens
  // Concurrent sequences. By default as many as fit, at most kBatchCpu or kBatchCuda.
  std::optional<std::int64_t> batch;
  // The maximum tokens of a conversation in a chat. By default the model's positions, at most kContext.
  std::optional<std::int64_t> context;
  Sampling sampling;
  std::vector<std::string> stops;
  Recipe recipe;  // memory, precision, run
  int threads = 1;
  engine::RankDevice device;
  // Makes of the model this rank's part of it; none with one rank.
  engine::ModelChanges changes = {};
  Ranks ranks = {};
};

constexpr std::int64_t kBatchCpu = 8, kBatchCuda = 32;
constexpr std::int64_t kContext = 4096;
constexpr std::int64_t kPromptTokens = 64, kChatTokens = 512;

// A checked request.
struct OpenGeneration {
  engine::OpenModel open;
  std::unique_ptr<text::Tokenizer> tokenizer;  // null if the model has none
  std::unique_ptr<PromptEncoder> encoder;
  std::vector<Prompt> prompts;      // at least one, except in a chat
  std::vector<std::int64_t> ends;   // tokens that end the text; the ending token is part of the answer
  std::vector<std::int64_t> turns;  // the same for conversations: `ends` and the template's end of turn
  std::int64_t max_tokens = 0;
  Sampling sampling;
  std::vector<std::string> stops;
  std::vector<std::int64_t> stop_tokens;  // those among `stops` that are special tokens
  CacheSize size;
  Recipe recipe;
  int threads = 1;
  engine::RankDevice device;
  Ranks ranks;
};

// The request as rank `rank` of `ranks` makes it: tensor ranks, each with its part of the model. `world`: of these
// ranks, or null to check the request as far as one process can.
GenerateRequest on_ranks(GenerateRequest request, int rank, int ranks, comm::World* world);

// Adds every problem and returns nullopt if there is one. Otherwise throws Error(does_not_fit) if the requested
// sequences need more memory than may be used. On several ranks, every rank calls it with the same request but for its
// device and its part of the model, and gets the same sizes, or the problems and errors of all.
std::optional<OpenGeneration> open_generation(const GenerateRequest& request, Problems& problems);

}  // namespace hawser::generate

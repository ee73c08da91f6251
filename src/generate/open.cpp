#include "generate/open.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "engine/does_not_fit.h"
#include "engine/rank_sync.h"
#include "plan/forecast.h"

namespace hawser::generate {
namespace {

void add(std::vector<std::int64_t>& ends, std::int64_t id) {
  if (std::find(ends.begin(), ends.end(), id) == ends.end()) ends.push_back(id);
}

// The special tokens among the stop texts: the text of an answer does not have them. Adds problems.
std::vector<std::int64_t> stop_tokens(const std::vector<std::string>& stops, const text::Tokenizer& tokenizer,
                                      Problems& problems) {
  std::vector<std::int64_t> tokens;
  for (const std::string& stop : stops) {
    const auto id = tokenizer.id_of(stop);
    // Twice: the mark of a space may decode to nothing at the beginning.
    if (id && tokenizer.decode_bytes(std::vector{*id, *id}, true).empty()) tokens.push_back(*id);
  }
  if (tokens.size() == stops.size()) return tokens;
  for (std::int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    const std::string token = tokenizer.decode_bytes({&id, 1});
    if (token.empty() || !tokenizer.decode_bytes({&id, 1}, true).empty()) continue;
    for (const std::string& stop : stops) {
      if (stop == token || stop.find(token) == std::string::npos) continue;
      problems.add({.what = "a special token within a text",
                    .expected = "the token alone, or text without it",
                    .got = token,
                    .at = "--stop"});
    }
  }
  return tokens;
}

// Encodes the requested prompts. Adds problems.
void read_asked(const GenerateRequest& request, OpenGeneration& input, Problems& problems) {
  std::optional<Prompt> one;
  if (request.prompt) one = input.encoder->text(*request.prompt, {"", "--prompt"}, problems);
  if (!request.prompt_ids.empty()) one = input.encoder->ids(request.prompt_ids, {"", "--prompt-ids"}, problems);
  if (one) input.prompts.push_back(std::move(*one));
  if (!request.prompts.empty()) input.prompts = read_prompts(request.prompts, *input.encoder, problems);
  if (!request.chat) return;
  // Report a missing tokenizer or template before the user types a line.
  using text::chat::List;
  const text::chat::Value hello = message("user", "hello");
  if (!input.encoder->conversation({.messages = List{hello}}, {"", "--chat"}, problems)) return;
  if (request.system.empty()) return;
  const text::chat::Value system = message("system", request.system);
  input.encoder->conversation({.messages = List{system, hello}}, {"", "--system"}, problems);
}

// Adds only problems that are not in `problems` already.
void add_new(const Problems& found, Problems& problems) {
  for (const Problem& one : found.all()) {
    const bool reported = std::any_of(problems.all().begin(), problems.all().end(),
                                      [&](const Problem& other) { return other.line() == one.line(); });
    if (!reported) problems.add(one);
  }
}

std::int64_t positions_of(const GenerateRequest& request, const OpenGeneration& input) {
  if (request.chat) {
    if (request.context) return *request.context;
    const std::int64_t model = input.open.model->description().max_position;
    return std::max(request.max_tokens.value_or(0) + 1, model > 0 ? std::min(model, kContext) : kContext);
  }
  std::size_t longest = 0;
  for (const Prompt& prompt : input.prompts) longest = std::max(longest, prompt.ids.size());
  return static_cast<std::int64_t>(longest) + input.max_tokens - 1;  // the last token is not computed
}

// The numbers of all ranks.
std::vector<std::int64_t> of_ranks(comm::World* world, const std::function<std::int64_t()>& mine) {
  std::vector<std::int64_t> all;
  for (const std::string& one : engine::on_each_rank(world, [&] { return cat(mine()); })) {
    all.push_back(std::stoll(one));
  }
  return all;
}

// Compares the memory that a request needs with what the ranks may use. All ranks call it alike, and get the same: the
// capacity is that of the rank that has the least, the need that of the rank that needs the most, and the host memory
// that of each machine.
class MemoryCheck {
 public:
  explicit MemoryCheck(const OpenGeneration& input)
      : input_(input), machine_(plan::this_machine()), target_(plan::load_target(plan::target_of(input.device.kind))) {
    if (input.device.kind == DeviceKind::cuda) host_ = Bytes(plan::free_host_memory());
    capacity_ = std::ranges::min(
        of_ranks(world(), [&] { return plan::capacity_of(input.recipe, target_, machine_, ranks()); }));
  }

  bool fits(const CacheSize& size) {
    const PassMemory need = needed(size);
    return need.device <= capacity_ && engine::reason_against(world(), of_host(need, "")).empty();
  }

  // Throws Error(does_not_fit) if it does not fit.
  void expect_fits(const CacheSize& size, const std::string& hint) {
    const PassMemory need = needed(size);
    engine::on_each_rank(world(), [&]() -> std::string {
      plan::check_capacity(input_.recipe, need.device, ranks(), hint, machine_, plan::target_of(input_.device.kind));
      return "";
    });
    engine::expect_fits(world(), of_host(need, hint));
  }

 private:
  comm::World* world() const { return input_.ranks.world; }
  int ranks() const { return world() != nullptr ? world()->size() : 1; }

  engine::RankNeed of_host(const PassMemory& need, const std::string& hint) const {
    return {.pinned = need.pinned, .machine_has = host_, .hint = hint};
  }

  PassMemory needed_here(const CacheSize& size) const {
    const models::Model& model = *input_.open.model;
    const std::vector<plan::Layout> layouts =
        pass_layouts(input_.recipe, model, size, input_.threads, input_.device.kind, input_.ranks);
    PassMemory need = planned_memory(model, layouts);
    need.device += plan::overhead_of(target_, layouts.front().mesh, /*stage=*/0);
    return need;
  }

  PassMemory needed(const CacheSize& size) const {
    PassMemory here;
    const std::int64_t device = std::ranges::max(of_ranks(world(), [&] {
      here = needed_here(size);
      return here.device;
    }));
    return {.device = device, .pinned = here.pinned};
  }

  const OpenGeneration& input_;
  std::optional<Bytes> host_;
  plan::Machine machine_;
  plan::Target target_;
  std::int64_t capacity_ = 0;
};

// The options with which a request that does not fit would; "": none alone or together.
std::string hint_for(const GenerateRequest& request, const OpenGeneration& input, MemoryCheck& check) {
  const CacheSize& size = input.size;
  const auto would_fit = [&](std::int64_t sequences, std::int64_t positions) {
    return check.fits({.sequences = sequences, .positions = positions});
  };
  // What the user may ask for at least: a context of two tokens; one token after the longest prompt.
  const std::int64_t shortest = request.chat ? 2 : size.positions - input.max_tokens + 1;
  const std::string fewer = request.chat ? "a smaller --context" : "fewer --max-tokens";
  const bool batch = size.sequences > 1, tokens = shortest < size.positions;
  const bool by_batch = batch && would_fit(1, size.positions),
             by_tokens = tokens && would_fit(size.sequences, shortest);
  if (by_batch && by_tokens) return cat("a smaller --batch, or ", fewer);
  if (by_batch) return "a smaller --batch";
  if (by_tokens) return fewer;
  if (batch && tokens && would_fit(1, shortest)) return cat("a smaller --batch with ", fewer);
  return !request.chat && shortest > 1 && would_fit(1, 1) ? "shorter prompts" : "";
}

// Chooses the batch, or throws Error(does_not_fit). All ranks choose the same.
void fit(const GenerateRequest& request, OpenGeneration& input) {
  const std::int64_t max = input.device.kind == DeviceKind::cuda ? kBatchCuda : kBatchCpu;
  const auto asked = std::max<std::int64_t>(1, static_cast<std::int64_t>(input.prompts.size()));
  const std::int64_t positions = positions_of(request, input);
  std::int64_t sequences = std::min(asked, request.batch.value_or(max));
  // Row indices of the KV cache are 32-bit.
  const std::int64_t rows = std::numeric_limits<std::int32_t>::max() / positions;
  if (!request.batch) sequences = std::max<std::int64_t>(1, std::min(sequences, rows));
  if (sequences > rows) {
    throw UserError(Problem{.what = "KV cache too large",
                            .expected = cat("at most ", rows, " sequences of ", positions, " tokens"),
                            .got = cat(sequences),
                            .at = "--batch",
                            .hint = cat("--batch ", rows)});
  }
  input.size = {.sequences = sequences, .positions = positions};
  MemoryCheck check(input);
  bool fits = check.fits(input.size);
  while (!request.batch && sequences > 1 && !fits) {
    sequences /= 2;
    input.size.sequences = sequences;
    fits = check.fits(input.size);
  }
  if (!fits) check.expect_fits(input.size, hint_for(request, input, check));
}

// The request as this rank reads it, without `size`; nullopt if it adds a problem.
std::optional<OpenGeneration> read(const GenerateRequest& request, Problems& problems) {
  const std::size_t before = problems.size();
  const std::int64_t usual = request.chat ? kChatTokens : kPromptTokens;
  OpenGeneration input{.max_tokens = request.max_tokens.value_or(usual),
                       .sampling = request.sampling,
                       .stops = request.stops,
                       .recipe = request.recipe,
                       .threads = request.threads,
                       .device = request.device,
                       .ranks = request.ranks};
  engine::ModelChanges changes = request.changes;
  changes.base = request.recipe;
  changes.averages = request.averages;
  input.open = engine::open_trained_model(request.model, problems, changes, request.adapters);
  if (input.open.model == nullptr) return std::nullopt;
  if (const nn::HeadKind head = input.open.model->description().head.kind; head != nn::HeadKind::language_model) {
    problems.add({.file = request.model,
                  .what = "only a model that predicts the next token generates text",
                  .got = cat("a head for ", nn::to_string(head))});
    return std::nullopt;
  }
  const models::SpecialTokens& special = input.open.special;
  input.ends = special.ends;
  const bool texts = request.prompt || !request.prompts.empty() || request.chat || !request.stops.empty();
  try {
    if (!input.open.tokenizer.empty()) input.tokenizer = text::load_tokenizer(input.open.tokenizer);
  } catch (const UserError& error) {
    if (texts) {
      problems.add_lines(error.what());
      return std::nullopt;
    }
  }
  if (input.tokenizer == nullptr && !request.stops.empty()) {
    problems.add({.file = request.model, .what = "no tokenizer.json in the model's folder", .at = "--stop"});
  }
  if (input.tokenizer != nullptr) input.stop_tokens = stop_tokens(request.stops, *input.tokenizer, problems);
  const std::string wanted =
      request.chat_template.empty() ? engine::chat_template_of(input.open) : request.chat_template;
  Problems without;
  std::shared_ptr<const text::chat::ChatTemplate> chat_template;
  if (input.tokenizer != nullptr && (request.chat || !request.prompts.empty())) {
    chat_template = text::chat::open_chat_template(wanted, input.open.tokenizer, "", "--chat-template", without);
    if (!request.chat_template.empty()) problems.add(without);
  }
  input.encoder = std::make_unique<PromptEncoder>(request.model, input.tokenizer.get(), chat_template, without,
                                                  special.begin, input.open.model->vocabulary());
  Problems found;
  read_asked(request, input, found);
  add_new(found, problems);
  if (problems.size() != before) return std::nullopt;
  input.turns = input.ends;
  for (const std::int64_t id : input.encoder->turn_ends()) add(input.turns, id);
  return input;
}

// What ranks must have read alike: each reads the files itself, and they may be replaced meanwhile or differ by host.
std::string identity_of(const OpenGeneration& input) {
  nlohmann::json prompts;
  for (const Prompt& prompt : input.prompts) prompts.push_back({{"ids", prompt.ids}, {"chat", prompt.chat}});
  return nlohmann::json{{"checkpoint", input.open.checkpoint ? input.open.checkpoint->folder() : ""},
                        {"prompts", std::move(prompts)},
                        {"ends", nlohmann::json::array({input.ends, input.turns, input.stop_tokens})}}
      .dump();
}

}  // namespace

GenerateRequest on_ranks(GenerateRequest request, int rank, int ranks, comm::World* world) {
  request.changes.share = {.tensor = {.index = rank, .count = ranks}};
  request.changes.share_place = {.at = "--ranks", .hint = "--ranks "};
  request.ranks = {.world = world, .mesh = {.tensor = ranks}};
  return request;
}

std::optional<OpenGeneration> open_generation(const GenerateRequest& request, Problems& problems) {
  comm::World* world = request.ranks.world;
  std::optional<OpenGeneration> input;
  Problems own;
  // Every rank learns whether one has a problem before fit() communicates.
  const std::vector<std::string> lines = engine::on_each_rank(world, [&] {
    input = read(request, own);
    return own.lines();
  });
  if (world == nullptr) {
    problems.add(own);
  } else {
    for (const std::string& of_rank : lines) {
      Problems found;
      found.add_lines(of_rank);
      add_new(found, problems);
    }
  }
  if (std::ranges::any_of(lines, [](const std::string& of_rank) { return !of_rank.empty(); })) return std::nullopt;
  const std::vector<std::string> all = engine::on_each_rank(world, [&] { return identity_of(*input); });
  if (std::ranges::any_of(all, [&](const std::string& of_rank) { return of_rank != all.front(); })) {
    problems.add({.file = request.model,
                  .what = "ranks read different prompts, checkpoints or tokenizers",
                  .hint = "files that do not change during the start"});
    return std::nullopt;
  }
  fit(request, *input);
  return input;
}

}  // namespace hawser::generate

#include "train/generate.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "data/micro_batch.h"
#include "models/families.h"
#include "plan/forecast.h"
#include "train/feed.h"
#include "train/products.h"
#include "train/saver.h"
#include "train/session.h"

namespace hawser::train {

namespace {

constexpr std::int64_t kLeastRows = 32;

std::vector<std::int32_t> prompt_of(const GenerateRequest& request, const data::Tokenizer* tokenizer,
                                    const std::optional<std::int64_t>& begin, std::int64_t vocabulary,
                                    Problems& problems) {
  std::vector<std::int32_t> ids;
  if (!request.prompt) {
    for (const std::int64_t id : request.prompt_ids) {
      if (id >= 0 && id < vocabulary) {
        ids.push_back(static_cast<std::int32_t>(id));
        continue;
      }
      problems.add({.what = "id outside the vocabulary",
                    .expected = cat("below ", vocabulary),
                    .got = cat(id),
                    .at = "--prompt-ids"});
    }
    return ids;
  }
  if (tokenizer == nullptr) {
    problems.add({.file = request.model,
                  .what = "no tokenizer.json beside the model",
                  .at = "--prompt",
                  .hint = "--prompt-ids with token ids"});
    return ids;
  }
  tokenizer->encode(*request.prompt, ids, true);
  if (ids.empty() && begin) ids.push_back(static_cast<std::int32_t>(*begin));
  const auto outside = std::find_if(ids.begin(), ids.end(), [&](std::int32_t id) { return id >= vocabulary; });
  if (outside != ids.end()) {
    problems.add({.file = request.model,
                  .what = "the tokenizer makes ids that the model does not have",
                  .expected = cat("ids below ", vocabulary),
                  .got = cat(*outside)});
  } else if (ids.empty()) {
    problems.add({.what = "empty prompt", .expected = "one token or more", .at = "--prompt"});
  }
  return ids;
}

plan::Layout layout_for(Recipe recipe, const models::Model& model, int threads, std::int64_t rows, DeviceKind device) {
  recipe.parallel = {};
  recipe.data = {};
  recipe.data.sequence_length = rows;
  recipe.data.max_documents = 1;
  recipe.train.global_batch_size = 1;
  recipe.train.micro_batch_size = 1;
  return plan::make_layout(recipe, model, 1, compute_dtype(recipe.precision, device), threads, device);
}

// The model on this process, planned for one sequence of up to `rows` tokens.
class Forward {
 public:
  Forward(OpenGeneration& input, Device& device, comm::Mesh& mesh, std::int64_t rows) : rows_(rows) {
    const plan::Layout layout = layout_for(input.recipe, *input.open.model, input.threads, rows, device.kind());
    shape_ = layout.batch;
    if (!layout.deterministic) prepare_products(*input.open.model, layout, device, step::Purpose::logits);
    session_ =
        std::make_unique<Session>(*input.open.model, layout, device, mesh,
                                  std::vector<step::Purpose>{step::Purpose::logits}, input.recipe.memory.capacity);
    load_weights(*session_, input.open);
  }

  std::int64_t rows() const { return rows_; }

  std::vector<std::string> notes() {
    std::vector<std::string> out = session_->notes();
    for (std::string& line : slow_products(session_->stream())) out.push_back(std::move(line));
    return out;
  }

  std::int32_t likeliest_after(const std::vector<std::int32_t>& ids) {
    const auto length = static_cast<std::int32_t>(ids.size());
    data::Sequence sequence{.ids = ids, .document_lengths = {length}};
    sequence.labels.assign(ids.size(), data::kIgnoredLabel);
    sequence.positions = data::positions_of(sequence.document_lengths);
    auto batch = to_host_batch(data::make_micro_batch({&sequence, 1}, shape_, 0), shape_);
    batch->chosen_row = {length - 1};
    step::StepInput input;
    input.batches.push_back(batch);
    const step::StepOutput output = session_->enqueue(step::Purpose::logits, input);
    session_->synchronize();
    const std::vector<float>& logits = *output.logits;
    const auto best = std::max_element(logits.begin(), logits.end());
    if (!std::isfinite(*best)) {
      throw UserError(Problem{.what = "the model's logits are not finite numbers: are its weights sound?"});
    }
    return static_cast<std::int32_t>(best - logits.begin());
  }

 private:
  std::int64_t rows_;
  data::BatchShape shape_;
  std::unique_ptr<Session> session_;
};

}  // namespace

std::int64_t padded_rows(std::int64_t tokens) {
  return std::max(kLeastRows, static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(tokens))));
}

std::optional<OpenGeneration> open_generation(const GenerateRequest& request, Problems& problems) {
  const std::size_t before = problems.size();
  OpenGeneration input{
      .max_tokens = request.max_tokens, .recipe = request.recipe, .threads = request.threads, .device = request.device};
  input.open = open_trained_model(request.model, problems);
  if (input.open.model == nullptr) return std::nullopt;
  const models::SpecialTokens& special = input.open.special;
  input.ends = special.ends;
  try {
    if (!input.open.tokenizer.empty()) input.tokenizer = data::load_tokenizer(input.open.tokenizer);
  } catch (const UserError& error) {
    if (request.prompt) {
      problems.add_lines(error.what());
      return std::nullopt;
    }
  }
  input.prompt_ids = prompt_of(request, input.tokenizer.get(), special.begin, input.open.model->vocabulary(), problems);
  if (problems.size() != before) return std::nullopt;
  const std::int64_t rows = padded_rows(static_cast<std::int64_t>(input.prompt_ids.size()) + input.max_tokens - 1);
  plan::check_capacity(input.recipe, *input.open.model,
                       layout_for(input.recipe, *input.open.model, input.threads, rows, input.device.kind),
                       step::Purpose::logits, "fewer --max-tokens", plan::this_machine(),
                       plan::target_of(input.device.kind));
  return input;
}

Generation generate(OpenGeneration& input, const std::function<void(std::int32_t)>& on_token) {
  const std::unique_ptr<Device> device = make_device(input.device, input.threads);
  const std::unique_ptr<comm::Mesh> mesh = comm::make_self_mesh();
  std::unique_ptr<Forward> forward;
  std::vector<std::int32_t> ids = input.prompt_ids;
  Generation generation;
  while (static_cast<std::int64_t>(generation.ids.size()) < input.max_tokens && !generation.ended) {
    const std::int64_t rows = padded_rows(static_cast<std::int64_t>(ids.size()));
    if (!forward || forward->rows() < rows) {
      forward.reset();  // its memory goes first
      forward = std::make_unique<Forward>(input, *device, *mesh, rows);
    }
    const std::int32_t next = forward->likeliest_after(ids);
    ids.push_back(next);
    generation.ids.push_back(next);
    generation.ended = std::find(input.ends.begin(), input.ends.end(), next) != input.ends.end();
    if (on_token) on_token(next);
  }
  if (forward) generation.notes = forward->notes();
  return generation;
}

}  // namespace hawser::train

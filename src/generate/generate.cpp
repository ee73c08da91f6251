#include "generate/generate.h"

#include <algorithm>
#include <chrono>
#include <memory>

#include "base/clock.h"

namespace hawser::generate {

const char* to_string(Answer::End end) {
  switch (end) {
    case Answer::End::length:
      return "length";
    case Answer::End::token:
      return "end token";
    case Answer::End::text:
      return "stop text";
  }
  return "?";
}

// A sequence in a slot.
struct Generator::Running {
  const Prompt* prompt = nullptr;
  std::size_t index = 0;    // of its prompt, for the listener
  std::int64_t number = 0;  // of its prompt, for sampling
  std::int64_t slot = 0;
  std::int64_t positions = 0;  // tokens in the KV cache
  Answer answer;
  std::unique_ptr<TextStream> text;  // null without a tokenizer
  bool ended = false;
};

namespace {

class Stopwatch {
 public:
  explicit Stopwatch(double& seconds) : seconds_(seconds), start_(std::chrono::steady_clock::now()) {}
  ~Stopwatch() { seconds_ += seconds_since(start_); }
  Stopwatch(const Stopwatch&) = delete;

 private:
  double& seconds_;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace

Generator::Generator(OpenGeneration& input)
    : input_(input),
      device_(engine::make_device(input.device, input.threads)),
      decoder_(std::make_unique<Decoder>(input.open, input.recipe, input.size, input.threads, *device_,
                                         engine::SessionChecks(), input.ranks)),
      sampler_(input.sampling) {}

Generator::~Generator() = default;

Generator::Running Generator::start(const Prompt& prompt, std::size_t index, std::int64_t number, std::int64_t slot,
                                    std::size_t known, const Listener& listener) {
  HAWSER_CHECK(known < prompt.ids.size(), "a prompt without new tokens");
  Running running{.prompt = &prompt, .index = index, .number = number, .slot = slot};
  running.positions = static_cast<std::int64_t>(prompt.ids.size());
  if (input_.tokenizer) running.text = std::make_unique<TextStream>(*input_.tokenizer, prompt.ids, input_.stops);
  const std::span<const std::int32_t> fresh = std::span(prompt.ids).subspan(known);
  std::vector<std::int32_t> ids;
  {
    const Stopwatch watch(counts_.prefill_seconds);
    for (std::size_t at = 0; at < fresh.size();) {
      const std::size_t count = std::min<std::size_t>(fresh.size() - at, kChunkRows);
      const bool last = at + count == fresh.size();
      decoder_->enqueue(slot, static_cast<std::int64_t>(known + at), fresh.subspan(at, count),
                        last ? pick_of({&running, 1}) : Decoder::Pick());
      ids = decoder_->choose();
      at += count;
    }
  }
  counts_.prefill_tokens += static_cast<std::int64_t>(fresh.size());
  running.ended = take(running, ids.front(), listener);
  return running;
}

Decoder::Pick Generator::pick_of(std::span<const Running> running) {
  return [this, running](std::int64_t i, std::span<const float> logits) {
    const Running& one = running[static_cast<std::size_t>(i)];
    return sampler_.pick(logits, one.number, static_cast<std::int64_t>(one.prompt->ids.size() + one.answer.ids.size()));
  };
}

bool Generator::take(Running& running, std::int32_t id, const Listener& listener) {
  Answer& answer = running.answer;
  answer.ids.push_back(id);
  const std::vector<std::int64_t>& ends = running.prompt->chat ? input_.turns : input_.ends;
  const auto is_in = [&](const std::vector<std::int64_t>& tokens) {
    return std::ranges::find(tokens, id) != tokens.end();
  };
  std::string text;
  if (running.text) text = running.text->push(id);
  if (listener.token) listener.token(running.index, id, text);
  if ((running.text && running.text->stopped()) || is_in(input_.stop_tokens)) {
    answer.end = Answer::End::text;
    return true;
  }
  if (is_in(ends)) {
    answer.end = Answer::End::token;
    return true;
  }
  return static_cast<std::int64_t>(answer.ids.size()) == input_.max_tokens ||
         running.positions == input_.size.positions;
}

Answer Generator::finish(Running& running, const Listener& listener) {
  ++counts_.prompts;
  if (running.text) {
    const std::string rest = running.text->finish();
    if (!rest.empty() && listener.token) listener.token(running.index, -1, rest);
    running.answer.text = running.text->text();
  }
  if (listener.answer) listener.answer(running.index, running.answer);
  return std::move(running.answer);
}

void Generator::decode(std::vector<Running>& running, const Listener& listener) {
  std::vector<Decoder::NewToken> tokens;
  for (Running& one : running) tokens.push_back({one.slot, one.positions++, one.answer.ids.back()});
  std::vector<std::int32_t> ids;
  {
    const Stopwatch watch(counts_.decode_seconds);
    decoder_->enqueue(tokens, pick_of(running));
    ids = decoder_->choose();
  }
  counts_.decode_tokens += static_cast<std::int64_t>(tokens.size());
  for (std::size_t i = 0; i < running.size(); ++i) running[i].ended = take(running[i], ids[i], listener);
}

std::vector<Answer> Generator::answer_all(const Listener& listener) {
  std::vector<Answer> answers(input_.prompts.size());
  std::vector<Running> running;
  std::vector<std::int64_t> free;
  for (std::int64_t slot = input_.size.sequences - 1; slot >= 0; --slot) free.push_back(slot);
  std::size_t next = 0;
  const auto progress = [&] {
    if (listener.progress) listener.progress(counts_);
  };
  while (next < answers.size() || !running.empty()) {
    while (next < answers.size() && !free.empty()) {
      Running one = start(input_.prompts[next], next, static_cast<std::int64_t>(next), free.back(), 0, listener);
      if (one.ended) {
        answers[next] = finish(one, listener);
      } else {
        free.pop_back();
        running.push_back(std::move(one));
      }
      ++next;
      progress();
    }
    if (running.empty()) continue;
    decode(running, listener);
    std::erase_if(running, [&](Running& one) {
      if (!one.ended) return false;
      free.push_back(one.slot);
      const std::size_t index = one.index;
      answers[index] = finish(one, listener);
      return true;
    });
    progress();
  }
  return answers;
}

Answer Generator::answer(const Prompt& prompt, std::size_t known, std::int64_t number, const Listener& listener) {
  std::vector<Running> running;
  running.push_back(start(prompt, 0, number, 0, known, listener));
  while (!running[0].ended) decode(running, listener);
  return finish(running[0], listener);
}

}  // namespace hawser::generate

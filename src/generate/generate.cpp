#include "generate/generate.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <memory>

#include "base/clock.h"

namespace hawser::generate {

const char* to_string(Answer::End end) {
  constexpr const char* kNames[] = {"length", "end token", "stop text"};
  static_assert(std::size(kNames) == static_cast<std::size_t>(Answer::End::text) + 1);
  return kNames[static_cast<std::size_t>(end)];
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

// The answers to some prompts. The order of passes depends on tokens only, never on time: it is the same on all ranks.
class Generator::Run {
 public:
  // The first `known` tokens of each prompt are in the KV cache. `number`: of the first prompt.
  Run(Generator& generator, std::span<const Prompt> prompts, std::size_t known, std::int64_t number,
      const Listener& listener)
      : input_(generator.input_),
        decoder_(*generator.decoder_),
        sampler_(generator.sampler_),
        counts_(generator.counts_),
        prompts_(prompts),
        known_(known),
        number_(number),
        listener_(listener),
        answers_(prompts.size()) {
    for (std::int64_t slot = input_.size.sequences - 1; slot >= 0; --slot) free_.push_back(slot);
  }

  std::vector<Answer> answers() {
    while (next_ < prompts_.size() || !running_.empty()) {
      if (next_ < prompts_.size() && !free_.empty()) {
        start();
      } else {
        decode();
      }
      std::erase_if(running_, [&](Running& one) {
        if (!one.ended) return false;
        free_.push_back(one.slot);
        answers_[one.index] = std::move(one.answer);
        return true;
      });
    }
    return std::move(answers_);
  }

 private:
  // Computes the next prompt.
  void start() {
    const Prompt& prompt = prompts_[next_];
    HAWSER_CHECK(known_ < prompt.ids.size(), "a prompt without new tokens");
    Running& running = running_.emplace_back();
    running.prompt = &prompt;
    running.index = next_;
    running.number = number_ + static_cast<std::int64_t>(next_);
    running.slot = free_.back();
    running.positions = static_cast<std::int64_t>(prompt.ids.size());
    if (input_.tokenizer) running.text = std::make_unique<TextStream>(*input_.tokenizer, prompt.ids, input_.stops);
    free_.pop_back();
    ++next_;
    for (std::size_t at = known_; at < prompt.ids.size();) {
      const std::size_t count = std::min<std::size_t>(prompt.ids.size() - at, kChunkRows);
      decoder_.prefill(running.slot, static_cast<std::int64_t>(at), std::span(prompt.ids).subspan(at, count));
      at += count;
      counts_.prefill_tokens += static_cast<std::int64_t>(count);
      end_pass(counts_.prefill_seconds, {&running, at == prompt.ids.size() ? std::size_t{1} : std::size_t{0}});
    }
  }

  // Computes the last token of each sequence.
  void decode() {
    std::vector<Decoder::NewToken> tokens;
    for (Running& one : running_) tokens.push_back({one.slot, one.positions++, one.answer.ids.back()});
    decoder_.decode(tokens);
    counts_.decode_tokens += static_cast<std::int64_t>(tokens.size());
    end_pass(counts_.decode_seconds, running_);
  }

  // Takes the next tokens of `running`, which have the pass's logits: none after a chunk before a prompt's last one.
  void end_pass(double& seconds, std::span<Running> running) {
    std::vector<std::int32_t> ids;
    if (!running.empty()) {
      ids = decoder_.choose([&](std::int64_t i, std::span<const float> logits) {
        const Running& one = running[static_cast<std::size_t>(i)];
        return sampler_.pick(logits, one.number,
                             static_cast<std::int64_t>(one.prompt->ids.size() + one.answer.ids.size()));
      });
    }
    seconds += seconds_since(since_);
    for (std::size_t i = 0; i < ids.size(); ++i) running[i].ended = take(running[i], ids[i]);
    for (Running& one : running) {
      if (one.ended) finish(one);
    }
    if (listener_.progress) listener_.progress(counts_);
    since_ = std::chrono::steady_clock::now();
  }

  // Appends the next token. True if the answer has ended.
  bool take(Running& running, std::int32_t id) {
    Answer& answer = running.answer;
    answer.ids.push_back(id);
    const std::vector<std::int64_t>& ends = running.prompt->chat ? input_.turns : input_.ends;
    const auto is_in = [&](const std::vector<std::int64_t>& tokens) {
      return std::ranges::find(tokens, id) != tokens.end();
    };
    std::string text;
    if (running.text) text = running.text->push(id);
    if (listener_.token) listener_.token(running.index, id, text);
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

  void finish(Running& running) {
    ++counts_.prompts;
    if (running.text) {
      const std::string rest = running.text->finish();
      if (!rest.empty() && listener_.token) listener_.token(running.index, -1, rest);
      running.answer.text = running.text->text();
    }
    if (listener_.answer) listener_.answer(running.index, running.answer);
  }

  const OpenGeneration& input_;
  Decoder& decoder_;
  Sampler& sampler_;
  Counts& counts_;
  std::span<const Prompt> prompts_;
  std::size_t known_;
  std::int64_t number_;
  const Listener& listener_;
  std::vector<Running> running_;
  std::vector<std::int64_t> free_;  // slots
  std::size_t next_ = 0;            // prompt
  std::vector<Answer> answers_;
  std::chrono::steady_clock::time_point since_ = std::chrono::steady_clock::now();  // the end of the pass before
};

Generator::Generator(OpenGeneration& input)
    : input_(input),
      device_(engine::make_device(input.device, input.threads)),
      decoder_(std::make_unique<Decoder>(input.open, input.recipe, input.size, input.threads, *device_,
                                         engine::SessionChecks(), input.ranks)),
      sampler_(input.sampling) {}

Generator::~Generator() = default;

std::vector<Answer> Generator::answer_all(const Listener& listener) {
  return Run(*this, input_.prompts, 0, 0, listener).answers();
}

Answer Generator::answer(const Prompt& prompt, std::size_t known, std::int64_t number, const Listener& listener) {
  return std::move(Run(*this, {&prompt, 1}, known, number, listener).answers().front());
}

}  // namespace hawser::generate

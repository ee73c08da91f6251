#include "generate/generate.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <memory>
#include <ranges>

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

// The answers to some prompts. The order in which it enqueues and retires passes depends on tokens only, never on time:
// it is the same on all ranks.
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
        groups_(static_cast<std::size_t>(input_.size.groups)),
        answers_(prompts.size()) {
    HAWSER_CHECK(decoder_.in_flight() == 0, "a generation after one that has failed");
    for (std::int64_t slot = input_.size.sequences - 1; slot >= 0; --slot) {
      groups_[static_cast<std::size_t>(slot % input_.size.groups)].free.push_back(slot);
    }
  }

  std::vector<Answer> answers() {
    const auto runs = [](const Group& group) { return !group.running.empty(); };
    for (std::size_t g = 0; next_ < prompts_.size() || std::ranges::any_of(groups_, runs); ++g) {
      turn(groups_[g % groups_.size()]);
    }
    return std::move(answers_);
  }

 private:
  // Sequences whose next tokens are computed together.
  struct Group {
    std::vector<std::unique_ptr<Running>> running;
    std::vector<std::int64_t> free;  // slots
    int in_flight = 0;               // passes
  };
  struct Pass {
    Group* group = nullptr;
    std::vector<Running*> running;  // in the order of its tokens; none of a chunk before a prompt's last one
    std::int64_t tokens = 0;        // computed
    bool of_prompt = false;
  };

  void turn(Group& group) {
    while (group.in_flight > 0) retire();
    std::erase_if(group.running, [&](const std::unique_ptr<Running>& one) {
      if (!one->ended) return false;
      group.free.push_back(one->slot);
      answers_[one->index] = std::move(one->answer);
      return true;
    });
    if (next_ < prompts_.size() && !group.free.empty()) {
      while (next_ < prompts_.size() && !group.free.empty()) start(group);
    } else if (!group.running.empty()) {
      decode(group);
    }
  }

  // Enqueues the next prompt.
  void start(Group& group) {
    const Prompt& prompt = prompts_[next_];
    HAWSER_CHECK(known_ < prompt.ids.size(), "a prompt without new tokens");
    auto running = std::make_unique<Running>();
    running->prompt = &prompt;
    running->index = next_;
    running->number = number_ + static_cast<std::int64_t>(next_);
    running->slot = group.free.back();
    running->positions = static_cast<std::int64_t>(prompt.ids.size());
    if (input_.tokenizer) running->text = std::make_unique<TextStream>(*input_.tokenizer, prompt.ids, input_.stops);
    for (std::size_t at = known_; at < prompt.ids.size();) {
      const std::size_t count = std::min<std::size_t>(prompt.ids.size() - at, kChunkRows);
      const std::span<const std::int32_t> ids = std::span(prompt.ids).subspan(at, count);
      Pass pass{.group = &group, .running = {}, .tokens = static_cast<std::int64_t>(count), .of_prompt = true};
      if (at + count == prompt.ids.size()) pass.running = {running.get()};
      wait_for_place();
      decoder_.enqueue(running->slot, static_cast<std::int64_t>(at), ids, pick_of(pass.running));
      add(std::move(pass));
      at += count;
    }
    group.free.pop_back();
    group.running.push_back(std::move(running));
    ++next_;
  }

  // Enqueues a pass for the next token of each of the group's sequences.
  void decode(Group& group) {
    Pass pass{.group = &group, .running = {}, .tokens = static_cast<std::int64_t>(group.running.size())};
    std::vector<Decoder::NewToken> tokens;
    for (const std::unique_ptr<Running>& one : group.running) {
      tokens.push_back({one->slot, one->positions++, one->answer.ids.back()});
      pass.running.push_back(one.get());
    }
    // In the bucket of the largest group: a pass in another bucket than the one before begins later.
    const auto size = [](const Group& other) { return other.running.size(); };
    const std::size_t largest = std::ranges::max(groups_ | std::views::transform(size));
    wait_for_place();
    decoder_.enqueue(tokens, pick_of(pass.running), static_cast<std::int64_t>(largest));
    add(std::move(pass));
  }

  Decoder::Pick pick_of(const std::vector<Running*>& running) {
    if (running.empty()) return {};
    return [this, running](std::int64_t i, std::span<const float> logits) {
      const Running& one = *running[static_cast<std::size_t>(i)];
      return sampler_.pick(logits, one.number,
                           static_cast<std::int64_t>(one.prompt->ids.size() + one.answer.ids.size()));
    };
  }

  void wait_for_place() {
    while (decoder_.in_flight() == decoder_.passes_in_flight()) retire();
  }

  void add(Pass pass) {
    ++pass.group->in_flight;
    passes_.push_back(std::move(pass));
  }

  // Takes the tokens of the oldest pass in flight.
  void retire() {
    const Pass pass = std::move(passes_.front());
    passes_.pop_front();
    --pass.group->in_flight;
    const std::vector<std::int32_t> ids = decoder_.choose();
    (pass.of_prompt ? counts_.prefill_seconds : counts_.decode_seconds) += seconds_since(since_);
    (pass.of_prompt ? counts_.prefill_tokens : counts_.decode_tokens) += pass.tokens;
    try {
      for (std::size_t i = 0; i < ids.size(); ++i) pass.running[i]->ended = take(*pass.running[i], ids[i]);
      for (Running* const one : pass.running) {
        if (one->ended) finish(*one);
      }
      if (listener_.progress) listener_.progress(counts_);
    } catch (...) {  // of a listener
      decoder_.drop();
      throw;
    }
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
  std::vector<Group> groups_;
  std::deque<Pass> passes_;  // in flight
  std::size_t next_ = 0;     // prompt
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

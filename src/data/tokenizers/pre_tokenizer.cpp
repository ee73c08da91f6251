#include "data/tokenizers/pre_tokenizer.h"

#include "data/utf8.h"

namespace hawser::data {
namespace {

// A run of text between cuts, and whether the pattern matched it.
struct Span {
  std::size_t begin, end;
  bool matched;
};

// Calls `visit` with matches and what lies between, in order; a match may be empty. Never twice at one place.
void for_each_span(const Regex& pattern, std::string_view text, Regex::Scratch& scratch,
                   FunctionRef<void(Span)> visit) {
  std::size_t done = 0, from = 0;
  bool any = false;
  while (from <= text.size()) {
    const auto match = pattern.find(text, from, scratch);
    if (!match) break;
    if (match->begin == match->end && any && match->end == done) {
      if (from == text.size()) break;
      from += utf8_step(text.substr(from)).bytes;
      continue;
    }
    if (match->begin > done) visit({done, match->begin, false});
    visit({match->begin, match->end, true});
    done = from = match->end;
    any = true;
  }
  if (done < text.size()) visit({done, text.size(), false});
}

// Joins spans as the behaviour says; spans come in order.
class Joiner {
 public:
  Joiner(SplitBehavior behavior, FunctionRef<void(std::size_t, std::size_t)> out) : behavior_(behavior), out_(out) {}

  void add(Span span) {
    const bool after_match = pending_ && last_matched_;
    bool join = false;
    switch (behavior_) {
      case SplitBehavior::isolated:
        break;
      case SplitBehavior::removed:
        if (span.matched) return;
        break;
      case SplitBehavior::merged_with_previous:
        join = span.matched && !after_match;
        break;
      case SplitBehavior::merged_with_next:
        join = !span.matched && after_match;
        break;
      case SplitBehavior::contiguous:
        join = pending_ && span.matched == last_matched_;
        break;
    }
    if (join && pending_) {
      end_ = span.end;
    } else {
      flush();
      begin_ = span.begin;
      end_ = span.end;
      pending_ = true;
    }
    last_matched_ = span.matched;
  }

  void flush() {
    if (pending_ && end_ > begin_) out_(begin_, end_);
    pending_ = false;
  }

 private:
  SplitBehavior behavior_;
  FunctionRef<void(std::size_t, std::size_t)> out_;
  bool pending_ = false, last_matched_ = false;
  std::size_t begin_ = 0, end_ = 0;
};

}  // namespace

void PreTokenizer::add_split(Regex pattern, SplitBehavior behavior, bool invert) {
  steps_.emplace_back(Split{std::move(pattern), behavior, invert});
}

void PreTokenizer::split(std::string_view text, Scratch& scratch, Emit emit) const {
  scratch.prefixed.resize(steps_.size());
  if (!text.empty()) run(0, text, scratch, emit);
}

void PreTokenizer::run(std::size_t step, std::string_view text, Scratch& scratch, Emit emit) const {
  if (step == steps_.size()) return emit(text);
  if (const auto* split = std::get_if<Split>(&steps_[step])) return run_split(*split, step, text, scratch, emit);
  if (text.front() == ' ') return run(step + 1, text, scratch, emit);
  std::string& prefixed = scratch.prefixed[step];
  prefixed = ' ';
  prefixed += text;
  run(step + 1, prefixed, scratch, emit);
}

void PreTokenizer::run_split(const Split& split, std::size_t step, std::string_view text, Scratch& scratch,
                             Emit emit) const {
  const auto pass_on = [&](std::size_t begin, std::size_t end) {
    run(step + 1, text.substr(begin, end - begin), scratch, emit);
  };
  Joiner joiner(split.behavior, pass_on);
  for_each_span(split.pattern, text, scratch.regex, [&](Span span) {
    span.matched = span.matched != split.invert;
    joiner.add(span);
  });
  joiner.flush();
}

}  // namespace hawser::data

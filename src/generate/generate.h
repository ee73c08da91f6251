// `Generator`: text generation with continuous batching.
//
//   Problems problems;
//   auto input = open_generation({.model = folder, .prompt = "It is a truth", .max_tokens = 32}, problems);
//   problems.throw_if_any();
//   Generator generator(*input);
//   std::vector<Answer> answers = generator.answer_all();
//
// Prompts are prefilled one at a time, in chunks. All running sequences then decode their next token in one pass; when
// one ends, the next prompt takes its slot.
//
// On several ranks (GenerateRequest::ranks), every rank makes the same calls with the same prompts and gets the same
// answers: one of them samples each token (Decoder::choose). What a Listener does must not depend on the rank, if it
// ends the generation by an exception.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "generate/decoder.h"
#include "generate/open.h"
#include "generate/text_stream.h"

namespace hawser::generate {

struct Answer {
  enum class End { length, token, text };  // max_tokens; an end token; a stop text
  std::vector<std::int32_t> ids;           // after the prompt, including the token that ended it
  std::string text;                        // without special tokens, up to a stop text. "" without a tokenizer
  End end = End::length;
};
const char* to_string(Answer::End end);  // "length", "end token", "stop text"

// Counts of computed tokens, and the time of their passes: that of a pass is from the end of the one before, without
// listeners.
struct Counts {
  std::int64_t prompts = 0;  // answered
  std::int64_t prefill_tokens = 0, decode_tokens = 0;
  double prefill_seconds = 0, decode_seconds = 0;

  double prefill_rate() const {
    return prefill_seconds > 0 ? static_cast<double>(prefill_tokens) / prefill_seconds : 0;
  }
  double decode_rate() const { return decode_seconds > 0 ? static_cast<double>(decode_tokens) / decode_seconds : 0; }
};

// Callbacks; each may be empty.
struct Listener {
  // A token of the answer to prompt i, and the text that is final with it. At the end there may be one more call with
  // id -1 and the text held back until then.
  std::function<void(std::size_t i, std::int32_t id, const std::string& text)> token;
  std::function<void(std::size_t i, const Answer& answer)> answer;  // complete; in the order in which answers end
  std::function<void(const Counts&)> progress;                      // between passes
};

class Generator {
 public:
  // Reserves memory and loads the weights. Error(does_not_fit). The input outlives this.
  explicit Generator(OpenGeneration& input);
  ~Generator();

  // Answers to input.prompts, in the order of the prompts.
  std::vector<Answer> answer_all(const Listener& listener = {});
  // The answer to one more prompt. Its first `known` tokens equal those of the previous prompt and answer in the first
  // slot, which it uses, and are not computed again. `number`: the prompt's number for sampling.
  Answer answer(const Prompt& prompt, std::size_t known, std::int64_t number, const Listener& listener = {});

  const Counts& counts() const { return counts_; }
  Decoder& decoder() { return *decoder_; }

 private:
  struct Running;
  class Run;

  OpenGeneration& input_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Decoder> decoder_;
  Sampler sampler_;
  Counts counts_;
};

}  // namespace hawser::generate

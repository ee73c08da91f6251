// `Decoder`: runs a model over new tokens of sequences whose earlier K and V are in a KV cache.
//
//   Decoder decoder(open, recipe, size, threads, device);
//   std::span<const float> logits = decoder.prefill(slot, 0, prompt);   // [V]: logits of the token after the prompt
//   ...
//   decoder.decode({{slot, position, token}, ...});                     // one token of each sequence
//   logits = decoder.logits(0);
//
// On several ranks (Ranks), every rank makes the same calls; choose() gives every rank the same tokens:
//   auto tokens = decoder.choose(pick);  // {pick(0, logits(0)), ...}
//
// A slot's contents stay until they are overwritten. A sequence may continue from any position up to its length; later
// positions are then dropped. On the CPU the logits of a sequence are bitwise independent of the other sequences in a
// pass, as long as a pass has at most 32 rows (ops/gemm) and attention has no window.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "device/device.h"
#include "engine/open_model.h"
#include "engine/session.h"
#include "generate/passes.h"

namespace hawser::generate {

class Decoder {
 public:
  // Plans, reserves memory and loads the weights. Error(does_not_fit) before anything is reserved. The model outlives
  // this: this rank's part of it.
  Decoder(engine::OpenModel& open, const Recipe& recipe, const CacheSize& size, int threads, Device& device,
          engine::SessionChecks checks = {}, const Ranks& ranks = {});

  const CacheSize& size() const { return size_; }
  std::int64_t vocabulary() const { return vocabulary_; }

  // Computes one or more ids at positions [position, ...) of the sequence in `slot`, whose earlier positions have been
  // computed. Returns the logits after the last id [V], valid until the next pass.
  std::span<const float> prefill(std::int64_t slot, std::int64_t position, std::span<const std::int32_t> ids);

  struct NewToken {
    std::int64_t slot = 0, position = 0;
    std::int32_t id = 0;
  };
  // One pass over a new token of each of several sequences, in distinct slots. logits(i) then returns those after the
  // ith token.
  void decode(std::span<const NewToken> tokens);
  std::span<const float> logits(std::int64_t i) const;  // of the last pass

  // The token after row i of those with logits.
  using Pick = std::function<std::int32_t(std::int64_t i, std::span<const float> logits)>;
  // The tokens after the rows with logits of the last pass, the same on every rank. One rank calls `pick` for each row:
  // logits of two ranks may differ in the last digits, and ranks with different tokens would no longer be in step. An
  // Error that `pick` throws is thrown on every rank.
  std::vector<std::int32_t> choose(const Pick& pick);

  // The kernels it used, for the user.
  std::vector<std::string> notes();

 private:
  // New rows of a sequence.
  struct Piece {
    std::int64_t slot = 0, position = 0;
    std::span<const std::int32_t> ids;
  };
  void run(std::size_t bucket, std::span<const Piece> pieces);

  CacheSize size_;
  std::vector<ShapeBucket> buckets_;
  std::int64_t vocabulary_;
  std::unique_ptr<comm::Mesh> mesh_;
  std::unique_ptr<engine::Session> session_;
  std::shared_ptr<const std::vector<float>> logits_;  // of the last pass, [bucket's sequences, V]
  std::int64_t rows_ = 0;                             // the first ones of them, which have a sequence
};

}  // namespace hawser::generate

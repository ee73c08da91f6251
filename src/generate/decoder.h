// A model that goes on from tokens it has seen: passes over new rows, with keys and values kept between them.
//
//   Decoder decoder(open, recipe, size, threads, device);
//   std::span<const float> logits = decoder.prefill(slot, 0, prompt);   // [V]: what comes behind the prompt
//   ...
//   decoder.decode({{slot, position, token}, ...});                     // a row each
//   logits = decoder.logits(0);
//
// What a slot holds stays until it is written over: a sequence may go on from any position up to where it stands, and
// what lay behind is forgotten. On the CPU a sequence's numbers do not depend on the others of a pass, to the bit, as
// long as a pass has 32 rows at most (ops/gemm) and attention no window.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "device/device.h"
#include "generate/passes.h"
#include "train/open_model.h"
#include "train/session.h"

namespace hawser::generate {

class Decoder {
 public:
  // Plans, reserves and loads the weights. Error(does_not_fit) before anything is reserved. The model outlives this.
  Decoder(train::OpenModel& open, const Recipe& recipe, const CacheSize& size, int threads, Device& device,
          train::SessionChecks checks = {});

  const CacheSize& size() const { return size_; }
  std::int64_t vocabulary() const { return vocabulary_; }

  // Computes ids, one or more, at positions [position, ...) of the sequence in `slot`, of which the earlier ones have
  // been computed. Returns the logits behind the last, valid until the next pass.
  std::span<const float> prefill(std::int64_t slot, std::int64_t position, std::span<const std::int32_t> ids);

  struct NewToken {
    std::int64_t slot = 0, position = 0;
    std::int32_t id = 0;
  };
  // One pass over a new token of each of several sequences, no slot twice; logits(i) is then what comes behind the ith.
  void decode(std::span<const NewToken> tokens);
  std::span<const float> logits(std::int64_t i) const;

  // Which kernels it took, for people.
  std::vector<std::string> notes();

 private:
  struct Piece {
    std::int64_t slot = 0, position = 0;
    std::span<const std::int32_t> ids;
  };
  void run(std::size_t bucket, std::span<const Piece> pieces);

  CacheSize size_;
  std::vector<ShapeBucket> buckets_;
  std::int64_t vocabulary_;
  std::unique_ptr<comm::Mesh> mesh_;
  std::unique_ptr<train::Session> session_;
  std::shared_ptr<std::vector<float>> logits_;
};

}  // namespace hawser::generate

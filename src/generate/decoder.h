// `Decoder`: runs a model over new tokens of sequences whose earlier K and V are in a KV cache.
//
//   Decoder decoder(open, recipe, size, threads, device);
//   std::span<const float> logits = decoder.prefill(slot, 0, prompt);   // [V]: logits of the token after the prompt
//   ...
//   decoder.decode({{slot, position, token}, ...});                     // one token of each sequence
//   logits = decoder.logits(0);
//
// On several ranks (Ranks), every rank makes the same calls. With pipeline stages, only the ranks of the last one have
// logits; choose() gives every rank the same tokens. While a stage computes a pass, the others may compute passes of
// other sequences:
//   decoder.enqueue(first, pick);        // at most passes_in_flight()
//   decoder.enqueue(second, pick);
//   auto tokens = decoder.choose();      // of `first`: {pick(0, its logits), ...}
//
// A slot's contents stay until they are overwritten. A sequence may continue from any position up to its length; later
// positions are then dropped. On the CPU the logits of a sequence are bitwise independent of the other sequences in a
// pass, as long as a pass has at most 32 rows (ops/gemm) and attention has no window.
#pragma once

#include <deque>
#include <exception>
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

  struct NewToken {
    std::int64_t slot = 0, position = 0;
    std::int32_t id = 0;
  };
  // The token after row i of those with logits. One rank calls it for each row: logits of two ranks may differ in the
  // last digits, and ranks with different tokens would no longer be in step.
  using Pick = std::function<std::int32_t(std::int64_t i, std::span<const float> logits)>;

  // Enqueues a pass over a new token of each of several sequences, in distinct slots; each has a row of logits. Does not
  // wait for the pass. `pick`: until its choose(); empty: no token is chosen. At most passes_in_flight() are in flight,
  // and none of them in the same slots; InternalError otherwise. The host waits if the pass before is in another shape
  // bucket: `sequences` asks for that of more sequences, so that passes of a few less stay in one.
  void enqueue(std::span<const NewToken> tokens, Pick pick, std::int64_t sequences = 0);
  // The same over at most kChunkRows ids at positions [position, ...) of one sequence, whose earlier positions are
  // computed or in flight. The last id has a row of logits.
  void enqueue(std::int64_t slot, std::int64_t position, std::span<const std::int32_t> ids, Pick pick);
  // Waits for the oldest pass in flight. Returns the tokens after its rows, the same on every rank. An Error that `pick`
  // throws is thrown on every rank, after drop().
  std::vector<std::int32_t> choose();
  // Waits for all passes in flight; their tokens are not used.
  void drop();

  int passes_in_flight() const { return max_passes_; }  // as many as there are stages (generate::passes_in_flight)
  int in_flight() const { return static_cast<int>(in_flight_.size()); }

  // For one sequence, or one pass at a time: enqueue() and choose(), with no other pass in flight.
  // Computes one or more ids at positions [position, ...) of the sequence in `slot`, whose earlier positions have been
  // computed. Returns the logits after the last id [V], valid until the next pass; empty unless has_logits().
  std::span<const float> prefill(std::int64_t slot, std::int64_t position, std::span<const std::int32_t> ids);
  // logits(i) then returns those after the ith token; InternalError unless has_logits().
  void decode(std::span<const NewToken> tokens);
  // Of the pass that choose() ended last.
  std::span<const float> logits(std::int64_t i) const { return row(last_, i); }
  bool has_logits() const;  // this rank is in the last pipeline stage

  // The kernels it used, for the user.
  std::vector<std::string> notes();

 private:
  // New rows of a sequence.
  struct Piece {
    std::int64_t slot = 0, position = 0;
    std::span<const std::int32_t> ids;
  };
  struct Pass {
    step::StepOutput output = {};
    Pick pick = {};
    std::vector<std::int64_t> slots = {};  // one for each row with logits
    std::int64_t end = -1;                 // of a chunk of a prompt: the position of the next one
    std::vector<std::int32_t> tokens = {};
    std::exception_ptr error = nullptr;  // of `pick`, on every rank
  };
  void start(Pass pass, std::size_t bucket, std::span<const Piece> pieces);
  void check_slots(const Pass& pass, std::span<const Piece> pieces) const;
  void choose_next();
  std::span<const float> row(const step::StepOutput& output, std::int64_t i) const;

  CacheSize size_;
  std::vector<ShapeBucket> buckets_;
  std::int64_t vocabulary_;
  int max_passes_;
  std::unique_ptr<comm::Mesh> mesh_;
  std::unique_ptr<engine::Session> session_;
  std::deque<Pass> in_flight_;
  int chosen_ = 0;         // the oldest ones of in_flight_: their tokens are known
  step::StepOutput last_;  // of the pass that choose() ended last
};

}  // namespace hawser::generate

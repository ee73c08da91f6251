// Micro-batches by step number.
//
//   BatchLoader loader(set, shape, layout, {.global_batch_size = 8, .seed = 7});
//   for (int m = 0; m < loader.micro_batches(); ++m) use(loader.load(step, m));
//
// Sequence number m * (data_ranks * shape.sequences) + data_rank * shape.sequences + k of a step is the k-th of
// micro-batch m on a data rank. Which sequences a step has depends on the seed and the step alone; where the global
// batch does not divide, the last micro-batches run short or empty, and every rank has equally many.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>

#include "data/micro_batch.h"
#include "data/sequence.h"

namespace hawser::data {

// Where this rank stands; its context ranks all read the same sequences.
struct BatchLayout {
  int data_rank = 0, data_ranks = 1;
  int context_rank = 0, context_ranks = 1;
};

struct BatchOrder {
  std::int64_t global_batch_size = 1;  // sequences a step, over all data ranks and micro-batches
  std::uint64_t seed = 0;
  bool shuffle = true;     // endless, a new order each epoch; false: the set once, in order, for evaluation
  std::int64_t first = 0;  // without shuffling: so many sequences of the set alone; 0: all of it
};

class BatchLoader {
 public:
  BatchLoader(std::shared_ptr<const SequenceSet> set, const BatchShape& shape, const BatchLayout& layout,
              const BatchOrder& order);

  std::int64_t micro_batches() const;  // of a step, on every rank
  std::int64_t steps() const;          // without shuffling: until they are used up

  // Thread-safe. UserError for ids outside the vocabulary.
  MicroBatch load(std::int64_t step, std::int64_t micro_batch) const;

  // Targets of a whole step, all ranks: the same number on each.
  std::int64_t step_targets(std::int64_t step) const;

  const BatchShape& shape() const { return shape_; }

 private:
  // Index in the set of a step's i-th sequence; -1: none.
  std::int64_t sequence_of(std::int64_t step, std::int64_t i) const;
  // Sequences that are read without shuffling.
  std::int64_t in_order() const;

  std::shared_ptr<const SequenceSet> set_;
  BatchShape shape_;
  BatchLayout layout_;
  BatchOrder order_;
  mutable std::mutex mutex_;  // guards the two below: a step's targets are asked for once a micro-batch
  mutable std::int64_t counted_step_ = -1, counted_targets_ = 0;
};

// Loads ahead on a thread of its own, micro-batch after micro-batch from a given step on.
class Prefetcher {
 public:
  // Keeps up to `depth` micro-batches ready. Ends before `end_step`; -1: never.
  Prefetcher(std::shared_ptr<const BatchLoader> loader, std::int64_t first_step, std::int64_t end_step = -1,
             int depth = 2);
  ~Prefetcher();
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  // The next micro-batch, in the order (step, 0), (step, 1), ..., (step + 1, 0), ...; waits for it. Rethrows what
  // loading it threw. Asking beyond the end is an InternalError.
  MicroBatch next();

 private:
  void work(std::int64_t first_step, std::int64_t end_step);

  std::shared_ptr<const BatchLoader> loader_;
  std::size_t depth_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<MicroBatch> ready_;
  std::exception_ptr error_;
  bool stop_ = false, ended_ = false;
  std::thread thread_;
};

// A whole JSONL file, or a .txt file as one document, as one batch, for `hawser eval`: step 0 of a loader whose every
// rank has equally many micro-batches. `shape.max_documents` is raised to what the file holds, `shape.sequence_length`
// lowered to its longest piece. `tokenizer` may be null if every line brings ids, `chat_template` if none is a
// conversation; `without` and `without_template` say why they are, where that is more than that there is none.
// UserError, all problems of the file together.
struct ListedBatch {
  std::string path;
  const Tokenizer* tokenizer = nullptr;
  Problems without;
  std::shared_ptr<const chat::ChatTemplate> chat_template;
  Problems without_template;
  std::int64_t vocab_size = 0;
};
std::shared_ptr<const BatchLoader> listed_batch(const ListedBatch& from, BatchShape shape, const BatchLayout& layout);

}  // namespace hawser::data

// `BatchLoader`, `Prefetcher`: micro-batches by step number.
//
//   BatchLoader loader(set, shape, layout, {.global_batch_size = 8, .seed = 7});
//   for (int m = 0; m < loader.micro_batches(); ++m) use(loader.load(step, m));
//
// Sequence k of micro-batch m on a data rank has this number in the step:
//
//   m * (data_ranks * shape.sequences) + data_rank * shape.sequences + k
//
// The sequences of a step depend on the seed and the step only. If the global batch does not divide evenly, the last
// micro-batches have fewer sequences or none. Every rank has the same number of micro-batches.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>

#include "batches/micro_batch.h"
#include "batches/mixture.h"
#include "batches/sequence.h"

namespace hawser::batches {

// Position of this rank. All context ranks of a data rank read the same sequences.
struct BatchLayout {
  int data_rank = 0, data_ranks = 1;
  int context_rank = 0, context_ranks = 1;
};

struct BatchOrder {
  std::int64_t global_batch_size = 1;  // sequences per step, over all data ranks and micro-batches
  std::uint64_t seed = 0;
  bool shuffle = true;  // endless, a new order in each epoch; false: the set once, in order, for evaluation
  std::shared_ptr<const Mixture> mixture = {};  // with shuffling: of the set's parts; null: the set has none
  std::int64_t first = 0;                       // without shuffling: read only this number of sequences; 0: all
};

class BatchLoader {
 public:
  // UserError if the first sequence has not the tables of the shape (check_sequence_tables), or the labels of the set
  // are not those of the shape (check_label_rows).
  BatchLoader(std::shared_ptr<const SequenceSet> set, const BatchShape& shape, const BatchLayout& layout,
              const BatchOrder& order);

  std::int64_t micro_batches() const;  // per step; the same on every rank
  std::int64_t steps() const;          // without shuffling: until all sequences are read

  // Thread-safe. UserError for ids outside the vocabulary.
  MicroBatch load(std::int64_t step, std::int64_t micro_batch) const;

  // Number of targets in the step over all ranks; the same on each rank.
  std::int64_t step_targets(std::int64_t step) const;

  // Of the ids, labels, documents and tables of the step's sequences; the same on each rank that has the same data.
  std::uint64_t step_hash(std::int64_t step) const;

  const BatchShape& shape() const { return shape_; }

 private:
  // Index in the set of the step's i-th sequence; -1 if there is none.
  std::int64_t sequence_of(std::int64_t step, std::int64_t i) const;
  // Number of sequences that are read without shuffling.
  std::int64_t in_order() const;

  std::shared_ptr<const SequenceSet> set_;
  BatchShape shape_;
  BatchLayout layout_;
  BatchOrder order_;
  mutable std::mutex mutex_;  // guards the next two: step_targets() is called for every micro-batch
  mutable std::int64_t counted_step_ = -1, counted_targets_ = 0;
};

// Loads micro-batches ahead on its own thread, in order from a given step.
class Prefetcher {
 public:
  // Keeps up to `depth` micro-batches ready. Stops before `end_step`; -1: never.
  Prefetcher(std::shared_ptr<const BatchLoader> loader, std::int64_t first_step, std::int64_t end_step = -1,
             int depth = 2);
  ~Prefetcher();
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  // Returns the next micro-batch, in the order (step, 0), (step, 1), ..., (step + 1, 0), ...; blocks until it is
  // loaded. Rethrows exceptions of the loader. InternalError after the last one.
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

// Loads a file of open_lines.h, or a .txt file as one document, as one batch for `hawser eval`: step 0 of the loader.
// Every rank has the same number of micro-batches. Raises `shape.max_documents` to the file's maximum and lowers
// `shape.sequence_length` to its longest piece. `tokenizer` may be null if every line has ids, `chat_template` if no
// line is a conversation; `without` and `without_template` then have the reasons, or are empty if there is simply none.
// UserError with all problems of the file.
struct ListedBatch {
  std::vector<std::string> paths;
  const text::Tokenizer* tokenizer = nullptr;
  Problems without;
  std::shared_ptr<const text::chat::ChatTemplate> chat_template;
  Problems without_template;
  std::tm time = text::chat::kTemplateDate;  // that strftime_now gives the template
  prepare::LineNames names;                  // of keys and roles in the file
  std::int64_t vocab_size = 0;
  // The model could not be opened: text without a tokenizer is no problem, and the result is null if there is some.
  bool model_unknown = false;
};
// `split`, if given: the number of documents that have more than shape.sequence_length tokens.
std::shared_ptr<const BatchLoader> listed_batch(const ListedBatch& from, BatchShape shape, const BatchLayout& layout,
                                                std::int64_t* split = nullptr);

}  // namespace hawser::batches

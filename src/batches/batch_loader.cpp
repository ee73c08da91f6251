#include "batches/batch_loader.h"

#include <algorithm>

#include "base/error.h"
#include "base/philox.h"
#include "base/units.h"
#include "batches/labels.h"
#include "batches/sequence_order.h"
#include "prepare/answers.h"
#include "prepare/sources.h"

namespace hawser::batches {

BatchLoader::BatchLoader(std::shared_ptr<const SequenceSet> set, const BatchShape& shape, const BatchLayout& layout,
                         const BatchOrder& order)
    : set_(std::move(set)), shape_(shape), layout_(layout), order_(order) {
  HAWSER_CHECK(layout.context_ranks == shape.context, "layout of ", layout.context_ranks, " context ranks, shape of ",
               shape.context);
  HAWSER_CHECK(order.global_batch_size > 0 && shape.sequences > 0, "empty batches");
  HAWSER_CHECK(set_->max_documents() <= shape.max_documents, set_->max_documents(), " documents per sequence, maximum ",
               shape.max_documents);
  check_label_rows(set_->label_rows(), shape_.labels.rows);
  // Every sequence is checked as it is loaded. Data without the tables are found here, before a step.
  if (!shape_.tables.empty() && set_->size() > 0) check_sequence_tables(set_->get(0), shape_.tables);
}

std::int64_t BatchLoader::micro_batches() const {
  return ceil_div(order_.global_batch_size, layout_.data_ranks * shape_.sequences);
}

std::int64_t BatchLoader::steps() const {
  return ceil_div(in_order(), order_.global_batch_size);
}

std::int64_t BatchLoader::sequence_of(std::int64_t step, std::int64_t i) const {
  if (i >= order_.global_batch_size || set_->size() == 0) return -1;
  const std::int64_t index = step * order_.global_batch_size + i;
  if (order_.mixture) return order_.mixture->at(index);
  if (order_.shuffle) return sequence_at(order_.seed, set_->size(), index);
  return index < in_order() ? index : -1;
}

std::int64_t BatchLoader::in_order() const {
  return order_.first > 0 ? std::min(order_.first, set_->size()) : set_->size();
}

std::int64_t BatchLoader::step_targets(std::int64_t step) const {
  {
    const std::lock_guard lock(mutex_);
    if (counted_step_ == step) return counted_targets_;
  }
  std::int64_t targets = 0;
  for (std::int64_t i = 0; i < order_.global_batch_size; ++i) {
    if (const std::int64_t index = sequence_of(step, i); index >= 0) targets += set_->targets(index);
  }
  const std::lock_guard lock(mutex_);
  counted_step_ = step;
  counted_targets_ = targets;
  return targets;
}

std::uint64_t BatchLoader::step_hash(std::int64_t step) const {
  std::uint64_t hash = fnv1a("");
  const auto add = [&](const std::vector<std::int32_t>& numbers) {
    hash = fnv1a({reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(std::int32_t)}, hash);
  };
  for (std::int64_t i = 0; i < order_.global_batch_size; ++i) {
    const std::int64_t index = sequence_of(step, i);
    if (index < 0) continue;
    const Sequence sequence = set_->get(index);
    for (const auto& numbers : {sequence.ids, sequence.labels, sequence.document_lengths}) add(numbers);
    for (const auto& [name, values] : sequence.tables) {
      hash = fnv1a(name, hash);
      hash = fnv1a({reinterpret_cast<const char*>(values.data()), static_cast<std::size_t>(values.bytes())}, hash);
    }
  }
  return hash;
}

MicroBatch BatchLoader::load(std::int64_t step, std::int64_t micro_batch) const {
  const std::int64_t first = (micro_batch * layout_.data_ranks + layout_.data_rank) * shape_.sequences;
  std::vector<Sequence> sequences;
  for (std::int64_t k = 0; k < shape_.sequences; ++k) {
    if (const std::int64_t index = sequence_of(step, first + k); index >= 0) sequences.push_back(set_->get(index));
  }
  MicroBatch batch = make_micro_batch(sequences, shape_, layout_.context_rank, first);
  batch.step_targets = step_targets(step);
  return batch;
}

Prefetcher::Prefetcher(std::shared_ptr<const BatchLoader> loader, std::int64_t first_step, std::int64_t end_step,
                       int depth)
    : loader_(std::move(loader)), depth_(static_cast<std::size_t>(std::max(1, depth))) {
  thread_ = std::thread([this, first_step, end_step] { work(first_step, end_step); });
}

Prefetcher::~Prefetcher() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Prefetcher::work(std::int64_t first_step, std::int64_t end_step) {
  try {
    for (std::int64_t step = first_step; end_step < 0 || step < end_step; ++step) {
      for (std::int64_t micro = 0; micro < loader_->micro_batches(); ++micro) {
        {
          std::unique_lock lock(mutex_);
          changed_.wait(lock, [&] { return stop_ || ready_.size() < depth_; });
          if (stop_) return;
        }
        MicroBatch batch = loader_->load(step, micro);
        const std::lock_guard lock(mutex_);
        ready_.push_back(std::move(batch));
        changed_.notify_all();
      }
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    error_ = std::current_exception();
  }
  const std::lock_guard lock(mutex_);
  ended_ = true;
  changed_.notify_all();
}

MicroBatch Prefetcher::next() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !ready_.empty() || ended_; });
  if (ready_.empty()) {
    if (error_) std::rethrow_exception(error_);
    HAWSER_CHECK(false, "no micro-batch after the last step");
  }
  MicroBatch batch = std::move(ready_.front());
  ready_.pop_front();
  changed_.notify_all();
  return batch;
}

namespace {

// Also rejects ids from the tokenizer that are outside the model's vocabulary; ids in lines are checked by the parser.
std::int64_t longest_piece(const SequenceSet& set, const std::string& path, std::int64_t vocab_size) {
  std::int64_t longest = 1;
  for (std::int64_t i = 0; i < set.size(); ++i) {
    const Sequence sequence = set.get(i);
    longest = std::max(longest, sequence.length());
    for (const std::int32_t id : sequence.ids) {
      if (vocab_size == 0 || id < vocab_size) continue;
      throw UserError({.file = path,
                       .what = "the tokenizer produces ids outside the model's vocabulary",
                       .expected = cat("ids below ", vocab_size),
                       .got = cat(id)});
    }
  }
  return longest;
}

}  // namespace

std::shared_ptr<const BatchLoader> listed_batch(const ListedBatch& from, BatchShape shape, const BatchLayout& layout,
                                                std::int64_t* split) {
  Problems problems;
  std::vector<prepare::Line> lines;
  for (const std::string& path : from.paths) {
    std::vector<prepare::Line> read = prepare::kind_by_name(path) == prepare::SourceKind::text
                                          ? prepare::read_text_file(path, problems)
                                          : prepare::read_jsonl(path, from.vocab_size, problems, from.names);
    const bool text = std::ranges::any_of(read, [](const prepare::Line& line) { return line.ids.empty(); });
    if (text && !from.tokenizer && from.model_unknown) {
      prepare::without_repeats(problems).throw_if_any();
      return nullptr;
    }
    if (text && !from.tokenizer && !from.without.empty()) {
      problems.add(from.without);
    } else if (text && !from.tokenizer) {
      problems.add(
          {.file = path, .what = "lines of text need a tokenizer", .hint = "a tokenizer.json in the model's folder"});
    } else if (from.tokenizer) {
      const prepare::AnswerEncoder answers(*from.tokenizer, from.chat_template, from.without_template, from.time);
      for (prepare::Line& line : read) {
        if (line.chat || line.completion)
          answers.encode(line, {.file = path, .number = line.number, .unit = line.unit}, problems);
      }
    }
    std::ranges::move(read, std::back_inserter(lines));
  }
  prepare::without_repeats(problems).throw_if_any();
  std::shared_ptr<const SequenceSet> set = listed_sequences(lines, from.tokenizer, shape.sequence_length, split);
  shape.max_documents = std::max(shape.max_documents, set->max_documents());
  shape.sequence_length = std::min(shape.sequence_length, longest_piece(*set, from.paths.front(), from.vocab_size));
  const BatchOrder order{.global_batch_size = std::max<std::int64_t>(1, set->size()), .shuffle = false};
  return std::make_shared<const BatchLoader>(std::move(set), shape, layout, order);
}

}  // namespace hawser::batches

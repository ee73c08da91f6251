// Blocks of source files turned into token sequences by threads, handed back in the order they were put in. Internal to
// prepare.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "data/files.h"
#include "data/sources.h"
#include "data/tokenizers/tokenizer.h"

namespace hawser::data {

// Some whole lines of a JSONL file, or a whole text file.
struct Block {
  SourceKind kind = SourceKind::jsonl;
  std::string file;
  std::shared_ptr<const MappedFile> mapping;  // what `text` lies in
  std::string_view text;
  std::int64_t first_line = 1;  // number of its first line
  std::int64_t first_byte = 0;  // where it starts in the file
};

struct EncodedDocument {
  std::vector<std::int32_t> ids, labels, document_lengths;  // as in Line; ids may be empty (an empty text)
};

struct EncodedBlock {
  std::vector<EncodedDocument> documents;  // one a line that is not blank, or the one text
  Problems problems;
  std::int64_t bytes = 0;
};

// Encodes one block. `tokenizer` may be null: then text is a problem. `vocab_size` bounds the ids that lines bring.
EncodedBlock encode_block(const Block& block, const Tokenizer* tokenizer, std::int64_t vocab_size);

class BlockPool {
 public:
  BlockPool(int threads, const Tokenizer* tokenizer, std::int64_t vocab_size);
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  void put(Block block);
  EncodedBlock take();  // the oldest put and not yet taken; waits for it, rethrows what its thread threw
  std::int64_t in_flight() const { return put_ - taken_; }

 private:
  struct Result {
    EncodedBlock block;
    std::exception_ptr error;
  };
  void work();

  const Tokenizer* tokenizer_;
  std::int64_t vocab_size_;
  std::int64_t put_ = 0, taken_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<std::int64_t, Block>> waiting_;
  std::map<std::int64_t, Result> done_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace hawser::data

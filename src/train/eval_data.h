// What an evaluation reads: a JSONL or text file, or a token file, as one batch.
#pragma once

#include <memory>
#include <string>

#include "base/error.h"
#include "data/batch_loader.h"
#include "data/token_file.h"
#include "data/tokenizers/tokenizer.h"

namespace hawser::train {

struct EvalDataRequest {
  std::string data;           // a .txt file, the prefix, .bin or .idx of a token file, or else a JSONL file
  std::string bigram;         // a token file likewise, for the bigram model; "": none
  std::string tokenizer;      // a tokenizer.json; "": none
  std::string chat_template;  // for lines with messages: a name or a file; "": the tokenizer's
  std::int64_t vocabulary = 0;
  // A token file: the documents apart, as `pack: documents` has them, or as one running text.
  bool across_documents = false;
  std::int64_t max_documents = 1;  // in one sequence, where documents are apart
};

struct EvalData {
  std::shared_ptr<const data::BatchLoader> loader;
  std::shared_ptr<const data::TokenFile> tokens, bigram;  // null: not that kind of data, not asked for
  std::unique_ptr<data::Tokenizer> tokenizer;             // of `tokens`; null: none
};

// This rank's part of the data. Adds every problem; then the result is not to be used.
EvalData open_eval_data(const EvalDataRequest& request, const data::BatchShape& shape, const data::BatchLayout& layout,
                        Problems& problems);

}  // namespace hawser::train

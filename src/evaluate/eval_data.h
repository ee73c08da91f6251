// Data of an evaluation: a JSONL or text file, a folder of them, or a token file, loaded as one batch.
#pragma once

#include <memory>
#include <string>

#include "base/error.h"
#include "base/training_options.h"
#include "batches/batch_loader.h"
#include "prepare/token_file.h"
#include "text/tokenizers/tokenizer.h"

namespace hawser::evaluate {

struct EvalDataRequest {
  std::string data;           // prefix, .bin or .idx of a token file; a folder, as of data.validation; others are text
  std::string bigram;         // token file for the bigram model, named in the same way; "": none
  std::string tokenizer;      // a tokenizer.json; "": none
  std::string chat_template;  // name or file, for lines with messages; "": the tokenizer's
  std::string template_date;  // that strftime_now gives the template; "": the default of data.template_date
  prepare::LineNames names;   // of keys and roles in the file
  std::int64_t vocabulary = 0;
  bool model_unknown = false;  // the model could not be opened; nothing is reported that depends on it
  // Of a token file. true: one running text; false: separate documents, as with `pack: documents`.
  bool across_documents = false;
  std::int64_t max_documents = 1;                       // per sequence, if documents are separate
  LongDocuments long_documents = LongDocuments::split;  // of a token file, if documents are separate
};

struct EvalData {
  std::shared_ptr<const batches::BatchLoader> loader;
  std::shared_ptr<const prepare::TokenFile> tokens, bigram;  // null: `data` is no token file; no bigram model requested
  std::unique_ptr<text::Tokenizer> tokenizer;                // of `tokens`; null: none
  std::string note;                                          // on documents longer than a sequence; "": none are
};

// Opens this rank's part of the data. Adds every problem; the result is valid only if none was added.
EvalData open_eval_data(const EvalDataRequest& request, const batches::BatchShape& shape,
                        const batches::BatchLayout& layout, Problems& problems);

}  // namespace hawser::evaluate

#include "evaluate/eval_data.h"

#include <algorithm>

#include "base/calendar.h"
#include "base/paths.h"
#include "base/text.h"
#include "batches/statistics.h"
#include "io/files.h"
#include "prepare/prepare.h"
#include "prepare/sources.h"

namespace hawser::evaluate {
namespace {

std::unique_ptr<text::Tokenizer> load(const std::string& tokenizer, Problems& problems) {
  try {
    return tokenizer.empty() ? nullptr : text::load_tokenizer(tokenizer);
  } catch (const UserError& error) {
    problems.add_lines(error.what());
  }
  return nullptr;
}

// Opens a token file and checks that its ids are of the tokenizer, if there is one, and in the vocabulary; adds a problem
// and returns null otherwise.
std::shared_ptr<const prepare::TokenFile> open_tokens(const std::string& named, std::int64_t vocabulary,
                                                      const text::Tokenizer* tokenizer, Problems& problems) {
  try {
    const auto prefix = prepare::token_prefix(named, "");
    if (const auto other = prefix && tokenizer ? prepare::other_tokenizer(*prefix, *tokenizer) : std::nullopt) {
      problems.add(*other);
      return nullptr;
    }
    auto file = std::make_shared<const prepare::TokenFile>(prefix.value_or(resolve_path(named, "")));
    file->check_ids(vocabulary);
    return file;
  } catch (const UserError& error) {
    problems.add_lines(error.what());
  }
  return nullptr;
}

// A token file as one batch. Sums do not depend on the packing, so any seed will do.
std::shared_ptr<const batches::BatchLoader> token_batch(const EvalDataRequest& request,
                                                        std::shared_ptr<const prepare::TokenFile> file,
                                                        batches::BatchShape shape, const batches::BatchLayout& layout) {
  std::shared_ptr<const batches::SequenceSet> set =
      request.across_documents
          ? batches::chunked_sequences(std::move(file), shape.sequence_length, request.vocabulary)
          : batches::packed_sequences(std::move(file), shape.sequence_length, request.max_documents, 0,
                                      request.vocabulary, request.long_documents);
  shape.max_documents = set->max_documents();
  const batches::BatchOrder order{.global_batch_size = std::max<std::int64_t>(1, set->size()), .shuffle = false};
  return std::make_shared<const batches::BatchLoader>(std::move(set), shape, layout, order);
}

// The file that is evaluated on, or those of a folder that data.validation would read.
std::vector<std::string> files_of(const std::string& data, Problems& problems) {
  const std::string path = resolve_path(data, "");
  if (!io::is_folder(path)) return {data};
  std::vector<std::string> files;
  Problems found;
  for (const auto& source : prepare::find_sources({path}, "", "--data", found, prepare::Split::validation)) {
    if (source.kind != prepare::SourceKind::tokens) files.push_back(source.path);
  }
  for (Problem problem : found.all()) {
    problem.at = "--data";
    problems.add(std::move(problem));
  }
  return files;
}

bool names_tokens(const std::string& path) {
  // .bin or .idx: if one of both is missing, the error names it.
  return prepare::token_prefix(path, "").has_value() || path.ends_with(".bin") || path.ends_with(".idx");
}

}  // namespace

EvalData open_eval_data(const EvalDataRequest& request, const batches::BatchShape& shape,
                        const batches::BatchLayout& layout, Problems& problems) {
  EvalData opened;
  const bool tokens = names_tokens(request.data);
  if (!tokens && !request.bigram.empty()) {
    problems.add({.file = request.data,
                  .what = "a bigram model needs a token file as data",
                  .expected = "the prefix of a .bin and an .idx",
                  .hint = "hawser prepare, which creates them"});
  }
  try {
    if (!tokens) {
      Problems of_tokenizer;  // reported only if text needs a tokenizer
      const auto tokenizer = load(request.tokenizer, of_tokenizer);
      batches::ListedBatch from{.paths = files_of(request.data, problems),
                                .tokenizer = tokenizer.get(),
                                .without = of_tokenizer,
                                .time = parse_day(request.template_date).value_or(text::chat::kTemplateDate),
                                .names = request.names,
                                .vocab_size = request.vocabulary,
                                .model_unknown = request.model_unknown};
      if (from.paths.empty()) return opened;
      from.chat_template =
          text::chat::open_chat_template(request.chat_template, request.tokenizer, "", "data.chat_template",
                                         request.chat_template.empty() ? from.without_template : problems);
      std::int64_t split = 0;
      opened.loader = batches::listed_batch(from, shape, layout, &split);
      if (split > 0) {
        opened.note = cat(plural(split, "document"), split == 1 ? " is" : " are", " longer than ",
                          shape.sequence_length, " tokens and split into pieces, which do not attend to each other");
      }
      return opened;
    }
    opened.tokenizer = load(request.tokenizer, problems);
    const text::Tokenizer* tokenizer = opened.tokenizer.get();
    opened.tokens = open_tokens(request.data, request.vocabulary, tokenizer, problems);
    if (!request.bigram.empty()) opened.bigram = open_tokens(request.bigram, request.vocabulary, tokenizer, problems);
    if (opened.tokens) opened.loader = token_batch(request, opened.tokens, shape, layout);
    if (opened.tokens && opened.tokens->has_labels() && !request.across_documents) {
      const auto found = batches::long_statistics(*opened.tokens, shape.sequence_length, request.long_documents);
      opened.note = batches::describe(found, *opened.tokens, shape.sequence_length, request.long_documents);
    }
  } catch (const UserError& error) {
    problems.add_lines(error.what());
  }
  return opened;
}

}  // namespace hawser::evaluate

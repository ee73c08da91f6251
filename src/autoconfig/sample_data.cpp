#include "autoconfig/sample_data.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <set>

#include "base/error.h"
#include "base/paths.h"
#include "batches/sequence_packer.h"
#include "plan/run_plan.h"
#include "prepare/answers.h"
#include "prepare/byte_reader.h"
#include "prepare/jsonl.h"
#include "prepare/open_lines.h"
#include "prepare/parquet_reader.h"
#include "prepare/prepare.h"
#include "prepare/sources.h"
#include "prepare/token_file.h"
#include "text/tokenizers/framed_text.h"

namespace hawser::autoconfig {
namespace {

constexpr std::size_t kMaxSources = 16;
constexpr std::size_t kSampleBytes = std::size_t{256} << 10;
constexpr std::size_t kLongestLine = std::size_t{16} << 20;  // a longer line is estimated from its beginning
constexpr std::int64_t kMaxSequences = 10000;                // of a token file

// `max` of them, evenly spaced.
std::vector<prepare::Source> some_of(const std::vector<prepare::Source>& sources, std::size_t max) {
  if (sources.size() <= max) return sources;
  std::vector<prepare::Source> out;
  for (std::size_t i = 0; i < max; ++i) out.push_back(sources[i * sources.size() / max]);
  return out;
}

// The beginning of a source, decompressed.
struct Beginning {
  std::string text;
  const char* unit = "line";  // what a line is in the file, see prepare/open_lines.h
  double file_bytes = 0;      // bytes of the source that it was read from
  bool whole = false;         // the text is complete
};

Beginning begin_of(const prepare::Source& source, bool whole_line, const prepare::LineNames& names) {
  const prepare::Lines opened = source.kind == prepare::SourceKind::text
                                    ? prepare::Lines{prepare::open_bytes(source.path)}
                                    : prepare::open_lines(source.path, /*training=*/true, &names);
  const auto& reader = opened.bytes;
  Beginning out{.unit = opened.unit};
  while (!out.whole && out.text.size() < kLongestLine) {
    const std::size_t before = out.text.size();
    out.text.resize(before + kSampleBytes);
    const std::size_t size = reader->read({out.text.data() + before, kSampleBytes});
    out.text.resize(before + size);
    out.whole = size < kSampleBytes;
    if (!whole_line || out.text.find('\n', before) != std::string::npos) break;
  }
  if (!out.whole) {
    char more = 0;
    out.whole = reader->read({&more, 1}) == 0;
  }
  // An archive reader reads ahead: it consumes a small file completely before much of it is returned.
  out.file_bytes = out.whole ? static_cast<double>(source.bytes)
                             : static_cast<double>(std::min<std::int64_t>(source.bytes, reader->file_bytes()));
  const bool converted = prepare::is_table(source.path) || prepare::is_parquet(source.path);
  if (prepare::compression_of(source.path) == prepare::Compression::none && !converted)
    out.file_bytes = static_cast<double>(out.text.size());
  return out;
}

// The template that uses this tokenizer's special tokens, and writes tool calls if `calls`; "" if none is known.
std::string template_for(const text::Tokenizer& tokenizer, bool calls) {
  using Known = std::vector<std::pair<const char*, const char*>>;
  static const Known kPlain = {{"<|im_start|>", "chatml"},
                               {"<|start_header_id|>", "llama-3"},
                               {"<start_of_turn>", "gemma"},
                               {"<|assistant|>", "phi-3"},
                               {"[INST]", "mistral-v3"}};
  static const Known kCalls = {
      {"<|im_start|>", "chatml"}, {"<|start_header_id|>", "llama-3.1"}, {"[TOOL_CALLS]", "mistral-v3"}};
  for (const auto& [token, name] : calls ? kCalls : kPlain) {
    if (tokenizer.id_of(token)) return name;
  }
  return "";
}

class Sampler {
 public:
  Sampler(const Recipe& recipe, std::int64_t vocabulary)
      : options_(plan::resolve_data(recipe)), vocabulary_(vocabulary) {
    options_.vocab_size = vocabulary;
  }

  DataSample run() {
    prepare::check_sources(options_, problems_);  // the tokenizer too
    problems_.throw_if_any();
    const auto sources = prepare::find_sources(options_.train, options_.folder, "data.train", problems_);
    const bool texts =
        std::ranges::any_of(sources, [](const prepare::Source& s) { return s.kind != prepare::SourceKind::tokens; });
    if (texts && !options_.tokenizer.empty()) {
      tokenizer_ = text::load_tokenizer(resolve_path(options_.tokenizer, options_.folder));
    }
    const auto looked_at = some_of(sources, kMaxSources);
    for (const prepare::Source& source : looked_at) {
      try {
        look_at(source);
      } catch (const UserError& error) {
        problems_.add_lines(error.what());
      }
    }
    prepare::without_repeats(problems_).throw_if_any();
    // Extrapolates to the sources that were not sampled, by bytes.
    double bytes = 0;
    for (const prepare::Source& source : sources) bytes += static_cast<double>(source.bytes);
    const double share = bytes_ > 0 ? bytes / bytes_ : 1.0;
    out_.all = all_ && looked_at.size() == sources.size();
    out_.documents *= out_.all ? 1.0 : share;
    out_.tokens *= out_.all ? 1.0 : share;
    std::ranges::sort(out_.lengths);
    if (out_.conversations) out_.chat_template = named_;
    return std::move(out_);
  }

 private:
  void look_at(const prepare::Source& source) {
    if (source.kind == prepare::SourceKind::tokens) return look_at_tokens(source);
    if (source.kind == prepare::SourceKind::text) return look_at_text(source);
    look_at_lines(source);
  }

  void look_at_tokens(const prepare::Source& source) {
    const prepare::TokenFile file(source.path);
    out_.ids = true;
    if (file.has_labels()) out_.completions = true;
    const std::int64_t step = std::max<std::int64_t>(1, file.sequences() / kMaxSequences);
    for (std::int64_t i = 0; i < file.sequences(); i += step) out_.lengths.push_back(file.length(i));
    out_.documents += static_cast<double>(file.documents());
    out_.tokens += static_cast<double>(file.tokens());
    bytes_ += static_cast<double>(source.bytes);
  }

  void look_at_text(const prepare::Source& source) {
    if (needs_tokenizer(source.path)) return;
    Beginning begin = begin_of(source, false, options_.names);
    std::vector<std::int32_t> ids;
    tokenizer_->encode(begin.text, ids, false);
    if (begin.file_bytes <= 0 || ids.empty()) return;
    // One document; its length is extrapolated from its beginning.
    const double stretch = begin.whole ? 1.0 : static_cast<double>(source.bytes) / begin.file_bytes;
    const double tokens = static_cast<double>(ids.size()) * stretch + 1;  // and its end-of-text token
    out_.text = true;
    out_.lengths.push_back(std::llround(tokens));
    out_.documents += 1;
    out_.tokens += tokens;
    bytes_ += static_cast<double>(source.bytes);
    all_ = all_ && begin.whole;
  }

  void look_at_lines(const prepare::Source& source) {
    const Beginning begin = begin_of(source, true, options_.names);
    std::size_t end = 0;
    std::int64_t number = 0;
    double documents = 0, tokens = 0;
    for (std::size_t start = 0; start < begin.text.size(); start = end) {
      const std::size_t feed = begin.text.find('\n', start);
      if (feed == std::string::npos && !begin.whole) break;  // an incomplete line
      end = feed == std::string::npos ? begin.text.size() : feed + 1;
      ++number;
      const std::string_view line(begin.text.data() + start, end - start);
      if (prepare::is_blank(line)) continue;
      const std::int64_t length = length_of(line, {.file = source.path,
                                                   .number = number,
                                                   .byte = static_cast<std::int64_t>(start),
                                                   .vocab_size = vocabulary_,
                                                   .unit = begin.unit,
                                                   .names = &options_.names});
      if (length <= 0) continue;
      out_.lengths.push_back(length);
      documents += 1;
      tokens += static_cast<double>(length);
    }
    if (end == 0) return;  // a line longer than the sample
    const double stretch = begin.whole ? 1.0
                                       : static_cast<double>(source.bytes) * static_cast<double>(begin.text.size()) /
                                             (begin.file_bytes * static_cast<double>(end));
    out_.documents += documents * stretch;
    out_.tokens += tokens * stretch;
    bytes_ += static_cast<double>(source.bytes);
    all_ = all_ && begin.whole;
  }

  // Tokens of a line's documents; 0, with a problem added, if it is malformed.
  std::int64_t length_of(std::string_view text, const prepare::LinePlace& place) {
    std::optional<prepare::Line> line = prepare::parse_line(text, place, problems_);
    if (!line) return 0;
    if (!line->ids.empty()) {
      out_.ids = true;
      if (!line->labels.empty()) out_.completions = true;
      const auto longest = std::ranges::max_element(line->document_lengths);
      return line->document_lengths.empty() ? std::int64_t(line->ids.size()) : std::int64_t{*longest};
    }
    if (needs_tokenizer(place.file)) return 0;
    if (line->text) {
      out_.text = true;
      return std::int64_t(text::encode_framed(*tokenizer_, *line->text).size()) + 1;
    }
    (line->chat ? out_.conversations : out_.completions) = true;
    return encode(*line, place) ? std::int64_t(line->ids.size()) : 0;
  }

  bool needs_tokenizer(const std::string& file) {
    if (tokenizer_) return false;
    problems_.add({.file = file,
                   .what = "text needs a tokenizer, and the model has none",
                   .hint = "--set data.tokenizer=FILE",
                   .cause = "no tokenizer"});
    return true;
  }

  // Where the template does not write the tool calls of a line, a known one replaces it from this line on.
  bool encode(prepare::Line& line, const prepare::LinePlace& place) {
    if (!answers_) open_template();
    Problems found;
    const prepare::Line given = line;
    if (answers_->encode(line, place, found)) return true;
    if (drops_calls(given)) {
      if (const std::string name = template_for(*tokenizer_, true); !name.empty()) {
        out_.drops_calls = named_.empty();
        named_ = name;
        Problems without;
        use(open(name, without), without);
        line = given;
        return answers_->encode(line, place, problems_);
      }
    }
    problems_.add(found);
    return false;
  }

  // Whether it has tool calls that the template leaves out, and the recipe does not name this template.
  bool drops_calls(const prepare::Line& line) const {
    if (!line.chat || !template_ || !options_.chat_template.empty()) return false;
    const auto calls = [](const text::chat::Value& message) { return text::chat::has_calls(message.dict()); };
    return std::ranges::any_of(line.chat->messages.list(), calls) && template_->used_for(*line.chat).drops_calls();
  }

  // The tokenizer's template; else a known one that matches its tokens, which the recipe will set.
  void open_template() {
    Problems without;
    auto found = open(options_.chat_template, without);
    if (!found && without.empty()) {
      named_ = template_for(*tokenizer_, false);
      if (!named_.empty()) found = open(named_, without);
    }
    use(found, without);
  }

  std::shared_ptr<const text::chat::ChatTemplate> open(const std::string& name, Problems& without) const {
    return text::chat::open_chat_template(name, options_.tokenizer, options_.folder, "data.chat_template", without);
  }

  void use(std::shared_ptr<const text::chat::ChatTemplate> found, const Problems& without) {
    template_ = std::move(found);
    answers_ = std::make_unique<prepare::AnswerEncoder>(*tokenizer_, template_, without);
  }

  prepare::PrepareOptions options_;
  std::int64_t vocabulary_;
  Problems problems_;
  std::unique_ptr<text::Tokenizer> tokenizer_;
  std::shared_ptr<const text::chat::ChatTemplate> template_;
  std::unique_ptr<prepare::AnswerEncoder> answers_;  // by template_
  std::string named_;                                // template used in place of the tokenizer's
  DataSample out_;
  double bytes_ = 0;  // of the sampled sources
  bool all_ = true;
};

}  // namespace

std::int64_t DataSample::quantile(double share) const {
  if (lengths.empty()) return 0;
  const auto last = static_cast<double>(lengths.size() - 1);
  return lengths[static_cast<std::size_t>(std::ceil(share * last))];
}

namespace {

std::vector<std::int32_t> pieces_of(const std::vector<std::int64_t>& lengths, std::int64_t length,
                                    LongDocuments action) {
  std::vector<std::int32_t> pieces;
  for (const std::int64_t tokens : lengths) {
    batches::each_piece_of(tokens, length, action,
                           [&](std::int64_t /*begin*/, std::int32_t of) { pieces.push_back(of); });
  }
  return pieces;
}

}  // namespace

double DataSample::sequences(std::int64_t length, std::int64_t max_documents, LongDocuments action) const {
  const std::vector<std::int32_t> pieces = pieces_of(lengths, length, action);
  if (pieces.empty()) return 0;
  const std::vector<std::int32_t> bins = batches::best_fit(pieces, length, max_documents);
  return (1.0 + *std::ranges::max_element(bins)) * documents / static_cast<double>(lengths.size());
}

double DataSample::fill(std::int64_t length, std::int64_t max_documents, LongDocuments action) const {
  const std::vector<std::int32_t> pieces = pieces_of(lengths, length, action);
  const double covered =
      std::accumulate(pieces.begin(), pieces.end(), 0.0) * documents / static_cast<double>(lengths.size());
  return covered / std::max(1.0, sequences(length, max_documents, action) * static_cast<double>(length));
}

DataSample sample_data(const Recipe& recipe, std::int64_t vocabulary) {
  return Sampler(recipe, vocabulary).run();
}

double epoch_sequences(const Recipe& recipe, const DataSample& sample) {
  const DataRecipe& data = recipe.data;
  const double held_out = data.validation.empty() ? data.validation_fraction : 0;
  const bool packs = !sample.empty() && data.pack == Packing::documents;
  const double all =
      packs ? sample.sequences(data.sequence_length, plan::packing_of(data).max_documents, data.long_documents)
            : sample.tokens / double(data.sequence_length);
  return std::max(1.0, all * (1 - held_out));
}

std::int64_t steps_of_epochs(const Recipe& recipe, const DataSample& sample) {
  const TrainRecipe& train = recipe.train;
  const double steps = train.epochs * epoch_sequences(recipe, sample) / double(train.global_batch_size);
  return std::max<std::int64_t>(1, std::llround(std::ceil(steps)));
}

}  // namespace hawser::autoconfig

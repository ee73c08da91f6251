// hawser inspect data: samples as text with document boundaries and masks; lengths, and packing.
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/environment.h"
#include "base/nearest.h"
#include "base/printable.h"
#include "base/text.h"
#include "batches/data_sets.h"
#include "batches/micro_batch.h"
#include "batches/sequence.h"
#include "batches/sequence_order.h"
#include "batches/statistics.h"
#include "cli/command_support.h"
#include "cli/commands.h"
#include "cli/data_summary.h"
#include "cli/model_name.h"
#include "io/files.h"
#include "plan/run_plan.h"
#include "prepare/prepare.h"
#include "prepare/sources.h"

namespace hawser::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// What is shown, and how it becomes sequences.
struct DataView {
  std::string prefix;
  std::unique_ptr<text::Tokenizer> tokenizer;  // null: print ids
  std::shared_ptr<const prepare::TokenFile> file;
  std::shared_ptr<const batches::Mixture> mixture;  // of `set`; null: it is one data set
  std::shared_ptr<const batches::SequenceSet> set;  // null: the file's own sequences, in order
  std::uint64_t seed = 0;
  std::optional<Recipe> recipe;
};

struct Run {
  std::string text;
  std::int64_t tokens = 0;
  bool masked = false;
};

class Painter {
 public:
  Painter() {
    colour_ = isatty(STDOUT_FILENO) != 0 && environment_variable("NO_COLOR").empty() &&
              environment_variable("TERM") != "dumb";
    winsize size{};
    if (isatty(STDOUT_FILENO) != 0 && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
      columns_ = size.ws_col;
  }
  int columns() const { return columns_; }

  std::string masked(const std::string& text) const {
    return colour_ ? "\033[2;31m" + text + "\033[0m" : "[[" + text + "]]";
  }
  std::string border(std::string text) const {
    text = "-- " + text + " ";
    text.resize(std::max<std::size_t>(text.size(), static_cast<std::size_t>(std::min(columns_, 100))), '-');
    return (colour_ ? "\033[36m" + text + "\033[0m" : text) + "\n";
  }
  std::string title(const std::string& text) const { return (colour_ ? "\033[1m" + text + "\033[0m" : text) + "\n"; }
  std::string legend() const {
    return colour_ ? masked("text like this") + " is masked: input only, not learned\n"
                   : "text in [[ ]] is masked: input only, not learned\n";
  }

 private:
  bool colour_ = false;
  int columns_ = 80;
};

std::string text_of(const DataView& view, std::span<const std::int32_t> ids) {
  if (view.tokenizer) return view.tokenizer->decode_bytes(ids);
  std::string out;
  for (const std::int32_t id : ids) out += cat(out.empty() ? "" : " ", id);
  return out;
}

// The token file of the held-out data, or of the set of them that is asked for; "" if there are none.
std::string held_out_prefix(const prepare::TokenFiles& files, const InspectOptions& options) {
  const std::string& asked = options.validation_set;
  std::vector<std::string> names;
  for (const auto& [name, prefix] : files.validation) {
    if (name == asked) return prefix;
    if (!name.empty()) names.push_back(name);
  }
  if (names.empty() && asked.empty()) return "";
  throw UserError(Problem{.file = options.data,
                          .what = asked.empty() ? "several validation sets" : "no validation set of this name",
                          .expected = names.empty() ? "data.validation with named sets" : joined(names, " or "),
                          .got = asked,
                          .at = "--validation-set",
                          .hint = asked.empty() ? cat("--validation-set ", names.front()) : nearest(asked, names)});
}

DataView open_view(const std::string& path, const InspectOptions& options) {
  DataView view;
  const bool held_out = options.validation || !options.validation_set.empty();
  std::string tokenizer;
  if (const auto prefix = prepare::token_prefix(path, "")) {
    view.prefix = *prefix;
    tokenizer = find_model(options.tokenizer, options.common, hub::Parts::configuration);
  } else {
    if (const auto prepared = prepare::prepared_folder(path)) throw UserError(*prepared);
    view.recipe = read_recipe_for(path, options.common, Purpose::prepare);
    const prepare::PrepareOptions job = plan::resolve_data(*view.recipe);
    const prepare::TokenFiles files = prepare::token_files(job);
    view.prefix = held_out ? held_out_prefix(files, options) : files.train;
    if (view.prefix.empty() || !io::exists(view.prefix + ".idx")) {
      throw UserError(Problem{.file = path,
                              .what = held_out ? "no prepared validation data" : "its data is not prepared",
                              .expected = view.prefix.empty() ? "" : view.prefix + ".idx",
                              .hint = cat("hawser prepare ", path)});
    }
    tokenizer = options.tokenizer.empty() ? job.tokenizer
                                          : find_model(options.tokenizer, options.common, hub::Parts::configuration);
    view.seed = view.recipe->train.seed;
  }
  if (!tokenizer.empty()) view.tokenizer = text::load_tokenizer(tokenizer);
  view.file = std::make_shared<const prepare::TokenFile>(view.prefix);
  if (view.recipe) {
    const batches::PackingPlan packing = plan::packing_of(view.recipe->data, view.seed);
    const prepare::PrepareOptions job = plan::resolve_data(*view.recipe);
    if (held_out) {
      view.set = batches::open_sequences(view.file, packing, 0);
    } else {
      const batches::TrainingSequences training = batches::open_training(
          view.file, packing, 0, plan::data_sets_of(view.recipe->data), prepare::set_begins(job));
      view.set = training.set;
      view.mixture = training.mixture(view.seed);
    }
  }
  return view;
}

// A sequence of the file as stored, with its own labels as targets.
batches::Sequence stored_sequence(const prepare::TokenFile& file, std::int64_t index) {
  batches::Sequence sequence;
  const std::int64_t count = file.length(index), begin = file.begin(index);
  sequence.ids.resize(count);
  file.read(begin, sequence.ids);
  sequence.labels.assign(count, prepare::kIgnoredLabel);
  if (count > 1) file.read_labels(begin + 1, std::span(sequence.labels).first(count - 1));
  sequence.document_lengths = {static_cast<std::int32_t>(count)};
  return sequence;
}

// A document's tokens in runs of learned and masked tokens. A token is learned if it is the target of the one before;
// the first of a document is shown like the second.
std::vector<Run> runs_of(const DataView& view, const batches::Sequence& sequence, std::int64_t begin,
                         std::int64_t count) {
  std::vector<Run> runs;
  const auto masked = [&](std::int64_t i) {
    const std::int64_t target = std::max<std::int64_t>(i, 1);
    return count > 1 && sequence.labels[begin + target - 1] == prepare::kIgnoredLabel;
  };
  for (std::int64_t from = 0; from < count;) {
    std::int64_t to = from + 1;
    while (to < count && masked(to) == masked(from)) ++to;
    runs.push_back({text_of(view, std::span(sequence.ids).subspan(begin + from, to - from)), to - from, masked(from)});
    from = to;
  }
  return runs;
}

void show_sample(const DataView& view, std::int64_t number, const Painter& paint, std::string& text, Json& json) {
  const std::int64_t count = view.set ? view.set->size() : view.file->sequences();
  // In training order.
  const std::int64_t index = !view.set      ? number
                             : view.mixture ? view.mixture->at(number)
                                            : batches::sequence_at(view.seed, count, number);
  const batches::Sequence sequence = view.set ? view.set->get(index) : stored_sequence(*view.file, index);
  const auto documents = static_cast<std::int64_t>(sequence.document_lengths.size());
  text += paint.title(cat("sequence ", number, ": ", sequence.length(), " tokens, ", plural(documents, "document"),
                          ", ", sequence.targets(), " learned"));
  Json sample{{"sequence", number},
              {"tokens", sequence.length()},
              {"learned", sequence.targets()},
              {"documents", Json::array()}};
  const std::vector<batches::Origin> origins = view.set ? view.set->origins(index) : std::vector<batches::Origin>();
  std::int64_t begin = 0;
  for (std::int64_t d = 0; d < documents; ++d) {
    const std::int64_t length = sequence.document_lengths[d];
    const batches::Origin* from = origins.empty() ? nullptr : &origins[static_cast<std::size_t>(d)];
    const bool piece = from && length + 1 < from->tokens;
    text += paint.border(cat("document ", d + 1, " of ", documents, ", ", length, " tokens",
                             piece ? cat(": from token ", from->begin, " of a document of ", from->tokens) : ""));
    Json parts = Json::array();
    for (const Run& run : runs_of(view, sequence, begin, length)) {
      const std::string shown = printable(run.text, Newlines::keep);
      text += run.masked ? paint.masked(shown) : shown;
      parts.push_back({{"text", run.text}, {"tokens", run.tokens}, {"masked", run.masked}});
    }
    if (!text.ends_with('\n')) text += '\n';
    Json document{{"tokens", length}, {"parts", std::move(parts)}};
    if (from) document["source"] = {{"document", from->document}, {"begin", from->begin}, {"tokens", from->tokens}};
    sample["documents"].push_back(std::move(document));
    begin += length;
  }
  json.push_back(std::move(sample));
}

}  // namespace

int inspect_data(const InspectOptions& options) {
  const DataView view = open_view(options.data, options);
  const Painter paint;
  Json json{{"kind", "data"}, {"path", view.prefix}};
  std::string text;
  const std::int64_t count = view.set ? view.set->size() : view.file->sequences();
  if (options.first > 0 && options.first >= count) {
    throw UserError(Problem{.file = options.data,
                            .what = "no such sequence",
                            .expected = count == 1 ? std::string("0: there is one sequence")
                                                   : cat("at most ", count - 1, ": there are ", count, " sequences"),
                            .got = cat(options.first),
                            .at = "--first"});
  }
  Json& samples = json["samples"] = Json::array();
  for (std::int64_t i = options.first; i < std::min(count, options.first + options.samples); ++i) {
    show_sample(view, i, paint, text, samples);
  }
  if (!text.empty()) {
    text += paint.border("");
    text += paint.legend();
  }
  Json statistics;
  text += data_summary(*view.file, view.recipe ? &view.recipe->data : nullptr, view.seed, paint.columns(), statistics);
  json["statistics"] = std::move(statistics);
  std::fputs(
      options.common.json ? (json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n").c_str() : text.c_str(),
      stdout);
  return 0;
}

}  // namespace hawser::cli

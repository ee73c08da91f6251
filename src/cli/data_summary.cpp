#include "cli/data_summary.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/cat.h"
#include "base/text.h"
#include "batches/data_sets.h"
#include "batches/micro_batch.h"
#include "batches/sequence.h"
#include "batches/statistics.h"
#include "plan/run_plan.h"
#include "prepare/prepare.h"

namespace hawser::cli {
namespace {

std::string percent(double share) {
  char text[16];
  std::snprintf(text, sizeof text, "%.1f%%", 100.0 * share);
  return text;
}

}  // namespace

std::string data_summary(const prepare::TokenFile& file, const DataRecipe* recipe, std::uint64_t seed, int columns,
                         nlohmann::ordered_json& json) {
  const batches::LengthStatistics lengths = batches::length_statistics(file);
  json["lengths"] = {{"count", lengths.count},   {"tokens", lengths.tokens}, {"min", lengths.min},
                     {"median", lengths.median}, {"mean", lengths.mean},     {"p90", lengths.p90},
                     {"p99", lengths.p99},       {"max", lengths.max}};
  for (const batches::LengthBin& bin : lengths.bins) {
    json["lengths"]["histogram"].push_back({{"min", bin.min}, {"max", bin.max}, {"count", bin.count}});
  }
  char mean[32];
  std::snprintf(mean, sizeof mean, "%.1f", lengths.mean);
  std::string text =
      cat("  lengths  ", lengths.min, " to ", lengths.max, " tokens, median ", lengths.median, ", mean ", mean,
          ", 90% within ", lengths.p90, ", 99% within ", lengths.p99, "\n", batches::histogram(lengths, columns));
  if (file.has_labels() && lengths.tokens > 0) {
    const batches::LearnedStatistics learned = batches::learned_statistics(file);
    json["learned"] = learned.learned;
    text += cat("  learned  ", learned.learned, " of ", learned.tokens, " tokens (",
                percent(static_cast<double>(learned.learned) / static_cast<double>(learned.tokens)),
                "), the rest masked\n");
  }
  if (recipe != nullptr && recipe->sequence_length > 0) {
    const bool chunks = recipe->pack == Packing::chunks;
    const batches::FillStatistics fill = batches::fill_of(file, plan::packing_of(*recipe, seed));
    json["packing"] = {
        {"sequences", fill.sequences}, {"sequence_length", recipe->sequence_length}, {"fill", fill.fill}};
    text += fill.sequences == 0 ? std::string("  packed   nothing: training needs a document of two tokens or more\n")
                                : cat("  packed   into ", plural(fill.sequences, "sequence"), " of ",
                                      recipe->sequence_length, " tokens, ", percent(fill.fill), " full\n");
    if (chunks) return text;
    const batches::LongStatistics found =
        batches::long_statistics(file, recipe->sequence_length, recipe->long_documents);
    json["long_documents"] = {{"count", found.count}, {"tokens_left_out", found.tokens}};
    const std::string long_text = batches::describe(found, file, recipe->sequence_length, recipe->long_documents);
    if (!long_text.empty()) text += cat("  long     ", long_text, " (data.long_documents)\n");
  }
  return text;
}

std::string mixture_summary(const std::shared_ptr<const prepare::TokenFile>& file, const prepare::PrepareOptions& job,
                            const DataRecipe& recipe, nlohmann::ordered_json& json) {
  if (recipe.sets.size() < 2 || recipe.sequence_length == 0) return "";
  const std::vector<batches::DataSetPlan> sets = plan::data_sets_of(recipe);
  const batches::TrainingSequences training =
      batches::open_training(file, plan::packing_of(recipe, job.seed), 0, sets, prepare::set_begins(job));
  std::string text;
  for (std::size_t i = 0; i < sets.size(); ++i) {
    const double times =
        training.shares[i] * static_cast<double>(training.epoch) / static_cast<double>(training.sizes[i]);
    char read[32];
    std::snprintf(read, sizeof read, "%.2f", times);
    text +=
        cat(i == 0 ? "  mixed    " : "           ", percent(training.token_shares[i]), " of the tokens: ", sets[i].name,
            ", ", plural(training.sizes[i], "sequence"), ", read ", read, " times an epoch\n");
    json["data_sets"].push_back({{"path", sets[i].name},
                                 {"sequences", training.sizes[i]},
                                 {"token_share", training.token_shares[i]},
                                 {"times_an_epoch", times}});
  }
  json["epoch_sequences"] = training.epoch;
  return text;
}

}  // namespace hawser::cli

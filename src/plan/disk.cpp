#include "plan/disk.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/paths.h"
#include "plan/run_plan.h"
#include "prepare/validation_sets.h"

namespace hawser::plan {

namespace {

namespace fs = std::filesystem;

// Checkpoints that the run writes. An evaluation saves one if its loss is the lowest so far: here each does.
struct Saves {
  std::int64_t all = 1;  // the last step's
  bool evaluated = false;
};

Saves saves_of(const Recipe& recipe, std::int64_t steps, double step_seconds) {
  const auto midway = [&](std::int64_t every) { return every > 0 ? (steps - 1) / every : 0; };
  Saves out;
  const std::int64_t evaluations = midway(recipe.train.evaluate_every);
  out.evaluated = evaluations > 0;
  out.all += midway(recipe.checkpoint.every_steps) + evaluations;
  if (const double every = recipe.checkpoint.minutes_between(); every > 0) {
    const double minutes = static_cast<double>(steps) * step_seconds / 60;
    out.all += static_cast<std::int64_t>(std::min(1e9, minutes / every));
  }
  return out;
}

// Bytes of the token files: an id of two or four bytes for about four bytes of text, and in lines, which may be
// conversations, a label of four bytes.
std::int64_t prepared_bytes(const Recipe& recipe, std::int64_t vocabulary) {
  constexpr double kTextBytesPerToken = 4, kCompression = 4, kLabelBytes = 4;
  constexpr std::int64_t kMaxShortIds = 65500;  // of prepare::TokenFileDraft
  const double id_bytes = vocabulary < kMaxShortIds ? 2 : 4;
  double out = 0;
  Problems ignored;
  std::vector<prepare::Source> sources = prepare::find_sources(recipe.data.train, recipe.folder, "", ignored);
  const auto held_out = prepare::find_validation(validation_sets_of(recipe.data), recipe.folder, ignored);
  sources.insert(sources.end(), held_out.begin(), held_out.end());
  for (const prepare::Source& source : sources) {
    if (source.kind == prepare::SourceKind::tokens) continue;  // read in place
    const bool compressed =
        source.path.ends_with(".gz") || source.path.ends_with(".zst") || source.path.ends_with(".parquet");
    const double tokens = static_cast<double>(source.bytes) * (compressed ? kCompression : 1.0) / kTextBytesPerToken;
    out += tokens * (id_bytes + (source.kind == prepare::SourceKind::jsonl ? kLabelBytes : 0.0));
  }
  return static_cast<std::int64_t>(out);
}

}  // namespace

std::int64_t checkpoint_bytes(const models::Model& model, const Layout& layout) {
  std::int64_t bytes = 0;
  for (const nn::Flat& flat : model.flats()) {
    const nn::FlatSpec& spec = flat.spec();
    if (!spec.trainable) continue;
    // Slices count as their global tensors, but other ranks' experts are tensors that this model does not have.
    const std::int64_t parts = spec.domain == Domain::expert ? layout.mesh.expert : 1;
    const auto saved = [&](const nn::Granularity& granularity, DType dtype) {
      return parts * nn::saved_count(flat, granularity) * size_of(dtype);
    };
    bytes += saved({}, spec.stored_in(layout.compute));
    if (spec.scaled) bytes += saved(nn::kScaleGranularity, DType::f32);
    if (!spec.trainable) continue;
    for (const optim::StateSlot& slot : layout.optimizer->slots(flat)) bytes += saved(slot.granularity, slot.dtype);
  }
  if (const std::vector<step::ScaledSite> sites = scaled_sites(layout); !sites.empty()) {
    bytes += static_cast<std::int64_t>(sites.size()) * (1 + layout.quantizer->history()) * size_of(DType::f32);
  }
  return bytes;
}

DiskUse disk_use(const Recipe& recipe, const models::Model& model, const Layout& layout,
                 std::optional<std::int64_t> steps, double step_seconds) {
  constexpr std::int64_t kUnknownSteps = 1 << 20;
  const Saves saves = saves_of(recipe, std::max<std::int64_t>(1, steps.value_or(kUnknownSteps)), step_seconds);
  DiskUse out{.checkpoint = checkpoint_bytes(model, layout)};
  out.kept = static_cast<int>(std::min<std::int64_t>(recipe.checkpoint.keep_last, saves.all));
  out.writing = saves.all > out.kept;
  out.best = saves.evaluated && saves.all > out.kept;
  out.prepared = prepared_bytes(recipe, model.vocabulary());
  return out;
}

std::optional<std::int64_t> free_disk(const std::string& folder) {
  std::error_code error;
  for (fs::path there = absolute_path(folder);; there = there.parent_path()) {
    const fs::space_info space = fs::space(there, error);
    if (!error) return static_cast<std::int64_t>(std::min<std::uintmax_t>(space.available, INT64_MAX));
    if (!there.has_relative_path()) return std::nullopt;
  }
}

}  // namespace hawser::plan

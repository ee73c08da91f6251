// `Report`: what `hawser inspect` prints; and its parts for checkpoints and runs.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "base/text.h"
#include "base/units.h"
#include "checkpoint/checkpoint.h"
#include "models/model.h"

namespace hawser::cli {

// The result as text and as JSON.
struct Report {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  std::string text;

  void title(const std::string& kind, const std::string& path) {
    json["kind"] = kind;
    json["path"] = path;
    text += cat(kind, " ", path, "\n");
  }
  void row(const std::string& name, const std::string& value) {
    text += "  " + name + std::string(name.size() < 12 ? 12 - name.size() : 1, ' ') + value + "\n";
  }
};

inline std::string with_unit(std::int64_t bytes) {
  return format_bytes(Bytes(bytes));
}

void describe_model(const models::Model& model, Report& report);
// The model, the position in the data, and the sizes of a checkpoint; its tensors, a line each; and whether its bytes are
// those that were saved (UserError if not). `quiet`: no progress.
void describe_checkpoint(const checkpoint::Checkpoint& checkpoint, Report& report);
void list_tensors(const checkpoint::Checkpoint& checkpoint, Report& report);
void verify_checkpoint(checkpoint::Checkpoint& checkpoint, Report& report, bool quiet);
// The checkpoints of a run below `root`, and the newest that is complete.
void describe_run(const std::string& path, const std::string& root, bool verify, bool quiet, Report& report);

}  // namespace hawser::cli

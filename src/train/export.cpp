#include "train/export.h"

#include <algorithm>

#include "engine/find_checkpoint.h"
#include "engine/output_place.h"
#include "io/files.h"
#include "models/families.h"
#include "models/weights.h"
#include "text/tokenizers/tokenizer.h"

namespace hawser::train {
namespace {

// A checkpoint calls every tokenizer tokenizer.json; other programs look for each format under its own name.
std::vector<checkpoint::Attachment> with_names_by_format(const std::vector<checkpoint::Attachment>& files) {
  std::vector<checkpoint::Attachment> named;
  for (checkpoint::Attachment file : files) {
    if (file.name == "tokenizer.json") file.name = text::tokenizer_file_name(file.text);
    if (std::ranges::find(named, file.name, &checkpoint::Attachment::name) == named.end()) named.push_back(file);
  }
  return named;
}

// The files of the run's tokenizer from the checkpoint; an older checkpoint has only the path.
std::vector<checkpoint::Attachment> tokenizer_of(const checkpoint::Checkpoint& checkpoint,
                                                 const engine::CheckpointMetadata& metadata) {
  std::vector<checkpoint::Attachment> files;
  for (const std::string& name : checkpoint.attached()) files.push_back({name, checkpoint.read_attached(name)});
  if (!files.empty() || metadata.tokenizer.empty()) return files;
  if (!io::exists(metadata.tokenizer)) {
    throw UserError({.file = metadata.tokenizer,
                     .what = "the run's tokenizer is missing, and this checkpoint has no copy of it",
                     .hint = "restoring it"});
  }
  return models::tokenizer_files(metadata.tokenizer);
}

}  // namespace

Exported export_checkpoint(checkpoint::Checkpoint& checkpoint, const std::string& output, ExportDType dtype) {
  Problems rejected;
  engine::check_output(output, "", {}, rejected);
  rejected.throw_if_any();
  const engine::CheckpointMetadata metadata = engine::read_metadata(checkpoint);
  const bool f16 = dtype == ExportDType::f16;
  DType stored = metadata.stored;
  switch (dtype) {
    case ExportDType::of_run:
      break;
    case ExportDType::bf16:
      stored = DType::bf16;
      break;
    case ExportDType::f32:
    case ExportDType::f16:
      stored = DType::f32;
  }
  const std::string name = f16 ? "float16" : to_string(stored);
  Problems problems;
  models::ModelDescription description = engine::describe_checkpoint(checkpoint, metadata.config, problems);
  std::vector<checkpoint::Attachment> tokenizer;
  try {
    tokenizer = with_names_by_format(tokenizer_of(checkpoint, metadata));
  } catch (const UserError& error) {
    problems.add_lines(error.what());
  }
  problems.throw_if_any();
  const models::Model model(std::move(description));
  models::export_folder(output, model, [&](const std::vector<NamedState>& wanted) { checkpoint.read(wanted); },
                        {.stored = stored,
                         .f16 = f16,
                         .config = models::config_json(model.description(), name, metadata.config),
                         .tokenizer = std::move(tokenizer)});
  return {
      .checkpoint = checkpoint.folder(), .step = checkpoint.step(), .parameters = model.parameters(), .dtype = name};
}

}  // namespace hawser::train

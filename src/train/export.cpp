#include "train/export.h"

#include <algorithm>
#include <map>

#include "base/hub_name.h"
#include "engine/find_checkpoint.h"
#include "engine/model_changes.h"
#include "engine/open_model.h"
#include "engine/output_place.h"
#include "io/files.h"
#include "io/json.h"
#include "models/families.h"
#include "models/lora.h"
#include "models/merge_adapters.h"
#include "models/peft.h"
#include "models/peft_config.h"
#include "models/weights.h"
#include "text/chat/chat_template.h"
#include "text/chat/turn_ends.h"
#include "text/tokenizers/tokenizer.h"

namespace hawser::train {
namespace {

// A checkpoint calls every tokenizer tokenizer.json; other programs look for each format under its own name.
std::vector<checkpoint::Attachment> with_names_by_format(const std::vector<checkpoint::Attachment>& files) {
  std::vector<checkpoint::Attachment> named;
  for (checkpoint::Attachment file : files) {
    if (file.name == text::kTokenizerModelFile) continue;  // config.json takes its place
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
  files = models::tokenizer_files(metadata.tokenizer);
  models::add_generation_config(metadata.tokenizer, files);
  return files;
}

struct Stored {
  DType dtype = DType::f32;
  bool f16 = false;
  std::string name() const { return f16 ? "float16" : to_string(dtype); }
};

Stored stored_as(ExportDType dtype, const Stored& of_source) {
  switch (dtype) {
    case ExportDType::of_source:
      return of_source;
    case ExportDType::bf16:
      return {DType::bf16};
    case ExportDType::f32:
      return {DType::f32};
    case ExportDType::f16:
      return {DType::f32, true};
  }
  return of_source;
}

// The dtype of most weights of a folder.
Stored dtype_of(const checkpoint::SafetensorsFolder& weights) {
  std::map<std::string, std::int64_t> bytes;
  for (const std::string& name : weights.names()) {
    const checkpoint::TensorInfo* info = weights.find(name);
    bytes[info->type->name] += info->bytes;
  }
  const auto most = std::ranges::max_element(bytes, {}, [](const auto& entry) { return entry.second; });
  if (most == bytes.end()) return {};
  if (most->first == "BF16") return {DType::bf16};
  return {DType::f32, most->first == "F16"};
}

std::vector<checkpoint::Attachment> tokenizer_or_none(const checkpoint::Checkpoint& checkpoint,
                                                      const engine::CheckpointMetadata& metadata, Problems& problems) {
  try {
    return with_names_by_format(tokenizer_of(checkpoint, metadata));
  } catch (const UserError& error) {
    problems.add_lines(error.what());
    return {};
  }
}

// Whether the run was trained on conversations. An earlier version did not store it: with a template of the recipe, it
// probably was.
bool is_of_conversations(const engine::CheckpointMetadata& metadata) {
  if (metadata.conversations) return *metadata.conversations;
  const auto recipe = io::json_or_null(metadata.recipe);
  const nlohmann::json::json_pointer key("/data/chat_template");
  return recipe.is_object() && recipe.value(key, nlohmann::json()).is_string() && recipe.at(key) != "";
}

// The files with the end of turn of a run that was trained on conversations. If there is no such token, the files as
// they are, and a note.
std::vector<checkpoint::Attachment> with_end_of_turn(std::vector<checkpoint::Attachment> files,
                                                     const engine::CheckpointMetadata& metadata, Problems& notes) {
  if (files.empty() || !is_of_conversations(metadata)) return files;
  try {
    Problems unusable;
    const auto chat_template = text::chat::open_chat_template(engine::stored_chat_template(metadata.recipe),
                                                              metadata.tokenizer, "", "", unusable);
    if (chat_template == nullptr) {
      notes.add(unusable);
      return files;
    }
    const auto tokenizer = text::load_tokenizer(metadata.tokenizer);
    const std::vector<std::int32_t> ends = text::chat::turn_ends(*chat_template, *tokenizer);
    if (!ends.empty()) return models::with_end_token(files, metadata.config, ends.back());
    notes.add({.file = chat_template->file(),
               .what = "the chat template ends a turn with no single token, so generation_config.json has no token "
                       "that ends an answer",
               .hint = "a stop text where the model is used"});
  } catch (const UserError& error) {
    notes.add_lines(error.what());
  }
  return files;
}

// The states of a checkpoint, and what it does not have from weights.
models::StateSource states_of(checkpoint::Checkpoint& checkpoint, models::StateSource weights) {
  return [&checkpoint, weights = std::move(weights)](const std::vector<NamedState>& wanted) {
    for (const NamedState& state : wanted) {
      if (checkpoint.find(state.name) != nullptr) {
        checkpoint.read({state});
      } else {
        weights({state});
      }
    }
  };
}

struct ModelFiles {
  std::string config;                             // text of config.json
  std::vector<checkpoint::Attachment> tokenizer;  // and generation_config.json
};

// `source` has all states of the model without adapters.
void write_model(const std::string& output, models::ModelDescription description, const models::StateSource& source,
                 ModelFiles files, const Stored& stored, Exported& done) {
  const models::Model model(std::move(description));
  models::export_folder(output, model, source,
                        {.stored = stored.dtype,
                         .f16 = stored.f16,
                         .config = models::config_json(model.description(), stored.name(), files.config),
                         .tokenizer = std::move(files.tokenizer)});
  done.parameters = model.parameters();
  done.dtype = stored.name();
}

models::ModelDescription without_adapters(models::ModelDescription description) {
  for (models::BlockDescription& block : description.blocks) {
    block.attention.adapters.clear();
    block.mlp.adapters.clear();
  }
  return description;
}

// A run's adapter in PEFT's format; the base model is not needed.
void write_adapter(const ExportRequest& request, checkpoint::Checkpoint& checkpoint,
                   const engine::CheckpointMetadata& metadata, const models::LoraConfig& lora, Exported& done) {
  Problems problems;
  if (request.dtype == ExportDType::f16) {
    problems.add({.what = "an adapter is stored in bf16 or float32", .got = "float16", .at = "--dtype"});
  }
  models::ModelDescription description = engine::describe_checkpoint(checkpoint, metadata.config, problems);
  problems.throw_if_any();
  models::add_lora(description, lora, models::stored_place(checkpoint.folder()), problems);
  problems.throw_if_any();
  const models::Model model(std::move(description), models::train_lora(nn::common_domain, lora.modules_to_save));
  // An adapter is complete without its tokenizer, which a checkpoint of an earlier version may have lost.
  std::vector<checkpoint::Attachment> tokenizer = tokenizer_or_none(checkpoint, metadata, done.notes);
  if (!is_of_conversations(metadata)) {
    std::erase_if(tokenizer, [](const auto& file) { return file.name == models::kGenerationConfigFile; });
  }
  tokenizer = with_end_of_turn(std::move(tokenizer), metadata, done.notes);
  const auto hub = hub_name_of(metadata.base_model);
  const Stored stored = stored_as(request.dtype, {});
  models::export_adapter(
      request.output, model, [&](const std::vector<NamedState>& wanted) { checkpoint.read(wanted); },
      {.stored = stored.dtype,
       .config = models::lora_config_json(lora, model.description(), hub ? hub->model : metadata.base_model),
       .tokenizer = std::move(tokenizer)});
  done.parameters = model.trainable_parameters();
  done.dtype = stored.name();
  done.adapter = true;
}

Exported export_run(const ExportRequest& request, Problems& skipped) {
  checkpoint::Checkpoint checkpoint = engine::open_checkpoint(request.source, skipped);
  Problems problems;
  if (request.averages) engine::read_averages(checkpoint, problems);
  problems.throw_if_any();
  const engine::CheckpointMetadata metadata = engine::read_metadata(checkpoint);
  const std::optional<models::LoraConfig> lora = engine::lora_of(metadata.recipe);
  Exported done{.source = checkpoint.folder(), .step = checkpoint.step()};
  if (request.merge && !lora) {
    throw UserError(Problem{.file = request.source, .what = "the run has no adapter to merge", .at = "--merge"});
  }
  if (lora && !request.merge) {
    write_adapter(request, checkpoint, metadata, *lora, done);
    return done;
  }
  ModelFiles files{metadata.config, tokenizer_or_none(checkpoint, metadata, problems)};
  if (problems.empty()) files.tokenizer = with_end_of_turn(std::move(files.tokenizer), metadata, done.notes);
  const Stored stored = stored_as(request.dtype, {metadata.stored});
  if (!lora && engine::frozen_of(metadata.recipe).empty()) {
    models::ModelDescription description = engine::describe_checkpoint(checkpoint, metadata.config, problems);
    problems.throw_if_any();
    write_model(
        request.output, std::move(description), [&](const std::vector<NamedState>& wanted) { checkpoint.read(wanted); },
        std::move(files), stored, done);
    return done;
  }
  engine::OpenModel open = engine::open_trained_model(checkpoint.folder(), problems, {.averages = request.averages});
  problems.throw_if_any();
  const models::WeightSources sources = engine::sources_of(open);
  models::StateSource states = states_of(*open.checkpoint, models::read_weights(*open.model, sources));
  if (lora) states = models::merge_adapters(*open.model, std::move(states));
  write_model(request.output, without_adapters(open.model->description()), states, std::move(files), stored, done);
  return done;
}

// Replaces the chat template of the files of a tokenizer by that in another folder.
void add_templates_of(const std::string& folder, const std::string& tokenizer,
                      std::vector<checkpoint::Attachment>& files) {
  const auto own = text::chat::as_tokenizers_own(folder, tokenizer, "");
  if (own.empty()) return;
  std::erase_if(files, [](const checkpoint::Attachment& file) { return models::is_chat_template_file(file.name); });
  for (const text::chat::TemplateFile& file : own) files.push_back({file.name, file.text});
}

Exported export_merged(const ExportRequest& request) {
  Problems problems;
  engine::OpenModel open = engine::open_trained_model(request.source, problems, {}, request.adapters);
  problems.throw_if_any();
  ModelFiles files{io::read_text(models::config_path(request.source), 1 << 20)};
  files.tokenizer =
      with_names_by_format(models::tokenizer_files(open.tokenizer.empty() ? request.source : open.tokenizer));
  if (!open.templates.empty()) add_templates_of(open.templates, open.tokenizer, files.tokenizer);
  for (auto adapter = request.adapters.rbegin(); adapter != request.adapters.rend(); ++adapter) {
    models::add_generation_config(*adapter, files.tokenizer);
  }
  models::add_generation_config(request.source, files.tokenizer);
  const models::WeightSources sources = engine::sources_of(open);
  Exported done{.source = request.source};
  write_model(request.output, without_adapters(open.model->description()),
              models::merge_adapters(*open.model, models::read_weights(*open.model, sources)), std::move(files),
              stored_as(request.dtype, dtype_of(*open.weights)), done);
  return done;
}

}  // namespace

Exported export_model(const ExportRequest& request, Problems& skipped) {
  Problems rejected;
  std::vector<engine::Input> inputs;
  for (const std::string& adapter : request.adapters) inputs.push_back({"--adapter", adapter});
  if (!request.adapters.empty()) inputs.push_back({"--model", request.source});
  engine::check_output(request.output, "", inputs, rejected);
  if (!request.adapters.empty() && !request.merge) {
    rejected.add({.what = "export of a model with adapters needs --merge", .at = "--adapter"});
  }
  rejected.throw_if_any();
  return request.adapters.empty() ? export_run(request, skipped) : export_merged(request);
}

}  // namespace hawser::train

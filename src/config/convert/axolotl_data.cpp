// The data sets of axolotl: datasets, pretraining_dataset and test_datasets.
#include <algorithm>
#include <array>
#include <string>

#include "config/convert/axolotl.h"
#include "config/convert/converted_data.h"
#include "config/convert/settings.h"

namespace hawser::convert {
namespace {

enum class Form {
  conversation,  // messages
  question,      // instruction and output, and their like
  text,          // trained on as a whole
  ids,           // tokenized before
  segments,      // input_output: not read here
};

struct DataType {
  std::string_view name;  // without what follows a dot or a colon: "alpaca" of alpaca_chat.load_qa
  Form form;
};

constexpr auto kTypes = std::to_array<DataType>({
    {"", Form::ids},
    {"chat_template", Form::conversation},
    {"sharegpt", Form::conversation},
    {"messages", Form::conversation},
    {"llama2_chat", Form::conversation},
    {"pygmalion", Form::conversation},
    {"alpaca", Form::question},
    {"alpaca_chat", Form::question},
    {"alpaca_instruct", Form::question},
    {"alpaca_w_system", Form::question},
    {"gpteacher", Form::question},
    {"reflection", Form::question},
    {"context_qa", Form::question},
    {"jeopardy", Form::question},
    {"oasst", Form::question},
    {"explainchoice", Form::question},
    {"concisechoice", Form::question},
    {"summarizetldr", Form::question},
    {"creative_acr", Form::question},
    {"orcamini", Form::question},
    {"metharme", Form::question},
    {"completion", Form::text},
    {"pretrain", Form::text},
    {"input_output", Form::segments},
});

std::optional<Form> form_of(const std::string& type) {
  const std::string name = type.substr(0, type.find_first_of(".:"));
  const auto found = std::ranges::find(kTypes, name, &DataType::name);
  return found == kTypes.end() ? std::nullopt : std::optional(found->form);
}

std::string text_of(const YAML::Node& entry, const char* key) {
  const YAML::Node node = entry[key];
  return node && node.IsScalar() ? node.Scalar() : "";
}

std::vector<std::string> texts_of(const YAML::Node& entry, const char* key) {
  const YAML::Node node = entry[key];
  std::vector<std::string> out;
  if (node && node.IsScalar() && !node.Scalar().empty()) out.push_back(node.Scalar());
  for (std::size_t i = 0; node && node.IsSequence() && i < node.size(); ++i) {
    if (node[i].IsScalar()) out.push_back(node[i].Scalar());
  }
  return out;
}

struct ColumnKey {
  const char* theirs;
  const char* ours;
};

// Keys of a data set that name a key of lines or of messages.
constexpr auto kColumns = std::to_array<ColumnKey>({
    {"field", "text"},
    {"text_column", "text"},
    {"field_messages", "messages"},
    {"field_tools", "tools"},
    {"field_thinking", "reasoning_content"},
    {"field_human", "instruction"},
    {"field_model", "output"},
    {"message_field_role", "role"},
    {"message_field_content", "content"},
    {"message_field_training", "train"},
});

// Those of a map as `type`.
constexpr auto kColumnsOfType = std::to_array<ColumnKey>({
    {"field_system", "system"},
    {"field_instruction", "instruction"},
    {"field_input", "input"},
    {"field_output", "output"},
});

constexpr auto kMessageKeys =
    std::to_array<std::string_view>({"role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content",
                                     "thinking", "reasoning", "weight", "train", "training", "function_call"});

class AxolotlData {
 public:
  explicit AxolotlData(Conversion& c) : c_(c), sets_(c) {}

  void convert() {
    for (const char* list : {"datasets", "pretraining_dataset", "test_datasets"}) {
      if (c_.has(list) && c_.entries(list).empty()) {
        c_.problem(list, {.what = "wrong type", .expected = "a list of data sets", .got = short_text(*c_.find(list))});
      }
      for (const YAML::Node& entry : c_.entries(list)) take(list, entry);
    }
    sets_.store(c_.has("datasets") ? "datasets" : "pretraining_dataset", "test_datasets");
    if (only_text()) c_.drop("train_on_inputs", WhyDropped::automatic, "the loss is over all of a text");
    pack();
  }

 private:
  std::string key(const std::string& list, const std::string& name) const { return list + "[]." + name; }

  void take(const std::string& list, const YAML::Node& entry) {
    const DataSource source{.path = text_of(entry, "path"),
                            .files = texts_of(entry, "data_files"),
                            .split = text_of(entry, "split"),
                            .configuration = text_of(entry, "name"),
                            .revision = text_of(entry, "revision"),
                            .weight = std::nullopt};
    if (source.path.empty() && source.files.empty()) {
      return c_.problem(list, {.what = "a data set without a path", .expected = "path: FOLDER, FILE or ORG/NAME"});
    }
    if (!sets_.add(source, list == "test_datasets")) {
      c_.drop(key(list, "split"), WhyDropped::unsupported,
              "no part of a split is read: all of it is; train.steps ends a run earlier");
    }
    take_type(list, entry);
    for (const auto& [theirs, ours] : kColumns) sets_.column(ours, text_of(entry, theirs));
    take_properties(list, entry["message_property_mappings"]);
    take_roles(entry["roles"]);
    const auto trained = texts_of(entry, "roles_to_train");
    const bool answers = std::ranges::all_of(
        trained, [](const std::string& role) { return role == "assistant" || role == "gpt" || role == "model"; });
    c_.drop(key(list, "roles_to_train"), answers ? WhyDropped::automatic : WhyDropped::unsupported,
            "the assistant's turns are learned, of these those that a message's train or weight does not exclude");
    for (const char* name : {"train_on_eos", "train_on_eot"}) {
      const std::string which = text_of(entry, name);
      c_.drop(key(list, name), which == "turn" || which.empty() ? WhyDropped::automatic : WhyDropped::unsupported,
              "the end of every learned turn is learned");
    }
    for (const char* name : {"chat_template", "chat_template_jinja"}) {
      const std::string value = text_of(entry, name);
      if (value.empty()) continue;
      if (c_.has("chat_template") || c_.has("chat_template_jinja")) {
        c_.drop(key(list, name), WhyDropped::unsupported, "one chat template is for all data: the one of the file");
      } else {
        convert_chat_template(c_, key(list, name), value);
      }
    }
  }

  void take_type(const std::string& list, const YAML::Node& entry) {
    const YAML::Node type = entry["type"];
    const std::string name = key(list, "type");
    if (type && type.IsMap()) {
      for (const auto& [theirs, ours] : kColumnsOfType) sets_.column(ours, text_of(type, theirs));
      c_.remark(cat(name, ": questions and answers go through the chat template, not through a format of their own"));
      forms_.push_back(Form::question);
      return;
    }
    const std::string text = type && type.IsScalar() ? type.Scalar() : list == "pretraining_dataset" ? "pretrain" : "";
    const auto form = form_of(text);
    if (form == Form::segments || !form) {
      c_.drop(name, WhyDropped::unsupported,
              cat("lines of type ", text, "; write messages, prompt and completion, or input_ids and labels"));
    } else {
      c_.drop(name, WhyDropped::automatic, "the keys of a line decide how it is read");
    }
    forms_.push_back(form.value_or(Form::question));
    if (form == Form::question) {
      c_.remark("questions and answers become conversations by the chat template; axolotl writes '### Instruction:'");
    }
  }

  void take_properties(const std::string& list, const YAML::Node& map) {
    if (!map || !map.IsMap()) return;
    for (const auto& pair : map) {
      if (!pair.first.IsScalar() || !pair.second.IsScalar()) continue;
      const std::string ours = pair.first.Scalar();
      if (std::ranges::find(kMessageKeys, ours) == kMessageKeys.end()) {
        c_.remark(cat(key(list, "message_property_mappings"), ": messages have no key ", ours, "; it is left out"));
      } else {
        sets_.column(ours, pair.second.Scalar());
      }
    }
  }

  void take_roles(const YAML::Node& map) {
    if (!map || !map.IsMap()) return;
    for (const auto& pair : map) {
      for (std::size_t i = 0; pair.second.IsSequence() && i < pair.second.size(); ++i) {
        sets_.role(pair.first.Scalar(), pair.second[i].Scalar());
      }
    }
  }

  bool only_text() const {
    return !forms_.empty() && std::ranges::all_of(forms_, [](Form form) { return form == Form::text; });
  }

  // How documents become sequences.
  void pack() {
    const bool text = only_text();
    const std::string strategy = c_.text("excess_length_strategy");
    if (text) {
      c_.drop("excess_length_strategy", WhyDropped::not_needed, "texts are split into sequences");
    } else if (strategy == "raise") {
      c_.drop("excess_length_strategy", WhyDropped::unsupported,
              "longer documents are dropped; prepare prints how many there are");
      c_.set("data.long_documents", "drop", "excess_length_strategy");
    } else if (strategy.empty()) {
      c_.set_default("data.long_documents", "drop", "excess_length_strategy");
    } else {
      c_.set("data.long_documents", strategy, "excess_length_strategy");
    }
    const bool concatenates = c_.is_on("pretraining_sample_concatenation") ||
                              (c_.has("pretrain_multipack_attn") && !c_.is_on("pretrain_multipack_attn"));
    if (text && concatenates) {
      const char* name =
          c_.has("pretrain_multipack_attn") ? "pretrain_multipack_attn" : "pretraining_sample_concatenation";
      return c_.set("data.pack", "chunks", name);
    }
    if (c_.is_on("sample_packing")) return c_.set("data.pack", "documents", "sample_packing");
    if (c_.has("pretraining_dataset") && !c_.has("sample_packing")) return;
    convert_unpacked(c_, "sample_packing");
  }

  Conversion& c_;
  DataSets sets_;
  std::vector<Form> forms_;
};

}  // namespace

void convert_axolotl_data(Conversion& conversion) {
  AxolotlData(conversion).convert();
}

}  // namespace hawser::convert

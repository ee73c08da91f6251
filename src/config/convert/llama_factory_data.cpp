// The data sets of LLaMA-Factory: names that dataset_info.json describes.
#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>

#include "base/text.h"
#include "config/convert/converted_data.h"
#include "config/convert/llama_factory.h"
#include "config/convert/settings.h"
#include "config/rows.h"
#include "config/yaml.h"
#include "io/bounded_file.h"

namespace hawser::convert {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kLargestIndex = 8 << 20;  // of dataset_info.json

// What dataset_info.json says of a data set; the names are its own.
struct Description {
  YAML::Node node;

  std::string text(const char* key) const { return text_in(node, key); }
  std::string column(const char* key) const { return text_in(node["columns"], key); }
  std::string tag(const char* key) const { return text_in(node["tags"], key); }

 private:
  static std::string text_in(const YAML::Node& map, const char* key) {
    if (!map || !map.IsMap()) return "";
    const YAML::Node value = map[key];
    return value && value.IsScalar() ? value.Scalar() : "";
  }
};

class FactoryData {
 public:
  explicit FactoryData(Conversion& c) : c_(c), sets_(c), pretrains_(c.text("stage") == "pt") {}

  void convert() {
    read_index();
    const std::string_view train = c_.has("train_dataset") ? "train_dataset" : "dataset";
    take(train, /*validation=*/false);
    take("eval_dataset", /*validation=*/true);
    c_.drop_if_off("eval_on_each_dataset");
    sets_.store(train, "eval_dataset");
    pack();
  }

 private:
  // dataset_info.json, or the YAML that train_dataset names.
  void read_index() {
    const std::string folder = c_.has("dataset_dir") ? c_.text("dataset_dir") : "data";
    index_path_ =
        c_.has("train_dataset") ? c_.text("train_dataset") : (fs::path(folder) / "dataset_info.json").string();
    folder_ = c_.has("train_dataset") ? "" : folder;
    if (folder == "ONLINE" || folder.find(':') != std::string::npos || !Conversion::exists(index_path_)) return;
    const YAML::Node root = read_yaml_file(index_path_, io::read_bounded(index_path_, kLargestIndex));
    if (root.IsMap()) index_ = root;
  }

  void take(std::string_view key, bool validation) {
    const YAML::Node* node = c_.find(key);
    if (node == nullptr) return;
    std::vector<std::string> names = list_of(*node);
    if (key == "train_dataset") {
      names.clear();
      for (const auto& pair : index_) names.push_back(pair.first.Scalar());
      if (names.empty()) return guess(c_.text(key), validation);
    }
    const std::vector<double> weights = validation ? std::vector<double>() : probabilities(names.size());
    for (std::size_t i = 0; i < names.size(); ++i) {
      const std::optional<double> weight = weights.empty() ? std::nullopt : std::optional(weights[i]);
      const YAML::Node entry = index_.IsMap() ? index_[names[i]] : YAML::Node();
      if (entry && entry.IsMap()) {
        describe({entry}, names[i], weight, validation);
      } else {
        guess(names[i], validation, weight);
      }
    }
  }

  // With eval_on_each_dataset each data set has a loss of its own: its name, with what names of sets can have.
  std::string set_of(std::string name, bool validation) const {
    if (!validation || !c_.is_on("eval_on_each_dataset")) return "";
    const auto odd = [](unsigned char c) { return c >= 128 || (std::isalnum(c) == 0 && c != '-' && c != '_'); };
    std::ranges::replace_if(name, odd, '-');
    return name;
  }

  DataSource source_of(const std::string& name, bool validation, std::optional<double> weight) const {
    DataSource source;
    source.weight = weight;
    source.validation_set = set_of(name, validation);
    return source;
  }

  // The data set is not described here.
  void guess(const std::string& name, bool validation, std::optional<double> weight = std::nullopt) {
    const std::string folder = c_.text("dataset_dir");
    if (folder == "ONLINE" || name.find('/') != std::string::npos || Conversion::exists(name)) {
      DataSource source = source_of(name, validation, weight);
      source.path = name;
      sets_.add(source, validation);
      if (name.ends_with(".yaml")) c_.remark(cat("no file ", name, ": set data.train to the data that it lists"));
      return;
    }
    const bool remote = folder.find(':') != std::string::npos;
    const std::string path = (fs::path(remote || folder.empty() ? "data" : folder) / (name + ".json")).string();
    DataSource source = source_of(name, validation, weight);
    source.path = path;
    sets_.add(source, validation);
    c_.remark(cat("no ", index_path_, " that describes ", name, ": ", path, " is a guess; set ",
                  validation ? "data.validation" : "data.train", " to its file or folder"));
  }

  void describe(const Description& d, const std::string& name, std::optional<double> weight, bool validation) {
    DataSource source = source_of(name, validation, weight);
    source.split = d.text("split");
    source.configuration = d.text("subset");
    const std::string hub = d.text("hf_hub_url"), file = d.text("file_name"), path = d.text("path");
    if (!hub.empty() || !path.empty()) {
      source.path = hub.empty() ? path : hub;
      if (!d.text("folder").empty()) source.configuration = d.text("folder");
    } else if (!file.empty()) {
      source.path = (fs::path(folder_) / file).string();
    } else {
      return c_.remark(cat(name, ": ", index_path_, " names neither file_name nor hf_hub_url; set data.train"));
    }
    const bool whole = sets_.add(source, validation);
    if (!whole || !d.text("num_samples").empty()) {
      c_.remark(cat(name, ": all of its split is read, and no part"));
    }
    constexpr std::array<std::pair<const char*, const char*>, 5> kColumnsOfSet = {
        {{"query", "input"}, {"response", "output"}, {"system", "system"}, {"history", "history"}, {"tools", "tools"}}};
    sets_.column(pretrains_ ? "text" : "instruction", d.column("prompt"));
    for (const auto& [theirs, ours] : kColumnsOfSet) sets_.column(ours, d.column(theirs));
    sets_.column("messages", d.column("messages"));
    sets_.column("role", d.tag("role_tag"));
    sets_.column("content", d.tag("content_tag"));
    sets_.role("user", d.tag("user_tag"));
    sets_.role("assistant", d.tag("assistant_tag"));
    sets_.role("system", d.tag("system_tag"));
    sets_.role("tool", d.tag("observation_tag"));
    const std::string key = validation ? "eval_dataset" : c_.has("train_dataset") ? "train_dataset" : "dataset";
    for (const char* column : {"images", "videos", "audios"}) {
      if (d.column(column).empty()) continue;
      c_.problem(key, {.what = "a data set that is not text",
                       .expected = "text",
                       .got = cat(name, " has ", column),
                       .hint = cat(key, " without ", name)});
    }
    if (d.text("ranking") == "true") {
      c_.problem(key, {.what = "a data set of preferences",
                       .expected = "answers to learn",
                       .got = name,
                       .hint = cat(key, " without ", name)});
    }
  }

  std::vector<double> probabilities(std::size_t count) {
    const std::string strategy = c_.text("mix_strategy");
    if (strategy.empty() || strategy == "concat") {
      if (c_.has("interleave_probs")) c_.drop("interleave_probs", WhyDropped::not_needed, "mix_strategy is concat");
      return {};
    }
    std::vector<double> out;
    for (const std::string& text :
         c_.has("interleave_probs") ? list_of(*c_.find("interleave_probs")) : std::vector<std::string>(count, "1")) {
      const auto value = rows::parse_number<double>(text);
      if (!value || *value <= 0) break;
      out.push_back(*value);
    }
    if (out.size() == count) return out;
    c_.problem("interleave_probs", {.what = "wrong type",
                                    .expected = cat(plural(static_cast<std::int64_t>(count), "number"), " above 0"),
                                    .got = c_.text("interleave_probs")});
    return {};
  }

  void pack() {
    const bool packs = c_.is_on("neat_packing") || c_.is_on("packing") || (pretrains_ && !c_.has("packing"));
    if (pretrains_ && packs) {
      c_.set("data.pack", "chunks", c_.has("packing") ? "packing" : "stage",
             "LLaMA-Factory's stage pt: texts are joined and cut into sequences");
      return;
    }
    if (packs) {
      c_.set("data.long_documents", "drop", c_.is_on("neat_packing") ? "neat_packing" : "packing",
             "LLaMA-Factory's packing leaves longer samples out");
      if (!c_.is_on("neat_packing")) c_.remark("packing: samples of a sequence do not attend to each other");
      return;
    }
    c_.set("data.long_documents", "truncate", "cutoff_len", "LLaMA-Factory cuts samples at cutoff_len");
    if (c_.has("batching_strategy") && c_.text("batching_strategy") != "normal") return;
    convert_unpacked(c_, "packing");
  }

  Conversion& c_;
  DataSets sets_;
  bool pretrains_;
  std::string folder_, index_path_;
  YAML::Node index_;
};

}  // namespace

void convert_llama_factory_data(Conversion& conversion) {
  FactoryData(conversion).convert();
}

}  // namespace hawser::convert

// `DataSets`: the data of a run while they are converted. Internal to config/convert/.
//
//   data_sets.add({.path = "tatsu-lab/alpaca", .split = "train[:10%]"}, place);
//   data_sets.column("messages", "conversations");
//   data_sets.store();
//
// A path that does not exist here and can be a name is a data set of the Hugging Face Hub. The recipe keeps its name,
// as the path of the folder that `hf download NAME --local-dir NAME` fills.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "config/convert/conversion.h"

namespace hawser::convert {

struct DataSource {
  std::string path;                // a file, a folder, a name of the Hub, or a loader of `datasets` ("json")
  std::vector<std::string> files;  // within it
  std::string split;               // "train", "train_sft[:10%]"
  std::string configuration;       // of the Hub: the name of a subset
  std::string revision;
  std::optional<double> weight;
  std::string validation_set = "";  // the name of its set in data.validation; "": there is one without a name
};

class DataSets {
 public:
  explicit DataSets(Conversion& conversion) : c_(conversion) {}

  // Adds a source to data.train, or to data.validation. Returns whether all of its split is read.
  bool add(const DataSource& source, bool validation);
  // A name of the files for a key of lines or messages, or for a role. Equal names need no entry.
  void column(const std::string& ours, const std::string& theirs);
  void role(const std::string& ours, const std::string& theirs);
  // Stores all of them; `theirs`: the keys of the file for data.train and data.validation.
  void store(std::string_view train, std::string_view validation);

 private:
  std::vector<std::string> paths_of(const DataSource& source);

  Conversion& c_;
  std::vector<DataSetRecipe> train_;
  std::map<std::string, std::vector<std::string>> validation_;  // by name of the set
  std::map<std::string, std::vector<std::string>> columns_, roles_;
};

// A chat template's name here, by its name there; "" if Hawser has none of that format.
std::string chat_template_of(const std::string& theirs);

}  // namespace hawser::convert

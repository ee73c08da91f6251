// Which files of a repo of the Hub are pulled: those that Hawser reads.
//
//   config.json, tokenizer.json, model.safetensors.index.json    of every model
//   model-00001-of-00002.safetensors                             if the index names it
//   pytorch_model.bin, onnx/model.onnx, original/                not: copies in formats that are not read
#pragma once

#include <string>
#include <vector>

#include "base/error.h"
#include "hub/cache.h"

namespace hawser::hub {

inline constexpr char kConfig[] = "config.json";
inline constexpr char kWeights[] = "model.safetensors";
inline constexpr char kWeightsIndex[] = "model.safetensors.index.json";
inline constexpr char kAdapterConfig[] = "adapter_config.json";
inline constexpr char kAdapterWeights[] = "adapter_model.safetensors";

// Whether a name from a server is that of a file below a folder: no "..", no empty part, no control character.
bool is_safe_file_name(const std::string& name);

// The configuration, the tokenizer and the chat templates of a model or adapter.
std::vector<std::string> configuration_files(const std::vector<std::string>& files);

// The files with weights, or the index that names them. The problem if there are none that are read.
struct WeightFiles {
  std::vector<std::string> files;
  bool index = false;  // `files` is the index
};
WeightFiles weight_files(const Repo& repo, const std::vector<std::string>& files, Problems& problems);

inline constexpr char kCard[] = "README.md";

// The files of a data set that data.train reads from its folder (prepare/sources.h): .parquet, .jsonl, .ndjson and
// .txt; if there are none, .csv and .tsv, or else .json; and those of a type that the header of its README.md, `card`,
// has a path of. With `include`, only those that match one of these patterns, in which * also matches a slash.
std::vector<std::string> data_files(const std::vector<std::string>& files, const std::vector<std::string>& include,
                                    const std::string& card);

}  // namespace hawser::hub

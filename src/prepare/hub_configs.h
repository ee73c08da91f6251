// `HubConfig`: a data set that the README.md of a folder declares, as on the Hugging Face Hub.
//
//   ---
//   configs:
//   - config_name: en                       name "en"
//     data_files:
//     - {split: train, path: en/*.jsonl}    parts {"train", {"en/*.jsonl"}},
//     - {split: test, path: en-test.jsonl}        {"test", {"en-test.jsonl"}}
//   ---
#pragma once

#include <string>
#include <vector>

namespace hawser::prepare {

struct HubConfig {
  struct Part {
    std::string split;                  // "train" where the README names none
    std::vector<std::string> patterns;  // relative to the folder
  };
  std::string name = "default";
  bool is_default = false;
  std::string data_dir;     // a folder below the given one, whose files are the data if there are no parts
  std::vector<Part> parts;  // in the order of the README
};

// The configs of a folder that say which files are theirs. None if it has no README.md, or one without a header that
// can be read. https://huggingface.co/docs/hub/datasets-manual-configuration
std::vector<HubConfig> hub_configs(const std::string& folder);

// The config that is read if none is named: the only one, or the default one; null if there are several.
const HubConfig* config_to_read(const std::vector<HubConfig>& configs);

}  // namespace hawser::prepare

// Names of models on the Hugging Face Hub, ORG/NAME or ORG/NAME@REVISION, and their folders in the hub's local cache:
//
//   CACHE/models--ORG--NAME/refs/REVISION        contains the commit of a branch or tag
//   CACHE/models--ORG--NAME/snapshots/COMMIT/    the files of a commit, as links to downloaded data
//
// Source: https://huggingface.co/docs/hub/local-cache. These functions work on text; cli/model_name.h finds the folder.
#pragma once

#include <optional>
#include <string>

#include "base/error.h"

namespace hawser {

struct HubName {
  std::string model;     // "ORG/NAME"
  std::string revision;  // branch, tag or commit; "": main

  std::string text() const { return revision.empty() ? model : model + "@" + revision; }
};

// None if the text cannot be a name: names have exactly one slash, and letters, digits, '-', '_' and '.' around it.
std::optional<HubName> parse_hub_name(const std::string& text);

// "models--ORG--NAME".
std::string hub_folder(const HubName& name);

// The model of a file or folder in the cache; `revision` is that of its snapshot. None for other paths.
std::optional<HubName> hub_name_of(const std::string& path);

// The command that downloads the model into the cache: "hawser pull ORG/NAME@REVISION".
std::string download_command(const HubName& name);

// The error for a path of the cache that does not exist: that of the attempt to download it, if there was one.
Problem not_downloaded(const HubName& name, const std::string& path);

// Called after an attempt to download a model to `path` with its error, a line as of Problem.
void set_not_downloaded(const std::string& path, const std::string& error);

}  // namespace hawser

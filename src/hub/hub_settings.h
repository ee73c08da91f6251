// `Settings`: the Hub's server, the user's token and the cache, from the variables that huggingface_hub reads.
//
//   HF_ENDPOINT                            server; default https://huggingface.co
//   HF_TOKEN, HUGGING_FACE_HUB_TOKEN       token, else the file HF_TOKEN_PATH, else HF_HOME/token, which
//                                          `hf auth login` writes; none with HF_HUB_DISABLE_IMPLICIT_TOKEN=1
//   HF_HUB_CACHE                           cache, else HF_HOME/hub
//   HF_HOME                                default XDG_CACHE_HOME/huggingface, else ~/.cache/huggingface
//   HF_HUB_OFFLINE, TRANSFORMERS_OFFLINE   1, on, yes or true: no request is sent
//   HF_HUB_DOWNLOAD_TIMEOUT                seconds after which a transfer without data ends; default 30
//
// Source: https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables
#pragma once

#include <chrono>
#include <string>

namespace hawser::hub {

struct Settings {
  std::string endpoint;     // without a slash at the end
  std::string token;        // "" without one
  std::string token_place;  // "HF_TOKEN", or the file; "" without a token
  std::string cache;        // absolute
  bool offline = false;
  std::chrono::seconds stalled{30};
};

// UserError for an endpoint that is no URL, a token that is no word, and a file of it that cannot be read.
Settings read_settings();

// Only the folder of the cache, and only whether requests are allowed.
std::string cache_folder();
bool is_offline();

}  // namespace hawser::hub

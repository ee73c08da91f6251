#include "hub/hub_settings.h"

#include <algorithm>
#include <cctype>
#include <charconv>

#include "base/environment.h"
#include "base/error.h"
#include "base/paths.h"
#include "io/bounded_file.h"
#include "io/files.h"

namespace hawser::hub {
namespace {

constexpr std::int64_t kMaxTokenBytes = 4096;

bool is_true(const char* name) {
  std::string value = environment_variable(name);
  std::ranges::transform(value, value.begin(), [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return value == "1" || value == "ON" || value == "YES" || value == "TRUE";
}

std::string home() {
  if (const auto folder = environment_variable("HF_HOME"); !folder.empty()) return absolute_path(with_home(folder));
  const auto caches = environment_variable("XDG_CACHE_HOME");
  return absolute_path(with_home(caches.empty() ? "~/.cache" : caches) + "/huggingface");
}

std::string without_spaces(const std::string& text) {
  constexpr const char* kSpaces = " \t\r\n";
  const auto begin = text.find_first_not_of(kSpaces);
  return begin == text.npos ? "" : text.substr(begin, text.find_last_not_of(kSpaces) + 1 - begin);
}

void read_token(Settings& settings) {
  for (const char* variable : {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}) {
    settings.token = without_spaces(environment_variable(variable));
    settings.token_place = variable;
    if (!settings.token.empty()) return;
  }
  const auto named = environment_variable("HF_TOKEN_PATH");
  settings.token_place = named.empty() ? home() + "/token" : absolute_path(with_home(named));
  if (io::is_file(settings.token_place)) {
    settings.token = without_spaces(io::read_bounded(settings.token_place, kMaxTokenBytes, "cannot read the token"));
  }
  if (settings.token.empty()) settings.token_place.clear();
}

}  // namespace

std::string cache_folder() {
  const auto named = environment_variable("HF_HUB_CACHE");
  std::string cache = named.empty() ? home() + "/hub" : absolute_path(with_home(named));
  while (cache.size() > 1 && cache.ends_with('/')) cache.pop_back();
  return cache;
}

bool is_offline() {
  return is_true("HF_HUB_OFFLINE") || is_true("TRANSFORMERS_OFFLINE");
}

Settings read_settings() {
  Settings settings{.endpoint = without_spaces(environment_variable("HF_ENDPOINT")),
                    .cache = cache_folder(),
                    .offline = is_offline()};
  if (settings.endpoint.empty()) settings.endpoint = "https://huggingface.co";
  while (settings.endpoint.ends_with('/')) settings.endpoint.pop_back();
  if (!settings.endpoint.starts_with("https://") && !settings.endpoint.starts_with("http://")) {
    throw UserError(Problem{.file = "HF_ENDPOINT",
                            .what = "not a URL",
                            .expected = "https://HOST",
                            .got = settings.endpoint,
                            .hint = "https://" + settings.endpoint});
  }
  if (!is_true("HF_HUB_DISABLE_IMPLICIT_TOKEN")) read_token(settings);
  // It becomes part of a header.
  if (std::ranges::any_of(settings.token, [](unsigned char c) { return c <= ' ' || c > '~'; })) {
    throw UserError(Problem{.file = settings.token_place,
                            .what = "not a token of the Hub",
                            .expected = "one word",
                            .hint = "`hf auth login`"});
  }
  const auto limit = environment_variable("HF_HUB_DOWNLOAD_TIMEOUT");
  int seconds = 0;
  std::from_chars(limit.data(), limit.data() + limit.size(), seconds);
  if (seconds > 0) settings.stalled = std::chrono::seconds(seconds);
  return settings;
}

}  // namespace hawser::hub

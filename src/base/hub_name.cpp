#include "base/hub_name.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>
#include <string_view>

namespace hawser {
namespace {

constexpr char kPrefix[] = "models--";

bool is_part(const std::string& text) {
  const auto allowed = [](unsigned char c) { return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.'; };
  return !text.empty() && std::ranges::all_of(text, allowed) && text.front() != '.' && text.front() != '-' &&
         text.find("--") == std::string::npos && text.find("..") == std::string::npos;
}

// A branch, tag or commit; "refs/pr/1" is one too.
bool is_revision(const std::string& text) {
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('/', begin), text.size());
    if (!is_part(text.substr(begin, end - begin))) return false;
    begin = end + 1;
  }
  return true;
}

}  // namespace

std::optional<HubName> parse_hub_name(const std::string& text) {
  const std::size_t at = std::min(text.find('@'), text.size());
  const std::size_t slash = std::min(text.find('/'), at);
  if (slash == at || !is_part(text.substr(0, slash)) || !is_part(text.substr(slash + 1, at - slash - 1))) return {};
  HubName name{.model = text.substr(0, at), .revision = ""};
  if (at == text.size()) return name;
  name.revision = text.substr(at + 1);
  return is_revision(name.revision) ? std::optional(name) : std::nullopt;
}

std::string hub_folder(const HubName& name) {
  const std::size_t slash = name.model.find('/');
  return kPrefix + name.model.substr(0, slash) + "--" + name.model.substr(slash + 1);
}

std::optional<HubName> hub_name_of(const std::string& path) {
  std::optional<HubName> name;
  std::string before;
  for (const auto& component : std::filesystem::path(path)) {
    const std::string part = component.string();
    const std::size_t dashes = part.find("--", sizeof kPrefix - 1);
    if (part.starts_with(kPrefix) && dashes != std::string::npos) {
      name = parse_hub_name(part.substr(sizeof kPrefix - 1, dashes - (sizeof kPrefix - 1)) + "/" +
                            part.substr(dashes + 2));
    } else if (name && before == "snapshots") {
      name->revision = part;
    }
    before = part;
  }
  return name;
}

std::string download_command(const HubName& name) {
  return "hawser pull " + name.text();
}

namespace {

// By path.
std::map<std::string, std::string>& download_errors() {
  static std::map<std::string, std::string> errors;
  return errors;
}

}  // namespace

void set_not_downloaded(const std::string& path, const std::string& error) {
  download_errors()[path] = error;
}

Problem not_downloaded(const HubName& name, const std::string& path) {
  if (const auto found = download_errors().find(path); found != download_errors().end()) {
    // The place of the model's name in the recipe precedes the hint.
    constexpr std::string_view kTry = "; try ";
    const std::string& line = found->second;
    const std::size_t colon = line.starts_with(name.model) ? line.find(": ") : line.npos;
    const std::size_t begin = colon == line.npos ? 0 : colon + 2;
    const std::size_t hint = line.find('\n') == line.npos ? line.rfind(kTry) : line.npos;
    return {.file = colon == line.npos ? "" : line.substr(0, colon),
            .what = line.substr(begin, hint == line.npos ? line.npos : hint - begin),
            .hint = hint == line.npos ? "" : line.substr(hint + kTry.size())};
  }
  return {.file = name.text(),
          .what = "no such folder, and no such model in the Hugging Face cache",
          .expected = path,
          .hint = download_command(name)};
}

}  // namespace hawser

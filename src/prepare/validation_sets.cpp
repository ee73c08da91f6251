#include "prepare/validation_sets.h"

#include <map>

#include "base/cat.h"

namespace hawser::prepare {

std::string validation_stem(const std::string& name) {
  return name.empty() ? "valid" : cat("valid-", name);
}

std::string validation_key(const std::string& name) {
  return name.empty() ? "data.validation" : cat("data.validation.", name);
}

std::vector<Source> find_validation(const std::vector<ValidationSet>& sets, const std::string& folder,
                                    Problems& problems) {
  std::vector<Source> all;
  std::map<std::string, std::int64_t> set_of;  // by path
  for (std::size_t i = 0; i < sets.size(); ++i) {
    const std::string key = validation_key(sets[i].name);
    for (Source& source : find_sources(sets[i].patterns, folder, key, problems, Split::validation)) {
      source.set = static_cast<std::int64_t>(i);
      const std::string file = source.kind == SourceKind::tokens ? source.path : without_links(source.path);
      if (const auto [before, is_new] = set_of.emplace(file, source.set); !is_new) {
        problems.add({.file = source.path,
                      .what = "a file of two validation sets",
                      .expected = "a file of one set",
                      .got = cat(sets[static_cast<std::size_t>(before->second)].name, " and ", sets[i].name),
                      .at = key});
      }
      all.push_back(std::move(source));
    }
  }
  return all;
}

}  // namespace hawser::prepare

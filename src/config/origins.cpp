// Where a recipe, --set or another option names the files that problems are about.
#include <algorithm>

#include "base/hub_name.h"
#include "config/config.h"
#include "config/schema.h"

namespace hawser {
namespace {

// "" or "[0]", or of a map ".support" or ".support[0]"; not "[0], line 2 of x[1]": a problem that already has its origin keeps it.
bool is_entry(std::string text) {
  if (text.starts_with('.')) text.erase(0, std::min(text.find('['), text.size()));
  if (text.empty()) return true;
  if (text.size() < 3 || text.front() != '[' || text.back() != ']') return false;
  return std::all_of(text.begin() + 1, text.end() - 1, [](char c) { return c >= '0' && c <= '9'; });
}

// `entry`: of a list, "[0]".
std::string origin(const Recipe& recipe, const std::string& key, const std::string& entry) {
  const auto found = recipe.places.find(key);
  if (found == recipe.places.end()) return key + entry;
  const std::string& place = found->second;
  if (place.starts_with("--") && place != "--set") return place;
  return cat(key, entry, ", ", place, place.starts_with("line ") && !recipe.file.empty() ? " of " + recipe.file : "");
}

}  // namespace

std::string origin_of(const Recipe& recipe, const std::string& key) {
  return origin(recipe, key, "");
}

Problems with_origins(const Recipe& recipe, const Problems& problems, const std::string& key, const std::string& path) {
  const auto hub = hub_name_of(path);
  Problems out;
  for (Problem problem : problems.all()) {
    const bool of_path =
        !path.empty() && (problem.file == path || (hub && (problem.file == hub->text() || problem.file == hub->model)));
    if (problem.at.empty() && of_path) problem.at = key;
    std::string named = problem.at.substr(0, problem.at.find('['));
    if (const auto dot = named.rfind('.'); find_key(named) == nullptr && dot != std::string::npos) {
      const Key* map = find_key(named.substr(0, dot));
      if (map != nullptr && map->is_map) named.resize(dot);
    }
    const std::string entry = problem.at.substr(named.size());
    const bool in_recipe = problem.file == recipe.file || problem.file == "--set";  // it has its line
    if (!in_recipe && find_key(named) != nullptr && is_entry(entry)) {
      problem.at = origin(recipe, named, entry);
    }
    out.add(std::move(problem));
  }
  return out;
}

}  // namespace hawser

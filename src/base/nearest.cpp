#include "base/nearest.h"

#include <algorithm>
#include <cctype>
#include <filesystem>

namespace hawser {
namespace {

char lower(char c) {
  return static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
}

std::ptrdiff_t letters(std::string_view word) {
  return std::ranges::count_if(word, [](unsigned char c) { return std::isalpha(c) != 0; });
}

}  // namespace

int edit_distance(std::string_view a, std::string_view b) {
  // Optimal string alignment distance; only three rows of the prefix table are needed at a time.
  std::vector<int> before_last(b.size() + 1);
  std::vector<int> last(b.size() + 1);
  std::vector<int> now(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) last[j] = static_cast<int>(j);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    now[0] = static_cast<int>(i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const int change = lower(a[i - 1]) == lower(b[j - 1]) ? 0 : 1;
      now[j] = std::min({last[j] + 1, now[j - 1] + 1, last[j - 1] + change});
      const bool swapped = i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) && lower(a[i - 2]) == lower(b[j - 1]);
      if (swapped) now[j] = std::min(now[j], before_last[j - 2] + 1);
    }
    std::swap(before_last, last);
    std::swap(last, now);
  }
  return last[b.size()];
}

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  std::string best;
  int min = 0;
  for (const std::string& candidate : candidates) {
    const int distance = edit_distance(word, candidate);
    // A word with more than a third of its letters wrong is not a typo, unless one is the beginning of the other ("seq",
    // "training"): no suggestion is better than a wrong one.
    const bool prefix =
        letters(word) >= 2 && letters(candidate) >= 2 && (candidate.starts_with(word) || word.starts_with(candidate));
    const bool near = prefix || 3 * distance <= static_cast<int>(std::max(word.size(), candidate.size()));
    if (near && (best.empty() || distance < min)) {
      best = candidate;
      min = distance;
    }
  }
  return best;
}

std::string nearest_file(const std::string& path) {
  namespace fs = std::filesystem;
  const fs::path given(path), folder = given.parent_path();
  std::vector<std::string> names;
  std::error_code error;
  constexpr std::size_t kMax = 10000;  // larger folders are searched in part
  for (fs::directory_iterator it(folder.empty() ? "." : folder, error), end; !error && it != end && names.size() < kMax;
       it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  std::ranges::sort(names);  // makes ties independent of the order on disk
  const std::string found = nearest(given.filename().string(), names);
  return found.empty() ? "" : (folder / found).string();
}

}  // namespace hawser

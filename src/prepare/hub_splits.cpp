#include "prepare/hub_splits.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <set>
#include <utility>

#include "base/text.h"
#include "io/files.h"

namespace hawser::prepare {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSeparators = "-._ 0123456789";

std::optional<Split> split_of_name(std::string_view name) {
  static constexpr std::pair<std::string_view, Split> kWords[] = {
      {"train", Split::train},      {"training", Split::train}, {"validation", Split::validation},
      {"valid", Split::validation}, {"dev", Split::validation}, {"val", Split::validation},
      {"test", Split::test},        {"testing", Split::test},   {"eval", Split::test},
      {"evaluation", Split::test},
  };
  for (std::size_t at = 0; at < name.size();) {
    const std::size_t begin = std::min(name.find_first_not_of(kSeparators, at), name.size());
    const std::size_t end = std::min(name.find_first_of(kSeparators, begin), name.size());
    for (const auto& [word, split] : kWords) {
      if (name.substr(begin, end - begin) == word) return split;
    }
    at = end;
  }
  return std::nullopt;
}

// "train_sft" of "train_sft-00000-of-00003.parquet"; "" for other names.
std::string_view shards_of(std::string_view name) {
  const std::size_t of = name.find("-of-");
  if (of == name.npos) return "";
  const auto digits = [&](std::size_t from) {
    std::size_t at = from;
    while (at < name.size() && name[at] >= '0' && name[at] <= '9') ++at;
    return at - from;
  };
  const std::size_t dash = name.rfind('-', of - 1);
  if (of == 0 || dash == name.npos || dash == 0) return "";
  const bool numbers = digits(dash + 1) > 0 && dash + 1 + digits(dash + 1) == of && digits(of + 4) > 0;
  return numbers ? name.substr(0, dash) : "";
}

struct Named {
  std::optional<Split> split;
  std::string set;  // the data set among those of the folder; "": the only one
};

Named named_by(std::string_view path) {
  std::vector<std::string_view> parts;
  for (std::size_t at = 0; at <= path.size();) {
    const std::size_t end = std::min(path.find('/', at), path.size());
    parts.push_back(path.substr(at, end - at));
    at = end + 1;
  }
  const auto above = [&](std::size_t count) {
    std::string out;
    for (std::size_t i = 0; i < count; ++i) out += (out.empty() ? "" : "/") + std::string(parts[i]);
    return out;
  };
  const std::string_view shards = shards_of(parts.back());
  if (const auto split = split_of_name(shards)) {
    const std::string folder = above(parts.size() - 1);
    const bool plain = shards == name_of(*split);  // train-00000-of-00002
    return {split, plain ? folder : (folder.empty() ? "" : folder + "/") + std::string(shards)};
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (const auto split = split_of_name(parts[i])) return {split, above(i)};
  }
  return {};
}

}  // namespace

const char* name_of(Split split) {
  return split == Split::train ? "train" : split == Split::validation ? "validation" : "test";
}

std::optional<Split> split_of(std::string_view path) {
  return named_by(path).split;
}

ChosenSplit choose_split(const std::string& folder, const std::vector<SplitFile>& files, Split wanted) {
  const auto any = [&](const auto& is) { return std::ranges::any_of(files, is); };
  const bool splits = any([](const SplitFile& file) { return file.split.has_value(); });
  const bool has_wanted = any([&](const SplitFile& file) { return file.split == wanted; });
  ChosenSplit out;
  std::map<std::string, std::string> sets;  // with what names one
  for (const SplitFile& file : files) {
    if (!splits || file.split == wanted || (!file.split && wanted == Split::train && !has_wanted)) {
      out.read.push_back(file.path);
      if (!file.split) continue;
      const std::string one = (fs::path(folder) / (file.pattern.empty() ? file.set : file.pattern)).string();
      sets[file.set.empty() ? "." : file.set] = io::is_folder(one) || !file.pattern.empty() ? one : one + "-*";
    } else {
      out.left_out[file.split ? name_of(*file.split) : "other"].push_back(file.path);
    }
  }
  if (sets.size() > 1) {
    for (const auto& [set, one] : sets) out.several.push_back(set), out.one = one;
  }
  return out;
}

ChosenSplit choose_split(const std::string& folder, const std::vector<std::string>& files, Split wanted) {
  std::vector<SplitFile> named;
  for (const std::string& file : files) {
    Named name = named_by(fs::path(file).lexically_relative(folder).string());
    named.push_back({.path = file, .split = name.split, .set = std::move(name.set)});
  }
  return choose_split(folder, named, wanted);
}

std::optional<Problem> split_problem(const std::string& folder, const ChosenSplit& chosen, Split wanted) {
  if (chosen.problem) return chosen.problem;
  if (chosen.several.size() > 1) {
    std::string got;
    for (const std::string& set : chosen.several) got += (got.empty() ? "" : ", ") + set;
    return Problem{.file = folder,
                   .what = "folder with several data sets",
                   .expected = "one, or a list of them",
                   .got = got,
                   .hint = chosen.one};
  }
  if (!chosen.read.empty() || chosen.left_out.empty()) return std::nullopt;
  return Problem{.file = folder,
                 .what = cat("folder without files of the ", name_of(wanted), " split"),
                 .got = left_out_text(chosen),
                 .hint = "the names of the files, if they are the data"};
}

std::string left_out_text(const ChosenSplit& chosen) {
  std::string text;
  for (const auto& [split, files] : chosen.left_out) {
    const bool last = split == chosen.left_out.rbegin()->first;
    text += text.empty() ? "" : last ? " and " : ", ";
    text += cat(split, " (", plural(static_cast<std::int64_t>(files.size()), "file"), ")");
  }
  return text;
}

}  // namespace hawser::prepare

#include "config/convert/conversion.h"

#include <fmt/format.h>
#include <algorithm>
#include <cctype>
#include <cmath>

#include "base/nearest.h"
#include "base/paths.h"
#include "base/text.h"
#include "config/rows.h"
#include "config/schema.h"
#include "io/files.h"

namespace hawser::convert {
namespace {

constexpr const char* kOff = "empty or off";

// "fsdp_config.offload_params" is within fsdp_config.
bool is_within(std::string_view name, std::string_view map) {
  return name.size() > map.size() && name.starts_with(map) && name[map.size()] == '.';
}

bool matches(std::string_view pattern, std::string_view name) {
  if (!pattern.ends_with('*')) return pattern == name;
  return name.starts_with(pattern.substr(0, pattern.size() - 1));
}

// Exact names come before patterns.
const Rule* rule_of(std::span<const Rule> rules, std::string_view name) {
  for (const bool exact : {true, false}) {
    for (const Rule& rule : rules) {
      bool found = false;
      each_name(rule.names, [&](std::string_view one) { found = found || (exact ? one == name : matches(one, name)); });
      if (found) return &rule;
    }
  }
  return nullptr;
}

std::string lower_case(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

int line_of_key(const YAML::Node& node) {
  return node.Mark().is_null() ? 0 : node.Mark().line + 1;
}

// YAML 1.1, which Python reads, allows underscores within numbers: 500_000.
YAML::Node without_underscores(const YAML::Node& node) {
  if (!node.IsScalar() || node.Tag() != "?" || node.Scalar().find('_') == std::string::npos) return node;
  if (node.Scalar().find_first_not_of("0123456789_") != std::string::npos) return node;
  std::string digits = node.Scalar();
  std::erase(digits, '_');
  return YAML::Node(digits);
}

bool is_empty(const YAML::Node& node) {
  return node.IsNull() || (node.IsScalar() && node.Scalar().empty()) || (!node.IsScalar() && node.size() == 0);
}

}  // namespace

bool is_on(const YAML::Node& node) {
  if (is_empty(node)) return false;
  if (!node.IsScalar()) return true;
  const std::string value = lower_case(node.Scalar());
  const auto number = rows::parse_number<double>(value);
  return value != "false" && value != "no" && value != "off" && value != "none" && value != "disabled" &&
         (!number || *number != 0);
}

bool is_among(std::string_view names, std::string_view name) {
  bool found = false;
  each_name(names, [&](std::string_view one) { found = found || one == name; });
  return found;
}

std::vector<std::string> list_of(const YAML::Node& node) {
  std::vector<std::string> out;
  for (std::size_t i = 0; node.IsSequence() && i < node.size(); ++i) {
    if (node[i].IsScalar()) out.push_back(node[i].Scalar());
  }
  if (!node.IsScalar()) return out;
  std::string_view rest = node.Scalar();
  const bool pattern = rest.find_first_of("()[]{}|\\^$") != std::string_view::npos;
  while (!rest.empty()) {
    const std::size_t end = pattern ? rest.size() : std::min(rest.find(','), rest.size());
    std::string_view item = rest.substr(0, end);
    while (!item.empty() && std::isspace(static_cast<unsigned char>(item.front())) != 0) item.remove_prefix(1);
    while (!item.empty() && std::isspace(static_cast<unsigned char>(item.back())) != 0) item.remove_suffix(1);
    if (!item.empty()) out.emplace_back(item);
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return out;
}

YAML::Node node_of(const std::vector<std::string>& texts) {
  YAML::Node out(YAML::NodeType::Sequence);
  for (const std::string& text : texts) out.push_back(text);
  return out;
}

std::string short_text(const YAML::Node& node) {
  if (node.IsMap()) return "a map";
  if (node.IsSequence()) return "a list";
  if (!node.IsScalar()) return "nothing";
  return node.Scalar().size() > 60 ? node.Scalar().substr(0, 57) + "..." : node.Scalar();
}

const Rule* Trainer::find(std::string_view name) const {
  return rule_of(rules, name);
}

const Rule* Trainer::find_of_data(std::string_view name) const {
  return rule_of(data_rules, name);
}

bool Trainer::is_section(std::string_view name) const {
  bool found = false;
  for (const Rule& rule : rules) {
    each_name(rule.names, [&](std::string_view one) { found = found || is_within(one, name); });
  }
  return found;
}

Conversion::Conversion(const Trainer& trainer, const ConvertOptions& options, const YAML::Node& root,
                       Problems& problems)
    : trainer_(trainer), options_(options), problems_(problems) {
  converted_.from = trainer.id;
  collect(root);
}

void Conversion::collect(const YAML::Node& root) {
  const auto give = [&](const std::string& name, const YAML::Node& key, const YAML::Node& value, const Rule* rule) {
    const auto before = std::ranges::find(given_, name, &Given::name);
    Given given{.name = name, .value = without_underscores(value), .line = line_of_key(key), .rule = rule};
    if (before == given_.end()) {
      given_.push_back(std::move(given));
    } else if (name.find('[') == std::string::npos || !convert::is_on(before->value)) {
      *before = std::move(given);  // Python takes the last of two equal keys; of data sets, one that is on counts
    }
  };
  for (const auto& pair : root) {
    if (!pair.first.IsScalar()) continue;
    const std::string name = pair.first.Scalar();
    const bool is_list = std::ranges::find(trainer_.data_lists, name) != trainer_.data_lists.end();
    if (pair.second.IsMap() && trainer_.is_section(name)) {
      for (const auto& inner : pair.second) {
        const std::string dotted = name + "." + inner.first.Scalar();
        give(dotted, inner.first, inner.second, trainer_.find(dotted));
      }
      continue;
    }
    give(name, pair.first, pair.second, trainer_.find(name));
    for (std::size_t i = 0; is_list && pair.second.IsSequence() && i < pair.second.size(); ++i) {
      if (!pair.second[i].IsMap()) continue;
      for (const auto& inner : pair.second[i]) {
        const std::string key = inner.first.Scalar();
        give(name + "[]." + key, inner.first, inner.second, trainer_.find_of_data(key));
      }
    }
  }
}

const YAML::Node* Conversion::find(std::string_view name) const {
  const auto found = std::ranges::find(given_, name, &Given::name);
  const bool known = found != given_.end() && found->rule != nullptr;
  return known && !is_empty(found->value) ? &found->value : nullptr;
}

bool Conversion::is_on(std::string_view name) const {
  const YAML::Node* node = find(name);
  if (node != nullptr) return convert::is_on(*node);
  return std::ranges::any_of(given_, [&](const Given& given) { return is_within(given.name, name); });
}

std::string Conversion::text(std::string_view name) const {
  const YAML::Node* node = find(name);
  return node != nullptr && node->IsScalar() ? node->Scalar() : "";
}

std::optional<double> Conversion::number(std::string_view name) {
  const YAML::Node* node = find(name);
  if (node == nullptr) return std::nullopt;
  const auto value = node->IsScalar() ? rows::parse_number<double>(node->Scalar()) : std::nullopt;
  if (!value || !std::isfinite(*value)) {
    problem(name, {.what = "wrong type", .expected = "a number", .got = short_text(*node)});
    return std::nullopt;
  }
  return value;
}

std::vector<YAML::Node> Conversion::entries(std::string_view list) const {
  std::vector<YAML::Node> out;
  const YAML::Node* node = find(list);
  if (node == nullptr) return out;
  if (node->IsMap()) out.push_back(*node);
  for (std::size_t i = 0; node->IsSequence() && i < node->size(); ++i) {
    if ((*node)[i].IsMap()) out.push_back((*node)[i]);
  }
  return out;
}

int Conversion::line_of(std::string_view name) const {
  const auto found =
      std::ranges::find_if(given_, [&](const Given& one) { return one.name == name || is_within(one.name, name); });
  return found == given_.end() ? 0 : found->line;
}

void Conversion::problem(std::string_view name, Problem problem) {
  const int line = line_of(name);
  problem.file = options_.file;
  problem.at = line > 0 ? cat(name, ", line ", line) : std::string(name);
  problems_.add(std::move(problem));
}

void Conversion::set(std::string_view ours, const YAML::Node& value, std::string_view theirs, const std::string& why) {
  const Key* key = find_key(ours);
  HAWSER_CHECK(key != nullptr, "no key ", ours);
  if (const auto rejection = key->read(value, converted_.recipe)) {
    problem(theirs, {.what = rejection->what,
                     .expected = rejection->expected,
                     .got = rejection->secret ? "" : short_text(value),
                     .hint = rejection->hint});
    return;
  }
  converted_.recipe.places[key->name] = cat("line ", line_of(theirs));
  converted_.notes.why[key->name] = why.empty() ? cat(trainer_name(), "'s ", theirs) : why;
}

void Conversion::set(std::string_view ours, const std::string& value, std::string_view theirs, const std::string& why) {
  set(ours, YAML::Node(value), theirs, why);
}

void Conversion::set(std::string_view ours, double value, std::string_view theirs, const std::string& why) {
  const bool whole = value == std::floor(value) && std::abs(value) < 1e15;
  set(ours, whole ? cat(static_cast<std::int64_t>(value)) : fmt::format("{:.9g}", value), theirs, why);
}

void Conversion::set_default(std::string_view ours, const std::string& value, std::string_view theirs) {
  set(ours, YAML::Node(value), theirs, cat(trainer_name(), "'s default of ", theirs));
}

void Conversion::drop_if_off(std::string_view name) {
  if (!is_on(name)) drop(name, WhyDropped::not_needed, kOff);
}

void Conversion::drop(std::string_view name, WhyDropped why, const std::string& reason) {
  if (std::ranges::find(given_, name, &Given::name) == given_.end()) return;
  const auto before = std::ranges::find(dropped_, name, &std::pair<std::string, DroppedKeys>::first);
  DroppedKeys dropped{.why = why, .reason = reason, .keys = {}};
  if (before == dropped_.end()) {
    dropped_.emplace_back(name, std::move(dropped));
  } else {
    before->second = std::move(dropped);
  }
}

void Conversion::remark(const std::string& text) {
  if (std::ranges::find(converted_.remarks, text) == converted_.remarks.end()) converted_.remarks.push_back(text);
}

void Conversion::download(const std::string& command) {
  auto& all = converted_.downloads;
  if (std::ranges::find(all, command) == all.end()) all.push_back(command);
}

std::string Conversion::path(const std::string& text) const {
  if (text.find("://") != std::string::npos) return text;
  std::string out = with_home(text);
  if (!options_.keep_relative) return absolute_path(out);
  while (out.starts_with("./") && out.size() > 2) out.erase(0, 2);
  while (out.size() > 1 && out.ends_with('/')) out.pop_back();
  return out;
}

bool Conversion::exists(const std::string& text) {
  return text.find("://") == std::string::npos && io::exists(with_home(text));
}

void Conversion::apply(const Given& given) {
  if (given.rule == nullptr) {
    std::vector<std::string> known;
    for (const Rule& rule : trainer_.rules) {
      each_name(rule.names, [&](std::string_view one) {
        if (!one.ends_with('*')) known.emplace_back(one);
      });
    }
    const std::string near = nearest(given.name, known);
    return drop(given.name, WhyDropped::unknown,
                cat("no key of ", trainer_name(), near.empty() ? "" : cat("; the nearest is ", near)));
  }
  const Rule& rule = *given.rule;
  if (is_empty(given.value)) return drop(given.name, WhyDropped::not_needed, kOff);
  if (rule.becomes == Becomes::dropped) {
    const bool off = rule.why == WhyDropped::unsupported && !convert::is_on(given.value);
    if (off) return drop(given.name, WhyDropped::not_needed, kOff);
    return drop(given.name, rule.why, std::string(rule.target));
  }
  if (rule.becomes == Becomes::key) set(rule.target, given.value, given.name);
}

void Conversion::run() {
  for (const Stop& stop : trainer_.stops) {
    const std::string value = text(stop.name);
    if (!is_on(stop.name) || is_among(stop.except, value)) continue;
    problem(stop.name, {.what = "this kind of training is not supported",
                        .expected = std::string(stop.expected),
                        .got = lower_case(value) == "true" ? "" : value,
                        .hint = std::string(stop.hint)});
  }
  if (!problems_.empty()) return;
  for (const Given& given : given_) apply(given);
  convert_batch(*this);
  convert_duration(*this);
  convert_schedule(*this);
  convert_saves(*this);
  convert_evaluations(*this);
  convert_sequence_length(*this);
  convert_output(*this);
  convert_precision(*this);
  convert_optimizer(*this);
  convert_timeout(*this);
  convert_reports(*this);
  trainer_.convert(*this);
}

Converted Conversion::finish() {
  for (const Given& given : given_) {
    const auto found = std::ranges::find(dropped_, given.name, &std::pair<std::string, DroppedKeys>::first);
    if (found == dropped_.end()) {
      converted_.mapped.push_back(given.name);
      continue;
    }
    const auto same = std::ranges::find_if(converted_.dropped, [&](const DroppedKeys& other) {
      return other.why == found->second.why && other.reason == found->second.reason;
    });
    DroppedKeys& group = same != converted_.dropped.end() ? *same : converted_.dropped.emplace_back(found->second);
    group.keys.push_back(given.name);
  }
  std::ranges::stable_sort(converted_.dropped, {}, &DroppedKeys::why);
  return std::move(converted_);
}

}  // namespace hawser::convert

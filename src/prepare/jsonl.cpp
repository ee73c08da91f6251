#include "prepare/jsonl.h"

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/ascii.h"
#include "base/nearest.h"
#include "base/utf8.h"
#include "prepare/byte_reader.h"
#include "prepare/conversation_line.h"
#include "prepare/json_line.h"
#include "prepare/open_lines.h"
#include "prepare/token_file.h"

namespace hawser::prepare {
namespace {

using Json = nlohmann::ordered_json;
using namespace std::string_view_literals;

constexpr std::string_view kPlus = " + ";  // between the keys of a form

// Parses one line and reports its problems.
class LineReader {
 public:
  LineReader(const LinePlace& place, Problems& problems) : place_(place), problems_(problems) {}

  std::optional<Line> read(Json& json) {
    std::set<std::string> found;
    if (place_.names) place_.names->rename_line(json, found);
    std::optional<Line> line = read_form(json);
    if (!line) return line;
    note_unread(json, *line);
    line->names.merge(found);
    return line;
  }

 private:
  std::optional<Line> read_form(Json& json) {
    const auto has = [&](std::string_view key) {
      const auto found = json.find(std::string(key));
      return found != json.end() && !found->is_null();
    };
    const std::vector<std::string> forms = choose_form(has);
    if (forms.empty() && has("chosen") && has("rejected")) {
      return reject("preference data, which are not supported yet", "a form of docs/data.md", "chosen and rejected", "",
                    hint_for_preferences(json));
    }
    const bool prompt_alone = forms.empty() && has("prompt");
    if (forms.size() != 1 && !prompt_alone) return reject_keys(json, forms);
    const std::string form = prompt_alone ? "prompt" : forms.front();
    const std::size_t plus = form.find(kPlus);
    keys_ = {form.substr(0, plus)};
    if (plus != form.npos) keys_.push_back(form.substr(plus + kPlus.size()));
    try {
      ConversationReader answers(place_, problems_);
      if (form == "messages" || form == "conversations") return answers.messages(json, form);
      if (keys_.front() == "prompt") return answers.completion(json);
      if (keys_.size() == 2) return answers.single_turn(json, keys_[0], keys_[1]);
    } catch (const text::chat::TemplateError& error) {
      return reject(error.what(), "messages with text content", "", "");
    }
    Line line;
    if (form == "text") {
      if (!json["text"].is_string()) return reject("wrong type", "a string", json["text"].type_name(), "text");
      line.text = std::move(json["text"].get_ref<std::string&>());
      return line;
    }
    const std::int64_t max = place_.vocab_size > 0 ? place_.vocab_size - 1 : std::numeric_limits<std::int32_t>::max();
    bool good = numbers(json["input_ids"], "input_ids", "id outside the vocabulary", 0, max, false, line.ids);
    if (good && line.ids.empty()) {
      reject("no ids", "one or more", "none", "input_ids");
      good = false;
    }
    if (const auto labels = json.find("labels"); labels != json.end() && !labels->is_null()) {
      const bool read = numbers(*labels, "labels", "label outside the vocabulary", 0, max, true, line.labels);
      if (read && good && line.labels.size() != line.ids.size()) {
        reject("labels do not match input_ids", cat(line.ids.size()), cat(line.labels.size()), "labels");
        good = false;
      }
      good = good && read;
    }
    if (const auto mask = json.find("attention_mask"); good && mask != json.end() && !mask->is_null()) {
      good = remove_padding(*mask, line);
    }
    const bool both = has("document_lengths") && has("seq_lengths");
    if (both) reject("document_lengths and seq_lengths in one line", "one of the two", "both", "seq_lengths");
    const char* lengths = has("seq_lengths") ? "seq_lengths" : "document_lengths";
    if (const auto found = json.find(lengths); has(lengths) && !both) {
      const bool read = numbers(*found, lengths, "bad document length", 1, std::numeric_limits<std::int32_t>::max(),
                                false, line.document_lengths);
      std::int64_t sum = 0;
      for (const std::int32_t length : line.document_lengths) sum += length;
      if (read && good && sum != static_cast<std::int64_t>(line.ids.size())) {
        reject(cat(lengths, " do not add up"), cat(line.ids.size()), cat(sum), lengths);
        good = false;
      }
      good = good && read;
    }
    good = good && !both;
    return good ? std::optional(std::move(line)) : std::nullopt;
  }

  // Notes the keys of a line that its form does not read.
  void note_unread(const Json& json, Line& line) const {
    for (const auto& [key, value] : json.items()) {
      if (value.is_null() || is_read(key, value, line)) continue;
      const bool blank = value.empty() || (value.is_string() && value.get_ref<const std::string&>().empty());
      const bool of_other_forms = std::ranges::find(line_keys(), key) != line_keys().end() && !blank;
      // data.columns made the chosen answers something else, as the error of preference data proposes.
      if (key == "rejected" && !json.contains("chosen")) continue;
      const std::string meant = of_other_forms ? "" : meant_by(key);
      if (!meant.empty() && !json.contains(meant)) {
        line.unread.insert(cat(key, " (if it is ", meant, ": data.columns: {", meant, ": ", key, "})"));
      } else if (of_other_forms || could_matter(key)) {
        line.unread.insert(key);
      }
    }
  }

  // The key that a key of the user's may mean, as a misspelling or in capitals; "": none.
  static std::string meant_by(const std::string& key) {
    for (const std::string_view known : line_keys()) {
      const int distance = edit_distance(key, known);
      if (distance == 0 || (distance == 1 && known.size() > 4)) return std::string(known);
    }
    return "";
  }

  bool is_read(const std::string& key, const Json& value, const Line& line) const {
    const auto among = [&](const auto& keys) { return std::ranges::find(keys, key) != std::end(keys); };
    if (among(keys_)) return true;
    if (!line.ids.empty()) {
      // Positions that begin again tell where documents begin, which document_lengths do here.
      if (key == "position_ids") return !line.document_lengths.empty() || !begins_again(value);
      return among(std::array{"labels", "attention_mask", "document_lengths", "seq_lengths"});
    }
    if (!line.chat) return false;
    const bool single_turn = keys_.size() == 2 && keys_.front() != "prompt";
    return among(std::array{"tools", "functions", "documents", "chat_template_kwargs", "system", "system_prompt"}) ||
           (single_turn && among(std::array{"input", "context", "history"}));
  }

  static bool begins_again(const Json& positions) {
    if (!positions.is_array()) return false;
    const auto is_first = [](const Json& position) { return position.is_number_integer() && position == 0; };
    return std::ranges::count_if(positions, is_first) > 1;
  }

  // data.columns with which a line of preferences is read as its chosen answer.
  static std::string hint_for_preferences(const Json& json) {
    const auto is = [&](std::string_view key, auto... types) {
      const auto found = json.find(std::string(key));
      return found != json.end() && ((found->type() == types) || ...) && !found->empty() && *found != "";
    };
    using JsonType = Json::value_t;
    std::string columns;
    if (is("chosen", JsonType::array)) {
      columns = is("prompt", JsonType::array) ? "completion: chosen" : "messages: chosen";
    } else if (is("question", JsonType::string)) {
      columns = "answer: chosen";
    } else if (is("instruction", JsonType::string)) {
      columns = "output: chosen";
    } else if (is("prompt", JsonType::string)) {
      const bool chat = is("system", JsonType::string) || is("system_prompt", JsonType::string);
      columns = chat ? "instruction: prompt, output: chosen" : "completion: chosen";
    } else if (is("prompt", JsonType::array)) {
      return "chosen as a list of messages, like the prompt";
    } else {
      columns = "text: chosen";
    }
    return cat("data.columns: {", columns, "}, which trains on the chosen answers alone");
  }

  // The line has no form or several.
  std::nullopt_t reject_keys(const Json& json, const std::vector<std::string>& forms) {
    std::string got;
    for (const std::string& form : forms) got += cat(got.empty() ? "" : " and ", form);
    for (const auto& [key, value] : json.items()) {
      if (forms.empty() && got.size() < 100) got += cat(got.empty() ? "" : ", ", key);
    }
    return reject(
        cat(place_.unit, " needs exactly one of these keys"),
        "text, input_ids, messages, conversations, prompt and completion, instruction and output, or question "
        "and answer",
        got.empty() ? "none" : got, "",
        forms.size() < 2         ? ""
        : place_.unit == "row"sv ? "a copy of the file without the other columns"
                                 : "jq -c 'del(.KEY)' FILE to drop a key");
  }

  // Drops the ids and labels at which the mask is 0: padding at the beginning, the end or both.
  bool remove_padding(const Json& list, Line& line) {
    std::vector<std::int32_t> mask;
    if (!numbers(list, "attention_mask", "attention_mask is not 0 or 1", 0, 1, false, mask)) return false;
    if (mask.size() != line.ids.size()) {
      reject("attention_mask does not match input_ids", cat(line.ids.size()), cat(mask.size()), "attention_mask");
      return false;
    }
    const auto begin = std::find(mask.begin(), mask.end(), 1);
    const auto end = std::find(mask.rbegin(), std::make_reverse_iterator(begin), 1).base();
    if (begin == mask.end()) {
      reject("no ids", "a 1", "zeros only", "attention_mask");
      return false;
    }
    if (std::find(begin, end, 0) != end) {
      reject("attention_mask has zeros between ones", "zeros at the beginning or the end", "", "attention_mask");
      return false;
    }
    const auto keep = [&](std::vector<std::int32_t>& values) {
      if (values.empty()) return;
      values.erase(values.begin() + (end - mask.begin()), values.end());
      values.erase(values.begin(), values.begin() + (begin - mask.begin()));
    };
    keep(line.ids);
    keep(line.labels);
    return true;
  }

  std::nullopt_t reject(std::string what, std::string expected, std::string got, const std::string& key,
                        std::string hint = "") {
    problems_.add(place_.problem(std::move(what), std::move(expected), std::move(got), key, std::move(hint)));
    return std::nullopt;
  }

  // Integers in [min, max], or -100 if `ignored`. Reports the first invalid one only.
  bool numbers(const Json& list, const std::string& key, const char* what, std::int64_t min, std::int64_t max,
               bool ignored, std::vector<std::int32_t>& out) {
    if (!list.is_array()) {
      reject("wrong type", "a list of integers", list.type_name(), key);
      return false;
    }
    out.reserve(list.size());
    for (const Json& item : list) {
      // get<int64> wraps an unsigned number beyond int64 to a negative one.
      const bool whole =
          item.is_number_integer() && !(item.is_number_unsigned() && item.get<std::uint64_t>() > 1ull << 62);
      const std::int64_t value = whole ? item.get<std::int64_t>() : 0;
      if (!whole || ((value < min || value > max) && !(ignored && value == kIgnoredLabel))) {
        reject(what, cat(ignored ? "-100, or " : "", min, " to ", max), shown(item), cat(key, "[", out.size(), "]"));
        return false;
      }
      out.push_back(static_cast<std::int32_t>(value));
    }
    return true;
  }

  const LinePlace& place_;
  Problems& problems_;
  std::vector<std::string> keys_;  // of the form that the line has
};

}  // namespace

std::vector<std::string> choose_form(const std::function<bool(std::string_view)>& has) {
  std::vector<std::string> forms;
  if (has("input_ids")) return {"input_ids"};
  for (const char* key : {"messages", "conversations"}) {
    if (has(key)) forms.emplace_back(key);
  }
  if (!forms.empty()) return forms;
  if (has("prompt") && has("completion")) return {cat("prompt", kPlus, "completion")};
  for (const std::string_view question : kQuestionKeys) {
    for (const std::string_view answer : kAnswerKeys) {
      if (has(question) && has(answer)) forms.push_back(cat(question, kPlus, answer));
    }
  }
  if (forms.empty() && has("text")) forms.emplace_back("text");
  return forms;
}

bool could_matter(std::string_view key) {
  constexpr std::array kParts = {"train", "loss",  "mask",  "weight", "learn", "ignore",   "reason",  "think", "tool",
                                 "funct", "image", "audio", "video",  "docum", "template", "thought", "refus"};
  const std::string lower = lower_case(key);
  return std::ranges::any_of(kParts, [&](const char* part) { return lower.find(part) != lower.npos; });
}

const std::vector<std::string_view>& line_keys() {
  static const std::vector<std::string_view> keys = [] {
    // With those that TRL gives a conversation.
    std::vector<std::string_view> all = {
        "text",          "input_ids",     "labels",     "attention_mask", "document_lengths", "messages",
        "conversations", "tools",         "functions",  "documents",      "system",           "chat_template_kwargs",
        "prompt",        "system_prompt", "completion", "input",          "context",          "history",
        "seq_lengths",   "position_ids",  "chosen",     "rejected"};
    all.insert(all.end(), std::begin(kQuestionKeys), std::end(kQuestionKeys));
    all.insert(all.end(), std::begin(kAnswerKeys), std::end(kAnswerKeys));
    return all;
  }();
  return keys;
}

std::optional<Line> parse_line(std::string_view line, const LinePlace& place, Problems& problems) {
  std::optional<Json> parsed = parse_json_line(line, place, problems);
  return parsed ? parse_object(*parsed, place, problems) : std::nullopt;
}

std::optional<Line> parse_object(Json& object, const LinePlace& place, Problems& problems) {
  auto read = LineReader(place, problems).read(object);
  if (read) read->number = place.number, read->unit = place.unit;
  return read;
}

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

namespace {

// Adds a problem if the text is UTF-16.
bool is_utf16(const std::string& path, std::string_view text, Problems& problems) {
  if (!looks_like_utf16(text)) return false;
  problems.add({.file = path, .what = "UTF-16 text", .expected = "UTF-8", .hint = kFromUtf16});
  return true;
}

std::string beginning_of(const std::string& path) {
  std::string text(512, '\0');
  text.resize(open_bytes(path)->read(text));
  return text;
}

}  // namespace

std::vector<Line> read_text_file(const std::string& path, Problems& problems) {
  std::string text = read_all_bytes(path);
  if (is_utf16(path, text, problems)) return {};
  remove_byte_order_mark(text);
  if (text.empty()) {
    problems.add({.file = path, .what = "empty file"});
  } else if (const std::size_t bad = find_invalid_utf8(text); bad != std::string_view::npos) {
    problems.add({.file = path, .what = "not UTF-8", .at = cat("byte ", bad), .hint = "iconv -c -t utf-8"});
  } else {
    return {Line{.text = text}};
  }
  return {};
}

std::vector<Line> read_jsonl(const std::string& path, std::int64_t vocab_size, Problems& problems,
                             const LineNames& names) {
  std::vector<Line> lines;
  if (is_utf16(path, beginning_of(path), problems)) return lines;
  const Lines opened = open_lines(path, /*training=*/true, &names);
  const std::string text = read_all_bytes(*opened.bytes, path);
  bool any = false;
  LinePlace place{.file = path, .vocab_size = vocab_size, .unit = opened.unit, .names = &names};
  for (std::size_t at = 0; at < text.size(); ++place.number) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = std::string_view(text).substr(at, end - at);
    place.byte = static_cast<std::int64_t>(at);
    if (!is_blank(line)) {
      any = true;
      if (auto parsed = parse_line(line, place, problems)) lines.push_back(std::move(*parsed));
    }
    at = end + 1;
  }
  if (!any) problems.add({.file = path, .what = "empty file", .expected = "one line of JSON or more"});
  return lines;
}

}  // namespace hawser::prepare

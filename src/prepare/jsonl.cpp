#include "prepare/jsonl.h"

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/ascii.h"
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

// Parses one line and reports its problems.
class LineReader {
 public:
  LineReader(const LinePlace& place, Problems& problems) : place_(place), problems_(problems) {}

  std::optional<Line> read(Json& json) {
    if (place_.names) place_.names->rename_line(json);
    std::optional<Line> line = read_form(json);
    if (line) note_unread(json, *line);
    return line;
  }

 private:
  std::optional<Line> read_form(Json& json) {
    const auto has = [&](std::string_view key) {
      const auto found = json.find(std::string(key));
      return found != json.end() && !found->is_null();
    };
    const std::vector<std::string> forms = forms_of(has);
    const bool whole = forms.size() == 1 && (!has("prompt") || has("completion"));
    if (!whole && has("chosen") && has("rejected")) {
      return reject("preference data, which are not supported yet", "a form of docs/data.md", "chosen and rejected", "",
                    "data.columns: {completion: chosen}, or {messages: chosen} if it has messages, which trains on the "
                    "chosen answers alone");
    }
    if (forms.size() != 1) return reject_keys(json, forms);
    try {
      ConversationReader answers(place_, problems_);
      if (has("messages")) return answers.messages(json, "messages");
      if (has("conversations")) return answers.messages(json, "conversations");
      if (has("prompt")) return answers.completion(json);
      const auto question = std::ranges::find_if(kQuestionKeys, has), answer = std::ranges::find_if(kAnswerKeys, has);
      const bool single = question != std::end(kQuestionKeys) && answer != std::end(kAnswerKeys);
      if (single) return answers.single_turn(json, *question, *answer);
    } catch (const text::chat::TemplateError& error) {
      return reject(error.what(), "messages with text content", "", "");
    }
    Line line;
    if (has("text")) {
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
    if (const auto lengths = json.find("document_lengths"); lengths != json.end() && !lengths->is_null()) {
      const bool read = numbers(*lengths, "document_lengths", "bad document length", 1,
                                std::numeric_limits<std::int32_t>::max(), false, line.document_lengths);
      std::int64_t sum = 0;
      for (const std::int32_t length : line.document_lengths) sum += length;
      if (read && good && sum != static_cast<std::int64_t>(line.ids.size())) {
        reject("document_lengths do not add up", cat(line.ids.size()), cat(sum), "document_lengths");
        good = false;
      }
      good = good && read;
    }
    return good ? std::optional(std::move(line)) : std::nullopt;
  }

  // Notes the keys of a line that no form reads.
  static void note_unread(const Json& json, Line& line) {
    constexpr std::array kOfIds = {"labels", "attention_mask", "document_lengths"};
    constexpr std::array kOfChats = {"tools", "functions", "documents", "chat_template_kwargs", "system", "history"};
    for (const auto& [key, value] : json.items()) {
      const bool read = line.chat ? std::ranges::find(kOfChats, key) != kOfChats.end()
                                  : !line.ids.empty() && std::ranges::find(kOfIds, key) != kOfIds.end();
      if (!read && !value.is_null() && could_matter(key)) line.unread.insert(key);
    }
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
};

}  // namespace

std::vector<std::string> forms_of(const std::function<bool(std::string_view)>& has) {
  std::vector<std::string> forms;
  for (const char* key : {"text", "input_ids", "messages", "conversations", "prompt"}) {
    if (has(key)) forms.emplace_back(key);
  }
  for (const std::string_view question : kQuestionKeys) {
    for (const std::string_view answer : kAnswerKeys) {
      if (has(question) && has(answer)) forms.push_back(cat(question, " + ", answer));
    }
  }
  return forms;
}

bool could_matter(std::string_view key) {
  constexpr std::array kParts = {"train", "loss",  "mask",  "weight", "learn", "ignore", "reason",  "think",
                                 "tool",  "funct", "image", "audio",  "video", "docum",  "template"};
  const std::string lower = lower_case(key);
  return std::ranges::any_of(kParts, [&](const char* part) { return lower.find(part) != lower.npos; });
}

const std::vector<std::string_view>& line_keys() {
  static const std::vector<std::string_view> keys = [] {
    // With those that TRL gives a conversation.
    std::vector<std::string_view> all = {
        "text",          "input_ids",     "labels",     "attention_mask", "document_lengths", "messages",
        "conversations", "tools",         "functions",  "documents",      "system",           "chat_template_kwargs",
        "prompt",        "system_prompt", "completion", "input",          "context",          "history"};
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

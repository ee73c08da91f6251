// `ConversationReader`: reads the lines that have answers: conversations, and prompts with completions. Internal to
// parse_line, whose header lists the keys.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "prepare/jsonl.h"

namespace hawser::prepare {

// The keys of a single question and its answer. The first of a list is Alpaca's.
inline constexpr std::string_view kQuestionKeys[] = {"instruction", "question"};
inline constexpr std::string_view kAnswerKeys[] = {"output", "response", "answer"};
// In Line::unread of a conversation that has tool calls and no tools.
inline constexpr const char* kNoTools =
    "tools (conversations have tool calls and no tools; data.columns: {tools: NAME} if the file calls them NAME)";

// Each function adds a problem and returns nullopt for a line that it rejects. TemplateError for values that no
// template can have (from_json.h).
class ConversationReader {
 public:
  using Json = nlohmann::ordered_json;

  ConversationReader(const LinePlace& place, Problems& problems) : place_(place), problems_(problems) {}

  std::optional<Line> messages(const Json& line, const std::string& key);
  std::optional<Line> completion(const Json& line);
  std::optional<Line> single_turn(const Json& line, std::string_view question, std::string_view answer);

 private:
  // Appends the messages in the form of templates. Accepts `style` "role" or "from", and sets it if it is empty.
  bool append(const Json& list, const std::string& key, std::string& style, Line& out, text::chat::List& messages);
  // The message as a dict of templates; nullopt, with a problem, if it is none.
  std::optional<text::chat::Dict> message_of(const Json& from, const std::string& role, const std::string& text_key,
                                             const std::string& place);
  // Gives a message of LLaMA-Factory's sender function_call, whose value is the text of a call or of a list of calls,
  // `tool_calls` instead.
  bool read_call_message(Json& message, const std::string& place);
  // Whether the calls of a message can be read: they are objects, and so are their arguments.
  bool check_calls(const Json& message, const std::string& place);
  bool check_arguments(const Json& call, const std::string& place);
  bool append_weight(const Json& message, const std::string& role, const std::string& place, Line& out);
  // An optional key that is a list or an object, or its JSON text; null if it is missing. nullopt, with a problem, for
  // anything else.
  std::optional<Json> structure(const Json& line, const std::string& key, bool list);
  std::optional<Line> complete(const Json& line, Line out, text::chat::List messages);
  // The text of an optional key; "" if it is missing. nullopt, with a problem, for another type.
  std::optional<std::string> optional_text(const Json& line, std::string_view key);
  std::nullopt_t reject(std::string what, std::string expected, std::string got, const std::string& key,
                        std::string hint = "");

  const LinePlace& place_;
  Problems& problems_;
  bool bare_functions_ = false;  // the tools of the line are not in the form of templates
};

}  // namespace hawser::prepare

#include "text/chat/chat_template.h"

#include <algorithm>

#include "base/philox.h"
#include "text/chat/texts.h"

namespace hawser::text::chat {

ChatTemplate::ChatTemplate(const std::string& source, std::map<std::string, std::string> variables, std::string file,
                           std::optional<ToolUse> tool_use)
    : variables_(std::move(variables)), source_(source), file_(std::move(file)), tool_use_(std::move(tool_use)) {
  try {
    program_ = parse_program(source, has_generations_);
  } catch (const TemplateError& error) {
    throw UserError({.file = file_,
                     .what = cat("chat template: ", error.what()),
                     .at = cat("template line ", error.line),
                     .hint = "a template within the subset of Jinja in docs/data.md as data.chat_template"});
  }
  fingerprint_ = fnv1a(source);
  for (const auto& [name, text] : variables_) fingerprint_ = fnv1a(cat(name, "=", text, "\n"), fingerprint_);

  probe();
  if (!tool_use_) return;
  fingerprint_ = fnv1a(tool_use_->source, fingerprint_);
  try {
    with_tools_ = std::make_shared<const ChatTemplate>(tool_use_->source, variables_, tool_use_->file);
  } catch (const UserError& error) {
    rejected_ = error;
  }
}

// The results decide, not the source: templates test contents in many ways.
void ChatTemplate::probe() {
  const auto dict = [](std::vector<std::pair<std::string, Value>> items) {
    Dict out;
    out.items = std::move(items);
    return Value(std::move(out));
  };
  const auto user = [&](Value content) { return dict({{"role", "user"}, {"content", std::move(content)}}); };
  // The text of a conversation; "" if the template rejects it.
  const auto text_of = [&](List messages, bool prompt = false) {
    try {
      return render({std::move(messages)}, prompt).text;
    } catch (const TemplateError&) {
      return std::string();
    }
  };
  const auto writes = [&](List messages, const char* what) {
    return text_of(std::move(messages)).find(what) != std::string::npos;
  };
  readable_ = {.parts = true, .objects = true, .text_of_arguments = true};
  const bool parts = writes({user(List{dict({{"type", "text"}, {"text", "a part"}})})}, "a part");
  const auto call = [&](Value arguments) {
    const Value function = dict({{"name", "probe"}, {"arguments", std::move(arguments)}});
    return dict({{"role", "assistant"},
                 {"content", ""},
                 {"tool_calls", List{dict({{"id", "abcdefgh1"}, {"type", "function"}, {"function", function}})}}});
  };
  const Value n = dict({{"n", std::int64_t{1}}}), m = dict({{"m", std::int64_t{2}}});
  const bool text_of_arguments = writes({user("x"), call("{\"n\": 11}")}, "{\"n\": 11}");
  const Value result = dict({{"role", "tool"}, {"name", "probe"}, {"tool_call_id", "abcdefgh1"}, {"content", m}});
  const bool objects = writes({user("x"), call(n), result}, "{\"m\": 2}");
  readable_ = {.parts = parts, .objects = objects, .text_of_arguments = text_of_arguments};
  const std::string called = text_of({user("x"), call(n)});
  drops_calls_ = !called.empty() && called.find("probe") == std::string::npos;
  const std::string argued = text_of({user("x"), call(dict({{"wind_of", "lima"}}))});
  const auto in = [](const std::string& text, const char* what) { return text.find(what) != std::string::npos; };
  drops_arguments_ = in(argued, "probe") && !in(argued, "wind_of") && !in(argued, "lima");

  const Value thoughts =
      dict({{"role", "assistant"}, {"content", "y"}, {"thinking", "a thought"}, {"reasoning_content", "a thought"}});
  writes_thoughts_ = writes({user("x"), thoughts}, "a thought");
  try {
    const std::string without = render({List{user("x")}}, false).text;
    const Rendered with = render({List{user("x")}}, true);
    if (with.text.starts_with(without)) generation_prompt_ = with.text.substr(without.size());
    if (with.contents[0]) after_user_ = with.text.substr(with.contents[0]->end);
    opening_ = generation_prompt_;
    if (generation_prompt_.empty() && with.contents[0]) find_opening();
  } catch (const TemplateError&) {
    // The template rejects the probe: all stay empty.
  }
}

// Of a template without a generation prompt: what it writes between a question and an answer, behind what it writes
// after a question alone.
void ChatTemplate::find_opening() {
  Dict question, answer;
  question.items = {{"role", "user"}, {"content", "x"}};
  answer.items = {{"role", "assistant"}, {"content", "y"}};
  try {
    const Rendered both = render({List{question, answer}});
    if (!both.contents[0] || !both.contents[1] || both.contents[1]->begin < both.contents[0]->end) return;
    const std::size_t from = both.contents[0]->end;
    const std::string between = both.text.substr(from, both.contents[1]->begin - from);
    if (!between.starts_with(after_user_)) return;
    constant_opening_ = find_constant_opening(both.text.substr(both.contents[1]->end));
    if (!constant_opening_.empty()) {
      opening_ = constant_opening_;  // what follows it is what the model writes
      return;
    }
    opening_ = between.substr(after_user_.size());
    opening_.resize(opening_.find_last_not_of(' ') + 1);  // spaces belong to the first word
    after_user_ += opening_;
  } catch (const TemplateError&) {
    // The template rejects an answer.
  }
}

// Of a template without a generation prompt: the opening of an answer that it writes after the last message, whatever
// that is; "" if it does not.
//
//   after a question and after an answer, at the end  <|im_end|>\n<|im_start|>assistant\n
//   between an answer and a question                  <|im_end|>\n<|im_start|>user\n
//
// The opening begins where the two differ, or with the tag before or around that place.
std::string ChatTemplate::find_constant_opening(const std::string& after_answer) const {
  Dict question, answer;
  question.items = {{"role", "user"}, {"content", "x"}};
  answer.items = {{"role", "assistant"}, {"content", "y"}};
  const Rendered three = render({List{question, answer, question}});
  const auto &said = three.contents[1], &asked = three.contents[2];
  if (!said || !asked || asked->begin < said->end) return "";
  const std::string next = three.text.substr(said->end, asked->begin - said->end);
  const auto same = static_cast<std::size_t>(std::ranges::mismatch(after_answer, next).in1 - after_answer.begin());
  if (same == after_answer.size()) return "";
  const std::size_t tag = same == 0 ? std::string::npos : after_answer.rfind('<', same - 1);
  const bool in_tag = tag != std::string::npos && after_answer.find_first_of(" \n", tag) >= same;
  for (const std::size_t at : {in_tag ? tag : same, same}) {
    if (after_user_.ends_with(std::string_view(after_answer).substr(at))) return after_answer.substr(at);
  }
  return "";
}

Conversation first_messages(const Conversation& conversation, std::size_t count) {
  Conversation first = conversation;
  const List& all = conversation.messages.list();
  first.messages = List(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(count));
  return first;
}

const ChatTemplate& ChatTemplate::used_for(const Conversation& conversation) const {
  if (!tool_use_ || conversation.tools.is_undefined()) return *this;
  if (rejected_) throw UserError(*rejected_);
  return *with_tools_;
}

std::string ChatTemplate::eos_token() const {
  const auto found = variables_.find("eos_token");
  return found == variables_.end() ? "" : found->second;
}

Rendered ChatTemplate::render(const Conversation& conversation, bool add_generation_prompt) const {
  Context context;
  set_functions(context);
  Rendered out{.has_generations = has_generations_};
  context.set("strftime_now", Function([&](const Arguments& arguments) -> Value {
                check_arguments(arguments, "format", "strftime_now");
                out.asked_time = true;
                return format_time(need(arguments, 0, "format", "strftime_now").text().bytes, conversation.time);
              }));
  for (const auto& [name, text] : variables_) context.set(name, text);
  for (const auto& [name, value] : conversation.variables.items) context.set(name, value);
  List messages;
  int names = 0;
  std::vector<std::vector<int>> numbers;  // Mark::name of the names of called functions, per message
  for (const Value& message : with_readable_contents(iterate(conversation.messages), readable_)) {
    messages.push_back(marked(message, static_cast<int>(messages.size()), names));
    numbers.emplace_back();
    if (!messages.back().is_mapping()) continue;
    for (const ToolCall& call : calls_of(messages.back().dict())) {
      numbers.back().push_back(call.name->text().marks.front().name.value());
    }
  }
  out.contents.resize(messages.size());
  out.has_content.resize(messages.size());
  context.set("messages", std::move(messages));
  // As in transformers, absent tools and documents are none, not undefined.
  const auto or_none = [](const Value& value) { return value.is_undefined() ? Value(None{}) : value; };
  context.set("tools", or_none(conversation.tools));
  context.set("documents", or_none(conversation.documents));
  context.set("add_generation_prompt", add_generation_prompt);
  program_(context);
  Text text = context.take_output();
  std::map<int, std::size_t> named;                // where the first mark of a name begins
  std::vector<bool> written(out.contents.size());  // whether a message has a text that is not empty
  for (const Mark& mark : text.marks) {
    if (mark.name && !named.emplace(*mark.name, mark.begin).second) continue;
    const auto message = static_cast<std::size_t>(mark.message);
    auto& range = out.contents[message];
    if (mark.is_content) out.has_content[message] = true;
    // An empty text is nowhere in particular, unless the message has no other.
    const bool empty = mark.begin == mark.end;
    if (empty && written[message]) continue;
    if (!empty && !written[message]) {
      range.reset();
      written[message] = true;
    }
    if (!range) range = Range{mark.begin, mark.end};
    range->begin = std::min(range->begin, mark.begin);
    range->end = std::max(range->end, mark.end);
  }
  for (const std::vector<int>& of_message : numbers) {
    auto& calls = out.calls.emplace_back();
    for (const int number : of_message) {
      const auto found = named.find(number);
      calls.push_back(found == named.end() ? std::nullopt : std::optional(found->second));
    }
  }
  for (const auto& [begin, end] : context.generations) out.generations.push_back({begin, end});
  out.text = std::move(text.bytes);
  return out;
}

}  // namespace hawser::text::chat

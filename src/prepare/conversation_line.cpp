#include "prepare/conversation_line.h"

#include <algorithm>
#include <array>

#include "base/ascii.h"
#include "io/json.h"
#include "prepare/json_line.h"
#include "text/chat/contents.h"
#include "text/chat/from_json.h"

namespace hawser::prepare {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array kUserNames = {"human", "prompter"};
constexpr std::string_view kCall = "function_call", kObservation = "observation";  // senders of LLaMA-Factory's data
constexpr std::array kAssistantNames = {"gpt", "bot", "model", "chatbot", "chatgpt", "ai", "bing", "bard"};

const Json* find(const Json& object, std::string_view key) {
  const auto found = object.find(std::string(key));
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

// The value of a text that is JSON of this type; otherwise the text.
Json parsed_text(const Json& value, bool (*is_type)(const Json&)) {
  if (!value.is_string()) return value;
  auto [json, error] = io::read_exact_json(value.get_ref<const std::string&>());
  return !error && is_type(json) ? json : value;
}

bool is_array(const Json& json) {
  return json.is_array();
}

Json wrapped(const Json& function) {
  return {{"type", "function"}, {"function", function}};
}

// In the form of templates; functions that are in it already stay.
Json wrapped_functions(const Json& list) {
  Json out = Json::array();
  for (const Json& function : list) {
    const bool done = function.is_object() && function.contains("function") && function["function"].is_object();
    out.push_back(done ? function : wrapped(function));
  }
  return out;
}

// The role of templates for the names that data sets use; other roles as they are.
std::string role_of(const std::string& name) {
  const std::string lower = lower_case(name);
  if (std::ranges::find(kUserNames, lower) != kUserNames.end()) return "user";
  if (std::ranges::find(kAssistantNames, lower) != kAssistantNames.end()) return "assistant";
  const bool usual = lower == "user" || lower == "assistant" || lower == "system" || lower == "tool";
  return usual ? lower : name;
}

// The same of a sender. `named`: what data.roles calls it. Templates have roles of the name of the second one.
std::string role_of_sender(const std::string& given, const std::string& named) {
  if (lower_case(given) == kCall) return "assistant";
  return lower_case(named) == kObservation ? "tool" : role_of(named);
}

constexpr std::array kWeights = {"weight", "train", "training", "loss", "loss_mask"};
constexpr std::array kThoughts = {"reasoning_content", "thinking", "reasoning"};  // the first that is given counts
// Other keys of a message that are read here, or that templates read.
constexpr std::array kMessageKeys = {"tool_calls", "tool_call_id", "function_call"};

// A value of a message. Members that are null are left out, since data sets with columns write every key of every
// message; but not those of a call's arguments, which the model may write.
text::chat::Value without_nulls(const Json& json, int depth) {
  if (depth > 100) throw text::chat::TemplateError("nested too deeply");
  if (json.is_array()) {
    text::chat::List list;
    for (const Json& item : json) list.push_back(without_nulls(item, depth + 1));
    return list;
  }
  if (!json.is_object()) return text::chat::from_json(json, depth);
  text::chat::Dict dict;
  for (const auto& [key, value] : json.items()) {
    if (value.is_null()) continue;
    dict.items.emplace_back(
        key, key == "arguments" ? text::chat::from_json(value, depth + 1) : without_nulls(value, depth + 1));
  }
  return dict;
}

// Writes the thoughts of a message under both names that templates read, as transformers does
// (utils/chat_template_utils.py, _alias_reasoning_fields).
void name_thoughts(text::chat::Dict& message) {
  for (const char* key : kThoughts) {
    const text::chat::Value* found = message.find(key);
    if (!found) continue;
    const text::chat::Value thoughts = *found;
    if (!message.find("thinking")) message.items.emplace(message.items.begin(), "thinking", thoughts);
    message.set("reasoning_content", thoughts);
    return;
  }
}

text::chat::Value message(const std::string& role, const std::string& content) {
  text::chat::Dict dict;
  dict.set("role", role);
  dict.set("content", content);
  return dict;
}

}  // namespace

std::optional<Line> ConversationReader::messages(const Json& line, const std::string& key) {
  Line out;
  text::chat::List messages;
  std::string style;
  if (!append(parsed_text(line.at(key), is_array), key, style, out, messages)) return std::nullopt;
  return complete(line, std::move(out), std::move(messages));
}

std::optional<Line> ConversationReader::completion(const Json& line) {
  const Json* found = find(line, "completion");
  if (!found) return reject("prompt without completion", "both", "prompt", "");
  const Json& prompt = line.at("prompt");
  if (prompt.is_string() && found->is_string()) {
    Line out{.prompt = prompt.get<std::string>(), .completion = found->get<std::string>()};
    if (out.completion->empty()) return reject("empty completion", "text", "", "completion");
    for (const char* key : {"system", "system_prompt"}) {
      const auto system = optional_text(line, key);
      if (!system) return std::nullopt;
      if (system->empty()) continue;
      return reject(cat(key, " has no place beside a prompt that is text"), "a conversation", "", key,
                    "data.columns: {instruction: prompt, output: completion}, which uses the chat template");
    }
    return out;
  }
  if (!prompt.is_array() || !found->is_array()) {
    return reject("wrong type", "two texts, or two lists of messages",
                  cat(prompt.type_name(), " and ", found->type_name()), "prompt, completion");
  }
  Line out{.asked = prompt.size()};
  text::chat::List messages;
  std::string style;
  if (!append(prompt, "prompt", style, out, messages) || !append(*found, "completion", style, out, messages)) {
    return std::nullopt;
  }
  return complete(line, std::move(out), std::move(messages));
}

std::optional<Line> ConversationReader::single_turn(const Json& line, std::string_view question,
                                                    std::string_view answer) {
  for (const std::string_view key : {question, answer}) {
    const Json& text = line.at(std::string(key));
    if (!text.is_string()) return reject("wrong type", "a string", text.type_name(), std::string(key));
    const bool blank = text.get_ref<const std::string&>().find_first_not_of(" \t\r\n") == std::string::npos;
    if (blank) return reject(key == answer ? "empty completion" : "empty question", "text", "", std::string(key));
  }
  if (const Json* history = find(line, "history"); history && !history->empty()) {
    return reject("earlier turns in history are not read", "messages with all turns", "", "history");
  }
  const auto input = optional_text(line, "input"), context = optional_text(line, "context");
  if (!input || !context) return std::nullopt;
  if (!input->empty() && (!context->empty() || question != "instruction")) {
    return reject("input has no place in this line", "instruction with either input or context", "", "input");
  }
  if (!context->empty() && question != "instruction") {
    return reject("context has no place in this line", "instruction and context, or messages with both", "", "context");
  }
  std::string asked = line.at(std::string(question)).get<std::string>();
  if (const std::string& more = input->empty() ? *context : *input; !more.empty()) asked += "\n\n" + more;
  return complete(line, {}, {message("user", asked), message("assistant", line.at(std::string(answer)))});
}

bool ConversationReader::append(const Json& list, const std::string& key, std::string& style, Line& out,
                                text::chat::List& messages) {
  const auto reject = [&](std::string what, std::string expected, std::string got, const std::string& at,
                          std::string hint = "") {
    this->reject(std::move(what), std::move(expected), std::move(got), at, std::move(hint));
    return false;
  };
  if (!list.is_array() || list.empty()) {
    return reject("wrong type", "a list of messages", list.is_array() ? "an empty list" : list.type_name(), key,
                  list.is_string() ? "a list, or its JSON text" : "");
  }
  for (std::size_t i = 0; i < list.size(); ++i) {
    Json from = list[i];
    if (place_.names && from.is_object()) place_.names->rename_message(from, out.names);
    const std::string place = cat(key, "[", i, "]");
    if (!from.is_object()) {
      return reject("wrong type", "a message: {\"role\": ..., \"content\": ...}", from.type_name(), place);
    }
    const Json *role = find(from, "role"), *sender = find(from, "from");
    if (role && sender) return reject("message with role and from", "one of the two", "both", place);
    const std::string kind = sender ? "from" : "role";
    if (style.empty()) style = kind;
    if ((role || sender) && kind != style) {
      return reject("messages of two kinds", style == "from" ? "from and value in all" : "role and content in all",
                    kind, place);
    }
    const Json* name = sender ? sender : role;
    if (!name || !name->is_string()) {
      return reject("message without a role", "user, assistant, system or another role",
                    !name ? "none" : name->type_name(), place + "." + kind);
    }
    const std::string& given = name->get_ref<const std::string&>();
    const std::string named = place_.names ? place_.names->role(given, out.names) : given;
    const std::string known = sender ? role_of_sender(given, named) : role_of(named);
    if (sender && lower_case(given) == kCall) {
      if (!read_call_message(from, place)) return false;
    } else if (const auto calls = from.find("tool_calls"); calls != from.end()) {
      *calls = parsed_text(*calls, is_array);
    }
    auto dict = message_of(from, known, sender ? "value" : "content", place);
    if (!dict || !check_calls(from, place) || !append_weight(from, known, place, out)) return false;
    for (const auto& [part, value] : from.items()) {
      const auto is = [&](const auto& keys) { return std::ranges::find(keys, part) != keys.end(); };
      const bool read = is(kWeights) || is(kThoughts) || is(kMessageKeys);
      if (!read && !value.is_null() && could_matter(part)) out.unread.insert(cat(key, ".", part));
    }
    messages.push_back(*std::move(dict));
  }
  return true;
}

std::optional<text::chat::Dict> ConversationReader::message_of(const Json& from, const std::string& role,
                                                               const std::string& text_key, const std::string& place) {
  const bool sender = text_key == "value";
  const Json* content = find(from, text_key);
  const auto given = [&](const char* key) {
    const Json* found = find(from, key);
    return found && !found->empty();
  };
  const bool calls = given("tool_calls") || given("function_call");
  const bool thoughts = std::ranges::any_of(kThoughts, given);
  const std::string at = cat(place, ".", text_key);
  if (!content && !calls && (sender || !thoughts)) {
    return reject("message without content", "text", from.contains(text_key) ? "null" : "none", at);
  }
  const bool tool = role == "tool" || role == "function" || role == "ipython";
  const bool other = content && (content->is_array() || (tool && content->is_object()));
  if (content && !content->is_string() && (sender || !other)) {
    return reject("wrong type", "text", content->type_name(), at);
  }
  text::chat::Dict dict;
  for (const auto& [part, value] : from.items()) {
    if (value.is_null()) continue;
    const std::string name = !sender ? part : part == "from" ? "role" : part == "value" ? "content" : part;
    dict.items.emplace_back(name, without_nulls(value, 2));
  }
  dict.set("role", role);
  name_thoughts(dict);
  return dict;
}

bool ConversationReader::read_call_message(Json& message, const std::string& place) {
  const Json* value = find(message, "value");
  Json calls = value ? parsed_text(*value, [](const Json& json) { return json.is_structured(); }) : Json();
  if (calls.is_object()) calls = Json::array({calls});
  const auto is_call = [](const Json& call) { return call.is_object() && call.contains("name"); };
  if (!calls.is_array() || calls.empty() || !std::ranges::all_of(calls, is_call)) {
    reject("a function call is no JSON", R"({"name": ..., "arguments": ...}, or a list of them)",
           value ? shown(*value) : "none", place + ".value");
    return false;
  }
  Json list = Json::array();
  for (const Json& call : calls) list.push_back(wrapped(call));
  message.erase("value");
  message["tool_calls"] = std::move(list);
  bare_functions_ = true;
  return true;
}

bool ConversationReader::check_calls(const Json& message, const std::string& place) {
  if (const Json* call = find(message, "function_call")) {
    if (call->is_object() && !check_arguments(*call, place + ".function_call")) return false;
  }
  const Json* calls = find(message, "tool_calls");
  if (!calls || (calls->is_string() && calls->get_ref<const std::string&>().empty())) return true;
  const std::string at = place + ".tool_calls";
  if (!calls->is_array()) {
    reject("wrong type", "a list of tool calls", calls->type_name(), at,
           calls->is_string() ? "the list in place of its JSON text" : "");
    return false;
  }
  for (std::size_t i = 0; i < calls->size(); ++i) {
    const Json& call = (*calls)[i];
    const std::string here = cat(at, "[", i, "]");
    if (!call.is_object()) {
      reject("wrong type", "a tool call: {\"type\": \"function\", \"function\": ...}", call.type_name(), here);
      return false;
    }
    const Json* function = find(call, "function");
    const bool framed = function && function->is_object();
    if (!check_arguments(framed ? *function : call, framed ? here + ".function" : here)) return false;
  }
  return true;
}

bool ConversationReader::check_arguments(const Json& call, const std::string& place) {
  const auto found = call.find("arguments");
  if (found == call.end()) {  // for templates that read other keys
    if (!call.contains("name")) return true;
    reject("a tool call without arguments", "an object, or its JSON text", "", place + ".arguments",
           call.contains("parameters") ? "arguments in place of parameters" : "{} for no arguments");
    return false;
  }
  Json given = *found;
  const bool text = found->is_string();
  if (text) {
    auto [json, error] = io::read_exact_json(found->get_ref<const std::string&>());
    if (error) {
      reject("the arguments of a tool call are no JSON", "an object, or its JSON text", shown(*found),
             place + ".arguments", "{} for no arguments");
      return false;
    }
    given = std::move(json);
  }
  if (given.is_object()) return true;
  const char* hint = given.is_null()             ? "{} for no arguments"
                     : text && given.is_string() ? "the object's JSON text, not the text of that text"
                                                 : "";
  reject(given.is_null() ? "the arguments of a tool call are null" : "the arguments of a tool call are no object",
         "an object, or its JSON text", given.is_null() ? "" : shown(*found), place + ".arguments", hint);
  return false;
}

// `weight` as in OpenAI's format, `train` and `training` as in axolotl's, `loss` as in ms-swift's; other trainers have
// `loss_mask`.
bool ConversationReader::append_weight(const Json& message, const std::string& role, const std::string& place,
                                       Line& out) {
  bool trained = true, given = false;
  for (const char* key : kWeights) {
    const Json* value = find(message, key);
    if (!value) continue;
    const bool number = value->is_number() && (value->get<double>() == 0.0 || value->get<double>() == 1.0);
    if (!number && !value->is_boolean()) {
      reject("weight of a message", "0 or 1, or true or false", shown(*value), cat(place, ".", key));
      return false;
    }
    given = true;
    trained = trained && (number ? value->get<double>() != 0.0 : value->get<bool>());
  }
  if (given && trained && role != "assistant") {
    reject("only the assistant's messages are trained", "0 or false, or no weight", "", place);
    return false;
  }
  out.not_trained.push_back(given && !trained);
  return true;
}

std::optional<Line> ConversationReader::complete(const Json& line, Line out, text::chat::List messages) {
  const auto system = optional_text(line, "system"), prompt = optional_text(line, "system_prompt");
  if (!system || !prompt) return std::nullopt;
  if (!system->empty() || !prompt->empty()) {
    const auto is_system = [](const text::chat::Value& value) {
      const text::chat::Value* role = value.dict().find("role");
      return role && role->is_text() && role->text().bytes == "system";
    };
    if ((!system->empty() && !prompt->empty()) || std::ranges::any_of(messages, is_system)) {
      return reject("system message given twice", "once", "", system->empty() ? "system_prompt" : "system");
    }
    messages.insert(messages.begin(), message("system", system->empty() ? *prompt : *system));
    if (out.asked > 0) ++out.asked;
    if (!out.not_trained.empty()) out.not_trained.insert(out.not_trained.begin(), false);
  }
  out.chat = text::chat::Conversation{.messages = std::move(messages)};
  const auto tools = structure(line, "tools", true), functions = structure(line, "functions", true),
             documents = structure(line, "documents", true), variables = structure(line, "chat_template_kwargs", false);
  if (!tools || !functions || !documents || !variables) return std::nullopt;
  if (!tools->is_null() && !functions->is_null()) {
    return reject("tools and functions in one line", "one of the two", "both", "functions");
  }
  if (!tools->is_null()) out.chat->tools = text::chat::from_json(bare_functions_ ? wrapped_functions(*tools) : *tools);
  if (!functions->is_null()) out.chat->tools = text::chat::from_json(wrapped_functions(*functions));
  const bool no_tools = (tools->is_null() || tools->empty()) && (functions->is_null() || functions->empty());
  const auto calls = [](const text::chat::Value& message) { return text::chat::has_calls(message.dict()); };
  if (no_tools && std::ranges::any_of(out.chat->messages.list(), calls)) out.unread.insert(kNoTools);
  if (!documents->is_null()) out.chat->documents = text::chat::from_json(*documents);
  for (const auto& [key, value] : variables->items()) {
    constexpr std::array kOwn = {"messages", "tools", "documents", "add_generation_prompt"};
    if (std::ranges::find(kOwn, key) != kOwn.end()) {
      return reject("no variable of a line", "others than messages, tools, documents and add_generation_prompt", key,
                    "chat_template_kwargs");
    }
    if (!value.is_null()) out.chat->variables.set(key, text::chat::from_json(value));
  }
  return out;
}

std::optional<Json> ConversationReader::structure(const Json& line, const std::string& key, bool list) {
  const Json* value = find(line, key);
  if (!value || (value->is_string() && value->get_ref<const std::string&>().empty())) return Json();
  Json read = *value;
  if (value->is_string()) {
    auto [json, error] = io::read_exact_json(value->get_ref<const std::string&>());
    if (!error) read = std::move(json);
  }
  if (read.is_null()) return read;
  for (auto item = read.begin(); read.is_array() && item != read.end(); ++item) {
    if (!item->is_string()) continue;
    auto [json, error] = io::read_exact_json(item->get_ref<const std::string&>());
    if (!error && json.is_object()) *item = std::move(json);
  }
  const bool good = list ? read.is_array() : read.is_object();
  if (!good) return reject("wrong type", list ? cat("a list of ", key) : "an object", shown(*value), key);
  return read;
}

std::optional<std::string> ConversationReader::optional_text(const Json& line, std::string_view key) {
  const Json* value = find(line, key);
  if (!value) return "";
  if (value->is_string()) return value->get<std::string>();
  return reject("wrong type", "a string", value->type_name(), std::string(key));
}

std::nullopt_t ConversationReader::reject(std::string what, std::string expected, std::string got,
                                          const std::string& key, std::string hint) {
  problems_.add(place_.problem(std::move(what), std::move(expected), std::move(got), key, std::move(hint)));
  return std::nullopt;
}

}  // namespace hawser::prepare

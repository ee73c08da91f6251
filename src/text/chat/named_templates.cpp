// Built-in chat templates, in the formats of the models of their names.
#include <algorithm>

#include "base/cat.h"
#include "text/chat/chat_template.h"

namespace hawser::text::chat {
namespace {

// Parts of chatml, qwen-2.5 and qwen-3. Tools, calls and results are in the format of Hermes 2 Pro (<tools>, <tool_call>,
// <tool_response>), in the words of Qwen, which follows it.

// Sets `system`, the text of the first message if that is a system message, and `rest`, the other messages.
constexpr char kSystemAndRest[] = R"({%- set system, rest = none, messages -%}
{%- if messages and messages[0].role == 'system' -%}
  {%- set system, rest = messages[0].content, messages[1:] -%}
{%- endif -%})";

// The first turn: the text `system`, if there is one, and the tools.
constexpr char kSystemTurn[] = R"(
{%- if tools -%}
  {{- '<|im_start|>system\n' + (system + '\n\n' if system is string else '') -}}
  {{- '# Tools\n\nYou may call one or more functions to assist with the user query.\n\n' -}}
  {{- 'You are provided with function signatures within <tools></tools> XML tags:\n<tools>' -}}
  {%- for tool in tools -%}{{- '\n' + tool | tojson -}}{%- endfor -%}
  {{- '\n</tools>\n\nFor each function call, return a json object with function name and arguments within ' -}}
  {{- '<tool_call></tool_call> XML tags:\n<tool_call>\n' -}}
  {{- '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call><|im_end|>\n' -}}
{%- elif system is string -%}
  {{- '<|im_start|>system\n' + system + '<|im_end|>\n' -}}
{%- endif -%})";

// Results of tools in a row are one turn of the user.
constexpr char kResult[] = R"(
    {{- '<|im_start|>user' if loop.first or loop.previtem.role != 'tool' else '' -}}
    {{- '\n<tool_response>\n' + m.content + '\n</tool_response>' -}}
    {{- '<|im_end|>\n' if loop.last or loop.nextitem.role != 'tool' else '' -}})";

// Arguments as they are if they are text, else as JSON.
constexpr char kAnyArguments[] = "call.arguments if call.arguments is string else call.arguments | tojson";

// The calls of message `m`, after its content, `words`. `arguments`: an expression for those of `call`.
std::string calls(const char* arguments) {
  return cat(R"(
    {%- for call in m.tool_calls or [] -%}
      {%- set call = call.function or call -%}
      {{- ('\n' if words or not loop.first else '') + '<tool_call>\n{"name": "' + call.name + '", "arguments": ' -}}
      {{- )",
             arguments, R"( -}}
      {{- '}\n</tool_call>' -}}
    {%- endfor -%}
    {{- '<|im_end|>\n' -}})");
}

constexpr char kPrompt[] = R"(
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%})";

// The turns of `rest`, and the generation prompt.
std::string turns_of_chatml(const char* arguments) {
  return cat(R"(
{%- for m in rest -%}
  {%- if m.role == 'tool' -%})",
             kResult, R"(
  {%- else -%}
    {%- set words = m.content if m.content is string else '' -%}
    {{- '<|im_start|>' + m.role + '\n' + words -}})",
             calls(arguments), R"(
  {%- endif -%}
{%- endfor -%})",
             kPrompt);
}

std::string chatml() {
  return cat(kSystemAndRest, kSystemTurn, turns_of_chatml(kAnyArguments));
}

// ChatML with a default system message.
std::string qwen25() {
  return cat(kSystemAndRest, R"(
{%- set default = 'You are Qwen, created by Alibaba Cloud. You are a helpful assistant.' -%}
{%- set system = default if system is none else system -%})",
             kSystemTurn, turns_of_chatml("call.arguments | tojson"));
}

// Only answers after the last question keep their thoughts. Results that are written as a user's message are no
// question.
std::string qwen3() {
  return cat(kSystemAndRest, kSystemTurn, R"(
{%- set seen = namespace(question=rest | length) -%}
{%- for m in rest -%}
  {%- set words = m.content if m.content is string else '' -%}
  {%- set is_result = words.startswith('<tool_response>') and words.endswith('</tool_response>') -%}
  {%- if m.role == 'user' and not is_result -%}{%- set seen.question = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- for m in rest -%}
  {%- set words = m.content if m.content is string else '' -%}
  {%- if m.role == 'assistant' -%}
    {%- set thoughts = '' -%}
    {%- if m.reasoning_content is string -%}
      {%- set thoughts = m.reasoning_content -%}
    {%- elif '</think>' in words -%}
      {%- set thoughts = words.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') -%}
      {%- set words = words.split('</think>')[-1].lstrip('\n') -%}
    {%- endif -%}
    {{- '<|im_start|>assistant\n' -}}
    {%- if loop.index0 > seen.question and (loop.last or thoughts) -%}
      {{- '<think>\n' + thoughts.strip('\n') + '\n</think>\n\n' + words.lstrip('\n') -}}
    {%- else -%}
      {{- words -}}
    {%- endif -%})",
             calls(kAnyArguments), R"(
  {%- elif m.role == 'tool' -%})",
             kResult, R"(
  {%- elif m.role == 'user' or m.role == 'system' -%}
    {{- '<|im_start|>' + m.role + '\n' + words + '<|im_end|>\n' -}}
  {%- else -%}
    {{- raise_exception("roles are system, user, assistant and tool, not '" + m.role + "'") -}}
  {%- endif -%}
{%- endfor -%})",
             kPrompt, R"(
{%- if add_generation_prompt and enable_thinking is defined and enable_thinking is false -%}
  {{- '<think>\n\n</think>\n\n' -}}
{%- endif -%})");
}

// ChatML with a default system message.
constexpr char kSmolLm2[] = R"({%- if messages[0].role != 'system' -%}
<|im_start|>system
You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>
{% endif -%}
{%- for m in messages -%}
<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%})";

constexpr char kLlama2[] = R"({%- set first = 0 -%}
{%- if messages[0].role == 'system' -%}{%- set first = 1 -%}{%- endif -%}
{%- for m in messages[first:] -%}
  {%- if (m.role == 'user') != (loop.index is odd) -%}
    {{- raise_exception('after an optional system message, user and assistant must alternate, the user first') -}}
  {%- endif -%}
  {%- set words = m.content -%}
  {%- if loop.first and first == 1 -%}
    {%- set words = '<<SYS>>\n' + messages[0].content + '\n<</SYS>>\n\n' + words -%}
  {%- endif -%}
  {%- if m.role == 'user' -%}
    {{- bos_token + '[INST] ' + words.strip() + ' [/INST]' -}}
  {%- else -%}
    {{- ' ' + words.strip() + ' ' + eos_token -}}
  {%- endif -%}
{%- endfor -%})";

constexpr char kLlama3[] = R"({{- bos_token -}}
{%- for m in messages -%}
  {{- '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content | trim + '<|eot_id|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}{%- endif -%})";

// Always starts with a system message that contains two dates. Tools begin the first question. A turn is a text or one
// call: with several calls the template rejects the conversation, and the text beside a call is not written.
constexpr char kLlama31[] = R"({%- set system, rest = '', messages -%}
{%- if messages[0].role == 'system' -%}
  {%- set system, rest = messages[0].content | trim, messages[1:] -%}
{%- endif -%}
{%- set has_tools = tools is defined and tools is not none -%}
{%- if has_tools and (not rest or rest[0].role != 'user') -%}
  {{- raise_exception('with tools, the first message after an optional system message must be a user message') -}}
{%- endif -%}
{{- bos_token + '<|start_header_id|>system<|end_header_id|>\n\n' + ('Environment: ipython\n' if has_tools else '') -}}
{{- 'Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n' + system + '<|eot_id|>' -}}
{%- for m in rest -%}
  {%- if m.tool_calls -%}
    {%- if m.tool_calls | length > 1 -%}
      {{- raise_exception('a message has several tool calls, and this format has one in a message') -}}
    {%- endif -%}
    {%- set call = m.tool_calls[0].function or m.tool_calls[0] -%}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n{"name": "' + call.name + '", "parameters": ' -}}
    {{- call.arguments | tojson + '}<|eot_id|>' -}}
  {%- elif m.role == 'tool' or m.role == 'ipython' -%}
    {{- '<|start_header_id|>ipython<|end_header_id|>\n\n' + m.content | tojson + '<|eot_id|>' -}}
  {%- else -%}
    {{- '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' -}}
    {%- if loop.first and has_tools -%}
      {{- 'Given the following functions, please respond with a JSON for a function call with its proper arguments ' -}}
      {{- 'that best answers the given prompt.\n\nRespond in the format {"name": function name, "parameters": ' -}}
      {{- 'dictionary of argument name and its value}.Do not use variables.\n\n' -}}
      {%- for tool in tools -%}{{- tool | tojson(indent=4) + '\n\n' -}}{%- endfor -%}
    {%- endif -%}
    {{- m.content | trim + '<|eot_id|>' -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}{%- endif -%})";

constexpr char kMistral1[] = R"({%- set system, rest = none, messages -%}
{%- if messages[0].role == 'system' -%}{%- set system, rest = messages[0].content, messages[1:] -%}{%- endif -%}
{{- bos_token -}}
{%- for m in rest -%}
  {%- if (m.role == 'user') != (loop.index is odd) -%}
    {{- raise_exception('after an optional system message, user and assistant must alternate, the user first') -}}
  {%- endif -%}
  {%- if m.role == 'user' -%}
    {{- ' [INST] ' + (system + '\n\n' if loop.first and system is string else '') + m.content + ' [/INST]' -}}
  {%- else -%}
    {{- ' ' + m.content + eos_token -}}
  {%- endif -%}
{%- endfor -%})";

// The system message is prepended to the last question (mistral-common's encoding), also if an answer follows: the
// published Jinja templates then leave it out. Tools stand before that question. As in the published templates, texts of
// a tool's definition are in plain quotes, and a result is written as it is. A turn is a text or calls.
constexpr char kMistral3[] = R"({%- set system, rest = none, messages -%}
{%- if messages[0].role == 'system' -%}{%- set system, rest = messages[0].content, messages[1:] -%}{%- endif -%}
{%- set seen = namespace(question=-1, turns=0) -%}
{%- for m in rest -%}
  {%- if m.role == 'user' -%}{%- set seen.question = loop.index0 -%}{%- endif -%}
  {%- if m.role != 'tool' and not m.tool_calls -%}
    {%- if (m.role == 'user') != (seen.turns is even) -%}
      {{- raise_exception('after an optional system message, user and assistant must alternate, the user first') -}}
    {%- endif -%}
    {%- set seen.turns = seen.turns + 1 -%}
  {%- endif -%}
{%- endfor -%}
{{- bos_token -}}
{%- for m in rest -%}
  {%- if m.role == 'user' -%}
    {%- if tools and loop.index0 == seen.question -%}
      {{- '[AVAILABLE_TOOLS] [' -}}
      {%- for tool in tools -%}
        {{- (', ' if not loop.first else '') + '{"type": "function", "function": {' -}}
        {%- for key, value in (tool.function or tool).items() if key != 'return' -%}
          {{- (', ' if not loop.first else '') + '"' + key + '": ' -}}
          {{- '"' + value + '"' if value is string else value | tojson -}}
        {%- endfor -%}
        {{- '}}' -}}
      {%- endfor -%}
      {{- '][/AVAILABLE_TOOLS]' -}}
    {%- endif -%}
    {%- set first = system + '\n\n' if loop.index0 == seen.question and system is string else '' -%}
    {{- '[INST] ' + first + m.content + '[/INST]' -}}
  {%- elif m.tool_calls -%}
    {{- '[TOOL_CALLS] [' -}}
    {%- for one in m.tool_calls -%}
      {%- set call = one.function or one -%}
      {%- if not one.id or one.id | length != 9 -%}
        {{- raise_exception('the id of a tool call must have nine letters or digits') -}}
      {%- endif -%}
      {{- (', ' if not loop.first else '') + '{"name": "' + call.name + '", "arguments": ' -}}
      {{- call.arguments | tojson + ', "id": "' + one.id + '"}' -}}
    {%- endfor -%}
    {{- ']' + eos_token -}}
  {%- elif m.role == 'tool' -%}
    {%- if not m.tool_call_id or m.tool_call_id | length != 9 -%}
      {{- raise_exception('the tool_call_id of a result must have nine letters or digits') -}}
    {%- endif -%}
    {{- '[TOOL_RESULTS] {"content": ' + m.content + ', "call_id": "' + m.tool_call_id + '"}[/TOOL_RESULTS]' -}}
  {%- elif m.role == 'assistant' -%}
    {{- ' ' + m.content | trim + eos_token -}}
  {%- else -%}
    {{- raise_exception("roles are system (first), user, assistant and tool, not '" + m.role + "'") -}}
  {%- endif -%}
{%- endfor -%})";

constexpr char kZephyr[] = R"({%- for m in messages if m.role in ['system', 'user', 'assistant'] -%}
  {{- '<|' + m.role + '|>\n' + m.content + eos_token + '\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>\n' -}}{%- endif -%})";

constexpr char kGemma[] = R"({{- bos_token -}}
{%- if messages[0].role == 'system' -%}{{- raise_exception('system messages are not known to this format') -}}{%- endif -%}
{%- for m in messages -%}
  {%- if (m.role == 'user') != (loop.index is odd) -%}
    {{- raise_exception('user and assistant must alternate, the user first') -}}
  {%- endif -%}
  {{- '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' + m.content | trim + '<end_of_turn>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<start_of_turn>model\n' -}}{%- endif -%})";

// The system message begins the first question.
constexpr char kGemma3[] = R"({%- set system, rest = '', messages -%}
{%- if messages[0].role == 'system' -%}{%- set system, rest = messages[0].content + '\n\n', messages[1:] -%}{%- endif -%}
{{- bos_token -}}
{%- for m in rest -%}
  {%- if (m.role == 'user') != (loop.index is odd) -%}
    {{- raise_exception('after an optional system message, user and assistant must alternate, the user first') -}}
  {%- endif -%}
  {{- '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' + (system if loop.first else '') -}}
  {{- m.content | trim + '<end_of_turn>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<start_of_turn>model\n' -}}{%- endif -%})";

constexpr char kPhi3[] = R"({%- for m in messages if m.role in ['system', 'user', 'assistant'] -%}
  {{- '<|' + m.role + '|>\n' + m.content + '<|end|>\n' -}}
{%- endfor -%}
{{- '<|assistant|>\n' if add_generation_prompt else eos_token -}})";

}  // namespace

std::string named_templates_with_tools() {
  std::string names;
  for (const NamedTemplate& one : named_templates()) {
    if (one.tools) names += cat(names.empty() ? "" : ", ", one.name);
  }
  return names;
}

bool is_named(const std::string& name) {
  return std::ranges::any_of(named_templates(), [&](const NamedTemplate& one) { return name == one.name; });
}

const std::vector<NamedTemplate>& named_templates() {
  const std::map<std::string, std::string> llama{{"bos_token", "<s>"}, {"eos_token", "</s>"}};
  const std::map<std::string, std::string> llama3{{"bos_token", "<|begin_of_text|>"}, {"eos_token", "<|eot_id|>"}};
  static const std::vector<NamedTemplate> kTemplates = {
      {.name = "chatml", .source = chatml(), .tokens = {}, .tools = true},
      {.name = "smollm2", .source = kSmolLm2, .tokens = {}},
      {.name = "qwen-2.5", .source = qwen25(), .tokens = {}, .tools = true},
      {.name = "qwen-3", .source = qwen3(), .tokens = {}, .tools = true},
      {.name = "llama-2", .source = kLlama2, .tokens = llama},
      {.name = "llama-3", .source = kLlama3, .tokens = llama3},
      {.name = "llama-3.1", .source = kLlama31, .tokens = llama3, .tools = true},
      {.name = "mistral-v1", .source = kMistral1, .tokens = llama},
      {.name = "mistral-v3", .source = kMistral3, .tokens = llama, .tools = true},
      {.name = "zephyr", .source = kZephyr, .tokens = llama},
      {.name = "gemma", .source = kGemma, .tokens = {{"bos_token", "<bos>"}, {"eos_token", "<eos>"}}},
      {.name = "gemma-3", .source = kGemma3, .tokens = {{"bos_token", "<bos>"}, {"eos_token", "<eos>"}}},
      {.name = "phi-3", .source = kPhi3, .tokens = {{"bos_token", "<s>"}, {"eos_token", "<|endoftext|>"}}},
  };
  return kTemplates;
}

}  // namespace hawser::text::chat

// Built-in chat templates, in the formats of the models of their names. None of them supports tools.
#include <algorithm>

#include "text/chat/chat_template.h"

namespace hawser::text::chat {
namespace {

constexpr char kChatMl[] = R"({%- for m in messages -%}
<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%})";

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

constexpr char kQwen25[] = R"({%- if tools -%}{{ raise_exception('this named template knows no tools') }}{%- endif -%}
{%- if messages[0].role != 'system' -%}
<|im_start|>system
You are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>
{% endif -%}
{%- for m in messages -%}
<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%})";

// Only answers after the last question keep their thoughts.
constexpr char kQwen3[] = R"({%- if tools -%}{{ raise_exception('this named template knows no tools') }}{%- endif -%}
{%- set seen = namespace(question=messages | length - 1) -%}
{%- for m in messages if m.role == 'user' -%}{%- set seen.any = true -%}{%- endfor -%}
{%- if seen.any -%}
  {%- for m in messages -%}{%- if m.role == 'user' -%}{%- set seen.question = loop.index0 -%}{%- endif -%}{%- endfor -%}
{%- endif -%}
{%- for m in messages -%}
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
    {%- endif -%}
    {{- '<|im_end|>\n' -}}
  {%- elif m.role == 'user' or m.role == 'system' -%}
    {{- '<|im_start|>' + m.role + '\n' + words + '<|im_end|>\n' -}}
  {%- else -%}
    {{- raise_exception("roles are system, user and assistant, not '" + m.role + "'") -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%})";

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

// Always starts with a system message that contains two dates.
constexpr char kLlama31[] = R"({%- if tools -%}{{ raise_exception('this named template knows no tools') }}{%- endif -%}
{%- set system, rest = '', messages -%}
{%- if messages[0].role == 'system' -%}
  {%- set system, rest = messages[0].content | trim, messages[1:] -%}
{%- endif -%}
{{- bos_token + '<|start_header_id|>system<|end_header_id|>\n\n' -}}
{{- 'Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n' + system + '<|eot_id|>' -}}
{%- for m in rest -%}
  {{- '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content | trim + '<|eot_id|>' -}}
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
// published Jinja templates then leave it out.
constexpr char kMistral3[] = R"({%- if tools -%}{{ raise_exception('this named template knows no tools') }}{%- endif -%}
{%- set system, rest = none, messages -%}
{%- if messages[0].role == 'system' -%}{%- set system, rest = messages[0].content, messages[1:] -%}{%- endif -%}
{%- set last = rest | length - (1 if rest and rest[-1].role == 'user' else 2) -%}
{{- bos_token -}}
{%- for m in rest -%}
  {%- if (m.role == 'user') != (loop.index is odd) -%}
    {{- raise_exception('after an optional system message, user and assistant must alternate, the user first') -}}
  {%- endif -%}
  {%- if m.role == 'user' -%}
    {{- '[INST] ' + (system + '\n\n' if loop.index0 == last and system is string else '') + m.content + '[/INST]' -}}
  {%- else -%}
    {{- ' ' + m.content | trim + eos_token -}}
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

bool is_named(const std::string& name) {
  return std::ranges::any_of(named_templates(), [&](const NamedTemplate& one) { return name == one.name; });
}

const std::vector<NamedTemplate>& named_templates() {
  const std::map<std::string, std::string> llama{{"bos_token", "<s>"}, {"eos_token", "</s>"}};
  const std::map<std::string, std::string> llama3{{"bos_token", "<|begin_of_text|>"}, {"eos_token", "<|eot_id|>"}};
  static const std::vector<NamedTemplate> kTemplates = {
      {"chatml", kChatMl, {}},
      {"smollm2", kSmolLm2, {}},
      {"qwen-2.5", kQwen25, {}},
      {"qwen-3", kQwen3, {}},
      {"llama-2", kLlama2, llama},
      {"llama-3", kLlama3, llama3},
      {"llama-3.1", kLlama31, llama3},
      {"mistral-v1", kMistral1, llama},
      {"mistral-v3", kMistral3, llama},
      {"zephyr", kZephyr, llama},
      {"gemma", kGemma, {{"bos_token", "<bos>"}, {"eos_token", "<eos>"}}},
      {"gemma-3", kGemma3, {{"bos_token", "<bos>"}, {"eos_token", "<eos>"}}},
      {"phi-3", kPhi3, {{"bos_token", "<s>"}, {"eos_token", "<|endoftext|>"}}},
  };
  return kTemplates;
}

}  // namespace hawser::text::chat

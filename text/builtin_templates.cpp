#include <array>

#include "text/chat_template.h"

namespace tessera {
namespace {

struct Builtin {
  std::string_view name;
  std::string_view source;
};

// The system message is merged into the first user turn. User and assistant turns must alternate.
constexpr std::string_view kLlama2 = R"jinja(
{%- set ns = namespace(system='', user=true) -%}
{%- for message in messages -%}
  {%- if message.role == 'system' and loop.first -%}
    {%- set ns.system = '<<SYS>>\n' ~ message.content ~ '\n<</SYS>>\n\n' -%}
  {%- elif message.role == 'user' and ns.user -%}
    {{- bos_token ~ '[INST] ' ~ (ns.system ~ message.content) | trim ~ ' [/INST]' -}}
    {%- set ns.system = '' -%}
    {%- set ns.user = false -%}
  {%- elif message.role == 'assistant' and not ns.user -%}
    {{- ' ' ~ message.content | trim ~ ' ' ~ eos_token -}}
    {%- set ns.user = true -%}
  {%- else -%}
    {{- raise_exception('roles must be: system (first, optional), then user and assistant in turn') -}}
  {%- endif -%}
{%- endfor -%}
)jinja";

constexpr std::string_view kMistral = R"jinja(
{%- set ns = namespace(system='', user=true) -%}
{{- bos_token -}}
{%- for message in messages -%}
  {%- if message.role == 'system' and loop.first -%}
    {%- set ns.system = message.content ~ '\n\n' -%}
  {%- elif message.role == 'user' and ns.user -%}
    {{- '[INST] ' ~ ns.system ~ message.content ~ ' [/INST]' -}}
    {%- set ns.system = '' -%}
    {%- set ns.user = false -%}
  {%- elif message.role == 'assistant' and not ns.user -%}
    {{- ' ' ~ message.content | trim ~ eos_token -}}
    {%- set ns.user = true -%}
  {%- else -%}
    {{- raise_exception('roles must be: system (first, optional), then user and assistant in turn') -}}
  {%- endif -%}
{%- endfor -%}
)jinja";

constexpr std::string_view kLlama3 = R"jinja(
{{- bos_token -}}
{%- for message in messages -%}
  {{- '<|start_header_id|>' ~ message.role ~ '<|end_header_id|>\n\n' -}}
  {{- message.content | trim ~ '<|eot_id|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}
{%- endif -%}
)jinja";

constexpr std::string_view kChatMl = R"jinja(
{%- for message in messages -%}
  {{- '<|im_start|>' ~ message.role ~ '\n' ~ message.content ~ '<|im_end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<|im_start|>assistant\n' -}}
{%- endif -%}
)jinja";

constexpr std::string_view kZephyr = R"jinja(
{%- for message in messages -%}
  {{- '<|' ~ message.role ~ '|>\n' ~ message.content ~ eos_token ~ '\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<|assistant|>\n' -}}
{%- endif -%}
)jinja";

constexpr std::array<Builtin, 5> kBuiltins = {{{"llama2", kLlama2},
                                               {"llama3", kLlama3},
                                               {"mistral", kMistral},
                                               {"chatml", kChatMl},
                                               {"zephyr", kZephyr}}};

}  // namespace

std::optional<std::string_view> builtin_chat_template(std::string_view name) {
  for (const Builtin& builtin : kBuiltins) {
    if (builtin.name == name) return builtin.source;
  }
  return std::nullopt;
}

std::string builtin_chat_template_names() {
  std::string names;
  for (const Builtin& builtin : kBuiltins) {
    names += names.empty() ? "" : ", ";
    names += builtin.name;
  }
  return names;
}

}  // namespace tessera

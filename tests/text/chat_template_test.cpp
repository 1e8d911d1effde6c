#include "text/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/text/golden.h"
#include "text/tokenizer.h"

namespace tessera {
namespace {

using testing::HasSubstr;

// Templates with the constructs and the output of the published ones.
constexpr const char* kLlama2 =
    R"jinja({% if messages[0]['role'] == 'system' %}{% set rest = messages[1:] %}{% set system = messages[0]['content'] %}{% else %}{% set rest = messages %}{% set system = false %}{% endif %}{% for m in rest %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}{% if loop.index0 == 0 and system != false %}{% set text = '<<SYS>>\n' + system + '\n<</SYS>>\n\n' + m['content'] %}{% else %}{% set text = m['content'] %}{% endif %}{% if m['role'] == 'user' %}{{ bos_token + '[INST] ' + text.strip() + ' [/INST]' }}{% elif m['role'] == 'assistant' %}{{ ' ' + text.strip() + ' ' + eos_token }}{% endif %}{% endfor %})jinja";

constexpr const char* kLlama3 =
    R"jinja({% set all = messages %}{% for m in all %}{% set text = '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n'+ m['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set text = bos_token + text %}{% endif %}{{ text }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %})jinja";

constexpr const char* kLlama31 = R"jinja({{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{#- The system message stands apart. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{%- if tools is not none %}
    {{- "Environment: ipython\n" }}
{%- endif %}
{{- "Today Date: " + date_string + "\n\n" }}
{%- if tools is not none %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
    {%- endfor %}
{%- endif %}
{{- system }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("one call at a time") }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
)jinja";

constexpr const char* kMistral1 =
    R"jinja({{ bos_token }}{% for m in messages[1:] %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}{% if m['role'] == 'user' %}{{ '[INST] ' + m['content'] + ' [/INST]' }}{% elif m['role'] == 'assistant' %}{{ m['content'] + eos_token + ' ' }}{% else %}{{ raise_exception('unknown role') }}{% endif %}{% endfor %})jinja";

constexpr const char* kMistral3 = R"jinja({%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or message.role == "tool_results" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("roles must alternate") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}

{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {%- for key, val in tool.items() if key != "return" %}
                    {{- '"' + key + '": ' + val|tojson }}
                {%- endfor %}
            {%- endfor %}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\n\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- else %}
        {{- raise_exception("unknown role") }}
    {%- endif %}
{%- endfor %}
)jinja";

constexpr const char* kChatml =
    R"jinja({% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %})jinja";

constexpr const char* kQwen2 =
    R"jinja({% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou are helpful.<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %})jinja";

constexpr const char* kZephyr = R"jinja({% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>
' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>
' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>
'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %})jinja";

constexpr const char* kTessera =
    R"jinja({{ bos_token }}{% for message in messages %}{{ '<|' + message['role'] + '|>\n' + message['content'] + '<|end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %})jinja";

const std::vector<ChatMessage> kConversation = {
    {"system", " Be brief. "}, {"user", " Hi <|end|>"}, {"assistant", " Yo "}, {"user", "Why?"}};

ChatTemplate::Variables variables(bool add_generation_prompt = true) {
  return {"<s>", "</s>", add_generation_prompt, 1699963200};  // 14 November 2023
}

// Returns: the rendered segments; those from messages are enclosed in «».
std::string marked(std::string_view source, const std::vector<ChatMessage>& messages) {
  const auto parsed = ChatTemplate::parse(source);
  if (!parsed.ok()) return std::string(parsed.status().message());
  const auto segments = (*parsed)->render({messages}, variables());
  if (!segments.ok()) return std::string(segments.status().message());
  std::string text;
  for (const TextSegment& segment : *segments) {
    text += segment.parse_special ? segment.text : "«" + segment.text + "»";
  }
  return text;
}

TEST(ChatTemplate, RendersThePublishedFormats) {
  const std::pair<const char*, const char*> cases[] = {
      {kLlama2,
       "<s>[INST] <<SYS>>\n« Be brief. »\n<</SYS>>\n\n« Hi <|end|>» [/INST] «Yo» </s>"
       "<s>[INST] «Why?» [/INST]"},
      {kLlama3,
       "<s><|start_header_id|>system<|end_header_id|>\n\n«Be brief.»<|eot_id|>"
       "<|start_header_id|>user<|end_header_id|>\n\n«Hi <|end|>»<|eot_id|>"
       "<|start_header_id|>assistant<|end_header_id|>\n\n«Yo»<|eot_id|>"
       "<|start_header_id|>user<|end_header_id|>\n\n«Why?»<|eot_id|>"
       "<|start_header_id|>assistant<|end_header_id|>\n\n"},
      {kLlama31,
       "<s><|start_header_id|>system<|end_header_id|>\n\nToday Date: 14 Nov 2023\n\n"
       "«Be brief.»<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n«Hi <|end|>»<|eot_id|>"
       "<|start_header_id|>assistant<|end_header_id|>\n\n«Yo»<|eot_id|>"
       "<|start_header_id|>user<|end_header_id|>\n\n«Why?»<|eot_id|>"
       "<|start_header_id|>assistant<|end_header_id|>\n\n"},
      {kMistral1, "<s>[INST] « Hi <|end|>» [/INST]« Yo »</s> [INST] «Why?» [/INST]"},
      {kMistral3, "<s>[INST] « Hi <|end|>»[/INST] «Yo»</s>[INST] « Be brief. »\n\n«Why?»[/INST]"},
      {kChatml,
       "<|im_start|>system\n« Be brief. »<|im_end|>\n<|im_start|>user\n« Hi <|end|>»<|im_end|>\n"
       "<|im_start|>assistant\n« Yo »<|im_end|>\n<|im_start|>user\n«Why?»<|im_end|>\n"
       "<|im_start|>assistant\n"},
      {kZephyr,
       "<|system|>\n« Be brief. »</s>\n<|user|>\n« Hi <|end|>»</s>\n<|assistant|>\n« Yo »</s>\n"
       "<|user|>\n«Why?»</s>\n<|assistant|>\n"},
      {kTessera,
       "<s><|system|>\n« Be brief. »<|end|>\n<|user|>\n« Hi <|end|>»<|end|>\n"
       "<|assistant|>\n« Yo »<|end|>\n<|user|>\n«Why?»<|end|>\n<|assistant|>\n"},
  };
  for (const auto& [source, expected] : cases) EXPECT_EQ(marked(source, kConversation), expected);
  EXPECT_EQ(marked(kQwen2, {{"user", "Hi"}}),
            "<|im_start|>system\nYou are helpful.<|im_end|>\n<|im_start|>user\n«Hi»<|im_end|>\n"
            "<|im_start|>assistant\n");
}

TEST(ChatTemplate, ReportsTheTemplatesOwnRefusal) {
  const std::vector<ChatMessage> twice = {{"user", "a"}, {"user", "b"}};
  for (const char* source : {kLlama2, kMistral3}) {
    const auto parsed = ChatTemplate::parse(source);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    const auto segments = (*parsed)->render({twice}, variables());
    EXPECT_EQ(segments.status(), absl::InvalidArgumentError("roles must alternate"));
  }
}

TEST(ChatTemplate, TellsTheTemplatesTextFromTheMessages) {
  const std::vector<ChatMessage> messages = {{"user", "  a<b>,c "}};
  const std::pair<const char*, const char*> cases[] = {
      {"{{ messages[0].content.upper() }}", "«  A<B>,C »"},
      {"{{ ('x' ~ messages[0].content)[2:6] ~ 'y' }}", "« a<b»y"},
      {"{{ messages[0].content | replace('<b>', '<s>') }}", "«  a»<s>«,c »"},
      {"{{ '<b>' | replace('b', messages[0].content) }}", "<«  a<b>,c »>"},
      {"{{ messages[0].content.split(',')[1] ~ '!' }}", "«c »!"},
      {"{{ [messages[0].content, 'z'] | join('-') }}", "«  a<b>,c »-z"},
      {"{{ messages | map(attribute='content') | first | trim }}", "«a<b>,c»"},
      {"{{ messages[0].content | reverse }}", "« c,>b<a  »"},
      {"{% set x %}[{{ messages[0].content }}]{% endset %}{{ x }}", "[«  a<b>,c »]"},
      {"{% macro f(m) %}({{ m }}){% endmacro %}{{ f(messages[0].content) }}", "(«  a<b>,c »)"},
      {"{{ messages[0] | tojson }}", "{\"role\": \"user\", \"content\": \"«  a<b>,c »\"}"},
      {"{{ messages[0] }}", "{'role': 'user', 'content': '«  a<b>,c »'}"},
      {"{% for c in messages[0].content[2:5] %}{{ c }};{% endfor %}", "«a»;«<»;«b»;"},
      {"{{ messages[0].content * 2 }}", "«  a<b>,c   a<b>,c »"},
  };
  for (const auto& [source, expected] : cases) {
    EXPECT_EQ(marked(source, messages), expected) << source;
  }
  EXPECT_EQ(marked("{{ messages[0].content | tojson }}", {{"user", "a\"\n"}}), "\"«a\\\"\\n»\"");
}

TEST(ChatTemplate, MakesSpecialTokensOfKnownRolesOnly) {
  EXPECT_EQ(marked("<|{{ messages[0].role }}|>", {{"ipython", ""}}), "<|ipython|>");
  for (const char* role : {"end", "im_end", "user|><|end", ""}) {
    EXPECT_EQ(marked("<|{{ messages[0].role }}|>", {{role, ""}}),
              *role == 0 ? "<||>" : "<|«" + std::string(role) + "»|>");
  }
}

TEST(ChatTemplate, ReplacesWhatIsNotUtf8InAMessage) {
  EXPECT_EQ(marked("{{ messages[0].content }}", {{"user", "a\xFF"}}), "«a\uFFFD»");
}

TEST(BuiltinChatTemplate, RendersEachNamedFormat) {
  const std::pair<const char*, const char*> cases[] = {
      {"llama2",
       "<s>[INST] <<SYS>>\n« Be brief. »\n<</SYS>>\n\n« Hi <|end|>» [/INST] «Yo» </s>"
       "<s>[INST] «Why?» [/INST]"},
      {"llama3",
       "<s><|start_header_id|>system<|end_header_id|>\n\n«Be brief.»<|eot_id|>"
       "<|start_header_id|>user<|end_header_id|>\n\n«Hi <|end|>»<|eot_id|>"
       "<|start_header_id|>assistant<|end_header_id|>\n\n«Yo»<|eot_id|>"
       "<|start_header_id|>user<|end_header_id|>\n\n«Why?»<|eot_id|>"
       "<|start_header_id|>assistant<|end_header_id|>\n\n"},
      {"mistral", "<s>[INST] « Be brief. »\n\n« Hi <|end|>» [/INST] «Yo»</s>[INST] «Why?» [/INST]"},
      {"chatml",
       "<|im_start|>system\n« Be brief. »<|im_end|>\n<|im_start|>user\n« Hi <|end|>»<|im_end|>\n"
       "<|im_start|>assistant\n« Yo »<|im_end|>\n<|im_start|>user\n«Why?»<|im_end|>\n"
       "<|im_start|>assistant\n"},
      {"zephyr",
       "<|system|>\n« Be brief. »</s>\n<|user|>\n« Hi <|end|>»</s>\n<|assistant|>\n« Yo »</s>\n"
       "<|user|>\n«Why?»</s>\n<|assistant|>\n"},
  };
  std::string names;
  for (const auto& [name, expected] : cases) {
    const auto source = builtin_chat_template(name);
    ASSERT_TRUE(source.has_value()) << name;
    EXPECT_EQ(marked(*source, kConversation), expected) << name;
    names += (names.empty() ? "" : ", ") + std::string(name);
  }
  EXPECT_EQ(builtin_chat_template_names(), names);
  EXPECT_EQ(builtin_chat_template("alpaca"), std::nullopt);
  EXPECT_THAT(marked(*builtin_chat_template("llama2"), {{"user", "a"}, {"user", "b"}}),
              HasSubstr("roles must be"));
}

TEST(FindChatTemplate, PrefersTheFileToTheConfiguration) {
  const auto folder = scratch_folder("find-template");
  EXPECT_EQ(*find_chat_template(folder), std::nullopt);
  write_file(folder / "tokenizer_config.json", R"({"chat_template": "one"})");
  EXPECT_EQ(*find_chat_template(folder), "one");
  write_file(folder / "tokenizer_config.json",
             R"({"chat_template": [{"name": "tool_use", "template": "two"},
                                   {"name": "default", "template": "three"}]})");
  EXPECT_EQ(*find_chat_template(folder), "three");
  write_file(folder / "chat_template.jinja", "four");
  EXPECT_EQ(*find_chat_template(folder), "four");
}

TEST(FindChatTemplate, FindsTheOneOfChatsWithTools) {
  const auto folder = scratch_folder("tool-template");
  EXPECT_EQ(*find_tool_template(folder), std::nullopt);
  write_file(folder / "tokenizer_config.json", R"({"chat_template": "one"})");
  EXPECT_EQ(*find_tool_template(folder), std::nullopt);
  write_file(folder / "tokenizer_config.json",
             R"({"chat_template": [{"name": "default", "template": "three"},
                                   {"name": "tool_use", "template": "two"}]})");
  EXPECT_EQ(*find_tool_template(folder), "two");
  write_file(folder / "chat_template.jinja", "four");
  EXPECT_EQ(*find_tool_template(folder), std::nullopt) << "the list is older than the file";
  std::filesystem::create_directory(folder / "additional_chat_templates");
  write_file(folder / "additional_chat_templates" / "tool_use.jinja", "five");
  EXPECT_EQ(*find_tool_template(folder), "five");
}

TEST(ChatTemplate, RendersChatsWithToolsByATemplateOfTheirOwn) {
  const auto both = with_tool_template(*ChatTemplate::parse("plain {{ messages[0].content }}"),
                                       *ChatTemplate::parse("{{ tools[0].function.name }} "
                                                            "{{ messages[0].content }}"));
  Conversation conversation{.messages = {{.role = "user", .content = "hi"}}};
  const auto text = [&] {
    std::string joined;
    const auto segments = both->render(conversation, {});
    for (const TextSegment& segment : segments.value()) {
      joined += segment.text;
    }
    return joined;
  };
  EXPECT_EQ(text(), "plain hi");
  conversation.tools = {R"({"type": "function", "function": {"name": "f"}})"};
  EXPECT_EQ(text(), "f hi");
}

TEST(FindChatTemplate, RefusesAnotherKindOfValue) {
  const auto folder = scratch_folder("bad-template");
  for (const char* config : {R"({"chat_template": 1})", R"({"chat_template": []})", "[]"}) {
    write_file(folder / "tokenizer_config.json", config);
    EXPECT_FALSE(find_chat_template(folder).ok()) << config;
  }
}

}  // namespace
}  // namespace tessera

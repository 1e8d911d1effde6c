#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>

#include "text/chat_template.h"
#include "text/jinja/interpreter.h"

namespace tessera {
namespace {

using testing::HasSubstr;

const size_t kDefaultWork = ChatTemplate::Variables().max_work;

// template_variables: the request's own, an object in JSON.
absl::StatusOr<std::string> render(const std::string& source, size_t max_work = kDefaultWork,
                                   const std::string& template_variables = {}) {
  const auto parsed = ChatTemplate::parse(source);
  if (!parsed.ok()) return parsed.status();
  const std::vector<ChatMessage> messages = {
      {"system", " Be brief. "}, {"user", "Hi there"}, {"assistant", "Yo"}};
  ChatTemplate::Variables variables{"<s>", "</s>", true, 1699963200, max_work};
  Conversation conversation{messages};
  conversation.variables = template_variables;
  const auto segments = (*parsed)->render(conversation, variables);
  if (!segments.ok()) return segments.status();
  std::string text;
  for (const TextSegment& segment : *segments) text += segment.text;
  return text;
}

std::string rendered(const std::string& source) {
  const auto text = render(source);
  return text.ok() ? *text : "error: " + std::string(text.status().message());
}

std::string error_of(const std::string& source) {
  const auto text = render(source);
  return text.ok() ? "no error, but " + *text : std::string(text.status().message());
}

struct Case {
  const char* source;
  const char* expected;  // output of jinja2 3.1 with the settings of transformers
};

TEST(JinjaExpressions, PrintWhatJinja2Prints) {
  const Case cases[] = {
      {"{{ 1 + 2 * 3 - 4 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** 10 }} "
       "{{ 1.5 + 1 }}",
       "3 3 -4 2 3.5 1024 2.5"},
      {"{{ 'a' + 'b' ~ 1 ~ none ~ true }} {{ 'x' * 3 }} {{ 'a' 'b' }}", "ab1NoneTrue xxx ab"},
      {"{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 'a' != 'b' }} {{ 2 >= 2.0 }} {{ 'abc' > 'abd' }} "
       "{{ 1 == true }}",
       "True False True True False True"},
      {"{{ 'a' in 'abc' }} {{ 2 not in [1, 3] }} {{ 'role' in messages[0] }} {{ 'x' in {'x': "
       "1} }}",
       "True True True True"},
      {"{{ not 1 }} {{ 0 or 'b' }} {{ 1 and 'c' }} {{ '' and 2 }} {{ not true == false }} {{ "
       "none or undefined_name or 'z' }}",
       "False b c  True z"},
      {"{{ 'yes' if 1 else 'no' }} {{ 'yes' if 0 }} {{ 1 if 0 else 2 if 0 else 3 }}", "yes  3"},
      {"{{ [1, 'a', none, true, 1.0, {'k': \"it's\"}] }} {{ (1, 2)[1] }} {{ [] }} {{ {} }}",
       "[1, 'a', None, True, 1.0, {'k': \"it's\"}] 2 [] {}"},
      {"{{ 'abcdef'[1:3] }} {{ 'abcdef'[::-1] }} {{ 'äöü'[-1] }} {{ [1,2,3,4][::2] }} {{ "
       "[1,2,3][-2:] }} {{ 'abc'[5:] }}|{{ [1,2,3][:-5] }}",
       "bc fedcba ü [1, 3] [2, 3] |[]"},
      {"{{ messages[1].role }} {{ messages[1]['content'] }} {{ messages[-1].role }} {{ "
       "messages[0].nothing }}| {{ messages.0.role }}",
       "user Hi there assistant | system"},
      {"{{ 'a\\n\\t\\'\\\"\\\\b' }} {{ '\\u00e4\\x41' }}", "a\n\t'\"\\b äA"},
      {"{{ 1_000 }} {{ 0.5 }} {{ 100000000000000000000.0 }} {{ 3.0 }}", "1000 0.5 1e+20 3.0"},
  };
  for (const Case& one : cases) EXPECT_EQ(rendered(one.source), one.expected) << one.source;
}

TEST(JinjaTests, PrintWhatJinja2Prints) {
  const Case cases[] = {
      {"{{ x is defined }} {{ messages is defined }} {{ x is undefined }} {{ x is not defined "
       "}}",
       "False True True True"},
      {"{{ none is none }} {{ 'a' is string }} {{ {} is mapping }} {{ [] is iterable }} {{ "
       "'a' is iterable }} {{ 1 is iterable }} {{ [] is sequence }}",
       "True True True True True False True"},
      {"{{ 1 is number }} {{ 1 is integer }} {{ 1.0 is float }} {{ true is boolean }} {{ true "
       "is true }} {{ 1 is true }} {{ false is false }}",
       "True True True True True False True"},
      {"{{ 3 is odd }} {{ 4 is even }} {{ 9 is divisibleby 3 }} {{ 1 is eq 1 }} {{ 1 is ne(2) "
       "}} {{ 2 is gt 1 }} {{ 'a' is in ['a'] }}",
       "True True True True True True True"},
      {"{{ strftime_now is defined }} {{ raise_exception is defined }} {{ tools is none }}",
       "True True True"},
  };
  for (const Case& one : cases) EXPECT_EQ(rendered(one.source), one.expected) << one.source;
}

TEST(JinjaFilters, PrintWhatJinja2Prints) {
  const Case cases[] = {
      {"[{{ '  a b \n' | trim }}] [{{ 'xxaxx' | trim('x') }}] {{ 'äöü' | length }} {{ [1, 2] "
       "| count }} {{ messages | length }}",
       "[a b] [a] 3 2 3"},
      {"{{ 'aBc dEf-ghi' | upper }} {{ 'ABC' | lower }} {{ 'hELLO wORLD (x)' | title }} {{ "
       "'hELLO wORLD' | capitalize }}",
       "ABC DEF-GHI abc Hello World (X) Hello world"},
      {"{{ {'a': [1, 2.5, none, true, 'q\"\\n<é>'], 'b': {}} | tojson }} {{ [] | tojson }} {{ "
       "messages[1] | tojson }}",
       "{\"a\": [1, 2.5, null, true, \"q\\\"\\n<é>\"], \"b\": {}} [] {\"role\": \"user\", "
       "\"content\": \"Hi there\"}"},
      {"{{ {'a': [1, {'b': 2}], 'c': [], 'd': {}} | tojson(indent=2) }}",
       "{\n  \"a\": [\n    1,\n    {\n      \"b\": 2\n    }\n  ],\n  \"c\": [],\n  \"d\": "
       "{}\n}"},
      {"{{ [1, 2, 3] | join(', ') }} {{ messages | map(attribute='role') | join('|') }} {{ "
       "'abc' | join('.') }} {{ messages | join(',', attribute='role') }}",
       "1, 2, 3 system|user|assistant a.b.c system,user,assistant"},
      {"{{ x | default('d') }} {{ '' | default('d') }}| {{ '' | default('d', true) }} {{ none "
       "| d('e') }}",
       "d | d None"},
      {"{{ [1, 2] | first }} {{ 'abc' | last }} {{ [] | first }}| {{ 'abc' | list }} {{ {'k': "
       "1} | list }} {{ 'abc' | reverse }} {{ [1, 2] | reverse | list }}",
       "1 c | ['a', 'b', 'c'] ['k'] cba [2, 1]"},
      {"{{ 'aXbX' | replace('X', '-') }} {{ 'aXbX' | replace('X', '-', 1) }} {{ 5 | string + "
       "'!' }} {{ '42' | int + 1 }} {{ 'x' | int(7) }} {{ '1.5' | float }} {{ 2.9 | int }} {{ "
       "-3 | abs }}",
       "a-b- a-bX 5! 43 7 1.5 2 3"},
      {"{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | list "
       "}} {{ messages | rejectattr('role', 'in', ['user', 'system']) | list | length }}",
       "['Hi there'] 1"},
      {"{{ [0, 1, '', 'a'] | select | list }} {{ [1, 2, 3] | reject('odd') | list }} {{ ['a', "
       "'b'] | map('upper') | join }} {{ messages | selectattr('content') | list | length }}",
       "[1, 'a'] [2] AB 3"},
      {"{% for k, v in {'a': 1, 'b': 2} | items %}{{ k }}={{ v }};{% endfor %} {{ 'a\nb\n\nc' "
       "| indent(2) }} {{ 'a\nb' | indent(1, true) }} {{ 'x' | safe }}",
       "a=1;b=2; a\n  b\n\n  c  a\n b x"},
  };
  for (const Case& one : cases) EXPECT_EQ(rendered(one.source), one.expected) << one.source;
}

TEST(JinjaMethods, PrintWhatJinja2Prints) {
  const Case cases[] = {
      {"[{{ ' a '.strip() }}] [{{ ' a '.lstrip() }}] [{{ ' a '.rstrip() }}] {{ "
       "'xxaxx'.strip('x') }} {{ '\n a'.lstrip('\n') }}",
       "[a] [a ] [ a] a  a"},
      {"{{ 'a,b,,c'.split(',') }} {{ ' a  b '.split() }} {{ 'a b c'.split(' ', 1) }} {{ 'a b "
       "c'.split(None, 1) }} {{ 'a</t>b'.split('</t>')[-1] }} {{ 'a\nb\r\nc'.splitlines() }}",
       "['a', 'b', '', 'c'] ['a', 'b'] ['a', 'b c'] ['a', 'b c'] b ['a', 'b', 'c']"},
      {"{{ 'abc'.startswith('ab') }} {{ 'abc'.endswith(('x', 'c')) }} {{ 'abc'.upper() }} {{ "
       "'ABC'.lower() }} {{ \"they're bill's\".title() }} {{ 'aBC'.capitalize() }}",
       "True True ABC abc They'Re Bill'S Abc"},
      {"{{ 'aaa'.replace('a', 'b', 2) }} {{ 'äbc'.find('c') }} {{ '-'.join(['a', 'b']) }} {{ "
       "'abc'.removeprefix('a') }} {{ 'abc'.removesuffix('c') }}",
       "bba 2 a-b bc ab"},
      {"{{ {'a': 1}.get('a') }} {{ {'a': 1}.get('b') }} {{ {'a': 1}.get('b', 2) }} {{ {'a': "
       "1}.keys() | list }} {{ {'a': 1}.values() | list }}{% for k, v in {'a': 1}.items() %} "
       "{{ k }}{{ v }}{% endfor %}",
       "1 None 2 ['a'] [1] a1"},
  };
  for (const Case& one : cases) EXPECT_EQ(rendered(one.source), one.expected) << one.source;
}

TEST(JinjaStatements, PrintWhatJinja2Prints) {
  const Case cases[] = {
      {"{% if x %}a{% elif messages %}b{% else %}c{% endif %}{% if not messages %}d{% else "
       "%}e{% endif %}",
       "be"},
      {"{% for m in messages %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last "
       "}}{{ loop.length }}{{ loop.revindex }}{{ loop.revindex0 }};{% endfor %}",
       "10TrueFalse332;21FalseFalse321;32FalseTrue310;"},
      {"{% for m in messages %}{% if loop.previtem is defined %}{{ loop.previtem.role }}<{% "
       "endif %}{{ m.role }}{% if loop.nextitem is defined %}>{{ loop.nextitem.role }}{% "
       "endif %} {% endfor %}",
       "system>user system<user>assistant user<assistant "},
      {"{% for i in [] %}x{% else %}none{% endfor %}{% for i in range(5) if i is odd %}{{ i "
       "}}/{{ loop.length }} {% endfor %}{% for c in 'añ' %}{{ c }}.{% endfor %}{% for k in "
       "{'a': 1} %}{{ k }}{% endfor %}{% for q in nothing %}{% endfor %}",
       "none1/2 3/2 a.ñ.a"},
      {"{% for i in range(2, 10, 3) %}{{ i }}{% if i == 5 %}{% continue %}{% endif %},{% "
       "endfor %}{% for i in range(9) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor "
       "%}{{ range(3, 0, -1) | list }}",
       "2,58,012[3, 2, 1]"},
      {"{% set a = 1 %}{% for i in [1, 2] %}{% set a = a + i %}{{ a }}{% endfor %}{{ a }}{% "
       "if true %}{% set a = 9 %}{% endif %}{{ a }}",
       "2319"},
      {"{% set ns = namespace(n=0, t='') %}{% for i in [1, 2] %}{% set ns.n = ns.n + i %}{% "
       "set ns.t = ns.t ~ i %}{% endfor %}{{ ns.n }}{{ ns.t }}{{ ns.none }}",
       "312"},
      {"{% set a, b = 1, 2 %}{{ a }}{{ b }}{% for x, y in [[1, 2], [3, 4]] %}{{ x }}{{ y }}{% "
       "endfor %}{% set c %}t{{ a }}{% endset %}{{ c | upper }}",
       "121234T1"},
      {"{% macro f(a, b='x', c=none) %}<{{ a }}{{ b }}{{ c }}>{% endmacro %}{{ f(1) }}{{ f(1, "
       "2) }}{{ f(1, c=3) }}{{ f() }}{% set g = f('q') %}{{ g | length }}",
       "<1xNone><12None><1x3><xNone>8"},
      {"{% macro down(n) %}{{ n }}{% if n > 0 %}{{ down(n - 1) }}{% endif %}{% endmacro %}{{ "
       "down(5) }}",
       "543210"},
      {"{% set v = 1 %}{% macro f() %}{{ v }}{{ w }}{% endmacro %}{% for w in [1] %}{{ f() "
       "}}{% endfor %}",
       "1"},
      {"{% generation %}{{ messages[2].content }}{% endgeneration %}!", "Yo!"},
      {"{{ strftime_now('%Y-%m-%d') }} {{ bos_token }}{{ eos_token }} {{ "
       "add_generation_prompt }}",
       "2023-11-14 <s></s> True"},
  };
  for (const Case& one : cases) EXPECT_EQ(rendered(one.source), one.expected) << one.source;
}

TEST(JinjaWhiteSpace, PrintWhatJinja2Prints) {
  const Case cases[] = {
      {"a\n{% if true %}\nb\n{% endif %}\nc\n", "a\nb\nc"},
      {"a\n  {% if true %}\n  b\n  {% endif %}\n  c\n\n", "a\n  b\n  c\n"},
      {"a  {%- if true -%}  \n b \n {%- endif -%}\n c", "abc"},
      {"a\n  {%+ if true %}\nb{% endif +%}\nc", "a\n  b\nc"},
      {"a\n {# gone #}\nb {#- gone -#}\n c{# x #}\n", "a\nbc"},
      {"a\n {{- 'x' -}} \n b\n {{ 'y' }}\n c", "axb\n y\n c"},
      {"  {% set x = 1 %}\n\n{% set y = 2 %}  z\r\n{% if x %}\r\nw{% endif %}", "\n  z\nw"},
      {"{% for i in [1,2] %}\n  {{ i }}\n{% endfor %}\nend", "  1\n  2\nend"},
      {"x {% if true %} y {% endif %}\n\n", "x  y "},
      {"{{ '{% raw %}' }}{{ '}}' }} { {x} %} }}", "{% raw %}}} { {x} %} }}"},
  };
  for (const Case& one : cases) EXPECT_EQ(rendered(one.source), one.expected) << one.source;
}

TEST(JinjaPublished, ConstructsOfPublishedTemplatesPrintWhatJinja2Prints) {
  const Case cases[] = {
      {R"j({% for k, v in {'b': 1, 'A': 2, 'c': 0} | dictsort %}{{ k }}{{ v }} {% endfor %}{% for k, v in {'b': 1, 'A': 2} | dictsort(by='value', reverse=true) %}{{ k }}{% endfor %}{% for k, v in {10: 'x', 9: 'y'} | dictsort %}{{ k + 1 }}{% endfor %})j",
       R"j(A2 b1 c0 Ab1011)j"},
      {R"j({{ [3, 1, 2] | sort }} {{ ['b', 'A', 'c'] | sort }} {{ ['b', 'a', 'C'] | sort(case_sensitive=true) }} {{ [1, 3, 2] | sort(reverse=true) }})j",
       R"j([1, 2, 3] ['A', 'b', 'c'] ['C', 'a', 'b'] [3, 2, 1])j"},
      {R"j({{ messages | sort(attribute='role') | map(attribute='role') | list }} {{ [{'a': 1, 'b': 2}, {'a': 1, 'b': 1}] | sort(attribute='a,b') }})j",
       R"j(['assistant', 'system', 'user'] [{'a': 1, 'b': 1}, {'a': 1, 'b': 2}])j"},
      {R"j({{ ['a', 'A', 'b', 1, 1.0, true] | unique | list }} {{ ['a', 'A'] | unique(true) | list }})j",
       R"j(['a', 'b', 1] ['a', 'A'])j"},
      {R"j({{ range(999) | list | unique | list | length }} {{ [0.0, -0.0, 9007199254740992, 9007199254740993, none, none] | unique | list }})j",
       R"j(999 [0.0, 9007199254740992, 9007199254740993, None])j"},
      {R"j({{ {'a': 1, 'b': 2, 'a': 3} }} {% set l = [] %}{% for i in range(40) %}{% set _ = l.append('"' ~ i % 30 ~ '":' ~ i) %}{% endfor %}{% set d = ('{' ~ l | join(',') ~ '}') | from_json %}{{ d | length }} {{ d['3'] }} {{ d['29'] }} {{ '30' in d }} {{ d | first }})j",
       R"j({'a': 3, 'b': 2} 30 33 29 False 0)j"},
      {R"j({{ ['aXbc', '\n', "it's"] }} {{ 'aab'.find('ab') }} {{ 'aXXb'.replace('XX', '') }} {{ 'abcdef'[1:5:2] }} {{ 'äöü'[1:] }})j",
       R"j(['aXbc', '\n', "it's"] 1 ab bd öü)j"},
      {R"j({{ [3, 1, 2] | min }} {{ [3, 1, 2] | max }} {{ ['b', 'A'] | min }} {{ (messages | max(attribute='role')).role }} {{ [] | min }}|)j",
       R"j(1 3 A user |)j"},
      {R"j({{ '{"a": [1, null, "x"]}' | from_json }} {{ ('[1]' | from_json)[0] + 1 }})j",
       R"j({'a': [1, None, 'x']} 2)j"},
      {R"j({{ '<{}>{{}}{}'.format('a', 1) }} {{ '{1}{0}{x}'.format('a', 'b', x='c') }})j",
       R"j(<a>{}1 bac)j"},
      {R"j({% filter upper %}ab{{ 'c' }}{% endfilter %}{% filter replace('a', 'b') | trim %}  aaa {% endfilter %})j",
       R"j(ABCbbb)j"},
      {R"j({% set l = [] %}{% set _ = l.append(1) %}{% set _ = l.append('b') %}{{ l }} {{ l.pop(0) }} {{ l.pop() }} {{ l }} {{ l.append(2) }})j",
       R"j([1, 'b'] 1 b [] None)j"},
      {R"j({% set ns = namespace(ids=[]) %}{% for m in messages %}{% set _ = ns.ids.append(m.role) %}{% endfor %}{% if ns.ids %}{{ ns.ids.pop(0) }} {{ ns.ids }}{% endif %})j",
       R"j(system ['user', 'assistant'])j"},
      {R"j({{ {'ä€😀': 'é"', 'a': 1} | tojson(ensure_ascii=True) }} {{ {'b': [1, 2], 'a': 1} | tojson(separators=(',', ':'), sort_keys=true) }})j",
       R"j({"\u00e4\u20ac\ud83d\ude00": "\u00e9\"", "a": 1} {"a":1,"b":[1,2]})j"},
      {R"j({% set d = {1: 'a', 20: 'b'} %}{{ d }} {{ d[20] }} {{ 1 in d }} {{ '1' in d }} {{ d.get(1) }} {{ d | tojson }}{% for k, v in d.items() %} {{ k + 1 }}{% endfor %})j",
       R"j({1: 'a', 20: 'b'} b True False a {"1": "a", "20": "b"} 2 21)j"},
      {R"j({{ none | selectattr('x') | list }} {{ none | map('upper') | list }})j", R"j([] [])j"},
  };
  for (const Case& one : cases) EXPECT_EQ(rendered(one.source), one.expected) << one.source;
}

TEST(JinjaPublished, ConstructsThatAreNotSupportedAreRefusedByName) {
  const Case cases[] = {
      {"{{ [].append(1) }}", "append works on a list that a variable holds"},
      {"{% set a = [] %}{% set b = a %}{{ b.append(1) }}", "another value holds"},
      {"{% set a = [] %}{{ a.append(a) }}", "another value holds"},
      {"{% set a = {'l': []} %}{{ a.l.append(1) }}",
       "append works on a list that a variable holds"},
      {"{% set a = [] %}{{ a.pop() }}", "pop: the list has 0 items"},
      {"{{ '{:>3}'.format(1) }}", "only {}, {0} and {name} are supported, not {:>3}"},
      {"{{ '{a.b}'.format(a=1) }}", "not {a.b}"},
      {"{{ '{} {}'.format(1) }}", "there is no argument for {}"},
      {"{{ '{'.format(1) }}", "a bracket without the other"},
      {"{{ [1, 'a'] | sort }}", "cannot order"},
      {"{{ [{}] | min }}|{{ [{}, {}] | max }}", "cannot order dict and dict"},
      {"{{ [1] | dictsort }}", "dictsort takes a dict"},
      {"{{ {1: 2, 'a': 3} }}", "all strings or all integers"},
      {"{{ '{' | from_json }}", "from_json: "},
      {"{{ 1 | tojson(separators=',') }}", "separators are two short strings"},
      {"{{ 1 | tojson(default=1) }}", "tojson: default is not supported"},
      {"{% filter nonsense %}{% endfilter %}", "unknown filter \"nonsense\""},
  };
  for (const Case& one : cases) {
    EXPECT_THAT(error_of(one.source), HasSubstr(one.expected)) << one.source;
  }
}

TEST(JinjaErrors, NameLineAndConstructWhenATemplateIsParsed) {
  const std::string long_name = "{{ " + std::string(257, 'a') + " }}";
  const Case cases[] = {
      {"a\n{% include 'x' %}", "chat template, line 2: unknown statement \"include\""},
      {"{{ 1 | frobnicate }}", "unknown filter \"frobnicate\""},
      {"{{ 1 is frobnicated }}", "unknown test \"frobnicated\""},
      {"{{ lipsum() }}", "unknown function \"lipsum\""},
      {"{{ ''.__class__.mro() }}", "unknown method \"mro\""},
      {"{{ [].extend(1) }}", "unknown method \"extend\""},
      {"{% if 1 %}\n\n", "line 2: expected {% endif %}, found the template's end"},
      {"{% endif %}", "unknown statement \"endif\""},
      {"{% for x in y recursive %}{% endfor %}", "recursive loops"},
      {"{% break %}", "\"break\" outside of a loop"},
      {"{{ 1 +", "line 1: a tag without \"}}\""},
      {"{{ 1 + }}", "expected an expression, found \"}}\""},
      {"{{ 'a }}", "a string without end"},
      {"{{ 'a\\x4' }}", "a string escape without its digits"},
      {"{{ '\\ud800' }}", "a string escape that is no character"},
      {"{{ (1] }}", "unexpected \"]\""},
      {"{{ 1 } }}", "unexpected \"}\""},
      {"{{ a ? b }}", "unexpected character \"?\""},
      {"{# never", "a comment without end"},
      {"{{ 99999999999999999999 }}", "number out of range"},
      {"{% macro f(a b) %}{% endmacro %}", "expected \",\", found \"b\""},
      {"{{ f(a=1, 2) }}{% macro f() %}{% endmacro %}", "positional argument after a named one"},
      {"{% set 1 = 2 %}", "a variable's name"},
      {"\xFF", "not UTF-8"},
      {long_name.c_str(), "a name of more than 256 bytes"},
  };
  for (const Case& one : cases) {
    EXPECT_FALSE(ChatTemplate::parse(one.source).ok()) << one.source;
    EXPECT_THAT(error_of(one.source), HasSubstr(one.expected)) << one.source;
  }
}

TEST(JinjaErrors, NameTheLineOfARendering) {
  const Case cases[] = {
      {"\n{{ x.y }}", "line 2: \"x\" is undefined"},
      {"{{ x[1:] }}", "\"x\" is undefined"},
      {"{{ 1 + 'a' }}", "\"+\" does not work on integer and string"},
      {"{{ 'a' + none }}", "\"+\" does not work on string and none"},
      {"{{ 1 // 0 }}{{ 1 % 0 }}", "division by zero"},
      {"{{ 9223372036854775807 + 1 }}", "integer overflow"},
      {"{{ 2 ** 64 }}", "integer overflow"},
      {"{{ 1 < 'a' }}", "cannot order integer and string"},
      {"{% for x in 3 %}{% endfor %}", "cannot iterate over integer"},
      {"{% for a, b in [[1]] %}{% endfor %}", "cannot unpack 1 values to 2 names"},
      {"{{ 1 in 2 }}", "\"in\" does not work on integer"},
      {"{% set messages.x = 1 %}", "\"messages\" is no namespace"},
      {"{{ {none: 2} }}", "a dict's keys are all strings"},
      {"{{ range('a') }}", "range takes integers"},
      {"{{ range(1, 2, 0) }}", "step cannot be zero"},
      {"{{ [1][::0] }}", "step cannot be zero"},
      {"{{ messages[0][1:] }}", "cannot slice dict"},
      {"{{ 1 | length }}", "integer has no length"},
      {"{{ 'a'.get('b') }}", "a string has no method \"get\""},
      {"{{ [1] | select('nonsense') }}", "unknown test \"nonsense\""},
      {"{{ [1] | map('nonsense') }}", "map takes a filter's name"},
      {"{{ 1 | tojson(default=1) }}", "tojson: default is not supported"},
      {"{{ 'a'.split('') }}", "empty separator"},
      {"{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}", "macro \"f\" takes 1 arguments"},
  };
  for (const Case& one : cases) {
    EXPECT_TRUE(ChatTemplate::parse(one.source).ok()) << one.source;
    EXPECT_THAT(error_of(one.source), HasSubstr(one.expected)) << one.source;
  }
}

TEST(JinjaErrors, AreTheTemplatesOwnWordsIfItRaisesThem) {
  EXPECT_EQ(error_of("{{ raise_exception('Roles ' ~ 1) }}"), "Roles 1");
}

TEST(JinjaLimits, StopATemplateThatNeverEnds) {
  const std::string sources[] = {
      "{% for a in range(100000000) %}{% endfor %}",
      "{% for a in range(999) %}{% for b in range(999) %}{% for c in range(999) %}{{ a }}"
      "{% endfor %}{% endfor %}{% endfor %}",
      "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
      "{% set ns = namespace(s='aaaaaaaaaa') %}{% for i in range(60) %}"
      "{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
      "{{ 'aaaaaaaaaa' * 1000000000 }}",
      "{{ 'aaaaaaaaaa' * 9223372036854775807 }}",
      "{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l = ns.l + ns.l %}"
      "{% endfor %}",
      "{% set ns = namespace(s='aaaa') %}{% for i in range(60) %}"
      "{% set ns.s = ns.s.replace('a', 'aa') %}{% endfor %}",
      "{% set ns = namespace(s='aaaa') %}{% for i in range(60) %}"
      "{% set ns.s = ns.s | list | join('aa') %}{% endfor %}",
      "{% set l = [] %}{% for i in range(999999) %}{% for j in range(999999) %}{% set _ = "
      "l.append(l) "
      "if 0 else l.append(i) %}{% endfor %}{% endfor %}",
      "{% for i in range(99999) %}{% set x = range(9999) | sort | unique | list %}{% endfor %}",
      "{% set ns = namespace(s='{0}{0}') %}{% for i in range(60) %}"
      "{% set ns.s = ns.s.format(ns.s) %}{% endfor %}",
  };
  for (const std::string& source : sources) {
    const auto text = render(source, size_t{1} << 24U);
    EXPECT_EQ(text.status().code(), absl::StatusCode::kInvalidArgument) << source << text.status();
  }
}

TEST(JinjaLimits, AllowAShortConversationLittleWork) {
  jinja::Context context;
  context.max_work = kDefaultWork;
  const size_t least = jinja::allowed_work(context);
  EXPECT_LT(least, kDefaultWork / 16);
  context.variables.emplace_back("a", jinja::Value(jinja::Text(std::string(10'000, 'x'))));
  EXPECT_GT(jinja::allowed_work(context), least * 2);
  context.variables.emplace_back("b", jinja::Value(jinja::Text(std::string(10'000'000, 'x'))));
  EXPECT_EQ(jinja::allowed_work(context), kDefaultWork);
  EXPECT_EQ(render("{% for a in range(2000) %}{% endfor %}x").value_or("none"), "x");
  EXPECT_FALSE(render("{% for a in range(20000) %}{% endfor %}x").ok());
}

// Before its work was counted, each of these took seconds to hours.
TEST(JinjaLimits, EndHostileTemplatesWithinASecond) {
  const std::string again = "{% for i in range(9999) %}{% for j in range(9999) %}";
  const std::string numbers = "{% set l = range(200000) | list %}" + again;
  const std::string text = "{% set s = 'abcdefgh' * 100000 %}" + again;
  const std::string almost = "{% set s = 'a' * 4000000 %}{% set t = 'a' * 2000000 ~ 'b' %}" + again;
  const std::string alternating =
      "{% set s = ('a' ~ messages[0].role) * 400000 %}{% set t = ('{{' ~ messages[1].content) * "
      "90000 %}" +
      again;
  const std::string names =
      "{% set l = [] %}{% for i in range(20000) %}{% set _ = l.append('\"' ~ i ~ '\":1') %}"
      "{% endfor %}{% set d = ('{' ~ l | join(',') ~ '}') | from_json %}{% set e = ('{' ~ l | "
      "reverse | join(',') ~ '}') | from_json %}{% set m = [d, d, d, d, d, d, d, d] %}" +
      again;
  const std::string all_work = R"({"filler":")" + std::string(600'000, 'x') + R"("})";
  std::string variables;
  for (int i = 0; i < 30000; ++i) variables += "{% set a" + std::to_string(i) + " = 1 %}";
  const std::string sources[] = {
      numbers + "{% set x = l[::-1] %}",
      numbers + "{% set x = l == l %}",
      numbers + "{% set x = -1 in l %}",
      numbers + "{% set x = l | unique %}",
      numbers + "{% set x = l | tojson(indent=16) %}",
      numbers + "{% set x = l | string %}",
      numbers + "{% set x = l | sort(reverse=true) | map('string') | select('in', l) %}",
      numbers + "{% set x = {}[l] %}",
      text + "{% set x = s.0 %}{% set x = [s, s, s, s] | map(attribute=0) | list %}",
      text + "{% set x = s[::-2] %}",
      text + "{% set x = [s] ~ '' %}",
      text + "{% set x = s.splitlines() %}",
      text + "{% set x = s | replace('a', '') %}",
      text + "{% set x = s.strip(s) %}",
      text + "{% set x = [s, s, s, s, s, s, s, s] | select('eq', s) | list %}",
      text + "{% set x = s.startswith([s ~ 1, s ~ 2, s ~ 3]) %}",
      almost + "{% set x = t in s %}",
      almost + "{% set x = s.find(t) %}",
      almost + "{% set x = s.split(t) %}",
      almost + "{% set x = s.replace(t, '') %}",
      alternating + "{% set x = s ~ '' %}",
      alternating + "{% set x = t.format(1) %}",
      names + "{% set x = d.zz %}{% set x = d['zz'] %}{% set x = 'zz' in d %}",
      names + "{% set x = d == e %}",
      names + "{% for k in d %}{% break %}{% endfor %}",
      names + "{% set x = m | sort(attribute='zz') %}",
      names + "{% set x = d | dictsort %}",
      variables + again + "{{ a29999 }}{{ unknown }}",
      again + "{% set x = strftime_now('%c%c%c%c%c%c%c%c%c%c%c%c%c%c%c%c%c%c%c%c%c%c%c%c') %}",
      "{% set ns = namespace(v=[1]) %}{% for i in range(22) %}{% set ns.v = [ns.v, ns.v] %}"
      "{% endfor %}" +
          again + "{{ raise_exception(ns.v) }}",
  };
  for (const std::string& source : sources) {
    const std::string ends =
        source.find(again) == std::string::npos ? "" : "{% endfor %}{% endfor %}";
    const std::clock_t start = std::clock();
    const auto answer = render(source + ends, kDefaultWork, all_work);
    const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    EXPECT_EQ(answer.status().code(), absl::StatusCode::kInvalidArgument) << source;
    EXPECT_LT(seconds, 1) << source.substr(source.size() - std::min<size_t>(source.size(), 200));
  }
}

TEST(JinjaLimits, StopNestingThatWouldOverflowTheStack) {
  const auto repeat = [](const std::string& text, int times) {
    std::string result;
    for (int i = 0; i < times; ++i) result += text;
    return result;
  };
  const std::string deep = "nested more than 200 deep";
  for (const int times : {300, 30000}) {
    EXPECT_THAT(error_of("{{ " + repeat("(", times) + "1" + repeat(")", times) + " }}"),
                HasSubstr(deep));
    EXPECT_THAT(error_of("{{ " + repeat("[", times)), HasSubstr("without"));
    EXPECT_THAT(error_of("{{ " + repeat("not ", times) + "1 }}"), HasSubstr(deep));
    EXPECT_THAT(error_of("{{ " + repeat("-", times) + "1 }}"), HasSubstr(deep));
    EXPECT_THAT(error_of("{{ 1" + repeat(" + 1", times) + " }}"), HasSubstr(deep));
    EXPECT_THAT(error_of("{{ a" + repeat(".b", times) + " }}"), HasSubstr(deep));
    EXPECT_THAT(error_of("{{ a" + repeat(" | list", times) + " }}"), HasSubstr(deep));
    EXPECT_THAT(error_of("{{ 1" + repeat(" if 1 else 2", times) + " }}"), HasSubstr(deep));
    EXPECT_THAT(error_of(repeat("{% if 1 %}", times)), HasSubstr(deep));
  }
  EXPECT_EQ(rendered("{{ 1" + repeat(" + 1", 150) + " }}"), "151");
}

TEST(JinjaLimits, StopValuesThatGrowBeyondMeasure) {
  const std::string loop = "{% set ns = namespace(v=1) %}{% for i in range(999) %}";
  EXPECT_THAT(error_of(loop + "{% set ns.v = [ns.v] %}{% endfor %}"),
              HasSubstr("more than 64 deep"));
  EXPECT_THAT(error_of(loop + "{% set ns.v = {'a': ns.v, 'b': ns.v} %}{% endfor %}"),
              HasSubstr("a list or dict of more than"));
  EXPECT_EQ(rendered("{% set ns = namespace() %}{% set ns.me = ns %}{{ ns.me == ns }}"), "True");
}

}  // namespace
}  // namespace tessera

// The JSON-Schema test suite (draft 2020-12) against schemas and grammars. It comes by name from
// PyPI, in the sources of jsonschema (tests/server/schema_suite.sh).

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "kernels/ops/sampling.h"
#include "server/grammar/grammar_compiler.h"
#include "server/grammar/schema.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;
using namespace std::chrono_literals;

constexpr int32_t kEnd = 256;  // tokens below are the bytes of a text

std::unique_ptr<GrammarCompiler> compiler_of_bytes() {
  GrammarVocabulary vocabulary;
  for (int byte = 0; byte < kEnd; ++byte) {
    vocabulary.bytes.emplace_back(1, static_cast<char>(byte));
  }
  vocabulary.bytes.emplace_back();
  vocabulary.end_ids = {kEnd};
  return GrammarCompiler::create(std::move(vocabulary), {.time = 5s});
}

bool accepts(const TokenGrammar& grammar, const std::string& text) {
  const std::unique_ptr<TokenConstraint> constraint = grammar.begin();
  std::vector<uint32_t> mask(static_cast<size_t>(mask_words(kEnd + 1)));
  for (const char c : text) {
    constraint->fill(mask);
    const int32_t token = static_cast<unsigned char>(c);
    if (!allows(mask.data(), token)) {
      return false;
    }
    constraint->accept(token);
  }
  constraint->fill(mask);
  return allows(mask.data(), kEnd);
}

// Returns: the folder of the suite; empty if it cannot be downloaded.
std::filesystem::path suite() {
  const std::string command = "sh " TESSERA_SOURCE_DIR "/tests/server/schema_suite.sh";
  std::string folder;
  FILE* const pipe = popen(command.c_str(), "r");
  std::array<char, 4096> line{};
  if (pipe != nullptr && std::fgets(line.data(), line.size(), pipe) != nullptr) {
    folder = line.data();
    folder.erase(folder.find_last_not_of('\n') + 1);
  }
  return pipe != nullptr && pclose(pipe) == 0 ? folder : std::string();
}

// Writes the standard's defaults into a schema: unnamed properties and items may be anything.
// The server allows these only if the schema says so, because a model would add some.
void say_defaults(Json& schema) {
  if (schema.is_array()) {
    std::for_each(schema.begin(), schema.end(), say_defaults);
  }
  if (!schema.is_object()) {
    return;
  }
  if (schema.contains("properties") && !schema.contains("additionalProperties")) {
    schema["additionalProperties"] = true;
  }
  if (schema.contains("prefixItems") && !schema.contains("items")) {
    schema["items"] = true;
  }
  for (auto& [name, part] : schema.items()) {
    if (name == "properties" || name == "$defs") {
      for (auto& [member, value] : part.items()) {
        say_defaults(value);
      }
    } else if (name != "const" && name != "enum") {
      say_defaults(part);
    }
  }
}

// Returns: the same value with whole numbers as integers. If `turned`, the members of objects are
// in reverse order.
Json respelled(const Json& value, bool turned) {
  if (value.is_number_float() && value == value.get<int64_t>()) {
    return value.get<int64_t>();
  }
  if (!value.is_structured()) {
    return value;
  }
  Json out = value.is_object() ? Json::object() : Json::array();
  if (value.is_array()) {
    for (const Json& one : value) {
      out.push_back(respelled(one, turned));
    }
    return out;
  }
  std::vector<std::pair<std::string, Json>> members;
  for (const auto& [name, member] : value.items()) {
    members.emplace_back(name, respelled(member, turned));
  }
  if (turned) {
    std::reverse(members.begin(), members.end());
  }
  for (auto& [name, member] : members) {
    out[name] = std::move(member);
  }
  return out;
}

bool accepts_value(const TokenGrammar& grammar, const Json& value) {
  return accepts(grammar, value.dump()) || accepts(grammar, respelled(value, false).dump()) ||
         accepts(grammar, respelled(value, true).dump());
}

// Returns: why a grammar rejects a value although it is valid; empty if it should not.
// docs/api-http.md tells these to clients.
std::string narrower_because(const Json& schema, const Json& value) {
  const bool untyped = schema.is_object() && !schema.contains("type");
  const bool properties = schema.is_object() && schema.contains("properties");
  const bool recursive = properties && schema.dump().find(R"("$ref":"#")") != std::string::npos;
  if (untyped && properties && (recursive || !value.is_object())) {
    return "a schema of properties means an object";
  }
  if (untyped && (schema.contains("items") || schema.contains("prefixItems")) &&
      !value.is_array()) {
    return "a schema of items means an array";
  }
  if (schema.is_object() && schema.contains("pattern") && value.is_string()) {
    for (const char c : value.get<std::string>()) {
      if (static_cast<unsigned char>(c) < 0x20) {
        return "a pattern matches no character that JSON escapes";
      }
      if (static_cast<unsigned char>(c) >= 0x80) {
        return "\\s means the white space of ASCII";
      }
    }
  }
  if (value.is_number_float() && std::abs(value.get<double>()) > 1e18) {
    return "an integer has no exponent";
  }
  return "";
}

struct Counts {
  int refused = 0;
  int accepted = 0;
  int rejected = 0;
  std::map<std::string, int> narrower;
};

void check_group(const GrammarCompiler& compiler, const Json& group, const std::string& file,
                 Counts& counts) {
  Json schema = group.at("schema");
  say_defaults(schema);
  const Json& tests = group.at("tests");
  const absl::StatusOr<std::string> prepared = prepare_schema(schema);
  const auto compiled = prepared.ok()
                            ? compiler.compile({GrammarSpec::Kind::json_schema, *prepared})
                            : absl::StatusOr<CompiledGrammar>(prepared.status());
  if (!compiled.ok()) {
    EXPECT_NE(compiled.status().message(), "");
    counts.refused += static_cast<int>(tests.size());
    return;
  }
  for (const Json& test : tests) {
    const Json& value = test.at("data");
    const bool taken = accepts_value(*compiled->grammar, value);
    const std::string name = file + ": " + group.at("description").get<std::string>() + ": " +
                             test.at("description").get<std::string>() + ": " + value.dump() +
                             " under " + schema.dump();
    if (!test.at("valid").get<bool>()) {
      EXPECT_FALSE(taken) << name;
      ++counts.rejected;
    } else if (const std::string reason = taken ? "" : narrower_because(schema, value);
               !reason.empty()) {
      ++counts.narrower[reason];
    } else {
      EXPECT_TRUE(taken) << name;
      ++counts.accepted;
    }
  }
}

TEST(SchemaSuite, IsFollowedOrItsKeywordsAreRefused) {
  const std::filesystem::path folder = suite();
  const auto compiler = compiler_of_bytes();
  if (folder.empty() || compiler == nullptr) {
    GTEST_SKIP() << (folder.empty() ? "the suite cannot be downloaded" : "there is no xgrammar");
  }
  Counts counts;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    // Formats are annotations, which the suite takes for assertions there.
    const bool of_format = entry.path().parent_path().filename() == "format" &&
                           entry.path().parent_path().parent_path().filename() == "optional";
    if (entry.path().extension() == ".json" && !of_format) {
      const Json groups = Json::parse(std::ifstream(entry.path()));
      for (const Json& group : groups) {
        check_group(*compiler, group, entry.path().lexically_relative(folder).string(), counts);
      }
    }
  }
  std::cout << counts.accepted << " valid values are accepted, " << counts.rejected
            << " invalid ones rejected, " << counts.refused << " have a schema that is refused\n";
  for (const auto& [reason, count] : counts.narrower) {
    std::cout << count << " valid values are rejected: " << reason << "\n";
  }
  EXPECT_GE(counts.accepted, 150);
  EXPECT_GE(counts.rejected, 150);
}

// In the standard a format is an annotation. The grammar of a format is its notation. Rules it does
// not know stand in docs/api-http.md: days of months, minutes with a 60th second, labels that are
// too long, leading zeros.
bool may_be_wider(std::string_view format) {
  constexpr std::string_view kWider[] = {"date", "date-time", "time", "hostname", "ipv4"};
  return std::find(std::begin(kWider), std::end(kWider), format) != std::end(kWider);
}

TEST(SchemaSuite, FormatsAreNotations) {
  const std::filesystem::path folder = suite();
  const auto compiler = compiler_of_bytes();
  if (folder.empty() || compiler == nullptr) {
    GTEST_SKIP() << (folder.empty() ? "the suite cannot be downloaded" : "there is no xgrammar");
  }
  int formats = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "optional" / "format")) {
    int right = 0;
    int narrower = 0;
    int wider = 0;
    const std::string format = entry.path().stem().string();
    const Json groups = Json::parse(std::ifstream(entry.path()));
    for (const Json& group : groups) {
      Json schema = group.at("schema");
      schema["type"] = "string";
      const absl::StatusOr<std::string> prepared = prepare_schema(schema);
      ASSERT_TRUE(prepared.ok()) << schema << prepared.status();
      if (!Json::parse(*prepared).contains("format")) continue;  // there is no grammar of it
      ++formats;
      const auto compiled = compiler->compile({GrammarSpec::Kind::json_schema, *prepared});
      ASSERT_TRUE(compiled.ok()) << schema << compiled.status();
      for (const Json& test : group.at("tests")) {
        const Json& value = test.at("data");
        if (!value.is_string()) continue;
        const bool valid = test.at("valid").get<bool>();
        if (accepts_value(*compiled->grammar, value) == valid) {
          ++right;
        } else {
          ++(valid ? narrower : wider);
          EXPECT_TRUE(valid || may_be_wider(format)) << format << ": " << value;
        }
      }
    }
    std::cout << format << ": " << right << " as in the suite, " << narrower
              << " valid ones rejected, " << wider << " invalid ones accepted\n";
  }
  EXPECT_EQ(formats, 14);
}

}  // namespace
}  // namespace tessera

#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "nlohmann/json.hpp"
#include "tests/models/temporary_directory.h"
#include "text/tokenizer.h"

namespace tessera {

// Returns: a new folder. All of them are removed at the end of the test program.
inline std::filesystem::path scratch_folder(const std::string& name) {
  static const TemporaryDirectory kRoot;
  const std::filesystem::path folder = kRoot / name;
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  return folder;
}

struct GoldenCase {
  std::string text;
  std::vector<int32_t> ids;
};

// Reads texts separated by a marker line, and their ids, one line for each text.
inline std::vector<GoldenCase> read_golden(const std::filesystem::path& input) {
  const std::string marker = "\n__ggml_vocab_test__\n";
  const std::string texts = read_file(input);
  std::filesystem::path output = input;
  std::ifstream lines(output.replace_extension(".out"));
  std::vector<GoldenCase> cases;
  for (size_t at = 0; at < texts.size();) {
    const size_t end = texts.find(marker, at);
    if (end == std::string::npos) break;
    GoldenCase golden{texts.substr(at, end - at), {}};
    std::string line;
    std::getline(lines, line);
    std::istringstream numbers(line);
    for (int32_t id = 0; numbers >> id;) golden.ids.push_back(id);
    cases.push_back(golden);
    at = end + marker.size();
  }
  return cases;
}

// Returns: the bytes of a tokenizer's file in tests/golden/tokenizers.json.
inline std::string tokenizer_content(const nlohmann::json& kind) {
  if (kind.contains("content")) return kind.at("content").get<std::string>();
  std::string bytes;
  EXPECT_TRUE(absl::Base64Unescape(kind.at("base64").get<std::string>(), &bytes));
  return bytes;
}

inline std::vector<int32_t> encode_plain(const Tokenizer& tokenizer, const std::string& text) {
  const TextSegment segment{text, false};
  return tokenizer.encode({&segment, 1}, false);
}

}  // namespace tessera

#pragma once

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "models/text/tokenizer.h"

namespace tessera {

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  std::stringstream bytes;
  bytes << stream.rdbuf();
  return bytes.str();
}

inline void write_file(const std::filesystem::path& path, const std::string& bytes) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << bytes;
}

// A fresh folder; all of them are gone when the tests have run.
inline std::filesystem::path scratch_folder(const std::string& name) {
  struct Root {
    std::filesystem::path path =
        std::filesystem::temp_directory_path() / ("tessera-text-" + std::to_string(getpid()));
    ~Root() {
      std::error_code ignored;
      std::filesystem::remove_all(path, ignored);
    }
  };
  static const Root kRoot;
  const std::filesystem::path folder = kRoot.path / name;
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  return folder;
}

struct GoldenCase {
  std::string text;
  std::vector<int32_t> ids;
};

// Texts divided by a marker line, and ids one line a text.
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

inline std::vector<int32_t> encode_plain(const Tokenizer& tokenizer, const std::string& text) {
  const TextSegment segment{text, false};
  return tokenizer.encode({&segment, 1}, false);
}

}  // namespace tessera

#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace tessera {

// The sentencepiece library as the oracle of our own reading of its models. It stands behind this
// header because its own defines absl::string_view anew.
class SentencePieceLibrary {
 public:
  explicit SentencePieceLibrary(const std::filesystem::path& model);  // aborts if it cannot be read
  ~SentencePieceLibrary();

  std::vector<int32_t> encode(const std::string& text) const;

 private:
  struct Processor;
  std::unique_ptr<Processor> processor_;
};

}  // namespace tessera

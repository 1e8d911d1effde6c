#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace tessera {

// The sentencepiece library, as oracle of our own reader of its models. Only the .cpp includes its
// header, which defines absl::string_view a second time.
class SentencePieceLibrary {
 public:
  // aborts on a file that cannot be read
  explicit SentencePieceLibrary(const std::filesystem::path& model);
  ~SentencePieceLibrary();

  std::vector<int32_t> encode(const std::string& text) const;

 private:
  struct Processor;
  std::unique_ptr<Processor> processor_;
};

}  // namespace tessera

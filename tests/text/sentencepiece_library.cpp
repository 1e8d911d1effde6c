#include "tests/text/sentencepiece_library.h"

#include <sentencepiece_processor.h>

#include "base/check.h"

namespace tessera {

struct SentencePieceLibrary::Processor {
  sentencepiece::SentencePieceProcessor library;
};

SentencePieceLibrary::SentencePieceLibrary(const std::filesystem::path& model)
    : processor_(std::make_unique<Processor>()) {
  TESSERA_CHECK(processor_->library.Load(model.string()).ok(), model.c_str());
}

SentencePieceLibrary::~SentencePieceLibrary() = default;

std::vector<int32_t> SentencePieceLibrary::encode(const std::string& text) const {
  std::vector<int32_t> ids;
  TESSERA_CHECK(processor_->library.Encode(text, &ids).ok(), "the library refuses a text");
  return ids;
}

}  // namespace tessera

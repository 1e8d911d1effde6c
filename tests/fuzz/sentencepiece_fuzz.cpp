// Input: a sentencepiece tokenizer.model, "%%", a text.
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/tokenizer_use.h"
#include "text/piece_tokenizer.h"
#include "text/sentencepiece_model.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera;
  const auto parts = parts_of(text_of(data, size), 2);
  const auto model = SentencePieceModel::parse(parts[0]);
  if (!model.ok()) {
    TESSERA_CHECK(!model.status().message().empty(), "an error without a message");
    return 0;
  }
  for (const bool legacy : {false, true}) {
    TokenizerConfig config;
    config.legacy = legacy;
    const auto tokenizer = make_sentencepiece_tokenizer(*model, config);
    if (!tokenizer.ok()) continue;
    use_tokenizer(**tokenizer,
                  parts.size() > 1 ? parts[1] : "<s> ab  ba\xE2\x96\x81\xFFx \n</s>abab");
  }
  return 0;
}

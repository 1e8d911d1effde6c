// Input: tokenizer.json, "%%", tokenizer_config.json, "%%", a text.
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/input_files.h"
#include "tests/fuzz/tokenizer_use.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera;
  static InputFiles files;
  const auto parts = parts_of(text_of(data, size), 3);
  files.write("tokenizer.json", parts[0]);
  files.write("tokenizer_config.json", parts.size() > 1 ? parts[1] : "{}");
  const auto tokenizer = Tokenizer::load(files.folder());
  if (!tokenizer.ok()) {
    TESSERA_CHECK(!tokenizer.status().message().empty(), "an error without a message");
    return 0;
  }
  use_tokenizer(**tokenizer, parts.size() > 2 ? parts[2] : "<s> ab  ba\xE2\x96\x81\xFFx \n</s>1");
  return 0;
}

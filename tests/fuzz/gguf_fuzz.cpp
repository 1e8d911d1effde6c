// Input: a .gguf file, "%%", a text. Of an accepted file, every value and tensor, the
// configuration, the tokenizer and the chat template are read.
#include <algorithm>

#include "base/check.h"
#include "files/gguf/gguf_model.h"
#include "models/checkpoint/checkpoint.h"
#include "models/checkpoint/read_model_config.h"
#include "models/config/model_config.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/input_files.h"
#include "tests/fuzz/tokenizer_use.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace tessera {
namespace {

void read_all(const StoredTensor& tensor) {
  const int64_t values =
      std::ssize(tensor.bytes) / block_bytes(tensor.type) * block_values(tensor.type);
  std::vector<float> row(300);
  volatile float sum = 0;
  for (int64_t first = 0; first < values; first += 300) {
    row.resize(static_cast<size_t>(std::min<int64_t>(values - first, 300)));
    read_f32(tensor, first, row);
    sum = sum + row.front();
  }
}

}  // namespace
}  // namespace tessera

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera;
  static InputFiles files;
  const auto parts = parts_of(text_of(data, size), 2);
  const std::filesystem::path path = files.write("model.gguf", parts[0]);
  const auto model = GgufModel::open(path);
  if (!model.ok()) return 0;
  for (const auto& [key, value] : model->files().front().metadata()) (void)value.to_json().ok();
  for (const auto& [name, tensor] : model->files().front().tensors()) read_all(tensor);
  (void)find_chat_template(path).ok();
  if (const auto tokenizer = Tokenizer::load(path); tokenizer.ok()) {
    use_tokenizer(**tokenizer, parts.back());
  }
  const auto checkpoint = Checkpoint::open(path);
  if (!checkpoint.ok()) return 0;
  TESSERA_CHECK(read_model_config(path).ok(), "a checkpoint without a configuration");
  for (const std::string& name : checkpoint->names()) (void)checkpoint->describe(name);
  return 0;
}

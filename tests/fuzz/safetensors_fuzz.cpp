// Input: a .safetensors file. An accepted file is read to its last byte.
#include <algorithm>

#include "files/safetensors.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/input_files.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera;
  static InputFiles files;
  const auto file = SafetensorsFile::open(files.write("model.safetensors", text_of(data, size)));
  if (!file.ok()) return 0;
  volatile float sum = 0;
  for (const auto& [name, tensor] : file->tensors()) {
    const int64_t elements = static_cast<int64_t>(tensor.bytes.size()) / bytes_of(tensor.type);
    std::vector<float> row(static_cast<size_t>(std::min<int64_t>(elements, 64)));
    for (int64_t first = 0; is_readable(tensor.type) && first < elements; first += 64) {
      row.resize(static_cast<size_t>(std::min<int64_t>(elements - first, 64)));
      read_f32(tensor, first, row);
      sum = sum + row.front();
    }
  }
  return 0;
}

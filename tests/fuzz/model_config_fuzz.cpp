// Input: config.json, "%%", generation_config.json. An accepted config must have a size.
#include "base/check.h"
#include "kernels/cpu/cpu_backend.h"
#include "models/checkpoint/read_model_config.h"
#include "models/config/model_config.h"
#include "models/weights/tensor_table.h"
#include "models/weights/weights.h"
#include "tests/fuzz/fuzz_target.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera;
  const auto parts = parts_of(text_of(data, size), 2);
  const auto config = parse_model_config(parts[0], parts.size() > 1 ? parts[1] : "");
  if (!config.ok()) {
    TESSERA_CHECK(!config.status().message().empty(), "an error without a message");
    return 0;
  }
  const Backend& backend = cpu_backend(CpuIsa::scalar);
  TESSERA_CHECK(weight_bytes(*config, WeightFormat::f32, TensorType::f32, backend) > 0,
                "a model without weights");
  return 0;
}

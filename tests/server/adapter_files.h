#pragma once

#include <filesystem>

#include "models/lora/adapter.h"
#include "tests/models/random_adapter.h"
#include "tests/models/temporary_directory.h"
#include "tests/models/tiny_models.h"

namespace tessera {

// Directories of adapters that FakeEngine reads, each with the same number of bytes.
class AdapterFiles {
 public:
  static ModelConfig config() { return tiny_llama_config(); }

  std::filesystem::path write(const std::string& name, uint32_t seed) const {
    const std::filesystem::path path = directory_.path() / name;
    write_random_adapter(path, config(), {.seed = seed, .slots = {WeightSlot::qkv}});
    return path;
  }

 private:
  TemporaryDirectory directory_;
};

}  // namespace tessera

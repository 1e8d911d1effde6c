#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <utility>

#include "eval/run/model_host.h"
#include "kernels/cpu/cpu_backend.h"

namespace tessera {

// Tests that run trials of at most 640 tokens on the shipped model, three at once.
class ShippedModel : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    const std::filesystem::path model =
        std::filesystem::path(TESSERA_SOURCE_DIR) / "models/checkpoints/tessera-tiny";
    auto vocabulary = Tokenizer::load(model);
    ASSERT_TRUE(vocabulary.ok()) << vocabulary.status();
    tokenizer = *std::move(vocabulary);
    auto loaded = ModelHost::load({.model = model, .threads = 2, .batch = 3, .context = 640},
                                  cpu_backend(best_cpu_isa()));
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    host = *std::move(loaded);
  }
  static void TearDownTestSuite() { host = nullptr; }

  inline static std::unique_ptr<Tokenizer> tokenizer;
  inline static std::unique_ptr<ModelHost> host;
};

}  // namespace tessera

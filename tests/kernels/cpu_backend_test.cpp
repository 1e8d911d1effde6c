#include <gtest/gtest.h>

#include "kernels/cpu/backend.h"

namespace tessera {
namespace {

TEST(CpuBackend, OffersEveryOpForEveryInstructionSetItCanRun) {
  for (const CpuIsa isa : kCpuIsas) {
    if (!cpu_supports(isa)) {
      continue;
    }
    const Backend& backend = cpu_backend(isa);
    EXPECT_STREQ(backend.name, "cpu");
    EXPECT_EQ(backend.isa, name(isa));
    EXPECT_NE(backend.packed_weight_bytes, nullptr);
    EXPECT_NE(backend.pack_weight, nullptr);
    EXPECT_NE(backend.linear_scratch_bytes, nullptr);
    EXPECT_NE(backend.attention_scratch_bytes, nullptr);
    EXPECT_NE(backend.embed, nullptr);
    EXPECT_NE(backend.rms_norm, nullptr);
    EXPECT_NE(backend.linear, nullptr);
    EXPECT_NE(backend.rope, nullptr);
    EXPECT_NE(backend.silu_mul, nullptr);
    EXPECT_NE(backend.kv_resize, nullptr);
    EXPECT_NE(backend.kv_fork, nullptr);
    EXPECT_NE(backend.kv_store, nullptr);
    EXPECT_NE(backend.attention, nullptr);
  }
}

TEST(CpuBackend, RunsThePlainLoopsEverywhere) {
  EXPECT_TRUE(cpu_supports(CpuIsa::scalar));
}

TEST(CpuBackend, SupportsItsBestInstructionSetAndThoseBefore) {
  EXPECT_TRUE(cpu_supports(best_cpu_isa()));
  for (const CpuIsa isa : kCpuIsas) {
    EXPECT_EQ(cpu_supports(isa), isa <= best_cpu_isa());
  }
}

}  // namespace
}  // namespace tessera

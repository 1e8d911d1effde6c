#include "kernels/cpu/cpu_backend.h"

#include <cpuid.h>
#include <gtest/gtest.h>

#include "kernels/cpu/isa.h"

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
    EXPECT_NE(backend.low_rank, nullptr);
    EXPECT_NE(backend.rope, nullptr);
    EXPECT_NE(backend.silu_mul, nullptr);
    EXPECT_NE(backend.delta_rule, nullptr);
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

// A CPU of the Sapphire Rapids class; the system saves all of its registers.
CpuFacts all_facts() {
  return {.basic_ecx = bit_OSXSAVE | bit_AVX | bit_FMA | bit_F16C,
          .extended_ebx = bit_AVX2 | bit_AVX512F | bit_AVX512BW | bit_AVX512VL | bit_AVX512DQ,
          .extended_ecx = bit_AVX512VBMI | bit_AVX512VBMI2 | bit_AVX512VNNI,
          .extended_edx = bit_AVX512FP16 | kAmxTileBit | kAmxInt8Bit | kAmxBf16Bit,
          .further_eax = bit_AVX512BF16,
          .saved_state = 0x602e7,
          .may_use_tiles = true};
}

TEST(CpuBackend, TakesTileRegistersWhereTheCpuHasThemAndTheSystemLetsIt) {
  EXPECT_EQ(best_isa(all_facts()), CpuIsa::amx);
  CpuFacts facts = all_facts();
  facts.may_use_tiles = false;  // an older system, or one that refuses
  EXPECT_EQ(best_isa(facts), CpuIsa::avx512_fp16);
  facts = all_facts();
  for (const uint32_t bit : {kAmxTileBit, kAmxInt8Bit, kAmxBf16Bit}) {
    facts.extended_edx = all_facts().extended_edx & ~bit;
    EXPECT_EQ(best_isa(facts), CpuIsa::avx512_fp16);
  }
  facts.extended_edx = all_facts().extended_edx & ~uint32_t{bit_AVX512FP16};
  EXPECT_EQ(best_isa(facts), CpuIsa::avx512);
  facts = all_facts();
  for (const uint32_t bit : {0x20000u, 0x40000u}) {  // a virtual machine that hides their state
    facts.saved_state = 0x602e7 & ~bit;
    EXPECT_EQ(best_isa(facts), CpuIsa::avx512_fp16);
  }
}

TEST(CpuBackend, TakesAnInstructionSetThatTheCpuHasAllOfAndTheSystemSaves) {
  CpuFacts facts = all_facts();
  facts.extended_edx = all_facts().extended_edx & ~uint32_t{bit_AVX512FP16};
  EXPECT_EQ(best_isa(facts), CpuIsa::avx512);
  facts = all_facts();
  facts.extended_ecx = bit_AVX512VBMI | bit_AVX512VNNI;
  EXPECT_EQ(best_isa(facts), CpuIsa::avx2);
  facts = all_facts();
  facts.saved_state = 0x7;  // no masks and no wide vectors
  EXPECT_EQ(best_isa(facts), CpuIsa::avx2);
  facts.saved_state = 0x3;
  EXPECT_EQ(best_isa(facts), CpuIsa::scalar);
  facts = all_facts();
  facts.basic_ecx = bit_AVX | bit_FMA | bit_F16C;
  EXPECT_EQ(best_isa(facts), CpuIsa::scalar);
  EXPECT_EQ(best_isa({}), CpuIsa::scalar);
}

}  // namespace
}  // namespace tessera

// The ladder of the prefix cache where --kv-ladder is auto.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/engine.h"
#include "engine/kv/kv_presets.h"
#include "kernels/cpu/cpu_backend.h"

namespace tessera {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

ModelConfig model_of(int32_t head_dim) {
  ModelConfig model;
  model.layers = 2;
  model.heads = 4;
  model.kv_heads = 2;
  model.head_dim = head_dim;
  return model;
}

std::vector<KvFormat> ladder_of(const EngineOptions& options, int32_t head_dim,
                                const Backend& backend) {
  return kv_cache_options(options, model_of(head_dim), backend).ladder;
}

// Options with a check of k4v2r.
EngineOptions checked(float divergence) {
  EngineOptions options;
  options.format_checks = {{kKvK4V2R, divergence}};
  return options;
}

TEST(DefaultLadder, TakesNoStepThatWasNotMeasuredOnTheCheckpoint) {
  EXPECT_THAT(ladder_of({}, 64, cpu_backend(CpuIsa::scalar)), IsEmpty());
}

TEST(DefaultLadder, TakesItsStepWhereItHolds) {
  EXPECT_THAT(ladder_of(checked(0.03f), 64, cpu_backend(CpuIsa::scalar)), ElementsAre(kKvK4V2R));
  EXPECT_THAT(ladder_of(checked(0.06f), 64, cpu_backend(CpuIsa::scalar)), IsEmpty());
  EngineOptions smaller = checked(0.03f);
  smaller.kv = *find_kv_preset("k4v4");
  EXPECT_THAT(ladder_of(smaller, 64, cpu_backend(CpuIsa::scalar)), IsEmpty());
}

TEST(DefaultLadder, IsEmptyWhereItsFormatIsNotServed) {
  Backend plain_only = cpu_backend(CpuIsa::scalar);
  plain_only.serves_pages = [](KvFormat format, int32_t) { return !format.rotated; };
  EXPECT_THAT(ladder_of(checked(0.03f), 64, plain_only), IsEmpty());
  EXPECT_THAT(ladder_of(checked(0.03f), 24, cpu_backend(CpuIsa::scalar)), IsEmpty())
      << "blocks of 8 channels";
}

TEST(DefaultLadder, IsTheOneThatIsGiven) {
  EngineOptions options;
  options.kv_ladder = std::vector<KvFormat>{kKvK4V2};
  EXPECT_THAT(ladder_of(options, 64, cpu_backend(CpuIsa::scalar)), ElementsAre(kKvK4V2));
}

}  // namespace
}  // namespace tessera

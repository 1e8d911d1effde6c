#include "server/openai/cache_report.h"

#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "engine/kv/kv_presets.h"

namespace tessera {
namespace {

using nlohmann::json;

CacheReport report_of(const EngineStats& stats, const EngineOptions& options,
                      const PrefixOutline& outline) {
  return {.stats = stats, .options = options, .outline = outline, .presets = {"k8v4", "leankv"}};
}

TEST(CacheReport, TellsBytesByFormatTheLadderAndThePresets) {
  EngineStats stats{.pages_free = 5, .page_bytes = 100, .residual_bytes = 7, .formats = 1};
  stats.format_pages[0] = {kKvK8V4, 2, 3};
  EngineOptions options;
  options.kv_ladder = {{kKvK4V2}};
  const PrefixOutline outline;
  const json body = json::parse(print_cache(report_of(stats, options, outline)));
  EXPECT_EQ(body.at("formats"),
            json::parse(R"([{"format":"k8v4","private_bytes":200,"shared_bytes":300}])"));
  EXPECT_EQ(body.at("free_bytes"), 500);
  EXPECT_EQ(body.at("window_bytes"), 7);
  EXPECT_EQ(body.at("ladder"), json::parse(R"(["k4v2"])"));
  EXPECT_EQ(body.at("presets"), json::parse(R"(["k8v4","leankv"])"));
}

TEST(CacheReport, NamesThePresetThatCompressesBlocks) {
  EngineStats stats;
  stats.cache.compressed_blocks = 3;
  EngineOptions options;
  options.kv_ladder.emplace();
  options.kv_section_step = *find_kv_preset("replay-50");
  const PrefixOutline outline;
  const json body = json::parse(print_cache(report_of(stats, options, outline)));
  EXPECT_EQ(body.at("ladder"), json::parse(R"(["replay-50"])"));
  EXPECT_EQ(body.at("compressed_units"), 3);
}

TEST(CacheReport, TellsTheStoresOfEvictedBlocks) {
  EngineStats stats;
  stats.tiers.disk = {.limit = 100, .bytes = 70, .blocks = 2, .dropped_blocks = 1};
  stats.tiers.disk_read_blocks = 5;
  const PrefixOutline outline;
  const json body = json::parse(print_cache(report_of(stats, {}, outline)));
  EXPECT_EQ(body.at("tiers"),
            json::parse(R"([{"tier":"disk","limit_bytes":100,"bytes":70,"units":2,"read_units":5,
                             "dropped_units":1,"damaged_units":0}])"));
}

TEST(CacheReport, ListsTheBlocksOfItsOwnSaltOnly) {
  const uint64_t mine = PrefixOutline::salt_mark("mine");
  PrefixOutline outline;
  outline.blocks = {{.id = 9, .format = 1, .grade = 2, .locked = true},
                    {.id = 5, .salt = mine},
                    {.id = 7, .parent = 0},
                    {.id = 6, .parent = 1, .salt = mine}};
  const EngineStats stats;
  const EngineOptions options;
  CacheReport report = report_of(stats, options, outline);
  json tree = json::parse(print_cache(report)).at("tree");
  EXPECT_EQ(tree.at("units"), json::parse("[[9,-1,1,2,1],[7,0,0,0,0]]"));
  EXPECT_EQ(tree.at("units_of_other_salts"), 2);
  report.salt_mark = mine;
  tree = json::parse(print_cache(report)).at("tree");
  EXPECT_EQ(tree.at("units"), json::parse("[[5,-1,0,0,0],[6,0,0,0,0]]"));
}

TEST(CacheReport, IsBoundedInBytes) {
  PrefixOutline outline;
  constexpr int32_t kLargest = std::numeric_limits<int32_t>::max();
  outline.blocks.assign(PrefixOutline::kMaxBlocks,
                        {.id = kLargest, .format = 255, .grade = 255, .locked = true});
  EngineStats stats;
  stats.formats = kMaxKvLayouts;
  const EngineOptions options;
  CacheReport report = report_of(stats, options, outline);
  report.presets.clear();
  for (const KvPreset& preset : kv_choices()) {
    report.presets.push_back(preset.name);
  }
  EXPECT_LE(print_cache(report).size(), 40u * PrefixOutline::kMaxBlocks + 8192);
}

}  // namespace
}  // namespace tessera

#include "server/openai/cache_report.h"

#include <nlohmann/json.hpp>
#include <vector>

#include "server/json/print_json.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

Json formats_json(const EngineStats& stats) {
  Json list = Json::array();
  for (const KvFormatPages& pages :
       std::span(stats.format_pages).first(static_cast<std::size_t>(stats.formats))) {
    list.push_back({{"format", name_of(pages.format)},
                    {"private_bytes", pages.exclusive * stats.page_bytes},
                    {"shared_bytes", pages.shared * stats.page_bytes}});
  }
  return list;
}

Json tiers_json(const KvTierStats& stats) {
  Json list = Json::array();
  const auto add = [&list](const char* name, const BlockStoreStats& store, int64_t read) {
    if (store.limit > 0) {
      list.push_back({{"tier", name},
                      {"limit_bytes", store.limit},
                      {"bytes", store.bytes},
                      {"units", store.blocks},
                      {"read_units", read},
                      {"dropped_units", store.dropped_blocks},
                      {"damaged_units", store.damaged_blocks}});
    }
  };
  add("host", stats.host, stats.host_read_blocks);
  add("disk", stats.disk, stats.disk_read_blocks);
  return list;
}

Json checks_json(const EngineOptions& options) {
  Json list = Json::array();
  for (const FormatCheck& check : options.format_checks) {
    list.push_back({{"format", name_of(check.format)},
                    {"divergence", check.divergence},
                    {"holds", check.holds()}});
  }
  return list;
}

// A block is a list of five numbers, named by `fields`: a tree of a thousand blocks stays small.
Json tree_json(const PrefixOutline& outline, uint64_t salt_mark) {
  Json units = Json::array();
  std::vector<int32_t> index(outline.blocks.size(), -1);  // in `units`
  for (std::size_t i = 0; i < outline.blocks.size(); ++i) {
    const PrefixOutline::Block& block = outline.blocks[i];
    if (block.salt != salt_mark) {
      continue;
    }
    index[i] = static_cast<int32_t>(units.size());
    const int32_t parent = block.parent < 0 ? -1 : index[static_cast<std::size_t>(block.parent)];
    units.push_back({block.id, parent, block.format, block.grade, block.locked ? 1 : 0});
  }
  const auto others = static_cast<int64_t>(outline.blocks.size() - units.size());
  return {{"fields", {"id", "parent", "format", "grade", "used"}},
          {"units", std::move(units)},
          {"omitted_units", outline.omitted},
          {"units_of_other_salts", others}};
}

}  // namespace

std::string print_cache(const CacheReport& report) {
  const EngineStats& stats = report.stats;
  const PrefixCacheStats& cache = stats.cache;
  Json ladder = Json::array();
  for (const KvFormat format : report.options.kv_ladder.value_or(std::vector<KvFormat>())) {
    ladder.push_back(name_of(format));
  }
  if (report.options.kv_section_step.has_value()) {
    ladder.push_back(report.options.kv_section_step->name);
  }
  Json body{{"object", "cache"},
            {"unit_tokens", stats.prefix_block_tokens},
            {"units", cache.blocks},
            {"pinned_units", cache.pinned_blocks},
            {"bytes", cache.pages * stats.page_bytes},
            {"unused_bytes", cache.unlocked_pages * stats.page_bytes},
            {"query_tokens", stats.cache_query_tokens},
            {"hit_tokens", stats.cache_hit_tokens},
            {"entered_units", cache.inserted_blocks},
            {"demoted_units", cache.demoted_blocks},
            {"compressed_units", cache.compressed_blocks},
            {"evicted_units", cache.evicted_blocks},
            {"handed_over_units", cache.handed_over_blocks},
            {"free_bytes", stats.pages_free * stats.page_bytes},
            {"window_bytes", stats.residual_bytes},
            {"table_bytes", stats.table_bytes},
            {"tiers", tiers_json(stats.tiers)},
            {"formats", formats_json(stats)},
            {"ladder", std::move(ladder)},
            {"format_checks", checks_json(report.options)},
            {"presets", report.presets},
            {"tree", tree_json(report.outline, report.salt_mark)}};
  return print_json(body);
}

}  // namespace tessera

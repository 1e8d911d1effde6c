// tessera-cache-trace: measures the share of a trace's prompts that a prefix cache finds, by its
// bytes and its KV formats.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/kv/kv_presets.h"
#include "eval/measurement/svg.h"
#include "eval/program.h"
#include "eval/trace/replay.h"

namespace tessera {
namespace {

struct Options {
  std::string trace;
  uint64_t seed = 1;
  int32_t requests = TraceStatistics().requests;
  int32_t head_dim = 128;
  std::vector<double> millions{1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5};
  double host_millions = 0;
  std::vector<double> disk_millions{0};
  std::string plot;
};

std::vector<ReplaySubject> subjects() {
  const auto preset = [](const char* name) { return *find_kv_preset(name); };
  return {{"f16", preset("f16"), {}},
          {"k8v4", preset("k8v4"), {}},
          {"k8v4 + ladder", preset("k8v4"), {kKvK4V2}},
          {"k4v2", preset("k4v2"), {}}};
}

absl::StatusOr<std::vector<TraceRequest>> load(const Options& options) {
  if (options.trace.empty()) {
    TraceStatistics statistics;
    statistics.requests = options.requests;
    return generate_trace(statistics, options.seed);
  }
  if (options.trace == "-") {
    return read_trace(std::cin);
  }
  std::ifstream file(options.trace);
  if (!file) {
    return absl::NotFoundError("cannot read " + options.trace);
  }
  return read_trace(file);
}

// Shares of tokens found, by millions of tokens of the pool, or of the disk where it has several
// sizes.
struct Curve {
  std::string name;
  size_t subject = 0;
  std::vector<Svg::Point> points;
};

std::string draw(const std::vector<Curve>& curves, const char* bytes_of) {
  constexpr const char* kColors[] = {"#888", "#2a6fdb", "#d1495b", "#2e933c"};
  double max_x = 0;
  double max_y = 0;
  for (const Curve& curve : curves) {
    for (const Svg::Point& point : curve.points) {
      max_x = std::max(max_x, point.x);
      max_y = std::max(max_y, point.y);
    }
  }
  Svg svg(720, 420, "Tokens found in the prefix cache by its bytes");
  const Axis x = Axis::linear({0, max_x}, {60, 560});
  const Axis y = Axis::linear({0, max_y}, {370, 30});
  for (const double tick : x.ticks()) {
    svg.line({x.at(tick), 370}, {x.at(tick), 375}, "stroke:#333");
    svg.text({x.at(tick) - 8, 390}, x.label(tick), "");
  }
  for (const double tick : y.ticks()) {
    svg.line({60, y.at(tick)}, {560, y.at(tick)}, "stroke:#ddd");
    svg.text({20, y.at(tick) + 4}, y.label(tick), "");
  }
  svg.text({180, 410}, absl::StrCat(bytes_of, ", in the bytes of so many million f16 tokens"), "");
  svg.text({20, 18}, "share of prompt tokens found", "");
  double below = 0;  // where the last name stands: names of close curves stand below each other
  std::vector<const Curve*> ordered;
  for (const Curve& curve : curves) {
    ordered.push_back(&curve);
  }
  std::ranges::stable_sort(ordered, std::greater{},
                           [](const Curve* curve) { return curve->points.back().y; });
  for (const Curve* curve : ordered) {
    std::vector<Svg::Point> points;
    for (const Svg::Point& point : curve->points) {
      points.push_back({x.at(point.x), y.at(point.y)});
    }
    const std::string color = kColors[curve->subject];
    svg.path(points, "fill:none;stroke-width:2;stroke:" + color);
    below = std::max(below + 14, points.back().y + 4);
    svg.text({570, below}, curve->name, "fill:" + color);
  }
  return svg.finish();
}

void print_row(const ReplaySubject& subject, double pool, double disk, const ReplayResult& result) {
  std::printf("%-14s %8.2f %8.2f %5d %12lld %8.4f %8.4f %8.4f %8.4f %10lld %10lld\n",
              subject.name.c_str(), pool, disk, result.prefix_block_tokens,
              static_cast<long long>(result.hit_tokens), result.hit_share(),
              result.share_of(result.host_tokens), result.share_of(result.disk_tokens),
              static_cast<double>(result.low_tokens) /
                  static_cast<double>(std::max<int64_t>(1, result.hit_tokens)),
              static_cast<long long>(result.cache.evicted_blocks),
              static_cast<long long>(result.cache.demoted_blocks));
  std::fflush(stdout);
}

absl::Status replay_all(const Options& options) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<TraceRequest> trace, load(options));
  const auto bytes_of = [&](double millions) {
    return static_cast<int64_t>(millions * 1e6 * 2 * 2 * options.head_dim);
  };
  std::printf("%-14s %8s %8s %5s %12s %8s %8s %8s %8s %10s %10s\n", "", "pool M", "disk M", "unit",
              "found", "share", "host", "disk", "demoted", "evictions", "demotions");
  const bool by_disk = options.disk_millions.size() > 1;
  std::vector<Curve> curves;
  const std::vector<ReplaySubject> known = subjects();
  for (size_t i = 0; i < known.size(); ++i) {
    for (const double pool : options.millions) {
      for (const double disk : options.disk_millions) {
        const ReplayBytes bytes{bytes_of(pool), bytes_of(options.host_millions), bytes_of(disk)};
        TESSERA_ASSIGN_OR_RETURN(const auto result,
                                 replay(trace, known[i], options.head_dim, bytes));
        print_row(known[i], pool, disk, result);
        const std::string name = by_disk && options.millions.size() > 1
                                     ? absl::StrCat(known[i].name, ", pool ", pool)
                                     : known[i].name;
        if (curves.empty() || curves.back().name != name) {
          curves.push_back({name, i, {}});
        }
        curves.back().points.push_back({by_disk ? disk : pool, result.hit_share()});
      }
    }
  }
  if (!options.plot.empty()) {
    std::ofstream file(options.plot);
    if (!(file << draw(curves, by_disk ? "disk" : "pool")).flush()) {
      return absl::NotFoundError("cannot write " + options.plot);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<int> run(int argc, char** argv) {
  Options options;
  CLI::App app("Replays a trace of requests through the prefix cache, without a model.");
  app.add_option(
      "--trace", options.trace,
      "JSON lines in Mooncake's format, - for standard input; default: a generated trace");
  app.add_option("--seed", options.seed, "seed of the generated trace")->capture_default_str();
  app.add_option("--requests", options.requests, "of the generated trace")->capture_default_str();
  app.add_option("--head-dim", options.head_dim)->capture_default_str();
  app.add_option("--tokens", options.millions, "pools: the bytes of so many million f16 tokens")
      ->capture_default_str();
  app.add_option("--host", options.host_millions,
                 "a tier in host memory, of the bytes of so many million f16 tokens");
  app.add_option(
      "--disk", options.disk_millions,
      "likewise a tier on disk; of several sizes, which a plot shows from left to right");
  app.add_option("--plot", options.plot, "an SVG file to write");
  CLI11_PARSE(app, argc, argv);
  TESSERA_RETURN_IF_ERROR(replay_all(options));
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  return tessera::run_program("tessera-cache-trace", tessera::run, argc, argv);
}

#include "load/run/monitor.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>

#include "load/run/load_run.h"

namespace tessera::load {
namespace {

constexpr double kPeriod = 0.25;         // seconds between looks at SIGINT and at the end
constexpr double kMetricsPeriod = 1;     // seconds
constexpr size_t kMaxSamples = 100'000;  // later ones are not kept
constexpr size_t kMaxMetrics = 1 << 20;  // bytes

// A response that nothing depends on.
class Ignored final : public HttpResponse {
 public:
  void head(const HttpHead& /*head*/) override {}
  void body(std::string_view /*bytes*/) override {}
  void ended(CallEnd /*how*/, const std::string& /*message*/) override {}
};

}  // namespace

// Keeps one reading of /metrics.
class Monitor::Reading final : public HttpResponse {
 public:
  Reading(Monitor& monitor, double time) : monitor_(monitor), time_(time) {}

  void head(const HttpHead& head) override { status_ = head.status; }
  void body(std::string_view bytes) override {
    text_.append(bytes.substr(0, kMaxMetrics - std::min(kMaxMetrics, text_.size())));
  }
  void ended(CallEnd how, const std::string& /*message*/) override {
    if (how == CallEnd::complete && status_ == 200 && monitor_.samples_.size() < kMaxSamples) {
      monitor_.samples_.push_back(read_metrics(text_));
      monitor_.samples_.back().time = time_;
    }
  }

 private:
  Monitor& monitor_;
  double time_;
  int status_ = 0;
  std::string text_;
};

Monitor::Monitor(HttpLoop& loop, Runner& runner, const RunStatistics& statistics,
                 const Options& options)
    : loop_(loop),
      runner_(runner),
      statistics_(statistics),
      options_(options),
      shown_(isatty(STDERR_FILENO) != 0),
      next_flush_(options.flush_period) {}

Monitor::~Monitor() {
  if (shown_) {
    std::fputs("\r\x1b[K", stderr);
  }
}

void Monitor::start() {
  loop_.at(loop_.now() + kPeriod, [this] { tick(); });
}

void Monitor::tick() {
  if (runner_.finished()) {
    return;
  }
  if (interrupted != 0) {
    runner_.stop();
  }
  if (runner_.elapsed() >= next_) {
    next_ = runner_.elapsed() + kMetricsPeriod;
    draw();
    if (options_.reads_metrics) {
      loop_.call({.target = "/metrics", .body = {}, .post = false, .fault = {}},
                 std::make_shared<Reading>(*this, runner_.elapsed()));
    }
  }
  if (options_.flush_period > 0 && runner_.elapsed() >= next_flush_) {
    next_flush_ += options_.flush_period;
    flush();
  }
  start();
}

void Monitor::flush() {
  loop_.call({.target = "/v1/cache/flush", .body = "{}", .post = true, .fault = {}},
             std::make_shared<Ignored>());
}

void Monitor::draw() const {
  if (!shown_) {
    return;
  }
  const Measures& all = statistics_.all();
  std::fprintf(
      stderr,
      "\r\x1b[K%.0f s: %lld requests done, %zu in flight, %.1f tokens/s, TTFT p90 %.0f ms, "
      "%lld errors, %lld wrong or missed",
      runner_.elapsed(), static_cast<long long>(all.requests), runner_.in_flight(),
      static_cast<double>(all.output_tokens) / std::max(runner_.elapsed(), 1e-3),
      1e3 * all.ttft.quantile(0.9), static_cast<long long>(all.requests - all.ok),
      static_cast<long long>(all.wrong + all.missed));
  std::fflush(stderr);
}

}  // namespace tessera::load

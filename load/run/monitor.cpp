#include "load/run/monitor.h"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <utility>

#include "load/run/load_run.h"

namespace tessera::load {
namespace {

constexpr double kPeriod = 0.25;         // seconds between looks at SIGINT and at the end
constexpr double kMetricsPeriod = 1;     // seconds
constexpr size_t kMaxSamples = 100'000;  // later ones are not kept

}  // namespace

Monitor::Monitor(EventLoop& loop, Server& server, Runner& runner, const RunStatistics& statistics,
                 Options options)
    : loop_(loop),
      server_(server),
      runner_(runner),
      statistics_(statistics),
      options_(std::move(options)),
      shown_(isatty(STDERR_FILENO) != 0),
      next_flush_(options_.flush_period) {}

Monitor::~Monitor() {
  if (shown_) {
    std::fputs("\r\x1b[K", stderr);
  }
}

void Monitor::start() {
  loop_.at(loop_.now() + kPeriod, [this] { tick(); });
}

void Monitor::tick() {
  watch_processes();
  if (runner_.finished()) {
    return;
  }
  if (interrupted != 0) {
    runner_.stop();
  }
  send_signals();
  if (runner_.elapsed() >= next_) {
    next_ = runner_.elapsed() + kMetricsPeriod;
    draw();
    sample();
  }
  if (options_.flush_period > 0 && runner_.elapsed() >= next_flush_) {
    next_flush_ += options_.flush_period;
    server_.flush_cache([](const absl::Status&) {});  // a killed server cannot
  }
  start();
}

void Monitor::sample() {
  const double time = runner_.elapsed();
  const auto keep = [this, time](ServerReading reading) {
    if (samples_.size() >= kMaxSamples) return;
    reading.time = time;
    if (options_.process) reading.resident_bytes = options_.process->resident_bytes();
    samples_.push_back(std::move(reading));
  };
  if (!options_.reads_metrics) {
    if (options_.process) keep({});
    return;
  }
  server_.read_metrics([keep](std::optional<ServerReading> reading) {
    if (reading) keep(*std::move(reading));
  });
}

void Monitor::send_signals() {
  while (sent_.size() < options_.signals.size() && status_.ok() &&
         runner_.elapsed() >= options_.signals[sent_.size()].time) {
    const int number = options_.signals[sent_.size()].number;
    const absl::StatusOr<ProcessId> process = options_.process->send(number);
    if (!process.ok()) {
      status_ = process.status();
      return;
    }
    sent_.push_back({.number = number, .process = *process, .sent = runner_.elapsed()});
  }
}

void Monitor::watch_processes() {
  for (SentSignal& signal : sent_) {
    if (signal.ended < 0 && !is_running(signal.process)) {
      signal.ended = runner_.elapsed();
    }
  }
}

bool Monitor::was_killed(const RequestRecord& record) {
  bool killed = false;
  for (SentSignal& signal : sent_) {
    if (record.ok() && signal.ended >= 0 && signal.answered < 0 && record.sent >= signal.ended) {
      signal.answered = record.end;
    }
    killed = killed || (signal.number == SIGKILL && record.intended <= signal.sent &&
                        record.end >= signal.sent);
  }
  return killed && (record.outcome.error == ErrorClass::cut_short ||
                    record.outcome.error == ErrorClass::connection_lost);
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

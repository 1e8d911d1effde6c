#include "load/stats/measures.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace tessera::load {
namespace {

constexpr size_t kMaxSeconds =
    7 * 24 * 3600;  // of the timeline; later seconds are added to the last

double value_of(const RequestRecord& record, SloLimit::Measure measure) {
  switch (measure) {
    case SloLimit::Measure::ttft:
      return record.ttft();
    case SloLimit::Measure::tpot:
      return record.tpot();
    case SloLimit::Measure::e2e:
      return record.e2e();
  }
  return 0;
}

const char* name_of(SloLimit::Measure measure) {
  switch (measure) {
    case SloLimit::Measure::ttft:
      return "ttft";
    case SloLimit::Measure::tpot:
      return "tpot";
    case SloLimit::Measure::e2e:
      return "e2e";
  }
  return "";
}

bool parse_limit(const std::string& text, SloLimit& limit) {
  const std::vector<std::string> sides = absl::StrSplit(text, '=');
  const std::vector<std::string> left = absl::StrSplit(sides[0], "_p");
  if (sides.size() != 2 || left.size() != 2) {
    return false;
  }
  bool known = false;
  for (const auto measure :
       {SloLimit::Measure::ttft, SloLimit::Measure::tpot, SloLimit::Measure::e2e}) {
    if (left[0] == name_of(measure)) {
      limit.measure = measure;
      known = true;
    }
  }
  double percent = 0;
  absl::string_view time = sides[1];
  const bool milliseconds = absl::ConsumeSuffix(&time, "ms");
  const bool seconds = !milliseconds && absl::ConsumeSuffix(&time, "s");
  const bool valid = (milliseconds || seconds) && absl::SimpleAtod(left[1], &percent) &&
                     absl::SimpleAtod(time, &limit.seconds);
  limit.share = percent / 100;
  limit.seconds *= milliseconds ? 1e-3 : 1;
  return known && valid && percent > 0 && percent < 100 && limit.seconds > 0;
}

}  // namespace

absl::StatusOr<std::vector<SloLimit>> SloLimit::parse(const std::string& text) {
  std::vector<SloLimit> limits;
  const std::vector<std::string> parts = absl::StrSplit(text, ',', absl::SkipEmpty());
  for (const std::string& part : parts) {
    SloLimit limit;
    if (!parse_limit(part, limit)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--slo: '", part, "' is not {ttft,tpot,e2e}_pPERCENT=TIME, such as ttft_p90=500ms"));
    }
    limits.push_back(limit);
  }
  return limits;
}

std::string SloLimit::text() const {
  return absl::StrCat(name_of(measure), "_p", share * 100, "=", seconds * 1000, "ms");
}

const Histogram& Measures::of(SloLimit::Measure measure) const {
  switch (measure) {
    case SloLimit::Measure::ttft:
      return ttft;
    case SloLimit::Measure::tpot:
      return tpot;
    case SloLimit::Measure::e2e:
      break;
  }
  return e2e;
}

void Measures::add(const RequestRecord& record, const std::vector<SloLimit>& slos) {
  wrong += record.verdict == Verdict::wrong ? 1 : 0;
  missed += record.verdict == Verdict::missed ? 1 : 0;
  if (record.faulty) {
    ++injected;
    return;
  }
  ++requests;
  const auto error = static_cast<size_t>(record.outcome.error);
  if (++errors[error] == 1) {
    first_messages[error] = record.outcome.message;
  }
  if (record.sent >= 0) lag.add(record.sent - record.intended);
  if (record.outcome.retry_after) {
    retry_after_sum += *record.outcome.retry_after;
    ++retry_after_count;
  }
  if (!record.ok()) {
    return;
  }
  ++ok;
  checked += record.verdict != Verdict::unchecked ? 1 : 0;
  correct += record.verdict == Verdict::correct ? 1 : 0;
  differs += record.verdict == Verdict::differs ? 1 : 0;
  output_tokens += record.output_tokens();
  if (record.usage) {
    prompt_tokens += record.usage->prompt_tokens;
    cached_tokens += std::max<int64_t>(record.usage->cached_tokens, 0);
    if (record.usage->kv_bytes >= 0) {
      kv_bytes += record.usage->kv_bytes;
      ++kv_requests;
    }
  }
  e2e.add(record.e2e());
  if (!record.texts.empty()) {
    ttft.add(record.ttft());
    if (record.usage && record.usage->cached_tokens > 0 &&
        static_cast<double>(record.usage->cached_tokens) >=
            kCachedShare * static_cast<double>(record.usage->prompt_tokens)) {
      ttft_cached.add(record.ttft());
    }
  }
  if (record.tpot() >= 0) tpot.add(record.tpot());
  for (size_t i = 1; i < record.texts.size(); ++i) {
    itl.add(record.texts[i] - record.texts[i - 1]);
  }
  const bool within = std::all_of(slos.begin(), slos.end(), [&](const SloLimit& slo) {
    return value_of(record, slo.measure) <= slo.seconds;
  });
  within_slo += within && !record.failed_check() ? 1 : 0;
}

void RunStatistics::add(const RequestRecord& record) {
  end_ = std::max(end_, record.end);
  TimelineSecond& started = second(record.intended);
  ++started.started;
  if (record.ok() && !record.texts.empty()) {
    started.ttft_sum += record.ttft();
    ++started.ttft_count;
  }
  TimelineSecond& ended = second(record.end);
  ++(record.ok() ? ended.finished : ended.failed);
  if (record.ok()) ended.output_tokens += record.output_tokens();
  if (record.failed_check() && wrong_.size() < kShownWrong) {
    wrong_.push_back(record);
    wrong_.back().texts.clear();
  }
  if (record.intended >= warmup_ || record.failed_check()) {
    all_.add(record, slos_);
    by_workload_[record.workload].add(record, slos_);
  }
}

TimelineSecond& RunStatistics::second(double time) {
  const size_t at = std::min(static_cast<size_t>(std::max(time, 0.0)), kMaxSeconds - 1);
  if (timeline_.size() <= at) {
    timeline_.resize(at + 1);
  }
  return timeline_[at];
}

double RunStatistics::seconds() const {
  return std::max(end_ - warmup_, 1e-9);
}

bool RunStatistics::within_slos() const {
  return all_.ok > 0 && std::all_of(slos_.begin(), slos_.end(), [this](const SloLimit& slo) {
           return all_.of(slo.measure).quantile(slo.share) <= slo.seconds;
         });
}

}  // namespace tessera::load

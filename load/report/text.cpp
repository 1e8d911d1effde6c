#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "load/report/report.h"

namespace tessera::load {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kShownChecks = 5;

std::string latency_row(const char* label, const Json& measure) {
  if (measure["count"] == 0) {
    return "";
  }
  std::string row = absl::StrFormat("%-12s", label);
  for (const char* percentile : {"p50", "p90", "p99", "p99.9"}) {
    const Json& at = measure[percentile];
    absl::StrAppendFormat(&row, " %8.1f [%.1f, %.1f]", 1e3 * at["value"].get<double>(),
                          1e3 * at["low"].get<double>(), 1e3 * at["high"].get<double>());
  }
  return row + "\n";
}

std::string answers_line(const Json& report) {
  const Json& answers = report["answers"];
  if (answers["checked"] == 0) {
    return "answers     none checked\n";
  }
  std::string line =
      absl::StrFormat("answers     %d checked: %d correct, %d missed, %d wrong",
                      answers["checked"].get<int64_t>(), answers["correct"].get<int64_t>(),
                      answers["missed"].get<int64_t>(), answers["wrong"].get<int64_t>());
  if (answers["differs"] != 0) {
    absl::StrAppend(&line, ", ", answers["differs"].get<int64_t>(), " differ from the idle answer");
  }
  return line + "\n";
}

std::string server_line(const Json& server) {
  std::string line;
  if (!server["prefix_hit_rate"].is_null()) {
    absl::StrAppendFormat(&line, ", prefix cache hits %.1f %%",
                          100 * server["prefix_hit_rate"].get<double>());
  }
  if (const double bytes = server["most_kv_bytes"].get<double>(); bytes > 0) {
    absl::StrAppendFormat(&line, ", KV up to %.1f MiB", bytes / (1 << 20));
  }
  if (!server["preemptions"].is_null()) {
    absl::StrAppendFormat(&line, ", %.0f preemptions", server["preemptions"].get<double>());
  }
  if (const Json& steps = server["kv_tightenings"]; !steps.is_null() && steps.get<double>() > 0) {
    absl::StrAppendFormat(&line, ", budgets tightened %.0f times", steps.get<double>());
  }
  if (const Json& growth = server["memory_growth_bytes"]; !growth.is_null()) {
    absl::StrAppendFormat(&line, ", memory grew by %.1f MiB", growth.get<double>() / (1 << 20));
  }
  if (server["gone"].get<bool>()) {
    absl::StrAppend(&line, ", gone after the run");
  }
  return line.empty() ? "" : absl::StrCat("server      ", line.substr(2), "\n");
}

std::string signal_lines(const Json& signals) {
  std::string text;
  for (const Json& signal : signals) {
    const auto sent = signal["sent"].get<double>();
    absl::StrAppendFormat(&text, "SIG%s at %.1f s: ", signal["signal"].get<std::string>(), sent);
    for (const char* what : {"ended", "answered"}) {
      const auto time = signal[what].get<double>();
      absl::StrAppend(&text, what,
                      time < 0 ? " never" : absl::StrFormat(" after %.1f s", time - sent),
                      what == std::string_view("ended") ? ", " : "\n");
    }
  }
  return text;
}

std::string sweep_lines(const Json& sweep) {
  std::string text =
      "requests/s  TTFT p90, ms  correct  cached  KV bytes of a request  most KV bytes\n";
  for (const Json& point : sweep["points"]) {
    const Json& bytes = point["kv_bytes_per_request"];
    absl::StrAppendFormat(
        &text, "%10g  %12.1f  %7.3f  %6.3f  %21.0f  %13.0f%s\n", point["rate"].get<double>(),
        1e3 * point["ttft_p90"]["value"].get<double>(),
        point["answers"]["correct_share"]["value"].get<double>(),
        point["cached_share"].get<double>(), bytes.is_null() ? 0.0 : bytes.get<double>(),
        point["most_kv_bytes"].get<double>(), point["passed"].get<bool>() ? "" : "  failed");
  }
  if (sweep.contains("highest_rate")) {
    absl::StrAppendFormat(&text, "sweep       highest rate within the SLOs: %g requests/s\n",
                          sweep["highest_rate"].get<double>());
  }
  return text;
}

}  // namespace

std::string print_text(const Json& report) {
  const Json& requests = report["requests"];
  const Json& throughput = report["throughput"];
  std::string text = absl::StrFormat(
      "%s at %s: %d requests in %.1f s, %d ok\n", report["model"].get<std::string>(),
      report["url"].get<std::string>(), requests["finished"].get<int64_t>(),
      report["seconds"].get<double>(), requests["ok"].get<int64_t>());
  for (const auto& [error, count] : requests["errors"].items()) {
    absl::StrAppendFormat(&text, "error       %s: %d, first: %s\n", error, count.get<int64_t>(),
                          requests["first_messages"][error].get<std::string>());
  }
  if (const auto faults = requests["injected_faults"].get<int64_t>(); faults > 0) {
    absl::StrAppend(&text, "faults      ", faults, " injected\n");
  }
  absl::StrAppendFormat(&text,
                        "throughput  %.2f requests/s, %.1f output tokens/s, %.1f prompt tokens/s\n",
                        throughput["requests_per_s"]["value"].get<double>(),
                        throughput["output_tokens_per_s"]["value"].get<double>(),
                        throughput["prompt_tokens_per_s"].get<double>());
  absl::StrAppend(&text,
                  "ms             p50                  p90                  p99       "
                  "           p99.9, with 95 % intervals\n");
  for (const auto& [label, name] :
       {std::pair{"TTFT", "ttft"}, std::pair{"  80% cached", "ttft_cached"},
        std::pair{"ITL", "itl"}, std::pair{"TPOT", "tpot"}, std::pair{"E2E", "e2e"},
        std::pair{"client lag", "client_lag"}}) {
    absl::StrAppend(&text, latency_row(label, report["latency"][name]));
  }
  if (const Json& goodput = report["goodput"]; !goodput.is_null()) {
    absl::StrAppendFormat(&text, "goodput     %.2f requests/s, %.1f %% within the SLOs\n",
                          goodput["requests_per_s"].get<double>(),
                          100 * goodput["share"]["value"].get<double>());
  }
  absl::StrAppend(&text, answers_line(report), server_line(report["server"]),
                  signal_lines(report["server"]["signals"]));
  if (report.contains("sweep")) {
    absl::StrAppend(&text, sweep_lines(report["sweep"]));
  }
  size_t shown = 0;
  for (const Json& failed : report["failed_checks"]) {
    if (++shown > kShownChecks) {
      absl::StrAppend(&text, "and more, see the report of --json\n");
      break;
    }
    absl::StrAppend(&text, failed["verdict"].get<std::string>(), ": request ",
                    failed["request"].get<int64_t>(), " (", failed["workload"].get<std::string>(),
                    "): ", failed["why"].get<std::string>(),
                    "; repeat: ", failed["repeat"].get<std::string>(), "\n  question: ...",
                    failed["question"].get<std::string>(),
                    "\n  answer: ", failed["answer"].get<std::string>(), "\n");
  }
  for (const Json& failure : report["failures"]) {
    absl::StrAppend(&text, "FAILED      ", failure.get<std::string>(), "\n");
  }
  return text;
}

}  // namespace tessera::load

#include "load/command_line.h"

#include <CLI/CLI.hpp>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"

namespace tessera::load {
namespace {

constexpr double kDefaultSeconds = 30;

// Options whose text is parsed after CLI11 has read them.
struct Texts {
  std::vector<std::string> workloads;
  std::string process = "poisson";
  std::string sweep;
  std::string rates;
  std::string ramp;
  std::string slos;
  std::string faults;
  std::string process_place;
  std::string signals;
  std::optional<double> max_growth;  // MiB
};

void declare_load(CLI::App& app, LoadOptions& options, Texts& texts) {
  app.add_option(
      "WORKLOAD", texts.workloads,
      absl::StrCat("NAME[:SETTING=VALUE]..., several with weight=W [chat]:\n", describe_workloads(),
                   "  all: name, weight, salt, priority, kv, temperature. A length is N, "
                   "MIN-MAX or ~MEDIAN"));
  app.add_option("--rate", options.rate, "open loop: sessions started a second")
      ->check(CLI::PositiveNumber);
  app.add_option("--arrivals", texts.process, "constant, poisson or gamma [poisson]")
      ->type_name("NAME");
  app.add_option("--burstiness", options.arrivals.burstiness,
                 "shape of the gamma distribution, below 1: bursts [1]")
      ->check(CLI::Range(1e-3, 1e6));
  app.add_option("--ramp", texts.ramp, "RATE,SECONDS: the rate grows from RATE to --rate so fast")
      ->type_name("RATE,SECONDS");
  app.add_option("--concurrency", options.concurrency, "closed loop: sessions at once")
      ->check(CLI::Range(1, 1'000'000));
  app.add_option("--sweep", texts.sweep, "A..B: find the highest rate within --slo")
      ->type_name("A..B");
  app.add_option("--rates", texts.rates, "A,B,C: one run at each of these rates")
      ->type_name("A,B,C");
  app.add_option("--slo", texts.slos, "limits, as ttft_p90=500ms,tpot_p50=50ms,e2e_p99=10s")
      ->type_name("LIMITS");
  app.add_option("--duration", options.duration, "seconds in which requests start [30]")
      ->check(CLI::PositiveNumber);
  app.add_option("--requests", options.requests, "requests to start [any number]")
      ->check(CLI::Range(uint64_t{1}, uint64_t{1} << 60));
  app.add_option("--warmup", options.warmup, "first seconds that no latency is taken from [0]")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--seed", options.seed, "seed of arrivals, texts and faults [0]");
  app.add_option("--first-session", options.first_session, "number of the first session [0]");
  app.add_option("--faults", texts.faults,
                 "shares of misbehaving clients, as close@first=0.05,freeze@sent=0.02,slow=0.02")
      ->type_name("FAULTS");
}

void declare_server(CLI::App& app, LoadOptions& options, Texts& texts) {
  app.add_option("--url", options.url,
                 "http://HOST[:PORT][/PREFIX], or grpc://HOST:PORT of tessera-server "
                 "[http://127.0.0.1:8080]")
      ->type_name("URL");
  app.add_option("--api-key", options.api_key, "sent as Authorization: Bearer KEY")
      ->type_name("KEY")
      ->envname("TESSERA_LOAD_API_KEY");
  app.add_option("--model", options.model, "name of the model [the first of /v1/models]")
      ->type_name("NAME");
  app.add_option("--timeout", options.timeout, "seconds for one request [600]")
      ->check(CLI::PositiveNumber);
  app.add_option("--freeze-time", options.freeze, "seconds that a frozen client stays [5]")
      ->check(CLI::PositiveNumber);
  app.add_option("--max-in-flight", options.max_in_flight,
                 "requests at once; later ones wait, and their latency counts [8192]")
      ->check(CLI::Range(1, 1'000'000));
  app.add_option("--settle", options.settle,
                 "seconds until the server must be idle after a run [10]")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--process", texts.process_place,
                 "the server's process on this machine, whose memory is measured: PID, or a FILE "
                 "that holds it")
      ->type_name("PID|FILE");
  app.add_option("--kill", texts.signals, "signals to --process during the run, as TERM@5,KILL@20")
      ->type_name("SIGNAL@SECONDS");
  app.add_option("--max-growth", texts.max_growth,
                 "MiB that the server's memory may grow after the warm-up [any number]")
      ->check(CLI::NonNegativeNumber);
  app.add_flag("--flush-cache", options.flush_cache, "empty the prefix cache before each run");
  app.add_option("--flush-every", options.flush_period,
                 "seconds between flushes of the prefix cache during a run [never]")
      ->check(CLI::PositiveNumber);
  app.add_option("--min-correct", options.min_correct,
                 "share of checked answers that the model must not miss [1]")
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--json", options.json, "write the report here")->type_name("FILE");
  app.add_option("--html", options.html, "write a page with plots here")->type_name("FILE");
  app.add_option("--records", options.records,
                 "write each request as a JSON line, and go on from it after an interruption")
      ->type_name("FILE");
}

// Parses "A..B" or "A,B".
absl::StatusOr<LoadOptions::Range> parse_range(const std::string& text, const char* separator,
                                               const char* flag) {
  LoadOptions::Range range;
  const size_t at = text.find(separator);
  if (at == std::string::npos || !absl::SimpleAtod(text.substr(0, at), &range.low) ||
      !absl::SimpleAtod(text.substr(at + std::string_view(separator).size()), &range.high) ||
      !(range.low > 0 && range.high > 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag, ": '", text, "' is not two numbers above 0 with ", separator));
  }
  return range;
}

absl::StatusOr<std::vector<double>> parse_rates(const std::string& text) {
  std::vector<double> rates;
  const std::vector<std::string> parts = absl::StrSplit(text, ',', absl::SkipEmpty());
  for (const std::string& part : parts) {
    double rate = 0;
    if (!absl::SimpleAtod(part, &rate) || !(rate > 0)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--rates: '", part, "' is not a number above 0"));
    }
    rates.push_back(rate);
  }
  return rates;
}

absl::Status parse_texts(const Texts& texts, LoadOptions& options) {
  for (const std::string& text : texts.workloads) {
    TESSERA_ASSIGN_OR_RETURN(WorkloadSpec spec, WorkloadSpec::parse(text));
    options.workloads.push_back(std::move(spec));
  }
  if (options.workloads.empty()) {
    options.workloads.push_back({.text = "chat", .name = "chat", .settings = {}});
  }
  TESSERA_ASSIGN_OR_RETURN(options.arrivals.process, parse_arrival_process(texts.process));
  TESSERA_ASSIGN_OR_RETURN(options.slos, SloLimit::parse(texts.slos));
  TESSERA_ASSIGN_OR_RETURN(options.faults, FaultMix::parse(texts.faults));
  if (!texts.sweep.empty()) {
    TESSERA_ASSIGN_OR_RETURN(options.sweep, parse_range(texts.sweep, "..", "--sweep"));
  }
  TESSERA_ASSIGN_OR_RETURN(options.rates, parse_rates(texts.rates));
  TESSERA_ASSIGN_OR_RETURN(options.signals, PlannedSignal::parse(texts.signals));
  if (!texts.process_place.empty()) options.process = ServerProcess(texts.process_place);
  if (texts.max_growth) options.max_growth = *texts.max_growth * (1 << 20);
  if (!texts.ramp.empty()) {
    TESSERA_ASSIGN_OR_RETURN(const LoadOptions::Range ramp, parse_range(texts.ramp, ",", "--ramp"));
    options.arrivals.rate = ramp.low;
    options.arrivals.ramp_seconds = ramp.high;
  }
  return absl::OkStatus();
}

absl::Status check(LoadOptions& options) {
  const int loops = (options.rate ? 1 : 0) + (options.concurrency > 0 ? 1 : 0) +
                    (options.sweep ? 1 : 0) + (options.rates.empty() ? 0 : 1);
  if (loops > 1) {
    return absl::InvalidArgumentError(
        "only one of --rate, --concurrency, --rates and --sweep may be given");
  }
  const bool trace = options.workloads.size() == 1 && options.workloads[0].name == "trace";
  if (loops == 0 && !trace) {
    options.concurrency = 1;
  }
  if (options.sweep && (options.slos.empty() || options.sweep->high < options.sweep->low)) {
    return absl::InvalidArgumentError("--sweep A..B needs --slo, and A must not be above B");
  }
  const bool several = options.sweep || !options.rates.empty();
  if (several && (!options.records.empty() || !options.signals.empty())) {
    return absl::InvalidArgumentError(
        "--records and --kill belong to one run; --sweep and --rates make several");
  }
  if ((!options.signals.empty() || options.max_growth) && !options.process) {
    return absl::InvalidArgumentError("--kill and --max-growth need --process");
  }
  if (options.arrivals.ramp_seconds > 0 && !options.rate) {
    return absl::InvalidArgumentError("--ramp needs --rate");
  }
  if (options.duration <= 0 && options.requests == 0 && !(loops == 0 && trace)) {
    options.duration = kDefaultSeconds;
  }
  return absl::OkStatus();
}

// Returns: the command line without the API key.
std::string printed(int argc, const char* const* argv) {
  std::string text = "tessera-load";
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const bool key = i > 1 && std::string_view(argv[i - 1]) == "--api-key";
    absl::StrAppend(&text, " ",
                    key                                  ? "..."
                    : word.substr(0, 10) == "--api-key=" ? "--api-key=..."
                                                         : word);
  }
  return text;
}

}  // namespace

absl::StatusOr<LoadCommand> parse_load_command(int argc, const char* const* argv) {
  CLI::App app("Loads an OpenAI-compatible server, and checks its answers.", "tessera-load");
  LoadCommand command;
  Texts texts;
  app.set_version_flag("--version", "tessera-load " TESSERA_VERSION);
  declare_load(app, command.options, texts);
  declare_server(app, command.options, texts);
  LoadCommand::Comparison comparison;
  CLI::App* compare = app.add_subcommand("compare", "ratios of two reports, with intervals");
  compare->add_option("A", comparison.a, "report of the first run")->required();
  compare->add_option("B", comparison.b, "report of the second run")->required();
  LoadCommand::Curves curves;
  CLI::App* drawn = app.add_subcommand(
      "curves", "one page with TTFT, correct answers and KV bytes by rate, from several reports");
  drawn->add_option("REPORT", curves.reports, "LABEL=FILE, a report of --rates or --sweep")
      ->required();
  drawn->add_option("--html", curves.html, "write the page here")->type_name("FILE")->required();
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    command.text = compare->parsed() ? compare->help()
                   : drawn->parsed() ? drawn->help()
                                     : app.help();
    return command;
  } catch (const CLI::CallForVersion& version) {
    command.text = absl::StrCat(version.what(), "\n");
    return command;
  } catch (const CLI::ParseError& error) {
    return absl::InvalidArgumentError(absl::StrCat(error.what(), " (see --help)"));
  }
  if (compare->parsed()) {
    command.comparison = comparison;
    return command;
  }
  if (drawn->parsed()) {
    command.curves = curves;
    return command;
  }
  TESSERA_RETURN_IF_ERROR(parse_texts(texts, command.options));
  TESSERA_RETURN_IF_ERROR(check(command.options));
  command.options.command = printed(argc, argv);
  return command;
}

}  // namespace tessera::load

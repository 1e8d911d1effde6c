#include "load/run/load_run.h"

#include <sys/resource.h>

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "load/client/http_server.h"
#include "load/grpc/grpc_server.h"
#include "load/record/record_file.h"
#include "load/workload/words.h"

namespace tessera::load {

volatile sig_atomic_t interrupted = 0;

namespace {

constexpr int32_t kProbeWords = 200;
constexpr double kIdlePoll = 0.1;
constexpr uint64_t kSessionsOfTrial = 10'000'000;

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Keeps one answer.
class Kept final : public GenerationEvents {
 public:
  void sent() override {}
  void received(std::string_view /*text*/) override {}
  void ended(const GenerationEnd& how, const Answer& whole) override {
    end = how;
    answer = whole;
  }

  GenerationEnd end;
  Answer answer;
};

// Names the settings that a resumed run must share with its beginning.
std::string run_name(const LoadOptions& options, double rate) {
  return absl::StrCat(
      options.url, " ",
      absl::StrJoin(options.workloads, " ",
                    [](std::string* out, const WorkloadSpec& spec) { out->append(spec.text); }),
      " seed ", options.seed, " rate ", rate, " arrivals ",
      static_cast<int>(options.arrivals.process), " burstiness ", options.arrivals.burstiness,
      " concurrency ", options.concurrency);
}

}  // namespace

absl::StatusOr<std::unique_ptr<LoadRun>> LoadRun::prepare(const LoadOptions& options) {
  std::unique_ptr<LoadRun> run(new LoadRun(options));
  TESSERA_RETURN_IF_ERROR(run->find_server());
  TESSERA_RETURN_IF_ERROR(run->measure_words());
  TESSERA_RETURN_IF_ERROR(run->make_mix());
  TESSERA_RETURN_IF_ERROR(run->learn_idle_answers());
  run->has_metrics_ = run->read().has_value();
  if (options.process) {
    TESSERA_RETURN_IF_ERROR(options.process->id().status());
  }
  return run;
}

absl::Status LoadRun::find_server() {
  const ServerOptions options{
      .api_key = options_.api_key, .timeout = options_.timeout, .freeze = options_.freeze};
  const std::string grpc = "grpc://";
  if (options_.url.rfind(grpc, 0) == 0) {
    TESSERA_ASSIGN_OR_RETURN(server_,
                             make_grpc_server(*loop_, options_.url.substr(grpc.size()), options));
  } else {
    TESSERA_ASSIGN_OR_RETURN(server_, make_http_server(*loop_, options_.url, options));
  }
  for (const Fault& fault : options_.faults.all()) {
    if (!server_->plays(fault)) {
      return absl::InvalidArgumentError(
          "--faults: gRPC has only close@sent, close@first and close@middle");
    }
  }
  TESSERA_ASSIGN_OR_RETURN(const Server::Identity identity, server_->identify(options_.model));
  model_ = identity.model;
  traits_.tessera = identity.tessera;
  return absl::OkStatus();
}

absl::StatusOr<Answer> LoadRun::ask(const LoadRequest& request) {
  auto kept = std::make_shared<Kept>();
  server_->generate(request, {}, kept);
  loop_->run();
  if (kept->end.error != ErrorClass::none) {
    return absl::UnavailableError(absl::StrCat(
        options_.url, ": a request failed while the server was idle: ",
        std::string(name(kept->end.error)), " ", kept->end.status, ": ", kept->end.message));
  }
  return kept->answer;
}

absl::Status LoadRun::measure_words() {
  SeededRandom random(1);
  LoadRequest few;
  few.messages = {{"user", write_words(random, 1)}};
  few.max_tokens = 1;
  LoadRequest many = few;
  many.messages = {{"user", write_words(random, kProbeWords + 1)}};
  TESSERA_ASSIGN_OR_RETURN(const Answer short_answer, ask(few));
  TESSERA_ASSIGN_OR_RETURN(const Answer long_answer, ask(many));
  if (short_answer.usage && long_answer.usage) {
    const auto tokens =
        static_cast<double>(long_answer.usage->prompt_tokens - short_answer.usage->prompt_tokens);
    traits_.tokens_per_word = std::max(0.1, tokens / kProbeWords);
  }
  return absl::OkStatus();
}

absl::Status LoadRun::make_mix() {
  for (WorkloadSpec spec : options_.workloads) {
    double weight = 1;
    if (const auto found = spec.settings.find("weight"); found != spec.settings.end()) {
      if (!absl::SimpleAtod(found->second, &weight) || !(weight > 0)) {
        return absl::InvalidArgumentError(absl::StrCat(spec.text, ": weight: must be above 0"));
      }
      spec.settings.erase(found);
    }
    TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Workload> workload, make_workload(spec, traits_));
    mix_.add(std::move(workload), weight);
  }
  return absl::OkStatus();
}

absl::Status LoadRun::learn_idle_answers() {
  for (Workload* workload : mix_.all()) {
    const std::vector<LoadRequest> requests = workload->asked_idle(options_.seed);
    if (requests.empty()) continue;
    std::vector<Answer> answers;
    for (const LoadRequest& request : requests) {
      TESSERA_ASSIGN_OR_RETURN(Answer answer, ask(request));
      answers.push_back(std::move(answer));
    }
    workload->learn(answers);
  }
  return absl::OkStatus();
}

std::optional<ServerReading> LoadRun::read() {
  std::optional<ServerReading> reading;
  server_->read_metrics([&](std::optional<ServerReading> got) { reading = std::move(got); });
  loop_->run();
  if (options_.process) {
    if (!reading && !has_metrics_) reading.emplace();
    if (reading) reading->resident_bytes = options_.process->resident_bytes();
  }
  return reading;
}

absl::Status LoadRun::flush() {
  absl::Status flushed;
  server_->flush_cache([&](absl::Status status) { flushed = std::move(status); });
  loop_->run();
  return flushed;
}

std::string LoadRun::left_behind(Trial& trial, Monitor& monitor) {
  monitor.watch_processes();
  for (const SentSignal& signal : monitor.signals()) {
    if (signal.ended < 0) {
      return absl::StrCat("process ", signal.process.number, " still runs after SIG",
                          signal_name(signal.number));
    }
  }
  std::optional<ServerReading> reading = read();
  trial.gone = !reading && has_metrics_ && !monitor.signals().empty();
  if (!reading) {
    return has_metrics_ && !trial.gone ? "the server does not tell its state any more" : "";
  }
  trial.after = *std::move(reading);
  return idle_violation(trial.before, trial.after);
}

void LoadRun::wait_until_idle(Trial& trial, Monitor& monitor) {
  const double patience = loop_->now() + options_.settle;
  while (true) {
    trial.left_behind = left_behind(trial, monitor);
    if ((trial.left_behind.empty() && !trial.gone) || loop_->now() > patience) {
      return;
    }
    loop_->at(loop_->now() + kIdlePoll, [] {});
    loop_->run();
  }
}

RunPlan LoadRun::plan_at(double rate) const {
  RunPlan plan;
  if (rate > 0) {
    plan.arrivals = options_.arrivals;
    const double ramp = plan.arrivals->ramp_seconds;
    plan.arrivals->rate = ramp > 0 ? options_.arrivals.rate : rate;
    plan.arrivals->end_rate = rate;
  }
  plan.trace_times = rate <= 0 && options_.concurrency == 0;
  plan.concurrency = options_.concurrency;
  plan.duration = options_.duration;
  plan.requests = options_.requests;
  plan.first_session = options_.first_session + trials_ * kSessionsOfTrial;
  plan.max_in_flight = options_.max_in_flight;
  plan.seed = options_.seed;
  return plan;
}

absl::StatusOr<Trial> LoadRun::trial(double rate) {
  RunPlan plan = plan_at(rate);
  ++trials_;
  if (plan.trace_times && !mix_.start_of(0)) {
    return absl::InvalidArgumentError(
        "without --rate, --concurrency or --sweep the workload must be one trace");
  }
  Trial trial(RunStatistics(options_.slos, options_.warmup));
  trial.rate = rate;
  TESSERA_ASSIGN_OR_RETURN(
      RecordFile file,
      RecordFile::open(options_.records, run_name(options_, rate),
                       [&](const RequestRecord& record) { trial.statistics.add(record); }));
  const RecordFile::Progress& done = file.progress();
  if (done.requests > 0) {
    plan.first_session = done.next_session;
    plan.first_number = done.next_number;
    const bool all_sent = plan.requests > 0 && done.requests >= plan.requests;
    if (all_sent || (plan.duration > 0 && done.seconds >= plan.duration)) {
      return trial;
    }
    plan.requests -= std::min(plan.requests, done.requests);
    plan.duration = std::max(0.0, plan.duration - done.seconds);
  }
  if (options_.flush_cache) {
    TESSERA_RETURN_IF_ERROR(flush());
  }
  trial.before = read().value_or(ServerReading{});
  const double offset = done.seconds;
  const double cpu = cpu_seconds();
  absl::Status written = absl::OkStatus();
  std::optional<Monitor> monitor;
  Runner runner(*loop_, *server_, mix_, plan, options_.faults, [&](const RequestRecord& record) {
    RequestRecord shifted = record;
    if (monitor->was_killed(record)) shifted.outcome.error = ErrorClass::killed;
    shifted.intended += offset;
    shifted.end += offset;
    if (shifted.sent >= 0) shifted.sent += offset;
    for (double& time : shifted.texts) {
      time += offset;
    }
    trial.statistics.add(shifted);
    written.Update(file.add(shifted));
  });
  monitor.emplace(*loop_, *server_, runner, trial.statistics,
                  Monitor::Options{.reads_metrics = has_metrics_,
                                   .flush_period = options_.flush_period,
                                   .process = options_.process,
                                   .signals = options_.signals});
  monitor->start();
  runner.run();
  trial.client_cpu_seconds = cpu_seconds() - cpu;
  trial.interrupted = interrupted != 0;
  TESSERA_RETURN_IF_ERROR(written);
  TESSERA_RETURN_IF_ERROR(monitor->status());
  wait_until_idle(trial, *monitor);
  trial.samples = monitor->samples();
  trial.signals = monitor->signals();
  return trial;
}

}  // namespace tessera::load

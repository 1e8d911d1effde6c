// The whole tool against a stub server that lies: each lie must be caught.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "load/load.h"
#include "load/report/report.h"
#include "tests/load/stub_server.h"

namespace tessera::load {
namespace {

using testing::AnyOf;
using testing::HasSubstr;
using Json = nlohmann::ordered_json;

constexpr int64_t kQuestions = 2;  // before the run, for the length of words

LoadOptions options_for(const StubServer& server, const std::string& workload) {
  LoadOptions options;
  options.url = server.url();
  options.workloads = {*WorkloadSpec::parse(workload)};
  options.concurrency = 4;
  options.requests = 40;
  options.timeout = 10;
  options.settle = 0.2;
  options.freeze = 0.05;
  return options;
}

Json report_on(const LoadOptions& options) {
  absl::StatusOr<Json> report = run_load(options);
  EXPECT_TRUE(report.ok()) << report.status();
  return report.ok() ? *report : Json();
}

Json report_on(const StubLies& lies, const std::string& workload = "recall:output=8") {
  const StubServer server(lies);
  return report_on(options_for(server, workload));
}

std::string first_reason(const Json& report) {
  return report["failed_checks"].empty() ? ""
                                         : report["failed_checks"][0]["why"].get<std::string>();
}

TEST(TesseraLoad, PassesAnHonestServer) {
  const Json report = report_on(StubLies{});
  EXPECT_EQ(report["failures"], Json::array());
  EXPECT_EQ(report["answers"]["correct"], 40);
  EXPECT_EQ(report["requests"]["ok"], 40);
  EXPECT_EQ(report["tokens"]["output"], 320);
  EXPECT_EQ(report["latency"]["itl"]["count"], 40 * 7);
  EXPECT_THAT(print_text(report), HasSubstr("40 correct, 0 missed, 0 wrong"));
  EXPECT_THAT(print_html(report), HasSubstr("</svg>"));
}

TEST(TesseraLoad, KeepsItsConnections) {
  const StubServer server;
  LoadOptions options = options_for(server, "chat:output=2");
  options.requests = 200;
  report_on(options);
  EXPECT_LE(server.connections(), 5);
}

TEST(TesseraLoad, CatchesASwappedAnswer) {
  const Json report = report_on({.swap_answers = true});
  EXPECT_GT(report["answers"]["missed"], 30);
  EXPECT_THAT(first_reason(report), HasSubstr("the key of session"));
  EXPECT_THAT(report["failed_checks"][0]["repeat"].get<std::string>(),
              HasSubstr("--first-session"));
  EXPECT_FALSE(report["failures"].empty());
}

TEST(TesseraLoad, CatchesAStalePrefix) {
  const Json report = report_on({.stale_prefix = true}, "recall:output=4:prefix=30:groups=1");
  EXPECT_GT(report["answers"]["missed"], 30);
  EXPECT_FALSE(report["failures"].empty());
}

TEST(TesseraLoad, CatchesALostToken) {
  const Json report = report_on({.lose_token = true});
  EXPECT_EQ(report["answers"]["wrong"], 40);
  EXPECT_THAT(first_reason(report), HasSubstr("8 completion tokens, but 7 came"));
}

TEST(TesseraLoad, CatchesAWrongUsage) {
  const Json report = report_on({.wrong_usage = true});
  EXPECT_EQ(report["answers"]["wrong"], 40);
  EXPECT_THAT(first_reason(report), HasSubstr("9 completion tokens, but 8 came"));
}

TEST(TesseraLoad, CatchesAStreamCutShort) {
  const Json report = report_on({.honest_requests = kQuestions, .cut_short = true});
  EXPECT_EQ(report["requests"]["errors"].value("cut_short", 0), 40);
  EXPECT_THAT(report["failures"].dump(), HasSubstr("40 streams were cut_short"));
}

TEST(TesseraLoad, CatchesAStreamWithoutItsEnd) {
  const Json report = report_on({.honest_requests = kQuestions, .no_end_mark = true});
  EXPECT_EQ(report["requests"]["errors"].value("cut_short", 0), 40);
}

TEST(TesseraLoad, CatchesAnEventThatIsNotJson) {
  const Json report = report_on({.honest_requests = kQuestions, .not_json = true});
  EXPECT_EQ(report["requests"]["errors"].value("malformed", 0), 40);
  EXPECT_FALSE(report["failures"].empty());
}

TEST(TesseraLoad, CatchesTextThatChangesUnderLoad) {
  const Json report = report_on({.honest_requests = kQuestions + 3, .change_under_load = true},
                                "repeat:prompts=3:output=4");
  EXPECT_EQ(report["answers"]["wrong"], 40);
  EXPECT_THAT(first_reason(report), HasSubstr("differs from the idle server's answer"));
}

TEST(TesseraLoad, CatchesALeakedPage) {
  const StubServer server({.honest_requests = kQuestions, .leak_pages = true});
  LoadOptions options = options_for(server, "recall");
  EXPECT_THAT(report_on(options)["failures"].dump(), HasSubstr("6656 bytes"));
}

TEST(TesseraLoad, CatchesMemoryThatIsKept) {
  for (const bool keep : {false, true}) {
    const StubServer server({.keep_memory = keep, .delay_seconds = 0.02});
    LoadOptions options = options_for(server, "chat:output=2");
    options.process = ServerProcess(std::to_string(getpid()));
    options.max_growth = 32 << 20;
    options.requests = 150;
    const Json report = report_on(options);
    EXPECT_EQ(report["failures"].empty(), !keep) << report["failures"];
    EXPECT_EQ(report["failures"].dump().find("memory grew by") != std::string::npos, keep);
  }
}

TEST(TesseraLoad, CatchesAServerThatNoLongerTellsItsState) {
  const Json report = report_on({.honest_requests = kQuestions, .hide_metrics = true});
  EXPECT_THAT(report["failures"].dump(), HasSubstr("does not tell its state any more"));
}

// A process of a shell script, killed at the end.
class ShellProcess {
 public:
  explicit ShellProcess(const char* script) : id_(fork()) {
    if (id_ == 0) {
      execl("/bin/sh", "sh", "-c", script, nullptr);
      _exit(1);
    }
  }
  ~ShellProcess() {
    kill(id_, SIGKILL);
    waitpid(id_, nullptr, 0);
  }
  ShellProcess(const ShellProcess&) = delete;
  ShellProcess& operator=(const ShellProcess&) = delete;
  std::string number() const { return std::to_string(id_); }

 private:
  pid_t id_;
};

Json report_on_signal(const StubLies& lies, const ShellProcess& process, int signal) {
  const StubServer server(lies);
  LoadOptions options = options_for(server, "chat:output=8");
  options.requests = 0;
  options.duration = 1.5;
  options.concurrency = 2;
  options.process = ServerProcess(process.number());
  options.signals = {{signal, 0.3}};
  return report_on(options);
}

TEST(TesseraLoad, CatchesAProcessThatIgnoresSigterm) {
  const ShellProcess deaf("trap '' TERM; while :; do sleep 0.1; done");
  const Json report = report_on_signal({.delay_seconds = 0.05}, deaf, SIGTERM);
  EXPECT_THAT(report["failures"].dump(), HasSubstr("still runs after SIGTERM"));
}

// SIGKILL may cut the streams that run at that moment, and no later ones. SIGTERM may cut none.
TEST(TesseraLoad, CatchesStreamsThatEndBeforeTheProcess) {
  for (const int signal : {SIGKILL, SIGTERM}) {
    const ShellProcess process("while :; do sleep 0.1; done");
    const Json report = report_on_signal(
        {.honest_requests = 4, .cut_short = true, .delay_seconds = 0.05}, process, signal);
    const Json& errors = report["requests"]["errors"];
    EXPECT_EQ(errors.value("killed", 0) > 0, signal == SIGKILL) << errors;
    EXPECT_GT(errors.value("cut_short", 0), errors.value("killed", 0));
    EXPECT_THAT(report["failures"].dump(), HasSubstr("streams were cut_short"));
    EXPECT_GE(report["server"]["signals"][0]["ended"], 0.3);
  }
}

TEST(TesseraLoad, CatchesARunThatEndsBeforeItsSignal) {
  const ShellProcess process("exec sleep 60");
  const StubServer server;
  LoadOptions options = options_for(server, "chat:output=2");
  options.process = ServerProcess(process.number());
  options.signals = {{SIGTERM, 60}};
  EXPECT_THAT(report_on(options)["failures"].dump(), HasSubstr("ended before 1 signals"));
}

// An event without text is no token: the time to the first token is that of its text.
TEST(TesseraLoad, CatchesLateAnswersReportedEarly) {
  const Json report =
      report_on({.early_empty_event = true, .delay_seconds = 0.05}, "chat:output=2");
  EXPECT_GT(report["latency"]["ttft"]["min"], 0.05);
}

// Requests that should have started during a stall count their wait.
TEST(TesseraLoad, CatchesAStallThatDelaysLaterRequests) {
  const StubServer server({.stall_seconds = 0.5, .stall_after = 20});
  LoadOptions options = options_for(server, "chat:output=2");
  options.concurrency = 0;
  options.rate = 100;
  options.arrivals.process = ArrivalProcess::constant;
  options.max_in_flight = 1;
  options.requests = 60;
  const Json report = report_on(options);
  EXPECT_GT(report["latency"]["e2e"]["p50"]["value"], 0.1);
  EXPECT_GT(report["latency"]["client_lag"]["max"], 0.4);
}

TEST(TesseraLoad, CountsRejectionsWithTheirRetryAfter) {
  const StubServer server({.reject_every = 3});
  LoadOptions options = options_for(server, "chat:output=2");
  options.rate = 400;
  options.concurrency = 0;
  const Json report = report_on(options);
  EXPECT_GE(report["requests"]["errors"].value("rejected", 0), 12);
  EXPECT_EQ(report["requests"]["retry_after_mean_s"], 1);
}

TEST(TesseraLoad, SurvivesItsOwnFaults) {
  const StubServer server;
  LoadOptions options = options_for(server, "recall:output=8");
  options.requests = 200;
  options.faults = *FaultMix::parse(
      "close@head=0.1,close@body=0.1,close@first=0.1,freeze@sent=0.1,slow=0.1,garbage=0.1");
  const Json report = report_on(options);
  EXPECT_GT(report["requests"]["injected_faults"], 80);
  EXPECT_EQ(report["requests"]["errors"], Json::object());
  EXPECT_EQ(report["failures"], Json::array());
}

TEST(TesseraLoad, GoesOnAfterAnInterruption) {
  const StubServer server;
  LoadOptions options = options_for(server, "chat:output=2");
  options.records = testing::TempDir() + "resumed.jsonl";
  std::filesystem::remove(options.records);
  options.requests = 10;
  report_on(options);
  const int64_t asked = server.requests();
  options.requests = 25;
  const Json report = report_on(options);
  EXPECT_EQ(report["requests"]["finished"], 25);
  EXPECT_EQ(server.requests() - asked, 15 + kQuestions);
}

TEST(TesseraLoad, ASweepEndsBetweenARateThatPassedAndOneThatFailed) {
  const StubServer server({.delay_seconds = 0.02});
  LoadOptions options = options_for(server, "chat:output=1");
  options.concurrency = 0;
  options.arrivals.process = ArrivalProcess::constant;
  options.max_in_flight = 1;  // so that the stub takes at most 50 a second
  options.requests = 30;
  options.sweep = {10, 200};
  options.slos = *SloLimit::parse("ttft_p90=60ms");
  const Json report = report_on(options);
  EXPECT_GE(report["sweep"]["highest_rate"], 10);
  EXPECT_LT(report["sweep"]["highest_rate"], 100);
  EXPECT_GE(report["sweep"]["points"].size(), 4u);
}

TEST(TesseraLoad, MeasuresEachRate) {
  const StubServer server;
  LoadOptions options = options_for(server, "recall:output=8");
  options.concurrency = 0;
  options.requests = 20;
  options.rates = {100, 200};
  const Json report = report_on(options);
  ASSERT_EQ(report["sweep"]["points"].size(), 2u);
  EXPECT_EQ(report["sweep"]["points"][1]["rate"], 200);
  EXPECT_EQ(report["sweep"]["points"][1]["answers"]["correct"], 20);
  EXPECT_EQ(report["failures"], Json::array());
  EXPECT_THAT(print_text(report), HasSubstr("KV bytes of a request"));
}

TEST(TesseraLoad, NamesAServerThatIsNotThere) {
  LoadOptions options;
  options.url = "http://127.0.0.1:1";
  options.workloads = {*WorkloadSpec::parse("chat")};
  EXPECT_THAT(std::string(run_load(options).status().message()),
              HasSubstr("127.0.0.1:1/v1/models: cannot connect"));
  options.url = "grpc://127.0.0.1:1";
  EXPECT_THAT(std::string(run_load(options).status().message()),
              AnyOf(HasSubstr("127.0.0.1:1: "), HasSubstr("built without gRPC")));
  options.url = "https://127.0.0.1";
  EXPECT_THAT(std::string(run_load(options).status().message()), HasSubstr("not supported"));
}

}  // namespace
}  // namespace tessera::load

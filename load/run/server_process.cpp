#include "load/run/server_process.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"

namespace tessera::load {
namespace {

constexpr int kStateField = 2;   // of /proc/PID/stat, from 0; see proc(5)
constexpr int kStartField = 21;  // likewise

struct ProcessState {
  char state = 'Z';
  uint64_t start = 0;
};

// Returns: nothing if there is no such process.
std::optional<ProcessState> state_of(pid_t number) {
  std::ifstream file(absl::StrCat("/proc/", number, "/stat"));
  std::string text;
  if (!std::getline(file, text)) {
    return std::nullopt;
  }
  // The name in parentheses may hold spaces.
  std::istringstream fields(text.substr(std::min(text.size(), text.rfind(')') + 2)));
  ProcessState found;
  std::string field;
  for (int i = kStateField; i <= kStartField && fields >> field; ++i) {
    if (i == kStateField) found.state = field[0];
    if (i == kStartField && !absl::SimpleAtoi(field, &found.start)) return std::nullopt;
  }
  return found;
}

bool lives(const std::optional<ProcessState>& state) {
  return state && state->state != 'Z' && state->state != 'X';
}

}  // namespace

absl::StatusOr<std::vector<PlannedSignal>> PlannedSignal::parse(const std::string& text) {
  std::vector<PlannedSignal> planned;
  const std::vector<std::string> parts = absl::StrSplit(text, ',', absl::SkipEmpty());
  for (const std::string& part : parts) {
    PlannedSignal signal;
    const size_t at = part.find('@');
    const std::string name = part.substr(0, at);
    signal.number = name == "TERM" ? SIGTERM : name == "KILL" ? SIGKILL : 0;
    if (at == std::string::npos || signal.number == 0 ||
        !absl::SimpleAtod(part.substr(at + 1), &signal.time) || !(signal.time >= 0)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--kill: '", part, "' is not TERM@SECONDS or KILL@SECONDS"));
    }
    planned.push_back(signal);
  }
  std::stable_sort(planned.begin(), planned.end(),
                   [](const auto& a, const auto& b) { return a.time < b.time; });
  return planned;
}

std::string signal_name(int number) {
  return number == SIGKILL ? "KILL" : "TERM";
}

absl::StatusOr<ProcessId> ServerProcess::id() const {
  ProcessId process;
  std::string text = place_;
  if (!absl::SimpleAtoi(text, &process.number)) {
    std::ifstream file(place_);
    text.clear();
    file >> text;
  }
  if (!absl::SimpleAtoi(text, &process.number) || process.number <= 1) {
    return absl::NotFoundError(
        absl::StrCat("--process: '", place_, "' is no process number, and no file that holds one"));
  }
  const std::optional<ProcessState> state = state_of(process.number);
  if (!lives(state)) {
    return absl::NotFoundError(absl::StrCat("--process: there is no process ", process.number));
  }
  process.start = state->start;
  return process;
}

std::optional<double> ServerProcess::resident_bytes() const {
  const absl::StatusOr<ProcessId> process = id();
  if (!process.ok()) {
    return std::nullopt;
  }
  std::ifstream file(absl::StrCat("/proc/", process->number, "/statm"));
  double total = 0;
  double resident = 0;
  if (!(file >> total >> resident)) {
    return std::nullopt;
  }
  return resident * static_cast<double>(sysconf(_SC_PAGESIZE));
}

absl::StatusOr<ProcessId> ServerProcess::send(int signal) const {
  TESSERA_ASSIGN_OR_RETURN(const ProcessId process, id());
  if (::kill(process.number, signal) != 0) {
    return absl::PermissionDeniedError(
        absl::StrCat("--kill: process ", process.number, ": ", std::string(std::strerror(errno))));
  }
  return process;
}

bool is_running(const ProcessId& process) {
  const std::optional<ProcessState> state = state_of(process.number);
  return lives(state) && state->start == process.start;
}

}  // namespace tessera::load

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "load/client/event_loop.h"
#include "load/request/request.h"

namespace tessera::load {

enum class Verdict {
  unchecked,
  correct,
  differs,  // from the idle server's answer, which this server does not promise to repeat
  missed,   // not the expected answer: an error of the server, or of its model
  wrong,    // an error of the server, whatever its model
};
std::string_view name(Verdict verdict);

// One finished request. Times are seconds after the start of the run; below 0: never.
struct RequestRecord {
  uint64_t number = 0;  // in the order of sending
  uint64_t session = 0;
  int32_t turn = 0;
  std::string workload;
  double intended = 0;  // latencies count from here, however late the client or a connection was
  double sent = -1;
  std::vector<double> texts;  // arrivals of non-empty pieces of text
  double end = 0;
  bool faulty = false;  // the run made this client misbehave; left out of latencies
  GenerationEnd outcome;
  std::optional<ReportedUsage> usage;
  int64_t counted_tokens = -1;
  Verdict verdict = Verdict::unchecked;
  std::string why;       // of an answer that is not correct
  std::string answer;    // likewise, at most kShownAnswer bytes
  std::string question;  // likewise: the end of the prompt

  bool ok() const { return outcome.error == ErrorClass::none; }
  bool failed_check() const { return verdict == Verdict::missed || verdict == Verdict::wrong; }
  double ttft() const { return texts.empty() ? -1 : texts.front() - intended; }
  double e2e() const { return end - intended; }

  // Returns: tokens of the answer, as reported, else as pieces of text.
  int64_t output_tokens() const {
    return usage ? usage->completion_tokens : static_cast<int64_t>(texts.size());
  }
  // Returns: seconds for each token after the first; below 0 for fewer than two tokens.
  double tpot() const {
    return texts.empty() || output_tokens() < 2
               ? -1
               : (end - texts.front()) / static_cast<double>(output_tokens() - 1);
  }
};
inline constexpr size_t kShownAnswer = 400;

// One JSON object without a line end, and back.
std::string print_record(const RequestRecord& record);
// Returns: nothing if the line is not a record.
std::optional<RequestRecord> parse_record(std::string_view line);

}  // namespace tessera::load

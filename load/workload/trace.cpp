#include "load/workload/trace.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "load/request/json_text.h"
#include "load/workload/factories.h"
#include "load/workload/words.h"

namespace tessera::load {
namespace {

using nlohmann::json;

bool parse_csv_line(const std::string& line, TracedRequest& request) {
  const std::vector<std::string> cells = absl::StrSplit(line, ',');
  absl::Time time;
  std::string error;
  if (cells.size() < 3 || !absl::ParseTime("%Y-%m-%d %H:%M:%E*S", cells[0], &time, &error)) {
    return false;
  }
  request.start = absl::ToDoubleSeconds(time - absl::UnixEpoch());
  return absl::SimpleAtoi(cells[1], &request.prompt_tokens) &&
         absl::SimpleAtoi(absl::StripSuffix(cells[2], "\r"), &request.output_tokens);
}

bool parse_json_line(const std::string& text, TracedRequest& request) {
  const json line = parse_json(text);
  if (!line.is_object()) {
    return false;
  }
  for (const char* name : {"timestamp", "input_length", "output_length"}) {
    if (!line.contains(name) || !line[name].is_number()) return false;
  }
  const double timestamp = line["timestamp"].get<double>();
  request.start = line["timestamp"].is_number_integer() ? timestamp / 1000 : timestamp;
  request.prompt_tokens = line["input_length"].get<int32_t>();
  request.output_tokens = line["output_length"].get<int32_t>();
  for (const json& block : line.value("hash_ids", json::array())) {
    if (!block.is_number_integer()) return false;
    request.blocks.push_back(block.get<int64_t>());
  }
  return true;
}

struct TraceSettings {
  std::string name;
  double speed = 1;
  double lengths = 1;
  double words_per_token = 1;
  int32_t block_tokens = 0;  // of one of hash_ids
  nlohmann::json fields;
};

// Returns: the tokens of a block: a power of two, the least that holds each prompt in its blocks.
int32_t block_tokens_of(const std::vector<TracedRequest>& requests) {
  int32_t tokens = 1;
  for (const TracedRequest& request : requests) {
    const auto blocks = static_cast<int64_t>(request.blocks.size());
    while (blocks > 0 && blocks * tokens < request.prompt_tokens) {
      tokens *= 2;
    }
  }
  return tokens;
}

class TraceWorkload final : public Workload {
 public:
  TraceWorkload(std::vector<TracedRequest> requests, TraceSettings settings)
      : requests_(std::move(requests)), settings_(std::move(settings)) {}

  std::unique_ptr<Session> session(uint64_t number, uint64_t seed) const override {
    const TracedRequest& traced = requests_[number % requests_.size()];
    LoadRequest request;
    request.workload = settings_.name;
    request.session = number;
    request.messages = {{"user", prompt(traced, number, seed)}};
    request.max_tokens = scaled(traced.output_tokens, settings_.lengths);
    request.ignore_eos = true;
    request.fields = settings_.fields;
    return std::make_unique<SingleRequest>(std::move(request));
  }

  std::optional<uint64_t> sessions() const override { return requests_.size(); }

  std::optional<double> start_of(uint64_t number) const override {
    return requests_[number % requests_.size()].start / settings_.speed;
  }

 private:
  static int32_t scaled(int32_t length, double factor) {
    return std::max(1, static_cast<int32_t>(std::lround(length * factor)));
  }

  // Equal blocks have equal words, so that the server's prefix cache meets the trace's prefixes.
  std::string prompt(const TracedRequest& traced, uint64_t number, uint64_t seed) const {
    const double scale = settings_.lengths * settings_.words_per_token;
    if (traced.blocks.empty()) {
      SeededRandom random(seed_of(seed, number));
      return write_words(random, scaled(traced.prompt_tokens, scale));
    }
    const int32_t each = scaled(settings_.block_tokens, scale);
    const auto full = static_cast<int32_t>(traced.blocks.size()) - 1;
    std::string text;
    for (int32_t i = 0; i <= full; ++i) {
      const auto block = static_cast<uint64_t>(traced.blocks[static_cast<size_t>(i)]);
      SeededRandom random(seed_of(seed ^ 0xb10c, block));
      const int32_t last = scaled(traced.prompt_tokens - full * settings_.block_tokens, scale);
      absl::StrAppend(&text, text.empty() ? "" : " ",
                      write_words(random, i < full ? each : std::min(each, last)));
    }
    return text;
  }

  std::vector<TracedRequest> requests_;
  TraceSettings settings_;
};

}  // namespace

absl::StatusOr<std::vector<TracedRequest>> read_load_trace(std::istream& lines) {
  std::vector<TracedRequest> requests;
  std::string line;
  for (int64_t number = 1; std::getline(lines, line); ++number) {
    const bool header = number == 1 && !line.empty() && line[0] == 'T';
    if (header || line.find_first_not_of(" \t\r") == std::string::npos) {
      continue;
    }
    TracedRequest request;
    const bool parsed =
        line[0] == '{' ? parse_json_line(line, request) : parse_csv_line(line, request);
    if (!parsed || request.prompt_tokens < 0 || request.output_tokens < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("line ", number,
                       " is neither TIMESTAMP,ContextTokens,GeneratedTokens nor {\"timestamp\", "
                       "\"input_length\", \"output_length\"}"));
    }
    requests.push_back(std::move(request));
  }
  if (requests.empty()) {
    return absl::InvalidArgumentError("there are no requests");
  }
  std::stable_sort(
      requests.begin(), requests.end(),
      [](const TracedRequest& a, const TracedRequest& b) { return a.start < b.start; });
  const double first = requests.front().start;
  for (TracedRequest& request : requests) {
    request.start -= first;
  }
  return requests;
}

WorkloadOr make_trace_workload(const WorkloadSpec& spec, const ServerTraits& server) {
  SpecReader reader(spec);
  TraceSettings settings;
  settings.name = reader.text("name", spec.name);
  const std::string path = reader.text("path");
  settings.speed = reader.number("speed", 1, 1e-6, 1e6);
  settings.lengths = reader.number("lengths", 1, 1e-6, 1e3);
  settings.fields = reader.fields();
  settings.words_per_token = 1 / server.tokens_per_word;
  TESSERA_ASSIGN_OR_RETURN(std::ifstream file, reader.finish_and_open("path"));
  absl::StatusOr<std::vector<TracedRequest>> requests = read_load_trace(file);
  if (!requests.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", std::string(requests.status().message())));
  }
  settings.block_tokens = block_tokens_of(*requests);
  return std::make_unique<TraceWorkload>(std::move(*requests), std::move(settings));
}

}  // namespace tessera::load

#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace tessera::load {

// A call of a tool that an answer asked for.
struct ToolCall {
  std::string id;
  std::string name;
  std::string arguments;  // JSON
};

struct ChatMessage {
  std::string role;
  std::string content;
  std::vector<ToolCall> tool_calls{};  // of an earlier answer
  std::string tool_call_id{};          // role "tool": the call that this is the result of
};

// A true answer, known before the request is sent.
struct Expectation {
  enum class Kind {
    none,
    contains,  // `text` stands in the answer
    equals,    // the answer is `text`, the server's own answer while it was idle
    schema,    // the answer is JSON that fits `schema`
  };
  Kind kind = Kind::none;
  std::string text;
  nlohmann::json schema;
  int32_t prompt_tokens = -1;  // counted while the server was idle; -1: unknown
  // A difference is the server's error. Otherwise it only lowers the reported share.
  bool strict = true;
};

struct LoadRequest {
  std::string workload;
  uint64_t session = 0;  // with the run's seed, it repeats the request
  int32_t turn = 0;
  std::vector<ChatMessage> messages;  // empty: `prompt` is continued
  std::string prompt;
  int32_t max_tokens = 0;  // 0: as many as the server likes
  bool ignore_eos = false;
  bool count_tokens = false;  // asks for log probabilities, which count the tokens
  nlohmann::json fields = nlohmann::json::object();  // more members of the body
  Expectation expected;
};

// Usage as the server reports it.
struct ReportedUsage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t total_tokens = -1;   // -1: not reported
  int64_t cached_tokens = -1;  // -1: not reported
  int64_t kv_bytes = -1;       // tessera-server: bytes of the KV cache; -1: not reported
};

// A whole answer, or the part of it before an error.
struct Answer {
  std::string text;
  std::string finish_reason;
  std::optional<ReportedUsage> usage;
  int64_t counted_tokens = -1;  // entries of log probabilities; -1: none
};

}  // namespace tessera::load

#pragma once

#include <chrono>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/json/body_fields.h"
#include "server/request/cache_marks.h"

namespace tessera {

// Reads each cache_control of a body, {"type": "ephemeral", "ttl": "5m" or "1h"}, and collects the
// places that they mark. Anthropic's dialect has them, and gateways pass them on in OpenAI's.
// Errors are in `fields`.
class CacheControls {
 public:
  // fields: of the body; outlives this.
  explicit CacheControls(BodyFields& fields) : fields_(fields) {}

  // Returns: its time; nothing if it is null. `place`: its name in the body.
  std::optional<std::chrono::seconds> read(const nlohmann::json& control, const std::string& place);
  // The same for the cache_control in an object that has this name; it may have none.
  std::optional<std::chrono::seconds> read_in(const nlohmann::json& holder,
                                              const std::string& place);

  // Adds a mark that is not before those added earlier.
  void mark(const CacheMark& mark) { add_mark(marks_, mark); }

  // Returns: the marks. Called once, at the end. Anthropic's API allows four; here more do no harm,
  // because add_mark() keeps the last of each time.
  std::vector<CacheMark> take() { return std::move(marks_); }

 private:
  BodyFields& fields_;
  std::vector<CacheMark> marks_;
};

// Returns: the marks of a chat in OpenAI's form: of tools, parts of contents, messages, and of the
// body. Tools count as a part of the system's message, because templates print them there.
// Requires: messages and tools are read without an error.
std::vector<CacheMark> read_chat_marks(BodyFields& fields);

}  // namespace tessera

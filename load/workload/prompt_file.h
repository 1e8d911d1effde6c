#pragma once

#include <istream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "load/request/request.h"

namespace tessera::load {

// A line of a file of prompts.
struct FilePrompt {
  std::vector<std::string> user;  // the user's messages in order; of a prompt: empty
  std::string system;
  std::string prompt;
  std::string answer;  // the last answer must contain it; empty: unchecked
};

// Reads JSON lines in the forms {"messages": [...]}, {"prompt": "..."} and ShareGPT's
// {"conversations": [{"from": "human", "value": "..."}, ...]}. An "answer" is checked. The
// recorded answers of messages are left out: the server's own take their place.
// Errors: InvalidArgument names the line.
absl::StatusOr<std::vector<FilePrompt>> read_prompts(std::istream& lines);

}  // namespace tessera::load

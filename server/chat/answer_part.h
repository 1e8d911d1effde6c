#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

// A call of a tool in an answer, or the part of it that is new.
struct CallPart {
  int32_t index = 0;        // among the answer's calls
  std::string id{};         // only where the call begins
  std::string name{};       // likewise
  std::string arguments{};  // JSON text; of a custom tool, its input
  bool custom = false;
};

// The parts of an assistant's message, or their new text.
struct AnswerPart {
  std::string reasoning{};
  std::string content{};
  std::vector<CallPart> calls{};  // at most one part of each call

  bool empty() const { return reasoning.empty() && content.empty() && calls.empty(); }
};

}  // namespace tessera

#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/chat/answer_part.h"

namespace tessera {

// A custom tool takes a text as its input. A model calls it as a function with this one argument.
inline constexpr std::string_view kCustomInput = "input";

// Returns: the arguments of such a function for an input; nothing if it is no text.
std::optional<std::string> custom_arguments(const nlohmann::json& input);

// Returns: the input in such arguments; the arguments themselves if they have none, as those of an
// answer that was cut off.
std::string custom_input(const std::string& arguments);

// Turns calls of custom tools from functions back into calls with a text, as an answer comes in
// parts. The text of a call is shown as a whole, when its arguments are complete.
class CustomInputs {
 public:
  explicit CustomInputs(std::vector<std::string> tools) : tools_(std::move(tools)) {}

  // Changes new parts of calls. `ended`: so many calls of the answer are complete.
  void apply(std::vector<CallPart>& calls, int32_t ended);

 private:
  struct Held {
    int32_t index;
    std::string arguments{};
  };

  const std::vector<std::string> tools_;
  std::vector<Held> held_;  // calls that are not complete
};

}  // namespace tessera

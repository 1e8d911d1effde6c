#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "eval/tasks/material.h"
#include "eval/tasks/task.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace tessera {

struct ToolCallGrid {
  std::vector<int32_t> lengths;  // most tokens of a prompt
  int32_t cases = 0;             // for each length
};

// Chats whose last message asks for calls of tools, which the model writes itself. Each chat has
// read a long log by a call before, as agents do. There are six kinds, in turn:
//   single    one call with a number or a city
//   parallel  a call for each of several cities
//   nested    arguments with objects in a list
//   enum      arguments of which the tool lists the values
//   unicode   names and texts that are not ASCII
//   turns     the argument stands in the log
// Each request names every argument, so exactly one set of calls is right. chat: of the model
// Errors: Unimplemented for a template whose calls are no JSON objects; InvalidArgument if a chat
// without lines of the log is longer than a length. Those of render().
absl::StatusOr<Task> make_tool_calls(const ToolCallGrid& grid, const ChatTemplate& chat,
                                     const Tokenizer& tokenizer, Material material);

}  // namespace tessera

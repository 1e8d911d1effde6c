#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/chat/answer_part.h"
#include "server/chat/custom_input.h"
#include "server/chat/thought_splitter.h"
#include "server/chat/tool_format.h"

namespace tessera {

// Parts that the text of an answer may have besides content.
struct AnswerNotation {
  const ToolFormat* tools = nullptr;                     // null: calls are not looked for
  std::shared_ptr<const ArgumentTypes> types = nullptr;  // of the tools, if the format reads them
  bool forced = false;                                   // a grammar makes the text calls of tools
  bool one_call = false;                                 // the answer ends after its first call
  bool thoughts = false;
  bool open_thought = false;  // the prompt ends inside of one
  // Messages about parts of the tools' schemas that do not bind the answer.
  std::vector<std::string> left_out{};
  std::vector<std::string> custom_tools{};  // names of tools that take a text
};

// Splits the text of an assistant's answer into its parts, as it is generated.
class AnswerReader {
 public:
  explicit AnswerReader(const AnswerNotation& notation);

  // Reads more text. `end`: it is the last.
  void push(std::string_view text, bool end, AnswerPart& out);

  bool has_calls() const { return tools_ != nullptr && tools_->begun() > 0; }
  // True inside of a thought.
  bool thinking() const { return thoughts_ && thoughts_->thinking(); }
  // True if the answer has all calls that it may have.
  bool complete() const { return one_call_ && tools_ != nullptr && tools_->ended() > 0; }

 private:
  std::optional<ThoughtSplitter> thoughts_;
  std::unique_ptr<ToolParser> tools_;
  CustomInputs custom_;
  const bool one_call_;
};

}  // namespace tessera

#pragma once

#include <cstdint>
#include <string>

namespace tessera {

// A grammar that a generated text must match, before it is compiled.
struct GrammarSpec {
  enum class Kind : uint8_t {
    json,            // any JSON value of a kind that `text` names: "object"
    json_schema,     // a JSON schema
    regex,           // the whole text matches it
    gbnf,            // llama.cpp's notation, from the rule `root`
    structural_tag,  // xgrammar's: free text in which some beginnings bind the text after them
  };
  Kind kind = Kind::json;
  std::string text;
  std::string field = {};  // the client's field, for errors
  // Binds the text of a message, as OpenAI's response_format does, and so not a forced tool call.
  bool text_alone = false;

  // Equal specs have equal grammars.
  friend bool operator==(const GrammarSpec& a, const GrammarSpec& b) {
    return a.kind == b.kind && a.text == b.text;
  }
};

}  // namespace tessera

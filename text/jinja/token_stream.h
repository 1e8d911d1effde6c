#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "text/jinja/lexer.h"

namespace tessera::jinja {

// A parser's position in the tokens. The last token has the kind `end`, and the position never goes
// beyond it. Owns the tokens.
class TokenStream {
 public:
  explicit TokenStream(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& peek(size_t ahead = 0) const {
    return tokens_[at_ + ahead < tokens_.size() ? at_ + ahead : tokens_.size() - 1];
  }
  Token take() {
    const Token token = peek();
    if (at_ + 1 < tokens_.size()) ++at_;
    return token;
  }
  int line() const { return peek().line; }

  bool at(Token::Kind kind) const { return peek().kind == kind; }
  bool at_symbol(std::string_view text) const {
    return at(Token::Kind::symbol) && peek().text == text;
  }
  bool at_name(std::string_view text) const { return at(Token::Kind::name) && peek().text == text; }

  bool accept_symbol(std::string_view text) { return at_symbol(text) && (take(), true); }
  bool accept_name(std::string_view text) { return at_name(text) && (take(), true); }

  absl::Status error(const std::string& message) const {
    return absl::InvalidArgumentError("line " + std::to_string(line()) + ": " + message);
  }
  absl::Status unexpected(const std::string& wanted) const {
    const Token& token = peek();
    const std::string found = token.kind == Token::Kind::end             ? "the template's end"
                              : token.kind == Token::Kind::end_statement ? "\"%}\""
                              : token.kind == Token::Kind::end_output    ? "\"}}\""
                                                                         : "\"" + token.text + "\"";
    return error("expected " + wanted + ", found " + found);
  }
  absl::Status expect_symbol(std::string_view text) {
    if (accept_symbol(text)) return absl::OkStatus();
    return unexpected("\"" + std::string(text) + "\"");
  }
  absl::Status expect(Token::Kind kind, const std::string& wanted) {
    if (!at(kind)) return unexpected(wanted);
    take();
    return absl::OkStatus();
  }

 private:
  std::vector<Token> tokens_;
  size_t at_ = 0;
};

}  // namespace tessera::jinja

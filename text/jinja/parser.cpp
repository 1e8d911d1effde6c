#include "text/jinja/parser.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"

namespace tessera::jinja {
namespace {

using Kind = Statement::Kind;
using StatementPtr = std::unique_ptr<Statement>;
using Words = std::vector<std::string_view>;

// Returns: the names of all macros of the template, because a call may precede the definition.
std::set<std::string> find_macros(const std::vector<Token>& tokens) {
  std::set<std::string> names;
  for (size_t i = 0; i + 2 < tokens.size(); ++i) {
    if (tokens[i].kind == Token::Kind::begin_statement && tokens[i + 1].text == "macro" &&
        tokens[i + 2].kind == Token::Kind::name) {
      names.insert(tokens[i + 2].text);
    }
  }
  return names;
}

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens)
      : macros_(find_macros(tokens)), stream_(std::move(tokens)) {}

  absl::StatusOr<Statements> run() { return statements({}); }

 private:
  static constexpr std::string_view kEndIf = "endif";

  StatementPtr make(Kind kind) const {
    auto statement = std::make_unique<Statement>();
    statement->kind = kind;
    statement->line = stream_.line();
    return statement;
  }

  absl::StatusOr<ExpressionPtr> expression() { return parse_expression(stream_, macros_, depth_); }

  absl::Status end_statement() { return stream_.expect(Token::Kind::end_statement, "\"%}\""); }

  bool at_word(const Words& words) const {
    return stream_.at(Token::Kind::begin_statement) &&
           std::any_of(words.begin(), words.end(),
                       [&](std::string_view word) { return stream_.peek(1).text == word; });
  }

  // Parses statements up to one that begins with a word of `until`. Takes that word and stores it
  // in `word_`.
  absl::StatusOr<Statements> statements(const Words& until) {
    if (++depth_ > kMaxTreeDepth) {
      return stream_.error("nested more than " + std::to_string(kMaxTreeDepth) + " deep");
    }
    Statements found;
    while (!at_word(until)) {
      if (stream_.at(Token::Kind::end)) {
        if (until.empty()) break;
        return stream_.unexpected("{% " + std::string(until.back()) + " %}");
      }
      TESSERA_ASSIGN_OR_RETURN(StatementPtr next, statement());
      found.push_back(std::move(next));
    }
    if (!until.empty()) {
      stream_.take();
      word_ = stream_.take().text;
    }
    --depth_;
    return found;
  }

  absl::StatusOr<StatementPtr> statement() {
    if (stream_.at(Token::Kind::text)) {
      StatementPtr text = make(Kind::text);
      text->text = Text(stream_.take().text);
      return text;
    }
    if (stream_.at(Token::Kind::begin_output)) {
      StatementPtr output = make(Kind::output);
      stream_.take();
      TESSERA_ASSIGN_OR_RETURN(output->expression, expression());
      TESSERA_RETURN_IF_ERROR(stream_.expect(Token::Kind::end_output, "\"}}\""));
      return output;
    }
    TESSERA_RETURN_IF_ERROR(stream_.expect(Token::Kind::begin_statement, "a tag"));
    return tag();
  }

  absl::StatusOr<StatementPtr> tag() {
    if (stream_.at_name("if")) return condition();
    if (stream_.at_name("for")) return loop();
    if (stream_.at_name("set")) return set();
    if (stream_.at_name("macro")) return macro();
    if (stream_.at_name("generation")) return generation();
    if (stream_.at_name("filter")) return filter_block();
    if (stream_.at_name("break")) return jump(Kind::break_loop);
    if (stream_.at_name("continue")) return jump(Kind::continue_loop);
    if (!stream_.at(Token::Kind::name)) return stream_.unexpected("a statement");
    return stream_.error("unknown statement \"" + stream_.peek().text + "\"");
  }

  absl::StatusOr<StatementPtr> jump(Kind kind) {
    if (loops_ == 0) return stream_.error("\"" + stream_.peek().text + "\" outside of a loop");
    StatementPtr statement = make(kind);
    stream_.take();
    TESSERA_RETURN_IF_ERROR(end_statement());
    return statement;
  }

  absl::StatusOr<StatementPtr> generation() {
    StatementPtr block = make(Kind::block);
    stream_.take();
    TESSERA_RETURN_IF_ERROR(end_statement());
    TESSERA_ASSIGN_OR_RETURN(block->body, statements({"endgeneration"}));
    TESSERA_RETURN_IF_ERROR(end_statement());
    return block;
  }

  absl::StatusOr<StatementPtr> filter_block() {
    StatementPtr block = make(Kind::filter_block);
    stream_.take();
    TESSERA_ASSIGN_OR_RETURN(block->expression, parse_filters(stream_, macros_, depth_));
    TESSERA_RETURN_IF_ERROR(end_statement());
    TESSERA_ASSIGN_OR_RETURN(block->body, statements({"endfilter"}));
    TESSERA_RETURN_IF_ERROR(end_statement());
    return block;
  }

  absl::StatusOr<StatementPtr> condition() {
    StatementPtr choice = make(Kind::condition);
    stream_.take();
    for (word_ = "elif"; word_ == "elif";) {
      Statement::Branch branch;
      TESSERA_ASSIGN_OR_RETURN(branch.condition, expression());
      TESSERA_RETURN_IF_ERROR(end_statement());
      TESSERA_ASSIGN_OR_RETURN(branch.body, statements({"elif", "else", kEndIf}));
      choice->branches.push_back(std::move(branch));
    }
    if (word_ == "else") {
      TESSERA_RETURN_IF_ERROR(end_statement());
      TESSERA_ASSIGN_OR_RETURN(choice->fallback, statements({kEndIf}));
    }
    TESSERA_RETURN_IF_ERROR(end_statement());
    return choice;
  }

  // name, name, ... with or without brackets
  absl::Status targets(Statement& statement) {
    const bool brackets = stream_.accept_symbol("(");
    do {
      if (!stream_.at(Token::Kind::name)) return stream_.unexpected("a variable's name");
      statement.targets.push_back(stream_.take().text);
    } while (stream_.accept_symbol(","));
    return brackets ? stream_.expect_symbol(")") : absl::OkStatus();
  }

  absl::StatusOr<StatementPtr> loop() {
    StatementPtr loop = make(Kind::loop);
    stream_.take();
    TESSERA_RETURN_IF_ERROR(targets(*loop));
    if (!stream_.accept_name("in")) return stream_.unexpected("\"in\"");
    TESSERA_ASSIGN_OR_RETURN(loop->expression, parse_unconditional(stream_, macros_, depth_));
    if (stream_.accept_name("if")) {
      TESSERA_ASSIGN_OR_RETURN(loop->condition, expression());
    }
    if (stream_.at_name("recursive")) return stream_.error("recursive loops are not supported");
    TESSERA_RETURN_IF_ERROR(end_statement());
    ++loops_;
    TESSERA_ASSIGN_OR_RETURN(loop->body, statements({"else", "endfor"}));
    --loops_;
    if (word_ == "else") {
      TESSERA_RETURN_IF_ERROR(end_statement());
      TESSERA_ASSIGN_OR_RETURN(loop->fallback, statements({"endfor"}));
    }
    TESSERA_RETURN_IF_ERROR(end_statement());
    return loop;
  }

  absl::StatusOr<StatementPtr> set() {
    StatementPtr set = make(Kind::set);
    stream_.take();
    TESSERA_RETURN_IF_ERROR(targets(*set));
    if (set->targets.size() == 1 && stream_.accept_symbol(".")) {
      if (!stream_.at(Token::Kind::name)) return stream_.unexpected("an attribute's name");
      set->attribute = stream_.take().text;
    }
    if (stream_.accept_symbol("=")) {
      TESSERA_ASSIGN_OR_RETURN(set->expression, expression());
      TESSERA_RETURN_IF_ERROR(tuple_rest(*set));
      TESSERA_RETURN_IF_ERROR(end_statement());
      return set;
    }
    if (set->targets.size() != 1 || !set->attribute.empty()) return stream_.unexpected("\"=\"");
    set->kind = Kind::set_block;
    TESSERA_RETURN_IF_ERROR(end_statement());
    TESSERA_ASSIGN_OR_RETURN(set->body, statements({"endset"}));
    TESSERA_RETURN_IF_ERROR(end_statement());
    return set;
  }

  // `set a, b = c, d`: further values after the first one make the expression a list.
  absl::Status tuple_rest(Statement& set) {
    if (!stream_.at_symbol(",")) return absl::OkStatus();
    auto tuple = std::make_unique<Expression>();
    tuple->kind = Expression::Kind::list;
    tuple->line = set.line;
    tuple->children.push_back(std::move(set.expression));
    while (stream_.accept_symbol(",")) {
      TESSERA_ASSIGN_OR_RETURN(ExpressionPtr next, expression());
      tuple->children.push_back(std::move(next));
    }
    set.expression = std::move(tuple);
    return absl::OkStatus();
  }

  absl::StatusOr<StatementPtr> macro() {
    StatementPtr macro = make(Kind::macro);
    stream_.take();
    if (!stream_.at(Token::Kind::name)) return stream_.unexpected("a macro's name");
    macro->name = stream_.take().text;
    TESSERA_RETURN_IF_ERROR(stream_.expect_symbol("("));
    while (!stream_.accept_symbol(")")) {
      if (!stream_.at(Token::Kind::name)) return stream_.unexpected("a parameter's name");
      macro->targets.push_back(stream_.take().text);
      ExpressionPtr value;
      if (stream_.accept_symbol("=")) {
        TESSERA_ASSIGN_OR_RETURN(value, expression());
      }
      macro->defaults.push_back(std::move(value));
      if (!stream_.at_symbol(")")) TESSERA_RETURN_IF_ERROR(stream_.expect_symbol(","));
    }
    TESSERA_RETURN_IF_ERROR(end_statement());
    const int loops = std::exchange(loops_, 0);
    TESSERA_ASSIGN_OR_RETURN(macro->body, statements({"endmacro"}));
    loops_ = loops;
    TESSERA_RETURN_IF_ERROR(end_statement());
    return macro;
  }

  const std::set<std::string> macros_;
  TokenStream stream_;
  std::string word_;  // the word that ended the last statements()
  int depth_ = 0;
  int loops_ = 0;  // loops around the current statement
};

}  // namespace

absl::StatusOr<Statements> parse_template(std::string_view source) {
  TESSERA_ASSIGN_OR_RETURN(std::vector<Token> tokens, tokenize(source));
  return Parser(std::move(tokens)).run();
}

}  // namespace tessera::jinja

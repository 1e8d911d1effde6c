#include <charconv>
#include <utility>

#include "base/status_macros.h"
#include "text/jinja/builtins.h"
#include "text/jinja/parser.h"

namespace tessera::jinja {
namespace {

using Kind = Expression::Kind;
using Result = absl::StatusOr<ExpressionPtr>;

class ExpressionParser {
 public:
  ExpressionParser(TokenStream& stream, const std::set<std::string>& macros, int depth)
      : stream_(stream), macros_(macros), depth_(depth) {}

  // value [if condition [else other]]
  Result conditional() {
    TESSERA_ASSIGN_OR_RETURN(ExpressionPtr value, logical_or());
    while (stream_.at_name("if")) {
      ExpressionPtr choice = make(Kind::conditional);
      stream_.take();
      TESSERA_ASSIGN_OR_RETURN(ExpressionPtr condition, logical_or());
      TESSERA_RETURN_IF_ERROR(adopt(*choice, std::move(value)));
      TESSERA_RETURN_IF_ERROR(adopt(*choice, std::move(condition)));
      if (stream_.accept_name("else")) {
        TESSERA_ASSIGN_OR_RETURN(ExpressionPtr other, nested());
        TESSERA_RETURN_IF_ERROR(adopt(*choice, std::move(other)));
      }
      value = std::move(choice);
    }
    return value;
  }

  Result logical_or() {
    TESSERA_ASSIGN_OR_RETURN(ExpressionPtr left, logical_and());
    while (stream_.at_name("or")) {
      TESSERA_RETURN_IF_ERROR(extend(left, Kind::logical_or, &ExpressionParser::logical_and));
    }
    return left;
  }

  // filter | filter ..., of the text of a {% filter %}
  Result filters() {
    ExpressionPtr value = make(Kind::name);
    value->name = kFilterInput;
    do {
      TESSERA_RETURN_IF_ERROR(add_filter(value));
    } while (stream_.accept_symbol("|"));
    return value;
  }

 private:
  using Rule = Result (ExpressionParser::*)();

  ExpressionPtr make(Kind kind) const {
    auto expression = std::make_unique<Expression>();
    expression->kind = kind;
    expression->line = stream_.line();
    return expression;
  }

  absl::Status too_deep() const {
    return stream_.error("nested more than " + std::to_string(kMaxTreeDepth) + " deep");
  }

  absl::Status adopt(Expression& parent, ExpressionPtr child) {
    if (child != nullptr) parent.depth = std::max(parent.depth, child->depth + 1);
    parent.children.push_back(std::move(child));
    return depth_ + parent.depth > kMaxTreeDepth ? too_deep() : absl::OkStatus();
  }

  // Parses a complete nested expression, e.g. in brackets, and limits this parser's recursion.
  Result nested() {
    if (++depth_ > kMaxTreeDepth) return too_deep();
    Result result = conditional();
    --depth_;
    return result;
  }

  // Replaces `left` by (left OPERATOR right). The operator is the current token.
  absl::Status extend(ExpressionPtr& left, Kind kind, Rule rule) {
    ExpressionPtr whole = make(kind);
    whole->name = stream_.take().text;
    TESSERA_ASSIGN_OR_RETURN(ExpressionPtr right, (this->*rule)());
    TESSERA_RETURN_IF_ERROR(adopt(*whole, std::move(left)));
    TESSERA_RETURN_IF_ERROR(adopt(*whole, std::move(right)));
    left = std::move(whole);
    return absl::OkStatus();
  }

  Result logical_and() {
    TESSERA_ASSIGN_OR_RETURN(ExpressionPtr left, logical_not());
    while (stream_.at_name("and")) {
      TESSERA_RETURN_IF_ERROR(extend(left, Kind::logical_and, &ExpressionParser::logical_not));
    }
    return left;
  }

  Result logical_not() {
    if (!stream_.at_name("not")) return comparison();
    return prefixed(&ExpressionParser::logical_not);
  }

  Result prefixed(Rule rule) {
    ExpressionPtr whole = make(Kind::unary);
    whole->name = stream_.take().text;
    if (++depth_ > kMaxTreeDepth) return too_deep();
    TESSERA_ASSIGN_OR_RETURN(ExpressionPtr operand, (this->*rule)());
    --depth_;
    TESSERA_RETURN_IF_ERROR(adopt(*whole, std::move(operand)));
    return whole;
  }

  // Takes the comparison operator at the current token. Returns: empty if there is none.
  std::string take_comparison() {
    for (const char* symbol : {"==", "!=", "<=", ">=", "<", ">"}) {
      if (stream_.accept_symbol(symbol)) return symbol;
    }
    if (stream_.accept_name("in")) return "in";
    if (stream_.at_name("not") && stream_.peek(1).kind == Token::Kind::name &&
        stream_.peek(1).text == "in") {
      stream_.take();
      stream_.take();
      return "not in";
    }
    return {};
  }

  Result comparison() {
    TESSERA_ASSIGN_OR_RETURN(ExpressionPtr first, sum());
    ExpressionPtr whole = make(Kind::compare);
    for (std::string name = take_comparison(); !name.empty(); name = take_comparison()) {
      if (first != nullptr) TESSERA_RETURN_IF_ERROR(adopt(*whole, std::move(first)));
      whole->operators.push_back(std::move(name));
      TESSERA_ASSIGN_OR_RETURN(ExpressionPtr next, sum());
      TESSERA_RETURN_IF_ERROR(adopt(*whole, std::move(next)));
    }
    return first != nullptr ? std::move(first) : std::move(whole);
  }

  Result sum() { return chain({"+", "-"}, &ExpressionParser::concatenation); }
  Result concatenation() { return chain({"~"}, &ExpressionParser::product); }
  Result product() { return chain({"*", "//", "/", "%"}, &ExpressionParser::power); }
  Result power() { return chain({"**"}, &ExpressionParser::unary); }

  Result chain(std::initializer_list<const char*> operators, Rule rule) {
    TESSERA_ASSIGN_OR_RETURN(ExpressionPtr left, (this->*rule)());
    const auto here = [&] {
      for (const char* name : operators) {
        if (stream_.at_symbol(name)) return true;
      }
      return false;
    };
    while (here()) TESSERA_RETURN_IF_ERROR(extend(left, Kind::binary, rule));
    return left;
  }

  Result unary() {
    TESSERA_ASSIGN_OR_RETURN(ExpressionPtr value, signed_operand());
    while (true) {
      if (stream_.accept_symbol("|")) {
        TESSERA_RETURN_IF_ERROR(add_filter(value));
      } else if (stream_.at_name("is")) {
        TESSERA_RETURN_IF_ERROR(add_test(value));
      } else {
        return value;
      }
    }
  }

  Result signed_operand() {
    if (stream_.at_symbol("-") || stream_.at_symbol("+")) {
      return prefixed(&ExpressionParser::signed_operand);
    }
    return postfix();
  }

  absl::Status add_filter(ExpressionPtr& input) {
    ExpressionPtr filter = make(Kind::filter);
    if (!stream_.at(Token::Kind::name)) return stream_.unexpected("a filter's name");
    if (!known_filter(stream_.peek().text)) {
      return stream_.error("unknown filter \"" + stream_.peek().text + "\"");
    }
    filter->name = stream_.take().text;
    TESSERA_RETURN_IF_ERROR(adopt(*filter, std::move(input)));
    if (stream_.accept_symbol("(")) TESSERA_RETURN_IF_ERROR(arguments(*filter));
    input = std::move(filter);
    return absl::OkStatus();
  }

  absl::Status add_test(ExpressionPtr& input) {
    stream_.take();
    ExpressionPtr test = make(Kind::test);
    test->negated = stream_.accept_name("not");
    if (!stream_.at(Token::Kind::name)) return stream_.unexpected("a test's name");
    if (!known_test(stream_.peek().text)) {
      return stream_.error("unknown test \"" + stream_.peek().text + "\"");
    }
    test->name = stream_.take().text;
    TESSERA_RETURN_IF_ERROR(adopt(*test, std::move(input)));
    if (stream_.accept_symbol("(")) {
      TESSERA_RETURN_IF_ERROR(arguments(*test));
    } else if (begins_test_argument()) {
      TESSERA_ASSIGN_OR_RETURN(ExpressionPtr argument, postfix());
      TESSERA_RETURN_IF_ERROR(adopt(*test, std::move(argument)));
    }
    input = std::move(test);
    return absl::OkStatus();
  }

  bool begins_test_argument() const {
    const Token& token = stream_.peek();
    switch (token.kind) {
      case Token::Kind::string:
      case Token::Kind::integer:
      case Token::Kind::number:
        return true;
      case Token::Kind::symbol:
        return token.text == "[" || token.text == "{";
      case Token::Kind::name:
        for (const char* word : {"else", "or", "and", "is", "if", "in", "not", "recursive"}) {
          if (token.text == word) return false;
        }
        return true;
      default:
        return false;
    }
  }

  Result postfix() {
    TESSERA_ASSIGN_OR_RETURN(ExpressionPtr value, primary());
    while (true) {
      if (stream_.at_symbol(".") && stream_.peek(1).kind == Token::Kind::integer) {
        TESSERA_RETURN_IF_ERROR(numbered_item(value));
      } else if (stream_.accept_symbol(".")) {
        ExpressionPtr attribute = make(Kind::attribute);
        if (!stream_.at(Token::Kind::name)) return stream_.unexpected("an attribute's name");
        attribute->name = stream_.take().text;
        TESSERA_RETURN_IF_ERROR(adopt(*attribute, std::move(value)));
        value = std::move(attribute);
      } else if (stream_.accept_symbol("[")) {
        TESSERA_RETURN_IF_ERROR(subscript(value));
      } else if (stream_.at_symbol("(")) {
        TESSERA_RETURN_IF_ERROR(call(value));
      } else {
        return value;
      }
    }
  }

  // `list.0` means `list[0]`.
  absl::Status numbered_item(ExpressionPtr& object) {
    ExpressionPtr item = make(Kind::index);
    stream_.take();
    TESSERA_ASSIGN_OR_RETURN(ExpressionPtr key, number(make(Kind::literal)));
    TESSERA_RETURN_IF_ERROR(adopt(*item, std::move(object)));
    TESSERA_RETURN_IF_ERROR(adopt(*item, std::move(key)));
    object = std::move(item);
    return absl::OkStatus();
  }

  absl::Status call(ExpressionPtr& callee) {
    const bool function = callee->kind == Kind::name &&
                          (known_function(callee->name) || macros_.count(callee->name) != 0);
    const bool method = callee->kind == Kind::attribute && known_method(callee->name);
    if (!function && !method) {
      return stream_.error(
          callee->kind == Kind::attribute ? "unknown method \"" + callee->name + "\""
          : callee->kind == Kind::name    ? "unknown function \"" + callee->name + "\""
                                          : "this cannot be called");
    }
    ExpressionPtr whole = make(Kind::call);
    stream_.take();
    TESSERA_RETURN_IF_ERROR(adopt(*whole, std::move(callee)));
    TESSERA_RETURN_IF_ERROR(arguments(*whole));
    callee = std::move(whole);
    return absl::OkStatus();
  }

  // After "(": value, ..., name=value, ... ")"
  absl::Status arguments(Expression& target) {
    while (!stream_.accept_symbol(")")) {
      const bool named = stream_.at(Token::Kind::name) &&
                         stream_.peek(1).kind == Token::Kind::symbol && stream_.peek(1).text == "=";
      std::string name;
      if (named) {
        name = stream_.take().text;
        stream_.take();
      } else if (!target.named.empty()) {
        return stream_.error("a positional argument after a named one");
      }
      TESSERA_ASSIGN_OR_RETURN(ExpressionPtr value, nested());
      if (named) {
        target.depth = std::max(target.depth, value->depth + 1);
        target.named.emplace_back(std::move(name), std::move(value));
      } else {
        TESSERA_RETURN_IF_ERROR(adopt(target, std::move(value)));
      }
      if (!stream_.at_symbol(")")) TESSERA_RETURN_IF_ERROR(stream_.expect_symbol(","));
    }
    return absl::OkStatus();
  }

  // After "[": key "]", or begin:end:step "]"; each of the three may be omitted.
  absl::Status subscript(ExpressionPtr& object) {
    ExpressionPtr whole = make(Kind::index);
    TESSERA_RETURN_IF_ERROR(adopt(*whole, std::move(object)));
    const auto bound = [&]() -> absl::Status {
      ExpressionPtr value;
      if (!stream_.at_symbol(":") && !stream_.at_symbol("]")) {
        TESSERA_ASSIGN_OR_RETURN(value, nested());
      }
      return adopt(*whole, std::move(value));
    };
    TESSERA_RETURN_IF_ERROR(bound());
    while (whole->children.size() < 4 && stream_.accept_symbol(":")) {
      whole->kind = Kind::slice;
      TESSERA_RETURN_IF_ERROR(bound());
    }
    if (whole->kind == Kind::slice) whole->children.resize(4);
    if (whole->kind == Kind::index && whole->children[1] == nullptr) {
      return stream_.unexpected("an index");
    }
    object = std::move(whole);
    return stream_.expect_symbol("]");
  }

  Result primary() {
    ExpressionPtr expression = make(Kind::literal);
    switch (stream_.peek().kind) {
      case Token::Kind::string: {
        std::string text;
        while (stream_.at(Token::Kind::string)) text += stream_.take().text;
        expression->value = Value(Text(std::move(text)));
        return expression;
      }
      case Token::Kind::integer:
      case Token::Kind::number:
        return number(std::move(expression));
      case Token::Kind::name:
        return name(std::move(expression));
      default:
        break;
    }
    if (stream_.accept_symbol("(")) return parenthesized();
    if (stream_.accept_symbol("[")) {
      expression->kind = Kind::list;
      TESSERA_RETURN_IF_ERROR(elements(*expression, "]"));
      return expression;
    }
    if (stream_.accept_symbol("{")) return dict(std::move(expression));
    return stream_.unexpected("an expression");
  }

  Result number(ExpressionPtr expression) {
    const Token token = stream_.take();
    const char* const end = token.text.data() + token.text.size();
    int64_t integer = 0;
    double number = 0;
    const std::errc error = token.kind == Token::Kind::integer
                                ? std::from_chars(token.text.data(), end, integer).ec
                                : std::from_chars(token.text.data(), end, number).ec;
    if (error != std::errc()) return stream_.error("number out of range: " + token.text);
    expression->value = token.kind == Token::Kind::integer ? Value(integer) : Value(number);
    return expression;
  }

  Result name(ExpressionPtr expression) {
    const Token token = stream_.take();
    const std::string_view text = token.text;
    if (text == "true" || text == "True") {
      expression->value = Value(true);
    } else if (text == "false" || text == "False") {
      expression->value = Value(false);
    } else if (text == "none" || text == "None") {
      expression->value = Value(None{});
    } else {
      expression->kind = Kind::name;
      expression->name = text;
    }
    return expression;
  }

  // After "(": an expression in brackets, or a tuple, which becomes a list.
  Result parenthesized() {
    ExpressionPtr tuple = make(Kind::list);
    if (stream_.accept_symbol(")")) return tuple;
    TESSERA_ASSIGN_OR_RETURN(ExpressionPtr first, nested());
    if (stream_.accept_symbol(")")) return first;
    TESSERA_RETURN_IF_ERROR(adopt(*tuple, std::move(first)));
    TESSERA_RETURN_IF_ERROR(stream_.expect_symbol(","));
    TESSERA_RETURN_IF_ERROR(elements(*tuple, ")"));
    return tuple;
  }

  absl::Status elements(Expression& list, std::string_view close) {
    while (!stream_.accept_symbol(close)) {
      TESSERA_ASSIGN_OR_RETURN(ExpressionPtr item, nested());
      TESSERA_RETURN_IF_ERROR(adopt(list, std::move(item)));
      if (!stream_.at_symbol(close)) TESSERA_RETURN_IF_ERROR(stream_.expect_symbol(","));
    }
    return absl::OkStatus();
  }

  Result dict(ExpressionPtr expression) {
    expression->kind = Kind::dict;
    while (!stream_.accept_symbol("}")) {
      TESSERA_ASSIGN_OR_RETURN(ExpressionPtr key, nested());
      TESSERA_RETURN_IF_ERROR(stream_.expect_symbol(":"));
      TESSERA_ASSIGN_OR_RETURN(ExpressionPtr value, nested());
      TESSERA_RETURN_IF_ERROR(adopt(*expression, std::move(key)));
      TESSERA_RETURN_IF_ERROR(adopt(*expression, std::move(value)));
      if (!stream_.at_symbol("}")) TESSERA_RETURN_IF_ERROR(stream_.expect_symbol(","));
    }
    return expression;
  }

  TokenStream& stream_;
  const std::set<std::string>& macros_;
  int depth_;
};

}  // namespace

absl::StatusOr<ExpressionPtr> parse_expression(TokenStream& stream,
                                               const std::set<std::string>& macros, int depth) {
  return ExpressionParser(stream, macros, depth).conditional();
}

absl::StatusOr<ExpressionPtr> parse_filters(TokenStream& stream,
                                            const std::set<std::string>& macros, int depth) {
  return ExpressionParser(stream, macros, depth).filters();
}

absl::StatusOr<ExpressionPtr> parse_unconditional(TokenStream& stream,
                                                  const std::set<std::string>& macros, int depth) {
  return ExpressionParser(stream, macros, depth).logical_or();
}

}  // namespace tessera::jinja

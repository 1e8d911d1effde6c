#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace tessera::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

struct Expression {
  enum class Kind {
    literal,      // value
    name,         // name
    list,         // children
    dict,         // children: key, value, key, value ...
    unary,        // name: "-" or "+" or "not"; children: operand
    binary,       // name: the operator; children: left, right
    compare,      // operators; children: one more than operators
    logical_and,  // children: left, right
    logical_or,
    conditional,  // children: value, condition, [else]
    attribute,    // name; children: object
    index,        // children: object, key
    slice,        // children: object, begin, end, step; all except object may be null
    call,         // children: callee, arguments...; named
    filter,       // name; children: input, arguments...; named
    test,         // name, negated; children: input, arguments...
  };

  Kind kind = Kind::literal;
  int line = 0;
  int depth = 1;  // of this subtree
  Value value;
  std::string name;
  bool negated = false;
  std::vector<std::string> operators;
  std::vector<ExpressionPtr> children;
  std::vector<std::pair<std::string, ExpressionPtr>> named;  // name=value arguments
};

// Name of the variable with the text of a {% filter %}. No template can write it.
inline constexpr const char* kFilterInput = "";

struct Statement;
using Statements = std::vector<std::unique_ptr<Statement>>;

struct Statement {
  enum class Kind {
    text,          // text
    output,        // expression
    condition,     // branches, fallback
    loop,          // targets, expression, condition (may be null), body, fallback
    set,           // targets, or object.attribute; expression
    set_block,     // targets; body
    macro,         // name; targets with defaults (null: required); body
    filter_block,  // expression, whose innermost input is the variable kFilterInput; body
    block,         // body: {% generation %}
    break_loop,
    continue_loop,
  };

  struct Branch {
    ExpressionPtr condition;
    Statements body;
  };

  Kind kind = Kind::text;
  int line = 0;
  Text text;
  std::string name;
  std::string attribute;  // of {% set name.attribute = ... %}
  std::vector<std::string> targets;
  std::vector<ExpressionPtr> defaults;
  ExpressionPtr expression;
  ExpressionPtr condition;
  std::vector<Branch> branches;
  Statements body;
  Statements fallback;
};

}  // namespace tessera::jinja

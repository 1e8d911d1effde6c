#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/ast.h"

namespace tessera::jinja {

// The variables visible at a position of the template. Each loop iteration has a scope of its own;
// an `if` has none. A macro reads its own scope and the outermost scope of the template.
class Scopes {
 public:
  Scopes() : scopes_(1) {}

  void set(std::string_view name, Value value) {
    for (auto& [known, old] : scopes_.back()) {
      if (known == name) {
        old = std::move(value);
        return;
      }
    }
    scopes_.back().emplace_back(name, std::move(value));
  }

  // Return: null if there is no such variable. Not owned; valid until the next set().
  const Value* find(std::string_view name) const {
    for (size_t i = scopes_.size(); i-- > base_;) {
      if (const Value* value = find(scopes_[i], name)) return value;
    }
    return find(scopes_[0], name);
  }

  // Returns: the variable, or the attribute of a namespace, that an expression names; null if it
  // names none. As find().
  Value* holder(const Expression& expression) {
    if (expression.kind == Expression::Kind::name) {
      return const_cast<Value*>(find(expression.name));
    }
    if (expression.kind != Expression::Kind::attribute) return nullptr;
    const Value* space = holder(*expression.children[0]);
    return space == nullptr || space->space() == nullptr
               ? nullptr
               : space->space()->attributes.find_mutable(expression.name);
  }

  // Returns: how many variables and scopes there are, which a search visits at most.
  size_t size() const {
    size_t variables = 0;
    for (const Scope& scope : scopes_) variables += scope.size() + 1;
    return variables;
  }

  // Opens a scope within the current one until destruction.
  class Nested {
   public:
    explicit Nested(Scopes& scopes) : scopes_(scopes) { scopes_.scopes_.emplace_back(); }
    ~Nested() { scopes_.scopes_.pop_back(); }
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;

   private:
    Scopes& scopes_;
  };

  // Opens the scope of a macro until destruction. Scopes of the caller are not visible, except the
  // outermost.
  class Call {
   public:
    explicit Call(Scopes& scopes)
        : scopes_(scopes),
          base_(std::exchange(scopes.base_, scopes.scopes_.size())),
          scope_(scopes) {}
    ~Call() { scopes_.base_ = base_; }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    Scopes& scopes_;
    size_t base_;
    Nested scope_;
  };

 private:
  using Scope = std::vector<std::pair<std::string, Value>>;

  static const Value* find(const Scope& scope, std::string_view name) {
    for (const auto& [known, value] : scope) {
      if (known == name) return &value;
    }
    return nullptr;
  }

  std::vector<Scope> scopes_;
  size_t base_ = 0;
};

}  // namespace tessera::jinja

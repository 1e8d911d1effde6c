#include "text/jinja/interpreter.h"

#include <algorithm>
#include <ctime>
#include <deque>
#include <utility>

#include "base/status_macros.h"
#include "text/jinja/builtins.h"
#include "text/jinja/scope.h"

namespace tessera::jinja {
namespace {

using Result = absl::StatusOr<Value>;

constexpr size_t kStepCost = 16;
constexpr size_t kCallCost = 128;       // of a filter, a test or a function, besides its steps
constexpr size_t kIterationCost = 512;  // of a loop, for its variables
constexpr int kMaxCallDepth = 400;      // nested statements and expressions, macro calls included

enum class Flow { next, break_loop, continue_loop };

class Interpreter final : public Rendering {
 public:
  explicit Interpreter(const Context& context) : context_(context) {
    for (const auto& [name, value] : context.variables) scopes_.set(name, value);
  }

  absl::StatusOr<Text> run(const Statements& statements) {
    const absl::StatusOr<Flow> flow = execute(statements);
    if (flow.ok()) return std::move(out_);
    if (raised_) return flow.status();
    return absl::Status(flow.status().code(), "line " + std::to_string(line_) + ": " +
                                                  std::string(flow.status().message()));
  }

  absl::Status charge(size_t units) override {
    if (units > allowed_work_ - work_) {
      return absl::InvalidArgumentError("the template does more work than is allowed");
    }
    work_ += units;
    return absl::OkStatus();
  }

  Value make_namespace(Dict attributes) override {
    namespaces_.push_back({std::move(attributes)});
    return Value(&namespaces_.back());
  }

  std::string local_time(const std::string& format) override {
    const std::time_t seconds = context_.unix_seconds;
    std::tm time{};
    localtime_r(&seconds, &time);
    char buffer[1024];
    return {buffer, std::strftime(buffer, sizeof buffer, format.c_str(), &time)};
  }

 private:
  // Counts one recursion level for as long as it exists.
  class Level {
   public:
    explicit Level(int& depth) : depth_(++depth) {}
    ~Level() { --depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    int& depth_;
  };

  // Charges for the names that a variable's name may be compared with.
  absl::Status charge_names(size_t names = 1) { return charge(names * scopes_.size()); }

  absl::Status step(int line, size_t cost = kStepCost) {
    line_ = line;
    if (depth_ > kMaxCallDepth) {
      return absl::InvalidArgumentError("the template recurses too deeply");
    }
    return charge(cost);
  }

  absl::Status print_text(const Text& text) {
    TESSERA_RETURN_IF_ERROR(charge(text.cost()));
    out_.append(text);
    return absl::OkStatus();
  }

  // --- statements --------------------------------------------------------------------------------

  absl::StatusOr<Flow> execute(const Statements& statements) {
    for (const auto& statement : statements) {
      TESSERA_ASSIGN_OR_RETURN(const Flow flow, execute(*statement));
      if (flow != Flow::next) return flow;
    }
    return Flow::next;
  }

  absl::StatusOr<Flow> execute(const Statement& statement) {
    const Level level(depth_);
    TESSERA_RETURN_IF_ERROR(step(statement.line));
    switch (statement.kind) {
      case Statement::Kind::text:
        TESSERA_RETURN_IF_ERROR(print_text(statement.text));
        break;
      case Statement::Kind::output:
        TESSERA_RETURN_IF_ERROR(output(statement));
        break;
      case Statement::Kind::condition:
        return condition(statement);
      case Statement::Kind::loop:
        return loop(statement);
      case Statement::Kind::set:
        TESSERA_RETURN_IF_ERROR(set(statement));
        break;
      case Statement::Kind::set_block:
        TESSERA_RETURN_IF_ERROR(set_block(statement));
        break;
      case Statement::Kind::macro:
        TESSERA_RETURN_IF_ERROR(charge_names());
        scopes_.set(statement.name, Value(Macro{&statement}));
        break;
      case Statement::Kind::filter_block:
        TESSERA_RETURN_IF_ERROR(filter_block(statement));
        break;
      case Statement::Kind::block:
        return execute(statement.body);
      case Statement::Kind::break_loop:
        return Flow::break_loop;
      case Statement::Kind::continue_loop:
        return Flow::continue_loop;
    }
    return Flow::next;
  }

  absl::Status output(const Statement& statement) {
    TESSERA_ASSIGN_OR_RETURN(const Value value, evaluate(*statement.expression));
    if (value.text() != nullptr) return print_text(*value.text());
    TESSERA_ASSIGN_OR_RETURN(const Text text, print(value, *this));
    return print_text(text);
  }

  // Keeps no value, so that the branch may change a list that it tests.
  absl::StatusOr<bool> truth(const Expression& expression) {
    TESSERA_ASSIGN_OR_RETURN(const Value value, evaluate(expression));
    return value.truthy();
  }

  absl::StatusOr<Flow> condition(const Statement& statement) {
    for (const Statement::Branch& branch : statement.branches) {
      TESSERA_ASSIGN_OR_RETURN(const bool chosen, truth(*branch.condition));
      if (chosen) return execute(branch.body);
    }
    return execute(statement.fallback);
  }

  absl::Status assign(const std::vector<std::string>& targets, const Value& value) {
    TESSERA_RETURN_IF_ERROR(charge_names(targets.size()));
    if (targets.size() == 1) {
      scopes_.set(targets[0], value);
      return absl::OkStatus();
    }
    TESSERA_ASSIGN_OR_RETURN(const auto items, items_of(value, *this));
    if (items.size() != targets.size()) {
      return absl::InvalidArgumentError("cannot unpack " + std::to_string(items.size()) +
                                        " values to " + std::to_string(targets.size()) + " names");
    }
    for (size_t i = 0; i < items.size(); ++i) scopes_.set(targets[i], items[i]);
    return absl::OkStatus();
  }

  absl::Status set(const Statement& statement) {
    TESSERA_ASSIGN_OR_RETURN(const Value value, evaluate(*statement.expression));
    if (statement.attribute.empty()) return assign(statement.targets, value);
    TESSERA_RETURN_IF_ERROR(charge_names());
    const Value* target = scopes_.find(statement.targets[0]);
    if (target == nullptr || target->space() == nullptr) {
      return absl::InvalidArgumentError("\"" + statement.targets[0] + "\" is no namespace");
    }
    auto& attributes = target->space()->attributes.items;
    TESSERA_RETURN_IF_ERROR(charge(attributes.size()));
    for (auto& [name, old] : attributes) {
      if (name.bytes() != statement.attribute) continue;
      old = value;
      return absl::OkStatus();
    }
    attributes.emplace_back(Text(statement.attribute), value);
    return absl::OkStatus();
  }

  absl::Status set_block(const Statement& statement) {
    TESSERA_ASSIGN_OR_RETURN(Text text, captured(statement.body));
    TESSERA_RETURN_IF_ERROR(charge_names());
    scopes_.set(statement.targets[0], Value(std::move(text)));
    return absl::OkStatus();
  }

  absl::Status filter_block(const Statement& statement) {
    TESSERA_ASSIGN_OR_RETURN(Text text, captured(statement.body));
    const Scopes::Nested scope(scopes_);
    scopes_.set(kFilterInput, Value(std::move(text)));
    return output(statement);
  }

  // Returns: the output of the statements, without printing it.
  absl::StatusOr<Text> captured(const Statements& body) {
    Text outer = std::exchange(out_, Text());
    const Scopes::Nested scope(scopes_);
    TESSERA_RETURN_IF_ERROR(execute(body).status());
    return std::exchange(out_, std::move(outer));
  }

  absl::StatusOr<std::vector<Value>> loop_items(const Statement& statement) {
    TESSERA_ASSIGN_OR_RETURN(const Value value, evaluate(*statement.expression));
    TESSERA_ASSIGN_OR_RETURN(auto items, items_of(value, *this));
    if (statement.condition == nullptr) return items;
    std::vector<Value> chosen;
    for (const Value& item : items) {
      const Scopes::Nested scope(scopes_);
      TESSERA_RETURN_IF_ERROR(assign(statement.targets, item));
      TESSERA_ASSIGN_OR_RETURN(const Value wanted, evaluate(*statement.condition));
      if (wanted.truthy()) chosen.push_back(item);
    }
    return chosen;
  }

  absl::StatusOr<Flow> loop(const Statement& statement) {
    TESSERA_ASSIGN_OR_RETURN(const auto items, loop_items(statement));
    for (size_t i = 0; i < items.size(); ++i) {
      const Scopes::Nested scope(scopes_);
      TESSERA_RETURN_IF_ERROR(step(statement.line, kIterationCost));
      TESSERA_RETURN_IF_ERROR(assign(statement.targets, items[i]));
      TESSERA_ASSIGN_OR_RETURN(Value state, loop_state(items, i));
      scopes_.set("loop", std::move(state));
      TESSERA_ASSIGN_OR_RETURN(const Flow flow, execute(statement.body));
      if (flow == Flow::break_loop) break;
    }
    return items.empty() ? execute(statement.fallback) : absl::StatusOr<Flow>(Flow::next);
  }

  // --- expressions -------------------------------------------------------------------------------

  Result evaluate(const Expression& expression) {
    const Level level(depth_);
    TESSERA_RETURN_IF_ERROR(step(expression.line));
    switch (expression.kind) {
      case Expression::Kind::literal:
        return expression.value;
      case Expression::Kind::name:
        return variable(expression);
      case Expression::Kind::list:
        return list(expression);
      case Expression::Kind::dict:
        return dict(expression);
      case Expression::Kind::unary:
        return unary(expression);
      case Expression::Kind::binary:
        return binary_operation(expression);
      case Expression::Kind::compare:
        return comparison(expression);
      case Expression::Kind::logical_and:
        return logical(expression, false);
      case Expression::Kind::logical_or:
        return logical(expression, true);
      case Expression::Kind::conditional:
        return conditional(expression);
      case Expression::Kind::attribute:
        return attribute(expression);
      case Expression::Kind::index:
        return index(expression);
      case Expression::Kind::slice:
        return slice(expression);
      case Expression::Kind::call:
        return call(expression);
      case Expression::Kind::filter:
        return filter(expression);
      case Expression::Kind::test:
        return test(expression);
    }
    return absl::InternalError("unknown expression");
  }

  Result variable(const Expression& expression) {
    TESSERA_RETURN_IF_ERROR(charge_names());
    const Value* value = scopes_.find(expression.name);
    if (value != nullptr) return *value;
    if (known_function(expression.name)) return Value(Macro{nullptr});
    return Value(Undefined{expression.name});
  }

  Result list(const Expression& expression) {
    std::vector<Value> items;
    TESSERA_RETURN_IF_ERROR(charge(expression.children.size() * kItemCost));
    for (const ExpressionPtr& child : expression.children) {
      TESSERA_ASSIGN_OR_RETURN(Value item, evaluate(*child));
      items.push_back(std::move(item));
    }
    return Value::list(std::move(items));
  }

  Result dict(const Expression& expression) {
    Dict dict;
    TESSERA_RETURN_IF_ERROR(charge(expression.children.size() * kItemCost));
    for (size_t i = 0; i < expression.children.size(); i += 2) {
      TESSERA_ASSIGN_OR_RETURN(const Value key, evaluate(*expression.children[i]));
      TESSERA_ASSIGN_OR_RETURN(Value value, evaluate(*expression.children[i + 1]));
      if (i == 0) dict.integer_keys = key.is_integer();
      if (dict.integer_keys ? !key.is_integer() : key.text() == nullptr) {
        return absl::InvalidArgumentError(
            std::string("a dict's keys are all strings or all integers, not ") + key.type_name());
      }
      TESSERA_RETURN_IF_ERROR(charge(key.weight()));
      dict.items.emplace_back(printed(key), std::move(value));
    }
    return Value::dict(std::move(dict));
  }

  Result unary(const Expression& expression) {
    TESSERA_ASSIGN_OR_RETURN(const Value value, evaluate(*expression.children[0]));
    if (expression.name == "not") return Value(!value.truthy());
    const std::string_view name = expression.name;
    if (!value.is_number()) {
      return absl::InvalidArgumentError("\"" + expression.name + "\" does not work on " +
                                        value.type_name());
    }
    return binary(name, Value(int64_t{0}), value, *this);
  }

  Result binary_operation(const Expression& expression) {
    TESSERA_ASSIGN_OR_RETURN(const Value left, evaluate(*expression.children[0]));
    TESSERA_ASSIGN_OR_RETURN(const Value right, evaluate(*expression.children[1]));
    return binary(expression.name, left, right, *this);
  }

  absl::StatusOr<bool> holds(const std::string& name, const Value& left, const Value& right) {
    TESSERA_RETURN_IF_ERROR(charge(std::min(left.weight(), right.weight())));
    if (name == "==") return equal(left, right);
    if (name == "!=") return !equal(left, right);
    if (name == "in" || name == "not in") {
      TESSERA_RETURN_IF_ERROR(charge_search(right, left, *this));
      TESSERA_ASSIGN_OR_RETURN(const bool inside, contains(right, left));
      return inside == (name == "in");
    }
    TESSERA_ASSIGN_OR_RETURN(const int order, compare(left, right));
    if (name == "<") return order < 0;
    if (name == "<=") return order <= 0;
    return name == ">" ? order > 0 : order >= 0;
  }

  Result comparison(const Expression& expression) {
    TESSERA_ASSIGN_OR_RETURN(Value left, evaluate(*expression.children[0]));
    for (size_t i = 0; i < expression.operators.size(); ++i) {
      TESSERA_ASSIGN_OR_RETURN(Value right, evaluate(*expression.children[i + 1]));
      TESSERA_ASSIGN_OR_RETURN(const bool holding, holds(expression.operators[i], left, right));
      if (!holding) return Value(false);
      left = std::move(right);
    }
    return Value(true);
  }

  // `a or b` returns the first true value, `a and b` the first false one; else the right operand.
  Result logical(const Expression& expression, bool ends_with) {
    TESSERA_ASSIGN_OR_RETURN(Value left, evaluate(*expression.children[0]));
    if (left.truthy() == ends_with) return left;
    return evaluate(*expression.children[1]);
  }

  Result conditional(const Expression& expression) {
    TESSERA_ASSIGN_OR_RETURN(const bool chosen, truth(*expression.children[1]));
    if (chosen) return evaluate(*expression.children[0]);
    if (expression.children.size() < 3) return Value(Undefined{"the else of an if"});
    return evaluate(*expression.children[2]);
  }

  Result attribute(const Expression& expression) {
    TESSERA_ASSIGN_OR_RETURN(const Value object, evaluate(*expression.children[0]));
    return member(object, Value(Text(expression.name)), *this);
  }

  Result index(const Expression& expression) {
    TESSERA_ASSIGN_OR_RETURN(const Value object, evaluate(*expression.children[0]));
    TESSERA_ASSIGN_OR_RETURN(const Value key, evaluate(*expression.children[1]));
    return member(object, key, *this);
  }

  Result slice(const Expression& expression) {
    TESSERA_ASSIGN_OR_RETURN(const Value object, evaluate(*expression.children[0]));
    Value bounds[3];
    const Value* given[3] = {nullptr, nullptr, nullptr};
    for (size_t i = 0; i < 3; ++i) {
      if (expression.children[i + 1] == nullptr) continue;
      TESSERA_ASSIGN_OR_RETURN(bounds[i], evaluate(*expression.children[i + 1]));
      given[i] = &bounds[i];
    }
    return sliced(object, given[0], given[1], given[2], *this);
  }

  // Evaluates the arguments, which follow the callee or input.
  absl::StatusOr<Arguments> arguments(const Expression& expression) {
    Arguments given;
    for (size_t i = 1; i < expression.children.size(); ++i) {
      TESSERA_ASSIGN_OR_RETURN(Value value, evaluate(*expression.children[i]));
      given.positional.push_back(std::move(value));
    }
    for (const auto& [name, child] : expression.named) {
      TESSERA_ASSIGN_OR_RETURN(Value value, evaluate(*child));
      given.named.emplace_back(name, std::move(value));
    }
    return given;
  }

  Result filter(const Expression& expression) {
    TESSERA_ASSIGN_OR_RETURN(const Value input, evaluate(*expression.children[0]));
    TESSERA_ASSIGN_OR_RETURN(const Arguments given, arguments(expression));
    TESSERA_RETURN_IF_ERROR(charge(kCallCost));
    return apply_filter(expression.name, input, given, *this);
  }

  Result test(const Expression& expression) {
    TESSERA_ASSIGN_OR_RETURN(const Value input, evaluate(*expression.children[0]));
    TESSERA_ASSIGN_OR_RETURN(const Arguments given, arguments(expression));
    TESSERA_ASSIGN_OR_RETURN(const bool passes, apply_test(expression.name, input, given, *this));
    return Value(passes != expression.negated);
  }

  // `list.append(item)` and `list.pop(index)`, of a list that only a variable holds.
  Result change_list(const std::string& name, const Expression& expression) {
    TESSERA_ASSIGN_OR_RETURN(const Arguments given, arguments(expression));
    TESSERA_RETURN_IF_ERROR(charge_names());
    Value* list = scopes_.holder(*expression.children[0]->children[0]);
    if (list == nullptr || list->list() == nullptr) {
      return absl::InvalidArgumentError(name + " works on a list that a variable holds");
    }
    TESSERA_RETURN_IF_ERROR(charge(kItemCost + (name == "pop" ? list->list()->items.size() : 0)));
    return name == "pop" ? list->pop(given.positional) : list->append(given.positional);
  }

  Result call(const Expression& expression) {
    const Expression& callee = *expression.children[0];
    TESSERA_RETURN_IF_ERROR(charge(kCallCost + scopes_.size()));
    if (callee.kind == Expression::Kind::attribute) {
      if (callee.name == "append" || callee.name == "pop") {
        return change_list(callee.name, expression);
      }
      TESSERA_ASSIGN_OR_RETURN(const Value object, evaluate(*callee.children[0]));
      TESSERA_ASSIGN_OR_RETURN(const Arguments given, arguments(expression));
      return call_method(callee.name, object, given, *this);
    }
    TESSERA_ASSIGN_OR_RETURN(const Arguments given, arguments(expression));
    const Value* value = scopes_.find(callee.name);
    if (value != nullptr && value->macro() != nullptr && value->macro()->definition != nullptr) {
      return call_macro(*value->macro()->definition, given);
    }
    if (value != nullptr || !known_function(callee.name)) {
      return absl::InvalidArgumentError("\"" + callee.name + "\" cannot be called here");
    }
    raised_ = callee.name == "raise_exception";
    return call_function(callee.name, given, *this);
  }

  Result call_macro(const Statement& macro, const Arguments& given) {
    if (given.positional.size() > macro.targets.size()) {
      return absl::InvalidArgumentError("macro \"" + macro.name + "\" takes " +
                                        std::to_string(macro.targets.size()) + " arguments");
    }
    const size_t names = macro.targets.size();
    TESSERA_RETURN_IF_ERROR(charge(names * (kCallCost + names + given.named.size())));
    const Scopes::Call scope(scopes_);
    for (size_t i = 0; i < macro.targets.size(); ++i) {
      const Value* value = given.find(i, macro.targets[i]);
      if (value != nullptr) {
        scopes_.set(macro.targets[i], *value);
      } else if (macro.defaults[i] != nullptr) {
        TESSERA_ASSIGN_OR_RETURN(Value other, evaluate(*macro.defaults[i]));
        scopes_.set(macro.targets[i], std::move(other));
      } else {
        scopes_.set(macro.targets[i], Value(Undefined{macro.targets[i]}));
      }
    }
    TESSERA_ASSIGN_OR_RETURN(Text text, captured(macro.body));
    return Value(std::move(text));
  }

  const Context& context_;
  const size_t allowed_work_ = allowed_work(context_);
  Scopes scopes_;
  std::deque<Namespace> namespaces_;  // values point into it; a deque keeps them valid
  Text out_;
  size_t work_ = 0;
  int depth_ = 0;
  int line_ = 0;
  bool raised_ = false;  // the last error comes from raise_exception
};

}  // namespace

absl::StatusOr<Text> render(const Statements& statements, const Context& context) {
  return Interpreter(context).run(statements);
}

size_t allowed_work(const Context& context) {
  constexpr size_t kBaseWork = size_t{1} << 22U;
  constexpr size_t kWorkOfByte = size_t{1} << 9U;  // of the variables' weight
  size_t work = kBaseWork;
  for (const auto& [name, value] : context.variables) {
    work += kWorkOfByte * value.weight();
  }
  return std::min(work, context.max_work);
}

}  // namespace tessera::jinja

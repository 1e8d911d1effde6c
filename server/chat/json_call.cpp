#include "server/chat/json_call.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

namespace tessera {
namespace {

bool is_blank(char c) {
  return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

// Returns: the string that JSON text stands for; empty if it is not one.
std::string decoded(std::string_view text) {
  const auto value = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  return value.is_string() ? value.get<std::string>() : std::string();
}

}  // namespace

bool JsonExtent::push(char c) {
  if (in_string_) {
    if (escaped_) {
      escaped_ = false;
    } else if (c == '\\') {
      escaped_ = true;
    } else if (c == '"') {
      in_string_ = false;
      closed_ = depth_ == 0;
    }
    return true;
  }
  if (depth_ == 0 && (c == ',' || c == '}' || c == ']' || is_blank(c))) {
    closed_ = true;
    return false;
  }
  if (c == '"') {
    in_string_ = true;
  } else if (c == '{' || c == '[') {
    ++depth_;
  } else if (c == '}' || c == ']') {
    closed_ = --depth_ == 0;
  }
  return true;
}

std::size_t JsonCall::push(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size() && state_ == State::open) {
    const bool unnamed = name_.empty();
    if (read(text[at])) {
      raw_.append(unnamed ? 1 : 0, text[at]);
      ++at;
    }
  }
  return at;
}

bool JsonCall::read(char c) {
  if (place_ == Place::value) {
    return read_value(c);
  }
  if (place_ == Place::key && !text_.empty()) {
    extent_.push(c);
    text_ += c;
    if (extent_.closed()) {
      end_key();
    }
    return true;
  }
  if (is_blank(c)) {
    return true;
  }
  const auto moves = [&](char wanted, Place next) {
    place_ = next;
    state_ = c == wanted ? State::open : State::broken;
    return true;
  };
  switch (place_) {
    case Place::object:
      return moves('{', Place::key);
    case Place::colon:
      extent_ = {};
      return moves(':', Place::value);
    case Place::key:
      if (c != '}') {
        extent_ = {};
        extent_.push(c);
        text_ = c;
        return moves('"', Place::key);
      }
      [[fallthrough]];
    case Place::comma:
      if (c != '}') {
        return moves(',', Place::key);
      }
      state_ = name_.empty() ? State::broken : State::ended;
      return true;
    case Place::value:
      break;
  }
  return true;
}

bool JsonCall::read_value(char c) {
  if (text_.empty() && is_blank(c)) {
    return true;
  }
  const bool read = extent_.push(c);
  if (read) {
    const bool streamed = is_arguments() && (text_.empty() ? c : text_.front()) == '{';
    arguments_.append(streamed ? 1 : 0, c);
    text_.append(streamed && !text_.empty() ? 0 : 1, c);
  }
  if (extent_.closed()) {
    end_value();
  }
  return read;
}

void JsonCall::end_key() {
  constexpr std::string_view kKeys[] = {"name", "arguments", "parameters", "id", "type"};
  key_ = decoded(text_);
  text_.clear();
  place_ = Place::colon;
  if (name_.empty() && std::find(std::begin(kKeys), std::end(kKeys), key_) == std::end(kKeys)) {
    state_ = State::broken;
  }
}

void JsonCall::end_value() {
  place_ = Place::comma;
  const std::string text = std::exchange(text_, {});
  if (key_ == "name") {
    name_ = decoded(text);
    state_ = name_.empty() ? State::broken : State::open;
  } else if (is_arguments()) {
    any_arguments_ = true;
    if (text.starts_with('"')) {  // a model may write the object as a string
      arguments_ += decoded(text);
    } else if (!text.starts_with('{')) {
      arguments_ += text == "null" ? "{}" : text;
    }
  }
}

std::string JsonCall::take_arguments() {
  if (name_.empty()) {
    return {};
  }
  if (state_ == State::ended && !std::exchange(any_arguments_, true)) {
    arguments_ = "{}";
  }
  return std::exchange(arguments_, {});
}

JsonCall::State JsonToolParser::read_call(std::string_view marker, AnswerPart& out) {
  marker_ = marker;
  held_.erase(0, call_.push(held_));
  if (!call_.name().empty() && !std::exchange(named_, true)) {
    begin_call(call_.name(), out);
  }
  add_arguments(call_.take_arguments(), out);
  const JsonCall::State state = call_.state();
  if (state == JsonCall::State::open) {
    return state;
  }
  if (named_) {
    end_call();
  } else {
    out.content += marker_ + call_.raw();
  }
  call_ = {};
  named_ = false;
  marker_.clear();
  return state;
}

bool JsonToolParser::read_arguments(AnswerPart& out) {
  std::size_t size = 0;
  while (size < held_.size() && !extent_.closed()) {
    size += extent_.push(held_[size]) ? 1 : 0;
  }
  add_arguments(std::string_view(held_).substr(0, size), out);
  held_.erase(0, size);
  if (!extent_.closed()) {
    return false;
  }
  extent_ = {};
  end_call();
  return true;
}

void JsonToolParser::finish(AnswerPart& out) {
  if (!named_) {
    out.content += std::exchange(marker_, {}) + call_.raw();
    call_ = {};
  }
}

}  // namespace tessera

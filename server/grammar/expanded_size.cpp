#include "server/grammar/expanded_size.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <vector>

namespace tessera {
namespace {

constexpr int64_t kHuge = int64_t{1} << 30;  // sizes and bounds above count as this

class Measure {
 public:
  Measure(std::string_view pattern, Notation notation) : text_(pattern), notation_(notation) {}

  PatternSize read() {
    while (at_ < text_.size()) {
      step();
    }
    while (!open_.empty()) {
      close();
    }
    return {.expanded = std::min(done_ + item_, kHuge), .depth = depth_};
  }

 private:
  void step() {
    const char c = text_[at_++];
    switch (c) {
      case '(':
        open_.push_back(done_ + item_);
        done_ = item_ = 0;
        depth_ = std::max(depth_, static_cast<int>(open_.size()));
        break;
      case ')':
        close();
        break;
      case '[':
        skip_to(']');
        begin_item();
        break;
      case '{':
        item_ = std::min(item_ * read_bound(), kHuge);
        break;
      case '|':
      case '*':
      case '+':
      case '?':
        break;
      default:
        notation_ == Notation::gbnf ? step_of_gbnf(c) : step_of_regex(c);
    }
  }

  void step_of_regex(char c) {
    if (c == '\\') {
      ++at_;
    }
    begin_item();
  }

  void step_of_gbnf(char c) {
    if (c == '"') {
      skip_to('"');
      begin_item();
    } else if (c == '#') {
      at_ = std::min(text_.find('\n', at_), text_.size());
    } else if (in_name(c)) {
      while (at_ < text_.size() && in_name(text_[at_])) {
        ++at_;
      }
      begin_item();
    }
  }

  static bool in_name(char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' || c == '.';
  }

  // A repeat behind it repeats the new item alone.
  void begin_item() {
    done_ = std::min(done_ + item_, kHuge);
    item_ = 1;
  }

  void close() {
    if (!open_.empty()) {
      item_ = std::min(done_ + item_, kHuge);
      done_ = open_.back();
      open_.pop_back();
    }
  }

  void skip_to(char end) {
    while (at_ < text_.size() && text_[at_] != end) {
      at_ += text_[at_] == '\\' ? 2 : 1;
    }
    ++at_;
  }

  // Returns: the highest number of a repeat such as {3}, {2,} or {2,5}; at least 1.
  int64_t read_bound() {
    int64_t highest = 1, number = 0;
    for (; at_ < text_.size() && text_[at_] != '}'; ++at_) {
      const bool digit = std::isdigit(static_cast<unsigned char>(text_[at_])) != 0;
      number = digit ? std::min(number * 10 + (text_[at_] - '0'), kHuge) : 0;
      highest = std::max(highest, number);
    }
    ++at_;
    return highest;
  }

  const std::string_view text_;
  const Notation notation_;
  std::size_t at_ = 0;
  std::vector<int64_t> open_;  // sizes before each open bracket
  int64_t done_ = 0;           // of the innermost bracket, before the last item
  int64_t item_ = 0;           // the last item, which a repeat may follow
  int depth_ = 0;
};

}  // namespace

void PatternSize::add(const PatternSize& other) {
  expanded += other.expanded;
  depth = std::max(depth, other.depth);
}

absl::Status PatternSize::check() const {
  if (depth > kMaxPatternDepth) {
    return absl::InvalidArgumentError(
        fmt::format("has brackets nested more than {} deep", kMaxPatternDepth));
  }
  if (expanded > kMaxExpandedSize) {
    return absl::InvalidArgumentError(
        fmt::format("has more than {} parts when its repeats are written out", kMaxExpandedSize));
  }
  return absl::OkStatus();
}

PatternSize pattern_size(std::string_view pattern, Notation notation) {
  return Measure(pattern, notation).read();
}

}  // namespace tessera

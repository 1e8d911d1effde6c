#include "text/split_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <utility>

#include "base/utf8.h"

namespace tessera {
namespace {

// The Unicode property White_Space. PCRE2's own \s also matches U+180E, which is no space since
// Unicode 6.3. The regular expression engine of tokenizer.json does not match it.
constexpr const char* kWhiteSpace =
    R"(\x09-\x0D\x20\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";

// Replaces each \s, and each \S outside of brackets, by a class of Unicode white space.
std::string with_white_space(const std::string& pattern) {
  std::string result;
  bool in_brackets = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c != '\\' || i + 1 == pattern.size()) {
      if (c == '[' || c == ']') in_brackets = c == '[';
      result += c;
      continue;
    }
    const char escaped = pattern[++i];
    if (escaped == 's' && in_brackets) {
      result += kWhiteSpace;
    } else if ((escaped == 's' || escaped == 'S') && !in_brackets) {
      result += std::string(escaped == 's' ? "[" : "[^") + kWhiteSpace + "]";
    } else {
      result += {c, escaped};
    }
  }
  return result;
}

constexpr uint32_t kMatchLimit = 1'000'000;
constexpr size_t kJitStackStart = size_t{32} << 10U;
constexpr size_t kJitStackMax = size_t{1} << 20U;

template <auto kFree>
struct Free {
  template <typename T>
  void operator()(T* object) const {
    kFree(object);
  }
};

using MatchData = std::unique_ptr<pcre2_match_data, Free<pcre2_match_data_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, Free<pcre2_match_context_free>>;
using JitStack = std::unique_ptr<pcre2_jit_stack, Free<pcre2_jit_stack_free>>;

// The memory of a match. Each thread keeps one for all expressions. The stack is a mapping of pages
// and takes a hundred times longer to make than a match of a word, and an expression that splits
// the words of another is called once a word.
struct Scratch {
  MatchData data{pcre2_match_data_create(1, nullptr)};
  MatchContext context{pcre2_match_context_create(nullptr)};
  JitStack stack{pcre2_jit_stack_create(kJitStackStart, kJitStackMax, nullptr)};

  Scratch() {
    if (!made()) return;
    pcre2_set_match_limit(context.get(), kMatchLimit);
    pcre2_set_depth_limit(context.get(), kMatchLimit);
    pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
  }

  bool made() const { return data != nullptr && context != nullptr; }
};

}  // namespace

struct SplitPattern::Compiled {
  std::unique_ptr<pcre2_code, Free<pcre2_code_free>> code;
};

absl::StatusOr<SplitPattern> SplitPattern::compile(const std::string& source) {
  const std::string pattern = with_white_space(source);
  int error = 0;
  PCRE2_SIZE at = 0;
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &at, nullptr);
  if (code == nullptr) {
    PCRE2_UCHAR message[128] = {};
    pcre2_get_error_message(error, message, sizeof message);
    return absl::InvalidArgumentError("regular expression, at byte " + std::to_string(at) + ": " +
                                      reinterpret_cast<const char*>(message));
  }
  auto compiled = std::make_shared<Compiled>();
  compiled->code.reset(code);
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // without a JIT, PCRE2 interprets
  return SplitPattern(std::move(compiled));
}

void SplitPattern::split(std::string_view text, std::vector<std::string_view>& words) const {
  const pcre2_code* code = compiled_->code.get();
  thread_local const Scratch kScratch;
  if (!kScratch.made()) {
    words.push_back(text);
    return;
  }
  size_t word = 0;  // begin of the text that is not appended yet
  for (size_t at = 0; at < text.size();) {
    const int found = pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at,
                                  PCRE2_NO_UTF_CHECK, kScratch.data.get(), kScratch.context.get());
    if (found < 0) break;
    const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(kScratch.data.get());
    const size_t begin = bounds[0];
    const size_t end = bounds[1];
    if (end <= begin || begin < word) {  // empty, or moved by \K
      at = std::max(begin, at);
      if (at < text.size()) at += next_utf8(text.substr(at)).size;
      continue;
    }
    if (word < begin) words.push_back(text.substr(word, begin - word));
    words.push_back(text.substr(begin, end - begin));
    word = end;
    at = end;
  }
  if (word < text.size()) words.push_back(text.substr(word));
}

}  // namespace tessera

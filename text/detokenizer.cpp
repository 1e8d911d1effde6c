#include "text/detokenizer.h"

#include <algorithm>
#include <utility>

#include "base/utf8.h"

namespace tessera {

Detokenizer::Detokenizer(const Tokenizer& tokenizer, Options options)
    : tokenizer_(tokenizer),
      options_(std::move(options)),
      at_start_(tokenizer.strips_leading_space() && !options_.continues_text) {}

std::string Detokenizer::push(int32_t id) {
  const std::vector<int32_t>& printed = options_.printed;
  const bool keeps =
      options_.keep_special || std::find(printed.begin(), printed.end(), id) != printed.end();
  std::string bytes = tokenizer_.token_bytes(id, keeps);
  if (at_start_ && !bytes.empty()) {
    at_start_ = false;
    if (bytes.front() == ' ') bytes.erase(0, 1);
  }
  pending_ += bytes;

  std::string printable;
  std::string_view rest = pending_;
  while (!rest.empty()) {
    const Utf8Step step = next_utf8(rest);
    if (step.kind == Utf8Step::Kind::incomplete) break;
    printable +=
        step.kind == Utf8Step::Kind::valid ? rest.substr(0, step.size) : kReplacementCharacter;
    rest.remove_prefix(step.size);
  }
  pending_.erase(0, pending_.size() - rest.size());
  return printable;
}

std::string Detokenizer::text_of(const Tokenizer& tokenizer, std::span<const int32_t> ids,
                                 Options options) {
  Detokenizer detokenizer(tokenizer, std::move(options));
  std::string text;
  for (const int32_t id : ids) {
    text += detokenizer.push(id);
  }
  return text + detokenizer.finish();
}

std::string Detokenizer::finish() {
  return std::exchange(pending_, {}).empty() ? std::string() : std::string(kReplacementCharacter);
}

}  // namespace tessera

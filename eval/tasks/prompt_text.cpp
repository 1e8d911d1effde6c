#include "eval/tasks/prompt_text.h"

#include <algorithm>

#include "text/detokenizer.h"

namespace tessera {

std::vector<int32_t> encode_text(const Tokenizer& tokenizer, std::string_view text) {
  const TextSegment segment{std::string(text), false};
  return tokenizer.encode({&segment, 1}, true);
}

SplitIds encode_split(const Tokenizer& tokenizer, std::string_view context,
                      std::string_view continuation) {
  const size_t end = context.find_last_not_of(" \t\n\r\f\v") + 1;  // npos + 1 is 0
  const std::string moved = std::string(context.substr(end)) + std::string(continuation);
  const std::string_view kept = context.substr(0, end);
  const std::vector<int32_t> whole = encode_text(tokenizer, std::string(kept) + moved);
  // In a model without BOS, an empty context has no id to predict from, so the first id becomes the
  // prompt.
  const size_t prompt = std::max<size_t>(encode_text(tokenizer, kept).size(), 1);
  const auto cut = whole.begin() + static_cast<std::ptrdiff_t>(std::min(prompt, whole.size()));
  return {{whole.begin(), cut}, {cut, whole.end()}};
}

std::string decode_continuation(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  Detokenizer detokenizer(tokenizer, {.keep_special = false, .continues_text = true});
  std::string text;
  for (const int32_t id : ids) {
    text += detokenizer.push(id);
  }
  return text + detokenizer.finish();
}

}  // namespace tessera

#include "eval/tasks/retrieval.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "eval/tasks/prompt_text.h"

namespace tessera {
namespace {

constexpr RetrievalKind kRetrievalKinds[] = {
    {"passkey", "one pass key told in prose, asked for at the end",
     " The pass key is {v}. Remember it.", ".", Material::Kind::word, Material::Kind::number, true},
    {"multikey", "one of many pairs of a word and a number, nothing else in the context",
     " The key of {k} is {v}.", ".", Material::Kind::word, Material::Kind::number, false},
    {"json", "one of many pairs of hex strings, to be told apart digit by digit",
     "\n\"{k}\": \"{v}\",", "\",", Material::Kind::hex, Material::Kind::hex, false},
    {"later", "one pass key told in prose, asked for only after the prompt was compressed",
     " The pass key is {v}. Remember it.", ".", Material::Kind::word, Material::Kind::number, true,
     true},
};

constexpr int32_t kSmallestHay = 8;  // tokens; less room than this is left empty
constexpr int kTriesToFill = 8;      // draws of hay that do not fit before filling ends

std::string tell(std::string_view told, std::string_view key, std::string_view value) {
  return absl::StrReplaceAll(std::string(told),
                             {{"{k}", std::string(key)}, {"{v}", std::string(value)}});
}

// Writes one question. Hay is counted in tokens as it grows, because every tokenizer splits it
// differently.
class Question {
 public:
  Question(const RetrievalKind& kind, const Tokenizer& tokenizer, Material& material)
      : kind_(kind), tokenizer_(tokenizer), material_(material) {
    const auto [key, value] = pair();
    needle_ = tell(kind.told, key, value);
    const std::string_view asked = kind.told.substr(0, kind.told.find("{v}"));
    question_ = tell(asked, key, "");
    answer_ = absl::StrCat(value, std::string(kind.ending));
  }

  Item write(int32_t length, double depth) {
    // Tokens may merge between pieces of hay, so the whole text is counted again after each fill.
    for (int32_t room = length - size(depth); room > kSmallestHay; room = length - size(depth)) {
      if (!grow(room)) break;
    }
    while (size(depth) > length && !hay_.empty()) {
      hay_.pop_back();
    }
    SplitIds ids = encode_split(tokenizer_, context(depth), answer_);
    Item item;
    item.trials.push_back({.prompt = std::move(ids.prompt), .forced = std::move(ids.continuation)});
    if (kind_.asked_later) {
      ask_later(item.trials.back());
    }
    item.length = length;
    item.depth = depth;
    return item;
  }

 private:
  std::pair<std::string, std::string> pair() {
    std::string key;
    // If pairs outnumber the words, two words make a key.
    for (int tries = 0; key.empty() || !keys_.insert(key).second; ++tries) {
      key = material_.draw(kind_.keys);
      if (tries > 50) key = absl::StrCat(key, " ", material_.draw(kind_.keys));
    }
    return {key, material_.draw(kind_.values)};
  }

  // Moves the question from the end of the prompt to the forced tokens.
  void ask_later(Trial& trial) const {
    // The space at its end is part of the answer.
    trial.asked = tokens_of(question_.substr(0, question_.find_last_not_of(' ') + 1));
    const auto question = trial.prompt.end() - trial.asked;
    trial.forced.insert(trial.forced.begin(), question, trial.prompt.end());
    trial.prompt.erase(question, trial.prompt.end());
  }

  bool grow(int32_t room) {
    bool grew = false;
    for (int tries = 0; tries < kTriesToFill && room > kSmallestHay;) {
      std::string unit;
      if (kind_.prose) {
        unit = material_.prose();
      } else {
        const auto [key, value] = pair();
        unit = tell(kind_.told, key, value);
      }
      const int32_t tokens = tokens_of(unit);
      if (tokens > room) {
        ++tries;
        continue;
      }
      room -= tokens;
      hay_.push_back(std::move(unit));
      grew = true;
    }
    return grew;
  }

  std::string context(double depth) const {
    const auto place = static_cast<size_t>(std::lround(depth * static_cast<double>(hay_.size())));
    std::string text;
    for (size_t i = 0; i <= hay_.size(); ++i) {
      if (i == place) text += needle_;
      if (i < hay_.size()) text += hay_[i];
    }
    text += question_;
    // Tokenizers that add a space before a text need the text without one.
    return text.substr(tokenizer_.strips_leading_space() && text[0] == ' ' ? 1 : 0);
  }

  int32_t size(double depth) const {
    return static_cast<int32_t>(encode_text(tokenizer_, context(depth) + answer_).size());
  }

  // Returns: tokens of a piece in the middle of a text, without BOS and without the space before a
  // text.
  int32_t tokens_of(const std::string& unit) const {
    const bool strip = tokenizer_.strips_leading_space() && unit[0] == ' ';
    const TextSegment segment{unit.substr(strip ? 1 : 0), false};
    return static_cast<int32_t>(tokenizer_.encode({&segment, 1}, false).size());
  }

  const RetrievalKind& kind_;
  const Tokenizer& tokenizer_;
  Material& material_;
  std::set<std::string> keys_;
  std::string needle_;
  std::string question_;
  std::string answer_;
  std::vector<std::string> hay_;
};

}  // namespace

std::span<const RetrievalKind> retrieval_kinds() {
  return kRetrievalKinds;
}

Task make_retrieval(const RetrievalKind& kind, const RetrievalGrid& grid,
                    const Tokenizer& tokenizer, uint64_t seed) {
  Task task{.name = std::string(kind.name),
            .description = std::string(kind.description),
            .scoring = Scoring::exact};
  Material material(seed);
  for (const int32_t length : grid.lengths) {
    for (const double depth : grid.depths) {
      for (int32_t sample = 0; sample < grid.samples; ++sample) {
        Item item = Question(kind, tokenizer, material).write(length, depth);
        item.id = absl::StrCat(length, "@", std::lround(100 * depth), "#", sample);
        task.items.push_back(std::move(item));
      }
    }
  }
  return task;
}

}  // namespace tessera

#include "eval/tasks/documents.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/check.h"
#include "eval/tasks/prompt_text.h"

namespace tessera {
namespace {

constexpr std::string_view kThings[] = {
    "apple",  "anchor",  "barrel", "basket",   "bell",   "bottle", "bread",  "bridge", "bucket",
    "button", "candle",  "carpet", "chair",    "clock",  "coin",   "crown",  "cup",    "desk",
    "door",   "drum",    "eagle",  "feather",  "fence",  "flag",   "flute",  "garden", "glove",
    "hammer", "hat",     "horse",  "island",   "jacket", "kettle", "key",    "knife",  "ladder",
    "lamp",   "lemon",   "mirror", "necklace", "needle", "orange", "pencil", "piano",  "pillow",
    "rabbit", "ribbon",  "ring",   "saddle",   "ship",   "spoon",  "statue", "table",  "tower",
    "train",  "trumpet", "tunnel", "umbrella", "vase",   "violin", "wagon",  "wheel",  "window"};
constexpr std::string_view kMaterials[] = {"clay",    "copper", "cotton", "glass", "gold", "iron",
                                           "leather", "marble", "paper",  "salt",  "silk", "silver",
                                           "stone",   "sugar",  "wax",    "wool"};
constexpr std::string_view kColors[] = {"black", "blue",   "brown", "gray",  "green", "orange",
                                        "pink",  "purple", "red",   "white", "yellow"};

// The reference must answer 80 % of a task. SmolLM2-135M-Instruct does so for materials and colors
// in 1024 tokens; the others are for larger models (docs/howto/evaluate.md).
constexpr DocumentKind kDocumentKinds[] = {
    {"materials", "materials of things, told in prose", " The {k} is made of {v}.", kMaterials,
     true},
    {"colors", "colors of things, told in prose", " The color of the {k} is {v}.", kColors, true},
    {"numbers", "numbers of things, told in prose", " The number of the {k} is {v}.", {}, true},
    {"pairs",
     "pairs of a thing and a number, nothing else in the context",
     " The number of the {k} is {v}.",
     {},
     false},
    {"quotes", "sentences of the prose, continued from their first half", "", {}, true},
};

constexpr const char* kBetween = "\n\n";  // before a question
constexpr int32_t kRoomForQuestion = 32;  // tokens of a question and its answer
constexpr size_t kQuotedWords = 8;        // of a quote's question
constexpr size_t kWantedWords = 4;        // of its answer
constexpr int kTriesToFill = 8;           // draws that do not fit before filling ends

std::string tell(std::string_view told, std::string_view key, std::string_view value) {
  return absl::StrReplaceAll(std::string(told),
                             {{"{k}", std::string(key)}, {"{v}", std::string(value)}});
}

// Returns: `count` indices below `of`, in random order.
std::vector<size_t> draw_indices(SeededRandom& random, size_t count, size_t of) {
  std::vector<size_t> all(of);
  for (size_t i = 0; i < of; ++i) {
    all[i] = i;
  }
  for (size_t i = 0; i < std::min(count, of); ++i) {
    std::swap(all[i], all[i + random.below(of - i)]);
  }
  all.resize(std::min(count, of));
  return all;
}

// Returns: the position behind word number `words` of a text that begins with a space.
size_t end_of_words(std::string_view text, size_t words) {
  size_t end = 0;
  for (size_t i = 0; i < words && end != text.npos; ++i) {
    end = text.find(' ', end + 1);
  }
  return end;
}

// The pieces of one context, and its questions.
class Document {
 public:
  Document(const DocumentKind& kind, const Tokenizer& tokenizer, Material& material)
      : kind_(kind), tokenizer_(tokenizer), material_(material) {}

  void fill(int32_t tokens, int32_t questions) {
    if (!kind_.told.empty()) {
      for (int32_t i = 0; i < questions; ++i) {
        add_fact(true);
      }
    }
    for (int tries = 0; tries < kTriesToFill;) {
      const size_t before = pieces_.size();
      if (kind_.prose) {
        pieces_.push_back(material_.prose());
      } else {
        add_fact(false);
      }
      if (used_ + tokens_of(pieces_.back()) > tokens) {
        pieces_.resize(before);
        ++tries;
      } else {
        used_ += tokens_of(pieces_.back());
      }
    }
    if (kind_.told.empty()) {
      add_quotes(questions);
    }
    mix();
  }

  std::string text() const {
    std::string text;
    for (const std::string& piece : pieces_) {
      text += piece;
    }
    return text.substr(tokenizer_.strips_leading_space() && !text.empty() ? 1 : 0);
  }
  const std::vector<AskedText>& questions() const { return questions_; }

 private:
  void add_fact(bool asked) {
    std::string key;
    for (int tries = 0; key.empty() || !keys_.insert(key).second; ++tries) {
      key = draw(kThings);
      // If facts outnumber the things, a color tells two of them apart.
      if (tries > 50) key = absl::StrCat(draw(kColors), " ", key);
    }
    const std::string value =
        kind_.values.empty() ? material_.draw(Material::Kind::number) : draw(kind_.values);
    pieces_.push_back(tell(kind_.told, key, value));
    if (asked) {
      const std::string begin = tell(kind_.told.substr(0, kind_.told.find("{v}")), key, "");
      // The space before the value is part of the answer.
      questions_.push_back({absl::StrCat(kBetween, begin.substr(1, begin.size() - 2)),
                            absl::StrCat(" ", value, ".")});
      used_ += tokens_of(pieces_.back());
    }
  }

  std::string draw(std::span<const std::string_view> words) {
    return std::string(material_.random().choice(words));
  }

  void add_quotes(int32_t questions) {
    std::set<std::string> begun;
    for (const size_t i : draw_indices(material_.random(), pieces_.size(), pieces_.size())) {
      const std::string& piece = pieces_[i];
      const size_t first = end_of_words(piece, kQuotedWords);
      const size_t end = end_of_words(piece, kQuotedWords + kWantedWords);
      if (std::ssize(questions_) < questions && end != piece.npos &&
          begun.insert(piece.substr(1, first)).second) {
        questions_.push_back(
            {absl::StrCat(kBetween, piece.substr(1, first - 1)), piece.substr(first, end - first)});
      }
    }
  }

  // Puts all pieces into random order. A quote's sentence stays whole.
  void mix() {
    std::vector<std::string> mixed;
    for (const size_t i : draw_indices(material_.random(), pieces_.size(), pieces_.size())) {
      mixed.push_back(std::move(pieces_[i]));
    }
    pieces_ = std::move(mixed);
  }

  int32_t tokens_of(const std::string& piece) const {
    const TextSegment segment{piece.substr(tokenizer_.strips_leading_space() ? 1 : 0), false};
    return static_cast<int32_t>(tokenizer_.encode({&segment, 1}, false).size());
  }

  const DocumentKind& kind_;
  const Tokenizer& tokenizer_;
  Material& material_;
  std::vector<std::string> pieces_;
  std::vector<AskedText> questions_;
  std::set<std::string> keys_;
  int32_t used_ = 1;  // tokens, with a BOS
};

}  // namespace

std::span<const DocumentKind> document_kinds() {
  return kDocumentKinds;
}

std::string_view name_of(Asked asked) {
  constexpr std::string_view kNames[] = {"end", "later", "turns"};
  return kNames[static_cast<size_t>(asked)];
}

std::vector<Trial> make_asking_trials(std::string_view context,
                                      std::span<const AskedText> questions, Asked asked,
                                      const Tokenizer& tokenizer) {
  TESSERA_CHECK(!context.empty() && !questions.empty(), "a context with questions");
  std::vector<int32_t> common = encode_text(tokenizer, context);
  std::vector<SplitIds> split;
  for (const AskedText& text : questions) {
    split.push_back(
        encode_split(tokenizer, absl::StrCat(std::string(context), text.question), text.answer));
    // A token may span the end of the context. It then belongs to the question.
    const std::vector<int32_t>& whole = split.back().prompt;
    const auto end = std::mismatch(common.begin(), common.end(), whole.begin(), whole.end()).first;
    common.erase(end, common.end());
  }
  std::vector<Trial> trials;
  for (SplitIds& ids : split) {
    Trial trial{.prompt = std::move(ids.prompt), .forced = std::move(ids.continuation)};
    const auto answered = static_cast<int32_t>(trial.forced.size());
    const auto begin = trial.prompt.begin() + std::ssize(common);
    const auto known = static_cast<int32_t>(trial.prompt.end() - begin);
    if (asked != Asked::end) {
      trial.forced.insert(trial.forced.begin(), begin, trial.prompt.end());
      trial.prompt = common;
    }
    trial.turns = {{asked == Asked::end ? 0 : known, answered}};
    if (asked == Asked::turns && !trials.empty()) {
      trials[0].forced.insert(trials[0].forced.end(), trial.forced.begin(), trial.forced.end());
      trials[0].turns.push_back(trial.turns[0]);
    } else {
      trials.push_back(std::move(trial));
    }
  }
  return trials;
}

Task make_documents(const DocumentKind& kind, Asked asked, const DocumentGrid& grid,
                    const Tokenizer& tokenizer, Material material) {
  constexpr std::string_view kWhen[] = {"asked at the prompt's end",
                                        "asked after the context was compressed",
                                        "asked in turns after the context was compressed"};
  Task task{.name = absl::StrCat(std::string(kind.name), "-", std::string(name_of(asked))),
            .description = absl::StrCat(std::string(kind.description), "; ",
                                        std::string(kWhen[static_cast<size_t>(asked)])),
            .scoring = Scoring::exact};
  for (const int32_t length : grid.lengths) {
    for (int32_t i = 0; i < grid.contexts; ++i) {
      Document document(kind, tokenizer, material);
      document.fill(length - kRoomForQuestion, grid.questions);
      Item item;
      item.id = absl::StrCat(length, "#", i);
      item.length = length;
      item.trials = make_asking_trials(document.text(), document.questions(), asked, tokenizer);
      task.items.push_back(std::move(item));
    }
  }
  return task;
}

}  // namespace tessera

#include "eval/tasks/writing.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "eval/tasks/material.h"
#include "eval/tasks/prompt_text.h"

namespace tessera {
namespace {

constexpr size_t kSmallestWindow = 16;  // tokens; a shorter rest of a text is not used
constexpr float kTemperature = 0.8f;    // greedy decoding of small models loops

constexpr std::string_view kOpenings[] = {
    "Once upon a time there was a small house at the end of a long street.",
    "One day a little girl found a box under her bed.",
    "It was a cold morning, and the old man went out to look for his dog.",
    "There was once a bird who was afraid to fly.",
};

struct Shot {
  std::string_view given;
  std::string_view wanted;
};
constexpr Shot kShots[] = {{"Input", "Output"}, {"Say", "Echo"}, {"Text", "Copy"}};

std::string draw_list(Material& material, Material::Kind kind, std::string_view separator) {
  std::vector<std::string> words(material.random().between(1, 6));
  for (std::string& word : words) {
    word = material.draw(kind);
  }
  return absl::StrJoin(words, std::string(separator));
}

Item copy_item(int32_t length, const Tokenizer& tokenizer, Material& material) {
  constexpr Material::Kind kMaterialKinds[] = {Material::Kind::word, Material::Kind::name,
                                               Material::Kind::number, Material::Kind::hex};
  const Shot shot = material.random().choice(std::span<const Shot>(kShots));
  const Material::Kind kind =
      material.random().choice(std::span<const Material::Kind>(kMaterialKinds));
  const std::string_view separator = material.random().below(2) == 0 ? " " : ", ";
  std::string context;
  SplitIds ids;
  for (bool fits = true; fits;) {
    const std::string list = draw_list(material, kind, separator);
    const std::string asked =
        absl::StrCat(context, context.empty() ? "" : "\n", std::string(shot.given), ": ", list,
                     "\n", std::string(shot.wanted), ":");
    SplitIds longer = encode_split(tokenizer, asked, absl::StrCat(" ", list, "\n"));
    fits = longer.prompt.size() + longer.continuation.size() <= static_cast<size_t>(length);
    if (fits || context.empty()) {
      ids = std::move(longer);
    }
    context = absl::StrCat(asked, " ", list, "\n");
  }
  Item item;
  item.trials.push_back({.prompt = std::move(ids.prompt), .forced = std::move(ids.continuation)});
  return item;
}

}  // namespace

Task make_text(std::string_view text, const TextWindows& windows, const Tokenizer& tokenizer) {
  Task task{.name = "text",
            .description = absl::StrCat("held-out text in windows: prompts of ", windows.prompt,
                                        " tokens, then ", windows.forced, " forced tokens"),
            .scoring = Scoring::text};
  const TextSegment segment{std::string(text), false};
  const std::vector<int32_t> ids = tokenizer.encode({&segment, 1}, false);
  const std::vector<int32_t> bos = encode_text(tokenizer, "");
  const size_t window = static_cast<size_t>(windows.prompt + windows.forced) - bos.size();
  for (size_t begin = 0; begin + std::min(kSmallestWindow, ids.size()) <= ids.size();
       begin += window) {
    std::vector<int32_t> all = bos;
    const size_t end = std::min(begin + window, ids.size());
    all.insert(all.end(), ids.begin() + static_cast<std::ptrdiff_t>(begin),
               ids.begin() + static_cast<std::ptrdiff_t>(end));
    // A shorter last window is split in the same proportion.
    const size_t prompt = std::max<size_t>(
        1, all.size() * static_cast<size_t>(windows.prompt) / (window + bos.size()));
    const auto cut = all.begin() + static_cast<std::ptrdiff_t>(prompt);
    Item item;
    item.id = absl::StrCat("window ", task.items.size());
    item.trials.push_back(
        {.prompt = {all.begin(), cut}, .forced = {cut, all.end()}, .compare = true});
    task.items.push_back(std::move(item));
    if (std::ssize(task.items) == windows.most) break;
  }
  return task;
}

Task make_continuation(std::string_view text, const TextWindows& windows,
                       const Tokenizer& tokenizer) {
  Task task = make_text(text, windows, tokenizer);
  task.name = "continuation";
  for (Item& item : task.items) {
    Trial& trial = item.trials.front();
    trial.compare = false;
    trial.turns = {{.answered = static_cast<int32_t>(trial.forced.size())}};
  }
  return task;
}

Task make_copy(int32_t items, int32_t length, const Tokenizer& tokenizer, uint64_t seed) {
  Task task{.name = "copy",
            .description = absl::StrCat("few-shot copying of lists in ", length, " tokens"),
            .scoring = Scoring::exact};
  Material material(seed);
  for (int32_t i = 0; i < items; ++i) {
    task.items.push_back(copy_item(length, tokenizer, material));
    task.items.back().id = absl::StrCat(i);
  }
  return task;
}

Task make_generation(int32_t items, int32_t tokens, const Tokenizer& tokenizer, uint64_t seed) {
  Task task{.name = "generation",
            .description =
                absl::StrCat("the distance along ", tokens, " tokens that the f16 run has written"),
            .scoring = Scoring::text,
            .along = true};
  for (int32_t i = 0; i < items; ++i) {
    const std::string_view opening = kOpenings[static_cast<size_t>(i) % std::size(kOpenings)];
    Item item;
    item.id = absl::StrCat(i);
    item.trials.push_back({.prompt = encode_text(tokenizer, opening),
                           .generate = tokens,
                           .temperature = kTemperature,
                           .seed = seed + static_cast<uint64_t>(i),
                           .compare = true});
    task.items.push_back(std::move(item));
  }
  return task;
}

}  // namespace tessera

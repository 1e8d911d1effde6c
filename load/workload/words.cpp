#include "load/workload/words.h"

#include <array>
#include <span>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace tessera::load {
namespace {

constexpr std::array<std::string_view, 64> kWords = {
    "a",      "and",   "big",    "bird",  "boat", "box",    "boy",   "cake",  "cat",    "day",
    "dog",    "found", "friend", "game",  "girl", "happy",  "house", "in",    "little", "long",
    "looked", "mom",   "new",    "not",   "of",   "old",    "on",    "one",   "park",   "play",
    "red",    "run",   "sad",    "saw",   "she",  "small",  "some",  "story", "sun",    "the",
    "they",   "to",    "toy",    "tree",  "very", "wanted", "was",   "water", "went",   "with",
    "he",     "his",   "her",    "said",  "up",   "down",   "ball",  "home",  "time",   "good",
    "came",   "made",  "then",   "garden"};

constexpr std::array<std::string_view, kMaxPlantedKeys> kOwners = {
    "Ann",  "Tom", "Alice", "Ben",  "Lily", "Max",  "Sue",  "Jack", "Mia",  "Sam",  "Lucy", "Tim",
    "Anna", "Bob", "Emma",  "Fred", "Jane", "Mark", "Nina", "Paul", "Rose", "Sara", "John", "Kate"};

}  // namespace

std::string write_words(SeededRandom& random, int32_t count) {
  std::string text;
  for (int32_t i = 0; i < count; ++i) {
    if (i > 0) text += ' ';
    text += random.choice(std::span<const std::string_view>(kWords));
  }
  return text;
}

std::vector<PlantedKey> draw_keys(SeededRandom& random, int32_t count) {
  TESSERA_CHECK(count <= kMaxPlantedKeys, "there are not so many owners");
  std::vector<std::string_view> owners(kOwners.begin(), kOwners.end());
  std::vector<PlantedKey> keys;
  for (int32_t i = 0; i < count; ++i) {
    const size_t chosen = random.below(owners.size());
    keys.push_back({std::string(owners[chosen]), absl::StrCat(random.between(10000, 99999))});
    owners.erase(owners.begin() + static_cast<std::ptrdiff_t>(chosen));
  }
  return keys;
}

}  // namespace tessera::load

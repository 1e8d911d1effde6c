#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "load/workload/factories.h"
#include "load/workload/words.h"

namespace tessera::load {
namespace {

struct RecallSettings {
  std::string name;
  int32_t keys = 4;
  Length input;
  int32_t output = 16;
  int32_t prefix = 0;
  int32_t groups = 1;
  double words_per_token = 1;
  nlohmann::json fields;
};

// Questions whose answer stands in the prompt. A text that requests share comes first, so that a
// server that mixes up its cached prefixes answers with the key of another request.
class RecallWorkload final : public Workload {
 public:
  explicit RecallWorkload(RecallSettings settings) : settings_(std::move(settings)) {}

  std::unique_ptr<Session> session(uint64_t number, uint64_t seed) const override {
    Variates variates(seed_of(seed, number));
    SeededRandom& random = variates.integers();
    std::string text;
    if (settings_.prefix > 0) {
      const size_t group = random.below(static_cast<size_t>(settings_.groups));
      SeededRandom shared(seed_of(seed ^ 0x5afe, group));
      text = absl::StrCat(write_words(shared, words_of(settings_.prefix)), ". ");
    }
    const std::vector<PlantedKey> keys = draw_keys(random, settings_.keys);
    const int32_t words = words_of(settings_.input.draw(variates)) / settings_.keys;
    for (const PlantedKey& key : keys) {
      absl::StrAppend(&text, "The key of ", key.owner, " is ", key.value, ". ");
      if (words > 0) {
        absl::StrAppend(&text, write_words(random, words), ". ");
      }
    }
    const PlantedKey& asked = keys[random.below(keys.size())];
    LoadRequest request;
    request.workload = settings_.name;
    request.session = number;
    request.messages = {{"user", absl::StrCat(text, "What is the key of ", asked.owner, "?")}};
    request.max_tokens = settings_.output;
    request.count_tokens = true;
    request.fields = settings_.fields;
    request.fields.emplace("temperature", 0);
    request.expected = {.kind = Expectation::Kind::contains, .text = asked.value, .schema = {}};
    return std::make_unique<SingleRequest>(std::move(request));
  }

 private:
  int32_t words_of(int32_t tokens) const {
    return static_cast<int32_t>(std::lround(tokens * settings_.words_per_token));
  }

  RecallSettings settings_;
};

}  // namespace

WorkloadOr make_recall_workload(const WorkloadSpec& spec, const ServerTraits& server) {
  SpecReader reader(spec);
  RecallSettings settings;
  settings.name = reader.text("name", spec.name);
  settings.keys = reader.integer("keys", 4, 1, kMaxPlantedKeys);
  settings.input = reader.length("input", "100");
  settings.output = reader.integer("output", 16, 1, 100'000);
  settings.prefix = reader.integer("prefix", 0, 0, 10'000'000);
  settings.groups = reader.integer("groups", 4, 1, 1'000'000);
  settings.fields = reader.fields();
  settings.words_per_token = 1 / server.tokens_per_word;
  if (const absl::Status status = reader.finish(); !status.ok()) {
    return status;
  }
  return std::make_unique<RecallWorkload>(std::move(settings));
}

}  // namespace tessera::load

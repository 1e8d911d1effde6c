#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "load/workload/factories.h"
#include "load/workload/words.h"

namespace tessera::load {
namespace {

struct RepeatSettings {
  std::string name;
  int32_t prompts = 16;
  Length input;
  Length output;
  int32_t prefix = 0;
  int32_t groups = 1;
  double words_per_token = 1;
  bool deterministic = false;
  nlohmann::json fields;
};

// A few prompts, asked again and again. Each answer must be the one that the same server gave while
// it was idle, without its prefix cache.
class RepeatWorkload final : public Workload {
 public:
  explicit RepeatWorkload(RepeatSettings settings) : settings_(std::move(settings)) {}

  std::unique_ptr<Session> session(uint64_t number, uint64_t seed) const override {
    const size_t chosen = SeededRandom(seed_of(seed, number)).below(count());
    LoadRequest request = prompt(chosen, seed);
    request.session = number;
    if (!idle_.empty()) {
      const Answer& idle = idle_[chosen];
      request.expected = {.kind = Expectation::Kind::equals, .text = idle.text, .schema = {}};
      request.expected.strict = settings_.deterministic;
      if (idle.usage) {
        request.expected.prompt_tokens = static_cast<int32_t>(idle.usage->prompt_tokens);
      }
    }
    return std::make_unique<SingleRequest>(std::move(request));
  }

  std::vector<LoadRequest> asked_idle(uint64_t seed) const override {
    std::vector<LoadRequest> requests;
    for (size_t i = 0; i < count(); ++i) {
      requests.push_back(prompt(i, seed));
      if (settings_.deterministic) {
        requests.back().fields["cache_prompt"] = false;
      }
    }
    return requests;
  }

  void learn(const std::vector<Answer>& answers) override {
    TESSERA_CHECK(answers.size() == count(), "one answer for each prompt");
    idle_ = answers;
  }

 private:
  size_t count() const { return static_cast<size_t>(settings_.prompts); }

  LoadRequest prompt(size_t index, uint64_t seed) const {
    Variates variates(seed_of(seed ^ 0x2e9ea7, index));
    std::string text;
    if (settings_.prefix > 0) {
      SeededRandom shared(seed_of(seed ^ 0x5afe, index % static_cast<size_t>(settings_.groups)));
      text = absl::StrCat(write_words(shared, words_of(settings_.prefix)), ". ");
    }
    absl::StrAppend(&text,
                    write_words(variates.integers(), words_of(settings_.input.draw(variates))));
    LoadRequest request;
    request.workload = settings_.name;
    request.messages = {{"user", std::move(text)}};
    request.max_tokens = settings_.output.draw(variates);
    request.ignore_eos = true;
    request.count_tokens = true;
    request.fields = settings_.fields;
    if (!request.fields.emplace("temperature", 0).second) {
      request.fields["seed"] = index;  // sampled texts repeat by their seed
    }
    if (settings_.deterministic) {
      request.fields["deterministic"] = true;
    }
    return request;
  }

  int32_t words_of(int32_t tokens) const {
    return std::max(1, static_cast<int32_t>(std::lround(tokens * settings_.words_per_token)));
  }

  RepeatSettings settings_;
  std::vector<Answer> idle_;
};

}  // namespace

WorkloadOr make_repeat_workload(const WorkloadSpec& spec, const ServerTraits& server) {
  SpecReader reader(spec);
  RepeatSettings settings;
  settings.name = reader.text("name", spec.name);
  settings.prompts = reader.integer("prompts", 16, 1, 100'000);
  settings.input = reader.length("input", "32-200");
  settings.output = reader.length("output", "32");
  settings.prefix = reader.integer("prefix", 0, 0, 10'000'000);
  settings.groups = reader.integer("groups", 4, 1, 1'000'000);
  settings.fields = reader.fields();
  settings.words_per_token = 1 / server.tokens_per_word;
  settings.deterministic = server.tessera;
  if (const absl::Status status = reader.finish(); !status.ok()) {
    return status;
  }
  return std::make_unique<RepeatWorkload>(std::move(settings));
}

}  // namespace tessera::load

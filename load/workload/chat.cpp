#include <cmath>
#include <utility>

#include "load/workload/factories.h"
#include "load/workload/words.h"

namespace tessera::load {
namespace {

struct ChatSettings {
  std::string name;
  Length input;     // tokens of the first message
  Length followup;  // tokens of later messages
  Length output;
  int32_t prefix = 0;  // tokens of a system message that sessions of one group share
  int32_t groups = 1;
  int32_t turns = 1;
  double think = 0;  // mean seconds between an answer and the next message, exponential
  double words_per_token = 1;
  nlohmann::json fields;
};

int32_t words_of(const ChatSettings& settings, int32_t tokens) {
  return std::max(1, static_cast<int32_t>(std::lround(tokens * settings.words_per_token)));
}

// A chat whose context grows by each answer.
class ChatSession final : public Session {
 public:
  ChatSession(const ChatSettings& settings, uint64_t number, uint64_t seed)
      : settings_(settings), number_(number), variates_(seed_of(seed, number)) {
    if (settings.prefix > 0) {
      const size_t group = variates_.integers().below(static_cast<size_t>(settings.groups));
      SeededRandom shared(seed_of(seed ^ 0x5afe, group));
      messages_.push_back({"system", write_words(shared, words_of(settings, settings.prefix))});
    }
  }

  LoadRequest next() override {
    const Length& length = turn_ == 0 ? settings_.input : settings_.followup;
    const int32_t words = words_of(settings_, length.draw(variates_));
    messages_.push_back({"user", write_words(variates_.integers(), words)});
    LoadRequest request;
    request.workload = settings_.name;
    request.session = number_;
    request.turn = turn_++;
    request.messages = messages_;
    request.max_tokens = settings_.output.draw(variates_);
    request.ignore_eos = true;
    request.fields = settings_.fields;
    return request;
  }

  std::optional<double> answered(const std::string& text) override {
    if (turn_ >= settings_.turns) {
      return std::nullopt;
    }
    messages_.push_back({"assistant", text});
    return settings_.think * variates_.exponential();
  }

 private:
  const ChatSettings& settings_;
  uint64_t number_;
  Variates variates_;
  std::vector<ChatMessage> messages_;
  int32_t turn_ = 0;
};

class ChatWorkload final : public Workload {
 public:
  explicit ChatWorkload(ChatSettings settings) : settings_(std::move(settings)) {}
  std::unique_ptr<Session> session(uint64_t number, uint64_t seed) const override {
    return std::make_unique<ChatSession>(settings_, number, seed);
  }

 private:
  ChatSettings settings_;
};

}  // namespace

WorkloadOr make_chat_workload(const WorkloadSpec& spec, const ServerTraits& server) {
  const bool turns = spec.name == "turns";
  const bool agent = spec.name == "agent";
  const bool prefix = spec.name == "prefix";
  SpecReader reader(spec);
  ChatSettings settings;
  settings.name = reader.text("name", spec.name);
  settings.input = reader.length("input", turns ? "640" : agent ? "300" : prefix ? "32" : "~100");
  settings.followup = reader.length("followup", agent ? "100-400" : "20");
  settings.output = reader.length("output", turns || prefix ? "32" : "64");
  settings.prefix = reader.integer("prefix", prefix ? 512 : 0, 0, 10'000'000);
  settings.groups = reader.integer("groups", 4, 1, 1'000'000);
  settings.turns = reader.integer("turns", turns ? 8 : agent ? 10 : 1, 1, 100'000);
  settings.think = reader.number("think", turns ? 2 : 0, 0, 1e6);
  settings.fields = reader.fields();
  settings.words_per_token = 1 / server.tokens_per_word;
  if (const absl::Status status = reader.finish(); !status.ok()) {
    return status;
  }
  return std::make_unique<ChatWorkload>(std::move(settings));
}

}  // namespace tessera::load

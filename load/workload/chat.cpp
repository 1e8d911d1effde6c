#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "load/request/json_text.h"
#include "load/workload/factories.h"
#include "load/workload/words.h"

namespace tessera::load {
namespace {

struct ChatSettings {
  std::string name;
  Length input;     // tokens of the first message
  Length followup;  // tokens of later messages, or of each tool's result
  Length output;
  int32_t prefix = 0;  // tokens of a system message that sessions of one group share
  int32_t groups = 1;
  int32_t turns = 1;
  double think = 0;    // mean seconds between an answer and the next message, exponential
  bool agent = false;  // tools' results follow the answers, not the user's messages
  bool calls = false;  // messages name the calls of tools that they belong to
  double words_per_token = 1;
  nlohmann::json fields;
};

constexpr const char* kTool = "search";

// Returns: the tool that an agent's requests declare. It is not to be called: the session itself
// writes the calls, so that each turn has the length that was asked for.
nlohmann::json declared_tools() {
  return {{{"type", "function"},
           {"function",
            {{"name", kTool},
             {"description", "Searches the library."},
             {"parameters",
              {{"type", "object"}, {"properties", {{"query", {{"type", "string"}}}}}}}}}}};
}

int32_t words_of(const ChatSettings& settings, int32_t tokens) {
  return std::max(1, static_cast<int32_t>(std::lround(tokens * settings.words_per_token)));
}

// A chat whose context grows by each answer, and by the next message or a tool's result.
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
    if (turn_ == 0) {
      messages_.push_back({"user", words(settings_.input)});
    } else if (settings_.agent) {
      add_tool_result();
    } else {
      messages_.push_back({"user", words(settings_.followup)});
    }
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
  std::string words(const Length& length) {
    const int32_t count = words_of(settings_, length.draw(variates_));
    return write_words(variates_.integers(), count);
  }

  // The last answer becomes a call of the tool, and its result follows.
  void add_tool_result() {
    ChatMessage result{"tool", print_json({{"result", words(settings_.followup)}})};
    if (settings_.calls) {
      result.tool_call_id = absl::StrCat("call_", number_, "_", turn_);
      messages_.back().tool_calls = {
          {result.tool_call_id, kTool,
           print_json({{"query", write_words(variates_.integers(), 3)}})}};
    }
    messages_.push_back(std::move(result));
  }

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
  settings.agent = agent;
  if (agent) settings.calls = reader.integer("calls", server.tessera ? 0 : 1, 0, 1) == 1;
  settings.fields = reader.fields();
  if (settings.calls) {
    settings.fields["tools"] = declared_tools();
    settings.fields["tool_choice"] = "none";
  }
  settings.words_per_token = 1 / server.tokens_per_word;
  if (const absl::Status status = reader.finish(); !status.ok()) {
    return status;
  }
  return std::make_unique<ChatWorkload>(std::move(settings));
}

}  // namespace tessera::load

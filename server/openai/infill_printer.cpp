#include "server/openai/infill_printer.h"

#include <nlohmann/json.hpp>
#include <string_view>

#include "server/base/error.h"
#include "server/json/print_json.h"

namespace tessera {

namespace {

using Json = nlohmann::ordered_json;

std::string infill_event(const Json& json) {
  return "data: " + print_json(json) + "\n\n";
}

// Returns: the end of a text: the model's own, a stop string, or the number of tokens.
std::string_view stop_type(const ChoiceText& choice) {
  if (!choice.stop.empty()) {
    return "word";
  }
  return choice.finish_reason == "length" ? "limit" : "eos";
}

class InfillPrinter final : public AnswerPrinter {
 public:
  explicit InfillPrinter(std::string model) : model_(std::move(model)) {}

  std::string whole(std::span<const ChoiceText> choices, const Usage& usage) override {
    take_end(choices.front());
    return print_json(last(choices.front().text, usage));
  }
  std::string error(const absl::Status& status) override { return print_error(status); }

  std::string begin(const Usage& /*usage*/) override { return {}; }
  std::string part(const ChoiceText& part, const Usage& usage) override {
    if (!part.finish_reason.empty()) {
      take_end(part);
    }
    return infill_event({{"index", 0},
                         {"content", part.text},
                         {"stop", false},
                         {"tokens_predicted", usage.completion_tokens},
                         {"tokens_evaluated", usage.prompt_tokens}});
  }
  std::string end(const Usage& usage) override { return infill_event(last("", usage)); }
  std::string failure(const absl::Status& status) override {
    return "data: " + print_error(status) + "\n\n";
  }
  bool shows_usage() const override { return true; }

 private:
  void take_end(const ChoiceText& choice) {
    stop_type_ = stop_type(choice);
    stopping_word_ = choice.stop;
  }

  Json last(const std::string& content, const Usage& usage) const {
    return {{"index", 0},
            {"content", content},
            {"stop", true},
            {"model", model_},
            {"tokens_predicted", usage.completion_tokens},
            {"tokens_evaluated", usage.prompt_tokens},
            {"tokens_cached", usage.prompt_tokens + usage.completion_tokens},
            {"truncated", false},
            {"stop_type", stop_type_},
            {"stopping_word", stopping_word_}};
  }

  const std::string model_;
  std::string_view stop_type_ = "none";
  std::string stopping_word_;
};

}  // namespace

std::unique_ptr<AnswerPrinter> make_infill_printer(const std::string& model) {
  return std::make_unique<InfillPrinter>(model);
}

}  // namespace tessera

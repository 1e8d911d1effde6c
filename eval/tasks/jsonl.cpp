#include "eval/tasks/jsonl.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "eval/tasks/documents.h"
#include "eval/tasks/prompt_text.h"

namespace tessera {
namespace {

using nlohmann::json;

constexpr int32_t kRoomBesidesValue = 16;  // tokens generated besides the value
constexpr int kDepthRows = 5;

enum class Form : uint8_t { answer, choices, kv_records, questions };

struct Line {
  const json& object;
  const Tokenizer& tokenizer;
  const JsonlOptions& options;
};

absl::Status wrong(std::string_view what) {
  return absl::InvalidArgumentError(std::string(what));
}

absl::StatusOr<std::string> text_of(const json& object, const char* field) {
  const auto found = object.find(field);
  if (found == object.end() || !found->is_string()) {
    return wrong(absl::StrCat("\"", field, "\" is missing or no string"));
  }
  return found->get<std::string>();
}

absl::StatusOr<Trial> forced_trial(const Tokenizer& tokenizer, const std::string& prompt,
                                   const std::string& continuation) {
  SplitIds ids = encode_split(tokenizer, prompt, continuation);
  if (ids.prompt.empty()) {
    return wrong("the prompt is empty, and the model has no BOS to begin with");
  }
  if (ids.continuation.empty()) {
    return wrong(absl::StrCat("the continuation '", continuation, "' has no tokens of its own"));
  }
  return Trial{.prompt = std::move(ids.prompt), .forced = std::move(ids.continuation)};
}

absl::StatusOr<Item> read_answer(const Line& line) {
  TESSERA_ASSIGN_OR_RETURN(const std::string prompt, text_of(line.object, "prompt"));
  TESSERA_ASSIGN_OR_RETURN(const std::string answer, text_of(line.object, "answer"));
  Item item;
  TESSERA_ASSIGN_OR_RETURN(item.trials.emplace_back(),
                           forced_trial(line.tokenizer, prompt, answer));
  return item;
}

absl::StatusOr<size_t> right_choice(const json& object, const std::vector<std::string>& choices) {
  const auto found = object.find("answer");
  if (found != object.end() && found->is_number_unsigned() &&
      found->get<uint64_t>() < choices.size()) {
    return found->get<size_t>();
  }
  if (found != object.end() && found->is_string()) {
    const auto at = std::find(choices.begin(), choices.end(), found->get<std::string>());
    if (at != choices.end()) {
      return static_cast<size_t>(at - choices.begin());
    }
  }
  return wrong(absl::StrCat("\"answer\" must be one of the ", choices.size(),
                            " choices or its index, counted from 0"));
}

absl::StatusOr<Item> read_choices(const Line& line) {
  TESSERA_ASSIGN_OR_RETURN(const std::string prompt, text_of(line.object, "prompt"));
  const json& choices = line.object.at("choices");
  Item item;
  for (const json& choice : choices) {
    if (!choice.is_string()) {
      return wrong("\"choices\" must be strings");
    }
    item.choices.push_back(choice.get<std::string>());
    TESSERA_ASSIGN_OR_RETURN(item.trials.emplace_back(),
                             forced_trial(line.tokenizer, prompt, item.choices.back()));
  }
  if (item.choices.size() < 2) {
    return wrong("\"choices\" must be a list of at least two strings");
  }
  TESSERA_ASSIGN_OR_RETURN(item.right, right_choice(line.object, item.choices));
  return item;
}

struct Records {
  std::vector<std::pair<std::string, std::string>> pairs;
  size_t gold = 0;  // index of the requested pair
};

absl::StatusOr<Records> read_records(const json& object) {
  TESSERA_ASSIGN_OR_RETURN(const std::string key, text_of(object, "key"));
  Records records;
  bool found = false;
  for (const json& record : object.at("ordered_kv_records")) {
    if (!record.is_array() || record.size() != 2 || !record[0].is_string() ||
        !record[1].is_string()) {
      return wrong("\"ordered_kv_records\" must be pairs of strings");
    }
    if (record[0] == key) {
      found = true;
      records.gold = records.pairs.size();
    }
    records.pairs.emplace_back(record[0].get<std::string>(), record[1].get<std::string>());
  }
  return found ? absl::StatusOr<Records>(std::move(records))
               : wrong(absl::StrCat("\"key\" '", key, "' is none of the records"));
}

// Keeps `count` pairs around the requested one, so that its depth stays the same.
void keep_pairs(Records& records, size_t count) {
  const size_t before = records.gold * (count - 1) / (records.pairs.size() - 1);
  const auto begin = records.pairs.begin() + static_cast<std::ptrdiff_t>(records.gold - before);
  records.pairs = {begin, begin + static_cast<std::ptrdiff_t>(count)};
  records.gold = before;
}

absl::StatusOr<Item> read_kv_records(const Line& line) {
  TESSERA_ASSIGN_OR_RETURN(Records records, read_records(line.object));
  TESSERA_ASSIGN_OR_RETURN(const std::string value, text_of(line.object, "value"));
  const auto max = static_cast<size_t>(line.options.kv_pairs);
  if (max > 0 && max < records.pairs.size()) {
    keep_pairs(records, max);
  }
  std::string pairs;
  for (const auto& [key, other] : records.pairs) {
    absl::StrAppend(&pairs, pairs.empty() ? "{" : ",\n ", json(key).dump(), ": ",
                    json(other).dump());
  }
  const std::string prompt = absl::StrCat(
      "Extract the value corresponding to the specified key in the JSON object below.\n\n"
      "JSON data:\n",
      pairs, "}\n\nKey: ", json(records.pairs[records.gold].first).dump(),
      "\nCorresponding value:");
  Item item;
  Trial& trial = item.trials.emplace_back();
  trial.prompt = encode_text(line.tokenizer, prompt);
  trial.generate =
      static_cast<int32_t>(encode_text(line.tokenizer, value).size()) + kRoomBesidesValue;
  item.answer = value;
  const double pairs_before = static_cast<double>(records.gold);
  const double last = static_cast<double>(std::max<size_t>(records.pairs.size(), 2) - 1);
  item.depth = std::round(pairs_before / last * (kDepthRows - 1)) / (kDepthRows - 1);
  item.length = static_cast<int32_t>(records.pairs.size());
  return item;
}

absl::StatusOr<Asked> read_asked(const json& object) {
  TESSERA_ASSIGN_OR_RETURN(const std::string given, text_of(object, "asked"));
  for (const Asked asked : kAsked) {
    if (name_of(asked) == given) {
      return asked;
    }
  }
  return wrong(
      absl::StrCat("\"asked\" is '", given, "', it must be \"end\", \"later\" or \"turns\""));
}

absl::StatusOr<Item> read_questions(const Line& line) {
  TESSERA_ASSIGN_OR_RETURN(const std::string context, text_of(line.object, "context"));
  TESSERA_ASSIGN_OR_RETURN(const Asked asked, read_asked(line.object));
  std::vector<AskedText> questions;
  for (const json& question : line.object.at("questions")) {
    AskedText& text = questions.emplace_back();
    TESSERA_ASSIGN_OR_RETURN(text.question, text_of(question, "question"));
    TESSERA_ASSIGN_OR_RETURN(text.answer, text_of(question, "answer"));
    if (text.question.empty() || text.answer.empty()) {
      return wrong("a question or an answer is empty");
    }
  }
  if (questions.empty() || context.empty()) {
    return wrong("\"context\" or \"questions\" is empty");
  }
  Item item;
  item.trials = make_asking_trials(context, questions, asked, line.tokenizer);
  for (const Trial& trial : item.trials) {
    if (trial.prompt.empty()) {
      return wrong("the context has no token of its own");
    }
  }
  return item;
}

absl::StatusOr<Form> form_of(const json& object) {
  if (!object.is_object()) {
    return wrong("not a JSON object");
  }
  const auto is_list = [&](const char* field) {
    return object.contains(field) && object[field].is_array();
  };
  if (is_list("ordered_kv_records")) {
    return Form::kv_records;
  }
  if (is_list("choices")) {
    return Form::choices;
  }
  if (is_list("questions")) {
    return Form::questions;
  }
  if (object.contains("answer")) {
    return Form::answer;
  }
  return wrong(
      "neither \"answer\" nor \"choices\" nor \"ordered_kv_records\" nor \"questions\" is there");
}

absl::StatusOr<Item> read_item(Form form, const Line& line) {
  TESSERA_ASSIGN_OR_RETURN(const Form own, form_of(line.object));
  if (own != form) {
    return wrong("another form than the first line's");
  }
  switch (form) {
    case Form::answer:
      return read_answer(line);
    case Form::choices:
      return read_choices(line);
    case Form::kv_records:
      return read_kv_records(line);
    case Form::questions:
      return read_questions(line);
  }
  return wrong("unknown form");
}

void describe(Form form, Task& task) {
  switch (form) {
    case Form::answer:
      task.scoring = Scoring::exact;
      task.description = "prompts of the user's file, with exact answers";
      return;
    case Form::choices:
      task.scoring = Scoring::choice;
      task.description = "prompts of the user's file, with choices by log likelihood";
      return;
    case Form::kv_records:
      task.scoring = Scoring::contains;
      task.description = "the value of one key of a JSON object, by depth and number of pairs";
      return;
    case Form::questions:
      task.scoring = Scoring::exact;
      task.description = "contexts of the user's file, each with its questions";
      return;
  }
}

}  // namespace

absl::StatusOr<Task> read_jsonl_task(const std::filesystem::path& file, const JsonlOptions& options,
                                     const Tokenizer& tokenizer) {
  std::ifstream stream(file, std::ios::binary);
  if (!stream) {
    return absl::NotFoundError(absl::StrCat(file.string(), ": cannot be read"));
  }
  Task task{.name = file.stem().string()};
  Form form = Form::answer;
  std::string text;
  for (int64_t number = 1; std::getline(stream, text); ++number) {
    if (text.find_first_not_of(" \t\r") == std::string::npos) {
      continue;
    }
    const bool tuning = number % 2 == 1;
    if (options.split == (tuning ? Split::reporting : Split::tuning)) {
      continue;
    }
    if (options.limit > 0 && task.items.size() == static_cast<size_t>(options.limit)) {
      break;
    }
    const auto at = [&](const absl::Status& status) {
      return absl::InvalidArgumentError(
          absl::StrCat(file.string(), ":", number, ": ", std::string(status.message())));
    };
    const json object = json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (task.items.empty()) {
      const absl::StatusOr<Form> first = form_of(object);
      if (!first.ok()) return at(first.status());
      form = *first;
    }
    absl::StatusOr<Item> item = read_item(form, {object, tokenizer, options});
    if (!item.ok()) return at(item.status());
    const auto id = object.find("id");
    item->id = id == object.end() ? absl::StrCat(number)
               : id->is_string()  ? id->get<std::string>()
                                  : id->dump();
    task.items.push_back(*std::move(item));
  }
  if (task.items.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(file.string(), ": no items"));
  }
  describe(form, task);
  return task;
}

}  // namespace tessera

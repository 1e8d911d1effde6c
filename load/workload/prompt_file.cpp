#include "load/workload/prompt_file.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "load/request/json_text.h"
#include "load/workload/factories.h"

namespace tessera::load {
namespace {

using nlohmann::json;

std::string text_of(const json& object, const char* name) {
  return object.contains(name) && object[name].is_string() ? object[name].get<std::string>() : "";
}

void add_message(FilePrompt& prompt, const std::string& role, const std::string& text) {
  if (role == "system") {
    prompt.system = text;
  } else if (role == "user" || role == "human") {
    prompt.user.push_back(text);
  }
}

// Returns: false if the line has none of the forms.
bool parse_line(const json& line, FilePrompt& prompt) {
  if (!line.is_object()) {
    return false;
  }
  prompt.answer = text_of(line, "answer");
  for (const auto& [list, role, text] :
       {std::tuple{"messages", "role", "content"}, std::tuple{"conversations", "from", "value"}}) {
    if (!line.contains(list) || !line[list].is_array()) {
      continue;
    }
    for (const json& message : line[list]) {
      if (!message.is_object()) return false;
      add_message(prompt, text_of(message, role), text_of(message, text));
    }
    return !prompt.user.empty();
  }
  prompt.prompt = text_of(line, "prompt");
  return !prompt.prompt.empty();
}

class FileSession final : public Session {
 public:
  FileSession(const FilePrompt& prompt, LoadRequest common)
      : prompt_(prompt), common_(std::move(common)) {
    if (!prompt.system.empty()) {
      common_.messages.push_back({"system", prompt.system});
    }
  }

  LoadRequest next() override {
    if (prompt_.user.empty()) {
      common_.prompt = prompt_.prompt;
    } else {
      common_.messages.push_back({"user", prompt_.user[turn_]});
    }
    LoadRequest request = common_;
    request.turn = static_cast<int32_t>(turn_++);
    if (!prompt_.answer.empty() && turn_ >= prompt_.user.size()) {
      request.expected.kind = Expectation::Kind::contains;
      request.expected.text = prompt_.answer;
    }
    return request;
  }

  std::optional<double> answered(const std::string& text) override {
    if (turn_ >= prompt_.user.size()) {
      return std::nullopt;
    }
    common_.messages.push_back({"assistant", text});
    return 0;
  }

 private:
  const FilePrompt& prompt_;
  LoadRequest common_;
  size_t turn_ = 0;
};

class FileWorkload final : public Workload {
 public:
  FileWorkload(std::vector<FilePrompt> prompts, LoadRequest common)
      : prompts_(std::move(prompts)), common_(std::move(common)) {}

  std::unique_ptr<Session> session(uint64_t number, uint64_t /*seed*/) const override {
    LoadRequest request = common_;
    request.session = number;
    return std::make_unique<FileSession>(prompts_[number % prompts_.size()], std::move(request));
  }

  std::optional<uint64_t> sessions() const override { return prompts_.size(); }

 private:
  std::vector<FilePrompt> prompts_;
  LoadRequest common_;
};

}  // namespace

absl::StatusOr<std::vector<FilePrompt>> read_prompts(std::istream& lines) {
  std::vector<FilePrompt> prompts;
  std::string line;
  for (int64_t number = 1; std::getline(lines, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) {
      continue;
    }
    FilePrompt prompt;
    if (!parse_line(parse_json(line), prompt)) {
      return absl::InvalidArgumentError(
          absl::StrCat("line ", number,
                       " has none of the forms {\"messages\"}, {\"prompt\"}, {\"conversations\"}"));
    }
    prompts.push_back(std::move(prompt));
  }
  if (prompts.empty()) {
    return absl::InvalidArgumentError("there are no prompts");
  }
  return prompts;
}

WorkloadOr make_file_workload(const WorkloadSpec& spec, const ServerTraits& /*server*/) {
  SpecReader reader(spec);
  LoadRequest common;
  common.workload = reader.text("name", spec.name);
  const std::string path = reader.text("path");
  common.max_tokens = reader.integer("output", 256, 1, 1'000'000);
  common.fields = reader.fields();
  TESSERA_ASSIGN_OR_RETURN(std::ifstream file, reader.finish_and_open("path"));
  absl::StatusOr<std::vector<FilePrompt>> prompts = read_prompts(file);
  if (!prompts.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", std::string(prompts.status().message())));
  }
  return std::make_unique<FileWorkload>(std::move(*prompts), std::move(common));
}

}  // namespace tessera::load

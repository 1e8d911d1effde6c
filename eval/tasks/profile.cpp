#include "eval/tasks/profile.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "eval/tasks/documents.h"
#include "eval/tasks/held_out_text.h"
#include "eval/tasks/jsonl.h"
#include "eval/tasks/retrieval.h"
#include "eval/tasks/tool_calls.h"
#include "eval/tasks/writing.h"
#include "text/chat_template.h"

namespace tessera {
namespace {

struct Profile {
  TextWindows windows;
  RetrievalGrid grid;
  int32_t copies;
  int32_t copy_length;
  int32_t generations;
  int32_t generated;
  DocumentGrid documents;
  ToolCallGrid tools;
};

Profile full_profile() {
  return {{384, 128},
          {{256, 512, 1024, 1536}, {0, 0.25, 0.5, 0.75, 1}, 8},
          64,
          256,
          2,
          1000,
          {{1024}, 12, 12},
          {{1024, 2048, 4096, 8192}, 50}};
}

Profile quick_profile() {
  return {{192, 64}, {{128, 384}, {0, 0.5, 1}, 4}, 16, 192, 1, 160, {{384}, 6, 6}, {{1024}, 12}};
}

// The text again, but without the prompt's distributions, so it is in none of the groups. Neither
// are chats with tools, because many models have no chat template.
constexpr std::string_view kContinuation = "continuation";
constexpr std::string_view kToolCalls = "tools";
constexpr std::string_view kWriting[] = {"text", "generation", "copy"};

std::string document_name(const DocumentKind& kind, Asked asked) {
  return absl::StrCat(std::string(kind.name), "-", std::string(name_of(asked)));
}

std::vector<std::string> document_names() {
  std::vector<std::string> names;
  for (const DocumentKind& kind : document_kinds()) {
    for (const Asked asked : kAsked) {
      names.push_back(document_name(kind, asked));
    }
  }
  return names;
}

std::vector<std::string> built_in_names() {
  std::vector<std::string> names(std::begin(kWriting), std::end(kWriting));
  for (const RetrievalKind& kind : retrieval_kinds()) {
    names.emplace_back(kind.name);
  }
  return names;
}

absl::StatusOr<std::string> read_text(const std::filesystem::path& file) {
  if (file.empty()) {
    return held_out_text();
  }
  std::ifstream stream(file, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(stream), {}};
  if (!stream) {
    return absl::NotFoundError(absl::StrCat("--text: ", file.string(), " cannot be read"));
  }
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat("--text: ", file.string(), " is empty"));
  }
  return text;
}

class TaskMaker {
 public:
  TaskMaker(const TaskOptions& options, const Tokenizer& tokenizer, int32_t context, bool quick)
      : options_(options),
        tokenizer_(tokenizer),
        context_(context),
        profile_(quick ? quick_profile() : full_profile()) {
    if (!options.lengths.empty()) {
      profile_.grid.lengths = options.lengths;
      profile_.documents.lengths = options.lengths;
      profile_.tools.lengths = options.lengths;
    }
    if (options.samples > 0) {
      profile_.grid.samples = options.samples;
      profile_.documents.contexts = options.samples;
      profile_.tools.cases = options.samples;
    }
    if (options.questions > 0) profile_.documents.questions = options.questions;
    if (options.windows.size() == 2) {
      profile_.windows.prompt = options.windows[0];
      profile_.windows.forced = options.windows[1];
    }
    profile_.windows.most = options.limit;
    // A model with a shorter context is measured within that context.
    const int32_t windows = profile_.windows.prompt + profile_.windows.forced;
    if (windows > context) {
      profile_.windows.prompt = context * 3 / 4;
      profile_.windows.forced = context / 4;
    }
    profile_.generated = std::min(profile_.generated, context / 2);
  }

  absl::StatusOr<Task> make(const std::string& name) const {
    const uint64_t seed = seed_of(options_.split, options_.seed);
    if (absl::EndsWith(name, ".jsonl")) {
      return read_jsonl_task(name, {options_.limit, options_.kv_pairs, options_.split}, tokenizer_);
    }
    if (name == "text" || name == kContinuation) {
      TESSERA_ASSIGN_OR_RETURN(const std::string text, read_text(options_.text));
      const auto make = name == "text" ? make_text : make_continuation;
      return make(part_of(options_.split, text), profile_.windows, tokenizer_);
    }
    if (name == "generation") {
      return make_generation(profile_.generations, profile_.generated, tokenizer_, seed);
    }
    if (name == "copy") {
      return make_copy(profile_.copies, profile_.copy_length, tokenizer_, seed);
    }
    if (name == kToolCalls) return make_tools(seed);
    for (const RetrievalKind& kind : retrieval_kinds()) {
      if (kind.name == name) {
        RetrievalGrid grid = profile_.grid;
        grid.lengths = fitting(grid.lengths);
        return make_retrieval(kind, grid, tokenizer_, seed);
      }
    }
    for (const DocumentKind& kind : document_kinds()) {
      for (const Asked asked : kAsked) {
        if (name == document_name(kind, asked)) {
          TESSERA_ASSIGN_OR_RETURN(const std::string text, read_text(options_.text));
          const std::string part = part_of(options_.split, text);
          return make_documents(kind, asked, profile_.documents, tokenizer_, Material(seed, part));
        }
      }
    }
    return absl::InvalidArgumentError(absl::StrCat("--tasks: there is no task '", name,
                                                   "'; there are all, quick, ", task_names(),
                                                   " and files FILE.jsonl"));
  }

 private:
  // Returns: the lengths without those that exceed the context. Requested lengths are all kept;
  // their items that do not fit are counted as left out.
  std::vector<int32_t> fitting(std::vector<int32_t> lengths) const {
    if (options_.lengths.empty()) {
      std::erase_if(lengths, [this](int32_t length) { return length > context_; });
    }
    return lengths;
  }

  absl::StatusOr<Task> make_tools(uint64_t seed) const {
    TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<ChatTemplate> chat, tool_template());
    ToolCallGrid grid = profile_.tools;
    grid.lengths = fitting(grid.lengths);
    return make_tool_calls(grid, *chat, tokenizer_, Material(seed));
  }

  // Returns: the template that renders chats with tools.
  absl::StatusOr<std::unique_ptr<ChatTemplate>> tool_template() const {
    for (const auto& find : {find_tool_template, find_chat_template}) {
      TESSERA_ASSIGN_OR_RETURN(const std::optional<std::string> source, find(options_.model));
      if (source) return ChatTemplate::parse(*source);
    }
    return absl::InvalidArgumentError(
        absl::StrCat("the task tools: ", options_.model.string(), " has no chat template"));
  }

  const TaskOptions& options_;
  const Tokenizer& tokenizer_;
  const int32_t context_;
  Profile profile_;
};

// Returns: task names without duplicates, with the built-in tasks in place of "all" and "quick".
// Sets `quick` if the list names it.
std::vector<std::string> expand(const std::string& list, bool& quick) {
  std::vector<std::string> names;
  const auto add = [&names](const std::string& name) {
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  };
  for (const std::string& name : std::vector<std::string>(absl::StrSplit(list, ','))) {
    quick = quick || name == "quick";
    const bool group = name == "all" || name == "quick";
    if (!group && name != "documents") {
      add(name);
      continue;
    }
    for (const std::string& built_in : group ? built_in_names() : document_names()) {
      add(built_in);
    }
  }
  return names;
}

// The last token of a sequence is never computed, and one more is generated to measure the pages of
// its prompt.
absl::Status drop_what_is_too_long(int32_t context, Task& task) {
  const auto too_long = [context](const Item& item) {
    return std::any_of(item.trials.begin(), item.trials.end(), [context](const Trial& trial) {
      return trial.tokens() > static_cast<size_t>(context);
    });
  };
  const size_t before = task.items.size();
  task.items.erase(std::remove_if(task.items.begin(), task.items.end(), too_long),
                   task.items.end());
  task.left_out = static_cast<int32_t>(before - task.items.size());
  if (task.items.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        task.name, ": none of ", before, " items fits into a context of ", context, " tokens"));
  }
  return absl::OkStatus();
}

}  // namespace

std::string task_names() {
  return absl::StrCat(absl::StrJoin(built_in_names(), ", "), ", ", std::string(kContinuation), ", ",
                      std::string(kToolCalls), ", documents, ",
                      absl::StrJoin(document_names(), ", "));
}

absl::StatusOr<std::vector<Task>> make_tasks(const TaskOptions& options, const Tokenizer& tokenizer,
                                             int32_t context) {
  bool quick = false;
  const std::vector<std::string> names = expand(options.tasks, quick);
  const TaskMaker maker(options, tokenizer, context, quick);
  std::vector<Task> tasks;
  for (const std::string& name : names) {
    TESSERA_ASSIGN_OR_RETURN(Task task, maker.make(name));
    TESSERA_RETURN_IF_ERROR(drop_what_is_too_long(context, task));
    const bool repeated = std::any_of(tasks.begin(), tasks.end(),
                                      [&](const Task& other) { return other.name == task.name; });
    if (repeated) {
      return absl::InvalidArgumentError(
          absl::StrCat("--tasks: two tasks would be called '", task.name, "'"));
    }
    tasks.push_back(std::move(task));
  }
  return tasks;
}

}  // namespace tessera

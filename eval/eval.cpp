#include "eval/eval.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "engine/kv/kv_policy_fields.h"
#include "eval/http/http_subject.h"
#include "eval/lab/lab_subject.h"
#include "eval/progress.h"
#include "eval/report/writers.h"
#include "eval/run/device.h"
#include "eval/run/evaluation.h"
#include "eval/run/model_host.h"
#include "eval/run/presets.h"
#include "eval/score/scoring.h"
#include "models/architectures/rope_config.h"
#include "models/checkpoint/read_model_config.h"

namespace tessera {
namespace {

// Subjects of an evaluation, and the model that they share.
struct Contest {
  std::unique_ptr<ModelHost> host;  // null for a server, and for methods
  std::unique_ptr<lab::Model> draft;
  std::unique_ptr<lab::Model> model;  // of methods; null: there are none
  std::vector<std::unique_ptr<Subject>> subjects;
  std::vector<std::string> descriptions;
};

std::string describe(const KvPolicy& policy) {
  return absl::StrJoin(policy_fields(policy), ", ", [](std::string* out, const auto& field) {
    absl::StrAppend(out, field.first, "=", to_text(field.second));
  });
}

absl::StatusOr<Contest> open_engines(const EvalOptions& options, const Tokenizer& tokenizer,
                                     const std::vector<Task>& tasks, int32_t context) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<EvalPreset> presets, find_eval_presets(options.kv));
  const int32_t longest = std::min(context, static_cast<int32_t>(longest_trial(tasks)));
  int32_t section = 0;
  for (const EvalPreset& preset : presets) {
    section = std::max(section, preset.policy.replays() ? preset.policy.section : 0);
  }
  const ModelHostOptions host{.model = options.model,
                              .weights = options.weights,
                              .threads = options.threads,
                              .batch = options.batch,
                              .context = longest,
                              .replay = std::min(section, context - longest),
                              .coded_residuals = options.coded_residuals};
  Contest contest;
  TESSERA_ASSIGN_OR_RETURN(const ComputeDevice device, open_device(options.device, options.isa));
  TESSERA_ASSIGN_OR_RETURN(contest.host, ModelHost::load(host, *device.backend, device.stream));
  for (const EvalPreset& preset : presets) {
    TESSERA_ASSIGN_OR_RETURN(contest.subjects.emplace_back(),
                             contest.host->subject(preset, tokenizer));
    const bool coded = options.coded_residuals && stores_codes(preset.policy);
    contest.descriptions.push_back(describe(preset.policy) + (coded ? ", residual=k8v8" : ""));
  }
  return contest;
}

// Returns: tokens for methods that repeat a prompt behind it, if the model has so many.
int32_t laboratory_context(const ModelConfig& config, int32_t longest) {
  constexpr int32_t kRequest = 256;  // of a method, before the repetition
  return std::max(longest, std::min(2 * longest + kRequest, longest_context(config)));
}

absl::StatusOr<Contest> open_laboratory(const EvalOptions& options, const ModelConfig& config,
                                        const Tokenizer& tokenizer,
                                        const std::vector<Task>& tasks) {
  lab::ModelOptions model{
      .model = options.model,
      .weights = options.weights,
      .isa = options.isa,
      .threads = options.threads,
      .context = laboratory_context(config, static_cast<int32_t>(longest_trial(tasks)))};
  Contest contest;
  TESSERA_ASSIGN_OR_RETURN(contest.model, lab::Model::load(model));
  contest.model->tokenizer = &tokenizer;
  if (!options.draft_model.empty()) {
    TESSERA_ASSIGN_OR_RETURN(const ModelConfig of_draft, read_model_config(options.draft_model));
    model.model = options.draft_model;
    model.context = laboratory_context(of_draft, static_cast<int32_t>(longest_trial(tasks)));
    TESSERA_ASSIGN_OR_RETURN(contest.draft, lab::Model::load(model));
    contest.model->draft = contest.draft.get();
  }
  TESSERA_ASSIGN_OR_RETURN(
      std::vector<lab::NamedMethod> methods,
      lab::find_methods(options.methods, contest.model->shape(), contest.draft != nullptr));
  for (lab::NamedMethod& method : methods) {
    contest.descriptions.emplace_back(method.line->what_it_does);
    contest.subjects.push_back(lab::make_lab_subject(std::move(method), *contest.model));
  }
  return contest;
}

absl::StatusOr<Contest> open_server(const EvalOptions& options, const std::vector<Task>& tasks) {
  for (const Task& task : tasks) {
    const bool asks = std::any_of(task.items.begin(), task.items.end(), [](const Item& item) {
      return !item.trials.front().turns.empty();
    });
    if (task.along || asks) {
      return absl::InvalidArgumentError(
          absl::StrCat("--url: the task ", task.name,
                       " compares whole distributions, which a server does not give; choose others "
                       "with --tasks"));
    }
  }
  Contest contest;
  TESSERA_ASSIGN_OR_RETURN(contest.subjects.emplace_back(),
                           make_http_subject(options.url, options.batch));
  contest.descriptions.push_back(absl::StrCat("the server at ", options.url));
  return contest;
}

Report head_of(const EvalOptions& options, const Contest& contest) {
  Report report;
  const std::filesystem::path model = std::filesystem::weakly_canonical(options.model);
  report.model = model.has_filename() ? model.filename() : model.parent_path().filename();
  report.device = contest.host    ? contest.host->device()
                  : contest.model ? contest.model->device()
                                  : options.url;
  report.weights = options.url.empty() ? name_of_weights(options.weights) : "the server's";
  report.seed = options.tasks.seed;
  report.split = name_of(options.tasks.split);
  for (size_t s = 0; s < contest.subjects.size(); ++s) {
    SubjectReport& subject = report.subjects.emplace_back();
    subject.name = contest.subjects[s]->name();
    subject.description = contest.descriptions[s];
  }
  return report;
}

}  // namespace

absl::StatusOr<Report> run_eval(const EvalOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  TESSERA_ASSIGN_OR_RETURN(const ModelConfig config, read_model_config(options.model));
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer,
                           Tokenizer::load(options.model));
  const int32_t context = options.context > 0 ? options.context : config.context;
  TESSERA_ASSIGN_OR_RETURN(const std::vector<Task> tasks,
                           make_tasks(options.tasks, *tokenizer, context));
  TESSERA_ASSIGN_OR_RETURN(Contest contest,
                           !options.url.empty() ? open_server(options, tasks)
                           : !options.methods.empty()
                               ? open_laboratory(options, config, *tokenizer, tasks)
                               : open_engines(options, *tokenizer, tasks, context));
  Report report = head_of(options, contest);
  TESSERA_ASSIGN_OR_RETURN(Journal journal,
                           Journal::open(options.resume, journal_owner(options, report.device)));

  int64_t tokens = 0;
  for (const Task& task : tasks) {
    tokens += tokens_to_run(task, contest.subjects.size());
  }
  Progress progress(tokens);
  EvaluationOptions evaluation;
  evaluation.vocab = config.vocab;
  if (!options.methods.empty()) {
    evaluation.logits_bytes = 0;  // one item at a time: all methods share its computed prompt
  }
  evaluation.on_progress = [&progress](std::string_view task, std::string_view subject,
                                       int64_t done) { progress.advance(task, subject, done); };
  std::vector<TaskResults> results;
  for (const Task& task : tasks) {
    TESSERA_ASSIGN_OR_RETURN(results.emplace_back(),
                             evaluate(task, contest.subjects, evaluation, journal));
    report.tasks.push_back(score_task(task, results.back(), options.tasks.seed));
  }
  judge_subjects(tasks, results, {config.layers, config.kv_heads}, report);
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  report.cpu_seconds = static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
  return report;
}

absl::Status write_reports(const EvalOptions& options, const Report& report) {
  if (!options.json.empty()) {
    TESSERA_RETURN_IF_ERROR(save_file(options.json, print_json(report)));
  }
  if (!options.csv.empty()) {
    TESSERA_RETURN_IF_ERROR(save_file(options.csv, print_csv(report)));
  }
  if (!options.html.empty()) {
    TESSERA_RETURN_IF_ERROR(save_file(options.html, print_html(report)));
  }
  return absl::OkStatus();
}

}  // namespace tessera

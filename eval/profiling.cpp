#include "eval/profiling.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "eval/command_line.h"
#include "eval/head_losses.h"
#include "eval/progress.h"
#include "eval/report/writers.h"
#include "eval/run/device.h"
#include "eval/run/evaluation.h"
#include "eval/run/model_host.h"
#include "models/checkpoint/read_model_config.h"

namespace tessera {
namespace {

std::string sentence_of(const EvalOptions& options, const std::vector<Task>& tasks) {
  std::string names;
  int64_t items = 0;
  for (const Task& task : tasks) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", task.name);
    items += std::ssize(task.items);
  }
  return absl::StrCat("mean divergence from f16 in nats if one KV head keeps ", kProfiledSinks,
                      " first and the newest tokens, ", kProfiledTokens, " in all; ", names, ", ",
                      items, " contexts, seed ", options.tasks.seed, ", weights ",
                      name_of_weights(options.weights), ", " TESSERA_VERSION);
}

// A line for each layer, with the losses of its KV heads in thousandths of a nat.
std::string table_of(const HeadLosses& losses) {
  std::string out = "layer   loss of each KV head, 1e-3 nats\n";
  for (int32_t layer = 0; layer < losses.layers; ++layer) {
    absl::StrAppendFormat(&out, "%5d ", layer);
    for (int32_t head = 0; head < losses.kv_heads; ++head) {
      const auto row = static_cast<size_t>(layer * losses.kv_heads + head);
      absl::StrAppendFormat(&out, " %7.3f", 1e3 * losses.losses[row]);
    }
    absl::StrAppend(&out, "\n");
  }
  return out;
}

}  // namespace

absl::StatusOr<std::string> run_profiling(const EvalOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(const ModelConfig config, read_model_config(options.model));
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer,
                           Tokenizer::load(options.model));
  const int32_t context = options.context > 0 ? options.context : config.context;
  TESSERA_ASSIGN_OR_RETURN(const std::vector<Task> tasks,
                           make_tasks(options.tasks, *tokenizer, context));
  TESSERA_ASSIGN_OR_RETURN(const ComputeDevice device, open_device(options.device, options.isa));
  const ModelHostOptions host_options{
      .model = options.model,
      .weights = options.weights,
      .threads = options.threads,
      .batch = options.batch,
      .context = std::min(context, static_cast<int32_t>(longest_trial(tasks)))};
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<ModelHost> host,
                           ModelHost::load(host_options, *device.backend, device.stream));
  TESSERA_ASSIGN_OR_RETURN(Journal journal,
                           Journal::open(options.resume, journal_owner(options, host->device())));
  Progress progress(tokens_to_measure(tasks, config));
  TESSERA_ASSIGN_OR_RETURN(
      HeadLosses losses,
      measure_head_losses(
          *host, *tokenizer, tasks,
          [&progress](std::string_view task, std::string_view subject, int64_t tokens) {
            progress.advance(task, subject, tokens);
          },
          journal));
  losses.measured = sentence_of(options, tasks);
  const std::filesystem::path file = head_profile_path(options.model);
  TESSERA_RETURN_IF_ERROR(save_file(file, print_head_losses(losses)));
  return absl::StrCat(table_of(losses), "written to ", file.string(), "\n");
}

}  // namespace tessera

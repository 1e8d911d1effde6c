#include "eval/command_line.h"

#include <CLI/CLI.hpp>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/kv/kv_presets.h"
#include "eval/run/presets.h"

namespace tessera {
namespace {

std::string preset_names() {
  return absl::StrJoin(kv_choices(), ", ",
                       [](std::string* out, const KvPreset& preset) { out->append(preset.name); });
}

// Declares an option whose values have names. CLI11's transformers would print the enum itself as a
// character, and a zero ends the text of --help.
template <class Enum>
void add_choice(CLI::App& app, const std::string& flag, Enum& value,
                const std::map<std::string, Enum>& names, const std::string& description) {
  std::vector<std::string> known;
  for (const auto& [name, unused] : names) {
    known.push_back(name);
  }
  app.add_option_function<std::string>(
         flag, [&value, names](const std::string& name) { value = names.at(name); }, description)
      ->type_name("NAME")
      ->check(CLI::IsMember(known));
}

void declare_what(CLI::App& app, EvalOptions& options) {
  app.add_option("--model", options.model,
                 "Hugging Face directory or GGUF file; with --url for its tokenizer")
      ->type_name("DIR");
  app.add_option(
         "--kv", options.kv,
         absl::StrCat("KV presets to compare with f16, separated by commas: ", preset_names(),
                      ", a format such as k4v8, or with other numbers, "
                      "leankv:alpha_high=2:sinks=8 [",
                      options.kv, "]"))
      ->type_name("NAME,...");
  app.add_option("--method", options.methods,
                 "methods of the literature to compare with full attention instead, separated by "
                 "commas, with numbers as in h2o:budget=0.1; all: every one (docs/kv-methods.md)")
      ->type_name("NAME,...");
  app.add_option("--draft-model", options.draft_model,
                 "a small model of the same vocabulary, for methods that need one")
      ->type_name("DIR");
  app.add_option("--url", options.url,
                 "evaluate the server at http://HOST:PORT through its completions API instead")
      ->type_name("URL");
  app.add_option("--tasks", options.tasks.tasks,
                 absl::StrCat("all, quick, or some of ", task_names(),
                              " and FILE.jsonl, separated by commas [", options.tasks.tasks, "]"))
      ->type_name("NAME,...");
  app.add_option("--text", options.tasks.text,
                 "UTF-8 text for the task text, which the model has not seen [the text that ships]")
      ->type_name("FILE");
  app.add_option("--windows", options.tasks.windows,
                 "tokens of the prompt and of the forced rest of each window of the task text "
                 "[384,128]")
      ->type_name("N,N")
      ->delimiter(',')
      ->expected(2)
      ->check(CLI::Range(16, 1 << 24));
  app.add_option("--lengths", options.tasks.lengths,
                 "tokens of retrieval contexts; default: 256 to 1536, or those that fit")
      ->type_name("N,...")
      ->delimiter(',')
      ->check(CLI::Range(32, 1 << 24));
  app.add_option(
         "--samples", options.tasks.samples,
         "questions of each depth and length [8]; contexts of documents of each length [12]; chats "
         "with tools of each length [50]")
      ->check(CLI::Range(1, 1'000'000));
  app.add_option("--questions", options.tasks.questions,
                 "questions of each context of documents [12]")
      ->check(CLI::Range(1, 100'000));
  app.add_option("--limit", options.tasks.limit,
                 "windows of the task text, or items of a FILE.jsonl, at most [all]")
      ->check(CLI::Range(1, 1'000'000'000));
  app.add_option("--kv-pairs", options.tasks.kv_pairs,
                 "pairs of a kv-retrieval item, the others are left out [all]")
      ->check(CLI::Range(2, 1'000'000));
  app.add_option("--seed", options.tasks.seed, "seed of tasks, sampling and intervals [0]");
  std::map<std::string, Split> splits;
  for (const Split split : kSplits) {
    splits.emplace(name_of(split), split);
  }
  add_choice(app, "--split", options.tasks.split, splits,
             "tuning or reporting: data of which the other sees nothing; all: both [all]");
}

void declare_how(CLI::App& app, EvalOptions& options) {
  std::map<std::string, std::optional<WeightFormat>> weights{{name_of_weights({}), std::nullopt}};
  for (const WeightFormat format : kWeightFormats) {
    weights.emplace(name(format), format);
  }
  app.add_option("--device", options.device, "cpu or cuda [cpu]")->type_name("NAME");
  app.add_option_function<std::string>(
         "--isa",
         [&options](const std::string& text) {
           for (const CpuIsa isa : kCpuIsas) {
             if (text == name(isa)) options.isa = isa;
           }
         },
         "kernels to use; default: the best of this machine")
      ->check(CLI::IsMember({"scalar", "avx2", "avx512", "avx512_fp16", "amx"}));
  add_choice(app, "--residual", options.coded_residuals, {{"f16", false}, {"k8v8", true}},
             "format of the residual buffers of presets whose formats are of codes [f16]");
  add_choice(app, "--weights", options.weights, weights,
             "format of the weights in memory; stored: as the checkpoint has them [f32]");
  app.add_option("--threads", options.threads, "0: one for each core [0]")
      ->check(CLI::Range(0, 4096));
  app.add_option("--batch", options.batch, "sequences that run at once [8]")
      ->check(CLI::Range(1, 512));
  app.add_option("--context", options.context, "tokens of the longest item; default: the model's")
      ->check(CLI::Range(64, 1 << 24));
  app.add_option("--json", options.json, "write everything as JSON")->type_name("FILE");
  app.add_option("--csv", options.csv, "write scores as CSV")->type_name("FILE");
  app.add_option("--html", options.html, "write a report with plots")->type_name("FILE");
  app.add_flag("--profile", options.profile,
               "measure the model's loss by each KV head that keeps the newest tokens only, and "
               "write it beside the checkpoint, for presets such as retrieval-50");
  app.add_option("--resume", options.resume,
                 "keep results in this file, and go on from those in it")
      ->type_name("FILE");
}

// Heads are profiled with questions that come later, about contexts of tuning data.
void choose_profiling_tasks(const CLI::App& app, TaskOptions& tasks) {
  if (app.count("--tasks") == 0) tasks.tasks = "materials-later";
  if (app.count("--split") == 0) tasks.split = Split::tuning;
  if (tasks.lengths.empty()) tasks.lengths = {1024};
  if (tasks.samples == 0) tasks.samples = 4;
  if (tasks.questions == 0) tasks.questions = 8;
}

absl::Status check(const EvalOptions& options) {
  if (options.model.empty()) return absl::InvalidArgumentError("--model is required (see --help)");
  if (options.profile && !options.url.empty()) {
    return absl::InvalidArgumentError(
        "--profile compares distributions inside the model, which the server of --url does not "
        "give");
  }
  if (!options.methods.empty() && (!options.url.empty() || options.profile)) {
    return absl::InvalidArgumentError(
        "--method runs inside this process, without --url or --profile");
  }
  if (!options.methods.empty() && options.device != "cpu") {
    return absl::UnimplementedError("--method runs on the CPU alone; leave out --device");
  }
  if (options.device != "cpu" && options.device != "cuda") {
    return absl::UnimplementedError(absl::StrCat("--device: there is no device '", options.device,
                                                 "'; there are cpu and cuda"));
  }
  if (options.isa && !cpu_supports(*options.isa)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--isa: this machine has no ", std::string(name(*options.isa))));
  }
  return absl::OkStatus();
}

}  // namespace

std::string name_of_weights(std::optional<WeightFormat> format) {
  return format ? std::string(name(*format)) : "stored";
}

std::string journal_owner(const EvalOptions& options, const std::string& device) {
  const std::string model = std::filesystem::weakly_canonical(options.model).string();
  return absl::StrCat(model, ", ", options.url.empty() ? device : options.url, ", weights ",
                      name_of_weights(options.weights),
                      options.coded_residuals ? ", residual k8v8" : "");
}

absl::StatusOr<EvalCommand> parse_eval_command(int argc, const char* const* argv) {
  CLI::App app("Measures the loss of quality by a KV cache format.", "tessera-eval");
  EvalCommand command;
  app.set_version_flag("--version", "tessera-eval " TESSERA_VERSION);
  declare_what(app, command.options);
  declare_how(app, command.options);
  app.add_flag("--list-methods", command.lists_methods, "print the methods that --method knows");
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    command.text = app.help();
    return command;
  } catch (const CLI::CallForVersion& version) {
    command.text = absl::StrCat(version.what(), "\n");
    return command;
  } catch (const CLI::ParseError& error) {
    return absl::InvalidArgumentError(absl::StrCat(error.what(), " (see --help)"));
  }
  if (command.lists_methods) {
    return command;
  }
  command.options.tasks.model = command.options.model;
  if (command.options.profile) {
    choose_profiling_tasks(app, command.options.tasks);
  }
  if (const absl::Status status = check(command.options); !status.ok()) {
    return status;
  }
  return command;
}

}  // namespace tessera

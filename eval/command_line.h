#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "eval/tasks/profile.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/matrix/weight.h"

namespace tessera {

// Command line options. The initialisers are the defaults.
struct EvalOptions {
  std::filesystem::path model;
  std::string kv = "f32,f16";
  std::string methods;  // not empty: compares methods of the laboratory instead of presets
  std::filesystem::path draft_model;  // for methods that need one; empty: none
  std::string url;                    // not empty: evaluates this server instead of an engine
  TaskOptions tasks;
  std::string device = "cpu";
  std::optional<CpuIsa> isa;
  std::optional<WeightFormat> weights = WeightFormat::f32;  // none: as the checkpoint has them
  int32_t threads = 0;
  int32_t batch = 8;
  int32_t context = 0;  // tokens; 0: the model's
  std::filesystem::path json;
  std::filesystem::path csv;
  std::filesystem::path html;
  bool coded_residuals = false;  // see ModelHostOptions
  std::filesystem::path resume;
  bool profile = false;  // measures the model's KV heads instead (eval/profiling.h)
};

struct EvalCommand {
  EvalOptions options;
  std::optional<std::string> text;  // set: only to be printed (--help, --version)
  bool lists_methods = false;       // the table of the laboratory's methods is to be printed
};

// Returns: the value of --weights that gives this format.
std::string name_of_weights(std::optional<WeightFormat> format);

// Returns: the identity of a journal: everything that changes results, except the tasks.
std::string journal_owner(const EvalOptions& options, const std::string& device);

// Errors: InvalidArgument or Unimplemented, with the name of the flag.
absl::StatusOr<EvalCommand> parse_eval_command(int argc, const char* const* argv);

}  // namespace tessera

#include "server/start/command_line.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <vector>

#include "base/status_macros.h"
#include "server/base/commit.h"
#include "server/start/plan.h"

namespace tessera {
namespace {

// Raw values of the flags. They are applied after the file of --config, so that they override it.
struct Flags {
  std::string config_file;
  bool print_config = false;
  bool plan = false;
  std::string memory;                 // of --plan; empty: none was given
  std::vector<std::string> values;    // one for each of settings_fields()
  std::vector<CLI::Option*> options;  // one for each value; count() is 0 if it was not given
};

void declare_flags(CLI::App& app, Flags& flags) {
  app.set_version_flag("--version",
                       fmt::format("tessera-server {} ({})", TESSERA_VERSION, commit()));
  app.add_option("--config", flags.config_file, "YAML file of settings; flags win over it")
      ->type_name("FILE")
      ->take_last();
  app.add_flag("--print-config", flags.print_config, "print all settings as YAML, and exit");
  CLI::Option* plan = app.add_flag(
      "--plan", flags.plan,
      "print how many sequences fit into memory, for each value of --kv, and exit; loads nothing");
  app.add_option("--memory", flags.memory,
                 "with --plan: memory of weights, workspace, KV cache and, on a CPU, requests "
                 "together, such as 24GiB; absent: the memory that a start takes")
      ->type_name("BYTES")
      ->take_last()
      ->needs(plan);
  const Settings defaults;
  flags.values.resize(settings_fields().size());
  for (std::size_t i = 0; i < flags.values.size(); ++i) {
    const SettingsField& field = settings_fields()[i];
    const std::string value = field.print(defaults);
    flags.options.push_back(
        app.add_option(fmt::format("--{}", field.name), flags.values[i],
                       value.empty() ? field.help : fmt::format("{} [{}]", field.help, value))
            ->type_name(field.value_name)
            ->take_last());
  }
}

// Returns: the bytes of a flag that is not a setting, in the form of --kv-memory.
absl::StatusOr<int64_t> parse_bytes(std::string_view flag, std::string_view text) {
  Settings parsed;
  for (const SettingsField& field : settings_fields()) {
    if (field.name == "kv-memory") {
      if (const absl::Status status = field.parse(parsed, text); !status.ok()) {
        return absl::InvalidArgumentError(
            fmt::format("{}: {}", flag, std::string(status.message())));
      }
    }
  }
  return parsed.engine.kv_bytes;
}

absl::Status apply_file(const std::string& path, Settings& settings) {
  constexpr std::streamsize kMaxBytes = 1 << 20;
  std::error_code ignored;
  std::ifstream file;
  if (!std::filesystem::is_directory(path, ignored)) {
    file.open(path, std::ios::binary);
  }
  if (!file.is_open()) {
    return absl::NotFoundError(fmt::format("config: cannot read {}", path));
  }
  std::string yaml(kMaxBytes, '\0');
  file.read(yaml.data(), kMaxBytes);
  yaml.resize(static_cast<std::size_t>(file.gcount()));
  if (file.bad() || !file.eof()) {
    return absl::InvalidArgumentError(
        fmt::format("config: {} cannot be read, or has more than {} bytes", path, kMaxBytes));
  }
  return apply_yaml(yaml, path, settings);
}

absl::Status apply_flags(const Flags& flags, Settings& settings) {
  for (std::size_t i = 0; i < flags.values.size(); ++i) {
    if (flags.options[i]->count() == 0) {
      continue;
    }
    const SettingsField& field = settings_fields()[i];
    if (const absl::Status status = field.parse(settings, flags.values[i]); !status.ok()) {
      return absl::InvalidArgumentError(
          fmt::format("--{}: {}", field.name, std::string(status.message())));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<CommandLine> parse_command_line(int argc, const char* const* argv) {
  CLI::App app("Serves a language model over HTTP (OpenAI's API) and gRPC.", "tessera-server");
  Flags flags;
  declare_flags(app, flags);
  CommandLine command;
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    command.text = app.help();
    return command;
  } catch (const CLI::CallForVersion& version) {
    command.text = fmt::format("{}\n", version.what());
    return command;
  } catch (const CLI::ParseError& error) {
    return absl::InvalidArgumentError(fmt::format("{} (see --help)", error.what()));
  }
  if (!flags.config_file.empty()) {
    TESSERA_RETURN_IF_ERROR(apply_file(flags.config_file, command.settings));
  }
  TESSERA_RETURN_IF_ERROR(apply_flags(flags, command.settings));
  if (flags.print_config) {
    command.text = print_yaml(command.settings);
    return command;
  }
  TESSERA_RETURN_IF_ERROR(validate(command.settings));
  if (flags.plan) {
    int64_t memory = 0;
    if (!flags.memory.empty()) {
      TESSERA_ASSIGN_OR_RETURN(memory, parse_bytes("--memory", flags.memory));
    }
    TESSERA_ASSIGN_OR_RETURN(command.text, print_plan(command.settings, memory));
  }
  return command;
}

}  // namespace tessera

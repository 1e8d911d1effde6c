#include "server/settings/settings.h"

#include <fmt/format.h>

#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "kernels/cuda_library.h"
#include "server/adapters/adapter_list.h"
#include "server/base/yaml_document.h"

namespace tessera {
namespace {

absl::Status at_line(std::string_view file, const YAML::Mark& mark, std::string_view message) {
  return absl::InvalidArgumentError(fmt::format("{}:{}: {}", file, mark.line + 1, message));
}

absl::Status apply_entry(const YAML::Node& key, const YAML::Node& value, std::string_view file,
                         Settings& settings) {
  if (!key.IsScalar()) {
    return at_line(file, key.Mark(), "a key must be a plain name");
  }
  for (const SettingsField& field : settings_fields()) {
    if (field.name != key.Scalar()) {
      continue;
    }
    if (!value.IsScalar()) {
      return at_line(file, key.Mark(), fmt::format("{}: needs one plain value", key.Scalar()));
    }
    const absl::Status status = field.parse(settings, value.Scalar());
    return status.ok()
               ? status
               : at_line(file, value.Mark(),
                         fmt::format("{}: {}", key.Scalar(), std::string(status.message())));
  }
  return at_line(file, key.Mark(), fmt::format("unknown key '{}'", key.Scalar()));
}

absl::Status check_adapters(const Settings& settings) {
  const absl::StatusOr<std::vector<NamedAdapter>> adapters = parse_adapters(settings.lora);
  if (!adapters.ok()) {
    return absl::InvalidArgumentError(
        fmt::format("lora: {}", std::string(adapters.status().message())));
  }
  if (adapters->empty() && settings.lora_memory == 0) {
    return absl::OkStatus();
  }
  const char* const setting = adapters->empty() ? "lora-memory" : "lora";
  if (settings.device == Device::cuda) {
    return absl::UnimplementedError(
        fmt::format("{}: the CUDA backend serves no adapters; use --device cpu", setting));
  }
  if (settings.tensor_parallel > 1) {
    return absl::UnimplementedError(
        fmt::format("{}: several ranks serve no adapters, and tensor-parallel is {}", setting,
                    settings.tensor_parallel));
  }
  if (settings.engine.kv_section_step.has_value()) {
    return absl::UnimplementedError(fmt::format("{}: adapters cannot be combined with kv-ladder {}",
                                                setting, settings.engine.kv_section_step->name));
  }
  return absl::OkStatus();
}

absl::Status check_draft_model(const Settings& settings) {
  if (settings.draft_model.empty()) {
    return absl::OkStatus();
  }
  if (settings.speculation == false) {
    return absl::InvalidArgumentError("draft-model: nothing is drafted with speculation off");
  }
  if (settings.device == Device::cuda) {
    return absl::UnimplementedError("draft-model: it drafts on a CPU alone; use --device cpu");
  }
  if (settings.tensor_parallel > 1) {
    return absl::UnimplementedError(fmt::format(
        "draft-model: it serves one rank, and tensor-parallel is {}", settings.tensor_parallel));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status apply_yaml(std::string_view yaml, std::string_view file, Settings& settings) {
  try {
    TESSERA_ASSIGN_OR_RETURN(const YAML::Node root, load_yaml_document(yaml, file));
    if (root.IsNull()) {
      return absl::OkStatus();
    }
    if (!root.IsMap()) {
      return at_line(file, root.Mark(), "must be a mapping of settings to values");
    }
    std::set<std::string> seen;
    for (const auto& entry : root) {
      TESSERA_RETURN_IF_ERROR(apply_entry(entry.first, entry.second, file, settings));
      if (!seen.insert(entry.first.Scalar()).second) {
        return at_line(file, entry.first.Mark(),
                       fmt::format("{}: stands here twice", entry.first.Scalar()));
      }
    }
    return absl::OkStatus();
  } catch (const YAML::Exception& error) {
    return at_line(file, error.mark, error.msg);
  }
}

std::string print_yaml(const Settings& settings) {
  const Settings defaults;
  std::string yaml;
  for (const SettingsField& field : settings_fields()) {
    const std::string value = field.print(settings);
    fmt::format_to(std::back_inserter(yaml), "{}# {}: {}\n", yaml.empty() ? "" : "\n",
                   field.value_name, field.help);
    if (field.secret && !value.empty()) {
      fmt::format_to(std::back_inserter(yaml), "# {}: is set, not shown\n", field.name);
      continue;
    }
    if (value.empty() && field.print(defaults).empty()) {
      fmt::format_to(std::back_inserter(yaml), "# {}:\n", field.name);
      continue;
    }
    fmt::format_to(std::back_inserter(yaml), "{}: {}\n", field.name, YAML::Dump(YAML::Node(value)));
  }
  return yaml;
}

std::string describe(const Settings& settings) {
  std::vector<std::string> pairs;
  for (const SettingsField& field : settings_fields()) {
    const std::string value = field.print(settings);
    pairs.push_back(
        fmt::format("{}={}", field.name, field.secret && !value.empty() ? "(not shown)" : value));
  }
  return absl::StrJoin(pairs, " ");
}

absl::Status validate(const Settings& settings) {
  if (settings.model.empty()) {
    return absl::InvalidArgumentError(
        "model: which one? Say --model PATH, a Hugging Face directory or a GGUF file");
  }
  if (settings.http.address.empty()) {
    return absl::InvalidArgumentError("host: must not be empty");
  }
  if (settings.http.port != 0 && settings.http.port == settings.grpc.port) {
    return absl::InvalidArgumentError(
        fmt::format("http-port and grpc-port are both {}", settings.http.port));
  }
  if (!settings.tenant_file.empty() &&
      (!settings.api_keys.empty() || !settings.api_key_file.empty())) {
    return absl::InvalidArgumentError(
        "tenants: the file has the keys; api-key and api-key-file are for servers without it");
  }
  if (settings.http.tls_certificate.empty() != settings.http.tls_key.empty()) {
    return absl::InvalidArgumentError(
        "tls-cert and tls-key: TLS needs both, and one of them is missing");
  }
  if (settings.device == Device::cuda && settings.tensor_parallel == 1) {  // ranks: join_ranks()
    const CudaLibrary library = open_cuda_library();
    if (library.backend == nullptr) {
      return absl::UnimplementedError(fmt::format("device: {}; use --device cpu", library.error));
    }
  }
  if (const std::string& endpoint = settings.kv_events.endpoint; !endpoint.empty()) {
    if (!absl::StartsWith(endpoint, "tcp://") && !absl::StartsWith(endpoint, "ipc://")) {
      return absl::InvalidArgumentError(
          fmt::format("kv-events: '{}' begins with neither tcp:// nor ipc://", endpoint));
    }
    if (!settings.engine.prefix_cache) {
      return absl::InvalidArgumentError("kv-events: there are none with prefix-cache off");
    }
  }
  if (settings.engine.tiers.any()) {
    const char* const why = !settings.engine.prefix_cache
                                ? "they keep what the prefix cache evicts, which is off"
                            : settings.device != Device::cpu ? "they serve --device cpu"
                            : settings.tensor_parallel > 1   ? "they serve one rank"
                                                             : nullptr;
    if (why != nullptr) {
      return absl::InvalidArgumentError(fmt::format("kv-host-memory and kv-disk: {}", why));
    }
  }
  TESSERA_RETURN_IF_ERROR(check_adapters(settings));
  TESSERA_RETURN_IF_ERROR(check_draft_model(settings));
  if (settings.isa && !cpu_supports(*settings.isa)) {
    return absl::InvalidArgumentError(fmt::format("isa: this CPU cannot run {}; its best is {}",
                                                  name(*settings.isa),
                                                  std::string(name(best_cpu_isa()))));
  }
  return absl::OkStatus();
}

}  // namespace tessera

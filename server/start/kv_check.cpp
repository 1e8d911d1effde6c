#include "server/start/kv_check.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/str_join.h"
#include "engine/kv/kv_policy_fields.h"
#include "engine/kv/kv_presets.h"
#include "files/mapped_file.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

// Time for all checks of a start. A model that is too slow for it is served without them.
constexpr std::chrono::seconds kCheckTime{60};

constexpr int32_t kFileVersion = 1;

// Returns: $XDG_CACHE_HOME/tessera/kv-checks, else that of HOME; empty: there is neither.
std::filesystem::path cache_folder() {
  const auto of = [](const char* variable) -> std::filesystem::path {
    const char* value = std::getenv(variable);
    return value == nullptr ? "" : value;
  };
  std::filesystem::path cache = of("XDG_CACHE_HOME");
  if (cache.empty() && !of("HOME").empty()) cache = of("HOME") / ".cache";
  return cache.empty() ? cache : cache / "tessera" / "kv-checks";
}

// Returns: names, sizes and times of the checkpoint's files.
std::string describe_files(const std::filesystem::path& model) {
  std::vector<std::string> files;
  const auto add = [&files](const std::filesystem::path& file) {
    std::error_code error;
    const auto size = std::filesystem::file_size(file, error);
    const auto time = std::filesystem::last_write_time(file, error).time_since_epoch().count();
    if (!error) files.push_back(fmt::format("{} {} {}", file.filename().string(), size, time));
  };
  std::error_code error;
  if (std::filesystem::is_directory(model, error)) {
    for (const auto& entry : std::filesystem::directory_iterator(model, error)) {
      const std::filesystem::path& file = entry.path();
      const bool matters = file.extension() == ".gguf" || file.extension() == ".safetensors" ||
                           file.filename() == "config.json";
      if (matters) add(file);
    }
  } else {
    add(model);
  }
  std::sort(files.begin(), files.end());
  return absl::StrJoin(files, ", ");
}

std::string identity_of(const Settings& settings) {
  const std::filesystem::path model = std::filesystem::weakly_canonical(settings.model);
  const bool cuda = settings.device == Device::cuda;
  return fmt::format("tessera {}, {}, weights {}, {}: {}", TESSERA_VERSION,
                     cuda ? "cuda" : std::string(name(settings.isa.value_or(best_cpu_isa()))),
                     settings.weights ? std::string(name(*settings.weights)) : "auto",
                     model.string(), describe_files(model));
}

CheckFile check_file(const Settings& settings) {
  return CheckFile(cache_folder(), identity_of(settings));
}

// Measures formats one by one, as they are asked for.
class Checks {
 public:
  Checks(FormatMeasurement measurement, std::vector<FormatCheck> known)
      : measurement_(std::move(measurement)), checks_(std::move(known)) {}

  // Returns: the check; none if the format cannot be measured, or not in time.
  std::optional<FormatCheck> check(KvFormat format) {
    if (const FormatCheck* known = find_check(checks_, format)) return *known;
    const absl::StatusOr<FormatCheck> made = measurement_.measure(format, deadline_);
    if (!made.ok()) {
      spdlog::warn("KV format {} was not measured: {}", name_of(format),
                   std::string(made.status().message()));
      return std::nullopt;
    }
    checks_.push_back(*made);
    measured_ = true;
    return *made;
  }

  const std::vector<FormatCheck>& all() const { return checks_; }
  bool measured() const { return measured_; }
  double seconds() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }

 private:
  FormatMeasurement measurement_;
  std::vector<FormatCheck> checks_;
  const Clock::time_point begin_ = Clock::now();
  const Clock::time_point deadline_ = begin_ + kCheckTime;
  bool measured_ = false;
};

// Sets options.kv to the first preset that holds.
void choose_default(Checks& checks, EngineOptions& options) {
  const std::optional<FormatCheck> first = checks.check(options.kv.policy.high);
  if (!first || first->holds()) return;
  const std::optional<FormatCheck> wider = checks.check(kKvK8V8);
  options.kv = wider && wider->holds() ? uniform_kv(kKvK8V8) : kKvPresetF16;
  spdlog::warn("this checkpoint is served with KV {}: k8v4 is {:.2g} nats from f16, more than {}",
               options.kv.name, first->divergence, kLargestDivergence);
}

// Measures a format that was asked for by name. It is used in any case.
void warn_about(Checks& checks, std::string_view setting, KvFormat format) {
  if (is_exact(format)) return;
  const std::optional<FormatCheck> check = checks.check(format);
  if (check && !check->holds()) {
    spdlog::warn("{}: {} is {:.2g} nats from f16 on this checkpoint, more than {}; answers suffer",
                 setting, name_of(format), check->divergence, kLargestDivergence);
  }
}

void check_ladder(Checks& checks, const ModelConfig& model, const Backend& backend,
                  const EngineOptions& options) {
  if (options.kv_ladder.has_value()) {
    for (const KvFormat format : *options.kv_ladder) {
      warn_about(checks, "kv-ladder", format);
    }
    return;
  }
  for (const KvFormat format : default_ladder(options, model, backend)) {
    const std::optional<FormatCheck> check = checks.check(format);
    if (check && !check->holds()) {
      spdlog::warn(
          "kv-ladder is empty: {} is {:.2g} nats from f16 on this checkpoint, more than {}",
          name_of(format), check->divergence, kLargestDivergence);
    }
  }
}

void keep(const CheckFile& file, const Checks& checks) {
  spdlog::info("KV formats on this checkpoint, nats from f16: {} ({})", describe(checks.all()),
               checks.measured() ? fmt::format("measured in {:.1f} s", checks.seconds())
                                 : file.path().string());
  if (!checks.measured()) return;
  if (const absl::Status written = file.write(checks.all()); !written.ok()) {
    spdlog::warn("{}; formats will be measured again at the next start",
                 std::string(written.message()));
  }
}

}  // namespace

CheckFile::CheckFile(const std::filesystem::path& folder, std::string identity)
    : identity_(std::move(identity)) {
  if (!folder.empty()) {
    path_ = folder / fmt::format("{:016x}.json", std::hash<std::string>()(identity_));
  }
}

std::vector<FormatCheck> CheckFile::read() const {
  const absl::StatusOr<std::string> text =
      path_.empty() ? absl::NotFoundError("") : read_small_file(path_);
  if (!text.ok()) return {};
  const auto parsed = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  std::vector<FormatCheck> checks;
  try {
    if (parsed.at("version") != kFileVersion || parsed.at("identity") != identity_) return {};
    for (const nlohmann::json& entry : parsed.at("checks")) {
      const absl::StatusOr<KvFormat> format = parse_format(entry.at("format").get<std::string>());
      if (!format.ok()) return {};
      checks.push_back({*format, entry.at("divergence").get<float>()});
    }
  } catch (const nlohmann::json::exception&) {
    return {};  // damaged: measured again
  }
  return checks;
}

absl::Status CheckFile::write(std::span<const FormatCheck> checks) const {
  if (path_.empty()) return absl::InternalError("neither XDG_CACHE_HOME nor HOME is set");
  nlohmann::ordered_json entries = nlohmann::ordered_json::array();
  for (const FormatCheck& check : checks) {
    entries.push_back({{"format", name_of(check.format)}, {"divergence", check.divergence}});
  }
  const nlohmann::ordered_json body{
      {"version", kFileVersion}, {"identity", identity_}, {"checks", std::move(entries)}};
  std::error_code error;
  std::filesystem::create_directories(path_.parent_path(), error);
  const std::filesystem::path partial = fmt::format("{}.{}", path_.string(), getpid());
  std::ofstream stream(partial);
  stream << body.dump(1) << "\n";
  stream.close();
  if (stream) std::filesystem::rename(partial, path_, error);
  return stream && !error
             ? absl::OkStatus()
             : absl::InternalError(fmt::format("{} cannot be written", path_.string()));
}

std::string describe(std::span<const FormatCheck> checks) {
  return absl::StrJoin(checks, ", ", [](std::string* out, const FormatCheck& check) {
    fmt::format_to(std::back_inserter(*out), "{} {:.2g}", name_of(check.format), check.divergence);
  });
}

std::vector<FormatCheck> known_checks(const Settings& settings) {
  return settings.kv_check ? check_file(settings).read() : std::vector<FormatCheck>();
}

void choose_formats(const Settings& settings, const Tokenizer& tokenizer, CheckedModel model,
                    EngineOptions& options) {
  if (!settings.kv_check) return;
  const TextSegment segment{std::string(kv_check_text()), false};
  std::vector<int32_t> text = tokenizer.encode({&segment, 1}, true);
  text.resize(std::min(text.size(), static_cast<std::size_t>(options.context)));
  if (std::ssize(text) <= kFirstChecked) {
    spdlog::warn("KV formats are not measured: a context of {} tokens is too short",
                 options.context);
    return;
  }
  const CheckFile file = check_file(settings);
  const ModelConfig& config = model.transformer->config();
  Checks checks(FormatMeasurement(std::move(text), model.transformer, options.max_step_tokens,
                                  model.backend, model.stream),
                file.read());
  if (settings.kv_auto) {
    choose_default(checks, options);
  } else {
    warn_about(checks, "kv", options.kv.policy.high);
    if (options.kv.policy.has_low_tier()) warn_about(checks, "kv", options.kv.policy.low);
  }
  check_ladder(checks, config, model.backend, options);
  options.format_checks = checks.all();
  if (!checks.all().empty()) keep(file, checks);
}

}  // namespace tessera

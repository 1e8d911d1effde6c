#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/engine.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/matrix/weight.h"
#include "models/transformer.h"
#include "server/base/work_pool.h"
#include "server/grpc/grpc_listener.h"
#include "server/http/listener.h"
#include "server/kv_events/kv_event_publisher.h"
#include "server/routes/routes.h"
#include "server/telemetry/spans.h"

namespace tessera {

enum class Device : uint8_t { cpu, cuda };

// Values of --log-level.
inline constexpr std::string_view kLogLevels[] = {"trace",   "debug", "info",
                                                  "warning", "error", "off"};

// All settings of the server. The initialisers here (and those of the embedded structs) are the
// only place where a default is written. settings_fields.cpp lists the fields once. Flags, YAML,
// --help, validation and the start-up log all come from that list.
struct Settings {
  std::filesystem::path model;
  std::string served_model_name;  // empty: the model folder's name
  std::string model_aliases;      // comma-separated
  std::string chat_template;      // name of a built-in one, or a file; empty: the model's own
  bool generation_config = true;  // the model's sampling parameters are defaults of requests

  // Pooling of embeddings whose requests name none. None: the server makes no embeddings.
  std::optional<Pooling> pooling = Pooling::last;

  std::string tool_calls = "auto";  // or "none", or the name of a ToolFormat

  HttpOptions http;  // address, certificate and key apply to both front ends
  GrpcOptions grpc;
  RoutesOptions routes;
  std::string api_keys;                // comma-separated, besides the file: see ApiKeys::load
  std::filesystem::path api_key_file;  // empty: none
  std::filesystem::path tenant_file;   // empty: one tenant; see tenant_file.h
  int32_t max_priority = 4;            // of the one tenant: from minus this to this
  std::chrono::milliseconds max_pin_ttl{3'600'000};
  std::chrono::milliseconds queue_timeout{60'000};  // 0: none
  int64_t max_memory = 0;                           // see MemoryGuard; 0: by the control group

  // Both front ends share these. Answers are counted before they are computed.
  std::size_t request_memory = 1U << 30U;  // bodies, waiting answers, messages, grammars
  std::size_t max_answer = 256U << 20U;    // of one request
  WorkPool::Options work;

  std::string lora;         // "NAME=PATH,...": adapters that are read at start
  int64_t lora_memory = 0;  // bytes of adapters; 0: those of the start

  std::optional<bool> speculation;    // none: on a CPU
  std::filesystem::path draft_model;  // drafts tokens for the model; empty: none

  Device device = Device::cpu;
  std::optional<CpuIsa> isa;            // none: best one of this CPU
  int32_t threads = 0;                  // 0: one for each core this process may use
  std::optional<WeightFormat> weights;  // none: stored_format() of the checkpoint
  int32_t tensor_parallel = 1;          // ranks that the model is split over

  // Except the sizes that follow. A start chooses those that are open (start_fit.h): with 0, the
  // context, its sequences, the tokens of a step and engine.kv_bytes.
  EngineOptions engine;
  int32_t context = 0;
  int32_t max_sequences = 0;
  int32_t max_step_tokens = 0;
  std::optional<bool> kv_populate;  // none: if engine.kv_bytes is set
  KvEventOptions kv_events;
  bool kv_auto = true;   // engine.kv was not chosen: it is the first that holds (kv_check.h)
  bool kv_check = true;  // measure at start if formats hold on this checkpoint

  std::chrono::milliseconds grammar_time{1'000};    // CPU time to compile one grammar
  std::chrono::milliseconds drain_delay{500};       // not ready, but still accepting
  std::chrono::milliseconds drain_timeout{30'000};  // then running requests are cancelled

  std::string log_level = "info";
  bool log_json = false;
  bool access_log = true;
  Spans spans = Spans::off;
};

// One field of Settings as text, the form used in flags, YAML and the log.
struct SettingsField {
  std::string_view name;   // "http-port": the flag without its dashes, and the YAML key
  std::string value_name;  // "PORT": name of the value in --help, or its choices
  std::string help;
  std::function<absl::Status(Settings&, std::string_view)> parse;  // errors do not repeat the name
  std::function<std::string(const Settings&)> print;               // inverse of parse()
  bool secret = false;  // never shown, neither in the log nor by --print-config
};

std::span<const SettingsField> settings_fields();

// Applies YAML text to `settings`: one mapping of field names to scalars. `file`: its name in
// errors.
// Errors: InvalidArgument "FILE:LINE: KEY: ...".
absl::Status apply_yaml(std::string_view yaml, std::string_view file, Settings& settings);

// Returns: a YAML file that gives `settings`, without secrets, each field with its help as a
// comment.
std::string print_yaml(const Settings& settings);

// Checks that parse() of a single field cannot make.
// Errors: InvalidArgument and Unimplemented, naming the setting.
absl::Status validate(const Settings& settings);

// Returns: "http-port=8080 grpc-port=50051 ...", for the start-up log.
std::string describe(const Settings& settings);

}  // namespace tessera

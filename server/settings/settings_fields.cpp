#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "engine/kv/kv_policy_fields.h"
#include "engine/kv/kv_presets.h"
#include "engine/tier/disk_store.h"
#include "server/chat/tool_format.h"
#include "server/settings/settings.h"
#include "server/settings/settings_field_kinds.h"
#include "text/chat_template.h"

namespace tessera {
namespace {

std::vector<std::string> tool_call_names() {
  std::vector<std::string> names = {"auto", "none"};
  for (const ToolFormat* const format : tool_formats()) {
    names.emplace_back(format->name);
  }
  return names;
}

#define TESSERA_AT(member)      \
  [](auto& settings) -> auto& { \
    return settings.member;     \
  }

std::vector<NamedValue<std::optional<Pooling>>> poolings() {
  std::vector<NamedValue<std::optional<Pooling>>> choices = {{"none", std::nullopt}};
  for (const NamedPooling& named : kPoolings) {
    choices.push_back({named.name, named.pooling});
  }
  return choices;
}

std::vector<SettingsField> model_fields() {
  return {
      text_field("model", "PATH", "Hugging Face directory or GGUF file of the model to serve",
                 TESSERA_AT(model)),
      text_field("served-model-name", "NAME",
                 "the model's name in the API; default: that of the directory or file",
                 TESSERA_AT(served_model_name)),
      text_field("model-aliases", "NAME,...",
                 "further names by which requests may ask for the model, * for any name; answers "
                 "have the name of their request",
                 TESSERA_AT(model_aliases)),
      text_field("lora", "NAME=PATH,...",
                 "adapters (LoRA) that are read at start, each a directory of PEFT or a GGUF file; "
                 "requests ask for one by its name as their model",
                 TESSERA_AT(lora)),
      bytes_field("lora-memory", 0,
                  "most bytes of adapters, also of those in use; the longest unused leave memory "
                  "first, and admin keys may load others by /v1/load_lora_adapter; 0: as much as "
                  "those of --lora take, and no others",
                  TESSERA_AT(lora_memory)),
      text_field("chat-template", "NAME|FILE",
                 fmt::format("chat template: {}, or a Jinja file; default: the model's own",
                             builtin_chat_template_names()),
                 TESSERA_AT(chat_template)),
      name_field("tool-calls", tool_call_names(),
                 "notation of the model's tool calls; auto: that of its chat template; none: "
                 "requests with tools are refused",
                 TESSERA_AT(tool_calls)),
      choice_field<bool>("generation-config", {{"auto", true}, {"none", false}, {"vllm", false}},
                         "sampling parameters of requests that leave them out: auto: those of the "
                         "model's generation_config.json, or of its GGUF file; none, or vllm as "
                         "vLLM calls it: temperature and top_p 1, and the others off",
                         TESSERA_AT(generation_config)),
      choice_field("pooling", poolings(),
                   "tokens whose hidden states become an embedding, unless its request says: the "
                   "last, all (their mean) or the first; none: the server makes no embeddings",
                   TESSERA_AT(pooling)),
  };
}

SettingsField secret(SettingsField field) {
  field.secret = true;
  return field;
}

// An empty value is refused: an unset variable of a script must not open the server.
SettingsField key_field(SettingsField field) {
  field.parse = [parse = std::move(field.parse)](Settings& settings, std::string_view text) {
    return text.empty() ? absl::InvalidArgumentError(
                              "is empty; leave the setting out for a server that needs no key")
                        : parse(settings, text);
  };
  return field;
}

// Fields of both front ends.
std::vector<SettingsField> limit_fields() {
  return {
      text_field("host", "ADDRESS", "address to listen on; 0.0.0.0 for all of them",
                 TESSERA_AT(http.address)),
      secret(key_field(text_field("api-key", "KEY,...",
                                  "any of these keys opens the API; other users of the machine can "
                                  "read command lines, so rather use a file",
                                  TESSERA_AT(api_keys)))),
      key_field(text_field("api-key-file", "FILE",
                           "further keys, one on each line; # begins a comment",
                           TESSERA_AT(api_key_file))),
      key_field(text_field("tenants", "FILE",
                           "tenants, their keys and their limits, instead of api-key and "
                           "api-key-file; see docs/howto/tenants.md",
                           TESSERA_AT(tenant_file))),
      integer_field("max-priority", "NUMBER", {0, 1000},
                    "without tenants: requests may have priorities from minus this to this",
                    TESSERA_AT(max_priority)),
      time_field("max-pin-ttl", 1, "how long a request may pin its prompt in the prefix cache",
                 TESSERA_AT(max_pin_ttl)),
      time_field("queue-timeout", 0,
                 "how long a request may wait for its turn; one that is expected to wait longer is "
                 "refused; 0: without limit; clients may ask for another one by the header "
                 "x-queue-timeout",
                 TESSERA_AT(queue_timeout)),
      bytes_field("max-memory", 0,
                  "anonymous memory of the process above which requests are refused; 0: nine "
                  "tenths of the control group's limit, if it has one",
                  TESSERA_AT(max_memory)),
      text_field("tls-cert", "FILE", "certificate chain (PEM) for HTTPS and gRPC over TLS",
                 TESSERA_AT(http.tls_certificate)),
      text_field("tls-key", "FILE", "its private key (PEM)", TESSERA_AT(http.tls_key)),
      bytes_field("request-memory", 1 << 20,
                  "most bytes of bodies that are read, answers that wait, grammars and gRPC's "
                  "messages; more requests are refused",
                  TESSERA_AT(request_memory)),
      bytes_field("max-answer", 1 << 10,
                  "most bytes that one answer may take before it is sent; log probabilities take "
                  "800 each",
                  TESSERA_AT(max_answer)),
      bytes_field("response-store", 0,
                  "most bytes of responses that are kept for previous_response_id; 0: none are",
                  TESSERA_AT(routes.response_store)),
      integer_field("work-threads", "COUNT", {2, 1024},
                    "threads that parse, apply templates and tokenize; one of them serves short "
                    "requests alone",
                    TESSERA_AT(work.threads)),
  };
}

std::vector<SettingsField> http_fields() {
  return {
      integer_field("http-port", "PORT", {0, 65535}, "0: any free one; the log says which",
                    TESSERA_AT(http.port)),
      integer_field("http-threads", "COUNT", {1, 1024}, "threads that serve HTTP connections",
                    TESSERA_AT(http.threads)),
      text_field("cors-origin", "ORIGIN", "web pages from here may call the HTTP API; * for all",
                 TESSERA_AT(routes.cors_origin)),
      text_field(
          "allowed-hosts", "NAME,...",
          "names by which clients address the server (Host); default: localhost and loopback "
          "addresses on a loopback address without keys, else any",
          TESSERA_AT(routes.allowed_hosts)),
      choice_field<bool>(
          "lenient", {{"on", true}, {"off", false}},
          "leave out fields of a body that this server does not know, with a warning "
          "in the answer's head and the access log; off: refuse them",
          TESSERA_AT(routes.lenient)),
      integer_field("max-choices", "COUNT", {1, kMaxInteger},
                    "most choices, prompts times n, of a request", TESSERA_AT(routes.max_choices)),
      integer_field("http-max-connections", "COUNT", {1, kMaxInteger},
                    "most open connections; of more, the longest idle one is closed",
                    TESSERA_AT(http.max_connections)),
      bytes_field("http-max-header", 256, "most bytes of a request's head",
                  TESSERA_AT(http.header_bytes)),
      bytes_field("http-max-body", 1, "most bytes of a request's body",
                  TESSERA_AT(http.body_bytes)),
      time_field("http-idle-timeout", 1, "how long a connection may stay open between requests",
                 TESSERA_AT(http.idle_timeout)),
      time_field("http-header-timeout", 1, "how long a client may take to send a head",
                 TESSERA_AT(http.header_timeout)),
      time_field("http-body-timeout", 1,
                 "how long a client may take to send a body; longer at 4 KiB/s or faster",
                 TESSERA_AT(http.body_timeout)),
      time_field("http-write-timeout", 1,
                 "how long a client may leave an answer unread before it is cut off",
                 TESSERA_AT(http.write_timeout)),
  };
}

std::vector<SettingsField> grpc_fields() {
  return {
      integer_field("grpc-port", "PORT", {0, 65535}, "0: any free one; the log says which",
                    TESSERA_AT(grpc.port)),
      bytes_field("grpc-max-message", 1, "most bytes of a request",
                  TESSERA_AT(grpc.max_message_bytes)),
      integer_field("grpc-max-connections", "COUNT", {1, kMaxInteger},
                    "most open connections; of more, the longest silent one is closed",
                    TESSERA_AT(grpc.max_connections)),
      integer_field("grpc-max-streams", "COUNT", {1, kMaxInteger},
                    "most calls at once on one connection", TESSERA_AT(grpc.max_streams)),
      time_field("grpc-keepalive-interval", 1,
                 "a connection that is idle for this long gets a ping",
                 TESSERA_AT(grpc.keepalive_interval)),
      time_field("grpc-keepalive-timeout", 1, "and is closed if it does not reply within this time",
                 TESSERA_AT(grpc.keepalive_timeout)),
      time_field("grpc-least-ping-interval", 1, "clients that ping more often are disconnected",
                 TESSERA_AT(grpc.min_ping_interval)),
      time_field(
          "grpc-write-timeout", 1,
          "a client may take this time to read a message, and a second more for each 256 KiB",
          TESSERA_AT(grpc.write_timeout)),
  };
}

std::vector<SettingsField> compute_fields() {
  const std::vector<NamedValue<std::optional<CpuIsa>>> isas = {
      {"auto", std::nullopt},
      {name(CpuIsa::scalar), CpuIsa::scalar},
      {name(CpuIsa::avx2), CpuIsa::avx2},
      {name(CpuIsa::avx512), CpuIsa::avx512},
      {name(CpuIsa::avx512_fp16), CpuIsa::avx512_fp16},
      {name(CpuIsa::amx), CpuIsa::amx}};
  std::vector<NamedValue<std::optional<WeightFormat>>> weights = {{"auto", std::nullopt}};
  for (const WeightFormat format : kWeightFormats) {
    weights.push_back({name(format), format});
  }
  return {
      choice_field<Device>("device", {{"cpu", Device::cpu}, {"cuda", Device::cuda}},
                           "where the model runs", TESSERA_AT(device)),
      choice_field("isa", isas, "instruction set of the CPU kernels; auto: the best there is",
                   TESSERA_AT(isa)),
      integer_field("threads", "COUNT", {0, 1024},
                    "threads that compute, on each rank; 0: one for each core this process may use",
                    TESSERA_AT(threads)),
      choice_field(
          "weights", weights,
          "format the weights are converted to at load; auto: as the checkpoint has them, if that "
          "is bf16, f16 or quantised, else f32",
          TESSERA_AT(weights)),
      integer_field("tensor-parallel", "COUNT", {1, 1024},
                    "ranks that the model is split over, a process each: mpirun -n COUNT starts "
                    "them; the model's KV heads must divide by it",
                    TESSERA_AT(tensor_parallel)),
  };
}

std::string preset_names() {
  return absl::StrJoin(kv_presets(), ", ",
                       [](std::string* out, const KvPreset& preset) { out->append(preset.name); });
}

// A format, a preset, or either with changed fields.
SettingsField kv_field() {
  return {"kv", "auto|NAME[:FIELD=VALUE...]",
          fmt::format("how keys and values are kept: auto, which is k8v4 unless this checkpoint "
                      "needs k8v8 or f16 (kv-check); a format: f16, or bits for keys and for "
                      "values, such as k8v4 or the smaller k4v2r; or one of the policies {}; or "
                      "either with other numbers, such as leankv:alpha_high=2",
                      preset_names()),
          [](Settings& settings, std::string_view text) {
            settings.kv_auto = text == "auto";
            if (settings.kv_auto) {
              settings.engine.kv = EngineOptions().kv;
              return absl::OkStatus();
            }
            TESSERA_ASSIGN_OR_RETURN(settings.engine.kv, parse_preset(text));
            return absl::OkStatus();
          },
          [](const Settings& settings) {
            return settings.kv_auto ? std::string("auto") : settings.engine.kv.name;
          }};
}

// Comma-separated values of the form of --kv.
SettingsField kv_also_field() {
  return {"kv-also", "NAME,...",
          "further presets that requests may choose, and change in numbers, each written as for "
          "--kv; the page size serves the formats of all",
          [](Settings& settings, std::string_view text) {
            std::vector<KvPreset> presets;
            for (const auto& name : absl::StrSplit(std::string(text), ',', absl::SkipEmpty())) {
              TESSERA_ASSIGN_OR_RETURN(presets.emplace_back(),
                                       parse_preset({name.data(), name.size()}));
            }
            settings.engine.kv_also = std::move(presets);
            return absl::OkStatus();
          },
          [](const Settings& settings) {
            return absl::StrJoin(
                settings.engine.kv_also, ",",
                [](std::string* out, const KvPreset& preset) { out->append(preset.name); });
          }};
}

// Formats, or one preset that replays.
absl::Status set_ladder(Settings& settings, const std::vector<std::string>& names) {
  std::vector<KvFormat> formats;
  std::optional<KvPreset> step;
  for (const std::string& name : names) {
    const absl::StatusOr<KvPreset> preset = parse_preset(name);
    if (preset.ok() && preset->policy.replays()) {
      step = *preset;
    } else {
      TESSERA_ASSIGN_OR_RETURN(formats.emplace_back(), parse_format(name));
    }
  }
  if (step.has_value() && names.size() > 1) {
    return absl::InvalidArgumentError(fmt::format(
        "{} compresses blocks as they were computed: it has no other step beside it", step->name));
  }
  settings.engine.kv_ladder = std::move(formats);
  settings.engine.kv_section_step = std::move(step);
  return absl::OkStatus();
}

// auto, none, comma-separated formats, the coarsest last, or a preset that replays.
SettingsField ladder_field() {
  return {"kv-ladder", "auto|none|FORMAT,...|PRESET",
          "formats to which the prefix cache demotes unlocked blocks before it evicts them, the "
          "coarsest last; or a preset that replays, such as replay-50, which the engine applies to "
          "unlocked blocks in steps that have room; auto: k4v2r where keys and "
          "values are k8v4, the device serves it and kv-check finds that it holds, otherwise none",
          [](Settings& settings, std::string_view text) -> absl::Status {
            if (text == "auto") {
              settings.engine.kv_ladder.reset();
              settings.engine.kv_section_step.reset();
              return absl::OkStatus();
            }
            if (text == "none") {
              text = {};
            }
            return set_ladder(settings, absl::StrSplit(std::string(text), ',', absl::SkipEmpty()));
          },
          [](const Settings& settings) {
            const auto& ladder = settings.engine.kv_ladder;
            if (settings.engine.kv_section_step.has_value()) {
              return settings.engine.kv_section_step->name;
            }
            if (!ladder.has_value() || ladder->empty()) {
              return std::string(ladder.has_value() ? "none" : "auto");
            }
            return absl::StrJoin(
                *ladder, ",", [](std::string* out, KvFormat format) { *out += name_of(format); });
          }};
}

// The range is the request option's.
SettingsField floor_field() {
  return {"kv-floor", "SHARE",
          "for policies that drop tokens: share of its budget that a sequence keeps at least when "
          "memory runs out and budgets are tightened, before any sequence is preempted; from 0.1 "
          "to 1, which tightens none",
          [](Settings& settings, std::string_view text) {
            float share = 0;
            if (!absl::SimpleAtof(std::string(text), &share) || !kKvFloor.contains(share)) {
              return absl::InvalidArgumentError(
                  fmt::format("must be {}, not '{}'", kKvFloor.numbers(), text));
            }
            settings.engine.kv_floor = share;
            return absl::OkStatus();
          },
          [](const Settings& settings) { return fmt::format("{}", settings.engine.kv_floor); }};
}

std::vector<SettingsField> engine_fields() {
  return {
      kv_field(),
      kv_also_field(),
      choice_field<bool>("prefix-cache", {{"on", true}, {"off", false}},
                         "keep common prefixes of prompts as long as there is room; prompts of "
                         "a lossy policy are kept once they recur",
                         TESSERA_AT(engine.prefix_cache)),
      ladder_field(),
      choice_field<bool>(
          "kv-check", {{"on", true}, {"off", false}},
          "measure at the first start with a checkpoint how far its KV formats are "
          "from f16, for at most a minute, and keep the result in the user's cache "
          "folder; a format above 0.05 nats is not used by default, and one that was "
          "asked for is named in the log; off: nothing is measured, and the ladder "
          "of auto is empty",
          TESSERA_AT(kv_check)),
      text_field("kv-events", "ENDPOINT",
                 "ZeroMQ endpoint at which routers learn the prefix cache's blocks, in vLLM's "
                 "form: tcp://*:PORT listens, tcp://HOST:PORT connects; prompts are in it in plain "
                 "text; default: none",
                 TESSERA_AT(kv_events.endpoint)),
      text_field("kv-events-topic", "TEXT",
                 "first part of these messages; llm-d's router expects kv@POD@MODEL",
                 TESSERA_AT(kv_events.topic)),
      bytes_field("kv-host-memory", 0,
                  "host memory for prefixes that the KV cache evicts, such as 4GiB, on a CPU; they "
                  "come back as they were, instead of being computed again; 0: none",
                  TESSERA_AT(engine.tiers.host_bytes)),
      text_field("kv-disk", "DIR",
                 "directory for such prefixes, of this server alone; they are there after a "
                 "restart; prompts are in it in plain form; default: none",
                 TESSERA_AT(engine.tiers.disk)),
      bytes_field("kv-disk-size", DiskStore::kLeastLimit,
                  "most bytes of all files in that directory", TESSERA_AT(engine.tiers.disk_bytes)),
      floor_field(),
      choice_field<bool>("kv-residual", {{"f16", false}, {"k8v8", true}},
                         "format in which the newest tokens of a sequence, up to 64, wait for "
                         "their group to close; k8v8 takes half of the memory, on a CPU, with "
                         "presets and a ladder of codes, such as k8v4 or replay-31",
                         TESSERA_AT(engine.kv_coded_residuals)),
      bytes_field(
          "kv-memory", 0,
          "size of the KV cache on each rank, with residual buffers and tables, such as "
          "512MiB or 2GiB; 0: on a CPU a quarter of the memory that is free, up to half for "
          "one whole context, or room for --max-sequences of --context tokens if both are "
          "set; on a GPU all memory that is free once the model is loaded",
          TESSERA_AT(engine.kv_bytes)),
      choice_field<std::optional<bool>>(
          "kv-populate", {{"auto", std::nullopt}, {"on", true}, {"off", false}},
          "on: take the memory of the KV cache at start, so that a lack of it shows then; off: as "
          "pages are written; auto: at start if --kv-memory is set",
          TESSERA_AT(kv_populate)),
      integer_field("context", "TOKENS", {0, kMaxInteger},
                    "most tokens of a sequence, prompt and completion; 0: the model's own, or as "
                    "many as the memory of the KV cache holds",
                    TESSERA_AT(context)),
      choice_field<std::optional<bool>>(
          "speculation", {{"auto", std::nullopt}, {"on", true}, {"off", false}},
          "draft tokens from a sequence's own text where a step has few rows; the answers are the "
          "same, and sooner where they repeat text; auto: on a CPU",
          TESSERA_AT(speculation)),
      text_field("draft-model", "PATH",
                 "a smaller model of the same vocabulary, a Hugging Face directory or a GGUF file, "
                 "that drafts tokens where a text repeats nothing, on a CPU",
                 TESSERA_AT(draft_model)),
      integer_field("max-step-tokens", "TOKENS", {0, kMaxInteger},
                    fmt::format("budget of one step, prefill and decode together; 0: {}, or "
                                "--max-sequences if that is more",
                                EngineOptions().max_step_tokens),
                    TESSERA_AT(max_step_tokens)),
      integer_field("max-sequences", "COUNT", {0, kMaxInteger},
                    fmt::format("most sequences that run at once; 0: {}, or fewer where their "
                                "buffers would take more than a quarter of the KV cache",
                                EngineOptions().max_sequences),
                    TESSERA_AT(max_sequences)),
      integer_field("max-queue", "COUNT", {1, kMaxInteger},
                    "most samples of requests that wait; more are refused",
                    TESSERA_AT(engine.max_queue)),
  };
}

std::vector<SettingsField> process_fields() {
  std::vector<NamedValue<std::string>> levels;
  for (const std::string_view level : kLogLevels) {
    levels.push_back({level, std::string(level)});
  }
  return {
      time_field("grammar-time", 1,
                 "CPU time to compile one grammar or JSON schema; a slower one is refused",
                 TESSERA_AT(grammar_time)),
      time_field("drain-delay", 0,
                 "after SIGTERM: not ready, but still accepting, so that balancers notice",
                 TESSERA_AT(drain_delay)),
      time_field("drain-timeout", 0,
                 "then: running requests may finish for this long before they are cancelled",
                 TESSERA_AT(drain_timeout)),
      choice_field("log-level", levels, "least severity that is logged, to stderr",
                   TESSERA_AT(log_level)),
      choice_field<bool>("log-format", {{"text", false}, {"json", true}},
                         "lines of words, or a JSON object on each line", TESSERA_AT(log_json)),
      choice_field<bool>("access-log", {{"on", true}, {"off", false}},
                         "one line for each request: id, key, tokens, times, status",
                         TESSERA_AT(access_log)),
      choice_field<Spans>("spans",
                          {{"off", Spans::off}, {"sampled", Spans::sampled}, {"all", Spans::all}},
                          "OpenTelemetry spans of requests, as lines of OTLP in JSON on stderr; "
                          "sampled: if the traceparent says so; all: also without a traceparent",
                          TESSERA_AT(spans)),
  };
}

// List of all fields, in the order of --help and of configs/default.yaml.
std::vector<SettingsField> make_fields() {
  std::vector<SettingsField> fields;
  for (const auto& group : {model_fields(), limit_fields(), http_fields(), grpc_fields(),
                            compute_fields(), engine_fields(), process_fields()}) {
    fields.insert(fields.end(), group.begin(), group.end());
  }
  return fields;
}

}  // namespace

std::span<const SettingsField> settings_fields() {
  static const std::vector<SettingsField> kFields = make_fields();
  return kFields;
}

}  // namespace tessera

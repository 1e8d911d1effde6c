#include "server/start/model_parts.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <filesystem>
#include <future>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "engine/device_budget.h"
#include "engine/kv/kv_shape.h"
#include "engine/kv/swap_room.h"
#include "engine/tier/checkpoint_digest.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cuda_library.h"
#include "models/architectures/rope_config.h"
#include "models/checkpoint/checkpoint.h"
#include "models/checkpoint/read_model_config.h"
#include "models/config/model_config.h"
#include "models/config/shard.h"
#include "models/load_transformer.h"
#include "models/shared_transformer.h"
#include "models/transformer.h"
#include "models/weights/tensor_table.h"
#include "models/weights/weights.h"
#include "server/base/configuration_file.h"
#include "server/start/draft_source.h"
#include "server/start/host_memory.h"
#include "server/start/kv_check.h"
#include "server/start/request_memory.h"
#include "server/start/sampling_of_model.h"
#include "server/start/start_adapters.h"
#include "server/start/start_fit.h"
#include "server/start/start_memory.h"
#include "server/telemetry/metrics.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace tessera {
namespace {

constexpr double kMiB = 1 << 20;

double mib(int64_t bytes) {
  return static_cast<double>(bytes) / kMiB;
}

int64_t parameters(const ModelConfig& config) {
  std::set<std::string> counted;  // a tied embedding is listed twice
  int64_t sum = 0;
  for (const ExpectedTensor& tensor : expected_tensors(config)) {
    int64_t elements = 1;
    for (const int64_t extent : tensor.shape) {
      elements *= extent;
    }
    sum += counted.insert(tensor.name).second ? elements : 0;
  }
  return sum;
}

std::string model_name(const Settings& settings) {
  if (!settings.served_model_name.empty()) {
    return settings.served_model_name;
  }
  // "models/tiny/" ends in an empty name, and "." is not a name.
  const std::filesystem::path model = std::filesystem::weakly_canonical(settings.model);
  if (model.extension() == ".gguf") {
    return model.stem();
  }
  return model.has_filename() ? model.filename() : model.parent_path().filename();
}

absl::StatusOr<std::string> read_chat_template(const std::string& name_or_file) {
  if (const auto builtin = builtin_chat_template(name_or_file)) {
    return std::string(*builtin);
  }
  absl::StatusOr<std::string> source = read_configuration_file(name_or_file);
  if (!source.ok()) {
    return absl::Status(
        source.status().code(),
        fmt::format("chat-template: {}; a name is one of {}",
                    std::string(source.status().message()), builtin_chat_template_names()));
  }
  return source;
}

// Reads the model's own template of chats with tools, if it has one.
absl::Status load_tool_template(const Settings& settings, Service::Parts& parts) {
  TESSERA_ASSIGN_OR_RETURN(const std::optional<std::string> source,
                           find_tool_template(settings.model));
  if (!source) {
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<ChatTemplate>> parsed = ChatTemplate::parse(*source);
  if (!parsed.ok()) {
    return absl::Status(parsed.status().code(),
                        fmt::format("the template tool_use of {}: {}", settings.model.string(),
                                    std::string(parsed.status().message())));
  }
  parts.chat_template = with_tool_template(std::move(parts.chat_template), *std::move(parsed));
  const ChatFormat with_tools = chat_format_of(*source, settings.tool_calls);
  parts.chat_format.tools = with_tools.tools;
  parts.chat_format.thoughts = parts.chat_format.thoughts || with_tools.thoughts;
  spdlog::info("chats with tools have a template of their own: tool_use");
  return absl::OkStatus();
}

// Reads the chat template and the notation of tool calls, if the model has a template.
absl::Status load_chat_template(const Settings& settings, Service::Parts& parts) {
  std::optional<std::string> source;
  if (settings.chat_template.empty()) {
    TESSERA_ASSIGN_OR_RETURN(source, find_chat_template(settings.model));
  } else {
    TESSERA_ASSIGN_OR_RETURN(source, read_chat_template(settings.chat_template));
  }
  if (!source) {
    spdlog::warn("{} has no chat template: chats are refused, completions are served",
                 settings.model.string());
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<ChatTemplate>> parsed = ChatTemplate::parse(*source);
  if (!parsed.ok()) {
    const std::string& origin =
        settings.chat_template.empty() ? settings.model.string() : settings.chat_template;
    return absl::Status(
        parsed.status().code(),
        fmt::format("the chat template of {}: {}", origin, std::string(parsed.status().message())));
  }
  parts.chat_template = *std::move(parsed);
  parts.chat_template_source = *source;
  parts.chat_format = chat_format_of(*source, settings.tool_calls);
  if (settings.chat_template.empty()) {
    TESSERA_RETURN_IF_ERROR(load_tool_template(settings, parts));
  }
  spdlog::info("chats: tool calls {}, thoughts {}",
               parts.chat_format.tools == nullptr ? "none" : parts.chat_format.tools->name,
               parts.chat_format.thoughts ? "are separated" : "none");
  return absl::OkStatus();
}

void log_model(const std::string& name, const ModelConfig& config) {
  spdlog::info("model {}: {}, {:.1f} M parameters, {} layers, {} query and {} KV heads of {}", name,
               config.architecture, static_cast<double>(parameters(config)) / 1e6, config.layers,
               config.heads, config.kv_heads, config.head_dim);
}

// Logs bytes of all ranks together.
void log_memory(const Settings& settings, const Transformer& model, const EngineOptions& options,
                const EngineStats& stats) {
  const int64_t ranks = settings.tensor_parallel;
  const int64_t weight_bytes = ranks * model.weight_bytes();
  const int64_t workspace_bytes = ranks * model.workspace_bytes();
  const int64_t kv_bytes = ranks * options.kv_bytes;
  if (ranks > 1) {
    spdlog::info("{} ranks; the following sizes are those of all ranks together", ranks);
  }
  spdlog::info("weights {}: {} bytes ({:.1f} MiB), workspace {:.1f} MiB", model.weight_formats(),
               weight_bytes, mib(weight_bytes), mib(workspace_bytes));
  const int64_t arena_bytes = stats.pages_total * stats.page_bytes;
  spdlog::info(
      "KV cache {}: {} bytes ({:.1f} MiB): {:.1f} MiB of pages, {:.1f} MiB of residual "
      "buffers, {:.1f} MiB of tables",
      options.kv.name, kv_bytes, mib(kv_bytes), mib(arena_bytes), mib(stats.residual_bytes),
      mib(stats.table_bytes));
  spdlog::info("KV cache: {} pages of {} bytes, {} tokens of one layer and KV head each",
               stats.pages_total, stats.page_bytes, stats.page_tokens);
  spdlog::info("KV cache: {} tokens fit; a sequence may have {}, {} may run at once",
               stats.token_capacity, options.context, options.max_sequences);
  if (stats.prefix_block_tokens > 0) {
    spdlog::info("prefix cache: prompts share runs of {} tokens and its multiples",
                 stats.prefix_block_tokens);
  } else {
    spdlog::info("prefix cache: off");
  }
}

// Logs the types of a quantised checkpoint.
void log_quantized(const Settings& settings, const Checkpoint& checkpoint) {
  const std::set<std::string> quantized = checkpoint.quantised_types();
  if (!quantized.empty()) {
    spdlog::info("the checkpoint holds matrices in {}: {} (--weights)",
                 absl::StrJoin(quantized, ", "),
                 settings.weights ? fmt::format("converted to {}", name(*settings.weights))
                                  : "kept as they are");
  }
}

// Logs how much of the weights is loaded, every few seconds.
class LoadProgress {
 public:
  void operator()(int64_t done, int64_t total) {
    const auto now = std::chrono::steady_clock::now();
    if (now - logged_ >= kInterval && done < total) {
      logged_ = now;
      spdlog::info("weights: {} % loaded", 100 * done / total);
    }
  }

 private:
  static constexpr std::chrono::seconds kInterval{2};
  std::chrono::steady_clock::time_point logged_ = std::chrono::steady_clock::now();
};

// Ids beyond the tokenizer's have no text, like special tokens.
GrammarVocabulary grammar_vocabulary(const Tokenizer& tokenizer, const Engine& engine) {
  GrammarVocabulary vocabulary;
  const ModelConfig& config = engine.config();
  for (int32_t id = 0; id < config.vocab; ++id) {
    vocabulary.bytes.push_back(id < tokenizer.vocab_size() ? tokenizer.token_bytes(id) : "");
  }
  vocabulary.end_ids.assign(config.eos_ids.begin(), config.eos_ids.end());
  return vocabulary;
}

// Errors: ResourceExhausted if the KV cache, which is taken at start, does not fit into the free
// memory.
absl::Status check_cache_memory(const EngineOptions& options, const ModelConfig& own,
                                const Backend& backend) {
  if (!options.kv_populate) {
    return absl::OkStatus();  // pages are taken as they are written
  }
  const KvCacheOptions cache = kv_cache_options(options, own, backend);
  if (!check_options(cache).ok()) {
    return absl::OkStatus();  // Engine::create() names the error
  }
  TESSERA_ASSIGN_OR_RETURN(const KvArenaShape shape, shape_of(cache));
  return check_host_memory(fmt::format("the KV cache, for {} sequences of {} tokens,",
                                       options.max_sequences, options.context),
                           shape.total_bytes(),
                           "lower --context or --max-sequences, or set --kv-memory (see --plan)",
                           free_host_memory());
}

absl::StatusOr<int64_t> weight_memory(const Settings& settings, const ModelConfig& config,
                                      const Checkpoint& checkpoint, const Backend& backend) {
  // Ranks measure their own part; the numbers of all are about the same.
  TESSERA_ASSIGN_OR_RETURN(const WeightSize weights,
                           Weights::measure(config, {.rank = 0, .ranks = settings.tensor_parallel},
                                            checkpoint, settings.weights, backend));
  if (settings.device == Device::cpu) {
    TESSERA_RETURN_IF_ERROR(check_host_memory(
        fmt::format("the model, with weights {},", weights.formats), weights.bytes,
        "choose --weights with fewer bits (see --plan)", free_host_memory()));
  }
  return weights.bytes;
}

void log_stores(const KvTierOptions& options, const KvTierStats& stats) {
  if (options.host_bytes > 0) {
    spdlog::info("evicted prefixes: {:.1f} MiB of the host's memory, at most",
                 mib(options.host_bytes));
  }
  if (!options.disk.empty()) {
    spdlog::info("evicted prefixes: {} holds {} blocks in {:.1f} MiB, of {:.1f} MiB at most",
                 options.disk, stats.disk.blocks, mib(stats.disk.bytes), mib(options.disk_bytes));
  }
}

absl::Status log_engine(const Settings& settings, const ModelConfig& config,
                        const Transformer& model, const Engine& engine, const Backend& backend) {
  TESSERA_ASSIGN_OR_RETURN(const KvArenaShape shape,
                           shape_of(kv_cache_options(engine.options(), model.config(), backend)));
  log_model(model_name(settings), config);
  log_memory(settings, model, engine.options(), engine.stats());
  if (const int64_t swap = swap_room_bytes(shape); swap > 0) {
    spdlog::info("KV cache: {:.1f} MiB of the host's memory for swapped-out sequences, at most",
                 mib(swap));
  }
  return absl::OkStatus();
}

void log_device(const DeviceMemoryUse& use) {
  spdlog::info("device memory: {:.1f} of {:.1f} MiB are free after the start", mib(use.free),
               mib(use.total));
}

// Returns: null without a draft model.
absl::StatusOr<std::unique_ptr<Transformer>> load_draft(const std::optional<DraftSource>& draft,
                                                        const AwaitTokenizer& tokenizer,
                                                        const EngineOptions& options,
                                                        const Backend& backend, int threads) {
  if (!draft.has_value()) {
    return nullptr;
  }
  TESSERA_ASSIGN_OR_RETURN(const Tokenizer* served, tokenizer());
  TESSERA_RETURN_IF_ERROR(draft->check_vocabulary(*served));
  return draft->load(options, backend, threads);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> load_engine(const Settings& settings,
                                                    const AwaitTokenizer& tokenizer,
                                                    ThreadPool& pool, Communicator* ranks) {
  TESSERA_ASSIGN_OR_RETURN(const ModelConfig config, read_model_config(settings.model));
  TESSERA_RETURN_IF_ERROR(check_divides(config, settings.tensor_parallel));
  const CudaLibrary cuda = settings.device == Device::cuda ? open_cuda_library() : CudaLibrary{};
  const Backend& backend =
      cuda.backend != nullptr ? *cuda.backend : cpu_backend(settings.isa.value_or(best_cpu_isa()));
  const Stream stream = cuda.backend != nullptr ? cuda.stream : pool.stream();
  spdlog::info("device {}: {}, {} threads", backend.name,
               cuda.probe != nullptr ? cuda.probe->device : backend.isa, pool.threads());
  TESSERA_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(settings.model));
  log_quantized(settings, checkpoint);
  const ModelConfig own = shard_config(config, settings.tensor_parallel);
  TESSERA_ASSIGN_OR_RETURN(const int64_t weight_bytes,
                           weight_memory(settings, config, checkpoint, backend));
  StartModel planned{own, weight_bytes + settings.lora_memory, backend, stream};
  TESSERA_ASSIGN_OR_RETURN(const std::optional<DraftSource> draft,
                           DraftSource::open(settings, backend));
  if (draft.has_value()) draft->add_to(planned);
  const MachineMemory memory = machine_memory(settings, free_device_memory(cuda), ranks);
  EngineOptions options = settings.engine;
  options.ranks = ranks;
  options.kv_populate = settings.kv_populate.value_or(settings.engine.kv_bytes > 0);
  options.speculation = settings.speculation.value_or(settings.device == Device::cpu);
  const int32_t longest = longest_context(config);
  const StartSizes wishes = wished_sizes(settings);
  TESSERA_ASSIGN_OR_RETURN(StartSizes sizes,
                           fit_start(wishes, longest, memory, cost_of(options, planned)));
  options = with_sizes(options, sizes);
  if (settings.device == Device::cpu) {
    TESSERA_RETURN_IF_ERROR(check_cache_memory(options, own, backend));
  }
  const TransformerOptions transformer{.weights = settings.weights,
                                       .limits = step_limits(options),
                                       .ranks = ranks,
                                       .load = {pool.threads(), LoadProgress{}}};
  TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<Transformer> loaded,
                           load_transformer(config, checkpoint, transformer, backend));
  const Transformer& model = *loaded;  // kept by the engine after create()
  if (tokenizer != nullptr && ranks == nullptr) {
    TESSERA_ASSIGN_OR_RETURN(const Tokenizer* read, tokenizer());
    choose_formats(settings, *read, {loaded, backend, stream}, options);
    // Other formats and a ladder have other sizes. Those of the loaded model are the most.
    TESSERA_ASSIGN_OR_RETURN(sizes,
                             fit_start(wishes, sizes.context, memory, cost_of(options, planned)));
    options = with_sizes(options, sizes);
  }
  if (memory.is_device && options.kv_bytes == 0) {
    TESSERA_ASSIGN_OR_RETURN(options.kv_bytes, free_kv_bytes(cuda.probe->memory(), options,
                                                             model.config(), backend, stream));
  }
  if (settings.device == Device::cpu) {
    TESSERA_RETURN_IF_ERROR(check_cache_memory(options, model.config(), backend));
  }
  if (options.tiers.any()) {
    TESSERA_ASSIGN_OR_RETURN(options.tiers.checkpoint, checkpoint_digest(settings.model));
    options.tiers.save_time = settings.drain_timeout;
    options.tiers.log = [](std::string_view text) { spdlog::warn("evicted prefixes: {}", text); };
  }
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Transformer> drafting,
                           load_draft(draft, tokenizer, options, backend, pool.threads()));
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine,
                           Engine::create(options, share_transformer(std::move(loaded)), backend,
                                          stream, std::move(drafting)));
  if (ranks == nullptr || ranks->rank() == 0) {
    TESSERA_RETURN_IF_ERROR(log_engine(settings, config, model, *engine, backend));
    spdlog::info(describe(sizes, wishes, longest, memory));
    log_stores(options.tiers, engine->stats().tiers);
    if (memory.is_device) log_device(cuda.probe->memory());
  }
  return engine;
}

absl::StatusOr<Service::Parts> load_model_parts(const Settings& settings, ThreadPool& pool,
                                                Communicator* ranks) {
  Service::Parts parts;
  parts.model_name = model_name(settings);
  parts.aliases = absl::StrSplit(settings.model_aliases, ',', absl::SkipEmpty());
  // It takes as long as a quarter of a small model's weights, on one core.
  const std::shared_future<absl::Status> tokenizer =
      std::async(std::launch::async, [&settings, &parts]() -> absl::Status {
        TESSERA_ASSIGN_OR_RETURN(parts.tokenizer, Tokenizer::load(settings.model));
        return absl::OkStatus();
      });
  TESSERA_RETURN_IF_ERROR(load_chat_template(settings, parts));
  TESSERA_ASSIGN_OR_RETURN(parts.sampling, sampling_of_model(settings));
  const AwaitTokenizer await = [&]() -> absl::StatusOr<const Tokenizer*> {
    TESSERA_RETURN_IF_ERROR(tokenizer.get());
    return parts.tokenizer.get();
  };
  TESSERA_ASSIGN_OR_RETURN(parts.engine, load_engine(settings, await, pool, ranks));
  TESSERA_RETURN_IF_ERROR(await().status());
  std::vector<std::string> names = parts.aliases;
  names.push_back(parts.model_name);
  TESSERA_ASSIGN_OR_RETURN(parts.adapters, start_adapters(settings, *parts.engine, names));
  parts.metrics = std::make_unique<Metrics>(parts.model_name);
  parts.grammar_compiler = GrammarCompiler::create(
      grammar_vocabulary(*parts.tokenizer, *parts.engine),
      {.time = settings.grammar_time,
       .mask_bytes = static_cast<int64_t>(request_memory_of(settings, 0).grammars / kMaskShare)});
  return parts;
}

}  // namespace tessera

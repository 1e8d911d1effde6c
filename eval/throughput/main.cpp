// tessera-throughput: runs requests of one length through the engine, by KV format, and reports the
// share of time that page management takes. Without a checkpoint it makes one of Llama-3-8B's shape
// with random weights.

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/engine.h"
#include "engine/kv/kv_policy_fields.h"
#include "engine/kv/kv_presets.h"
#include "eval/program.h"
#include "eval/run/device.h"
#include "eval/throughput/timed_backend.h"
#include "files/gguf/gguf_model.h"
#include "kernels/cpu/threads/thread_pool.h"
#include "models/weights/random_checkpoint.h"

namespace tessera {
namespace {

constexpr std::string_view kStored = "stored";  // weights as the checkpoint has them
// A quarter of the tokens in k8v4, half of them in k4v2, a quarter dropped.
constexpr const char* kMix = "leankv:keep_share=0.75:high_share=0.3334";

struct Options {
  std::string device = "cpu";
  std::optional<CpuIsa> isa;  // the best of the machine
  std::filesystem::path model = "build/random-8b";
  std::string weights = "bf16";
  std::vector<std::string> kv = {"f16", "k8v4", kMix};
  int32_t layers = 32;
  bool small = false;  // a model for tests
  int32_t requests = 64;
  int32_t prompt = 1024;
  int32_t generated = 1024;
  int32_t sequences = 64;
  int32_t step_tokens = 2048;
  int64_t kv_bytes = int64_t{4} << 30;
  int32_t threads = 0;
};

ModelConfig shape_of(const Options& options) {
  ModelConfig config;
  config.architecture = "LlamaForCausalLM";
  config.hidden = options.small ? 64 : 4096;
  config.ffn = options.small ? 128 : 14336;
  config.layers = options.small ? 2 : options.layers;
  config.heads = options.small ? 4 : 32;
  config.kv_heads = options.small ? 2 : 8;
  config.head_dim = options.small ? 32 : 128;
  config.vocab = options.small ? 256 : 128256;
  config.context = 8192;
  return config;
}

// Counts the tokens of all requests, and the requests that ended at their length.
class Counter final : public EventSink {
 public:
  void on_token(int32_t) override { ++tokens; }
  void on_finish(const Finish& finish) override { ended += finish.reason == FinishReason::length; }
  int64_t tokens = 0;
  int32_t ended = 0;
};

EngineRequest request_of(const Options& options, int32_t vocab, std::mt19937& random) {
  EngineRequest request;
  for (int32_t i = 0; i < options.prompt; ++i) {
    request.prompt.push_back(3 + static_cast<int32_t>(random() % static_cast<uint32_t>(vocab - 3)));
  }
  request.max_tokens = options.generated;
  request.ignore_eos = true;
  request.sampling.temperature = 0;
  return request;
}

// Returns: nothing for the formats that the checkpoint has.
std::optional<WeightFormat> weights_of(const Options& options) {
  if (options.weights == kStored) {
    return std::nullopt;
  }
  return *std::ranges::find(kWeightFormats, options.weights,
                            [](WeightFormat format) { return name(format); });
}

struct Run {
  double seconds = 0;
  EngineStats stats;
};

absl::StatusOr<Run> run(const Options& options, const std::string& kv, const Backend& backend,
                        Stream stream) {
  TESSERA_ASSIGN_OR_RETURN(const KvPreset preset, parse_preset(kv));
  EngineOptions engine_options;
  engine_options.max_step_tokens = options.step_tokens;
  engine_options.max_sequences = options.sequences;
  engine_options.max_queue = options.requests;
  engine_options.context = options.prompt + options.generated;
  engine_options.kv = preset;
  engine_options.prefix_cache = false;  // prompts are random
  engine_options.kv_bytes = options.kv_bytes;
  TESSERA_ASSIGN_OR_RETURN(auto model, Transformer::load(options.model,
                                                         {.weights = weights_of(options),
                                                          .limits = step_limits(engine_options),
                                                          .max_logits_rows = options.sequences},
                                                         backend, stream));
  const int32_t vocab = model->config().vocab;
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine,
                           Engine::create(engine_options, std::move(model), backend, stream));
  std::mt19937 random(1);
  const auto counter = std::make_shared<Counter>();
  for (int32_t i = 0; i < options.requests; ++i) {
    EngineRequest request = request_of(options, vocab, random);
    request.sinks.push_back(counter);
    TESSERA_RETURN_IF_ERROR(engine->submit(std::move(request)).status());
  }
  const auto begin = std::chrono::steady_clock::now();
  while (engine->step()) {
  }
  Run done{
      .seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(),
      .stats = engine->stats()};
  if (counter->ended != options.requests) {
    return absl::InternalError(
        absl::StrCat(options.requests - counter->ended, " requests did not finish"));
  }
  return done;
}

// Runs once for throughput, then once more with a wait before and after each op that manages pages.
absl::Status measure(const Options& options, const std::string& kv, const ComputeDevice& device,
                     Stream stream) {
  TESSERA_ASSIGN_OR_RETURN(const Run plain, run(options, kv, *device.backend, stream));
  const TimedBackend timed(*device.backend);
  TESSERA_ASSIGN_OR_RETURN(const Run slow, run(options, kv, timed.table(), stream));
  const double generated = static_cast<double>(options.requests) * options.generated;
  const double all = generated + static_cast<double>(options.requests) * options.prompt;
  std::printf("| %s, %s | %d | %.1f | %.0f | %.0f | %.2f %% | %.2f %% |\n", kv.c_str(),
              options.weights.c_str(), options.requests, plain.seconds, generated / plain.seconds,
              all / plain.seconds, 100 * timed.page_seconds() / slow.seconds,
              100 * timed.score_seconds() / slow.seconds);
  std::printf(
      "<!-- %lld pages, %lld preemptions, %lld tokens of a head demoted, %lld dropped -->\n",
      static_cast<long long>(plain.stats.pages_total),
      static_cast<long long>(plain.stats.preemptions),
      static_cast<long long>(plain.stats.kv_demotions),
      static_cast<long long>(plain.stats.kv_dropped_tokens));
  std::fflush(stdout);
  return absl::OkStatus();
}

absl::Status run_all(const Options& options) {
  TESSERA_ASSIGN_OR_RETURN(const ComputeDevice device, open_device(options.device, options.isa));
  TESSERA_ASSIGN_OR_RETURN(const auto gguf, find_gguf(options.model));
  if (!gguf && !std::filesystem::exists(options.model / "config.json")) {
    std::fprintf(stderr, "Writing random weights to %s.\n", options.model.c_str());
    TESSERA_RETURN_IF_ERROR(
        write_random_checkpoint(options.model, shape_of(options), 1, TensorType::bf16, 8));
  }
  ThreadPool pool(options.threads);
  const Stream stream = device.backend->memory != nullptr ? device.stream : pool.stream();
  device.backend->attach_thread(stream);
  std::printf("%s, KV pool of %.0f MiB, %d tokens in and %d out, %d sequences at most.\n\n",
              device.backend->name, static_cast<double>(options.kv_bytes) * 0x1p-20, options.prompt,
              options.generated, options.sequences);
  std::printf(
      "| KV, weights | requests | seconds | generated/s | tokens/s | of it page management | "
      "scores |\n|---|--:|--:|--:|--:|--:|--:|\n");
  for (const std::string& kv : options.kv) {
    TESSERA_RETURN_IF_ERROR(measure(options, kv, device, stream));
  }
  return absl::OkStatus();
}

absl::StatusOr<int> run(int argc, char** argv) {
  CLI::App app("Requests of one length through the engine, by KV format.", "tessera-throughput");
  Options options;
  std::vector<std::string> formats{std::string(kStored)};
  for (const WeightFormat format : kWeightFormats) {
    formats.emplace_back(name(format));
  }
  app.add_option("--device", options.device, "cpu or cuda [cpu]");
  std::vector<std::string> sets;
  for (const CpuIsa isa : kCpuIsas) {
    sets.emplace_back(name(isa));
  }
  app.add_option_function<std::string>(
         "--isa",
         [&options](const std::string& text) {
           options.isa = *std::ranges::find(kCpuIsas, text, [](CpuIsa isa) { return name(isa); });
         },
         "instruction set of the CPU [the best]")
      ->check(CLI::IsMember(sets));
  app.add_option(
      "--model", options.model,
      "a Hugging Face directory or a GGUF file; random weights are written where there is "
      "none [build/random-8b]");
  app.add_option("--weights", options.weights,
                 "format of the weights in memory; stored: the checkpoint's [bf16]")
      ->check(CLI::IsMember(formats));
  app.add_option("--kv", options.kv, "policies [f16, k8v4, and a mix by budget]")->delimiter(',');
  app.add_option("--layers", options.layers, "layers to write [32]")->check(CLI::Range(1, 1000));
  app.add_flag("--small", options.small, "random weights of two small layers");
  app.add_option("--requests", options.requests, "[64]")->check(CLI::Range(1, 1'000'000));
  app.add_option("--prompt", options.prompt, "tokens [1024]")->check(CLI::Range(1, 1 << 20));
  app.add_option("--generated", options.generated, "tokens [1024]")->check(CLI::Range(1, 1 << 20));
  app.add_option("--sequences", options.sequences, "sequences that run at once [64]")
      ->check(CLI::Range(1, 4096));
  app.add_option("--step-tokens", options.step_tokens, "tokens of one step [2048]")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--kv-memory", options.kv_bytes, "pages, residual buffers and tables [4GiB]")
      ->transform(CLI::AsSizeValue(false));
  app.add_option("--threads", options.threads, "CPU threads; 0: one for each core [0]");
  CLI11_PARSE(app, argc, argv);
  TESSERA_RETURN_IF_ERROR(run_all(options));
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  return tessera::run_program("tessera-throughput", tessera::run, argc, argv);
}

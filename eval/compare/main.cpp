// tessera-compare: computes one model in several ways along the same text, and compares each of
// them with a reference.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "engine/kv/kv_policy_fields.h"
#include "eval/compare/comparison.h"
#include "eval/program.h"
#include "eval/run/device.h"
#include "eval/run/model_host.h"
#include "eval/tasks/held_out_text.h"
#include "eval/tasks/prompt_text.h"
#include "models/checkpoint/read_model_config.h"

namespace tessera {
namespace {

struct Options {
  std::string model;
  std::string reference = "cpu:f32";
  std::vector<std::string> ways;
  std::string kv = "f16";
  std::string text;  // file; empty: the text that ships
  int32_t prompts = 50;
  int32_t tokens = 128;
  int32_t threads = 0;
};

constexpr std::string_view kStored = "stored";  // weights as the checkpoint has them

// Device, instruction set and weight format of one computation: "cuda:bf16", "cpu/avx2:int8".
struct Way {
  std::string name;
  ComputeDevice device = {};
  std::optional<WeightFormat> weights = WeightFormat::f32;  // none: "stored"

  // Returns: the format whose rounding bounds that of the weights and their activations.
  WeightFormat rounding() const { return weights.value_or(WeightFormat::int8); }
};

absl::StatusOr<Way> parse_way(const std::string& text) {
  const std::vector<std::string> halves = absl::StrSplit(text, ':');
  const std::vector<std::string> place = absl::StrSplit(halves[0], '/');
  Way way{.name = text};
  std::optional<CpuIsa> isa;
  bool known = halves.size() == 2 && place.size() <= 2;
  if (place.size() == 2) {
    for (const CpuIsa candidate : kCpuIsas) {
      isa = name(candidate) == place[1] ? candidate : isa;
    }
    known = known && isa.has_value();
  }
  const std::string weights = halves.size() == 2 ? halves[1] : "";
  const auto* format =
      std::ranges::find(kWeightFormats, weights, [](WeightFormat one) { return name(one); });
  const bool stored = weights == kStored;
  if (!known || (format == std::end(kWeightFormats) && !stored)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "' is no DEVICE[/ISA]:WEIGHTS, as cuda:bf16 or cpu/avx2:int8"));
  }
  way.weights = stored ? std::nullopt : std::optional(*format);
  absl::StatusOr<ComputeDevice> device = open_device(place[0], isa);
  if (!device.ok()) {
    return absl::Status(device.status().code(),
                        absl::StrCat(text, ": ", std::string(device.status().message())));
  }
  way.device = *device;
  return way;
}

// Returns: windows of the text, evenly spread. Windows of a short text overlap.
absl::StatusOr<std::vector<Trial>> trials_of(const Options& options, const Tokenizer& tokenizer) {
  std::string text = held_out_text();
  if (!options.text.empty()) {
    std::ifstream file(options.text, std::ios::binary);
    if (!file) {
      return absl::NotFoundError(absl::StrCat("--text: ", options.text, " cannot be read"));
    }
    text.assign(std::istreambuf_iterator<char>(file), {});
  }
  const std::vector<int32_t> ids = encode_text(tokenizer, text);
  const auto length = static_cast<size_t>(options.tokens);
  if (ids.size() < length) {
    return absl::InvalidArgumentError(
        absl::StrCat("the text has ", ids.size(), " tokens, fewer than --tokens ", length));
  }
  std::vector<Trial> trials(static_cast<size_t>(options.prompts));
  for (size_t i = 0; i < trials.size(); ++i) {
    const size_t begin = (ids.size() - length) * i / std::max<size_t>(1, trials.size() - 1);
    const auto first = ids.begin() + static_cast<std::ptrdiff_t>(begin);
    // The second half is forced token by token, so that decode is compared as well as prefill.
    const auto half = first + static_cast<std::ptrdiff_t>(length / 2);
    trials[i].prompt.assign(first, half);
    trials[i].forced.assign(half, first + static_cast<std::ptrdiff_t>(length));
    trials[i].compare = true;
  }
  return trials;
}

// Returns: for each trial, the logits of its positions, [positions, vocab]. Holds one model in
// memory at a time.
absl::StatusOr<std::vector<std::vector<float>>> logits_of(const Way& way, const Options& options,
                                                          const std::vector<Trial>& trials,
                                                          const Tokenizer& tokenizer) {
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<ModelHost> host,
                           ModelHost::load({.model = options.model,
                                            .weights = way.weights,
                                            .threads = options.threads,
                                            .context = options.tokens + 2},
                                           *way.device.backend, way.device.stream));
  TESSERA_ASSIGN_OR_RETURN(const KvPolicy policy, parse_policy(options.kv));
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<Subject> subject,
                           host->subject({way.name, policy}, tokenizer));
  std::vector<std::vector<float>> logits(trials.size());
  std::vector<TrialResult> results(trials.size());
  std::vector<Job> jobs;
  for (size_t i = 0; i < trials.size(); ++i) {
    jobs.push_back({.trial = &trials[i], .result = &results[i], .keep_logits = &logits[i]});
  }
  TESSERA_RETURN_IF_ERROR(subject->run(jobs, [] {}));
  return logits;
}

WeightFormat coarser(WeightFormat a, WeightFormat b) {
  return unit_roundoff(a) >= unit_roundoff(b) ? a : b;
}

void print_row(const Way& way, const Comparison& found) {
  std::printf(
      "| %s | %.2e | %.2e | %.2e | %.2f %% | %.4f | %.4f | %lld of %lld | %lld |\n",
      way.name.c_str(), found.mean_divergence(), found.divergence_at(0.99), found.divergence_at(1),
      100.0 * static_cast<double>(found.same_first) / static_cast<double>(found.positions),
      found.largest_difference, found.largest_bound, static_cast<long long>(found.decided),
      static_cast<long long>(found.positions), static_cast<long long>(found.decided_differently));
  std::fflush(stdout);
}

// Errors: also Internal, if results differ by more than rounding can explain.
absl::Status compare(const Options& options) {
  TESSERA_ASSIGN_OR_RETURN(const ModelConfig config, read_model_config(options.model));
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer,
                           Tokenizer::load(options.model));
  TESSERA_ASSIGN_OR_RETURN(const Way reference, parse_way(options.reference));
  std::vector<Way> ways;
  for (const std::string& text : options.ways) {
    TESSERA_ASSIGN_OR_RETURN(ways.emplace_back(), parse_way(text));
  }
  TESSERA_ASSIGN_OR_RETURN(const std::vector<Trial> trials, trials_of(options, *tokenizer));
  TESSERA_ASSIGN_OR_RETURN(const KvPolicy policy, parse_policy(options.kv));
  TESSERA_ASSIGN_OR_RETURN(const auto expected, logits_of(reference, options, trials, *tokenizer));
  std::printf("%d prompts of %d tokens, KV %s, against %s.\n\n", options.prompts, options.tokens,
              options.kv.c_str(), reference.name.c_str());
  std::printf(
      "| computed by | KL mean | KL p99 | KL max | same first token | largest difference | "
      "bound | decided beyond it | of these otherwise |\n");
  std::printf("|---|--:|--:|--:|--:|--:|--:|--:|--:|\n");
  bool agree = true;
  const auto vocab = static_cast<size_t>(config.vocab);
  for (const Way& way : ways) {
    TESSERA_ASSIGN_OR_RETURN(const auto logits, logits_of(way, options, trials, *tokenizer));
    const LogitBound bound{coarser(reference.rounding(), way.rounding()), policy.high,
                           config.layers};
    Comparison found;
    for (size_t i = 0; i < trials.size(); ++i) {
      for (size_t at = 0; at + vocab <= logits[i].size(); at += vocab) {
        found.add(std::span(expected[i]).subspan(at, vocab),
                  std::span(logits[i]).subspan(at, vocab), bound);
      }
    }
    print_row(way, found);
    agree = agree && found.decided_differently == 0;
  }
  return agree ? absl::OkStatus()
               : absl::InternalError("first tokens differ by more than rounding can explain");
}

absl::StatusOr<int> run(int argc, char** argv) {
  CLI::App app(
      "Leads one model, computed in several ways, along the same text, and compares the "
      "distributions after each token. Fails if a first token differs although its lead in the "
      "reference is larger than the formats' rounding can change.",
      "tessera-compare");
  Options options;
  app.add_option("--model", options.model, "a Hugging Face directory or a GGUF file")->required();
  app.add_option("--with", options.ways,
                 "DEVICE[/ISA]:WEIGHTS, as cuda:bf16, cpu/avx2:int8 or cpu:stored")
      ->delimiter(',')
      ->required();
  app.add_option("--reference", options.reference, "reference in the same form [cpu:f32]");
  app.add_option("--kv", options.kv, "KV policy of all of them [f16]");
  app.add_option("--text", options.text, "a file [the text that ships]");
  app.add_option("--prompts", options.prompts, "text windows [50]")->check(CLI::Range(1, 100'000));
  app.add_option("--tokens", options.tokens, "tokens of each, the second half one by one [128]")
      ->check(CLI::Range(2, 1 << 20));
  app.add_option("--threads", options.threads, "CPU threads; 0: one for each core [0]");
  CLI11_PARSE(app, argc, argv);
  TESSERA_RETURN_IF_ERROR(compare(options));
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  return tessera::run_program("tessera-compare", tessera::run, argc, argv);
}

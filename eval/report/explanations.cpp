#include "eval/report/explanations.h"

#include <algorithm>

#include "base/check.h"

namespace tessera {
namespace {

constexpr Explanation kExplanations[] = {
    {"KV bytes/token",
     "Bytes allocated for one sequence at its end, divided by its tokens: pages, the window of 64 "
     "dense tokens, tables and scores, as the engine reports them; on short texts the window "
     "weighs most."},
    {"perplexity",
     "The exponential of the mean surprise per token of a held-out text: among how many equally "
     "likely tokens the model hesitates; it hardly moves when a cache is damaged, so do not stop "
     "at it."},
    {"KL mean",
     "How many nats the preset's next-token distribution is away from the reference's, averaged "
     "over all positions of the same tokens: 0 is the same model."},
    {"KL mean, prompt",
     "The same over the positions of prompts, from before the first decode step."},
    {"KL mean, decode",
     "The same over the positions after a prompt, where the tokens that a policy dropped or "
     "demoted are missing."},
    {"KL mean, acted",
     "The same over the positions behind a prompt that read a cache that the policy changed. "
     "The verdict counts these."},
    {"KL median", "Half of all positions are nearer to the reference than this."},
    {"KL p99", "99 of 100 positions are nearer to the reference than this."},
    {"KL max", "The position that is farthest from the reference."},
    {"top-1 agreement",
     "The share of positions at which preset and reference find the same token the likeliest. "
     "Elsewhere greedy decoding writes another text."},
    {"accuracy",
     "The share of questions answered right: greedy decoding would write the whole answer "
     "(retrieval, copy, answers), the right choice has the highest log likelihood (choices), or "
     "the value is in the generated text (kv-retrieval)."},
    {"accuracy by byte",
     "The same for choices, with each log likelihood divided by the bytes of the choice, so that "
     "long ones have a chance."},
    {"lost",
     "Of the questions that the reference answers right, the share that the preset does not. "
     "Accuracy does not show this damage, because gains hide losses there."},
    {"surprise", "Nats per token of the right answers: it moves before the first answer is lost."},
    {"verdict",
     "Lossless when one-sided 95 % intervals, drawn by context, end below 0.01 nats of divergence "
     "and below 2 % of lost answers; near when lost answers, or without answers the divergence, "
     "are below 5 % (0.05 nats); no when that is refuted; else undecided."},
};

}  // namespace

std::span<const Explanation> explanations() {
  return kExplanations;
}

std::string_view explain_metric(std::string_view name) {
  const auto* const found = std::find_if(std::begin(kExplanations), std::end(kExplanations),
                                         [&](const Explanation& e) { return e.name == name; });
  TESSERA_CHECK(found != std::end(kExplanations), "every metric is explained");
  return found->meaning;
}

}  // namespace tessera

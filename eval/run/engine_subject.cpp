#include "eval/run/engine_subject.h"

#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "engine/distribution.h"
#include "eval/run/acting.h"

namespace tessera {
namespace {

// Receives the events of one trial and writes its result.
class TrialSink final : public EventSink {
 public:
  explicit TrialSink(const Job& job) : job_(job), trial_(*job.trial), result_(*job.result) {
    if (job_.keep_logits != nullptr) {
      job_.keep_logits->clear();
    }
  }

  void on_logits(int32_t position, std::span<const float> logits) override {
    const size_t at = static_cast<size_t>(position);
    TESSERA_CHECK(at == positions_++, "positions in ascending order");
    if (at + 1 < trial_.tokens()) {
      note(at, logits);
    }
  }

  void on_logprobs(const TokenLogprobs& logprobs) override {
    if (forced_before_++ < trial_.asked) {
      return;
    }
    result_.logprobs.push_back(logprobs.chosen.logprob);
    result_.likeliest.push_back(logprobs.top.front().token == logprobs.chosen.token ? 1 : 0);
  }

  void on_token(int32_t token) override {
    if (trial_.forced.empty()) {
      result_.generated.push_back(token);
      if (trial_.compare) {
        // on_logits for this position came before.
        score(last_logits_, token);
      }
    }
  }

  void on_finish(const Finish& finish) override {
    finish_ = finish;
    result_.acted_from = acted_from(finish.kv.preset.policy, finish.prompt_tokens, finish.kv.usage);
    if (job_.measure_kv) {
      const KvUsage& usage = finish.kv.usage;
      const double tokens = usage.high + usage.low + usage.dropped;
      result_.kv = KvUse{usage.bytes, static_cast<int64_t>(std::lround(tokens)), usage.kept};
    }
  }

  void finish(const Decode& decode) {
    if (trial_.generate > 0 && !trial_.compare) {
      result_.text = decode(result_.generated);
    }
  }

  bool ended() const { return finish_.has_value(); }

  absl::Status status() const {
    if (!ended() || finish_->reason == FinishReason::cancelled) {
      return absl::CancelledError("the engine stopped");
    }
    return finish_->status;
  }

 private:
  void note(size_t at, std::span<const float> logits) {
    if (job_.keep_logits != nullptr) {
      job_.keep_logits->insert(job_.keep_logits->end(), logits.begin(), logits.end());
    }
    if (!job_.reference.empty()) {
      const std::span<const float> reference =
          job_.reference.subspan(at * logits.size(), logits.size());
      result_.kl.push_back(static_cast<float>(kl_divergence(reference, logits)));
      result_.agrees.push_back(likeliest_token(reference) == likeliest_token(logits) ? 1 : 0);
    }
    const size_t next = at + 1;
    const size_t prompt = trial_.prompt.size();
    if (next < prompt) {
      score(logits, trial_.prompt[next]);
    } else if (next - prompt < trial_.forced.size()) {
      score(logits, trial_.forced[next - prompt]);
    } else {
      last_logits_.assign(logits.begin(), logits.end());
    }
  }

  void score(std::span<const float> logits, int32_t token) {
    const TokenScore scored = score_token(logits, token);
    result_.logprobs.push_back(scored.logprob);
    result_.likeliest.push_back(scored.likeliest ? 1 : 0);
  }

  const Job job_;
  const Trial& trial_;
  TrialResult& result_;
  size_t positions_ = 0;
  int32_t forced_before_ = 0;
  std::vector<float> last_logits_;  // while generating: until the token is known
  std::optional<Finish> finish_;
};

EngineRequest request_of(const Trial& trial) {
  EngineRequest request;
  request.prompt = trial.prompt;
  request.forced = trial.forced;
  request.max_tokens =
      trial.forced.empty() ? trial.generate : static_cast<int32_t>(trial.forced.size());
  request.ignore_eos = trial.compare || !trial.forced.empty();
  request.observe_logits = trial.compare;
  request.sampling.temperature = trial.temperature;
  request.sampling.seed = trial.seed;
  if (!trial.compare && !trial.forced.empty()) {
    request.sampling.top_logprobs = 1;
  }
  return request;
}

class EngineSubject final : public Subject {
 public:
  EngineSubject(std::string name, std::unique_ptr<Engine> engine, Decode decode)
      : name_(std::move(name)), engine_(std::move(engine)), decode_(std::move(decode)) {}

  std::string_view name() const override { return name_; }
  bool gives_logits() const override { return true; }

  absl::Status run(std::span<const Job> jobs, const std::function<void()>& on_done) override {
    std::vector<std::shared_ptr<TrialSink>> running;
    const auto max = static_cast<size_t>(engine_->options().max_sequences);
    for (size_t next = 0; next < jobs.size() || !running.empty();) {
      for (; next < jobs.size() && running.size() < max; ++next) {
        const Job& job = jobs[next];
        *job.result = {};
        running.push_back(std::make_shared<TrialSink>(job));
        TESSERA_RETURN_IF_ERROR(submit(request_of(*job.trial), running.back()));
      }
      engine_->step();
      TESSERA_RETURN_IF_ERROR(collect(running, on_done));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status submit(EngineRequest request, std::shared_ptr<EventSink> sink) {
    request.sinks.push_back(std::move(sink));
    const absl::StatusOr<RequestId> id = engine_->submit(std::move(request));
    return id.ok() ? absl::OkStatus()
                   : absl::Status(id.status().code(),
                                  absl::StrCat(name_, ": ", std::string(id.status().message())));
  }

  absl::Status collect(std::vector<std::shared_ptr<TrialSink>>& running,
                       const std::function<void()>& on_done) const {
    for (auto sink = running.begin(); sink != running.end();) {
      if (!(*sink)->ended()) {
        ++sink;
        continue;
      }
      if (const absl::Status status = (*sink)->status(); !status.ok()) {
        return absl::Status(status.code(),
                            absl::StrCat(name_, ": ", std::string(status.message())));
      }
      (*sink)->finish(decode_);
      sink = running.erase(sink);
      on_done();
    }
    return absl::OkStatus();
  }

  const std::string name_;
  const std::unique_ptr<Engine> engine_;
  const Decode decode_;
};

}  // namespace

std::unique_ptr<Subject> make_engine_subject(std::string name, std::unique_ptr<Engine> engine,
                                             Decode decode) {
  return std::make_unique<EngineSubject>(std::move(name), std::move(engine), std::move(decode));
}

}  // namespace tessera

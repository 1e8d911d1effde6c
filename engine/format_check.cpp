#include "engine/format_check.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "base/check.h"
#include "base/status_macros.h"
#include "engine/distribution.h"
#include "engine/engine.h"
#include "engine/kv/kv_presets.h"
#include "models/shared_transformer.h"

namespace tessera {
namespace {

// Passes on the logits of the positions that count.
class CheckSink final : public EventSink {
 public:
  using Visit = std::function<void(size_t index, std::span<const float> logits)>;

  explicit CheckSink(Visit visit) : visit_(std::move(visit)) {}

  void on_logits(int32_t position, std::span<const float> logits) override {
    const int32_t after = position - kFirstChecked;
    if (after >= 0 && after % kCheckedEvery == 0) {
      visit_(static_cast<size_t>(after / kCheckedEvery), logits);
    }
  }
  void on_token(int32_t /*token*/) override {}
  void on_finish(const Finish& finish) override { status_ = finish.status; }

  const absl::Status& status() const { return status_; }

 private:
  const Visit visit_;
  absl::Status status_ = absl::InternalError("the engine stopped before the text was computed");
};

}  // namespace

const FormatCheck* find_check(std::span<const FormatCheck> checks, KvFormat format) {
  const auto found = std::find_if(checks.begin(), checks.end(),
                                  [&](const FormatCheck& check) { return check.format == format; });
  return found == checks.end() ? nullptr : &*found;
}

bool holds(std::span<const FormatCheck> checks, KvFormat format) {
  if (is_exact(format)) return true;
  const FormatCheck* check = find_check(checks, format);
  return check != nullptr && check->holds();
}

FormatMeasurement::FormatMeasurement(std::vector<int32_t> text, std::shared_ptr<Transformer> model,
                                     int32_t step_tokens, const Backend& backend, Stream stream)
    : text_([&] {
        text.resize(std::min(text.size(), static_cast<size_t>(kCheckTokens)));
        return std::move(text);
      }()),
      model_(std::move(model)),
      step_tokens_(step_tokens),
      backend_(backend),
      stream_(stream) {
  TESSERA_CHECK(std::ssize(text_) > kFirstChecked, "a text with positions that count");
}

template <class Visit>
absl::Status FormatMeasurement::run(KvFormat format, Deadline deadline, Visit&& visit) {
  EngineOptions options;
  options.max_step_tokens = step_tokens_;
  options.max_sequences = 1;
  options.max_queue = 1;
  options.context = static_cast<int32_t>(text_.size());
  options.kv = uniform_kv(format);
  options.prefix_cache = false;
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine,
                           Engine::create(options, share_transformer(model_), backend_, stream_));
  const auto sink = std::make_shared<CheckSink>(std::forward<Visit>(visit));
  EngineRequest request;
  request.prompt = text_;
  request.max_tokens = 0;
  request.observe_logits = true;
  request.sinks.push_back(sink);
  TESSERA_RETURN_IF_ERROR(engine->submit(std::move(request)).status());
  while (engine->step()) {
    if (std::chrono::steady_clock::now() > deadline) {
      return absl::DeadlineExceededError("the time for checks of formats is over");
    }
  }
  return sink->status();
}

absl::StatusOr<FormatCheck> FormatMeasurement::measure(KvFormat format, Deadline deadline) {
  if (reference_.empty()) {
    std::vector<float> reference;
    TESSERA_RETURN_IF_ERROR(run(kKvF16, deadline, [&](size_t, std::span<const float> logits) {
      reference.insert(reference.end(), logits.begin(), logits.end());
    }));
    reference_ = std::move(reference);
  }
  double sum = 0;
  size_t count = 0;
  TESSERA_RETURN_IF_ERROR(run(format, deadline, [&](size_t index, std::span<const float> logits) {
    const auto reference = std::span(reference_).subspan(index * logits.size(), logits.size());
    sum += kl_divergence(reference, logits);
    ++count;
  }));
  return FormatCheck{format,
                     static_cast<float>(sum / static_cast<double>(std::max<size_t>(count, 1)))};
}

}  // namespace tessera

// The functions of BatchingEngine for tensor parallelism (engine/ranks.h).

#include <utility>

#include "engine/batching_engine.h"
#include "kernels/check.h"

namespace tessera {
namespace {

// Hash of a list of numbers; the order matters.
class Digest {
 public:
  template <class... Numbers>
  void add(Numbers... numbers) {
    (mix(static_cast<uint64_t>(numbers)), ...);
  }
  uint64_t value() const { return state_; }

 private:
  void mix(uint64_t number) {
    state_ = (state_ ^ number) * 0x9e3779b97f4a7c15;
    state_ ^= state_ >> 32;
  }

  uint64_t state_ = 0;
};

}  // namespace

void BatchingEngine::follow() {
  TESSERA_CHECK(!ranks_.leads(), "the leader does not follow");
  backend_.attach_thread(stream_);
  while (!ended_) {
    step();
  }
}

std::vector<std::unique_ptr<Sequence>> BatchingEngine::make_samples(
    RequestId first_id, const EngineRequest& request) const {
  const KvFormat accept =
      options_.kv_ladder->empty() ? options_.kv.policy.high : options_.kv_ladder->back();
  const Sequence::Model model{options_.context, config().eos_ids, options_.kv, accept,
                              options_.clock()};
  std::vector<std::unique_ptr<Sequence>> samples;
  for (size_t i = 0; i < request.sinks.size(); ++i) {
    samples.push_back(std::make_unique<Sequence>(first_id, i, request, model));
  }
  return samples;
}

// closed() is read before receive(). No message enters a closed queue, so the last receive()
// returns all messages.
void BatchingEngine::receive_inputs() {
  inputs_.messages.clear();
  if (ranks_.leads()) {
    inputs_.ends = queue_.closed();
    inputs_.now = options_.clock();
    queue_.receive(inputs_.messages);
  }
  ranks_.broadcast(inputs_);
  for (Message& message : inputs_.messages) {
    if (!ranks_.leads() && message.request != nullptr) {
      message.samples = make_samples(message.first_id, *message.request);
    }
    message.request.reset();
  }
}

// The digest covers all inputs of the plan, and the last token of each sequence.
void BatchingEngine::verify_identical_step() {
  if (ranks_.count() == 1) {
    return;
  }
  Digest digest;
  digest.add(kv_->accounting().available_pages(), kv_->accounting().free_pages());
  for (size_t i = 0; i < candidates_.size(); ++i) {
    const Candidate& c = candidates_[i];
    digest.add(c.order, c.tokens, sequences_[i]->tokens().back(), c.stored, c.pages, c.running);
    digest.add(c.kv.page_tokens, c.kv.uneven, c.kv.low_tokens, c.kv.swap_in_pages, c.kv.compresses);
    digest.add(c.unlocked, c.matched, c.locked, c.head_start, c.waits_for);
  }
  ranks_.verify_identical(digest.value(), counting_.steps);
}

}  // namespace tessera

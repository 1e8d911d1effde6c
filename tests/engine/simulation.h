#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "tests/engine/engine_fixture.h"
#include "tests/engine/fake_drafter.h"
#include "tests/engine/random_traffic.h"

namespace tessera {

// Runs traffic on one engine, then drains or stops it.
class Simulation {
 public:
  explicit Simulation(uint64_t seed)
      : traffic_(seed),
        options_(engine_options(seed)),
        fake_(options_, traffic_.own_preset(), traffic_.also(), traffic_.window(), drafter(seed)) {}

  int64_t run(int64_t steps) {
    for (int64_t step = 0; step < steps; ++step) {
      if (step % 256 == 0) {
        arrival_rate_ = 0.01 * traffic_.pick(0, 100) / (traffic_.chance(0.5) ? 1 : 4);
        cancel_rate_ = traffic_.chance(0.5) ? 0.0005 : 0.01;
      }
      arrive();
      cancel_some();
      step_once();
      if (testing::Test::HasFailure()) {
        return step;
      }
    }
    return steps + close();
  }

  int64_t preemptions() const { return fake_.engine->stats().preemptions; }
  int64_t cached_tokens() const { return cached_tokens_; }
  int64_t lossy_cached_tokens() const { return lossy_cached_tokens_; }
  int64_t section_tokens() const { return section_tokens_; }
  EngineStats stats() const { return fake_.engine->stats(); }
  PrefixCacheStats cache() const { return fake_.engine->stats().cache; }
  int64_t finished(FinishReason reason) { return finished_[reason]; }
  int64_t overdue_requests() const { return overdue_; }
  int64_t shared_pages() const { return shared_pages_; }
  int64_t replays_alone() const { return replays_alone_; }

 private:
  // State of one sample.
  struct Client {
    EngineRequest request;  // as if the sample were alone
    RequestId request_id = 0;
    std::shared_ptr<RecordingSink> sink;
    bool cancelled = false;
    size_t tokens_seen = 0;
  };

  EngineOptions engine_options(uint64_t seed) {
    EngineOptions options = traffic_.random_options();
    options.speculation = true;
    options.draft_step_cost = seed % 3 == 0 ? 0.02f : 0.2f;
    options.clock = [this] { return now_; };
    return options;
  }

  // Every other traffic has a draft model, which is wrong in a share of places, up to all.
  std::unique_ptr<Transformer> drafter(uint64_t seed) {
    if (seed % 2 != 0) {
      return nullptr;
    }
    auto owned =
        std::make_unique<FakeDrafter>(options_.context, static_cast<double>(seed / 2 % 5) / 4);
    drafter_ = owned.get();
    return owned;
  }

  void arrive() {
    if (!traffic_.chance(arrival_rate_)) {
      return;
    }
    for (int32_t i = traffic_.pick(1, 3); i > 0; --i) {
      submit(traffic_.random_request(fake_.engine->options().context, now_),
             traffic_.chance(0.7) ? 1 : traffic_.pick(2, 6));
    }
  }

  void submit(EngineRequest request, int32_t samples) {
    samples = std::min(samples, fake_.engine->options().max_queue);
    std::vector<Client> clients;
    for (int32_t i = 0; i < samples; ++i) {
      clients.push_back({.request = sample_of(request, static_cast<size_t>(i)),
                         .sink = std::make_shared<RecordingSink>()});
      request.sinks.push_back(clients.back().sink);
    }
    const auto id = fake_.engine->submit(std::move(request));
    if (id.ok()) {
      for (size_t i = 0; i < clients.size(); ++i) {
        clients[i].request_id = *id;
        clients_.emplace(*id + i, std::move(clients[i]));
      }
    } else {
      ASSERT_EQ(id.status().code(), absl::StatusCode::kResourceExhausted) << id.status();
      for (const Client& client : clients) {
        ASSERT_EQ(client.sink->finish(), std::nullopt);
      }
    }
  }

  // Cancels single samples, or all samples of a request.
  void cancel_some() {
    RequestId whole = 0;
    for (auto& [id, client] : clients_) {
      whole = client.request_id == id && traffic_.chance(cancel_rate_) ? id : whole;
      if (client.request_id == whole || traffic_.chance(cancel_rate_)) {
        client.cancelled = true;
        fake_.engine->cancel(id);
        if (traffic_.chance(0.3)) {
          fake_.engine->cancel(id);  // a client that cancels twice
        }
      }
    }
    fake_.engine->cancel(static_cast<RequestId>(traffic_.pick(0, 1 << 20)) << 32);  // an unknown id
  }

  // Returns: a number that grows when a sequence runs: its stored tokens, and how far its sections
  // are compressed.
  int32_t progress_of(const Sequence& sequence) const {
    const SequenceState::Running* running = sequence.state().running();
    if (running == nullptr) {
      return sequence.state().stored();
    }
    const KvSections sections = fake_.engine->kv().planning().demand(running->slot).sections;
    return sequence.state().stored() + sections.compressed + sections.replayed;
  }

  // Returns: the best-ranked request of the next step, and its progress.
  std::pair<RequestId, int32_t> best_before() const {
    if (traffic_.tenants() > 1) {
      return first_of_tenants();
    }
    int64_t best_order = 0;
    RequestId best = 0;
    for (const auto& [id, client] : clients_) {
      const int64_t order =
          order_of(client.request.priority, static_cast<int64_t>(client.request_id));
      if (!client.cancelled && !overdue(client) && (best == 0 || order < best_order)) {
        best = id;
        best_order = order;
      }
    }
    for (const auto& sequence : fake_.engine->sequences()) {
      if (sequence->id() == best) {
        return {best, progress_of(*sequence)};
      }
    }
    return {best, 0};
  }

  // The same with several tenants: the first in scheduling order after the step before, or any
  // client while none has been received.
  std::pair<RequestId, int32_t> first_of_tenants() const {
    const auto stays = [&](RequestId id) {
      const Client& client = clients_.at(id);
      const auto& start_by = client.request.start_by;
      const bool late = start_by.has_value() && *start_by <= now_ && !was_admitted(id);
      return !client.cancelled && !overdue(client) && !late;
    };
    for (const auto& sequence : fake_.engine->sequences()) {
      if (sequence->state().running() != nullptr && stays(sequence->id())) {
        return {sequence->id(), progress_of(*sequence)};
      }
    }
    const auto any = std::find_if(clients_.begin(), clients_.end(),
                                  [&](const auto& entry) { return stays(entry.first); });
    return {any == clients_.end() ? 0 : any->first, 0};
  }

  bool was_admitted(RequestId id) const {
    const auto& sequences = fake_.engine->sequences();
    return std::any_of(sequences.begin(), sequences.end(), [&](const auto& sequence) {
      return sequence->id() == id && sequence->place().time().has_value();
    });
  }

  bool overdue(const Client& client) const {
    const auto& deadline = client.request.deadline;
    return deadline.has_value() && *deadline <= now_;
  }

  void step_once() {
    now_ += std::chrono::milliseconds(1);
    if (traffic_.chance(0.002)) {
      fake_.engine->flush_cache();
    }
    const auto [best, best_stored] = best_before();
    const bool ran = fake_.engine->step();
    const bool replays_alone = ran && fake_.engine->last_plan().empty();
    ASSERT_EQ(ran && !replays_alone, best != 0)
        << "a step runs if and only if a request is unfinished, or a block is replayed";
    replays_alone_ += replays_alone ? 1 : 0;
    ASSERT_EQ(fake_.model->defect(), "");
    ASSERT_EQ(drafter_ == nullptr ? "" : drafter_->defect(), "");
    fake_.engine->kv().check_integrity();
    check_plan();
    check_order();
    check_clients(best, best_stored);
    check_totals();
  }

  void check_plan() {
    int32_t tokens = 0;
    for (const StepPlan::Run& run : fake_.engine->last_plan().runs) {
      ASSERT_GT(run.count, 0);
      tokens += run.count;
    }
    ASSERT_LE(tokens, fake_.engine->options().max_step_tokens);
    ASSERT_LE(fake_.model->largest_batch(), fake_.engine->options().max_step_tokens)
        << "tokens of a background replay count too";
    ASSERT_LE(std::ssize(fake_.engine->last_plan().runs), fake_.engine->options().max_sequences);
  }

  // Sequences stand in scheduling order, those of one tenant also in their own.
  void check_order() {
    std::map<int32_t, const Sequence*> last_of;
    const Sequence* last = nullptr;
    for (const auto& sequence : fake_.engine->sequences()) {
      ASSERT_TRUE(last == nullptr || last->place().start() <= sequence->place().start());
      const Sequence*& before = last_of[sequence->place().tenant().id];
      ASSERT_TRUE(before == nullptr || before->place().order() <= sequence->place().order());
      before = last = sequence.get();
    }
  }

  void check_clients(RequestId best, int32_t best_stored) {
    std::map<RequestId, int32_t> stored;
    for (const auto& sequence : fake_.engine->sequences()) {
      ASSERT_FALSE(sequence->ended());
      ASSERT_TRUE(stored.emplace(sequence->id(), progress_of(*sequence)).second);
    }
    for (auto client = clients_.begin(); client != clients_.end();) {
      const RequestId id = client->first;
      const RecordingSink& sink = *client->second.sink;
      const size_t tokens = sink.tokens().size();
      ASSERT_LE(tokens, client->second.tokens_seen + 1 + kMostDrafted)
          << "at most one token and a draft in a step";
      client->second.tokens_seen = tokens;
      ASSERT_EQ(sink.events_after_finish(), 0);
      ASSERT_NE(sink.finish().has_value(), stored.contains(id)) << "ended, or inside: not both";
      if (!sink.finish().has_value()) {
        ASSERT_FALSE(client->second.cancelled) << "cancel takes effect within one step";
        ASSERT_FALSE(overdue(client->second)) << "and so does a deadline";
        check_progress(id == best, stored[id] > best_stored);
        ++client;
        continue;
      }
      check_outcome(client->second);
      client = clients_.erase(client);
    }
    ASSERT_EQ(stored.size(), clients_.size());
  }

  // The best-ranked request always progresses. With several tenants another may become the best.
  // Then a request that waits for long fails the check. With a prefix cache it may have to wait:
  // for requests with a longer cached prefix, for the sequence that computes its prefix, and for a
  // step that preempts.
  void check_progress(bool is_best, bool progresses) {
    if (is_best) {
      stalls_ = progresses ? 0 : stalls_ + 1;
      ASSERT_LE(stalls_, fake_.engine->options().prefix_cache || traffic_.tenants() > 1 ? 500 : 0);
    }
  }

  void check_outcome(const Client& client) {
    const Finish finish = *client.sink->finish();
    const std::vector<int32_t> tokens = client.sink->tokens();
    const Outcome alone = run_alone(client.request, fake_.engine->options().context);
    ++finished_[finish.reason];
    ASSERT_EQ(finish.prompt_tokens, std::ssize(client.request.prompt));
    ASSERT_EQ(finish.completion_tokens, std::ssize(tokens));
    ASSERT_NO_FATAL_FAILURE(check_observed(client, tokens, finish.reason));
    if (finish.reason == FinishReason::cancelled) {
      if (finish.status.ok()) {
        ASSERT_TRUE(client.cancelled || closing_);
      } else {
        if (finish.status.code() == absl::StatusCode::kResourceExhausted) {
          ASSERT_LE(*client.request.start_by, now_);
          ASSERT_EQ(finish.queue_time, std::nullopt);
        } else {
          ASSERT_EQ(finish.status.code(), absl::StatusCode::kDeadlineExceeded);
          ASSERT_TRUE(overdue(client));
        }
        ++overdue_;
      }
      ASSERT_LE(tokens.size(), alone.tokens.size());
      ASSERT_TRUE(std::equal(tokens.begin(), tokens.end(), alone.tokens.begin()));
      return;
    }
    ASSERT_EQ(finish.status.ok(), finish.reason != FinishReason::failed);
    ASSERT_LT(finish.cached_tokens, finish.prompt_tokens);
    ASSERT_TRUE(finish.cached_tokens == 0 || client.request.cache.use);
    cached_tokens_ += finish.cached_tokens;
    if (client.request.kv.has_value()) {
      (client.request.kv->policy.replays() ? section_tokens_ : lossy_cached_tokens_) +=
          finish.cached_tokens;
    }
    if (client.request.prompt.back() != FakeModel::kPoison) {
      traffic_.remember(client.request.prompt, tokens);
    }
    ASSERT_EQ(finish.reason, alone.reason);
    ASSERT_EQ(tokens, alone.tokens) << "the text does not depend on other sequences";
  }

  // Each position is reported once, in order: all of a finished request, else a prefix of them.
  void check_observed(const Client& client, std::vector<int32_t> tokens, FinishReason reason) {
    const auto prompt_logprobs = client.sink->prompt_logprobs();
    const std::vector<int32_t>& prompt = client.request.prompt;
    const bool whole = reason == FinishReason::length || reason == FinishReason::stop;
    if (whole && client.request.sampling.prompt_logprobs.has_value()) {
      ASSERT_EQ(prompt_logprobs.size(), prompt.size() - 1);
    }
    for (size_t i = 0; i < prompt_logprobs.size(); ++i) {
      ASSERT_EQ(prompt_logprobs[i].token, prompt[i + 1]);
    }
    const auto logits = client.sink->logits();
    tokens.insert(tokens.begin(), prompt.begin(), prompt.end());
    if (whole && client.request.observe_logits) {
      const bool prompt_only = tokens.size() == prompt.size();
      ASSERT_EQ(logits.size(),
                tokens.size() - (reason == FinishReason::length && !prompt_only ? 1 : 0));
    }
    for (size_t i = 0; i < logits.size(); ++i) {
      ASSERT_EQ(logits[i].position, i);
      ASSERT_EQ(logits[i].tokens_before, i < prompt.size() ? 0 : i + 1 - prompt.size());
    }
    if (!logits.empty()) {
      std::vector<float> expected(FakeModel::kVocab);
      const auto& some =
          logits[static_cast<size_t>(traffic_.pick(0, static_cast<int32_t>(logits.size()) - 1))];
      FakeModel::logits_after(std::span(tokens).first(static_cast<size_t>(some.position) + 1),
                              expected);
      ASSERT_TRUE(std::isnan(expected[0]) || some.values == expected);
    }
  }

  void check_totals() {
    const EngineStats stats = fake_.engine->stats();
    const auto& sequences = fake_.engine->sequences();
    const auto running = std::count_if(sequences.begin(), sequences.end(), [](const auto& s) {
      return s->state().running() != nullptr;
    });
    ASSERT_EQ(stats.running, running);
    ASSERT_EQ(stats.waiting, std::ssize(sequences) - running);
    ASSERT_EQ(fake_.engine->idle(), sequences.empty());
    ASSERT_EQ(stats.pages_free, fake_.engine->kv().accounting().available_pages());
    const KvCache& kv = fake_.engine->kv();
    int64_t owned = 0;
    int64_t perhaps_own = 0;  // pages that samples do not share if the first one's queries have
                              // passed windows that a fork reads: these compute their own prompts
    for (size_t i = 0; i < sequences.size(); ++i) {
      const SequenceState::Running* running_one = sequences[i]->state().running();
      if (running_one == nullptr) {
        continue;
      }
      owned += kv.accounting().slot_pages(running_one->slot);
      // Samples that share nothing run in any order: a longer cached prefix may rank one first.
      if (i > 0 && sequences[i]->request().shareable > 0 &&
          sequences[i - 1]->request_id() == sequences[i]->request_id()) {
        const int64_t shared =
            kv.planning().demand(running_one->slot).full_pages(sequences[i]->request().shareable);
        ASSERT_NE(sequences[i - 1]->state().running(), nullptr);
        owned -= shared;
        shared_pages_ += shared;
        perhaps_own += traffic_.window() > 0 ? shared : 0;
      }
    }
    if (!fake_.engine->options().prefix_cache) {  // else check_integrity() checks the owners
      ASSERT_LE(stats.pages_free + owned, stats.pages_total) << "shared pages count once";
      ASSERT_GE(stats.pages_free + owned + perhaps_own, stats.pages_total) << "no page is lost";
    }
  }

  // Drains or stops: every request must end and every page must be free.
  int64_t close() {
    int64_t steps = 0;
    closing_ = true;
    fake_.engine->drain();
    EXPECT_EQ(fake_.engine->submit(random_request_with_sink()).status().code(),
              absl::StatusCode::kUnavailable);
    if (traffic_.chance(0.5)) {
      for (; !clients_.empty() && !testing::Test::HasFailure(); ++steps) {
        step_once();
      }
    }
    fake_.engine->flush_cache();
    fake_.engine->stop();
    for (const auto& [id, client] : clients_) {
      EXPECT_TRUE(client.sink->finish().has_value());
      check_outcome(client);
    }
    fake_.engine->kv().check_integrity();
    EXPECT_TRUE(fake_.engine->idle());
    EXPECT_EQ(fake_.engine->stats().pages_free, fake_.engine->stats().pages_total);
    return steps;
  }

  EngineRequest random_request_with_sink() {
    EngineRequest request = traffic_.random_request(fake_.engine->options().context, now_);
    request.sinks = {std::make_shared<RecordingSink>()};
    return request;
  }

  RandomTraffic traffic_;
  const EngineOptions options_;
  FakeDrafter* drafter_ = nullptr;  // owned by the engine; null: none
  FakeEngine fake_;
  double arrival_rate_ = 0;  // bursts per step
  double cancel_rate_ = 0;   // probability for each request and step
  bool closing_ = false;
  std::chrono::steady_clock::time_point now_;
  // consecutive steps without progress of the best-ranked request
  int32_t stalls_ = 0;
  int64_t cached_tokens_ = 0;
  int64_t lossy_cached_tokens_ = 0;      // part of them: policies with scores of their own queries
  int64_t section_tokens_ = 0;           // part of them: compressed sections
  std::map<RequestId, Client> clients_;  // unfinished requests
  std::map<FinishReason, int64_t> finished_;
  int64_t overdue_ = 0;
  int64_t shared_pages_ = 0;   // sum over all steps
  int64_t replays_alone_ = 0;  // steps that ran nothing but a background replay
};

}  // namespace tessera

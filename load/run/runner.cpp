#include "load/run/runner.h"

#include <algorithm>
#include <utility>

namespace tessera::load {
namespace {

constexpr double kReconnectPause = 0.1;  // seconds

// Returns: seconds that a client of the closed loop waits before its next session.
double wait_after(const GenerationEnd& end) {
  return end.retry_after.value_or(end.error == ErrorClass::no_connection ? kReconnectPause : 0);
}

}  // namespace

// One request on its way.
class Runner::Exchange final : public GenerationEvents {
 public:
  Exchange(Runner& runner, std::shared_ptr<Session> of, LoadRequest asked)
      : session(std::move(of)), request(std::move(asked)), runner_(runner) {}

  void sent() override { record.sent = runner_.elapsed(); }
  void received(std::string_view /*text*/) override { record.texts.push_back(runner_.elapsed()); }
  void ended(const GenerationEnd& end, const Answer& answer) override {
    record.end = runner_.elapsed();
    record.outcome = end;
    runner_.ended(*this, answer);
  }

  const std::shared_ptr<Session> session;
  const LoadRequest request;
  RequestRecord record;

 private:
  Runner& runner_;
};

Runner::Runner(EventLoop& loop, Generator& generator, const Mix& mix, const RunPlan& plan,
               const FaultMix& faults, Sink sink)
    : loop_(loop),
      generator_(generator),
      mix_(mix),
      plan_(plan),
      faults_(faults),
      sink_(std::move(sink)),
      sessions_(plan.first_session),
      requests_(plan.first_number) {
  if (plan.arrivals) {
    arrivals_.emplace(*plan.arrivals, seed_of(plan.seed, plan.first_session ^ 0xa441));
  }
}

void Runner::run() {
  begin_ = loop_.now();
  if (arrivals_ || plan_.trace_times) {
    next_arrival();
  } else {
    for (int32_t i = 0; i < plan_.concurrency && !exhausted(); ++i) {
      start_session(elapsed());
    }
    arrivals_ended_ = true;
  }
  loop_.run();
}

bool Runner::exhausted() const {
  const auto sessions = mix_.sessions();
  return stopped_ ||
         (plan_.requests > 0 && requests_ - plan_.first_number + due_.size() >= plan_.requests) ||
         (plan_.duration > 0 && elapsed() >= plan_.duration) ||
         (plan_.trace_times && sessions && sessions_ >= *sessions);
}

void Runner::next_arrival() {
  if (exhausted()) {
    arrivals_ended_ = true;
    return;
  }
  const double start = plan_.trace_times
                           ? *mix_.start_of(sessions_) - *mix_.start_of(plan_.first_session)
                           : arrivals_->next();
  if (plan_.duration > 0 && start >= plan_.duration) {
    arrivals_ended_ = true;
    return;
  }
  loop_.at(begin_ + start, [this, start] {
    if (!exhausted()) start_session(start);
    next_arrival();
  });
}

void Runner::start_session(double intended) {
  start_request(mix_.session(sessions_++, plan_.seed), intended);
}

void Runner::start_request(std::shared_ptr<Session> session, double intended) {
  if (in_flight_ >= plan_.max_in_flight) {
    due_.push_back({std::move(session), intended});
    return;
  }
  send(std::move(session), intended);
}

void Runner::send(std::shared_ptr<Session> session, double intended) {
  LoadRequest request = session->next();
  auto exchange = std::make_shared<Exchange>(*this, std::move(session), std::move(request));
  RequestRecord& record = exchange->record;
  record.number = requests_++;
  record.session = exchange->request.session;
  record.turn = exchange->request.turn;
  record.workload = exchange->request.workload;
  record.intended = intended;
  if (exchange->request.expected.kind == Expectation::Kind::contains) {
    keys_.add(exchange->request.expected.text, record.session);
  }
  const Fault fault = faults_.draw(plan_.seed, record.number);
  record.faulty = fault.kind != Fault::Kind::none;
  ++in_flight_;
  generator_.generate(exchange->request, fault, exchange);
}

void Runner::ended(Exchange& exchange, const Answer& answer) {
  RequestRecord& record = exchange.record;
  record.usage = answer.usage;
  record.counted_tokens = answer.counted_tokens;
  if (record.ok()) {
    Judgement judgement = judge(exchange.request, answer, keys_);
    record.verdict = judgement.verdict;
    record.why = std::move(judgement.why);
    if (!record.why.empty()) {
      const LoadRequest& request = exchange.request;
      const std::string& asked =
          request.messages.empty() ? request.prompt : request.messages.back().content;
      record.answer = answer.text.substr(0, kShownAnswer);
      record.question = asked.substr(asked.size() - std::min(asked.size(), kShownAnswer));
    }
  }
  --in_flight_;
  sink_(record);
  if (stopped_) {
    due_.clear();
  }
  if (!due_.empty()) {
    Due due = std::move(due_.front());
    due_.pop_front();
    send(std::move(due.session), due.intended);
  }
  const std::optional<double> pause =
      record.ok() ? exchange.session->answered(answer.text) : std::nullopt;
  const double free = elapsed();
  if (pause && !exhausted()) {
    ++thinking_;
    loop_.at(begin_ + free + *pause, [this, session = exchange.session, free, pause] {
      --thinking_;
      if (!exhausted()) start_request(session, free + *pause);
    });
  } else if (!arrivals_ && !plan_.trace_times && !exhausted()) {
    // Through the loop, so that a server that fails at once does not deepen the stack.
    const double next = free + wait_after(record.outcome);
    ++thinking_;
    loop_.at(begin_ + next, [this, next] {
      --thinking_;
      if (!exhausted()) start_session(next);
    });
  }
}

}  // namespace tessera::load

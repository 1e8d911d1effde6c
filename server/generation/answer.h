#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "server/base/byte_budget.h"
#include "server/base/waker.h"
#include "server/chat/answer_reader.h"
#include "server/generation/answer_text.h"
#include "server/generation/choice.h"
#include "server/request/completion_request.h"

namespace tessera {

// The answer to a completion or a chat while it is generated: it waits for its adapter and its
// grammar, is submitted, and has sequences of text and a usage. The same for every dialect, which
// prints it. The engine's events wait in the sequences' queues and wake the reader; all calls here
// are the reader's, one at a time.
class Answer {
 public:
  // Submits the request, or lets it wait for its adapter and its grammar.
  // Requires: `service` outlives the answer.
  // Errors: those of Service::prepare_chat and of resume().
  static absl::StatusOr<std::unique_ptr<Answer>> begin(Service& service, CompletionRequest request,
                                                       std::shared_ptr<Waker> waker);

  // Cancels the sequences that still run.
  ~Answer();
  Answer(const Answer&) = delete;
  Answer& operator=(const Answer&) = delete;

  // Returns: bytes of the prompts of a request that waits, which resume() converts; 0: it is
  // submitted.
  std::size_t waiting_bytes() const;

  // Returns: true if the request waits no more, or if resume() will submit it.
  bool ready() const;

  // Submits a request that is ready. No effect otherwise. Takes time in proportion to the prompts.
  // Errors: those of AdapterStore::get, Service::compile and Service::generate. The answer is then
  // of no further use.
  absl::Status resume();

  // Empty while the request waits. Each prompt has best_of of them, one after the other.
  std::span<Choice> choices() { return choices_; }
  std::span<const Choice> choices() const { return choices_; }

  // True if each prompt has more sequences than its answer shows. Which ones that are is known when
  // all have ended.
  bool chooses() const { return best_of_ > n_; }

  // Moves out the texts of the complete answer, numbered anew: of each prompt the n most likely
  // sequences, most likely first; all of them in their order if it does not choose.
  std::vector<ChoiceText> take_texts();

  // Returns: what the sequences have used up to now.
  Usage usage() const;

 private:
  struct Waiting;

  Answer(Service& service, const CompletionRequest& request, std::shared_ptr<Waker> waker);
  absl::Status wait_or_submit(CompletionRequest request);
  absl::Status submit(CompletionRequest request);
  absl::Status submit_prompt(const CompletionRequest& request, Prompt prompt);
  void add_choices(const CompletionRequest& request, Accepted accepted, const std::string& echo,
                   std::span<std::shared_ptr<TokenQueue>> queues);

  Service& service_;
  const std::shared_ptr<Waker> waker_;
  const int32_t n_;
  const int32_t best_of_;                   // sequences of each prompt
  std::shared_ptr<Waiting> waiting_;        // null: the request is submitted
  std::optional<AnswerNotation> notation_;  // of a chat
  int64_t prompt_tokens_ = 0;
  std::vector<std::vector<KeptPrefix>> kept_;  // of each prompt
  std::size_t bytes_ = 0;                      // of rooms_
  std::vector<ByteBudget::Share> rooms_;
  std::vector<Choice> choices_;
};

}  // namespace tessera

#include "eval/http/http_subject.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "eval/http/http_client.h"

namespace tessera {
namespace {

using nlohmann::json;

constexpr char kCompletions[] = "/v1/completions";

std::string body_of(const std::string& model, const Trial& trial) {
  std::vector<int32_t> ids = trial.prompt;
  ids.insert(ids.end(), trial.forced.begin(), trial.forced.end());
  // Servers have sampling parameters of the model's files for requests that leave them out.
  json body = {{"model", model},
               {"prompt", std::move(ids)},
               {"temperature", trial.temperature},
               {"top_p", 1},
               {"top_k", -1},
               {"min_p", 0},
               {"repetition_penalty", 1}};
  if (trial.generate > 0) {
    body["max_tokens"] = trial.generate;
    body["seed"] = trial.seed;
  } else {
    // Some servers compute a prompt only if a token follows it.
    body.update({{"max_tokens", 1}, {"echo", true}, {"logprobs", 1}});
  }
  return body.dump();
}

// Reads the log probabilities of tokens [first, end) of an echoed prompt.
void read_logprobs(const json& logprobs, size_t first, size_t end, TrialResult& result) {
  for (size_t i = first; i < end; ++i) {
    const auto own = logprobs.at("token_logprobs").at(i).get<float>();
    float best = own;
    for (const auto& [token, other] : logprobs.at("top_logprobs").at(i).items()) {
      best = std::max(best, other.get<float>());
    }
    result.logprobs.push_back(own);
    result.likeliest.push_back(own >= best ? 1 : 0);
  }
}

absl::StatusOr<TrialResult> read_answer(const std::string& text, const Trial& trial) {
  TrialResult result;
  try {
    const json choice = json::parse(text).at("choices").at(0);
    if (trial.generate > 0) {
      result.text = choice.at("text").get<std::string>();
    } else {
      const size_t answer = trial.prompt.size() + static_cast<size_t>(trial.asked);
      read_logprobs(choice.at("logprobs"), trial.compare ? 1 : answer, trial.tokens(), result);
    }
  } catch (const json::exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat(kCompletions, ": an answer that is not as expected: ", error.what()));
  }
  return result;
}

class HttpSubject final : public Subject {
 public:
  HttpSubject(std::string name, std::string model, std::vector<HttpClient> clients)
      : name_(std::move(name)), model_(std::move(model)), clients_(std::move(clients)) {}

  std::string_view name() const override { return name_; }
  bool gives_logits() const override { return false; }

  absl::Status run(std::span<const Job> jobs, const std::function<void()>& on_done) override {
    std::atomic<size_t> next = 0;
    std::mutex mutex;  // protects `failure` and on_done
    absl::Status failure;
    const auto work = [&](HttpClient& client) {
      for (size_t i = next++; i < jobs.size(); i = next++) {
        absl::Status status = ask(client, jobs[i]);
        const std::lock_guard lock(mutex);
        if (!status.ok()) {
          failure.Update(std::move(status));
          next = jobs.size();
          return;
        }
        on_done();
      }
    };
    std::vector<std::thread> threads;
    for (size_t c = 0; c < std::min(clients_.size(), jobs.size()); ++c) {
      threads.emplace_back(work, std::ref(clients_[c]));
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    return failure;
  }

 private:
  absl::Status ask(HttpClient& client, const Job& job) const {
    TESSERA_ASSIGN_OR_RETURN(const std::string answer,
                             client.post(kCompletions, body_of(model_, *job.trial)));
    TESSERA_ASSIGN_OR_RETURN(*job.result, read_answer(answer, *job.trial));
    return absl::OkStatus();
  }

  const std::string name_;
  const std::string model_;
  std::vector<HttpClient> clients_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Subject>> make_http_subject(const std::string& url,
                                                           int connections) {
  TESSERA_ASSIGN_OR_RETURN(const HttpAddress address, HttpAddress::parse(url));
  std::vector<HttpClient> clients;
  for (int i = 0; i < connections; ++i) {
    clients.emplace_back(address);
  }
  TESSERA_ASSIGN_OR_RETURN(const std::string models, clients.front().get("/v1/models"));
  std::string model;
  try {
    model = json::parse(models).at("data").at(0).at("id").get<std::string>();
  } catch (const json::exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat("/v1/models: an answer that is not as expected: ", error.what()));
  }
  return std::make_unique<HttpSubject>(absl::StrCat(address.host, ":", address.port),
                                       std::move(model), std::move(clients));
}

}  // namespace tessera

#include "eval/run/forked_prompts.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "engine/kv/kv_cache.h"
#include "engine/sampler.h"
#include "eval/run/acting.h"
#include "eval/run/turn_notes.h"

namespace tessera {
namespace {

// A trial that runs, in a slot of its own.
struct Branch {
  Branch(const Job& of, KvSlot own) : job(of), notes(of), slot(std::move(own)) {}

  const Job& job;
  TurnNotes notes;
  KvSlot slot;
  size_t forced = 0;  // tokens that are stored
  size_t turn = 0;
  size_t turn_end = 0;  // in forced tokens

  // Returns: forced tokens of the present turn that are not stored. The last token of all needs no
  // computation, but its key and value count in the measured bytes.
  size_t left() {
    const std::vector<Turn>& turns = job.trial->turns;
    if (forced == turn_end && turn < turns.size()) {
      turn_end += static_cast<size_t>(turns[turn].asked + turns[turn].answered);
      ++turn;
    }
    return turn_end - forced;
  }
};

class ForkedPromptsImpl final : public ForkedPrompts {
 public:
  ForkedPromptsImpl(const Parts& parts, std::unique_ptr<KvCache> kv, Sampler sampler)
      : parts_(parts), kv_(std::move(kv)), sampler_(std::move(sampler)) {}

  void run(std::span<const Job> jobs, const std::function<void()>& on_done) override {
    while (!jobs.empty()) {
      const auto other = std::find_if(jobs.begin(), jobs.end(), [&](const Job& job) {
        return job.trial->prompt != jobs.front().trial->prompt;
      });
      const auto same = static_cast<size_t>(other - jobs.begin());
      run_forks(jobs.first(same), on_done);
      jobs = jobs.subspan(same);
    }
  }

 private:
  // Tokens of one step for one slot, and the function that receives the logits after each of them.
  struct Piece {
    const KvSlot& slot;
    std::span<const int32_t> tokens;
    int32_t stored = 0;  // before the step
    int32_t prompt = 0;
    std::function<void(size_t, std::span<const float>)> on_logits;
    size_t first_seen = 0;  // tokens before it need no logits
  };

  void run_forks(std::span<const Job> jobs, const std::function<void()>& on_done) {
    const std::vector<int32_t>& prompt = jobs.front().trial->prompt;
    const bool shares =
        std::ranges::none_of(jobs, [&](const Job& job) { return closes_section(*job.trial); });
    std::optional<KvSlot> root;
    if (shares) {
      root = prefill(prompt);
    }
    std::optional<SwappedKv> snapshot;
    if (parts_.policy.is_private()) {
      snapshot = kv_->swap_out(*root);
      kv_->release(*std::exchange(root, std::nullopt));
    }
    const size_t at_once = shares ? static_cast<size_t>(parts_.branches) : 1;
    for (size_t first = 0; first < jobs.size(); first += at_once) {
      std::vector<Branch> branches;
      branches.reserve(at_once);
      for (const Job& job : jobs.subspan(first, std::min(at_once, jobs.size() - first))) {
        const auto own_slot = [&] {
          if (snapshot) return kv_->swap_in(*snapshot);
          if (!shares) return prefill(prompt);
          return kv_->open_slot(parts_.policy, prompt_size(job));
        };
        branches.emplace_back(job, own_slot());
        if (job.trial->turns.front().asked == 0) {
          branches.back().notes.note(0, prompt_logits_);
        }
      }
      if (root) {
        fork(*root, branches);
      }
      while (step(branches)) {
      }
      end(branches, on_done);
    }
    if (root) {
      kv_->release(*std::move(root));
    }
  }

  // Returns: true if the trial closes the section in which its prompt ends. Compressing it frees
  // pages, which forks of the prompt would share.
  bool closes_section(const Trial& trial) const {
    const auto prompt = static_cast<int32_t>(trial.prompt.size());
    const KvSections sections = kv_->planning().demand(parts_.policy, prompt).sections;
    if (sections.tokens == 0 || prompt % sections.tokens == 0) {
      return false;
    }
    const int32_t section_end = (prompt / sections.tokens + 1) * sections.tokens;
    return section_end <= sections.end &&
           section_end <= prompt + static_cast<int32_t>(trial.forced.size());
  }

  static int32_t prompt_size(const Job& job) {
    return static_cast<int32_t>(job.trial->prompt.size());
  }

  KvSlot prefill(const std::vector<int32_t>& prompt) {
    KvSlot slot = kv_->open_slot(parts_.policy, static_cast<int32_t>(prompt.size()));
    size_t count = 0;
    for (size_t stored = 0; stored < prompt.size(); stored += count) {
      count = at_most(parts_.step_tokens, slot, stored, prompt.size() - stored);
      const bool last = stored + count == prompt.size();
      const Piece piece{.slot = slot,
                        .tokens = std::span(prompt).subspan(stored, count),
                        .stored = static_cast<int32_t>(stored),
                        .prompt = static_cast<int32_t>(prompt.size()),
                        .on_logits =
                            [this](size_t, std::span<const float> logits) {
                              prompt_logits_.assign(logits.begin(), logits.end());
                            },
                        .first_seen = last ? count - 1 : count};
      compute({&piece, 1});
      replay(slot, prompt, {});
    }
    return slot;
  }

  // Returns: the most of `left` tokens that the slot stores in one step of at most `room` tokens.
  size_t at_most(int32_t room, const KvSlot& slot, size_t stored, size_t left) const {
    const KvSections sections = kv_->planning().demand(slot).sections;
    const int32_t limit = std::min(room, sections.run_limit(static_cast<int32_t>(stored)));
    return std::min(static_cast<size_t>(limit), left);
  }

  // Repeats the section that the slot's last token has closed, if there is one. The sequence is
  // `prompt` and then `forced`.
  void replay(const KvSlot& slot, std::span<const int32_t> prompt,
              std::span<const int32_t> forced) {
    const int32_t end = kv_->position(slot);
    KvSections sections = kv_->planning().demand(slot).sections;
    if (!sections.replay_due(end)) {
      return;
    }
    std::vector<int32_t> section;
    for (int32_t i = end - sections.tokens; i < end; ++i) {
      const auto at = static_cast<size_t>(i);
      section.push_back(at < prompt.size() ? prompt[at] : forced[at - prompt.size()]);
    }
    for (int32_t replayed = 0; replayed < sections.tokens;) {
      const int32_t count = std::min(parts_.step_tokens, sections.tokens - replayed);
      const Piece piece{.slot = slot,
                        .tokens = std::span(section).subspan(static_cast<size_t>(replayed),
                                                             static_cast<size_t>(count)),
                        .stored = end + replayed,
                        .prompt = static_cast<int32_t>(prompt.size()),
                        .on_logits = {},
                        .first_seen = static_cast<size_t>(count)};
      compute({&piece, 1});
      replayed += count;
    }
  }

  void fork(const KvSlot& root, const std::vector<Branch>& branches) {
    std::vector<KvCopy> copies;
    for (const Branch& branch : branches) {
      copies.push_back({.source = root, .target = branch.slot, .tokens = prompt_size(branch.job)});
    }
    kv_->fork(copies);
  }

  // Computes tokens of all branches that have any left, up to the ends of their turns.
  // Returns: false if none has.
  bool step(std::vector<Branch>& branches) {
    std::vector<Piece> pieces;
    int32_t room = parts_.step_tokens;
    for (Branch& branch : branches) {
      const std::vector<int32_t>& forced = branch.job.trial->forced;
      const size_t first = branch.forced;
      const size_t count =
          at_most(parts_.policy.one_by_one() ? std::min<int32_t>(1, room) : room, branch.slot,
                  static_cast<size_t>(prompt_size(branch.job)) + first, branch.left());
      if (count == 0) {
        continue;
      }
      pieces.push_back({.slot = branch.slot,
                        .tokens = std::span(forced).subspan(first, count),
                        .stored = prompt_size(branch.job) + static_cast<int32_t>(first),
                        .prompt = prompt_size(branch.job),
                        .on_logits = [&branch, first](size_t at, std::span<const float> logits) {
                          if (const size_t next = first + at + 1;
                              next < branch.job.trial->forced.size()) {
                            branch.notes.note(next, logits);
                          }
                        }});
      branch.forced += count;
      room -= static_cast<int32_t>(count);
    }
    if (!pieces.empty()) {
      compute(pieces);
    }
    for (const Branch& branch : branches) {
      replay(branch.slot, branch.job.trial->prompt, branch.job.trial->forced);
    }
    return !pieces.empty();
  }

  void compute(std::span<const Piece> pieces) {
    std::vector<KvReservation> reservations;
    std::vector<int32_t> tokens;
    std::vector<int32_t> positions;
    std::vector<SequenceSpan> spans;
    std::vector<KvScoring> scorings;
    std::vector<const KvSlot*> slots;
    for (const Piece& piece : pieces) {
      const auto count = static_cast<int32_t>(piece.tokens.size());
      reservations.push_back({piece.slot, piece.stored + count});
      spans.push_back({.slot = piece.slot.index(),
                       .first_row = static_cast<int32_t>(tokens.size()),
                       .count = count,
                       .context = piece.stored,
                       .tiers = kv_->tiers(piece.slot),
                       .newest = parts_.policy.newest_dense(),
                       .prompt = piece.prompt,
                       .read_tiles = parts_.policy.read_tiles(piece.stored)});
      slots.push_back(&piece.slot);
      tokens.insert(tokens.end(), piece.tokens.begin(), piece.tokens.end());
      for (int32_t i = 0; i < count; ++i) {
        positions.push_back(piece.stored + i);
      }
    }
    kv_->reserve(reservations);
    for (const KvSlot* const slot : slots) {
      scorings.push_back(kv_->scoring(*slot));
    }
    if (std::none_of(scorings.begin(), scorings.end(),
                     [](const KvScoring& scoring) { return scoring.token_scores; })) {
      scorings.clear();
    }
    parts_.model->forward({tokens, positions, spans, scorings}, kv_->view(), parts_.stream);
    for (size_t p = 0; p < pieces.size(); ++p) {
      read_logits(pieces[p], spans[p].first_row);
    }
    kv_->compress(slots);
  }

  void read_logits(const Piece& piece, int32_t first_row) {
    const auto slice = static_cast<size_t>(parts_.model->max_logits_rows());
    for (size_t at = piece.first_seen; at < piece.tokens.size(); at += slice) {
      std::vector<int32_t> rows(std::min(slice, piece.tokens.size() - at));
      for (size_t i = 0; i < rows.size(); ++i) {
        rows[i] = first_row + static_cast<int32_t>(at + i);
      }
      parts_.model->logits(rows, sampler_.begin(std::ssize(rows)), parts_.stream);
      sampler_.finish(std::ssize(rows));
      for (size_t i = 0; i < rows.size(); ++i) {
        piece.on_logits(at + i, sampler_.seen(static_cast<int64_t>(i)));
      }
    }
  }

  void end(std::vector<Branch>& branches, const std::function<void()>& on_done) {
    for (Branch& branch : branches) {
      const KvUsage usage = kv_->accounting().usage(branch.slot);
      TrialResult& result = *branch.job.result;
      result.acted_from = acted_from(parts_.policy, prompt_size(branch.job), usage);
      if (branch.job.measure_kv) {
        result.kv =
            KvUse{usage.bytes, static_cast<int64_t>(branch.job.trial->tokens()), usage.kept};
      }
      kv_->release(std::move(branch.slot));
      on_done();
    }
  }

  const Parts parts_;
  const std::unique_ptr<KvCache> kv_;
  Sampler sampler_;
  std::vector<float> prompt_logits_;  // after the last prefill's last token
};

class ForkingSubject final : public Subject {
 public:
  ForkingSubject(std::unique_ptr<Subject> engine, const ForkedPrompts::Parts& parts)
      : engine_(std::move(engine)), parts_(parts) {}

  std::string_view name() const override { return engine_->name(); }
  bool gives_logits() const override { return engine_->gives_logits(); }

  absl::Status run(std::span<const Job> jobs, const std::function<void()>& on_done) override {
    std::vector<Job> asking;
    std::vector<Job> others;
    for (const Job& job : jobs) {
      (job.trial->turns.empty() ? others : asking).push_back(job);
    }
    if (!asking.empty() && forks_ == nullptr) {
      auto forks = ForkedPrompts::create(parts_);
      if (!forks.ok()) {
        return absl::Status(
            forks.status().code(),
            absl::StrCat(std::string(name()), ": ", std::string(forks.status().message())));
      }
      forks_ = *std::move(forks);
    }
    if (!asking.empty()) {
      forks_->run(asking, on_done);
    }
    return others.empty() ? absl::OkStatus() : engine_->run(others, on_done);
  }

 private:
  const std::unique_ptr<Subject> engine_;
  const ForkedPrompts::Parts parts_;
  std::unique_ptr<ForkedPrompts> forks_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ForkedPrompts>> ForkedPrompts::create(const Parts& parts) {
  TESSERA_CHECK(parts.step_tokens >= parts.branches, "a step has a token of each branch");
  const ModelConfig& config = parts.model->config();
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<KvCache> kv,
                           KvCache::create({.preset = {"evaluated", parts.policy},
                                            .coded_residuals = parts.coded_residuals,
                                            .layers = config.layers,
                                            .kv_heads = config.kv_heads,
                                            .head_dim = config.head_dim,
                                            .query_heads = config.heads,
                                            .windows = windows_of(config),
                                            .head_profiles = parts.head_profiles,
                                            .slots = parts.branches + 1,
                                            .context = parts.context},
                                           parts.backend, parts.stream));
  TESSERA_ASSIGN_OR_RETURN(
      Sampler sampler,
      Sampler::create(config.vocab, parts.model->max_logits_rows(), parts.backend, parts.stream));
  return std::make_unique<ForkedPromptsImpl>(parts, std::move(kv), std::move(sampler));
}

std::unique_ptr<Subject> make_forking_subject(std::unique_ptr<Subject> engine,
                                              const ForkedPrompts::Parts& parts) {
  return std::make_unique<ForkingSubject>(std::move(engine), parts);
}

}  // namespace tessera

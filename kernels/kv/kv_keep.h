#pragma once

#include <cstdint>

#include "base/check.h"
#include "kernels/kv/kv_allocators.h"
#include "kernels/kv/kv_rules.h"

namespace tessera {

// A budget: a share of the stored tokens, tokens of a row on average, or bytes of a sequence's
// pages. It covers all stored tokens, the protected ones included. If the protected tokens alone
// exceed it, only they are kept.
class KvAmount {
 public:
  static constexpr KvAmount of_share(float share) { return {Unit::share, share, 0}; }
  static constexpr KvAmount of_tokens(int32_t tokens) { return {Unit::tokens, 0, tokens}; }
  static constexpr KvAmount of_bytes(int64_t bytes) { return {Unit::bytes, 0, bytes}; }

  constexpr bool is_share() const { return unit_ == Unit::share; }
  constexpr bool is_tokens() const { return unit_ == Unit::tokens; }
  constexpr bool is_bytes() const { return unit_ == Unit::bytes; }

  // Requires: the amount is of that kind.
  constexpr float share() const { return share_; }
  constexpr int32_t tokens() const { return static_cast<int32_t>(count_); }
  constexpr int64_t bytes() const { return count_; }

  friend constexpr bool operator==(const KvAmount&, const KvAmount&) = default;

 private:
  enum class Unit : uint8_t { share, tokens, bytes };

  constexpr KvAmount(Unit unit, float share, int64_t count)
      : unit_(unit), share_(share), count_(count) {}

  Unit unit_;
  float share_;
  int64_t count_;
};

// The rules, with the numbers of each (kv_rules.h).

// Everything stays. A generated token may read a part of it.
struct KeepAll {
  static constexpr KvRule kRule = KvRule::keep_all;

  // For a sparse format: number of newest tokens, itself included, that a generated token at least
  // reads unquantised. It always reads its own group unquantised. At most kKvGroup, which the
  // residual buffer holds; 0: only its own group.
  int32_t newest = 32;
  // Below 1: a generated token reads this share of the closed tokens of each row, and at least
  // `read_tokens`, in attention tiles that sketches of keys choose (kernels/kv/key_sketch.h).
  // Queries of the prompt read everything.
  float read_share = 1;
  int32_t read_tokens = 512;

  friend constexpr bool operator==(const KeepAll&, const KeepAll&) = default;
};

// A token is high from alpha_high / N on, and low from alpha_low / N on. N is the number of stored
// tokens.
struct KeepByThresholds {
  static constexpr KvRule kRule = KvRule::thresholds;

  float alpha_high = 1;
  float alpha_low = 0;

  friend constexpr bool operator==(const KeepByThresholds&, const KeepByThresholds&) = default;
};

// The best tokens stay, as many as the allocator gives each row.
struct KeepBudget {
  static constexpr KvRule kRule = KvRule::budget;

  KvAllocator allocator = KvAllocator::uniform;
  // [0, 1]: with the allocator `retrieval`, share of the rows that keep all tokens. The budget is
  // that of each other row.
  float retrieval_share = 0.5f;
  KvAmount amount = KvAmount::of_share(1);
  float high_share = 1;  // [0, 1]: share of the kept tokens that stays in the high tier

  friend constexpr bool operator==(const KeepBudget&, const KeepBudget&) = default;
};

// Dropped tokens received at most 1 - mass_keep of the attention. Tokens outside the high tier
// received at most 1 - mass_high.
struct KeepMass {
  static constexpr KvRule kRule = KvRule::mass;

  float mass_high = 0.95f;
  float mass_keep = 0.99f;

  friend constexpr bool operator==(const KeepMass&, const KeepMass&) = default;
};

// One rule with its numbers. It is a variant that devices read too, and that is copied as bytes.
class KvKeep {
 public:
  constexpr KvKeep() : KvKeep(KeepAll()) {}
  constexpr KvKeep(const KeepAll& all) : rule_(KeepAll::kRule), all_(all) {}
  constexpr KvKeep(const KeepByThresholds& thresholds)
      : rule_(KeepByThresholds::kRule), thresholds_(thresholds) {}
  constexpr KvKeep(const KeepBudget& budget) : rule_(KeepBudget::kRule), budget_(budget) {}
  constexpr KvKeep(const KeepMass& mass) : rule_(KeepMass::kRule), mass_(mass) {}

  constexpr KvRule rule() const { return rule_; }
  template <class Numbers>
  constexpr bool is() const {
    return rule_ == Numbers::kRule;
  }
  // Requires: is<Numbers>().
  template <class Numbers>
  constexpr const Numbers& as() const {
    return of(*this, static_cast<const Numbers*>(nullptr));
  }
  template <class Numbers>
  constexpr Numbers& as() {
    TESSERA_CHECK(is<Numbers>(), "numbers of a rule that the policy does not have");
    return of(*this, static_cast<Numbers*>(nullptr));
  }

  friend constexpr bool operator==(const KvKeep& a, const KvKeep& b) {
    if (a.rule_ != b.rule_) {
      return false;
    }
    switch (a.rule_) {
      case KvRule::keep_all:
        return a.all_ == b.all_;
      case KvRule::thresholds:
        return a.thresholds_ == b.thresholds_;
      case KvRule::budget:
        return a.budget_ == b.budget_;
      case KvRule::mass:
        return a.mass_ == b.mass_;
    }
    return false;
  }

 private:
  template <class Keep>
  static constexpr auto& of(Keep& keep, const KeepAll*) {
    return keep.all_;
  }
  template <class Keep>
  static constexpr auto& of(Keep& keep, const KeepByThresholds*) {
    return keep.thresholds_;
  }
  template <class Keep>
  static constexpr auto& of(Keep& keep, const KeepBudget*) {
    return keep.budget_;
  }
  template <class Keep>
  static constexpr auto& of(Keep& keep, const KeepMass*) {
    return keep.mass_;
  }

  KvRule rule_;
  union {
    KeepAll all_;
    KeepByThresholds thresholds_;
    KeepBudget budget_;
    KeepMass mass_;
  };
};

}  // namespace tessera

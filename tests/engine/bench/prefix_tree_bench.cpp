// Measures how long the radix tree takes to hash and match a prompt and to insert its new blocks.
// Varies the number of tokens in the tree, and so the number of prompts that they came from.
//   prefix_tree_bench [prompt tokens] [tokens in the tree ...]

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "engine/kv/prefix_tree.h"
#include "engine/tier/block_hash.h"

namespace tessera {
namespace {

constexpr int32_t kBlock = 64;

// A tree full of prompts. The first half of each prompt is one of 64 common prefixes.
class Workload {
 public:
  Workload(int64_t tokens, int64_t prompt)
      : blocks_(tokens / kBlock),
        prompt_blocks_(prompt / kBlock),
        tree_({static_cast<int32_t>(blocks_ + prompt_blocks_), kBlock, {1}}) {
    root_ = tree_.root("", 0);
    while (tree_.size() + prompt_blocks_ <= blocks_) {
      insert(next_prompt());
      ++prompts_;
    }
  }

  // Microseconds of one prompt. `insert` includes unlocking the path and evicting as many blocks.
  struct Times {
    double hash;
    double match;
    double insert;
  };
  Times measure() {
    const std::vector<int32_t> prompt = next_prompt();
    const double begin = now();
    hashes_.clear();
    for (int64_t i = 0; i < prompt_blocks_; ++i) {
      hashes_.push_back(block_hash(block(prompt, i)));
    }
    const double hashed = now();
    PrefixTree::Node node = root_;
    int64_t at = 0;
    for (; at < prompt_blocks_; ++at) {
      const PrefixTree::Node next =
          tree_.child(node, block(prompt, at), hashes_[static_cast<size_t>(at)]);
      if (next == PrefixTree::kNone) {
        break;
      }
      node = next;
    }
    tree_.lock(node);
    const double matched = now();
    for (; at < prompt_blocks_; ++at) {
      node = tree_.insert(node, block(prompt, at), hashes_[static_cast<size_t>(at)], 0, 0);
    }
    tree_.unlock(node);
    while (tree_.size() > blocks_) {
      tree_.erase(tree_.lru_leaf());
    }
    return {hashed - begin, matched - hashed, now() - matched};
  }

  int64_t prompts() const { return prompts_; }

 private:
  static double now() {
    return std::chrono::duration<double, std::micro>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
  std::span<const int32_t> block(const std::vector<int32_t>& prompt, int64_t i) const {
    return std::span(prompt).subspan(static_cast<size_t>(i * kBlock), kBlock);
  }

  std::vector<int32_t> next_prompt() {
    const uint32_t family = random_() % 64;
    std::mt19937 shared(family);
    std::vector<int32_t> prompt(static_cast<size_t>(prompt_blocks_ * kBlock));
    for (size_t i = 0; i < prompt.size(); ++i) {
      prompt[i] = static_cast<int32_t>((i < prompt.size() / 2 ? shared() : random_()) % 32000);
    }
    return prompt;
  }

  void insert(const std::vector<int32_t>& prompt) {
    PrefixTree::Node node = root_;
    for (int64_t i = 0; i < prompt_blocks_; ++i) {
      const uint64_t hash = block_hash(block(prompt, i));
      const PrefixTree::Node next = tree_.child(node, block(prompt, i), hash);
      if (next == PrefixTree::kNone) {
        node = tree_.insert(node, block(prompt, i), hash, 0, 0);
      } else {
        tree_.descend(next);
        node = next;
      }
    }
    tree_.unlock(node);
  }

  std::mt19937 random_{1};
  int64_t blocks_;
  int64_t prompt_blocks_;
  PrefixTree tree_;
  PrefixTree::Node root_ = PrefixTree::kNone;
  std::vector<uint64_t> hashes_;
  int64_t prompts_ = 0;
};

double median(std::vector<double> numbers) {
  std::nth_element(numbers.begin(), numbers.begin() + std::ssize(numbers) / 2, numbers.end());
  return numbers[numbers.size() / 2];
}

void report(int64_t tokens, int64_t prompt) {
  Workload workload(tokens, prompt);
  std::vector<double> hash, match, insert, all;
  for (int i = 0; i < 1000; ++i) {
    const Workload::Times times = workload.measure();
    hash.push_back(times.hash);
    match.push_back(times.match);
    insert.push_back(times.insert);
    all.push_back(times.hash + times.match + times.insert);
  }
  std::printf("%12lld %9lld %9.1f %9.1f %9.1f %9.1f\n", static_cast<long long>(tokens),
              static_cast<long long>(workload.prompts()), median(hash), median(match),
              median(insert), median(all));
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  const int64_t prompt = argc > 1 ? std::atoll(argv[1]) : 4096;
  std::vector<int64_t> tokens;
  for (int i = 2; i < argc; ++i) {
    tokens.push_back(std::atoll(argv[i]));
  }
  if (tokens.empty()) {
    tokens = {10'000, 100'000, 1'000'000, 5'000'000};
  }
  std::printf("prompts of %lld tokens, half of them there; microseconds, medians of 1000\n",
              static_cast<long long>(prompt));
  std::printf("%12s %9s %9s %9s %9s %9s\n", "tokens", "prompts", "hash", "match", "insert", "all");
  for (const int64_t count : tokens) {
    tessera::report(count, prompt);
  }
  return 0;
}

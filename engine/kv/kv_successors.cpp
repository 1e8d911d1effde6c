#include "engine/kv/kv_successors.h"

#include <algorithm>
#include <iterator>

namespace tessera {
namespace {

struct Successor {
  std::string_view name;
  std::string_view successor;
};

constexpr Successor kSuccessors[] = {
    // Presets.
    {"leankv-aggressive", "leankv:score_window=8:score_pool=23:alpha_high=1000:alpha_low=6"},
    {"mustafar-50", "mustafar-70:low=s50"},
    {"h2o", "kv-compress"},
    {"scissorhands", "kv-compress"},
    {"a2sf", "kv-compress"},
    {"keyformer", "kv-compress"},
    {"lazyeviction", "kv-compress"},
    {"pyramidkv", "snapkv"},
    {"adakv", "snapkv"},
    {"zigzagkv", "snapkv"},
    {"windowkv", "snapkv"},
    {"kvcrush", "snapkv"},
    {"compresskv", "snapkv"},
    {"duoattention", "retrieval-50"},
    {"razorattention", "retrieval-50:retrieval_share=0.15"},
    {"kvzip-50", "replay-50, on CUDA replay-50:scorer=replay"},
    {"kvzip-25", "replay-31, on CUDA replay-50:scorer=replay:keep_share=0.25"},
    {"replay-37", "replay-31"},
    {"replay-25", "replay-31, or replay-50:keep_share=0.25"},
    // Formats.
    {"f32", "f16"},
    {"k8v2", "k6v4r, or k4v4 on CUDA"},
    {"s50-k8v8", "k4v4r, or k4v4 on CUDA"},
    {"s50-k8v4", "k4v4r, or k4v4 on CUDA"},
    {"s70-k8v8", "k4v2r, or s50-k4v4 on CUDA"},
    {"s70-k8v4", "s50-k4v4"},
    // Fields of a policy, and values of them.
    {"pooling", "score_pool alone, which takes the highest score of a run"},
    {"representative_share", "score_pool alone, which takes the highest score of a run"},
    {"score_decay", "score_window, which leaves old queries out"},
    {"pyramid_steepness", "allocator=pages, which compares all layers"},
    {"head_floor", "allocator=pages, which compares all heads"},
    {"score_generated", "compress_generated, whose tokens are scored"},
    {"lag", "recent, whose groups are not evaluated yet"},
    {"scorer=scissorhands", "scorer=mean"},
    {"scorer=a2sf", "scorer=mean"},
    {"scorer=recurrence", "scorer=mean"},
    {"scorer=keyformer", "scorer=mean"},
    {"allocator=pyramid", "allocator=pages"},
    {"allocator=heads", "allocator=pages"},
    {"allocator=zigzag", "allocator=pages"},
    {"allocator=losses", "allocator=retrieval"},
};

}  // namespace

std::optional<std::string_view> kv_successor(std::string_view name) {
  const auto* const found = std::find_if(std::begin(kSuccessors), std::end(kSuccessors),
                                         [&](const Successor& row) { return row.name == name; });
  return found == std::end(kSuccessors) ? std::nullopt : std::optional(found->successor);
}

}  // namespace tessera

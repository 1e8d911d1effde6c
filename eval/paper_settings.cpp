#include "eval/paper_settings.h"

namespace tessera {
namespace {

constexpr std::string_view kBaselines =
    "KV-Compress (2024), section 5.1: baselines with a window of 8, pooled over 7, and 256 tokens";
constexpr std::string_view kRecent = "the newest 64 to 127 tokens stay, and count";

constexpr PaperSetting kSettings[] = {
    {"leankv@paper", "leankv:score_window=64:score_pool=1:alpha_high=1:alpha_low=0",
     "LeanKV (2024), section 7 and its code: no pooling, and at the lossless point no pruning",
     "scores are not normalised again after tokens were dropped"},
    {"snapkv@paper", "snapkv:score_window=8:score_pool=7:sinks=0:keep_share=0:keep_tokens=256",
     kBaselines, kRecent},
    {"h2o@paper",
     "snapkv:scorer=sum:score_window=0:score_pool=1:score_generated=true:compress_generated=true:"
     "sinks=0:keep_tokens=256",
     "KV-Compress (2024), section 5.1: attention of all queries, 256 tokens",
     "the newest 64 to 127 tokens stay, instead of half of the budget"},
    {"kv-compress@paper",
     "kv-compress:score_window=8:score_pool=7:sinks=0:keep_share=0:keep_tokens=256",
     "KV-Compress (2024), sections 5.1 and 5.2: KVC-w8-L2, 256 tokens",
     "pages of 64 tokens instead of 16; the newest 64 to 127 tokens stay"},
    {"streaming@paper", "streaming:sinks=4:keep_share=0:keep_tokens=256",
     "StreamingLLM (2023): 4 sink tokens and a window",
     "positions are those of the text instead of the cache"},
    {"mikv@paper",
     "snapkv:scorer=sum:score_window=0:score_pool=1:score_generated=true:compress_generated=true:"
     "sinks=0:keep_share=1:high_share=0.2:high=k8v8:low=k4v2",
     "MiKV (2024, arXiv 2402.18096): a fifth of the tokens by H2O in 8 bits, the others in 2",
     "keys of the others have 4 bits; no balance of channels"},
    {"zipcache@paper",
     "snapkv:score_window=0:score_pool=1:score_generated=true:compress_generated=true:sinks=0:"
     "keep_share=1:high_share=0.6:high=k4v4:low=k4v2",
     "ZipCache (2024, arXiv 2405.14256): mean attention, 4 and 2 bits; 60 % give its 4.98 times",
     "keys of the others have 4 bits; scales are by token, not by channel and token"},
};

}  // namespace

std::span<const PaperSetting> paper_settings() {
  return kSettings;
}

}  // namespace tessera

#include <array>

#include "eval/lab/method.h"
#include "eval/lab/methods/a2sf.h"
#include "eval/lab/methods/ada_kv.h"
#include "eval/lab/methods/cluster_kv.h"
#include "eval/lab/methods/compress_kv.h"
#include "eval/lab/methods/duo_attention.h"
#include "eval/lab/methods/ems.h"
#include "eval/lab/methods/epi_cache.h"
#include "eval/lab/methods/expected_attention.h"
#include "eval/lab/methods/fast_gen.h"
#include "eval/lab/methods/full.h"
#include "eval/lab/methods/gear.h"
#include "eval/lab/methods/h2o.h"
#include "eval/lab/methods/inf_llm.h"
#include "eval/lab/methods/infini_gen.h"
#include "eval/lab/methods/keyformer.h"
#include "eval/lab/methods/kivi.h"
#include "eval/lab/methods/kv_compress.h"
#include "eval/lab/methods/kv_crush.h"
#include "eval/lab/methods/kv_merger.h"
#include "eval/lab/methods/kv_quant.h"
#include "eval/lab/methods/kv_zip.h"
#include "eval/lab/methods/kvarn.h"
#include "eval/lab/methods/lazy_eviction.h"
#include "eval/lab/methods/lean_kv.h"
#include "eval/lab/methods/mikv.h"
#include "eval/lab/methods/mini_cache.h"
#include "eval/lab/methods/mustafar.h"
#include "eval/lab/methods/oscar.h"
#include "eval/lab/methods/prompt_cache.h"
#include "eval/lab/methods/pyramid_infer.h"
#include "eval/lab/methods/pyramid_kv.h"
#include "eval/lab/methods/quest.h"
#include "eval/lab/methods/razor_attention.h"
#include "eval/lab/methods/retrieval_attention.h"
#include "eval/lab/methods/rotate_kv.h"
#include "eval/lab/methods/scissorhands.h"
#include "eval/lab/methods/snap_kv.h"
#include "eval/lab/methods/spec_kv.h"
#include "eval/lab/methods/spec_pc.h"
#include "eval/lab/methods/squeezed_attention.h"
#include "eval/lab/methods/streaming_llm.h"
#include "eval/lab/methods/tova.h"
#include "eval/lab/methods/window_kv.h"
#include "eval/lab/methods/xkv.h"
#include "eval/lab/methods/xquant.h"
#include "eval/lab/methods/zigzag_kv.h"
#include "eval/lab/methods/zip_cache.h"

namespace tessera::lab {
namespace {

constexpr auto kMethods = std::to_array<MethodLine>({
    {"full", "", "Keeps every token in f16.", "", Full::make},

    // Eviction.
    {"streaming-llm", "StreamingLLM (Xiao et al., 2023), section 3.2",
     "Keeps the first and the newest tokens, at their positions in the cache.",
     "A prompt is computed with full attention.", StreamingLlm::make},
    {"h2o", "H2O (Zhang et al., 2023), algorithm 1",
     "Keeps the tokens with the largest sum of attention, and the newest ones.",
     "A prompt is computed with full attention and evicted at its end, as the authors' code does. "
     "Query heads that share keys add their attention.",
     H2o::make},
    {"tova", "TOVA (Oren et al., 2024), section 3",
     "Keeps the tokens that the newest query attends to.", "", Tova::make},
    {"scissorhands", "Scissorhands (Liu et al., 2023), algorithms 1 and 2",
     "Drops the tokens that were unimportant to most queries of a window.",
     "A prompt is computed with full attention and evicted at its end. Query heads that share keys "
     "count by their mean attention.",
     Scissorhands::make},
    {"keyformer", "Keyformer (Adnan et al., 2024), algorithm 1",
     "Keeps the tokens with the largest sum of a softmax with noise and a rising temperature.",
     "The noise is a hash of the layer, the head, the query and the token, so that runs repeat. "
     "Query heads that share keys add their sums.",
     Keyformer::make},
    {"a2sf", "A2SF (Jo and Shin, 2024), section 3",
     "Keeps the tokens with the largest sum of attention, in which older attention fades.",
     "The newest 16 tokens stay and the factor is 0.95, as in the authors' code. Query heads that "
     "share keys add their attention.",
     A2sf::make},
    {"lazy-eviction", "LazyEviction (Zhang et al., 2025)",
     "Evicts the tokens that were not attended to for long, by their own longest pause.",
     "The score is the time since the last attention over the longest pause, without the paper's "
     "second term; the threshold of attention is ours.",
     LazyEviction::make},
    {"snapkv", "SnapKV (Li et al., 2024), algorithm 1",
     "Keeps the tokens that the prompt's last queries attend to.", "", SnapKv::make},
    {"pyramidkv", "PyramidKV (Cai et al., 2024), section 4.2",
     "SnapKV, with budgets that fall from layer to layer.", "", PyramidKv::make},
    {"zigzagkv", "ZigZagKV (Zhong et al., 2024), section 4",
     "SnapKV, with budgets by how far the attention of a layer and head is spread.",
     "The spread is measured over the window's queries. The bound is half of the budget, and each "
     "head has it, not only each layer: a head that lost its first token would lose its attention.",
     ZigZagKv::make},
    {"ada-kv", "Ada-KV (Feng et al., 2024), algorithm 1",
     "SnapKV, with one budget for the heads of a layer.", "", AdaKv::make},
    {"expected-attention", "Expected Attention (Devoto et al., 2025), section 3",
     "Keeps the tokens that normally distributed future queries attend to.", "",
     ExpectedAttention::make},
    {"windowkv", "WindowKV (Zuo et al., 2025), section 3",
     "Keeps windows of consecutive tokens, the same ones in a group of layers.",
     "Tasks are not classified: windows are chosen for tasks that find information, unless "
     "gathers=1. "
     "The last group may have fewer layers.",
     WindowKv::make},
    {"kvcrush", "KVCrush (Jha et al., 2025), section 3",
     "SnapKV, with tokens that stand for the dropped ones by the heads that would keep them.",
     "The anchor has the bits of most tokens; the first token of each part of the order stands for "
     "it.",
     KvCrush::make},
    {"compresskv", "CompressKV (Lin et al., 2025), section 3",
     "Heads that retrieve by meaning choose tokens, and layers share a budget by their errors.",
     "Heads are found with repeated random tokens in place of needles in text. A layer's error is "
     "measured on the prompt itself, before the output projection.",
     CompressKv::make},
    {"fastgen", "FastGen (Ge et al., 2024), algorithms 1 and 2",
     "Chooses for each head the cheapest of five policies that keeps its attention.",
     "Query heads that share keys share a policy, by their mean attention.", FastGen::make},
    {"razor-attention", "RazorAttention (Tang et al., 2024), algorithm 1",
     "Heads that retrieve keep all tokens; the others keep a window and a mean of the rest.",
     "Heads are measured with 100 random tokens, repeated four times, instead of 2,500. The window "
     "of a fifth of the prompt has no minimum. Keys are kept by all query heads or none.",
     RazorAttention::make},
    {"duo-attention", "DuoAttention (Xiao et al., 2024), section 2",
     "Heads that retrieve keep all tokens; the others keep the first and the newest ones.",
     "Gates are not trained: heads retrieve if their mean query reaches far back, as in kvpress's "
     "scores without training, measured on the prompt itself.",
     DuoAttention::make},

    // Merging.
    {"ems", "EMS (Li et al., 2024), section 3",
     "Evicts the worst tokens, and merges the next ones into kept tokens with similar keys.",
     "The scale of both scores, the number of merged tokens, the threshold and the merge's weights "
     "are ours.",
     Ems::make},
    {"kvmerger", "KVMerger (Wang et al., 2024), section 4",
     "Merges consecutive tokens with similar keys by a Gaussian kernel.",
     "The threshold of similarity is the one that meets the budget. The shares of tokens that are "
     "never merged are ours. Generated tokens are not merged.",
     KvMerger::make},

    // Quantisation.
    {"kivi", "KIVI (Liu et al., 2024), algorithm 1",
     "Holds keys by channel and values by token in 2 bits, the newest tokens in f16.", "",
     Kivi::make},
    {"gear", "GEAR (Kang et al., 2024), section 3, over KIVI's groups",
     "Adds a matrix of low rank and the outliers to keys and values in 2 bits.",
     "The low rank is the best one; the paper approximates it by power iterations.", Gear::make},
    {"kvquant", "KVQuant (Hooper et al., 2024), section 3",
     "Holds keys before RoPE and values at unequal levels of 3 bits, and outliers apart.",
     "Ranges and levels are calibrated on the prompt itself. The weights of k-means are squares of "
     "queries (keys) and of attention (values), in the place of Fisher information.",
     KvQuant::make},
    {"mikv", "MiKV (Yang et al., 2024), section 3",
     "Holds in 2 bits what H2O evicts, with balanced channels of keys.",
     "Query heads that share keys add their attention, and balance their largest query.",
     Mikv::make},
    {"zipcache", "ZipCache (He et al., 2024), section 4, and its public code",
     "Holds salient tokens in 4 bits and the others in 2.",
     "Half of the probes are spread evenly instead of at random, so that runs repeat. Values have "
     "one range for each token and head, because saliency is of a head.",
     ZipCache::make},
    {"kvarn", "KVarN (Muller et al., 2026), and its public code",
     "Evens the variances of tokens and channels of rotated tiles, then holds 2 bits.", "",
     Kvarn::make},
    {"oscar", "OSCAR (Zhou et al., 2026), and its public code",
     "Rotates by covariances that attention sees, clips, and holds 2 bits.",
     "The rotations are calibrated on the prompt itself, not on other texts.", Oscar::make},
    {"rotatekv", "RotateKV (Su et al., 2025), section 3, and its public code",
     "Rotates heads together before RoPE, orders channels, and holds 2 bits.",
     "Channels are ordered by the prompt itself, and massive activations are sought in the layer's "
     "normalised input. Fewer heads are rotated together where 4 do not divide the heads.",
     RotateKv::make},
    {"xquant", "XQuant (Tomar et al., 2025), section 3",
     "Holds the layers' inputs or their latent products in 4 bits and computes keys and values.",
     "A model with as many KV heads as query heads holds the inputs of generated tokens in f16.",
     Xquant::make},

    // Layers.
    {"minicache", "MiniCache (Liu et al., 2024), section 4",
     "Gives pairs of deep layers one direction for each token.",
     "A pair is retained where its angle lies in the last part of the range. Generated tokens are "
     "retained by the prompt's bound.",
     MiniCache::make},
    {"pyramid-infer", "PyramidInfer (Yang et al., 2024), section 3, and its public code",
     "Drops tokens layer by layer while it computes the prompt.",
     "Dropped tokens are masked in deeper layers and computed in vain.", PyramidInfer::make},
    {"xkv", "xKV (Chang et al., 2025), section 3",
     "Holds four layers' keys and values in one space of low rank.",
     "Large spaces are found by subspace iterations.", Xkv::make},

    // Selection: everything is kept, and a query reads a part of it.
    {"quest", "Quest (Tang et al., 2024), section 3.3 and algorithm 1",
     "Reads the pages whose extreme keys promise the most attention.",
     "Sizes are shares of the prompt. The newest token's page is always read, as in the kernel.",
     Quest::make},
    {"retrieval-attention", "RetrievalAttention (Liu et al., 2024), algorithm 1",
     "Reads the first, the newest and the nearest tokens to a query.",
     "The search is exact, where the paper has an approximate index. Sizes are shares of the "
     "prompt, since the paper's 640 static tokens are half of most prompts here.",
     RetrievalAttention::make},
    {"squeezed-attention", "SqueezedAttention (Hooper et al., 2024), section 3",
     "Reads the clusters of keys whose centroids promise attention above a threshold.",
     "Clusters begin with evenly spaced tokens. The lookup has one level.",
     SqueezedAttention::make},
    {"clusterkv", "ClusterKV (Liu et al., 2024), sections III and IV",
     "Reads the clusters of keys that are nearest to a query.",
     "Clusters begin with evenly spaced tokens. Sizes are shares of the prompt.", ClusterKv::make},
    {"infllm", "InfLLM (Xiao et al., 2024), section 3",
     "Reads the first tokens, a window, and the most relevant blocks of older tokens.",
     "Sizes are the paper's shares of what it reads, since its window of 4,096 tokens is longer "
     "than most prompts here. A block has 16 tokens. Representatives get the most attention in "
     "their "
     "window, as in the authors' code; the paper has products before the softmax.",
     InfLlm::make},

    {"infinigen", "InfiniGen (Lee et al., 2024), section 4",
     "Reads the tokens that a rehearsal in the layer before finds.",
     "The rotation is the prompt's and not that of a sample text. Each query head has its own.",
     InfiniGen::make},

    // Prompts: computed in another way, or judged by what comes after them.
    {"prompt-cache", "Prompt Cache (Gim et al., 2024), section 3",
     "Computes parts of a prompt by themselves, so that other prompts may reuse them.",
     "Modules are equal parts of the prompt instead of those of a schema.", PromptCache::make},
    {"kvzip", "KVzip (Kim et al., 2025), section 3",
     "Keeps the tokens that the model needs to repeat the prompt.",
     "A prompt that leaves no room for a repetition in the model's context is kept whole.",
     KvZip::make},
    {"epicache", "EpiCache (Kim et al., 2025), section 3",
     "Keeps a cache for each topic of a prompt, and reads that of the question's topic.",
     "Windows have 64 tokens instead of four utterances. Embeddings are means of the first layer's "
     "inputs, and the question's is that of its tokens so far. Layers have equal budgets.",
     EpiCache::make},
    {"speckv", "SpecKV (Galim et al., 2025), algorithm 1",
     "Keeps the tokens that a small model's answer attends to.",
     "The prompt is computed with full attention: the paper's is sparse beyond 4,096 tokens.",
     SpecKv::make, true},
    {"specpc", "SpecPC (Galim et al., 2025), algorithm 2",
     "Drops the tokens of a prompt that a small model does not attend to.", "", SpecPc::make, true},

    // What the served core has, in its papers' settings.
    {"kv-compress", "KV-Compress (Rehg, 2024), section 4, KVC-w8-L2",
     "Evicts blocks of tokens by squared attention, at different rates per layer and head.",
     "Generated tokens are not compressed, as in the paper's comparisons.", KvCompress::make},
    {"leankv", "LeanKV (Zhang et al., 2024), section 4 and algorithm 1",
     "Keeps tokens in k8v4 or k4v2, or drops them, by thresholds on significance.",
     "Algorithm 1 compares cumulative significance, as the prompt phase does: with that of single "
     "tokens it would drop nearly everything. The significance of a head group is its mean.",
     LeanKv::make},
    {"mustafar-50", "MUSTAFAR (Joo et al., 2025), sections 2 and 3",
     "Prunes half of each token's key and value by magnitude.", "", Mustafar::make<50>},
    {"mustafar-70", "MUSTAFAR (Joo et al., 2025), sections 2 and 3",
     "Prunes 70 % of each token's key and value by magnitude.", "", Mustafar::make<70>},
});

}  // namespace

std::span<const MethodLine> methods() {
  return kMethods;
}

}  // namespace tessera::lab

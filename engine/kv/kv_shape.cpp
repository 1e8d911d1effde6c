#include "engine/kv/kv_shape.h"

#include <algorithm>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "engine/kv/kv_presets.h"
#include "engine/kv/kv_windows.h"
#include "engine/kv/prefix_cache.h"
#include "kernels/backend.h"
#include "kernels/kv/kv_page_size.h"
#include "models/config/model_config.h"

namespace tessera {
namespace {

// Tokens of a page, at most, where sections are compressed. Rows keep whole pages of a section, so
// smaller pages divide a budget more finely among heads.
constexpr int32_t kSectionPageTokens = 32;

std::vector<KvPolicy> policies_of(const KvCacheOptions& options) {
  std::vector<KvPolicy> policies{options.preset.policy};
  for (const KvPreset& preset : options.also) {
    policies.push_back(preset.policy);
  }
  if (options.section_step.has_value()) {
    policies.push_back(*options.section_step);
  }
  return policies;
}

int32_t window_of(const KvCacheOptions& options) {
  return options.windows.empty() ? 0 : *std::ranges::max_element(options.windows);
}

// Prefix blocks exist in the formats in which sequences store, and in those of the ladder.
void add_prefix_blocks(const KvCacheOptions& options, KvArenaShape& shape,
                       std::vector<KvFormatUse>& uses) {
  const auto add = [&](KvFormat format) {
    const auto place = std::find(shape.formats.begin(), shape.formats.end(), format);
    const auto tier = static_cast<uint8_t>(place - shape.formats.begin());
    if (!uses[tier].in_prefix_blocks) {
      uses[tier].in_prefix_blocks = true;
      shape.prefix_block_tiers.push_back(tier);
    }
  };
  for (const KvPolicy& policy : policies_of(options)) {
    add(policy.high);
  }
  for (const KvFormat format : options.ladder) {
    add(format);
  }
}

// Sections are prefix blocks too, so all presets that replay have sections of one length, chosen by
// one scorer.
absl::Status add_sections(const KvCacheOptions& options, KvArenaShape& shape) {
  int32_t section = 0;
  for (const KvPolicy& policy : policies_of(options)) {
    if (!policy.replays()) {
      continue;
    }
    const uint8_t tier = tiers_of(policy, shape).high;
    const int32_t capacity = shape.layout(tier).capacity;
    const int32_t unit = std::max(capacity, shape.prefix_block_tokens);
    if (policy.section % capacity != 0 || (section != 0 && policy.section != section) ||
        (section == 0 && policy.section % unit != 0)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "KV policy: section is ", policy.section, " tokens; with these presets it must be ",
          section != 0 ? "" : "a multiple of ", section != 0 ? section : unit));
    }
    const int32_t pages = section_pages(policy, capacity);
    if (pages == 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "KV policy: keep_share ", policy.budget().amount.share(), " of a section of ",
          policy.section, " tokens is less than a page of ", capacity, " tokens for each KV head"));
    }
    const KvSectionBlock block{tier, pages, policy.scorer};
    if (!shape.section_blocks.empty() && shape.section_blocks[0].scorer != policy.scorer) {
      return absl::InvalidArgumentError(absl::StrCat(
          "KV policy: scorer is ", std::string(name_of(policy.scorer)), " beside a preset with ",
          std::string(name_of(shape.section_blocks[0].scorer)),
          "; presets that replay share their sections, so they must have one scorer"));
    }
    if (std::find(shape.section_blocks.begin(), shape.section_blocks.end(), block) ==
        shape.section_blocks.end()) {
      shape.section_blocks.push_back(block);
    }
    section = policy.section;
    shape.prefix_block_tokens = options.prefix_cache ? section : 0;
  }
  return absl::OkStatus();
}

// Groups are encoded from a residual buffer. One of 8 bits serves formats of codes alone.
absl::Status check_residuals(const KvArenaShape& shape) {
  for (const KvFormat format : shape.formats) {
    if (shape.coded_residuals && !format.is_codes()) {
      return absl::InvalidArgumentError(
          absl::StrCat("KV cache: residual buffers of 8 bits serve formats of codes only, such as "
                       "k8v4, and a preset or the ladder has ",
                       name_of(format)));
    }
  }
  return absl::OkStatus();
}

// Adds room for sketches of a page's tokens, in the format with the most of them, if any policy
// selects tiles.
void add_sketches(const KvCacheOptions& options, KvArenaShape& shape) {
  const std::vector<KvPolicy> policies = policies_of(options);
  if (std::none_of(policies.begin(), policies.end(),
                   [](const KvPolicy& policy) { return policy.selects(); })) {
    return;
  }
  int32_t most = 0;
  for (size_t tier = 0; tier < shape.formats.size(); ++tier) {
    most = std::max(most, shape.layout(tier).capacity);
  }
  shape.sketch_bytes = key_sketch_bytes(shape.head_dim, most);
  shape.page_bytes += shape.sketch_bytes;
}

// The shape without its number of pages.
absl::StatusOr<KvArenaShape> shape_without_pages(const KvCacheOptions& options) {
  KvArenaShape shape{.formats = {},
                     .head_dim = options.head_dim,
                     .slots = options.slots,
                     .layers = options.layers,
                     .kv_heads = options.kv_heads,
                     .context = options.context,
                     .coded_residuals = options.coded_residuals,
                     .windows = options.windows};
  std::vector<KvFormatUse> uses;
  bool all_replay = true;
  int32_t section = 0;  // the longest one
  for (const KvPolicy& policy : policies_of(options)) {
    for (const KvFormat format : {policy.high, policy.low}) {
      const auto place = static_cast<size_t>(
          std::find(shape.formats.begin(), shape.formats.end(), format) - shape.formats.begin());
      if (place == shape.formats.size()) {
        shape.formats.push_back(format);
        uses.push_back({format, true});
      }
      uses[place].whole_groups = uses[place].whole_groups && !policy.is_private();
      if (policy.replays()) {
        uses[place].max_page_tokens = kSectionPageTokens;
      }
    }
    all_replay = all_replay && !policy.is_private();
    section = policy.replays() ? std::max(section, policy.section) : section;
    shape.token_scores = shape.token_scores || policy.needs_token_scores();
    shape.query_sums = shape.query_sums || policy.prunes_keys();
  }
  shape.section_scores = all_replay ? section : 0;
  for (const KvFormat format : options.ladder) {
    if (std::find(shape.formats.begin(), shape.formats.end(), format) == shape.formats.end()) {
      shape.formats.push_back(format);
      uses.push_back({format, true});
    }
  }
  if (shape.formats.size() > kMaxKvLayouts) {
    return absl::InvalidArgumentError(absl::StrCat("the KV presets have ", shape.formats.size(),
                                                   " formats, ", kMaxKvLayouts,
                                                   " are the most that one cache serves"));
  }
  TESSERA_RETURN_IF_ERROR(check_residuals(shape));
  if (options.prefix_cache) {
    add_prefix_blocks(options, shape, uses);
  }
  shape.page_bytes = best_page_bytes(uses, options.head_dim);
  add_sketches(options, shape);
  if (options.prefix_cache) {
    std::vector<KvPageLayout> layouts;
    for (const uint8_t tier : shape.prefix_block_tiers) {
      layouts.push_back(shape.layout(tier));
    }
    shape.prefix_block_tokens = prefix_block_tokens(layouts);
  }
  TESSERA_RETURN_IF_ERROR(add_sections(options, shape));
  // Blocks of the ladder's formats are demoted as a whole; kv_demote knows no short ones. In layers
  // with a window, a short block would need the pages that a window at its end sees.
  if (shape.prefix_block_tokens > kKvGroup && !shape.section_blocks.empty() &&
      options.ladder.empty() && shape.windowed_rows() == 0) {
    shape.short_block_tokens = kKvGroup;
  }
  if (options.prefix_cache) {
    shape.prefix_block_host_bytes = PrefixCache::block_bytes(shape.prefix_block_tokens);
  }
  return shape;
}

absl::StatusOr<int32_t> count_pages(const KvCacheOptions& options, const KvArenaShape& shape) {
  const int64_t context_pages = tessera::context_pages(shape);
  const int64_t fixed = shape.slots * shape.slot_bytes();
  const int64_t pages = options.bytes == 0
                            ? shape.slots * context_pages
                            : std::max<int64_t>(0, options.bytes - fixed) / shape.cost_of_page();
  if (pages < context_pages) {
    return absl::InvalidArgumentError(absl::StrCat(
        "KV memory of ", options.bytes, " bytes holds ", pages, " pages of ", shape.page_bytes,
        " bytes beside the residual buffers and tables of ", shape.slots, " sequences (", fixed,
        " bytes); one sequence of ", shape.context, " tokens needs ", context_pages, " pages, so ",
        fixed + context_pages * shape.cost_of_page(),
        " bytes in all: give more memory, a shorter context or fewer sequences"));
  }
  if (pages > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(absl::StrCat("KV memory of ", pages * shape.cost_of_page(),
                                                   " bytes is ", pages,
                                                   " pages, more than page ids can name"));
  }
  return static_cast<int32_t>(pages);
}

// A policy with which sequences may read compressed sections among their blocks.
bool reads_sections(const KvPolicy& policy, const KvPolicy& step) {
  return !policy.is_lossy() && !policy.one_by_one() && policy.high == step.high;
}

absl::Status check_section_step(const KvCacheOptions& options) {
  const KvPolicy& step = *options.section_step;
  if (!options.prefix_cache) {
    return absl::InvalidArgumentError("a KV ladder has no use without a prefix cache");
  }
  if (!step.replays()) {
    return absl::InvalidArgumentError(
        "KV ladder: a policy in it must have a scorer that replays, as replay-50 does, because "
        "the tokens that it keeps of a block must not depend on a request");
  }
  if (window_of(options) > 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "KV ladder: blocks are not compressed in the background on a model of sliding-window "
        "attention (window ",
        window_of(options), "); --kv replay-50 serves it"));
  }
  if (!options.ladder.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("KV ladder: ", name_of(options.ladder.front()),
                     " and a policy that drops tokens do not go together: it compresses blocks as "
                     "they were computed"));
  }
  std::vector<KvPolicy> policies = policies_of(options);
  policies.pop_back();
  if (std::none_of(policies.begin(), policies.end(),
                   [&](const KvPolicy& policy) { return reads_sections(policy, step); })) {
    return absl::InvalidArgumentError(absl::StrCat(
        "KV ladder: its policy stores in ", name_of(step.high),
        ", and no preset of --kv and --kv-also is that format alone, so no block would be "
        "compressed"));
  }
  return absl::OkStatus();
}

absl::Status check_ladder(const KvCacheOptions& options) {
  if (options.section_step.has_value()) {
    return check_section_step(options);
  }
  if (options.ladder.empty()) {
    return absl::OkStatus();
  }
  if (!options.prefix_cache) {
    return absl::InvalidArgumentError("a KV ladder has no use without a prefix cache");
  }
  if (!options.windows.empty() && std::ranges::min(options.windows) > 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a KV ladder demotes layers without a window only, and all layers of this model have "
        "sliding-window attention (window ",
        window_of(options), ")"));
  }
  for (const KvFormat format : options.ladder) {
    if (!is_supported(format) || (format.is_floats() && format != kKvFp8)) {
      return absl::InvalidArgumentError(
          absl::StrCat("KV ladder: nothing is demoted to ", name_of(format),
                       ", only to fp8, formats of codes and sparse ones"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<int32_t> windows_of(const ModelConfig& model) {
  std::vector<int32_t> windows;
  for (int32_t layer = 0; model.sliding_window > 0 && layer < model.layers; ++layer) {
    windows.push_back(model.window_of(layer));
  }
  return windows;
}

int64_t context_pages(const KvArenaShape& shape) {
  // Lossy policies need two more pages for each row: planning rounds up, because rows differ in
  // length, and compression may take one.
  const int64_t rows = shape.whole_rows() * (shape.row_pages() + (shape.token_scores ? 2 : 0));
  const KvWindows windows = KvWindows::of(shape);
  if (windows.rows == 0) {
    return rows;
  }
  int64_t most = 0;
  for (size_t tier = 0; tier < shape.formats.size(); ++tier) {
    const int32_t capacity = shape.layout(tier).capacity;
    // The prefix cache keeps a block whole until queries have passed all of it.
    most = std::max(most, windows.most_pages(windows.run(), capacity) +
                              div_ceil(shape.prefix_block_tokens, capacity));
  }
  return rows + windows.rows * std::min<int64_t>(shape.row_pages(), most);
}

namespace {

// Policies apply to the layers without a window.
absl::Status check_beside_windows(const KvPolicy& policy, const KvModel& model) {
  if (model.sliding_window == 0) {
    return absl::OkStatus();
  }
  std::string what;
  if (policy.is_lossy()) {
    what = absl::StrCat("the rule ", std::string(name_of(policy.rule())), " with the scorer ",
                        std::string(name_of(policy.scorer)));
  } else if (policy.newest_dense() > 0) {
    what = absl::StrCat("newest ", policy.all().newest);
  } else if (policy.selects()) {
    what = absl::StrCat("read_share ", policy.all().read_share);
  } else {
    return absl::OkStatus();
  }
  if (model.whole_layers && (policy.replays() || !policy.is_lossy())) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "KV policy: ", what, " does not go with a model of sliding-window attention (window ",
      model.sliding_window,
      model.whole_layers
          ? "); policies that replay do, such as replay-50"
          : "): it would apply to layers without a window, and there are none, or this backend "
            "serves none beside windows"));
}

}  // namespace

absl::Status check_policy(const KvPolicy& policy, const KvModel& model) {
  if (const std::string error = policy_error(policy); !error.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("KV policy: ", error));
  }
  TESSERA_RETURN_IF_ERROR(check_beside_windows(policy, model));
  if (policy.selects() && !has_sketches(model.head_dim)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "KV policy: read_share ", policy.all().read_share,
        " needs heads of at least 32 channels, a multiple of 8; the model has ", model.head_dim));
  }
  if (policy.is_lossy() && model.group > kMaxScoredHeads) {
    return absl::InvalidArgumentError(absl::StrCat(
        "KV policy: the rule ", std::string(name_of(policy.rule())), " serves at most ",
        kMaxScoredHeads, " query heads of one KV head, the model has ", model.group));
  }
  if (policy.reads_profile() && !model.profiled) {
    return absl::InvalidArgumentError(
        absl::StrCat("KV policy: the allocator ", std::string(name_of(policy.budget().allocator)),
                     " needs a profile of the model's heads beside the checkpoint, which "
                     "tessera-eval --profile writes"));
  }
  if (model.ranks > 1 && policy.allocates(KvAllocator::pages)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "KV policy: the allocator pages compares the tokens of all KV heads, and these stand on ",
        model.ranks,
        " ranks (tensor-parallel); uniform and retrieval give each head its budget by itself"));
  }
  const auto tile_bytes = [&](KvFormat format) {
    return KvPageLayout::make(format, model.head_dim, KvPageLayout::kKeyTile).tile_bytes();
  };
  if (policy.has_low_tier() && tile_bytes(policy.low) >= tile_bytes(policy.high)) {
    return absl::InvalidArgumentError(
        absl::StrCat("KV policy: low (", name_of(policy.low), ") takes no less memory than high (",
                     name_of(policy.high), ") at head_dim ", model.head_dim));
  }
  return absl::OkStatus();
}

KvModel model_of(const KvCacheOptions& options) {
  return {options.head_dim,
          options.query_heads / options.kv_heads,
          window_of(options),
          options.ranks == nullptr ? 1 : options.ranks->ranks(),
          !options.head_profiles.empty(),
          options.windows.empty() ||
              (options.policies_beside_windows && std::ranges::min(options.windows) == 0)};
}

absl::Status check_options(const KvCacheOptions& options) {
  const KvModel model = model_of(options);
  for (const KvPolicy& policy : policies_of(options)) {
    TESSERA_RETURN_IF_ERROR(check_policy(policy, model));
  }
  return check_ladder(options);
}

absl::StatusOr<KvArenaShape> shape_of(const KvCacheOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(KvArenaShape shape, shape_without_pages(options));
  shape.head_profiles = options.head_profiles;
  shape.rank = options.ranks == nullptr ? 0 : options.ranks->rank();
  TESSERA_ASSIGN_OR_RETURN(shape.pages, count_pages(options, shape));
  return shape;
}

absl::Status check_format(KvFormat format, std::string_view field, const KvArenaShape& shape) {
  if (std::find(shape.formats.begin(), shape.formats.end(), format) != shape.formats.end()) {
    return absl::OkStatus();
  }
  std::string served;
  for (const KvFormat known : shape.formats) {
    absl::StrAppend(&served, served.empty() ? "" : ", ", name_of(known));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      std::string(field), ": the format ", name_of(format), " is not served here, but ", served));
}

absl::Status check_served(const KvPolicy& policy, const KvModel& model, const KvArenaShape& shape) {
  TESSERA_RETURN_IF_ERROR(check_policy(policy, model));
  TESSERA_RETURN_IF_ERROR(check_format(policy.high, "KV policy", shape));
  TESSERA_RETURN_IF_ERROR(check_format(policy.low, "KV policy", shape));
  const bool scores_all_tokens = shape.token_scores && shape.section_scores == 0;
  if (policy.is_private() && !scores_all_tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("KV policy: the rule ", std::string(name_of(policy.rule())),
                     " with the scorer ", std::string(name_of(policy.scorer)),
                     " needs scores beside the pages, which this server does not keep: no preset "
                     "of that kind was named at its start"));
  }
  if (policy.replays()) {
    const uint8_t tier = tiers_of(policy, shape).high;
    const KvSectionBlock block{tier, section_pages(policy, shape.layout(tier).capacity),
                               policy.scorer};
    const bool same_section =
        shape.prefix_block_tokens == 0 || shape.prefix_block_tokens == policy.section;
    const bool scored = shape.section_scores == 0 || policy.section <= shape.section_scores;
    if (!same_section || !scored || policy.section % shape.layout(tier).capacity != 0 ||
        std::find(shape.section_blocks.begin(), shape.section_blocks.end(), block) ==
            shape.section_blocks.end()) {
      return absl::InvalidArgumentError(
          "KV policy: scorer, format, section and keep_share of a policy that replays must be "
          "those of a preset that was named at this server's start, because compressed sections "
          "are shared");
    }
  }
  if (policy.selects() && shape.sketch_bytes == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("KV policy: read_share ", policy.all().read_share,
                     " needs sketches of keys in the pages, which this server does not keep: no "
                     "preset with read_share below 1 was named at its start"));
  }
  if (policy.key_score == KvKeyScore::output_aware && !shape.query_sums) {
    return absl::InvalidArgumentError(
        "KV policy: key_score output_aware needs sums of queries beside the pages, which this "
        "server does not keep: no preset that prunes keys behind a dense tier was named at its "
        "start");
  }
  return absl::OkStatus();
}

int32_t section_pages(const KvPolicy& policy, int32_t page_tokens) {
  constexpr double kRounding = 1e-6;  // of the share, a float
  return policy.replays() ? static_cast<int32_t>(double{policy.budget().amount.share()} *
                                                     policy.section / page_tokens +
                                                 kRounding)
                          : 0;
}

KvTiers tiers_of(const KvPolicy& policy, const KvArenaShape& shape) {
  const auto place = [&](KvFormat format) {
    const auto found = std::find(shape.formats.begin(), shape.formats.end(), format);
    TESSERA_CHECK(found != shape.formats.end(), "a policy that was not checked");
    return static_cast<uint8_t>(found - shape.formats.begin());
  };
  return {place(policy.high), place(policy.low)};
}

}  // namespace tessera

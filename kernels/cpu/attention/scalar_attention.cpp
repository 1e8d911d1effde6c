#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/check.h"
#include "kernels/cpu/attention/limits.h"
#include "kernels/cpu/attention/ops.h"
#include "kernels/cpu/thread_pool.h"

namespace tessera {

namespace scalar {
namespace {

float element(const std::byte* data, int64_t index, int32_t bits) {
  return bits == 16 ? to_f32(reinterpret_cast<const f16*>(data)[index])
                    : reinterpret_cast<const float*>(data)[index];
}

// One query row of one head, walking the row of pages of its KV head.
struct QueryRow {
  const KvPagesView& pages;
  const int32_t* page_ids;
  const float* query;  // [head_dim]
  float scale;
  float* out;  // [head_dim]

  // The online softmax: `out` is the sum of exp(score - maximum) * value, `sum` that of the
  // weights.
  float maximum = -std::numeric_limits<float>::max();
  float sum = 0;

  const std::byte* page_of(int32_t token) const {
    const int32_t page_id = page_ids[token / pages.layout.capacity];
    TESSERA_CHECK(page_id >= 0, "attention: the row has no page for a token");
    return pages.page(page_id);
  }

  float score(int32_t token) const {
    const KvPageLayout& layout = pages.layout;
    const std::byte* page = page_of(token);
    float dot = 0;
    for (int32_t channel = 0; channel < layout.head_dim; ++channel) {
      const int64_t offset = layout.key_offset(token % layout.capacity, channel);
      dot += query[channel] * element(page + offset, 0, layout.format.key_bits);
    }
    return dot * scale;
  }

  void add_value(int32_t token, float weight) {
    const KvPageLayout& layout = pages.layout;
    const std::byte* values = page_of(token) + layout.value_offset(token % layout.capacity);
    for (int32_t channel = 0; channel < layout.head_dim; ++channel) {
      out[channel] += weight * element(values, channel, layout.format.value_bits);
    }
  }

  // Tokens [begin, end) of one tile.
  void add_tile(int32_t begin, int32_t end) {
    float scores[kAttentionTile];
    float highest = maximum;
    for (int32_t token = begin; token < end; ++token) {
      scores[token - begin] = score(token);
      highest = std::max(highest, scores[token - begin]);
    }
    const float correction = std::exp(maximum - highest);
    maximum = highest;
    sum *= correction;
    for (int32_t channel = 0; channel < pages.layout.head_dim; ++channel) {
      out[channel] *= correction;
    }
    for (int32_t token = begin; token < end; ++token) {
      const float weight = std::exp(scores[token - begin] - maximum);
      sum += weight;
      add_value(token, weight);
    }
  }

  // Tokens [begin, end), in tiles whose borders are multiples of kAttentionTile.
  void attend(int32_t begin, int32_t end) {
    std::fill_n(out, pages.layout.head_dim, 0.0f);
    for (int32_t token = begin; token < end;) {
      const int32_t tile_end = std::min(end, (token / kAttentionTile + 1) * kAttentionTile);
      add_tile(token, tile_end);
      token = tile_end;
    }
    for (int32_t channel = 0; channel < pages.layout.head_dim; ++channel) {
      out[channel] /= sum;
    }
  }
};

}  // namespace

int64_t attention_scratch_bytes(const StepLimits&, int32_t, int32_t) {
  return 0;
}

void attention(const AttentionArgs& args, Stream stream) {
  check_layout(args.pages.layout);
  TESSERA_CHECK(args.query_heads % args.pages.kv_heads == 0, "attention: query heads");
  const int32_t head_dim = args.pages.layout.head_dim;
  const int32_t group = args.query_heads / args.pages.kv_heads;
  for (const SequenceSpan& span : args.sequences) {
    const int64_t items = int64_t{span.count} * args.query_heads;
    ThreadPool::of(stream).parallel_for(items, 1, [&](int64_t item, int64_t, int) {
      const int32_t row = static_cast<int32_t>(item / args.query_heads);
      const int32_t head = static_cast<int32_t>(item % args.query_heads);
      const int64_t column = int64_t{head} * head_dim;
      const int32_t position = span.context + row;
      const int32_t first = args.window > 0 ? std::max(0, position + 1 - args.window) : 0;
      QueryRow{.pages = args.pages,
               .page_ids = args.pages.row(span.slot, args.layer, head / group),
               .query = args.queries.row(span.first_row + row).data() + column,
               .scale = args.scale,
               .out = args.out.row(span.first_row + row).data() + column}
          .attend(first, position + 1);
    });
  }
}

}  // namespace scalar
}  // namespace tessera

#include <cmath>

#include "kernels/cpu/compress/compress_ops.h"
#include "kernels/cpu/compress/query_sums.h"
#include "kernels/cpu/compress/row_scores.h"
#include "kernels/cpu/pages/page_codec.h"
#include "kernels/cpu/simd/limits.h"

namespace tessera::scalar {
namespace {

// The query heads of one KV head at one position.
struct Query {
  const KvScoreArgs& args;
  const RowScores& scores;
  int64_t row;  // row of the batch
  int32_t position;
  int32_t kv_head;

  int32_t heads() const { return args.query_heads / args.pages.kv_heads; }

  // Returns: attention of one of these heads to the token with `key`.
  float received(int32_t head, const float* key) const {
    const int32_t head_dim = args.pages.head_dim;
    const int64_t of_all = int64_t{kv_head} * heads() + head;
    const float* query = args.queries.row(row).data() + of_all * head_dim;
    float dot = 0;
    for (int32_t channel = 0; channel < head_dim; ++channel) {
      dot += query[channel] * key[channel];
    }
    return std::exp(dot * args.scale - scores.log_divisor(position, head));
  }

  // Returns: the contribution of all these heads to the score of the token with `key`.
  template <class Scorer>
  float contribution(const float* key) const {
    ScorerFloat sum{0};
    for (int32_t head = 0; head < heads(); ++head) {
      sum = Scorer::add_head(sum, ScorerFloat{received(head, key)}, ScorerFloat{1});
    }
    return Scorer::share(heads()) * sum.value;
  }
};

// Calls visit(token score, key) for each token that the query at `position` sees.
template <class Visit>
void each_token(const Query& query, const RowScores& scores, const RowTokens& tokens,
                int32_t position, Visit&& visit) {
  const KvPagesView& pages = query.args.pages;
  const auto decode = [&](KvTokenScore& token_score, const KvPageLayout& layout,
                          const std::byte* page, int32_t token) {
    float key[kMaxHeadDim];
    float value[kMaxHeadDim];
    decode_token(layout, page, token, key, value);
    visit(token_score, key);
  };
  const int32_t first = scores.by_section() ? scores.section_first() : 0;
  const int32_t end = scores.by_section() ? first + scores.scoring().section : tokens.high;
  for (int32_t i = first; i < end; ++i) {
    const int32_t capacity = tokens.high_layout->capacity;
    decode(scores.high_token_score(i), *tokens.high_layout,
           pages.page(tokens.page_ids[i / capacity]), i % capacity);
  }
  if (scores.by_section()) {
    return;
  }
  for (int32_t j = 0; j < tokens.low; ++j) {
    const int32_t capacity = tokens.low_layout->capacity;
    decode(scores.low_token_score(j), *tokens.low_layout,
           pages.page(tokens.page_ids[pages.row_pages - 1 - j / capacity]), j % capacity);
  }
  const int32_t group = position / kKvGroup * kKvGroup;
  for (int32_t token = group; token <= position; ++token) {
    decode(scores.token_score_of(token), pages.residual_layout, tokens.dense, token - group);
  }
}

template <class Scorer>
void score_query(const Query& query, const RowScores& scores, const RowTokens& tokens,
                 int32_t position) {
  each_token(query, scores, tokens, position, [&](KvTokenScore& token_score, const float* key) {
    token_score.score = score_after<Scorer>(token_score.score, query.contribution<Scorer>(key));
  });
}

}  // namespace

void kv_score(const KvScoreArgs& args, Stream stream) {
  add_query_sums(args, stream);
  const AttentionArgs attention = attention_args(args);
  each_scored_row(args, 1, stream, [&](size_t sequence, int32_t kv_head, int64_t) {
    const SequenceSpan& span = args.sequences[sequence];
    const RowScores scores(args, sequence, kv_head);
    scores.make_token_scores();
    for (int32_t position = scores.begin(); position < scores.end(); ++position) {
      const RowTokens tokens =
          row_tokens(attention, span, first_dense(args, sequence), kv_head, position / kKvGroup);
      const Query query{args, scores, span.first_row + position - span.context, position, kv_head};
      with_scorer(scores.scoring().scorer, [&](auto scorer) {
        score_query<decltype(scorer)>(query, scores, tokens, position);
      });
    }
  });
}

}  // namespace tessera::scalar

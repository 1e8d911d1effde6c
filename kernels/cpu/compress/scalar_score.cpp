#include <cmath>

#include "kernels/cpu/compress/ops.h"
#include "kernels/cpu/compress/query_sums.h"
#include "kernels/cpu/compress/row_scores.h"
#include "kernels/cpu/limits.h"
#include "kernels/cpu/pages/page_codec.h"

namespace tessera::scalar {
namespace {

// The query heads of one KV head at one position.
struct Query {
  const KvScoreArgs& args;
  int64_t row;  // row of the batch
  int32_t kv_head;

  // Returns: the contribution of all these heads to the score of the token with `key`.
  template <class Scorer>
  float pay(const float* key, float even) const {
    const int32_t heads = args.query_heads / args.pages.kv_heads;
    const int32_t head_dim = args.pages.head_dim;
    ScorerFloat sum{0};
    for (int32_t head = kv_head * heads; head < (kv_head + 1) * heads; ++head) {
      const float* query = args.queries.row(row).data() + int64_t{head} * head_dim;
      float dot = 0;
      for (int32_t channel = 0; channel < head_dim; ++channel) {
        dot += query[channel] * key[channel];
      }
      const float received =
          std::exp(dot * args.scale - args.log_sums.row(row)[static_cast<size_t>(head)]);
      sum = Scorer::add_head(sum, ScorerFloat{received}, ScorerFloat{1}, ScorerFloat{even});
    }
    return Scorer::share(heads) * sum.value;
  }
};

template <class Scorer>
void score_query(const Query& query, const RowScores& scores, const RowTokens& tokens,
                 int32_t position) {
  const KvPagesView& pages = query.args.pages;
  const float even = RowScores::even_share(tokens, position);
  const auto pay = [&](KvTokenScore& token_score, const KvPageLayout& layout, const std::byte* page,
                       int32_t token) {
    float key[kMaxHeadDim];
    float value[kMaxHeadDim];
    decode_token(layout, page, token, key, value);
    token_score.score =
        score_after<Scorer>(token_score.score, query.pay<Scorer>(key, even), scores.scoring().decay,
                            position - token_score.position);
  };
  for (int32_t i = 0; i < tokens.high; ++i) {
    const int32_t capacity = tokens.high_layout->capacity;
    pay(scores.high_token_score(i), *tokens.high_layout, pages.page(tokens.page_ids[i / capacity]),
        i % capacity);
  }
  for (int32_t j = 0; j < tokens.low; ++j) {
    const int32_t capacity = tokens.low_layout->capacity;
    pay(scores.low_token_score(j), *tokens.low_layout,
        pages.page(tokens.page_ids[pages.row_pages - 1 - j / capacity]), j % capacity);
  }
  const int32_t group = position / kKvGroup * kKvGroup;
  for (int32_t token = group; token <= position; ++token) {
    pay(scores.token_score_of(token), pages.residual_layout, tokens.dense, token - group);
  }
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
      const Query query{args, span.first_row + position - span.context, kv_head};
      with_scorer(scores.scoring().scorer, [&](auto scorer) {
        score_query<decltype(scorer)>(query, scores, tokens, position);
      });
    }
  });
}

}  // namespace tessera::scalar

#include "trainer/autograd/kv_cache.h"

#include <algorithm>
#include <utility>

#include "trainer/ops/attention_cached.h"
#include "trainer/ops/copy.h"

namespace sortie::trainer {
namespace {

/// Rounds up to a multiple of kRound keys.
std::int64_t rounded(std::int64_t keys) {
  constexpr std::int64_t kRound = 256;
  return (keys + kRound - 1) / kRound * kRound;
}

}  // namespace

std::int64_t KvCache::capacity_for(std::int64_t tokens, std::int64_t window) {
  return tokens >= window ? window : std::min(window, rounded(tokens));
}

std::int64_t KvCache::keys_of(std::int64_t tokens) const {
  return std::min(capacity_, rounded(length_ + tokens));
}

void KvCache::begin(std::int64_t tokens, Tensor place) {
  SORTIE_CHECK(length_ + tokens <= capacity_, "{} tokens and {} more in a cache of {}", length_,
               tokens, capacity_);
  new_tokens_ = tokens;
  next_ = 0;
  place_ = std::move(place);
}

void KvCache::end() {
  length_ += new_tokens_;
  new_tokens_ = 0;
}

void KvCache::attend(ExecutionContext& context, const Tensor& q, const Tensor& k, const Tensor& v,
                     const ops::AttentionMask& mask, Tensor& out) {
  SORTIE_CHECK(q.size(1) == new_tokens_, "{} queries in a pass over {} tokens", q.size(1),
               new_tokens_);
  if (next_ == layers_.size())
    layers_.push_back({context.zeros(k.dtype(), {k.size(0), capacity_, k.size(2), k.size(3)}),
                       context.zeros(v.dtype(), {v.size(0), capacity_, v.size(2), v.size(3)})});
  Layer& layer = layers_[next_++];
  ops::copy_to_place(context, k, place_, layer.keys);
  ops::copy_to_place(context, v, place_, layer.values);
  if (length_ == 0) {  // the first tokens: as without a cache
    Tensor lse = context.empty(DType::f32, {q.size(0), q.size(2), q.size(1)});
    ops::attention_forward(context, q, k, v, mask, out, lse);
    return;
  }
  const std::int64_t keys = keys_of(new_tokens_);
  ops::AttentionMask placed = mask;
  placed.place = place_;
  ops::attention_cached(context, q, layer.keys.slice(1, 0, keys), layer.values.slice(1, 0, keys),
                        placed, out);
}

}  // namespace sortie::trainer

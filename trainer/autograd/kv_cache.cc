#include "trainer/autograd/kv_cache.h"

#include "trainer/ops/attention_cached.h"
#include "trainer/ops/copy.h"

namespace sortie::trainer {
void KvCache::begin(std::int64_t tokens) {
  SORTIE_CHECK(length_ + tokens <= capacity_, "{} tokens and {} more in a cache of {}", length_,
               tokens, capacity_);
  new_tokens_ = tokens;
  next_ = 0;
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
    layers_.push_back({context.empty(k.dtype(), {k.size(0), capacity_, k.size(2), k.size(3)}),
                       context.empty(v.dtype(), {v.size(0), capacity_, v.size(2), v.size(3)})});
  Layer& layer = layers_[next_++];
  Tensor new_keys = layer.keys.slice(1, length_, new_tokens_);
  Tensor new_values = layer.values.slice(1, length_, new_tokens_);
  ops::copy(context, k, new_keys);
  ops::copy(context, v, new_values);
  if (length_ == 0) {  // the first tokens: as without a cache
    Tensor lse = context.empty(DType::f32, {q.size(0), q.size(2), q.size(1)});
    ops::attention_forward(context, q, k, v, mask, out, lse);
    return;
  }
  const std::int64_t total = length_ + new_tokens_;
  ops::attention_cached(context, q, layer.keys.slice(1, 0, total), layer.values.slice(1, 0, total),
                        mask, out);
}

}  // namespace sortie::trainer

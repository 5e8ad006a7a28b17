#include "trainer/autograd/kv_cache.h"

#include <cstring>

#include "trainer/ops/attention_cached.h"

namespace sortie::trainer {
namespace {

/// Tokens [at, at + N) of `cache` [B, capacity, KV, D] = x [B, N, KV, D].
void store(const Tensor& x, Tensor& cache, std::int64_t at) {
  const std::size_t element = dtype_bytes(x.dtype());
  const std::size_t bytes = static_cast<std::size_t>(x.size(3)) * element;
  const auto row = [element](const Tensor& t, std::int64_t b, std::int64_t i, std::int64_t h) {
    return static_cast<std::byte*>(t.raw()) +
           static_cast<std::size_t>(b * t.stride(0) + i * t.stride(1) + h * t.stride(2)) * element;
  };
  for (std::int64_t b = 0; b < x.size(0); ++b)
    for (std::int64_t i = 0; i < x.size(1); ++i)
      for (std::int64_t h = 0; h < x.size(2); ++h)
        std::memcpy(row(cache, b, at + i, h), row(x, b, i, h), bytes);
}

}  // namespace

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
  store(k, layer.keys, length_);
  store(v, layer.values, length_);
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

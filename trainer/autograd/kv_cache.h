// KvCache: the keys and values of the tokens that a model has seen, so that a new token costs one
// row of every product instead of all of them.
#pragma once

#include <vector>

#include "trainer/ops/attention.h"
#include "trainer/tensor/context.h"

namespace sortie::trainer {

/// Given to a Graph (inference only), it is filled and read by every attention of a forward pass,
/// in their order. The caller tells the model the places of the new tokens.
class KvCache {
 public:
  /// Room for `capacity` tokens of each sequence.
  explicit KvCache(std::int64_t capacity) : capacity_(capacity) {}
  /// The capacity for texts of up to `tokens` tokens in a model of `window` positions: passes over
  /// them are the same work, to the bit, as in a cache of the whole window.
  static std::int64_t capacity_for(std::int64_t tokens, std::int64_t window);

  std::int64_t length() const { return length_; }  // tokens in it
  std::int64_t capacity() const { return capacity_; }
  void clear() { length_ = 0; }

  /// Around a forward pass over `tokens` new tokens. `place`: i32 on the device, the first value is
  /// that of length().
  void begin(std::int64_t tokens, Tensor place);
  void end();
  /// Keys that a pass over so many new tokens takes: those of the cache up to a round number, so
  /// that a device is given the same work for many lengths.
  std::int64_t keys_of(std::int64_t tokens) const;

  /// The next attention of the pass: q [B, N, H, D] over all keys and values, of which k and v
  /// [B, N, KV, D] are the newest, RoPE included. Writes out [B, N, H, Dv].
  void attend(ExecutionContext& context, const Tensor& q, const Tensor& k, const Tensor& v,
              const ops::AttentionMask& mask, Tensor& out);

 private:
  struct Layer {
    Tensor keys, values;  // [B, capacity, KV, D]
  };
  std::int64_t capacity_ = 0, length_ = 0, new_tokens_ = 0;
  std::size_t next_ = 0;
  Tensor place_;
  std::vector<Layer> layers_;
};

}  // namespace sortie::trainer

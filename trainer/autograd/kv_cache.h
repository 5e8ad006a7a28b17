// KvCache: the keys and values of the tokens that a model has seen, so that a new token costs one
// row of every product instead of all rows.
#pragma once

#include <vector>

#include "trainer/ops/attention.h"
#include "trainer/tensor/context.h"

namespace sortie::trainer {

/// Set on a Graph (inference only). Each attention of a forward pass writes to and reads from its
/// own layer of the cache; layers are assigned in the order of the calls. The caller passes the
/// positions of the new tokens to the model.
class KvCache {
 public:
  /// A cache for up to `capacity` tokens of each sequence.
  explicit KvCache(std::int64_t capacity) : capacity_(capacity) {}
  /// Returns the capacity for texts of up to `tokens` tokens in a model of `window` positions.
  /// Passes over such texts do exactly the same work, with bit-identical results, as with a
  /// capacity of `window`.
  static std::int64_t capacity_for(std::int64_t tokens, std::int64_t window);

  std::int64_t length() const { return length_; }  // tokens in the cache
  std::int64_t capacity() const { return capacity_; }
  void clear() { length_ = 0; }

  /// Call begin() before and end() after a forward pass over `tokens` new tokens. `place`: i32 on
  /// the device; its first value is length().
  void begin(std::int64_t tokens, Tensor place);
  void end();
  /// Returns how many keys a pass over `tokens` new tokens reads: length() + tokens, rounded up, at
  /// most the capacity. Rounding gives a device the same work for many lengths.
  std::int64_t keys_of(std::int64_t tokens) const;

  /// Computes the next attention of the pass: queries q [B, N, H, D] over all keys and values. k
  /// [B, N, KV, D] and v [B, N, KV, Dv] are those of the N new tokens, with RoPE applied; they are
  /// added to the cache. Writes out [B, N, H, Dv].
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

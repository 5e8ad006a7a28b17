// Helpers for tests with thread ranks, which report what went wrong on each of them.
#pragma once

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <mutex>
#include <string>
#include <vector>

#include "trainer/parallel/thread_ranks.h"

namespace sortie::trainer::test {

/// Collects messages about failed checks. Thread-safe.
class Wrongs {
 public:
  void check(bool good, const std::string& what) {
    if (good) return;
    const std::lock_guard lock(mutex_);
    if (all_.size() < 400) all_ += what + "\n";
  }
  const std::string& all() const { return all_; }

 private:
  std::mutex mutex_;
  std::string all_;
};

/// Returns options for plain delivery and for several orders of delivery, which delays cause.
inline std::vector<ThreadRankOptions> deliveries() {
  using std::chrono::microseconds;
  return {{microseconds(0), 1}, {microseconds(60), 2}, {microseconds(400), 3}};
}

/// Returns a tensor that owns its memory.
inline Tensor make_tensor(DType dtype, std::int64_t elements) {
  static Allocator allocator;
  return Tensor::empty(allocator, dtype, {elements});
}

/// Returns element i of rank r: values whose sum depends on the order of summation.
template <class T>
T sample(int rank, std::int64_t i) {
  const double value = (static_cast<double>((i * 7919 + rank * 104729) % 2003) - 1001.0) *
                       (rank % 3 == 1 ? 1e-3 : 1.1) * (i % 5 == 0 ? 1e4 : 1.0);
  if constexpr (std::is_same_v<T, bf16>)
    return bf16(static_cast<float>(value));
  else
    return static_cast<T>(value);
}

template <class T>
Tensor samples(int rank, std::int64_t elements) {
  Tensor tensor = make_tensor(dtype_of<T>(), elements);
  for (std::int64_t i = 0; i < elements; ++i) tensor.data<T>()[i] = sample<T>(rank, i);
  return tensor;
}

}  // namespace sortie::trainer::test

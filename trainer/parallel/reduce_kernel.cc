#include "trainer/parallel/reduce_kernel.h"

#include <algorithm>
#include <type_traits>

namespace sortie::trainer {
namespace {

template <class T>
using Accumulator = std::conditional_t<std::is_same_v<T, bf16>, float, T>;

template <class T, ReduceOp op>
void reduce_values(std::span<const std::byte* const> inputs, std::byte* out,
                   std::int64_t elements) {
  using Sum = Accumulator<T>;
  constexpr std::int64_t kBlock = 1024;  // fits in the L1 cache for any number of ranks
  Sum sums[kBlock];
  for (std::int64_t begin = 0; begin < elements; begin += kBlock) {
    const std::int64_t count = std::min(kBlock, elements - begin);
    const T* first = reinterpret_cast<const T*>(inputs[0]) + begin;
    for (std::int64_t i = 0; i < count; ++i) sums[i] = static_cast<Sum>(first[i]);
    for (const std::byte* input : inputs.subspan(1)) {
      const T* from = reinterpret_cast<const T*>(input) + begin;
      for (std::int64_t i = 0; i < count; ++i) {
        const auto value = static_cast<Sum>(from[i]);
        if constexpr (op == ReduceOp::sum)
          sums[i] = static_cast<Sum>(sums[i] + value);
        else
          sums[i] = value > sums[i] || value != value ? value : sums[i];
      }
    }
    T* to = reinterpret_cast<T*>(out) + begin;
    for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<T>(sums[i]);
  }
}

template <class T>
void reduce_as(ReduceOp op, std::span<const std::byte* const> inputs, std::byte* out,
               std::int64_t elements) {
  if (op == ReduceOp::sum)
    reduce_values<T, ReduceOp::sum>(inputs, out, elements);
  else
    reduce_values<T, ReduceOp::max>(inputs, out, elements);
}

}  // namespace

bool can_reduce(DType dtype, ReduceOp op) {
  return dtype != DType::u8 || op == ReduceOp::max;
}

void reduce_in_order(DType dtype, ReduceOp op, std::span<const std::byte* const> inputs,
                     std::byte* out, std::int64_t elements) {
  switch (dtype) {
    case DType::f32:
      return reduce_as<float>(op, inputs, out, elements);
    case DType::bf16:
      return reduce_as<bf16>(op, inputs, out, elements);
    case DType::f64:
      return reduce_as<double>(op, inputs, out, elements);
    case DType::i32:
      return reduce_as<std::int32_t>(op, inputs, out, elements);
    case DType::i64:
      return reduce_as<std::int64_t>(op, inputs, out, elements);
    case DType::u8:
      return reduce_as<std::uint8_t>(op, inputs, out, elements);
  }
}

}  // namespace sortie::trainer

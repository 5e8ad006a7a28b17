// Helpers that the op tests share: random values, tensors from and to f64, comparison with a
// tolerance, and the loop over dtypes, instruction sets and thread counts.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "tests/support/test_device.h"
#include "trainer/ops/copy.h"
#include "trainer/ops/isa.h"
#include "trainer/tensor/context.h"

namespace sortie::trainer {

using Values = std::vector<double>;
inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// Returns values that are uniform in [-range, range] and a function of (seed, index).
inline Values random_values(std::uint64_t seed, std::int64_t count, double range = 1.0) {
  Values values(static_cast<std::size_t>(count));
  std::uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
  for (double& value : values) {
    state += 0x9e3779b97f4a7c15u;
    std::uint64_t z = state;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    value = (static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1.0p-52 - 1.0) * range;
  }
  return values;
}

/// Returns the values as `dtype` stores them, so that reference and kernel start from the same
/// ones.
inline Values rounded(DType dtype, Values values) {
  for (double& value : values) {
    const auto narrow = static_cast<float>(value);
    value = static_cast<double>(dtype == DType::bf16 ? static_cast<float>(bf16(narrow)) : narrow);
  }
  return values;
}
inline Values random_values(DType dtype, std::uint64_t seed, std::int64_t count,
                            double range = 1.0) {
  return rounded(dtype, random_values(seed, count, range));
}

inline void set_element(void* data, DType dtype, std::int64_t index, double value) {
  if (dtype == DType::bf16)
    static_cast<bf16*>(data)[index] = bf16(static_cast<float>(value));
  else
    static_cast<float*>(data)[index] = static_cast<float>(value);
}
inline double element(const void* data, DType dtype, std::int64_t index) {
  return dtype == DType::bf16
             ? static_cast<double>(static_cast<float>(static_cast<const bf16*>(data)[index]))
             : static_cast<double>(static_cast<const float*>(data)[index]);
}

/// Visits a tensor's elements in row-major order: visit(index in values, offset in memory).
template <class Visit>
void for_each_element(const Tensor& tensor, const Visit& visit) {
  const Shape& shape = tensor.shape();
  for (std::int64_t i = 0; i < shape.elements(); ++i) {
    std::int64_t rest = i, offset = 0;
    for (int dim = shape.dims() - 1; dim >= 0; --dim) {
      offset += rest % shape[dim] * tensor.stride(dim);
      rest /= shape[dim];
    }
    visit(static_cast<std::size_t>(i), offset);
  }
}

/// Returns a tensor with these values. If `gap` > 0, it is a view into wider rows whose other
/// columns are NaN, which reveals a kernel that ignores strides.
inline Tensor make_tensor(ExecutionContext& context, DType dtype, const Shape& shape,
                          const Values& values, std::int64_t gap = 0) {
  const std::int64_t rows = shape.elements() / shape[-1];
  Tensor wide = context.empty(dtype, {rows, shape[-1] + 2 * gap});
  Tensor tensor = wide.slice(1, gap, shape[-1]).view(shape);
  std::vector<std::byte> bytes(static_cast<std::size_t>(wide.elements()) * dtype_bytes(dtype));
  for (std::int64_t i = 0; i < wide.elements(); ++i) set_element(bytes.data(), dtype, i, kNaN);
  if (!values.empty())
    for_each_element(tensor, [&](std::size_t i, std::int64_t offset) {
      set_element(bytes.data(), dtype, gap + offset, values[i]);
    });
  ops::copy_bytes_from_host(context, bytes, wide);
  return tensor;
}

/// Copies the memory from a tensor's first element to its last one to the host.
inline std::vector<std::byte> memory_of(const Tensor& tensor) {
  std::int64_t elements = 1;
  for (int dim = 0; dim < tensor.shape().dims(); ++dim)
    elements += (tensor.size(dim) - 1) * tensor.stride(dim);
  std::vector<std::byte> bytes(static_cast<std::size_t>(elements) * dtype_bytes(tensor.dtype()));
  if (memory_is_apart(tensor.device())) {
    cuda_module().memory(tensor.device())->read(tensor.raw(), bytes);
  } else {
    const OpenMemory open(tensor.device());
    std::memcpy(bytes.data(), tensor.raw(), bytes.size());
  }
  return bytes;
}

inline Values values_of(const Tensor& tensor) {
  Values values(static_cast<std::size_t>(tensor.elements()));
  if (values.empty()) return values;
  const std::vector<std::byte> memory = memory_of(tensor);
  for_each_element(tensor, [&](std::size_t i, std::int64_t offset) {
    values[i] = element(memory.data(), tensor.dtype(), offset);
  });
  return values;
}

/// The same for tensors of T, for example integers.
template <class T>
std::vector<T> numbers_of(const Tensor& tensor) {
  std::vector<T> values(static_cast<std::size_t>(tensor.elements()));
  if (values.empty()) return values;
  SORTIE_CHECK(dtype_of<T>() == tensor.dtype(), "tensor holds {}", dtype_name(tensor.dtype()));
  const std::vector<std::byte> memory = memory_of(tensor);
  for_each_element(tensor, [&](std::size_t i, std::int64_t offset) {
    std::memcpy(&values[i], memory.data() + static_cast<std::size_t>(offset) * sizeof(T),
                sizeof(T));
  });
  return values;
}

/// Returns the largest |actual - expected| relative to the largest |expected|; infinity if `actual`
/// is not finite or the sizes differ.
inline double relative_error(const Values& actual, const Values& expected) {
  if (actual.size() != expected.size()) return std::numeric_limits<double>::infinity();
  double error = 0.0, size = 1e-30;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    if (!std::isfinite(actual[i])) return std::numeric_limits<double>::infinity();
    error = std::max(error, std::abs(actual[i] - expected[i]));
    size = std::max(size, std::abs(expected[i]));
  }
  return error / size;
}

inline bool all_finite(const Values& values) {
  for (const double value : values)
    if (!std::isfinite(value)) return false;
  return true;
}

struct Variant {
  ExecutionContext& context;
  DType dtype;
  /// f32: 1e-5. bf16: 2^-7, for two roundings to 8 bits, because intermediate values are bf16, too.
  double tolerance;
};

/// Runs body for f32 and bf16, every instruction set of this CPU's row kernels, and 1 and 2
/// threads. `products`: the op multiplies matrices, and bf16 is left out on CPUs that do not
/// multiply it. On a GPU, runs body for f32 and bf16.
template <class Body>
void for_each_variant(bool products, const Body& body) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    if (test::on_gpu()) {
      CAPTURE(std::string(dtype_name(dtype)));
      ExecutionContext context(1, test::device());
      body(Variant{context, dtype, dtype == DType::bf16 ? 0x1p-7 : 1e-5});
      continue;
    }
    if (dtype == DType::bf16 && products && !cpu_facts().multiplies_bf16) continue;
    for (const ops::Isa isa : {ops::Isa::baseline, ops::Isa::avx2, ops::Isa::avx512}) {
      if (isa > ops::best_isa()) continue;
      for (const int threads : {1, 2}) {
        CAPTURE(std::string(dtype_name(dtype)));
        CAPTURE(std::string(ops::isa_name(isa)));
        CAPTURE(threads);
        ExecutionContext context(threads);
        ops::use_isa(context, isa);
        body(Variant{context, dtype, dtype == DType::bf16 ? 0x1p-7 : 1e-5});
      }
    }
  }
}

/// Checks that make(context) returns the same bits for each of these numbers of threads.
template <class Make>
void check_same_bits(const std::vector<int>& thread_counts, const Make& make) {
  Values first;
  for (const int threads : thread_counts) {
    ExecutionContext context(threads, test::device());
    const Values values = make(context);
    if (first.empty()) first = values;
    CAPTURE(threads);
    REQUIRE(values.size() == first.size());
    CHECK(std::memcmp(values.data(), first.data(), values.size() * sizeof(double)) == 0);
  }
}
/// Numbers of threads for which an op with Sortie's own kernels gives the same bits.
inline const std::vector<int> kAnyThreads = {1, 2, 2, 3};
/// The same for an op with oneDNN's products on all threads. Without AVX-512, oneDNN divides f32
/// sums by threads, so only runs with the same number are equal.
inline std::vector<int> product_threads() {
  return cpu_facts().isa.starts_with("avx512") ? kAnyThreads : std::vector<int>{2, 2, 2};
}
/// Returns the dtypes that oneDNN multiplies on this CPU, or all on a GPU.
inline std::vector<DType> product_dtypes() {
  if (test::on_gpu() || cpu_facts().multiplies_bf16) return {DType::f32, DType::bf16};
  return {DType::f32};
}

}  // namespace sortie::trainer

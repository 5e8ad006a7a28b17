// Tests of shapes, views and the caching allocator.
#include "trainer/tensor/tensor.h"

#include <doctest/doctest.h>

#include <thread>
#include <vector>

namespace sortie::trainer {
namespace {

Tensor counting(Allocator& allocator, Shape shape) {
  Tensor tensor = Tensor::empty(allocator, DType::i32, shape);
  for (std::int64_t i = 0; i < shape.elements(); ++i)
    tensor.data<std::int32_t>()[i] = static_cast<std::int32_t>(i);
  return tensor;
}

}  // namespace

TEST_CASE("a shape knows its sizes from both ends") {
  const Shape shape{4, 256, 768};
  CHECK(shape.dims() == 3);
  CHECK(shape[0] == 4);
  CHECK(shape[-1] == 768);
  CHECK(shape.elements() == 4 * 256 * 768);
  CHECK(shape.to_string() == "[4, 256, 768]");
  CHECK(shape == Shape({4, 256, 768}));
  CHECK_FALSE(shape == Shape({4, 256}));
}

TEST_CASE("slices share memory and keep strides") {
  Allocator allocator;
  const Tensor x = counting(allocator, {2, 3, 10});
  const Tensor part = x.slice(2, 4, 3);
  CHECK(part.shape() == Shape({2, 3, 3}));
  CHECK(part.data<std::int32_t>()[0] == 4);
  CHECK(part.stride(1) == 10);
  CHECK_FALSE(part.dense());
  CHECK(x.slice(0, 1, 1).dense());
  CHECK(x.slice(0, 1, 1).data<std::int32_t>()[0] == 30);
  const auto matrix = part.matrix();
  CHECK(matrix.rows == 6);
  CHECK(matrix.cols == 3);
  CHECK(matrix.stride == 10);
}

TEST_CASE("views split and join what lies densely") {
  Allocator allocator;
  const Tensor qkv = counting(allocator, {2, 5, 36});
  const Tensor heads = qkv.slice(-1, 12, 12).view({2, 5, 3, 4});
  CHECK(heads.stride(0) == 180);
  CHECK(heads.stride(1) == 36);
  CHECK(heads.stride(2) == 4);
  CHECK(heads.data<std::int32_t>()[1 * 180 + 2 * 36 + 1 * 4 + 3] == 180 + 72 + 12 + 4 + 3);
  const Tensor back = heads.view({10, 12});
  CHECK(back.stride(0) == 36);
  CHECK(qkv.view({360}).dense());
  CHECK(qkv.view({1, 2, 1, 180}).dense());
  CHECK(qkv.slice(1, 0, 1).view({2, 36}).stride(0) == 180);
  CHECK(qkv.slice(1, 2, 1).matrix().stride == 180);
  CHECK(counting(allocator, {7}).matrix().rows == 1);
}

TEST_CASE("an op may reuse memory only where it is the only owner") {
  Allocator allocator;
  Tensor x = Tensor::empty(allocator, DType::f32, {4});
  CHECK(x.sole_owner());
  const Tensor y = x.view({2, 2});
  CHECK_FALSE(x.sole_owner());
  float memory[2];
  CHECK_FALSE(Tensor::wrap(memory, DType::f32, {2}).sole_owner());
  CHECK_FALSE(Tensor().defined());
}

TEST_CASE("freed blocks are handed out again and nothing more is asked of the system") {
  Allocator allocator;
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{1000}, std::size_t{5} << 20}) {
    CAPTURE(bytes);
    void* first = allocator.allocate(bytes).get();
    const std::size_t calls = allocator.system_allocations();
    for (int i = 0; i < 100; ++i) CHECK(allocator.allocate(bytes).get() == first);
    CHECK(allocator.system_allocations() == calls);
    CHECK(reinterpret_cast<std::uintptr_t>(first) % 64 == 0);
  }
  CHECK(allocator.bytes_in_use() == 0);
  CHECK(allocator.bytes_reserved() >= (5u << 20));
  allocator.reset_peak();
  CHECK(allocator.peak_bytes_in_use() == 0);
  {
    const auto a = allocator.allocate(1 << 20), b = allocator.allocate(1 << 20);
    CHECK(a != b);
    CHECK(allocator.bytes_in_use() >= 2u << 20);
  }
  CHECK(allocator.bytes_in_use() == 0);
  CHECK(allocator.peak_bytes_in_use() >= 2u << 20);
}

TEST_CASE("a block outlives its allocator") {
  Tensor tensor;
  {
    Allocator allocator;
    tensor = Tensor::empty(allocator, DType::f32, {1000});
  }
  tensor.data<float>()[999] = 1.0f;
  CHECK(tensor.data<float>()[999] == 1.0f);
}

TEST_CASE("threads allocate side by side") {
  Allocator allocator;
  std::vector<std::jthread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&allocator, t] {
      for (int i = 0; i < 2000; ++i) {
        const auto block = allocator.allocate(static_cast<std::size_t>(64 + i % 7 * 1000));
        *static_cast<int*>(block.get()) = t;
        if (*static_cast<int*>(block.get()) != t) std::abort();
      }
    });
  threads.clear();
  CHECK(allocator.bytes_in_use() == 0);
}

TEST_CASE("bf16 rounds to nearest even and keeps NaN") {
  CHECK(bf16(1.0f).bits == 0x3f80);
  CHECK(bf16(1.00390625f).bits == 0x3f80);  // half way: rounds to even
  CHECK(bf16(1.01171875f).bits == 0x3f82);
  CHECK(static_cast<float>(bf16(3.5f)) == 3.5f);
  const auto nan = static_cast<float>(bf16(__builtin_nanf("")));
  CHECK(nan != nan);
}

}  // namespace sortie::trainer

// Tensor: a reference-counted, typed view. The last dimension is dense; every other dimension has
// its own stride, so slices of QKV, gate|up and KV caches are views. Copying a Tensor copies the
// view.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>

#include "common/base/check.h"
#include "trainer/tensor/allocator.h"
#include "trainer/tensor/dtype.h"

namespace sortie::trainer {

inline constexpr int kMaxDims = 4;

/// Sizes from the slowest to the fastest dimension.
class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<std::int64_t> sizes);
  int dims() const { return dims_; }
  std::int64_t operator[](int dim) const;  // negative counts from the end
  std::int64_t elements() const;
  bool operator==(const Shape&) const = default;
  std::string to_string() const;  // "[4, 256, 768]"

 private:
  friend class Tensor;
  std::array<std::int64_t, kMaxDims> sizes_{};
  int dims_ = 0;
};

class Tensor {
 public:
  Tensor() = default;  // empty: defined() is false

  /// Uninitialised dense memory from `allocator` (returned to it with the last view).
  static Tensor empty(Allocator& allocator, DType dtype, Shape shape);
  /// A view of host memory that the caller keeps alive.
  static Tensor wrap(void* data, DType dtype, Shape shape);

  bool defined() const { return data_ != nullptr; }
  DType dtype() const { return dtype_; }
  Device device() const { return device_; }
  const Shape& shape() const { return shape_; }
  std::int64_t size(int dim) const { return shape_[dim]; }
  std::int64_t elements() const { return shape_.elements(); }
  std::int64_t stride(int dim) const;  // in elements; the last one is 1
  bool dense() const;
  /// True when no other Tensor shares this memory: an op may then write into it. False for wrap().
  bool sole_owner() const { return block_.use_count() == 1; }
  /// How many Tensors share this memory (0 for wrap()).
  long owners() const { return block_.use_count(); }

  /// Returns the elements, for ops and explicit host accesses. Stops the program if the dtype is
  /// not T or the host cannot access the device's memory now.
  template <class T>
  T* data() const {
    SORTIE_CHECK(dtype_of<T>() == dtype_, "tensor holds {}", dtype_name(dtype_));
    if (device_.kind != DeviceKind::cpu) check_host_access();
    return static_cast<T*>(data_);
  }
  /// The address of the first element, whether or not it can be read.
  void* raw() const { return data_; }

  /// Elements [begin, begin + count) of dimension `dim`, as a view.
  Tensor slice(int dim, std::int64_t begin, std::int64_t count) const;
  /// The same elements with another shape. Must be possible without a copy (checked): dimensions
  /// may be joined only if they are contiguous.
  Tensor view(Shape shape) const;

  /// The tensor as a matrix (rows, cols, row stride in elements), with all dimensions but the last
  /// joined. Must be possible without a copy (checked).
  struct Matrix {
    void* data;
    std::int64_t rows, cols, stride;
  };
  Matrix matrix() const;

 private:
  void check_host_access() const;

  std::shared_ptr<void> block_;
  void* data_ = nullptr;
  DType dtype_ = DType::f32;
  Device device_;
  Shape shape_;
  std::array<std::int64_t, kMaxDims> strides_{};
};

}  // namespace sortie::trainer

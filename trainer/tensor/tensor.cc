// Shapes, views and slices.
#include "trainer/tensor/tensor.h"

#include "trainer/tensor/device_memory.h"

namespace sortie::trainer {

Shape::Shape(std::initializer_list<std::int64_t> sizes) {
  SORTIE_CHECK(sizes.size() <= kMaxDims, "{} dimensions", sizes.size());
  for (const std::int64_t size : sizes) {
    SORTIE_CHECK(size >= 0, "size {}", size);
    sizes_[static_cast<std::size_t>(dims_++)] = size;
  }
}

std::int64_t Shape::operator[](int dim) const {
  const int index = dim < 0 ? dim + dims_ : dim;
  SORTIE_CHECK(index >= 0 && index < dims_, "dimension {} of {}", dim, to_string());
  return sizes_[static_cast<std::size_t>(index)];
}

std::int64_t Shape::elements() const {
  std::int64_t product = 1;
  for (int dim = 0; dim < dims_; ++dim) product *= sizes_[static_cast<std::size_t>(dim)];
  return product;
}

std::string Shape::to_string() const {
  std::string text = "[";
  for (int dim = 0; dim < dims_; ++dim)
    text += fmt::format("{}{}", dim == 0 ? "" : ", ", sizes_[static_cast<std::size_t>(dim)]);
  return text + "]";
}

Tensor Tensor::wrap(void* data, DType dtype, Shape shape) {
  SORTIE_CHECK(data != nullptr && shape.dims() > 0, "wrap of {}", shape.to_string());
  Tensor tensor;
  tensor.data_ = data;
  tensor.dtype_ = dtype;
  tensor.shape_ = shape;
  std::int64_t stride = 1;
  for (int dim = shape.dims() - 1; dim >= 0; --dim) {
    tensor.strides_[static_cast<std::size_t>(dim)] = stride;
    stride *= shape[dim];
  }
  return tensor;
}

Tensor Tensor::empty(Allocator& allocator, DType dtype, Shape shape) {
  auto block = allocator.allocate(static_cast<std::size_t>(shape.elements()) * dtype_bytes(dtype));
  Tensor tensor = wrap(block.get(), dtype, shape);
  tensor.block_ = std::move(block);
  tensor.device_ = allocator.device();
  return tensor;
}

void Tensor::check_host_access() const {
  SORTIE_CHECK(host_can_access(device_),
               "the host reads or writes {} {} on {} outside of an op; use copy_to_host, "
               "copy_from_host or HostAccess",
               dtype_name(dtype_), shape_.to_string(), device_.to_string());
}

std::int64_t Tensor::stride(int dim) const {
  const int index = dim < 0 ? dim + shape_.dims() : dim;
  SORTIE_CHECK(index >= 0 && index < shape_.dims(), "dimension {} of {}", dim, shape_.to_string());
  return strides_[static_cast<std::size_t>(index)];
}

bool Tensor::dense() const {
  std::int64_t expected = 1;
  for (int dim = shape_.dims() - 1; dim >= 0; --dim) {
    if (size(dim) != 1 && stride(dim) != expected) return false;
    expected *= size(dim);
  }
  return true;
}

Tensor Tensor::slice(int dim, std::int64_t begin, std::int64_t count) const {
  const int index = dim < 0 ? dim + shape_.dims() : dim;
  SORTIE_CHECK(begin >= 0 && count >= 0 && begin + count <= size(index),
               "slice {}+{} of dimension {} of {}", begin, count, dim, shape_.to_string());
  Tensor result = *this;
  result.shape_.sizes_[static_cast<std::size_t>(index)] = count;
  result.data_ = static_cast<char*>(data_) +
                 static_cast<std::size_t>(begin * stride(index)) * dtype_bytes(dtype_);
  return result;
}

Tensor Tensor::view(Shape shape) const {
  SORTIE_CHECK(shape.elements() == elements() && shape.dims() > 0, "{} seen as {}",
               shape_.to_string(), shape.to_string());
  Tensor result = *this;
  result.shape_ = shape;
  // From the fastest dimension on: find runs of contiguous old dimensions and split each run into
  // new dimensions.
  int next = shape.dims() - 1;
  const auto assign = [&](std::int64_t stride) {
    result.strides_[static_cast<std::size_t>(next)] = stride;
    return shape[next--];
  };
  if (elements() == 0) {
    Tensor nothing = wrap(data_, dtype_, shape);
    nothing.device_ = device_;
    return nothing;
  }
  std::int64_t run = 1;
  std::int64_t base = shape_.dims() > 0 ? stride(-1) : 1;
  for (int dim = shape_.dims() - 1; dim >= 0; --dim) {
    run *= size(dim);
    int outer = dim - 1;
    while (outer >= 0 && size(outer) == 1) --outer;
    const bool run_ends = outer < 0 || stride(outer) != run * base;
    if (!run_ends) continue;
    std::int64_t covered = 1;
    while (next >= 0 && (covered < run || shape[next] == 1)) covered *= assign(covered * base);
    SORTIE_CHECK(covered == run, "{} can not be viewed as {} without a copy", shape_.to_string(),
                 shape.to_string());
    if (outer < 0) break;
    run = 1;
    base = stride(outer);
    dim = outer + 1;
  }
  SORTIE_CHECK(next < 0 && (result.stride(-1) == 1 || shape[-1] == 1),
               "{} can not be viewed as {} without a copy", shape_.to_string(), shape.to_string());
  result.strides_[static_cast<std::size_t>(shape.dims() - 1)] = 1;
  return result;
}

Tensor::Matrix Tensor::matrix() const {
  SORTIE_CHECK(defined(), "matrix of an undefined tensor");
  const std::int64_t cols = size(-1);
  if (shape_.dims() == 1) return {data_, 1, cols, cols};
  const std::int64_t rows = cols == 0 ? 0 : elements() / cols;
  const Tensor joined = view({rows, cols});
  return {data_, rows, cols, rows == 1 ? cols : joined.stride(0)};
}

}  // namespace sortie::trainer

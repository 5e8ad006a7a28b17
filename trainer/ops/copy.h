// Filling and copying tensors. The host must read and write a tensor's values only with these
// functions, because they wait for the streams where that is necessary.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

#include "trainer/tensor/context.h"
#include "trainer/tensor/device_memory.h"

namespace sortie::trainer::ops {

/// Sets all elements to `value`; x dense. Each page is first touched by the thread that later works
/// on it.
void fill(ExecutionContext& context, double value, Tensor& x);
/// to = from: same dtype and shape, up to 4 dimensions, strided. Must not overlap.
void copy(ExecutionContext& context, const Tensor& from, Tensor& to);
/// to[b, place + n] = from[b, n]: copies the rows of `from` [B, N, ...] into `to` [B, L, ...].
/// `place` is the first value of an i32 tensor on the device; place + N <= L.
void copy_to_place(ExecutionContext& context, const Tensor& from, const Tensor& place, Tensor& to);
/// x[i] = std_dev * normal(key, first + i), dense f32: random_normal() of trainer/random.
void random_normal(ExecutionContext& context, std::uint64_t key, std::int64_t first, double std_dev,
                   Tensor& x);
/// sums += from, f64, element by element.
void accumulate(ExecutionContext& context, const Tensor& from, Tensor& sums);

/// For the templates below: copy the bytes of a dense tensor. copy_bytes_to_host() blocks until all
/// streams are done.
void copy_bytes_to_host(ExecutionContext& context, const Tensor& from, std::span<std::byte> to);
void copy_bytes_from_host(ExecutionContext& context, std::span<const std::byte> from, Tensor& to);

/// Copies the values of a dense tensor with to.size() elements. Blocks until all streams are done.
template <class T>
void copy_to_host(ExecutionContext& context, const Tensor& from, std::span<T> to) {
  SORTIE_CHECK(from.dtype() == dtype_of<T>(), "tensor holds {}", dtype_name(from.dtype()));
  copy_bytes_to_host(context, from, std::as_writable_bytes(to));
}
template <class T>
std::vector<T> copy_to_host(ExecutionContext& context, const Tensor& from) {
  std::vector<T> values(static_cast<std::size_t>(from.elements()));
  copy_to_host<T>(context, from, values);
  return values;
}
/// Copies on the current stream. `from` may be changed as soon as the call returns.
template <class T>
void copy_from_host(ExecutionContext& context, std::span<const T> from, Tensor& to) {
  SORTIE_CHECK(to.dtype() == dtype_of<T>(), "tensor holds {}", dtype_name(to.dtype()));
  copy_bytes_from_host(context, std::as_bytes(from), to);
}
template <class T>
void write_scalar(ExecutionContext& context, T value, Tensor& to) {
  copy_from_host<T>(context, std::span<const T>(&value, 1), to);
}
/// A new tensor with these values.
template <class T>
Tensor tensor_from_host(ExecutionContext& context, std::span<const T> from, Shape shape) {
  Tensor to = context.empty(dtype_of<T>(), shape);
  copy_from_host<T>(context, from, to);
  return to;
}
template <class T>
T read_scalar(ExecutionContext& context, const Tensor& from) {
  T value{};
  copy_to_host<T>(context, from, std::span<T>(&value, 1));
  return value;
}

/// Values that are being copied to the host.
template <class T>
class LateValues {
 public:
  LateValues() = default;
  LateValues(std::shared_ptr<std::byte[]> block, std::size_t count, Event there)
      : block_(std::move(block)), count_(count), there_(std::move(there)) {}
  /// Blocks until the copy is done; does not wait for later work of the stream. The result is valid
  /// while this object lives.
  std::span<const T> wait() const {
    there_.wait();
    return {reinterpret_cast<const T*>(block_.get()), count_};
  }

 private:
  std::shared_ptr<std::byte[]> block_;
  std::size_t count_ = 0;
  Event there_;
};
/// For the template below.
Event begin_copy_of_bytes(ExecutionContext& context, const Tensor& from,
                          const std::shared_ptr<std::byte[]>& to);
/// Begins to copy the values of a dense tensor, as of this point in the current stream. Does not
/// block.
template <class T>
LateValues<T> begin_copy_to_host(ExecutionContext& context, const Tensor& from) {
  SORTIE_CHECK(from.dtype() == dtype_of<T>(), "tensor holds {}", dtype_name(from.dtype()));
  const auto count = static_cast<std::size_t>(from.elements());
  std::shared_ptr<std::byte[]> block = host_block(context.device(), count * sizeof(T));
  Event there = begin_copy_of_bytes(context, from, block);
  return {std::move(block), count, std::move(there)};
}

/// Initial content of HostAccess: the tensor's values, or unspecified because the caller writes all
/// of them.
enum class HostValues : std::uint8_t { kept, replaced };

/// Makes the values of a dense tensor available as host memory while this object lives, for
/// communication and checkpoints. The constructor blocks until all streams are done. If the host
/// cannot access the device's memory, the values are a copy, which the destructor writes back to
/// the device unless T is const. Empty for an undefined tensor.
template <class T>
class HostAccess {
 public:
  HostAccess(ExecutionContext& context, const Tensor& tensor, HostValues old = HostValues::kept)
      : open_((context.synchronize(), tensor.device())) {
    if (!tensor.defined()) return;
    SORTIE_CHECK(tensor.dense(), "host access to a strided tensor");
    const auto count = static_cast<std::size_t>(tensor.elements());
    if (!memory_is_apart(tensor.device())) {
      values_ = {tensor.data<std::remove_const_t<T>>(), count};
      return;
    }
    SORTIE_CHECK(dtype_of<std::remove_const_t<T>>() == tensor.dtype(), "tensor holds {}",
                 dtype_name(tensor.dtype()));
    memory_ = &context.allocator().memory();
    address_ = tensor.raw();
    // Not value-initialised: it may be gigabytes.
    copy_ = std::make_unique_for_overwrite<std::remove_const_t<T>[]>(count);
    values_ = {copy_.get(), count};
    if (old == HostValues::kept)
      memory_->read(address_, std::as_writable_bytes(std::span(copy_.get(), count)));
  }
  ~HostAccess() {
    if constexpr (!std::is_const_v<T>)
      if (copy_) memory_->write(std::as_bytes(values_), address_);
  }
  HostAccess(const HostAccess&) = delete;
  HostAccess& operator=(const HostAccess&) = delete;

  std::span<T> span() const { return values_; }
  T* data() const { return values_.data(); }
  std::size_t size() const { return values_.size(); }
  T& operator[](std::size_t index) const { return values_[index]; }
  auto begin() const { return values_.begin(); }
  auto end() const { return values_.end(); }

 private:
  OpenMemory open_;
  std::span<T> values_;
  DeviceMemory* memory_ = nullptr;
  void* address_ = nullptr;
  std::unique_ptr<std::remove_const_t<T>[]> copy_;
};

}  // namespace sortie::trainer::ops

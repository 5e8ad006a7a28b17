// Caching allocator of a device's memory. Freed blocks are kept by size class and reused, so that
// the steps after the first ones allocate nothing from the system. Blocks are 64-byte aligned. On
// the meta device it only counts bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

#include "trainer/tensor/device.h"

namespace sortie::trainer {

class DeviceMemory;

/// Thrown when an allocation fails. what() names the device, the size of the failed allocation and
/// the memory that tensors use. The object stores the text itself, so that throwing allocates
/// nothing more.
class OutOfMemory final : public std::bad_alloc {
 public:
  OutOfMemory(Device device, std::size_t asked, std::size_t in_use, std::size_t reserved);
  Device device() const { return device_; }
  const char* what() const noexcept override { return text_; }

 private:
  Device device_;
  char text_[200];
};

class Allocator {
 public:
  /// For a guarded device, creates a new arena and writes its index to device().
  explicit Allocator(Device device = {});
  ~Allocator();
  Allocator(const Allocator&) = delete;
  Allocator& operator=(const Allocator&) = delete;

  /// Returns at least `bytes` of uninitialised memory. The block returns to the cache when its last
  /// reference is dropped, even after the Allocator is destroyed. Throws OutOfMemory. Thread-safe.
  std::shared_ptr<void> allocate(std::size_t bytes);

  /// Scope in which allocations come from a separate pool. The pool outlives the scope: if the next
  /// scope allocates and frees the same sizes in the same order, it gets the same addresses,
  /// whatever is allocated outside of scopes in between. CUDA graphs (RepeatedWork) rely on this.
  /// At most one scope exists at a time. It is created and destroyed on one thread.
  class RepeatedMemory {
   public:
    explicit RepeatedMemory(Allocator& allocator);
    ~RepeatedMemory();
    RepeatedMemory(const RepeatedMemory&) = delete;
    RepeatedMemory& operator=(const RepeatedMemory&) = delete;

   private:
    Allocator& allocator_;
  };
  /// Changes whenever addresses of the pool may no longer be valid for later scopes: a
  /// RepeatedMemory ends while blocks that it allocated are still in use; blocks of an earlier
  /// scope are freed, within a later scope or outside of scopes; or the pool's free blocks are
  /// returned to the system.
  std::uint64_t repeated_version() const;

  Device device() const { return device_; }
  DeviceMemory& memory() const;
  std::size_t bytes_in_use() const;
  std::size_t peak_bytes_in_use() const;   // since construction or reset_peak
  std::size_t bytes_reserved() const;      // in use and cached
  std::size_t system_allocations() const;  // allocations from the system so far
  /// Sets the peak to the bytes in use. For tests.
  void reset_peak();

 private:
  struct State;
  Device device_;
  std::shared_ptr<State> state_;
};

}  // namespace sortie::trainer

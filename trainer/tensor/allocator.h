// Caching host allocator: freed blocks are kept by size and handed out again, so that after the
// first step nothing is allocated. Blocks are 64-byte aligned; large ones are on 2 MiB pages where
// allowed.
#pragma once

#include <cstddef>
#include <memory>

#include "trainer/tensor/device.h"

namespace sortie::trainer {

class Allocator {
 public:
  explicit Allocator(Device device = {});
  ~Allocator();
  Allocator(const Allocator&) = delete;
  Allocator& operator=(const Allocator&) = delete;

  /// At least `bytes`, uninitialised. The block returns to the cache with its last reference, also
  /// after the Allocator itself is gone. Thread-safe.
  std::shared_ptr<void> allocate(std::size_t bytes);

  Device device() const { return device_; }
  std::size_t bytes_in_use() const;
  std::size_t peak_bytes_in_use() const;   // since construction or reset_peak
  std::size_t bytes_reserved() const;      // in use and cached
  std::size_t system_allocations() const;  // how often the system was asked for memory
  void reset_peak();

 private:
  struct State;
  Device device_;
  std::shared_ptr<State> state_;
};

}  // namespace sortie::trainer

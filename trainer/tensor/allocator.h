// Caching allocator of a device's memory: freed blocks are kept by size and handed out again, so
// that after the first step nothing is allocated. Blocks are 64-byte aligned. On the meta device it
// counts, and that is all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

#include "trainer/tensor/device.h"

namespace sortie::trainer {

class DeviceMemory;

/// No memory: says of which device, how much was asked for, and how much tensors have. Its memory
/// is its own.
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
  /// A guarded device gets an arena of its own: device() then says which.
  explicit Allocator(Device device = {});
  ~Allocator();
  Allocator(const Allocator&) = delete;
  Allocator& operator=(const Allocator&) = delete;

  /// At least `bytes`, uninitialised. The block returns to the cache with its last reference, also
  /// after the Allocator itself is gone. Thread-safe.
  std::shared_ptr<void> allocate(std::size_t bytes);

  /// While one lives, blocks come from a store of their own, and whose blocks return is for the
  /// next one: what is done in one after the other has the same addresses where it takes and
  /// returns the same sizes, whatever others take in between. A device's graphs (RepeatedWork) use
  /// these addresses again. One at a time; of the thread that makes it and waits for it.
  class RepeatedMemory {
   public:
    explicit RepeatedMemory(Allocator& allocator);
    ~RepeatedMemory();
    RepeatedMemory(const RepeatedMemory&) = delete;
    RepeatedMemory& operator=(const RepeatedMemory&) = delete;

   private:
    Allocator& allocator_;
  };
  /// Changes whenever a RepeatedMemory ends that has not returned all that it has taken, or has
  /// returned more, when that is returned later, or the system gets blocks back: what was at an
  /// address before may not be there from then on.
  std::uint64_t repeated_version() const;

  Device device() const { return device_; }
  DeviceMemory& memory() const;
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

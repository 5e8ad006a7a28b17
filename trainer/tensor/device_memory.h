// DeviceMemory: the source of an Allocator's blocks, one class per kind of device, and copies
// between the host and device memory that the host cannot access.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "trainer/tensor/device.h"
#include "trainer/tensor/stream.h"

namespace sortie::trainer {

class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  /// Returns a 64-byte aligned block of `size` bytes, of which the caller requested the first
  /// `used`; nullptr if no memory is left. A block is valid until give_back(), at most as long as
  /// this object.
  virtual void* take(std::size_t size, std::size_t used) = 0;
  virtual void give_back(void* block) = 0;

  // Copies between the host and a device's memory; the device address may be anywhere in a block.
  // On memory that the host cannot access, both first block until the device has completed all work
  // that it has been given.
  virtual void read(const void* from, std::span<std::byte> to);
  virtual void write(std::span<const std::byte> from, void* to);

  // Asynchronous versions, concurrent with all streams; copies in one direction run one after
  // another. The values to read must be complete, and no other work may use the memory to write.
  // Both sides must stay valid and unchanged until the event has passed.
  virtual Event begin_read(const void* from, std::span<std::byte> to);
  virtual Event begin_write(std::span<const std::byte> from, void* to);
  /// Blocks until all copies that were begun are done.
  virtual void finish_copies() {}
  /// Returns host memory that the device copies from and to at full speed (pinned memory for a
  /// GPU).
  virtual std::shared_ptr<std::byte[]> host_block(std::size_t size);
  /// Pins host memory until unpin(), so that copies run at full speed. If pinning is refused,
  /// copies are only slower.
  virtual void pin(std::span<std::byte> memory);
  virtual void unpin(std::span<std::byte> memory);
};

/// Returns the memory source of `device`. cpu: the heap, with large blocks on 2 MiB pages where
/// allowed. guarded: a new arena, whose index is written to `device`. meta: addresses without
/// memory, unique per block. cuda: the device module's.
std::shared_ptr<DeviceMemory> make_device_memory(Device& device);

/// Scope in which a guarded arena is accessible; may be nested. On a meta device it marks the
/// current thread as executing an op, in which Tensor::data() may return addresses.
class OpenMemory {
 public:
  explicit OpenMemory(Device device);
  ~OpenMemory();
  OpenMemory(const OpenMemory&) = delete;
  OpenMemory& operator=(const OpenMemory&) = delete;

 private:
  Device device_;
};

/// True if Tensor::data() may return addresses of the device's memory now. They can be read and
/// written, except on the meta device.
bool host_can_access(Device device);
/// True if the host can never access the device's memory (GPUs).
bool memory_is_apart(Device device);
/// The memory of such a device.
DeviceMemory& apart_memory(Device device);

// Copies between the host and any device, and host memory for them. For memory that the host cannot
// access these are DeviceMemory's; otherwise the copy is done when the call returns.
Event begin_read(Device device, const void* from, std::span<std::byte> to);
Event begin_write(Device device, std::span<const std::byte> from, void* to);
std::shared_ptr<std::byte[]> host_block(Device device, std::size_t size);

}  // namespace sortie::trainer

// Where an Allocator's blocks come from: one source per kind of device.
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
  /// A block of `size` bytes, 64-byte aligned, of which `used` are asked for now; null when there
  /// is no more. Blocks live as long as the source unless they are given back.
  virtual void* take(std::size_t size, std::size_t used) = 0;
  virtual void give_back(void* block) = 0;

  // Of memory that the host does not have. Both take and give bytes anywhere in a block, and first
  // wait for all that the device has been given to do.
  virtual void read(const void* from, std::span<std::byte> to);
  virtual void write(std::span<const std::byte> from, void* to);

  // The same beside all streams, in each direction one copy after the other: what is read is there,
  // and what is written is in nobody's use. Both sides stay as they are until the event has passed.
  virtual Event begin_read(const void* from, std::span<std::byte> to);
  virtual Event begin_write(std::span<const std::byte> from, void* to);
  /// Until all copies that were begun are done.
  virtual void finish_copies() {}
  /// Memory of the host that the device copies from and to at its full speed.
  virtual std::shared_ptr<std::byte[]> host_block(std::size_t size);
  /// Makes memory of the host such a block, until unpin(). Where that is refused copies are slow,
  /// and that is all.
  virtual void pin(std::span<std::byte> memory);
  virtual void unpin(std::span<std::byte> memory);
};

/// cpu: the heap, large blocks on 2 MiB pages where allowed. guarded: an arena of its own, which
/// gets `device`'s index. meta: addresses without memory, which no two blocks share. cuda: the
/// device module's.
std::shared_ptr<DeviceMemory> make_device_memory(Device& device);

/// Makes a guarded arena accessible while it lives; nests. On a meta device it says that the thread
/// is in an op: addresses may be taken there.
class OpenMemory {
 public:
  explicit OpenMemory(Device device);
  ~OpenMemory();
  OpenMemory(const OpenMemory&) = delete;
  OpenMemory& operator=(const OpenMemory&) = delete;

 private:
  Device device_;
};

/// Whether this process may read and write the device's memory now.
bool host_can_access(Device device);
/// Whether the device's memory has addresses that are of no use to the host, ever.
bool memory_is_apart(Device device);
/// That memory.
DeviceMemory& apart_memory(Device device);

// Copies of any device's values by way of the host: DeviceMemory's where that memory is apart, else
// they are done when the call returns.
Event begin_read(Device device, const void* from, std::span<std::byte> to);
Event begin_write(Device device, std::span<const std::byte> from, void* to);
std::shared_ptr<std::byte[]> host_block(Device device, std::size_t size);

}  // namespace sortie::trainer

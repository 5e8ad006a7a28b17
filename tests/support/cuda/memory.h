// The memory of an emulated GPU. Only what runs on the GPU can touch it: it is at its addresses
// while the memory is open, and somewhere else in between.
#pragma once

#include <cstddef>
#include <map>

#include "tests/support/cuda/fault_line.h"

namespace emulated_cuda {

/// Whether this Linux has pages without access around blocks; else they are full of NaN.
bool guards_blocks();

/// Of one GPU; its caller locks.
class Memory {
 public:
  explicit Memory(int device, std::size_t bytes) : device_(device), bytes_(bytes) {}

  /// A block that ends where a page without access begins, full of NaN; null when there is no more.
  void* take(std::size_t size);
  /// False when no block begins there. Nothing can touch it from now on.
  bool give_back(void* block);
  /// Whether these bytes are in one block.
  bool has(const void* address, std::size_t size) const;
  std::size_t bytes() const { return bytes_; }
  std::size_t free_bytes() const { return bytes_ - used_; }

  void open();
  void close();

  /// Adds what is at an address that could not be touched; false if the address is not this GPU's.
  bool fault(const void* address, FaultLine& line) const;

 private:
  std::byte* region(std::size_t bytes);
  void reserve();

  const int device_;
  const std::size_t bytes_;
  std::size_t used_ = 0;
  std::byte *base_ = nullptr, *hidden_ = nullptr;
  std::size_t touched_ = 0;                         // of the addresses: given to blocks before
  std::map<const std::byte*, std::size_t> blocks_;  // sizes
  std::map<std::byte*, std::size_t> holes_;         // regions of blocks that were given back
  int opened_ = 0;
};

}  // namespace emulated_cuda

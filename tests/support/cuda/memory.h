// The memory of an emulated GPU. Only work that runs on the GPU can access it: its pages are mapped
// at their addresses only while the memory is open, and elsewhere in between.
#pragma once

#include <cstddef>
#include <map>

#include "tests/support/cuda/fault_line.h"

namespace emulated_cuda {

/// Whether this Linux supports guard pages around blocks; otherwise these pages are filled with
/// NaN.
bool guards_blocks();

/// Memory of one GPU. Not thread-safe: the caller locks.
class Memory {
 public:
  explicit Memory(int device, std::size_t bytes) : device_(device), bytes_(bytes) {}

  /// Allocates a block that ends at a page without access. At least its first 4 MiB are filled with
  /// NaN. Returns nullptr if there is not enough memory.
  void* take(std::size_t size);
  /// Frees a block, which becomes inaccessible. Returns false if no block begins there.
  bool give_back(void* block);
  /// Whether these bytes are within one block.
  bool has(const void* address, std::size_t size) const;
  std::size_t bytes() const { return bytes_; }
  std::size_t free_bytes() const { return bytes_ - used_; }

  void open();
  void close();

  /// Describes the address of a forbidden access. Returns false if it does not belong to this GPU.
  bool fault(const void* address, FaultLine& line) const;

 private:
  std::byte* region(std::size_t bytes);
  void reserve();

  const int device_;
  const std::size_t bytes_;
  std::size_t used_ = 0;
  std::byte *base_ = nullptr, *hidden_ = nullptr;
  std::size_t touched_ = 0;                         // of the address range: used by blocks so far
  std::map<const std::byte*, std::size_t> blocks_;  // sizes, by address
  std::map<std::byte*, std::size_t> holes_;         // regions of freed blocks
  int opened_ = 0;
};

}  // namespace emulated_cuda

#include "tests/support/cuda/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "common/base/check.h"

namespace emulated_cuda {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kAlignment = 512;                   // at least that of cudaMalloc
constexpr std::size_t kAddresses = std::size_t{1} << 37;  // per GPU; so large that reuse is rare
constexpr std::size_t kTable = std::size_t{1} << 30;      // mapped by one page of page tables
constexpr std::size_t kGarbage = 4 << 20;                 // filled bytes of a block, at most

// Since Linux 6.13: guard pages within a mapping, which do not slow down moving it.
constexpr int kGuardInstall = 102, kGuardRemove = 103;

std::size_t rounded(std::size_t size, std::size_t to) {
  return (size + to - 1) / to * to;
}

std::byte* map(int rights) {
  void* pages = mmap(nullptr, kAddresses + kTable, rights,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  SORTIE_CHECK(pages != MAP_FAILED, "no address space for an emulated GPU");
  return reinterpret_cast<std::byte*>(rounded(reinterpret_cast<std::uintptr_t>(pages), kTable));
}

/// Moves all pages. Page tables move as a whole, so this takes microseconds for any size. The old
/// addresses read as zeros afterwards.
void move(std::byte* from, std::byte* to) {
  SORTIE_CHECK(mremap(from, kAddresses, kAddresses,
                      MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, to) != MAP_FAILED,
               "mremap of an emulated GPU's memory");
}

void guard(std::byte* pages, std::size_t size) {
  if (!guards_blocks() || madvise(pages, size, kGuardInstall) != 0) std::memset(pages, 0xff, size);
}

}  // namespace

bool guards_blocks() {
  static const bool does = [] {
    void* page = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const bool installed = page != MAP_FAILED && madvise(page, kPage, kGuardInstall) == 0;
    munmap(page, kPage);
    return installed;
  }();
  return does;
}

void Memory::reserve() {
  base_ = map(PROT_NONE);
  hidden_ = map(PROT_READ | PROT_WRITE);
}

void Memory::open() {
  if (opened_++ == 0 && base_ != nullptr) move(hidden_, base_);
}

void Memory::close() {
  if (--opened_ > 0 || base_ == nullptr) return;
  move(base_, hidden_);
  SORTIE_CHECK(mprotect(base_, kAddresses, PROT_NONE) == 0, "mprotect");
}

/// Uses new addresses as long as possible, so that accesses to old blocks are detected.
std::byte* Memory::region(std::size_t bytes) {
  if (touched_ + bytes <= kAddresses) {
    touched_ += bytes;
    return base_ + (touched_ - bytes);
  }
  const auto fits = std::ranges::find_if(holes_, [&](const auto& h) { return h.second >= bytes; });
  if (fits == holes_.end()) return nullptr;
  const auto [start, size] = *fits;
  holes_.erase(fits);
  if (size > bytes) holes_[start + bytes] = size - bytes;
  return start;
}

void* Memory::take(std::size_t size) {
  if (base_ == nullptr) reserve();
  const std::size_t bytes = rounded(size, kAlignment), pages = rounded(bytes, kPage);
  if (bytes > free_bytes()) return nullptr;
  std::byte* start = region(pages + kPage);
  if (start == nullptr) return nullptr;
  std::byte* block = start + (pages - bytes);
  open();
  (void)madvise(start, pages, kGuardRemove);
  std::memset(start, 0xff, block - start + std::min(bytes, kGarbage));
  guard(start + pages, kPage);
  close();
  blocks_[block] = size;
  used_ += bytes;
  return block;
}

bool Memory::give_back(void* block) {
  const auto found = blocks_.find(static_cast<std::byte*>(block));
  if (found == blocks_.end()) return false;
  const std::size_t bytes = rounded(found->second, kAlignment), pages = rounded(bytes, kPage);
  blocks_.erase(found);
  used_ -= bytes;
  std::byte* start = static_cast<std::byte*>(block) + bytes - pages;
  open();
  guard(start, pages);
  close();
  // Merge adjacent holes.
  auto hole = holes_.emplace(start, pages + kPage).first;
  if (const auto next = std::next(hole);
      next != holes_.end() && hole->first + hole->second == next->first) {
    hole->second += next->second;
    holes_.erase(next);
  }
  if (hole != holes_.begin())
    if (const auto before = std::prev(hole); before->first + before->second == hole->first) {
      before->second += hole->second;
      holes_.erase(hole);
    }
  return true;
}

bool Memory::has(const void* address, std::size_t size) const {
  const auto* byte = static_cast<const std::byte*>(address);
  auto after = blocks_.upper_bound(byte);
  if (after == blocks_.begin()) return false;
  --after;
  return byte + size <= after->first + rounded(after->second, kAlignment);
}

bool Memory::fault(const void* address, FaultLine& line) const {
  const auto* byte = static_cast<const std::byte*>(address);
  if (base_ == nullptr || byte < base_ || byte >= base_ + kAddresses) return false;
  line.add("{} touches device memory of emulated GPU {}: ",
           opened_ > 0 ? "a kernel or a copy" : "the host", device_);
  auto block = blocks_.upper_bound(byte);
  if (block != blocks_.begin()) {
    --block;
    const std::size_t offset = byte - block->first, size = block->second;
    if (offset < size) {
      line.add("byte {} of a block of {} bytes", offset, size);
      return true;
    }
    if (offset < rounded(size, kAlignment) + kPage) {
      line.add("{} bytes behind a block of {} bytes", offset - size + 1, size);
      return true;
    }
  }
  line.add("no block, or one that was freed");
  return true;
}

}  // namespace emulated_cuda

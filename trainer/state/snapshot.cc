#include "trainer/state/snapshot.h"

#include <fmt/core.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/base/check.h"
#include "trainer/metrics/memory.h"
#include "trainer/ops/host_copy.h"

namespace sortie::trainer {
namespace {

/// Makes the kernel allocate all pages now, huge ones if possible.
void make_pages(std::span<std::byte> memory) {
  (void)::madvise(memory.data(), memory.size(), MADV_HUGEPAGE);
#ifdef MADV_POPULATE_WRITE
  if (::madvise(memory.data(), memory.size(), MADV_POPULATE_WRITE) == 0) return;
#endif
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  for (std::size_t at = 0; at < memory.size(); at += page) memory[at] = std::byte{0};
}

}  // namespace

Snapshot::~Snapshot() {
  if (memory_.empty()) return;
  if (pinned_by_ != nullptr) pinned_by_->unpin(memory_);
  ::munmap(memory_.data(), memory_.size());
}

Result<> Snapshot::allocate(std::uint64_t bytes, std::int64_t ranks_of_host, Device device) {
  SORTIE_CHECK(memory_.empty(), "a snapshot has {} bytes", memory_.size());
  if (bytes == 0) return {};
  const std::uint64_t needed = bytes * static_cast<std::uint64_t>(ranks_of_host);
  const std::uint64_t available = available_memory_bytes();
  constexpr std::uint64_t kSpare = 20;  // a twentieth stays free
  if (available > 0 && needed > available - available / kSpare)
    return fail(ErrorCode::unsupported,
                fmt::format("{} bytes are needed for copies of the state, {} are free on this "
                            "host",
                            needed, available));
  void* const memory =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    return std::unexpected(os_error(errno, fmt::format("allocate {} bytes", bytes)));
  memory_ = {static_cast<std::byte*>(memory), static_cast<std::size_t>(bytes)};
  make_pages(memory_);
  if (memory_is_apart(device)) {
    pinned_by_ = &apart_memory(device);
    pinned_by_->pin(memory_);
  }
  return {};
}

void Snapshot::take(ExecutionContext& context, std::vector<StatePiece>& pieces) {
  std::vector<ops::HostCopy> copies;
  std::vector<std::span<std::byte>> places;
  std::byte* at = memory_.data();
  for (const StatePiece& piece : pieces) {
    const std::size_t bytes = piece.bytes.size();
    SORTIE_CHECK(bytes <= static_cast<std::size_t>(memory_.data() + memory_.size() - at),
                 "a snapshot has {} bytes", memory_.size());
    places.emplace_back(at, bytes);
    if (piece.memory == nullptr) copies.push_back({piece.bytes.data(), at, bytes});
    at += bytes;
  }
  read_values(pieces, places);
  ops::copy_past_caches(context, copies);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    pieces[i].bytes = places[i];
    pieces[i].memory = nullptr;
  }
}

Result<> copy_to_host(ExecutionContext& context, std::vector<StatePiece>& pieces,
                      Snapshot& snapshot, Snapshot& other) {
  if (std::ranges::all_of(pieces, [](const StatePiece& one) { return one.memory == nullptr; }))
    return {};
  const std::uint64_t bytes = bytes_of(pieces);
  const bool fits = bytes <= snapshot.bytes();
  if (!fits) SORTIE_TRY(other.allocate(bytes, /*ranks_of_host=*/1, context.device()));
  (fits ? snapshot : other).take(context, pieces);
  return {};
}

}  // namespace sortie::trainer

#include <cstdint>
#include <cstring>
#include <vector>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "trainer/ops/cpu/cpu_backend.h"
#include "trainer/ops/host_copy.h"

namespace sortie::trainer::ops {
namespace {

void stream_bytes(const std::byte* from, std::byte* to, std::size_t bytes) {
#if defined(__SSE2__)
  // A store that allocates its cache line would also read as many bytes as it writes.
  constexpr std::size_t kLine = 64;
  const std::size_t head = (kLine - reinterpret_cast<std::uintptr_t>(to) % kLine) % kLine;
  if (bytes >= head + kLine) {
    std::memcpy(to, from, head);
    from += head;
    to += head;
    bytes -= head;
    for (; bytes >= kLine; bytes -= kLine, from += kLine, to += kLine) {
      const auto* source = reinterpret_cast<const __m128i*>(from);
      auto* target = reinterpret_cast<__m128i*>(to);
      const __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1);
      const __m128i c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);
      _mm_stream_si128(target, a);
      _mm_stream_si128(target + 1, b);
      _mm_stream_si128(target + 2, c);
      _mm_stream_si128(target + 3, d);
    }
    _mm_sfence();
  }
#endif
  std::memcpy(to, from, bytes);
}

}  // namespace

void copy_past_caches(ExecutionContext& context, std::span<const HostCopy> copies) {
  constexpr std::size_t kPiece = std::size_t{1} << 20;
  std::vector<HostCopy> pieces;
  for (const HostCopy& copy : copies)
    for (std::size_t at = 0; at < copy.bytes; at += kPiece)
      pieces.push_back({copy.from + at, copy.to + at, std::min(kPiece, copy.bytes - at)});
  parallel_tasks(context, static_cast<std::int64_t>(pieces.size()), [&](std::int64_t i, int) {
    const HostCopy& piece = pieces[static_cast<std::size_t>(i)];
    stream_bytes(piece.from, piece.to, piece.bytes);
  });
}

}  // namespace sortie::trainer::ops

// The wire format of a link between two sites. Each end first sends a LinkHello, unsealed, and then
// sealed records: a u32 (LE) number of bytes that follow, the sealed RecordHead with its piece of a
// message, and an authentication tag.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

#include "common/seal/greeting.h"

namespace sortie::trainer::outer {

inline constexpr std::size_t kLinkNameBytes = 64;
inline constexpr std::size_t kLinkPieceBytes = 128u << 10;

/// Little-endian, like every CPU that Sortie runs on. Names are padded with zero bytes.
struct LinkHello {
  std::array<char, 8> magic{'s', 'o', 'r', 't', 'i', 'e', 'L', '1'};
  std::uint64_t epoch = 0;
  std::uint64_t instance = 0;  // of the sender's process: a new one has new links
  std::uint64_t part = 0;
  std::array<char, kLinkNameBytes> from{}, to{};  // sites
  seal::Greeting greeting{};
  std::array<char, 7> zero{};
};
static_assert(std::is_trivially_copyable_v<LinkHello> && sizeof(LinkHello) == 200);

enum class RecordKind : std::uint32_t { ready = 1, alive = 2, piece = 3, bye = 4 };

struct RecordHead {
  RecordKind kind = RecordKind::alive;
  std::uint32_t tag = 0;
  std::uint64_t epoch = 0;
  std::uint64_t number = 0;    // of the message, by tag and epoch, from 0
  std::uint64_t size = 0;      // of the message
  std::uint64_t offset = 0;    // of the piece in it
  std::uint64_t checksum = 0;  // XXH3 of the piece
};
static_assert(std::is_trivially_copyable_v<RecordHead> && sizeof(RecordHead) == 48);

inline constexpr std::size_t kRecordLengthBytes = 4;
inline constexpr std::size_t kMaxSealedBytes =
    sizeof(RecordHead) + kLinkPieceBytes + seal::RecordCipher::kTagBytes;

/// Size of the piece at `offset` of a message of `size` bytes.
inline std::uint64_t piece_bytes(std::uint64_t size, std::uint64_t offset) {
  return size - offset < kLinkPieceBytes ? size - offset : kLinkPieceBytes;
}

inline std::array<char, kLinkNameBytes> link_name(const std::string& name) {
  std::array<char, kLinkNameBytes> out{};
  std::memcpy(out.data(), name.data(), name.size() < out.size() ? name.size() : out.size() - 1);
  return out;
}

}  // namespace sortie::trainer::outer

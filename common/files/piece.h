// Arithmetic of pieces and their hashes, for all parts of a transfer. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/wire/file_messages.h"

namespace sortie::files {

constexpr std::uint64_t piece_count(std::uint64_t size) {
  return size / wire::kPieceBytes + (size % wire::kPieceBytes != 0);
}
/// Length of piece `piece` of a file of `size` bytes.
constexpr std::uint64_t piece_length(std::uint64_t size, std::uint64_t piece) {
  const std::uint64_t begin = piece * wire::kPieceBytes;
  return size - begin < wire::kPieceBytes ? size - begin : wire::kPieceBytes;
}

/// SHA-256, 32 bytes.
std::string hash_bytes(std::string_view bytes);

/// The hash of a piece in the manifest. A view into `entry`.
std::string_view piece_hash(const wire::FileEntry& entry, std::uint64_t piece);

/// Identifies a tree: SHA-256 over names, kinds, modes, sizes and hashes; lower-case hex.
std::string tree_hash(const std::vector<wire::FileEntry>& entries);

/// Adds a piece to ranges. Pieces must be added in ascending order.
void add_piece(std::vector<wire::PieceRange>& ranges, std::uint32_t entry, std::uint32_t piece);

/// Total size of the files in the tree.
std::uint64_t total_bytes(const std::vector<wire::FileEntry>& entries);

}  // namespace sortie::files

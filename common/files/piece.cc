#include "common/files/piece.h"
#include "common/base/hex.h"

// SHA256_* instead of EVP, which would add all of libcrypto, and dlopen, to a static program.
#define OPENSSL_SUPPRESS_DEPRECATED
#include <fmt/core.h>
#include <openssl/sha.h>

#include <array>

namespace sortie::files {
namespace {

class Sha256 {
 public:
  Sha256() { SHA256_Init(&state_); }
  void add(std::string_view bytes) { SHA256_Update(&state_, bytes.data(), bytes.size()); }
  /// Adds the length first, so that different lists of parts never hash alike.
  void add_part(std::string_view bytes) {
    add_number(bytes.size());
    add(bytes);
  }
  void add_number(std::uint64_t number) {
    std::array<char, 8> bytes{};
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(number >> (8 * i));
    add({bytes.data(), bytes.size()});
  }
  std::string digest() {
    std::array<unsigned char, SHA256_DIGEST_LENGTH> out{};
    SHA256_Final(out.data(), &state_);
    return {out.begin(), out.end()};
  }

 private:
  SHA256_CTX state_;
};

}  // namespace

std::string hash_bytes(std::string_view bytes) {
  Sha256 hash;
  hash.add(bytes);
  return hash.digest();
}

std::string_view piece_hash(const wire::FileEntry& entry, std::uint64_t piece) {
  return std::string_view(entry.hashes)
      .substr(piece * wire::kPieceHashBytes, wire::kPieceHashBytes);
}

std::string tree_hash(const std::vector<wire::FileEntry>& entries) {
  Sha256 hash;
  hash.add("sortie tree 1\n");
  for (const wire::FileEntry& entry : entries) {
    hash.add_part(entry.path);
    hash.add_number(static_cast<std::uint64_t>(entry.kind));
    hash.add_number(entry.mode);
    hash.add_number(entry.size);
    hash.add_part(entry.hashes);
    hash.add_part(entry.link_target);
  }
  return hex(hash.digest());
}

void add_piece(std::vector<wire::PieceRange>& ranges, std::uint32_t entry, std::uint32_t piece) {
  if (!ranges.empty() && ranges.back().entry == entry &&
      ranges.back().first + ranges.back().count == piece)
    ++ranges.back().count;
  else
    ranges.push_back({entry, piece, 1});
}

std::uint64_t total_bytes(const std::vector<wire::FileEntry>& entries) {
  std::uint64_t bytes = 0;
  for (const wire::FileEntry& entry : entries) bytes += entry.size;
  return bytes;
}

}  // namespace sortie::files

// FNV-1a: a hash for short names, the same on every machine and in every version. Not resistant to
// deliberate collisions.
#pragma once

#include <cstdint>
#include <string_view>

namespace sortie {

inline std::uint32_t fnv1a_32(std::string_view bytes) {
  std::uint32_t hash = 0x811c9dc5u;
  for (const char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 0x01000193u;
  return hash;
}

inline std::uint64_t fnv1a_64(std::string_view bytes) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

}  // namespace sortie

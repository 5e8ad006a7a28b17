// The header of each message of an exchange.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include <fmt/format.h>

namespace sortie::trainer::outer {

enum class ExchangePhase : std::uint64_t { change, mean, all };

/// Little-endian, sent as it is in memory. Both sides know all fields beforehand: the header
/// verifies that they agree.
struct ExchangeHeader {
  std::uint64_t magic = 0x3165786574726f73;  // "sortexe1"
  std::uint64_t epoch = 0;
  std::int64_t round = 0, fragment = 0;
  ExchangePhase phase = ExchangePhase::change;
  std::uint64_t wire = 0, block = 0;
  std::uint64_t chunk = 0;     // index of the member that owns it
  std::uint64_t begin = 0;     // first value, in the vector
  std::uint64_t values = 0;    // in this message
  std::uint64_t elements = 0;  // of the vector
  bool operator==(const ExchangeHeader&) const = default;
};
static_assert(sizeof(ExchangeHeader) == 88);

/// Describes the first field in which `got` differs: "its round is 8, not 7"; empty if none does.
inline std::string difference(std::span<const std::byte> got, const ExchangeHeader& wanted) {
  constexpr std::array kNames{"format", "epoch", "round",       "fragment", "phase", "wire",
                              "block",  "chunk", "first value", "size",     "vector"};
  static_assert(kNames.size() * 8 == sizeof(ExchangeHeader));
  std::array<std::uint64_t, kNames.size()> is{}, should{};
  std::memcpy(is.data(), got.data(), sizeof(is));
  std::memcpy(should.data(), &wanted, sizeof(should));
  for (std::size_t i = 0; i < kNames.size(); ++i)
    if (is[i] != should[i]) return fmt::format("its {} is {}, not {}", kNames[i], is[i], should[i]);
  return "";
}

}  // namespace sortie::trainer::outer

// Random numbers as a pure function of (key, index): the same on every layout and after every
// resume.
#pragma once

#include <cstdint>
#include <string_view>

#include "common/base/host_device.h"

namespace sortie::trainer {

/// SplitMix64's finaliser (Steele, Lea & Flood 2014): a bijection of 64 bits in which every bit of
/// z changes every bit of the result. Maps 0 to 0.
SORTIE_HOST_DEVICE constexpr std::uint64_t mix64(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

/// The increment of SplitMix64's counter.
inline constexpr std::uint64_t kMixStep = 0x9e3779b97f4a7c15ull;

/// 64 well-mixed bits: number `index` of the SplitMix64 sequence that starts at `key`.
SORTIE_HOST_DEVICE constexpr std::uint64_t random_bits(std::uint64_t key, std::uint64_t index = 0) {
  return mix64(key + kMixStep * (index + 1));
}

/// Uniform in (0, 1), never 0 or 1.
SORTIE_HOST_DEVICE inline double random_uniform(std::uint64_t key, std::uint64_t index) {
  return (static_cast<double>(random_bits(key, index) >> 12) + 0.5) * 0x1p-52;
}

/// Standard normal: Box & Muller 1958, pairs of neighbouring indices share two uniforms. The same
/// bits on every CPU and GPU.
float random_normal(std::uint64_t key, std::uint64_t index);

/// The key of a named stream under a seed (FNV-1a of the name, mixed with the seed).
std::uint64_t random_key(std::uint64_t seed, std::string_view name);

}  // namespace sortie::trainer

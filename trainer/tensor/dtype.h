// Element types of tensors.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace sortie::trainer {

enum class DType : std::uint8_t { f32, bf16, i32 };

constexpr std::size_t dtype_bytes(DType dtype) {
  return dtype == DType::bf16 ? 2 : 4;
}
constexpr std::string_view dtype_name(DType dtype) {
  return dtype == DType::f32 ? "f32" : dtype == DType::bf16 ? "bf16" : "i32";
}

/// bfloat16 storage: the upper half of an f32. Conversion rounds to nearest even and keeps NaN a
/// NaN.
struct bf16 {
  std::uint16_t bits = 0;

  bf16() = default;
  explicit bf16(float value) {
    const auto wide = std::bit_cast<std::uint32_t>(value);
    if ((wide & 0x7fffffffu) > 0x7f800000u)
      bits = static_cast<std::uint16_t>((wide >> 16) | 0x40u);
    else
      bits = static_cast<std::uint16_t>((wide + 0x7fffu + ((wide >> 16) & 1u)) >> 16);
  }
  explicit operator float() const {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }
};
static_assert(sizeof(bf16) == 2);

template <class T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<float>() {
  return DType::f32;
}
template <>
constexpr DType dtype_of<bf16>() {
  return DType::bf16;
}
template <>
constexpr DType dtype_of<std::int32_t>() {
  return DType::i32;
}

}  // namespace sortie::trainer

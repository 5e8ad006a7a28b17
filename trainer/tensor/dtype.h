// Element types of tensors.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace sortie::trainer {

enum class DType : std::uint8_t { f32, bf16, i32, f64, i64, u8 };

constexpr std::size_t dtype_bytes(DType dtype) {
  switch (dtype) {
    case DType::u8:
      return 1;
    case DType::bf16:
      return 2;
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::f64:
    case DType::i64:
      return 8;
  }
  return 0;
}
constexpr std::string_view dtype_name(DType dtype) {
  switch (dtype) {
    case DType::u8:
      return "u8";
    case DType::bf16:
      return "bf16";
    case DType::f32:
      return "f32";
    case DType::i32:
      return "i32";
    case DType::f64:
      return "f64";
    case DType::i64:
      return "i64";
  }
  return "?";
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
template <>
constexpr DType dtype_of<double>() {
  return DType::f64;
}
template <>
constexpr DType dtype_of<std::int64_t>() {
  return DType::i64;
}
template <>
constexpr DType dtype_of<std::uint8_t>() {
  return DType::u8;
}

}  // namespace sortie::trainer

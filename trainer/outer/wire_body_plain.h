// The wire formats that are no minifloats: f32 and bf16, which have no scales, and int8. Included
// by wire_body.h.

bool encode_f32(const float* values, int64_t n, int64_t, uint8_t* payload, uint8_t*) {
  __builtin_memcpy(payload, values, static_cast<std::size_t>(n) * 4);
  return top_of(values, n) < kInfinity;
}

template <bool kAdd>
bool decode_f32(float weight, const uint8_t* payload, const uint8_t*, int64_t n, int64_t,
                float* out) {
  float values[kStep];
  uint32_t top = 0;
  for (int64_t begin = 0; begin < n; begin += kStep) {
    const int64_t count = least(n - begin, kStep);
    __builtin_memcpy(values, payload + begin * 4, static_cast<std::size_t>(count) * 4);
    const uint32_t here = top_of(values, count);
    top = here > top ? here : top;
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) put<kAdd>(out + begin + i, weight, values[i]);
  }
  return top < kInfinity;
}

/// Rounds to nearest, ties to even; what would round to infinity becomes the largest finite number.
bool encode_bf16(const float* values, int64_t n, int64_t, uint8_t* payload, uint8_t*) {
  std::uint16_t rounded[kStep];
  uint32_t top = 0;
  for (int64_t begin = 0; begin < n; begin += kStep) {
    const int64_t count = least(n - begin, kStep);
    const uint32_t here = top_of(values + begin, count);
    top = here > top ? here : top;
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t bits = as_bits(values[begin + i]);
      const uint32_t magnitude = bits & kMagnitude;
      const uint32_t nearest = (magnitude + 0x7fffu + ((magnitude >> 16) & 1u)) >> 16;
      rounded[i] = static_cast<std::uint16_t>((nearest < 0x7f7fu ? nearest : 0x7f7fu) |
                                              ((bits >> 31) << 15));
    }
    __builtin_memcpy(payload + begin * 2, rounded, static_cast<std::size_t>(count) * 2);
  }
  return top < kInfinity;
}

template <bool kAdd>
bool decode_bf16(float weight, const uint8_t* payload, const uint8_t*, int64_t n, int64_t,
                 float* out) {
  std::uint16_t narrow[kStep];
  uint32_t top = 0;
  for (int64_t begin = 0; begin < n; begin += kStep) {
    const int64_t count = least(n - begin, kStep);
    __builtin_memcpy(narrow, payload + begin * 2, static_cast<std::size_t>(count) * 2);
#pragma omp simd reduction(max : top)
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t bits = static_cast<uint32_t>(narrow[i]) << 16;
      const uint32_t magnitude = bits & kMagnitude;
      top = magnitude > top ? magnitude : top;
      put<kAdd>(out + begin + i, weight, as_float(bits));
    }
  }
  return top < kInfinity;
}

constexpr uint32_t kLargestScale = 0x7c010203u;  // 127 times the next larger one is infinite

/// The scale is 1/127 of the largest magnitude, but at least the smallest normal f32, so that its
/// inverse is finite.
bool encode_int8(const float* values, int64_t n, int64_t block, uint8_t* payload, uint8_t* scales) {
  constexpr float kRound = 12582912.0f;  // 1.5 x 2^23: the sum's last place is 1
  bool finite = true;
  for (int64_t at = 0; at < n; at += block, scales += 4) {
    const int64_t count = least(block, n - at);
    const uint32_t top = top_of(values + at, count);
    finite &= top < kInfinity;
    const float exact = as_float(top) / 127.0f;
    const float large = exact > 0x1p-126f ? exact : 0x1p-126f;
    const float scale = as_float(as_bits(large) < kLargestScale ? as_bits(large) : kLargestScale);
    const float inverse = 1.0f / scale;
    __builtin_memcpy(scales, &scale, 4);
    uint8_t* codes = payload + at;
#pragma omp simd
    for (int64_t i = 0; i < count; ++i)
      codes[i] = static_cast<uint8_t>(as_bits(values[at + i] * inverse + kRound) - as_bits(kRound));
    for (int64_t i = count; i < block; ++i) codes[i] = 0;
  }
  return finite;
}

template <bool kAdd>
bool decode_int8(float weight, const uint8_t* payload, const uint8_t* scales, int64_t n,
                 int64_t block, float* out) {
  bool good = true;
  for (int64_t at = 0; at < n; at += block, scales += 4) {
    float scale = 0;
    __builtin_memcpy(&scale, scales, 4);
    good &= as_bits(scale) <= kLargestScale;
    const int64_t count = least(block, n - at);
    const auto* codes = reinterpret_cast<const std::int8_t*>(payload + at);
    std::int8_t low = 0;
#pragma omp simd reduction(min : low)
    for (int64_t i = 0; i < count; ++i) low = codes[i] < low ? codes[i] : low;
    good &= low > -128;
#pragma omp simd
    for (int64_t i = 0; i < count; ++i)
      put<kAdd>(out + at + i, weight, static_cast<float>(codes[i]) * scale);
  }
  return good;
}

// Element loads, stores, exp and the normal distribution for the row kernels. Included inside the
// namespace of one instruction set by body.h: nothing here may be shared between sets, so no inline
// function of another header is called (its one linked copy could hold the wider set's code).

#define SORTIE_INLINE static inline __attribute__((always_inline))

struct b16 {
  std::uint16_t bits;
};

SORTIE_INLINE float as_float(std::uint32_t bits) {
  return __builtin_bit_cast(float, bits);
}
SORTIE_INLINE std::uint32_t as_bits(float value) {
  return __builtin_bit_cast(std::uint32_t, value);
}

SORTIE_INLINE float load(const float* p) {
  return *p;
}
SORTIE_INLINE float load(const b16* p) {
  return as_float(static_cast<std::uint32_t>(p->bits) << 16);
}
SORTIE_INLINE void store(float* p, float value) {
  *p = value;
}
/// Rounds to nearest even, keeps NaN a NaN: the same bits as bf16(float) of dtype.h.
SORTIE_INLINE void store(b16* p, float value) {
  const std::uint32_t wide = as_bits(value);
  const std::uint32_t rounded = (wide + 0x7fffu + ((wide >> 16) & 1u)) >> 16;
  const std::uint32_t quiet = (wide >> 16) | 0x40u;
  p->bits = static_cast<std::uint16_t>((wide & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}
/// The value that a load after the store would return.
SORTIE_INLINE float rounded(const float*, float value) {
  return value;
}
SORTIE_INLINE float rounded(const b16*, float value) {
  b16 narrow;
  store(&narrow, value);
  return load(&narrow);
}

/// e^x within 2 ulp on [-87.3, 88.7]; 0 below, clamped to e^88.7 above; NaN stays NaN.
/// e^x = 2^n e^r with |r| <= ln(2) / 2, Taylor in r to the seventh order (error 5e-9).
SORTIE_INLINE float exp_clamped(float x) {
  const float high = x > 88.7f ? 88.7f : x;
  const float y = high < -87.3f ? -87.3f : high;
  const float shifted = y * 1.44269504f + 12582912.0f;  // 1.5 * 2^23: rounds to the nearest integer
  const float n = shifted - 12582912.0f;
  const float r = (y - n * 0.693145752f) - n * 1.42860677e-6f;
  float p = 1.0f / 5040.0f;
  p = p * r + 1.0f / 720.0f;
  p = p * r + 1.0f / 120.0f;
  p = p * r + 1.0f / 24.0f;
  p = p * r + 1.0f / 6.0f;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const float power = as_float((as_bits(shifted) << 23) + 0x3f800000u);
  const float result = p * power;
  return x < -87.3f ? 0.0f : result;
}

/// Upper tail of the normal distribution for x >= 0, given half_square_exp = e^(-x^2 / 2):
/// Q(x) = erfc(x / sqrt 2) / 2 = half_square_exp * t * P(t), t = 1 / (1 + 0.4 x / sqrt 2).
/// P is the Chebyshev interpolation (degree 9, relative error 1.6e-8) of e^(z^2) erfc(z) / t on
/// z in [0, 9.5]; beyond, half_square_exp is 0.
SORTIE_INLINE float normal_tail(float x, float half_square_exp) {
  const float t = 1.0f / (1.0f + 0.282842712f * x);
  const float u = t * 2.52631579f - 1.52631579f;
  float p = -8.188328443e-06f;
  p = p * u + 2.218426286e-05f;
  p = p * u + 0.0001080903903f;
  p = p * u - 0.0003325894986f;
  p = p * u - 0.001701408307f;
  p = p * u + 0.002624147190f;
  p = p * u + 0.03779095179f;
  p = p * u + 0.1422546914f;
  p = p * u + 0.3220553248f;
  p = p * u + 0.4971867974f;
  return 0.5f * half_square_exp * t * p;
}

#include "trainer/outer/wire.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <thread>
#include <vector>

#include "common/base/check.h"
#include "common/config/outer.h"
#include "trainer/outer/wire_kernels.h"

namespace sortie::trainer::outer {

namespace baseline {
extern const WireTable kWires;
}
namespace avx2 {
extern const WireTable kWires;
}
namespace avx512 {
extern const WireTable kWires;
}

const WireTable& wire_table(ops::Isa isa) {
  SORTIE_CHECK(isa <= ops::best_isa(), "this CPU has no {}", ops::isa_name(isa));
  return isa == ops::Isa::avx512 ? avx512::kWires
         : isa == ops::Isa::avx2 ? avx2::kWires
                                 : baseline::kWires;
}

namespace {

using config::OuterWire;
static_assert(std::endian::native == std::endian::little);

struct Layout {
  std::size_t bits;         // of a code
  std::size_t scale_bytes;  // of a block; 0 = no scales and no blocks
  const WireKernels WireTable::*kernels;
};

Layout layout_of(OuterWire wire) {
  switch (wire) {
    case OuterWire::f32:
      return {32, 0, &WireTable::f32};
    case OuterWire::bf16:
      return {16, 0, &WireTable::bf16};
    case OuterWire::int8:
      return {8, 4, &WireTable::int8};
    case OuterWire::e4m3:
      return {8, 1, &WireTable::e4m3};
    case OuterWire::e5m2:
      return {8, 1, &WireTable::e5m2};
    case OuterWire::e2m1:
      return {4, 1, &WireTable::e2m1};
    case OuterWire::e3m0:
      return {4, 1, &WireTable::e3m0};
  }
  SORTIE_CHECK(false, "wire {}", static_cast<int>(wire));
}

/// Calls `one(first value, number of values, first byte of codes, first byte of scales)` for parts
/// of whole blocks, each on a separate thread. Returns whether all calls return true.
template <class One>
bool in_parts(const WireFormat& format, const Layout& layout, std::size_t values,
              std::size_t encoded, int threads, const One& one) {
  SORTIE_CHECK(format.block >= 2 && format.block % 2 == 0, "block of {} values", format.block);
  SORTIE_CHECK(encoded == encoded_bytes(format, values), "{} values in {} bytes", values, encoded);
  if (values == 0) return true;
  const auto block = static_cast<std::size_t>(format.block);
  const std::size_t blocks = (values + block - 1) / block;
  const std::size_t scales_at = encoded - blocks * layout.scale_bytes;
  // Fewer values are not worth a thread.
  constexpr std::size_t kFewest = 1 << 15;
  const std::size_t most = std::max<std::size_t>(values / kFewest, 1);
  const std::size_t parts = std::clamp<std::size_t>(static_cast<std::size_t>(threads), 1, most);
  const auto part = [&](std::size_t number) {
    const std::size_t first = blocks * number / parts, last = blocks * (number + 1) / parts;
    const std::size_t begin = first * block, end = std::min(last * block, values);
    return one(begin, static_cast<std::int64_t>(end - begin), begin * layout.bits / 8,
               scales_at + first * layout.scale_bytes);
  };
  if (parts == 1) return part(0);
  // Not OpenMP threads: these would keep spinning for a while and compete with training.
  std::atomic<bool> good{true};
  std::vector<std::jthread> helpers;
  for (std::size_t number = 1; number < parts; ++number)
    helpers.emplace_back([&, number] {
      if (!part(number)) good = false;
    });
  if (!part(0)) good = false;
  helpers.clear();
  return good;
}

using Decode = bool (*)(float, const std::uint8_t*, const std::uint8_t*, std::int64_t, std::int64_t,
                        float*);

bool decode_by(const WireFormat& format, const Layout& layout, Decode kernel, float weight,
               std::span<const std::byte> bytes, std::span<float> values, int threads) {
  const auto* from = reinterpret_cast<const std::uint8_t*>(bytes.data());
  return in_parts(
      format, layout, values.size(), bytes.size(), threads,
      [&](std::size_t begin, std::int64_t count, std::size_t codes, std::size_t scales) {
        return kernel(weight, from + codes, from + scales, count, format.block,
                      values.data() + begin);
      });
}

}  // namespace

std::size_t encoded_bytes(const WireFormat& format, std::size_t values) {
  const Layout layout = layout_of(format.wire);
  if (layout.scale_bytes == 0) return values * layout.bits / 8;
  const auto block = static_cast<std::size_t>(format.block);
  const std::size_t blocks = (values + block - 1) / block;
  return blocks * (block * layout.bits / 8 + layout.scale_bytes);
}

bool encode(const WireFormat& format, std::span<const float> values, std::span<std::byte> out,
            const WireWork& work) {
  const Layout layout = layout_of(format.wire);
  const auto kernel = (wire_table(work.isa).*layout.kernels).encode;
  auto* to = reinterpret_cast<std::uint8_t*>(out.data());
  return in_parts(
      format, layout, values.size(), out.size(), work.threads,
      [&](std::size_t begin, std::int64_t count, std::size_t codes, std::size_t scales) {
        return kernel(values.data() + begin, count, format.block, to + codes, to + scales);
      });
}

bool decode(const WireFormat& format, std::span<const std::byte> bytes, std::span<float> values,
            const WireWork& work) {
  const Layout layout = layout_of(format.wire);
  return decode_by(format, layout, (wire_table(work.isa).*layout.kernels).decode, 0.0f, bytes,
                   values, work.threads);
}

bool decode_add(const WireFormat& format, float weight, std::span<const std::byte> bytes,
                std::span<float> sum, const WireWork& work) {
  const Layout layout = layout_of(format.wire);
  return decode_by(format, layout, (wire_table(work.isa).*layout.kernels).decode_add, weight, bytes,
                   sum, work.threads);
}

}  // namespace sortie::trainer::outer

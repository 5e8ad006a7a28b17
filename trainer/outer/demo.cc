#include "trainer/outer/demo.h"

#include <algorithm>
#include <array>
#include <bit>
#include <functional>

#include "common/base/check.h"
#include "common/config/outer.h"
#include "trainer/outer/wire.h"

namespace sortie::trainer::outer {
namespace {

WireFormat format_of(std::size_t slots) {
  return {config::OuterWire::e4m3, static_cast<std::int64_t>(slots)};
}

/// The `kept` largest magnitudes, of equal ones the earlier; indices ascend.
void choose(std::span<const float> coefficients, std::size_t kept,
            std::vector<std::uint64_t>& order, std::span<std::uint16_t> chosen) {
  order.resize(coefficients.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(coefficients[i]) & 0x7fffffffu;
    order[i] = std::uint64_t{magnitude} << 32 | (0xffffffffu - i);
  }
  const auto last = order.begin() + static_cast<std::ptrdiff_t>(kept);
  if (last != order.end()) std::nth_element(order.begin(), last, order.end(), std::greater<>());
  for (std::size_t i = 0; i < kept; ++i)
    chosen[i] = static_cast<std::uint16_t>(0xffffffffu - (order[i] & 0xffffffffu));
  std::ranges::sort(chosen.first(kept));
}

}  // namespace

std::size_t tile_side(std::size_t dimension) {
  std::size_t side = std::min(dimension, CosineTransform::kLargest);
  while (dimension % side != 0) --side;
  return side;
}

void pack_indices(std::span<const std::uint16_t> indices, std::span<std::byte> out) {
  SORTIE_CHECK(indices.size() % 2 == 0 && out.size() == indices.size() / 2 * 3);
  for (std::size_t i = 0; i < indices.size() / 2; ++i) {
    const std::uint32_t pair = indices[2 * i] | static_cast<std::uint32_t>(indices[2 * i + 1])
                                                    << 12;
    for (std::size_t j = 0; j < 3; ++j)
      out[3 * i + j] = static_cast<std::byte>(pair >> (8 * j) & 0xff);
  }
}

void unpack_indices(std::span<const std::byte> bytes, std::span<std::uint16_t> out) {
  SORTIE_CHECK(out.size() % 2 == 0 && bytes.size() == out.size() / 2 * 3);
  for (std::size_t i = 0; i < out.size() / 2; ++i) {
    std::uint32_t pair = 0;
    for (std::size_t j = 0; j < 3; ++j)
      pair |= std::to_integer<std::uint32_t>(bytes[3 * i + j]) << (8 * j);
    out[2 * i] = static_cast<std::uint16_t>(pair & 0xfff);
    out[2 * i + 1] = static_cast<std::uint16_t>(pair >> 12);
  }
}

Demo::Demo(std::vector<DemoTensor> tensors, const DemoSettings& settings) : settings_(settings) {
  SORTIE_CHECK(settings.top_k >= 1, "top_k {}", settings.top_k);
  std::size_t elements = 0;
  for (const DemoTensor& tensor : tensors) {
    SORTIE_CHECK(tensor.offset == elements, "a tensor at {}, not {}", tensor.offset, elements);
    elements += tensor.rows * tensor.columns;
    const std::pair side{tile_side(tensor.rows), tile_side(tensor.columns)};
    Part part{tensor, &transforms_.try_emplace(side, side.first, side.second).first->second};
    part.tiles = tensor.rows * tensor.columns / part.transform->size();
    part.kept = std::min(static_cast<std::size_t>(settings.top_k), part.transform->size());
    part.slots = part.kept + part.kept % 2;
    part.indices = message_bytes_;
    part.values = part.indices + part.index_bytes();
    message_bytes_ = part.values + part.value_bytes();
    parts_.push_back(part);
  }
  momentum_.resize(elements);
  next_.resize(elements);
}

void Demo::restore(std::span<const float> momentum) {
  SORTIE_CHECK(momentum.size() == momentum_.size());
  std::ranges::copy(momentum, momentum_.begin());
}

bool Demo::compress(std::span<const float> gradient, float rate, std::span<std::byte> message) {
  SORTIE_CHECK(gradient.size() == elements() && message.size() == message_bytes_);
  const auto decay = static_cast<float>(settings_.decay);
  for (std::size_t i = 0; i < next_.size(); ++i)
    next_[i] = decay * momentum_[i] + rate * gradient[i];
  std::array<float, CosineTransform::kLargest * CosineTransform::kLargest> tile;
  std::vector<std::uint64_t> order;
  std::vector<std::uint16_t> indices;
  std::vector<float> values;
  std::vector<Coefficient> sent;
  for (const Part& part : parts_) {
    const std::span<float> work(tile.data(), part.transform->size());
    indices.assign(part.tiles * part.slots, 0);
    values.assign(part.tiles * part.slots, 0.0f);
    for (std::size_t number = 0; number < part.tiles; ++number) {
      part.transform->forward(next_.data() + part.begin_of(number), part.tensor.columns, work);
      const auto chosen = std::span(indices).subspan(number * part.slots, part.kept);
      choose(work, part.kept, order, chosen);
      for (std::size_t i = 0; i < part.kept; ++i) values[number * part.slots + i] = work[chosen[i]];
    }
    pack_indices(indices, message.subspan(part.indices, part.index_bytes()));
    if (!encode(format_of(part.slots), values, message.subspan(part.values, part.value_bytes())))
      return false;
    SORTIE_CHECK(read(part, message, sent));
    for (std::size_t number = 0; number < part.tiles; ++number) {
      part.transform->inverse(std::span(sent).subspan(number * part.kept, part.kept), work);
      float* to = next_.data() + part.begin_of(number);
      for (std::size_t row = 0; row < part.transform->rows(); ++row)
        for (std::size_t i = 0; i < part.transform->columns(); ++i)
          to[row * part.tensor.columns + i] -= work[row * part.transform->columns() + i];
    }
  }
  std::swap(momentum_, next_);
  return true;
}

bool Demo::read(const Part& part, std::span<const std::byte> message,
                std::vector<Coefficient>& coefficients) {
  std::vector<std::uint16_t> indices(part.tiles * part.slots);
  std::vector<float> values(part.tiles * part.slots);
  unpack_indices(message.subspan(part.indices, part.index_bytes()), indices);
  if (!decode(format_of(part.slots), message.subspan(part.values, part.value_bytes()), values))
    return false;
  coefficients.clear();
  for (std::size_t number = 0; number < part.tiles; ++number)
    for (std::size_t i = 0; i < part.kept; ++i) {
      const std::size_t at = number * part.slots + i;
      if (indices[at] >= part.transform->size() || (i > 0 && indices[at] <= indices[at - 1]))
        return false;
      coefficients.push_back({indices[at], values[at]});
    }
  return true;
}

bool Demo::apply(std::span<const std::span<const std::byte>> messages, float rate,
                 float weight_decay, std::span<float> weights) const {
  SORTIE_CHECK(weights.size() == elements());
  std::vector<std::vector<std::vector<Coefficient>>> sent(parts_.size());
  for (std::size_t i = 0; i < parts_.size(); ++i)  // all are read before anything changes
    for (const auto message : messages)
      if (message.size() != message_bytes_ || !read(parts_[i], message, sent[i].emplace_back()))
        return false;
  const float shrunk = rate * weight_decay;
  std::array<float, CosineTransform::kLargest * CosineTransform::kLargest> sum, tile;
  std::array<std::uint16_t, sum.size()> senders;
  std::vector<Coefficient> mean;
  for (std::size_t p = 0; p < parts_.size(); ++p) {
    const Part& part = parts_[p];
    const CosineTransform& transform = *part.transform;
    for (std::size_t number = 0; number < part.tiles; ++number) {
      std::fill_n(sum.begin(), transform.size(), 0.0f);
      std::fill_n(senders.begin(), transform.size(), std::uint16_t{0});
      for (const auto& site : sent[p])
        for (const Coefficient& one : std::span(site).subspan(number * part.kept, part.kept)) {
          sum[one.index] += one.value;
          ++senders[one.index];
        }
      mean.clear();
      for (std::uint32_t i = 0; i < transform.size(); ++i)
        if (senders[i] > 0) mean.push_back({i, sum[i] / static_cast<float>(senders[i])});
      const std::span<float> step(tile.data(), transform.size());
      transform.inverse(mean, step);
      float* to = weights.data() + part.begin_of(number);
      for (std::size_t row = 0; row < transform.rows(); ++row)
        for (std::size_t i = 0; i < transform.columns(); ++i) {
          float& weight = to[row * part.tensor.columns + i];
          const float q = step[row * transform.columns() + i];
          const float sign = q > 0 ? 1.0f : q < 0 ? -1.0f : 0.0f;
          weight = weight - shrunk * weight - rate * sign;
        }
    }
  }
  return true;
}

}  // namespace sortie::trainer::outer

#include "trainer/outer/demo.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>
#include <span>
#include <utility>
#include <vector>

#include "trainer/outer/cosine_transform.h"
#include "trainer/random/random.h"

namespace {

using namespace sortie;
using namespace sortie::trainer;
using outer::Coefficient;
using outer::CosineTransform;
using outer::Demo;
using outer::DemoTensor;

std::vector<float> normals(std::size_t count, std::uint64_t key) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = random_normal(key, i);
  return values;
}

/// The definition, in f64.
std::vector<double> plain_transform(const std::vector<float>& x, std::size_t rows,
                                    std::size_t columns) {
  const auto basis = [](std::size_t size, std::size_t k, std::size_t n) {
    const double scale = std::sqrt((k == 0 ? 1.0 : 2.0) / static_cast<double>(size));
    return scale * std::cos(std::numbers::pi * static_cast<double>((2 * n + 1) * k) /
                            static_cast<double>(2 * size));
  };
  std::vector<double> out(rows * columns);
  for (std::size_t k = 0; k < rows; ++k)
    for (std::size_t l = 0; l < columns; ++l)
      for (std::size_t r = 0; r < rows; ++r)
        for (std::size_t c = 0; c < columns; ++c)
          out[k * columns + l] +=
              basis(rows, k, r) * basis(columns, l, c) * static_cast<double>(x[r * columns + c]);
  return out;
}

std::vector<std::byte> compressed(Demo& demo, const std::vector<float>& gradient, float rate) {
  std::vector<std::byte> message(demo.message_bytes());
  REQUIRE(demo.compress(gradient, rate, message));
  return message;
}

const std::vector<DemoTensor> kTensors{
    {0, 128, 96}, {128 * 96, 1, 70}, {128 * 96 + 70, 1, 1}, {128 * 96 + 71, 5, 67}};
constexpr std::size_t kElements = 128 * 96 + 71 + 5 * 67;

}  // namespace

TEST_CASE("tiles are transformed as the orthonormal DCT-II is defined, and back") {
  for (const auto& [rows, columns] :
       {std::pair<std::size_t, std::size_t>{1, 1}, {1, 64}, {12, 20}, {64, 3}, {7, 29}}) {
    CAPTURE(rows);
    CAPTURE(columns);
    const CosineTransform transform(rows, columns);
    const auto x = normals(rows * columns, rows);
    const auto wanted = plain_transform(x, rows, columns);
    std::vector<float> got(x.size()), back(x.size());
    transform.forward(x.data(), columns, got);
    for (std::size_t i = 0; i < x.size(); ++i)
      CHECK(std::abs(static_cast<double>(got[i]) - wanted[i]) < 2e-6);
    std::vector<Coefficient> all;
    for (std::uint32_t i = 0; i < x.size(); ++i) all.push_back({i, got[i]});
    transform.inverse(all, back);
    for (std::size_t i = 0; i < x.size(); ++i) CHECK(std::abs(back[i] - x[i]) < 4e-6f);
  }
  CHECK(outer::tile_side(4096) == 64);
  CHECK(outer::tile_side(768) == 64);
  CHECK(outer::tile_side(50257) == 29);
  CHECK(outer::tile_side(67) == 1);
  CHECK(outer::tile_side(40) == 40);
}

TEST_CASE("indices of 12 bits are packed without loss, the first in the lower bits") {
  std::vector<std::uint16_t> all(4096), back(4096);
  for (std::uint16_t i = 0; i < 4096; ++i) all[i] = static_cast<std::uint16_t>(i * 1365 % 4096);
  std::vector<std::byte> bytes(4096 / 2 * 3);
  outer::pack_indices(all, bytes);
  outer::unpack_indices(bytes, back);
  CHECK(back == all);
  const std::vector<std::uint16_t> pair{0xabc, 0x123};
  std::vector<std::byte> three(3);
  outer::pack_indices(pair, three);
  CHECK(three == std::vector<std::byte>{std::byte{0xbc}, std::byte{0x3a}, std::byte{0x12}});
}

TEST_CASE("a message has 2.5 bytes per coefficient, and what is sent leaves the momentum") {
  Demo demo({{0, 128, 64}}, {.decay = 0.9, .top_k = 32});
  CHECK(demo.message_bytes() == 2 * (32 * 5 / 2 + 1));
  const auto before = normals(demo.elements(), 1), gradient = normals(demo.elements(), 2);
  demo.restore(before);
  const auto message = compressed(demo, gradient, 0.5f);
  // Of each tile the largest 32, rounded to E4M3, are gone; all others are as they were.
  const CosineTransform transform(64, 64);
  for (std::size_t tile = 0; tile < 2; ++tile) {
    std::vector<float> was(4096), is(4096), mixed(4096);
    for (std::size_t i = 0; i < 4096; ++i)
      mixed[i] = 0.9f * before[tile * 4096 + i] + 0.5f * gradient[tile * 4096 + i];
    transform.forward(mixed.data(), 64, was);
    transform.forward(demo.momentum().data() + tile * 4096, 64, is);
    std::vector<float> sizes;
    for (const float value : was) sizes.push_back(std::abs(value));
    std::ranges::sort(sizes, std::greater<>());
    const float limit = (sizes[31] + sizes[32]) / 2;
    for (std::size_t i = 0; i < 4096; ++i)
      if (std::abs(was[i]) > limit)
        CHECK(std::abs(is[i]) <= std::abs(was[i]) / 8 + 1e-5f);
      else
        CHECK(std::abs(is[i] - was[i]) < 1e-5f);
  }
}

TEST_CASE("sites move all weights alike, by the sign of the mean of what each sent") {
  std::vector<Demo> sites;
  for (int i = 0; i < 3; ++i) sites.emplace_back(kTensors, outer::DemoSettings{0.5, 4096});
  REQUIRE(sites[0].elements() == kElements);
  std::vector<std::vector<float>> weights(3, normals(kElements, 50));
  std::vector<std::vector<std::byte>> messages;
  std::vector<double> mean(kElements);
  for (std::size_t i = 0; i < 3; ++i) {
    const auto gradient = normals(kElements, 60 + i);
    for (std::size_t j = 0; j < kElements; ++j) mean[j] += static_cast<double>(gradient[j]) / 3;
    messages.push_back(compressed(sites[i], gradient, 1.0f));
  }
  const std::vector<std::span<const std::byte>> all(messages.begin(), messages.end());
  for (std::size_t i = 0; i < 3; ++i) REQUIRE(sites[i].apply(all, 0.01f, 0.1f, weights[i]));
  CHECK(weights[1] == weights[0]);
  CHECK(weights[2] == weights[0]);
  // All coefficients were sent: the signs are those of the mean, but near 0.
  const auto before = normals(kElements, 50);
  std::size_t clear = 0;
  for (std::size_t i = 0; i < kElements; ++i) {
    if (std::abs(mean[i]) < 0.15) continue;
    ++clear;
    const float wanted = before[i] - 0.001f * before[i] - (mean[i] > 0 ? 0.01f : -0.01f);
    CHECK(std::abs(weights[0][i] - wanted) < 1e-6f);
  }
  CHECK(clear > kElements / 2);
}

TEST_CASE("what is no message changes no weight, and no bad gradient the momentum") {
  Demo demo({{0, 64, 64}}, {.top_k = 4});
  const auto gradient = normals(4096, 3);
  const auto good = compressed(demo, gradient, 1.0f);
  const std::vector<float> kept(demo.momentum().begin(), demo.momentum().end());
  std::vector<float> weights(4096, 1.0f);
  const auto refused = [&](std::size_t at, int value) {
    auto bad = good;
    bad[at] = static_cast<std::byte>(value);
    const std::vector<std::span<const std::byte>> two{good, bad};
    CHECK_FALSE(demo.apply(two, 0.1f, 0.0f, weights));
  };
  refused(6, 0x7f);   // a value that is not a number
  refused(10, 0xff);  // its scale
  auto twice = good;  // an index again
  std::vector<std::uint16_t> indices(4);
  outer::unpack_indices(std::span(twice).first(6), indices);
  indices[2] = indices[1];
  outer::pack_indices(indices, std::span(twice).first(6));
  const std::vector<std::span<const std::byte>> one{twice};
  CHECK_FALSE(demo.apply(one, 0.1f, 0.0f, weights));
  const std::vector<std::span<const std::byte>> cut{std::span(good).first(5)};
  CHECK_FALSE(demo.apply(cut, 0.1f, 0.0f, weights));
  CHECK(weights == std::vector<float>(4096, 1.0f));
  for (const float bad : {NAN, INFINITY}) {
    auto broken = gradient;
    broken[77] = bad;
    std::vector<std::byte> message(demo.message_bytes());
    CHECK_FALSE(demo.compress(broken, 1.0f, message));
    CHECK(std::ranges::equal(demo.momentum(), kept));
  }
}

TEST_CASE("two sites with different goals come to the mean of them") {
  // f(w) = |w - goal|^2 / 2 with another goal per site: the mean's minimum is between them.
  const std::size_t count = 64 * 64;
  std::vector<Demo> sites;
  for (int i = 0; i < 2; ++i)
    sites.emplace_back(std::vector<DemoTensor>{{0, 64, 64}}, outer::DemoSettings{0.95, 64});
  std::vector<std::vector<float>> goals(2, std::vector<float>(count));
  for (std::size_t site = 0; site < 2; ++site)
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t row = i / 64, column = i % 64;
      goals[site][i] = std::sin(0.1f * static_cast<float>((site + 1) * row)) +
                       std::cos(0.07f * static_cast<float>(column + 30 * site));
    }
  std::vector<float> weights(count), gradient(count);
  const auto distance = [&] {
    double sum = 0;
    for (std::size_t i = 0; i < count; ++i)
      sum += std::pow(static_cast<double>(weights[i] - (goals[0][i] + goals[1][i]) / 2), 2);
    return std::sqrt(sum / static_cast<double>(count));
  };
  const double before = distance();
  for (int step = 0; step < 300; ++step) {
    const float rate = 0.02f * (1.0f - static_cast<float>(step) / 300.0f);
    std::vector<std::vector<std::byte>> messages;
    for (std::size_t site = 0; site < 2; ++site) {
      for (std::size_t i = 0; i < count; ++i) gradient[i] = weights[i] - goals[site][i];
      messages.push_back(compressed(sites[site], gradient, rate));
    }
    const std::vector<std::span<const std::byte>> both(messages.begin(), messages.end());
    REQUIRE(sites[0].apply(both, rate, 0.0f, weights));
  }
  CHECK(before > 0.5);
  CHECK(distance() < 0.1 * before);
}

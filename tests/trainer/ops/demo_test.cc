// Tests of DeMo on one matrix: the transform against its definition, the bytes of a message, and
// the recurrence against a plain one in f64.
#include "trainer/ops/demo.h"

#include <algorithm>
#include <array>
#include <functional>
#include <numbers>
#include <numeric>

#include "tests/support/open_gate.h"
#include "tests/trainer/ops/op_test.h"
#include "trainer/ops/cpu/demo_block.h"

namespace sortie::trainer {
namespace {

using ops::DemoBlock;
using ops::DemoBlocks;
using ops::DemoCoefficient;
using ops::DemoRoom;

/// Returns the two-dimensional orthonormal DCT-II of a block, or its inverse, by the definition in
/// f64.
Values plain_cosine_transform(const Values& x, std::int64_t rows, std::int64_t columns,
                              bool inverse) {
  const auto basis = [](std::int64_t size, std::int64_t k, std::int64_t n) {
    const double scale = std::sqrt((k == 0 ? 1.0 : 2.0) / static_cast<double>(size));
    return scale * std::cos(std::numbers::pi * static_cast<double>((2 * n + 1) * k) /
                            static_cast<double>(2 * size));
  };
  const auto along_rows = [&](std::int64_t to, std::int64_t from) {
    return inverse ? basis(rows, from, to) : basis(rows, to, from);
  };
  const auto along_columns = [&](std::int64_t to, std::int64_t from) {
    return inverse ? basis(columns, from, to) : basis(columns, to, from);
  };
  Values half(x.size()), out(x.size());
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t to = 0; to < columns; ++to)
      for (std::int64_t c = 0; c < columns; ++c)
        half[static_cast<std::size_t>(r * columns + to)] +=
            along_columns(to, c) * x[static_cast<std::size_t>(r * columns + c)];
  for (std::int64_t to = 0; to < rows; ++to)
    for (std::int64_t c = 0; c < columns; ++c)
      for (std::int64_t r = 0; r < rows; ++r)
        out[static_cast<std::size_t>(to * columns + c)] +=
            along_rows(to, r) * half[static_cast<std::size_t>(r * columns + c)];
  return out;
}

void put_block(const Values& x, std::int64_t rows, std::int64_t columns, DemoRoom& room) {
  std::ranges::fill(room.values, 0.0f);
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < columns; ++c)
      room.values[r * ops::kDemoLine + c] =
          static_cast<float>(x[static_cast<std::size_t>(r * columns + c)]);
}

Values take_block(const float* from, std::int64_t rows, std::int64_t columns) {
  Values x;
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < columns; ++c)
      x.push_back(static_cast<double>(from[r * ops::kDemoLine + c]));
  return x;
}

std::vector<ops::Isa> isas() {
  std::vector<ops::Isa> found;
  for (const ops::Isa isa : {ops::Isa::baseline, ops::Isa::avx2, ops::Isa::avx512})
    if (isa <= ops::best_isa()) found.push_back(isa);
  return found;
}

const std::pair<std::int64_t, std::int64_t> kSizes[] = {
    {1, 1}, {1, 64}, {12, 20}, {64, 3}, {7, 29}, {64, 64}, {43, 44}, {2, 33}, {63, 63}, {5, 1}};

}  // namespace

TEST_CASE("DeMo: a block's transform is the orthonormal DCT-II, with the same bits on every set") {
  for (const auto& [rows, columns] : kSizes) {
    CAPTURE(rows);
    CAPTURE(columns);
    const Values x = random_values(DType::f32, 7, rows * columns);
    const Values wanted = plain_cosine_transform(x, rows, columns, false);
    Values first, first_back;
    for (const ops::Isa isa : isas()) {
      const auto room = std::make_unique<DemoRoom>();
      const DemoBlock block(ops::demo_kernels(isa), rows, columns);
      put_block(x, rows, columns, *room);
      block.transform(*room);
      const Values got = take_block(room->coefficients, rows, columns);
      CHECK(relative_error(got, wanted) < 1e-6);
      std::vector<DemoCoefficient> all;
      for (std::size_t i = 0; i < got.size(); ++i)
        all.push_back({static_cast<std::uint16_t>(static_cast<std::int64_t>(i) / columns),
                       static_cast<std::uint16_t>(static_cast<std::int64_t>(i) % columns),
                       static_cast<float>(got[i])});
      block.restore(all, *room);
      const Values back = take_block(room->values, rows, columns);
      CHECK(relative_error(back, x) < 3e-6);
      if (first.empty()) {
        first = got;
        first_back = back;
      }
      CHECK(got == first);
      CHECK(back == first_back);
    }
  }
}

TEST_CASE("DeMo: a block is restored from some of its coefficients as the plain sum is") {
  const auto room = std::make_unique<DemoRoom>();
  const DemoBlock block(ops::demo_kernels(ops::best_isa()), 43, 20);
  const std::vector<DemoCoefficient> some = {
      {0, 0, 1.5f}, {0, 19, -2.0f}, {7, 3, 0.25f}, {42, 0, -1.0f}, {42, 19, 3.0f}};
  Values sparse(43 * 20);
  for (const auto& one : some) sparse[one.row * 20u + one.column] = static_cast<double>(one.value);
  block.restore(some, *room);
  CHECK(relative_error(take_block(room->values, 43, 20),
                       plain_cosine_transform(sparse, 43, 20, true)) < 1e-6);
  block.restore({}, *room);
  CHECK(take_block(room->values, 43, 20) == Values(43 * 20));
}

TEST_CASE("DeMo: the largest coefficients are chosen, of equal ones the first, in their order") {
  const auto room = std::make_unique<DemoRoom>();
  for (const auto& [rows, columns] : kSizes) {
    CAPTURE(rows);
    CAPTURE(columns);
    const DemoBlock block(ops::demo_kernels(ops::Isa::baseline), rows, columns);
    const std::int64_t count = rows * columns;
    for (const int kind : {0, 1, 2, 3}) {
      CAPTURE(kind);
      Values x = random_values(DType::f32, 3, count);
      if (kind == 1) std::ranges::fill(x, -0.5);  // all equal
      if (kind == 2)                              // few values, each many times
        for (double& value : x) value = std::round(value * 2);
      if (kind == 3) std::ranges::fill(x, 0.0);
      put_block(x, rows, columns, *room);
      std::copy_n(room->values, ops::kDemoElements, room->coefficients);
      for (const std::int64_t kept : {std::int64_t{1}, (count + 1) / 2, count}) {
        CAPTURE(kept);
        std::vector<std::size_t> wanted(x.size());
        std::iota(wanted.begin(), wanted.end(), 0u);
        std::ranges::stable_sort(wanted, std::greater<>(),
                                 [&](std::size_t i) { return std::abs(x[i]); });
        wanted.resize(static_cast<std::size_t>(kept));
        std::ranges::sort(wanted);
        std::vector<DemoCoefficient> chosen(static_cast<std::size_t>(kept));
        block.choose(*room, chosen);
        bool same = true;
        for (std::size_t i = 0; i < chosen.size(); ++i)
          same =
              same &&
              static_cast<std::size_t>(chosen[i].row * columns + chosen[i].column) == wanted[i] &&
              static_cast<double>(chosen[i].value) == x[wanted[i]];
        CHECK(same);
      }
    }
  }
}

TEST_CASE("DeMo: a message has the bytes that the format says") {
  const DemoBlock block(ops::demo_kernels(ops::Isa::baseline), 64, 64);
  // The scale is 127 / 127 = 1, in bf16: 0x3f80.
  std::vector<DemoCoefficient> three = {
      {0x0ab >> 2, 0x2c, 127.0f}, {0x123 >> 6, 0x23, -1.4f}, {63, 63, 0.2f}};
  std::vector<std::uint8_t> bytes(2 + 6 + 4, 0xee);
  ops::write_demo_message(block, three, bytes);
  // The indices 0xaac (row 42, column 44) and 0x123 share three bytes. 0xfff shares its bytes with
  // padding.
  CHECK(bytes == std::vector<std::uint8_t>{0x80, 0x3f, 0xac, 0x3a, 0x12, 0xff, 0x0f, 0x00, 0x7f,
                                           0xff, 0x00, 0x00});
  CHECK(three[1].value == -1.0f);  // as the message has it
  CHECK(three[2].value == 0.0f);
  std::vector<DemoCoefficient> read(4);
  CHECK(ops::read_demo_message(block, bytes, read) == 2);  // a value of 0 is not returned
  CHECK((read[0].row == 42 && read[0].column == 44 && read[0].value == 127.0f));
  CHECK((read[1].row == 4 && read[1].column == 35 && read[1].value == -1.0f));
}

TEST_CASE("DeMo: every index and every value comes through a message, at both places of a pair") {
  const DemoBlock block(ops::demo_kernels(ops::Isa::baseline), 64, 64);
  std::vector<std::uint8_t> bytes(2 + 5);
  std::vector<DemoCoefficient> read(2);
  bool same = true;
  for (std::uint32_t index = 0; index < 4096; ++index) {
    const std::uint32_t other = index * 1365 % 4096;
    std::vector<DemoCoefficient> two;
    for (const std::uint32_t one : {index, other})
      two.push_back({static_cast<std::uint16_t>(one / 64), static_cast<std::uint16_t>(one % 64),
                     one == index ? 1.0f : -0.5f});
    ops::write_demo_message(block, two, bytes);
    same = same && ops::read_demo_message(block, bytes, read) == 2;
    for (std::size_t i = 0; i < 2; ++i)
      same = same && read[i].row == two[i].row && read[i].column == two[i].column &&
             read[i].value == two[i].value;
  }
  CHECK(same);
  for (int value = -127; value <= 127; ++value) {
    CAPTURE(value);
    std::vector<DemoCoefficient> two = {{0, 0, 127.0f * 0x1p-20f},
                                        {1, 2, static_cast<float>(value) * 0x1p-20f}};
    const float wanted = two[1].value;
    ops::write_demo_message(block, two, bytes);
    REQUIRE(ops::read_demo_message(block, bytes, read) == (value == 0 ? 1u : 2u));
    if (value != 0) CHECK(read[1].value == wanted);
    CHECK(two[1].value == wanted);
  }
}

TEST_CASE("DeMo: a coefficient is told to half of a 127th of the largest, at every size") {
  const DemoBlock block(ops::demo_kernels(ops::Isa::baseline), 64, 64);
  for (const double size : {1e-29, 1e-10, 3e-3, 1.0, 77.7, 1e30}) {
    CAPTURE(size);
    const Values x = random_values(DType::f32, 11, 32, size);
    std::vector<DemoCoefficient> sent;
    double most = 0.0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      sent.push_back({0, static_cast<std::uint16_t>(i), static_cast<float>(x[i])});
      most = std::max(most, std::abs(x[i]));
    }
    std::vector<std::uint8_t> bytes(2 + 48 + 32);
    ops::write_demo_message(block, sent, bytes);
    for (std::size_t i = 0; i < x.size(); ++i) {
      // The scale is rounded up to 8 bits.
      const double error = std::abs(static_cast<double>(sent[i].value) - x[i]);
      CHECK(error <= 0.5 * most / 127 * (1 + 0x1p-7) * (1 + 1e-5));
    }
  }
  // Zeros, and values that are too small for a scale, are not sent. Values that are not finite are
  // sent as NaN.
  std::vector<std::uint8_t> bytes(2 + 5);
  std::vector<DemoCoefficient> read(2);
  for (const float value : {0.0f, 1e-31f, -1e-40f}) {
    std::vector<DemoCoefficient> two = {{0, 0, value}, {0, 1, 0.0f}};
    ops::write_demo_message(block, two, bytes);
    CHECK(two[0].value == 0.0f);
    CHECK(ops::read_demo_message(block, bytes, read) == 0);
  }
  for (const float value :
       {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<DemoCoefficient> two = {{0, 0, 1.0f}, {0, 1, value}};
    ops::write_demo_message(block, two, bytes);
    REQUIRE(ops::read_demo_message(block, bytes, read) == 2);
    CHECK(std::isnan(read[0].value));
  }
}

TEST_CASE("DeMo: sides are cut into as few equal parts as the chunk allows") {
  struct Case {
    std::int64_t side, chunk, parts, longest, shortest;
  };
  for (const Case& one :
       {Case{768, 64, 12, 64, 64}, Case{4096, 64, 64, 64, 64}, Case{40, 64, 1, 40, 40},
        Case{100, 64, 2, 50, 50}, Case{96, 64, 2, 48, 48}, Case{67, 64, 2, 34, 33},
        Case{50257, 64, 786, 64, 63}, Case{1, 64, 1, 1, 1}, Case{10, 1, 10, 1, 1},
        Case{33, 32, 2, 17, 16}}) {
    CAPTURE(one.side);
    const DemoBlocks blocks{.rows = one.side, .columns = 1, .chunk = one.chunk};
    CHECK(blocks.down() == one.parts);
    CHECK(blocks.count() == one.parts);
    std::int64_t longest = 0, shortest = one.side;
    for (std::int64_t i = 0; i < one.parts; ++i) {
      const std::int64_t length = DemoBlocks::begin_of(one.side, one.parts, i + 1) -
                                  DemoBlocks::begin_of(one.side, one.parts, i);
      longest = std::max(longest, length);
      shortest = std::min(shortest, length);
    }
    CHECK(DemoBlocks::begin_of(one.side, one.parts, one.parts) == one.side);
    CHECK(longest == one.longest);
    CHECK(shortest == one.shortest);
  }
  // A coefficient takes 2.5 bytes and the scale 2: 200 times less than the f32 gradients of a
  // block.
  CHECK(DemoBlocks{.rows = 64, .columns = 64}.block_bytes() == 82);
  CHECK(DemoBlocks{.rows = 1, .columns = 5, .top_k = 32}.block_bytes() == 2 + 9 + 6);
  CHECK(DemoBlocks{.rows = 64, .columns = 64, .top_k = 4096}.block_bytes() == 2 + 4096 / 2 * 5);
}

namespace {

/// A gate and rates as tensors of the device.
Tensor rate_of(ExecutionContext& context, float value) {
  return ops::tensor_from_host<float>(context, std::array{value}, {1});
}
ops::DemoSend send_step(ExecutionContext& context, float decay, float lr, float factor = 1.0f) {
  return {decay, rate_of(context, lr), test::open_gate(context, 0.9, 0.99, 1, factor)};
}
ops::DemoMove move_step(ExecutionContext& context, float lr, float weight_decay) {
  return {rate_of(context, lr), weight_decay, test::open_gate(context, 0.9, 0.99, 1)};
}

Values block_of(const Values& matrix, std::int64_t columns, std::int64_t row, std::int64_t rows,
                std::int64_t column, std::int64_t width) {
  Values block;
  for (std::int64_t r = row; r < row + rows; ++r)
    for (std::int64_t c = column; c < column + width; ++c)
      block.push_back(matrix[static_cast<std::size_t>(r * columns + c)]);
  return block;
}

}  // namespace

TEST_CASE("DeMo: what is sent leaves the momentum, and nothing else does") {
  for_each_variant(false, [](const Variant& v) {
    if (v.dtype == DType::bf16) return;
    const DemoBlocks blocks{.rows = 67, .columns = 100, .chunk = 64, .top_k = 9};
    const std::int64_t count = blocks.rows * blocks.columns;
    const Values before = random_values(DType::f32, 1, count),
                 grad = random_values(DType::f32, 2, count);
    Tensor momentum = make_tensor(v.context, DType::f32, {count}, before);
    Tensor message = v.context.zeros(DType::u8, {blocks.message_bytes()});
    ops::demo_send(v.context, send_step(v.context, 0.9f, 0.5f), blocks,
                   make_tensor(v.context, DType::f32, {count}, grad), momentum, message);
    const Values after = values_of(momentum);
    const auto bytes = numbers_of<std::uint8_t>(message);
    Values mixed(before.size());
    for (std::size_t i = 0; i < mixed.size(); ++i)
      mixed[i] = static_cast<double>(0.9f) * before[i] + 0.5 * grad[i];
    CHECK(blocks.count() == 4);
    for (std::int64_t number = 0; number < 4; ++number) {
      CAPTURE(number);
      const std::int64_t row = number / 2 == 0 ? 0 : 34, rows = number / 2 == 0 ? 34 : 33;
      const std::int64_t column = number % 2 * 50;
      const Values was = plain_cosine_transform(
          block_of(mixed, blocks.columns, row, rows, column, 50), rows, 50, false);
      const Values is = plain_cosine_transform(
          block_of(after, blocks.columns, row, rows, column, 50), rows, 50, false);
      const DemoBlock block(ops::demo_kernels(ops::Isa::baseline), rows, 50);
      std::vector<DemoCoefficient> sent(10);
      const auto at = static_cast<std::size_t>(number * blocks.block_bytes());
      const std::size_t found = ops::read_demo_message(
          block, std::span(bytes).subspan(at, static_cast<std::size_t>(blocks.block_bytes())),
          sent);
      REQUIRE(found == 9);
      Values left = was;
      double least = 1e9;
      for (const auto& one : std::span(sent).first(found)) {
        const std::size_t i = one.row * 50u + one.column;
        least = std::min(least, std::abs(was[i]));
        left[i] -= static_cast<double>(one.value);
        CHECK(std::abs(left[i]) <= std::abs(was[i]) * 0.1);
      }
      CHECK(relative_error(is, left) < 1e-5);
      CHECK(std::ranges::count_if(was,
                                  [&](double one) { return std::abs(one) > least * 1.0001; }) <= 8);
    }
  });
}

TEST_CASE("DeMo: weights move by the sign of the mean of what was sent, by hand") {
  for_each_variant(false, [](const Variant& v) {
    const std::int64_t members = 3;
    const DemoBlocks blocks{.rows = 70, .columns = 64, .chunk = 64, .top_k = 40};
    const std::int64_t count = blocks.rows * blocks.columns;
    Tensor messages = v.context.zeros(DType::u8, {members, blocks.message_bytes() + 5});
    const Tensor mine = messages.slice(1, 3, blocks.message_bytes());
    for (std::int64_t member = 0; member < members; ++member) {
      Tensor momentum = v.context.zeros(DType::f32, {count});
      Tensor message = mine.slice(0, member, 1).view({blocks.message_bytes()});
      ops::demo_send(v.context, send_step(v.context, 0.9f, 1.0f), blocks,
                     make_tensor(v.context, DType::f32, {count},
                                 random_values(20 + static_cast<std::uint64_t>(member), count)),
                     momentum, message);
    }
    const Values before = random_values(DType::f32, 30, count);
    Tensor weights = make_tensor(v.context, DType::f32, {count}, before);
    Tensor copies = v.context.zeros(DType::bf16, {count}), none;
    const bool narrow = v.dtype == DType::bf16;
    ops::demo_move(v.context, move_step(v.context, 0.01f, 0.1f), blocks, mine, weights,
                   narrow ? copies : none);
    const Values after = values_of(weights);
    std::size_t clear = 0;
    for (std::int64_t number = 0; number < 2; ++number) {
      const std::int64_t row = number * 35;
      Values sums(35 * 64), senders(sums.size());
      for (std::int64_t member = 0; member < members; ++member) {
        const auto bytes = numbers_of<std::uint8_t>(
            mine.slice(0, member, 1).slice(1, number * blocks.block_bytes(), blocks.block_bytes()));
        std::vector<DemoCoefficient> sent(40);
        const DemoBlock block(ops::demo_kernels(ops::Isa::baseline), 35, 64);
        const std::size_t found = ops::read_demo_message(block, bytes, sent);
        for (const auto& one : std::span(sent).first(found)) {
          sums[one.row * 64u + one.column] += static_cast<double>(one.value);
          senders[one.row * 64u + one.column] += 1;
        }
      }
      for (std::size_t i = 0; i < sums.size(); ++i)
        if (senders[i] > 0) sums[i] /= senders[i];
      const Values q = plain_cosine_transform(sums, 35, 64, true);
      for (std::size_t i = 0; i < q.size(); ++i) {
        if (std::abs(q[i]) < 1e-5) continue;  // rounding may change its sign
        ++clear;
        const std::size_t at = static_cast<std::size_t>(row) * 64 + i;
        const double wanted = before[at] * (1 - 0.01 * 0.1) - (q[i] > 0 ? 0.01 : -0.01);
        CHECK(std::abs(after[at] - wanted) < 1e-6);
      }
    }
    CHECK(clear > before.size() * 99 / 100);
    if (narrow) CHECK(values_of(copies) == rounded(DType::bf16, after));
  });
}

TEST_CASE("DeMo: a momentum that is not finite makes its block's weights NaN, and no others") {
  ExecutionContext context(1, test::device());
  const DemoBlocks blocks{.rows = 64, .columns = 128, .chunk = 64, .top_k = 8};
  Values grad = random_values(DType::f32, 1, 64 * 128);
  grad[100] = std::numeric_limits<double>::infinity();  // column 100: the second block
  Tensor momentum = context.zeros(DType::f32, {64 * 128});
  Tensor message = context.zeros(DType::u8, {1, blocks.message_bytes()}), none;
  Tensor flat = message.view({blocks.message_bytes()});
  ops::demo_send(context, send_step(context, 0.9f, 1.0f), blocks,
                 make_tensor(context, DType::f32, {64 * 128}, grad), momentum, flat);
  Tensor weights = make_tensor(context, DType::f32, {64 * 128}, Values(64 * 128, 1.0));
  ops::demo_move(context, move_step(context, 0.01f, 0.0f), blocks, message, weights, none);
  const Values after = values_of(weights);
  std::size_t broken = 0;
  for (std::size_t i = 0; i < after.size(); ++i) {
    if (i % 128 < 64) CHECK(std::abs(after[i] - 1.0) < 0.011);
    broken += std::isnan(after[i]);
  }
  CHECK(broken > 0);
}

TEST_CASE("DeMo: a step whose gate is closed changes nothing, and a factor scales its gradients") {
  ExecutionContext context(1, test::device());
  const DemoBlocks blocks{.rows = 20, .columns = 33, .chunk = 16, .top_k = 5};
  const std::int64_t count = blocks.rows * blocks.columns;
  const Values before = random_values(DType::f32, 1, count);
  const Values grad = random_values(DType::f32, 2, count);
  struct Step {
    Values momentum, weights, copies;
    std::vector<std::uint8_t> messages;
  };
  const auto run = [&](float lr, const Tensor& gate) {
    Tensor momentum = make_tensor(context, DType::f32, {count}, before);
    Tensor weights = make_tensor(context, DType::f32, {count}, before);
    Tensor copies = context.zeros(DType::bf16, {count});
    Tensor messages = context.zeros(DType::u8, {1, blocks.message_bytes()});
    Tensor message = messages.view({blocks.message_bytes()});
    ops::demo_send(context, {0.9f, rate_of(context, lr), gate}, blocks,
                   make_tensor(context, DType::f32, {count}, grad), momentum, message);
    ops::demo_move(context, {rate_of(context, 0.01f), 0.1f, gate}, blocks, messages, weights,
                   copies);
    return Step{values_of(momentum), values_of(weights), values_of(copies),
                numbers_of<std::uint8_t>(messages)};
  };
  std::array<float, ops::kGateValues> closed{0.0f, 1.0f, 1.0f, 1.0f};
  const Step skipped = run(0.5f, ops::tensor_from_host<float>(context, closed, {ops::kGateValues}));
  CHECK(skipped.momentum == before);
  CHECK(skipped.weights == before);
  CHECK(skipped.copies == Values(before.size()));
  CHECK(skipped.messages == std::vector<std::uint8_t>(skipped.messages.size()));
  const Step whole = run(0.5f, test::open_gate(context, 0.9, 0.99, 1));
  const Step scaled = run(2.0f, test::open_gate(context, 0.9, 0.99, 1, 0.25f));
  CHECK(whole.momentum != before);
  CHECK(scaled.momentum == whole.momentum);
  CHECK(scaled.messages == whole.messages);
  CHECK(scaled.weights == whole.weights);
}

namespace {

/// What two steps of three members with different momenta leave: messages, then the momenta of all,
/// weights and copies in bf16 as bits.
std::vector<std::uint8_t> state_after_steps(
    ExecutionContext& context, const DemoBlocks& blocks,
    const std::function<void(int member, Values& grad)>& change) {
  constexpr int kMembers = 3;
  const std::int64_t count = blocks.rows * blocks.columns;
  std::vector<Tensor> momenta;
  for (std::uint64_t i = 0; i < kMembers; ++i)
    momenta.push_back(make_tensor(context, DType::f32, {count}, random_values(40 + i, count)));
  Tensor weights = make_tensor(context, DType::f32, {count}, random_values(50, count));
  Tensor copies = context.zeros(DType::bf16, {count});
  Tensor messages = context.zeros(DType::u8, {kMembers, blocks.message_bytes() + 3});
  const Tensor part = messages.slice(1, 1, blocks.message_bytes());
  std::vector<std::uint8_t> all;
  const auto add = [&](const Tensor& tensor) {
    for (const std::byte one : memory_of(tensor)) all.push_back(static_cast<std::uint8_t>(one));
  };
  for (std::uint64_t step = 0; step < 2; ++step) {
    for (int i = 0; i < kMembers; ++i) {
      Values grad = random_values(60 + 10 * step + static_cast<std::uint64_t>(i), count);
      if (step == 1) change(i, grad);
      Tensor message = part.slice(0, i, 1).view({blocks.message_bytes()});
      ops::demo_send(context, send_step(context, 0.95f, 0.7f, 0.9f), blocks,
                     make_tensor(context, DType::f32, {count}, grad),
                     momenta[static_cast<std::size_t>(i)], message);
    }
    ops::demo_move(context, move_step(context, 0.01f, 0.1f), blocks, part, weights, copies);
    add(messages);
  }
  for (const Tensor& momentum : momenta) add(momentum);
  add(weights);
  add(copies);
  return all;
}

}  // namespace

TEST_CASE("DeMo: a GPU has the CPU's bits: messages, momenta, weights and copies" *
          doctest::skip(test::no_gpu_is_tested())) {
  struct Case {
    DemoBlocks blocks;
    const char* gradients = "random";
  };
  for (const Case& one :
       {Case{{.rows = 64, .columns = 64}}, Case{{.rows = 67, .columns = 100, .top_k = 9}},
        Case{{.rows = 1, .columns = 200}}, Case{{.rows = 130, .columns = 1, .top_k = 7}},
        Case{{.rows = 3, .columns = 64, .top_k = 1}},
        Case{{.rows = 33, .columns = 17, .chunk = 16, .top_k = 256}},
        Case{{.rows = 64, .columns = 64, .top_k = 4096}}, Case{{.rows = 1, .columns = 1}},
        Case{{.rows = 48, .columns = 64, .top_k = 21}, "zero"},
        Case{{.rows = 40, .columns = 130, .top_k = 33}, "constant"},
        Case{{.rows = 40, .columns = 130, .top_k = 33}, "tiny"}}) {
    CAPTURE(one.blocks.rows);
    CAPTURE(one.blocks.columns);
    CAPTURE(one.blocks.top_k);
    CAPTURE(std::string(one.gradients));
    const std::string kind = one.gradients;
    const auto change = [&](int member, Values& grad) {
      // With the momenta decayed and the gradients large, these decide what is sent.
      if (kind == "zero") std::ranges::fill(grad, 0.0);
      if (kind == "constant") std::ranges::fill(grad, member == 1 ? -1e6 : 1e6);
      if (kind == "tiny")
        for (double& value : grad) value *= 1e-33;
    };
    ExecutionContext gpu(1, test::device()), cpu(1, Device{});
    const auto here = state_after_steps(gpu, one.blocks, change);
    const auto there = [&] {
      const test::OnDevice chosen(Device{});
      return state_after_steps(cpu, one.blocks, change);
    }();
    REQUIRE(here.size() == there.size());
    CHECK(std::memcmp(here.data(), there.data(), here.size()) == 0);
  }
}

TEST_CASE("DeMo: equal coefficients are sent in their order, on every device") {
  ExecutionContext context(1, test::device());
  const DemoBlocks blocks{.rows = 2, .columns = 8, .chunk = 8, .top_k = 6};
  Tensor momentum = context.zeros(DType::f32, {16});
  Tensor message = context.zeros(DType::u8, {blocks.message_bytes()});
  ops::demo_send(context, send_step(context, 0.9f, 1.0f), blocks,
                 make_tensor(context, DType::f32, {16}, Values(16, 0.0)), momentum, message);
  // All are 0: the scale is 0, and the first six are listed with values of 0.
  CHECK(numbers_of<std::uint8_t>(message) == std::vector<std::uint8_t>{0, 0, 0x00, 0x10, 0x00, 0x02,
                                                                       0x30, 0x00, 0x04, 0x50, 0x00,
                                                                       0, 0, 0, 0, 0, 0});
}

TEST_CASE("DeMo has the same bits on any number of threads and every instruction set") {
  const auto make = [](ExecutionContext& context) {
    const DemoBlocks blocks{.rows = 300, .columns = 130, .chunk = 64, .top_k = 32};
    const std::int64_t count = blocks.rows * blocks.columns;
    Tensor momentum = make_tensor(context, DType::f32, {count}, random_values(1, count)), none;
    Tensor messages = context.zeros(DType::u8, {1, blocks.message_bytes()});
    Tensor message = messages.view({blocks.message_bytes()});
    Tensor weights = make_tensor(context, DType::f32, {count}, random_values(2, count));
    for (std::uint64_t step = 0; step < 3; ++step) {
      ops::demo_send(context, send_step(context, 0.99f, 0.1f), blocks,
                     make_tensor(context, DType::f32, {count}, random_values(3 + step, count)),
                     momentum, message);
      ops::demo_move(context, move_step(context, 0.01f, 0.1f), blocks, messages, weights, none);
    }
    Values all = values_of(weights);
    const Values momenta = values_of(momentum);
    all.insert(all.end(), momenta.begin(), momenta.end());
    return all;
  };
  check_same_bits(kAnyThreads, make);
  Values first;
  for (const ops::Isa isa : test::on_gpu() ? std::vector<ops::Isa>() : isas()) {
    ExecutionContext context(1, test::device());
    ops::use_isa(context, isa);
    const Values values = make(context);
    if (first.empty()) first = values;
    CHECK(values == first);
  }
}

}  // namespace sortie::trainer

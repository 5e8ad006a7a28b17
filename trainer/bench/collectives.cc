#include "trainer/bench/collectives.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "common/base/elapsed.h"
#include "trainer/ops/copy.h"

namespace sortie::trainer {
namespace {

using BenchClock = std::chrono::steady_clock;

/// Elements that are copied to the host at a time, because a tensor may occupy half of the memory.
constexpr std::int64_t kSlice = std::int64_t{1} << 22;

template <class T>
void fill_as(ExecutionContext& context, Tensor& tensor,
             const std::function<std::int64_t(std::int64_t)>& element) {
  std::vector<T> values(static_cast<std::size_t>(std::min(kSlice, tensor.elements())));
  for (std::int64_t first = 0; first < tensor.elements(); first += kSlice) {
    Tensor slice = tensor.slice(0, first, std::min(kSlice, tensor.elements() - first));
    values.resize(static_cast<std::size_t>(slice.elements()));
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<T>(static_cast<float>(element(first + static_cast<std::int64_t>(i))));
    ops::copy_from_host<T>(context, values, slice);
  }
  context.synchronize();
}

template <class T>
std::int64_t differing_as(ExecutionContext& context, const Tensor& tensor,
                          const std::function<std::int64_t(std::int64_t)>& expected) {
  std::int64_t wrong = 0;
  for (std::int64_t first = 0; first < tensor.elements(); first += kSlice) {
    const std::vector<T> values = ops::copy_to_host<T>(
        context, tensor.slice(0, first, std::min(kSlice, tensor.elements() - first)));
    for (std::size_t i = 0; i < values.size(); ++i)
      if (static_cast<float>(values[i]) != static_cast<float>(static_cast<T>(static_cast<float>(
                                               expected(first + static_cast<std::int64_t>(i))))))
        ++wrong;
  }
  return wrong;
}

template <class Function>
auto with_type(DType dtype, const Function& function) {
  switch (dtype) {
    case DType::bf16:
      return function(bf16{});
    case DType::f64:
      return function(double{});
    case DType::i32:
      return function(std::int32_t{});
    case DType::i64:
      return function(std::int64_t{});
    case DType::u8:
      return function(std::uint8_t{});
    case DType::f32:
      break;
  }
  return function(float{});
}

/// One operation at one size: its tensors, how it runs, and the expected result.
struct Measured {
  ExecutionContext& context;
  Communicator& group;
  const CollectiveBench& bench;
  std::string operation;
  std::int64_t count;  // elements of the larger side
  Tensor input, output;
  std::vector<std::int64_t> counts;  // all-to-all
  bool summed = bench.reduce == ReduceOp::sum && reduces(operation);

  int ranks() const { return group.size(); }
  std::int64_t block() const { return count / ranks(); }
  std::int64_t put_in(int rank, std::int64_t index) const {
    return bench_element(bench.dtype, summed, ranks(), rank, index);
  }

  void allocate() {
    const auto make = [&](std::int64_t elements) { return context.empty(bench.dtype, {elements}); };
    input = make(operation == "all_gather" ? block() : count);
    output = operation == "reduce_scatter"                           ? make(block())
             : operation == "all_reduce" || operation == "broadcast" ? input
                                                                     : make(count);
    counts.assign(static_cast<std::size_t>(ranks()), block());
  }
  void fill() {
    with_type(bench.dtype, [&](auto type) {
      fill_as<decltype(type)>(context, input,
                              [this](std::int64_t i) { return put_in(group.rank(), i); });
      return 0;
    });
  }
  void run() {
    if (operation == "all_reduce") return group.all_reduce(input, bench.reduce);
    if (operation == "reduce_scatter") return group.reduce_scatter(input, output, bench.reduce);
    if (operation == "all_gather") return group.all_gather(input, output);
    if (operation == "broadcast") return group.broadcast(input, 0);
    if (operation == "all_to_all") return group.all_to_all(input, counts, output, counts);
    const auto in = group.receive_async(output, (group.rank() + ranks() - 1) % ranks());
    const auto out = group.send_async(input, (group.rank() + 1) % ranks());
    in->wait();
    out->wait();
  }
  std::int64_t expected(std::int64_t i) const {
    const auto reduced = [&](std::int64_t index) {
      std::int64_t value = put_in(0, index);
      for (int rank = 1; rank < ranks(); ++rank)
        value = bench.reduce == ReduceOp::sum ? value + put_in(rank, index)
                                              : std::max(value, put_in(rank, index));
      return value;
    };
    if (operation == "all_reduce") return reduced(i);
    if (operation == "reduce_scatter") return reduced(block() * group.rank() + i);
    if (operation == "broadcast") return put_in(0, i);
    if (operation == "all_gather") return put_in(static_cast<int>(i / block()), i % block());
    if (operation == "all_to_all")
      return put_in(static_cast<int>(i / block()), block() * group.rank() + i % block());
    return put_in((group.rank() + ranks() - 1) % ranks(), i);
  }
  double wrong() {
    fill();
    run();
    return static_cast<double>(with_type(bench.dtype, [&](auto type) {
      return differing_as<decltype(type)>(context, output,
                                          [this](std::int64_t i) { return expected(i); });
    }));
  }
};

double on_slowest(Communicator& group, double seconds) {
  group.all_reduce(Tensor::wrap(&seconds, DType::f64, {1}), ReduceOp::max);
  return seconds;
}

double seconds_of(Measured& measured, int iterations) {
  measured.group.barrier();
  const auto begin = BenchClock::now();
  for (int i = 0; i < iterations; ++i) measured.run();
  return on_slowest(measured.group, seconds_since(begin)) / iterations;
}

double busbw_share(const std::string& operation, int ranks) {
  const double others = static_cast<double>(ranks - 1) / ranks;
  if (operation == "all_reduce") return 2 * others;
  if (operation == "broadcast" || operation == "ring") return 1.0;
  return others;
}

}  // namespace

std::vector<std::string> collective_bench_names() {
  return {"all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all", "ring"};
}

bool reduces(const std::string& operation) {
  return operation == "all_reduce" || operation == "reduce_scatter";
}

std::int64_t bench_element(DType dtype, bool summed, int ranks, int rank, std::int64_t index) {
  constexpr int kExact = 256;  // bf16 has all whole numbers up to it
  const std::int64_t value = (index * 31 + rank * 17) % 13;
  if (dtype != DType::bf16 || !summed) return value;
  if (ranks <= kExact) return value % (kExact / ranks + 1);
  return (index + rank) % (ranks / kExact + 1) == 0 ? 1 : 0;
}

std::vector<CollectiveRow> bench_collectives(
    Communicator& group, const CollectiveBench& bench,
    const std::function<void(const CollectiveRow&)>& on_row) {
  std::vector<CollectiveRow> rows;
  ExecutionContext context(1, bench.device);
  const auto width = static_cast<std::int64_t>(dtype_bytes(bench.dtype));
  for (const std::string& operation : bench.operations) {
    std::int64_t last = 0;
    for (std::int64_t bytes = bench.from; bytes <= bench.to; bytes *= bench.factor) {
      // Operations with a block per rank need whole blocks.
      const std::int64_t unit =
          operation == "all_reduce" || operation == "broadcast" || operation == "ring"
              ? 1
              : group.size();
      const std::int64_t count = std::max<std::int64_t>(bytes / width / unit, 1) * unit;
      if (count == last) continue;
      last = count;
      Measured measured{context, group, bench, operation, count, {}, {}, {}};
      measured.allocate();
      measured.fill();
      measured.run();
      const double first = seconds_of(measured, 1);
      const int iterations = std::clamp(static_cast<int>(bench.seconds / std::max(first, 1e-7)), 1,
                                        std::max(bench.iterations, 1));
      CollectiveRow row;
      row.operation = operation;
      row.count = count;
      row.bytes = count * width;
      row.us = 1e6 * (iterations == 1 ? first : seconds_of(measured, iterations));
      row.algbw = static_cast<double>(row.bytes) / row.us / 1e3;
      row.busbw = row.algbw * busbw_share(operation, group.size());
      double wrong[] = {measured.wrong()};
      group.all_reduce_sum(wrong);
      row.wrong = static_cast<std::int64_t>(wrong[0]);
      rows.push_back(row);
      on_row(row);
    }
  }
  return rows;
}

}  // namespace sortie::trainer

// Tests of the measurements of sortie-train bench comm, on thread ranks.
#include <set>

#include "tests/support/test_device.h"
#include "tests/trainer/parallel/on_ranks.h"
#include "trainer/bench/collectives.h"
#include "trainer/bench/links.h"
#include "trainer/bench/one_rank.h"

using namespace sortie::trainer;
using namespace sortie::trainer::test;

TEST_CASE("rounds of pairs: every pair once, no rank twice in a round") {
  for (const int ranks : {2, 3, 4, 5, 8, 17}) {
    CAPTURE(ranks);
    std::set<std::pair<int, int>> seen;
    for (const auto& round : pair_rounds(ranks)) {
      std::set<int> busy;
      for (const auto& [low, high] : round) {
        CHECK(low < high);
        CHECK(seen.insert({low, high}).second);
        CHECK(busy.insert(low).second);
        CHECK(busy.insert(high).second);
      }
    }
    CHECK(static_cast<int>(seen.size()) == ranks * (ranks - 1) / 2);
  }
}

TEST_CASE("a bench of collectives has a row per operation and size, and finds nothing wrong") {
  for (const DType dtype : {DType::f32, DType::bf16, DType::i32}) {
    Wrongs wrongs;
    std::vector<CollectiveRow> rows;
    run_thread_ranks(3, [&](Communicator& group) {
      CollectiveBench bench;
      bench.operations = collective_bench_names();
      bench.dtype = dtype;
      bench.from = 4;
      bench.to = 300'000;
      bench.factor = 64;
      bench.iterations = 2;
      int told = 0;
      const auto mine = bench_collectives(group, bench, [&](const CollectiveRow&) { ++told; });
      wrongs.check(told == static_cast<int>(mine.size()), "rows that were told");
      if (group.rank() == 0) rows = mine;
    });
    CHECK(wrongs.all() == "");
    CHECK(rows.size() == 6 * 3);
    for (const CollectiveRow& row : rows) {
      CAPTURE(row.operation);
      CHECK(row.wrong == 0);
      CHECK(row.us > 0);
      CHECK(row.bytes == row.count * static_cast<std::int64_t>(dtype_bytes(dtype)));
      const double share = row.operation == "all_reduce"                             ? 4.0 / 3
                           : row.operation == "broadcast" || row.operation == "ring" ? 1.0
                                                                                     : 2.0 / 3;
      CHECK(row.algbw == doctest::Approx(static_cast<double>(row.bytes) / row.us / 1e3));
      CHECK(row.busbw == doctest::Approx(row.algbw * share));
    }
  }
}

TEST_CASE("partial sums of a bench's elements are exact in bf16, in any order of the ranks") {
  for (const int ranks : {2, 21, 22, 48, 100, 256, 257, 512, 1000, 4352, 20000}) {
    CAPTURE(ranks);
    std::set<std::int64_t> sums;
    for (std::int64_t index = 0; index < 200; ++index) {
      std::int64_t sum = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const std::int64_t value = bench_element(DType::bf16, /*summed=*/true, ranks, rank, index);
        REQUIRE(value >= 0);
        sum += value;
      }
      sums.insert(sum);
    }
    CHECK(*sums.begin() > 0);
    CHECK(*sums.rbegin() <= 256);
  }
  // Elements that are not added, or not in bf16, have all their values with any number of ranks.
  for (const auto& [dtype, summed] : {std::pair(DType::f32, true), {DType::bf16, false}}) {
    std::set<std::int64_t> values;
    for (std::int64_t index = 0; index < 13; ++index)
      values.insert(bench_element(dtype, summed, 1000, 5, index));
    CHECK(values.size() == 13);
  }
}

TEST_CASE("links: every pair and the ring are measured") {
  LinkReport report;
  run_thread_ranks(3,
                   [&](Communicator& group) {
                     const LinkReport mine = bench_links(group, 1 << 16);
                     if (group.rank() == 1) report = mine;
                   },
                   {std::chrono::microseconds(200), 4});
  CHECK(report.pairs.size() == 3);
  CHECK(report.ring.size() == 3);
  for (const LinkRow& row : report.pairs) {
    CHECK(row.from < row.to);
    CHECK(row.us > 0);
    CHECK(row.gbit_s > 0);
  }
  for (const LinkRow& row : report.ring) CHECK(row.gbit_s > 0);
  CHECK(report.beside >= 0);
  CHECK(report.beside < 1);
}

TEST_CASE("peaks are those of NVIDIA's data sheets") {
  const auto tflop_s = [](const char* name, int capability, int multiprocessors, int clock_mhz,
                          DType dtype) {
    return peak_flop_s({.name = name,
                        .compute_capability = capability,
                        .multiprocessors = multiprocessors,
                        .clock_mhz = clock_mhz},
                       dtype) /
           1e12;
  };
  const auto about = [](double value) { return doctest::Approx(value).epsilon(0.005); };
  CHECK(tflop_s("NVIDIA A100-SXM4-80GB", 80, 108, 1410, DType::bf16) == about(312));
  CHECK(tflop_s("NVIDIA A100-SXM4-80GB", 80, 108, 1410, DType::f32) == about(19.5));
  CHECK(tflop_s("NVIDIA H100 80GB HBM3", 90, 132, 1830, DType::bf16) == about(989));
  CHECK(tflop_s("NVIDIA GeForce RTX 4090", 89, 128, 2520, DType::bf16) == about(165.2));
  CHECK(tflop_s("NVIDIA L40S", 89, 142, 2490, DType::bf16) == about(362));
  CHECK(tflop_s("NVIDIA T4", 75, 40, 1590, DType::bf16) == 0);
}

TEST_CASE("a rank's products take time, each of them") {
  ExecutionContext context(1, device());
  const MatmulSeconds seconds = bench_matmul(
      context, {.rows = 64, .out = 48, .in = 32, .dtype = DType::f32, .iterations = 2, .timed = 3});
  for (const double took : {seconds.forward, seconds.data_gradient, seconds.weight_gradient}) {
    CHECK(took > 0);
    CHECK(took < 60);
  }
}

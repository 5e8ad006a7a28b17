// Shares of what is trained: every element is one rank's, with the values that it has in a store
// that is not cut.
#include "trainer/nn/shares.h"

#include <doctest/doctest.h>

#include "tests/support/flat_values.h"

namespace sortie::trainer::test {
namespace {

void declare_all_kinds(ParameterStore& store) {
  store.add({"embedding", {37, 8}, Init::normal(1.0), Use::matrix, true});
  store.add({"norm", {7}, Init::ones(), Use::vector, false});
  store.add({"router", {5, 8}, Init::normal(1.0), Use::f32_matrix, true});
  store.add({"frozen", {9, 8}, Init::normal(1.0), Use::matrix, true}).freeze();
  store.add({"up", {64, 8}, Init::normal(1.0), Use::matrix, true});
  store.add({"bias", {5}, Init::zeros(), Use::state, false});
}

TEST_CASE("buckets are whole cache lines of every rank and cover their range") {
  const auto buckets = cut_into_buckets({96, 96 + 48 * 7}, 100, 3);
  REQUIRE(buckets.size() == 3);
  CHECK(buckets[0] == FlatRange{96, 96 + 144});
  CHECK(buckets[2] == FlatRange{96 + 288, 96 + 336});
  CHECK(share_of_bucket(buckets[1], {2, 3, 100}) == FlatRange{96 + 144 + 96, 96 + 288});
  CHECK(cut_into_buckets({5, 5}, 100, 3).empty());
  const BucketSpan span = buckets_of(buckets, {96 + 143, 96 + 145});
  CHECK(span.first == 0);
  CHECK(span.last == 1);
}

TEST_CASE(
    "every trained element is one rank's own, with its initial value and a place for moments") {
  for (const DType compute : {DType::f32, DType::bf16})
    for (const int ranks : {2, 3, 5}) {
      CAPTURE(ranks);
      ExecutionContext context(1, device());
      ParameterStore whole;
      declare_all_kinds(whole);
      whole.finalize(context, compute, 16, true);
      whole.initialize(3);
      const std::vector<float> expected = host_values(whole, whole.master());
      std::map<std::string, std::vector<int>> owners;
      for (int rank = 0; rank < ranks; ++rank) {
        ParameterStore store;
        declare_all_kinds(store);
        store.shard({rank, ranks, 100});
        store.finalize(context, compute, ranks * kLineElements, true);
        store.initialize(3);
        CHECK(store.moment1().elements() == store.trained_elements() / ranks);
        const std::vector<float> master = host_values(store, store.master());
        std::vector<bool> moments(static_cast<std::size_t>(store.moment1().elements()));
        for (const auto& parameter : store.parameters()) {
          auto& own = owners[parameter->name()];
          own.resize(static_cast<std::size_t>(parameter->elements()));
          const std::int64_t first = whole.find(parameter->name())->offset();
          for (const OwnRun& run : parameter->own_runs())
            for (std::int64_t i = 0; i < run.flat.elements(); ++i) {
              const std::int64_t element = run.flat.begin + i - parameter->offset();
              ++own[static_cast<std::size_t>(element)];
              CHECK(master[static_cast<std::size_t>(run.master + i)] ==
                    expected[static_cast<std::size_t>(first + element)]);
              if (!parameter->trained()) continue;
              const auto moment = moments.begin() + run.moment + i;
              CHECK_FALSE(*moment);  // no two elements share a place
              *moment = true;
            }
        }
      }
      for (const auto& [name, counts] : owners) {
        CAPTURE(name);
        const int expected_owners = whole.find(name)->trained() ? 1 : ranks;
        CHECK(std::ranges::all_of(counts, [&](int count) { return count == expected_owners; }));
      }
    }
}

TEST_CASE("masters of bf16 weights are the own share, of f32 weights they are the weights") {
  ExecutionContext context(1, device());
  const auto elements = [&](DType compute, int ranks) {
    ParameterStore store;
    store.add({"matrix", {1000, 64}, Init::zeros(), Use::matrix, true});
    if (ranks > 1) store.shard({1, ranks, 5000});
    store.finalize(context, compute, ranks * kLineElements, true);
    return store.master().elements();
  };
  CHECK(elements(DType::f32, 1) == 64000);
  CHECK(elements(DType::f32, 4) == 64000);
  CHECK(elements(DType::bf16, 1) == 64000);
  CHECK(elements(DType::bf16, 4) == 16000);
}

}  // namespace
}  // namespace sortie::trainer::test

// Tests of shares of trained parameters: every element belongs to one rank, with the value that it
// has in a store that is not sharded.
#include "trainer/nn/shares.h"

#include <doctest/doctest.h>

#include <map>

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

TEST_CASE("buckets without a size are a sixteenth of the range, neither tiny nor huge") {
  const auto largest = [](std::int64_t elements) {
    const auto buckets = cut_into_buckets({0, elements}, 0, 2);
    return std::pair(buckets.size(), buckets.front().elements());
  };
  CHECK(largest(320'000) == std::pair<std::size_t, std::int64_t>(2, 1 << 18));
  CHECK(largest(10'700'800) == std::pair<std::size_t, std::int64_t>(16, 668'800));
  CHECK(largest(1'000'000'000) == std::pair<std::size_t, std::int64_t>(125, 8'000'000));
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

TEST_CASE(
    "experts apart are a range of their own, and every element is on as many ranks as have it") {
  // Six ranks: experts 0 and 1 are divided over two ranks, in three replicas, so each rank has one
  // of the two experts.
  constexpr int kRanks = 6, kOwners = 2;
  for (const DType compute : {DType::f32, DType::bf16})
    for (const bool sharded : {false, true}) {
      CAPTURE(sharded);
      ExecutionContext context(1, device());
      std::map<std::string, std::vector<int>> owners;
      for (int rank = 0; rank < kRanks; ++rank) {
        ParameterStore store;
        declare_all_kinds(store);
        for (std::int64_t e = 0; e < 2; ++e)
          store.add({"expert" + std::to_string(e),
                     {33, 8},
                     Init::normal(1.0),
                     Use::matrix,
                     true,
                     {},
                     {.axis = 0, .group = ReduceGroup::expert, .expert = {e, 2}}});
        REQUIRE(store.cut({.owner = {rank % kOwners, kOwners}}));
        ShareRules rules{.expert_ranks = kRanks / kOwners};
        if (sharded) {
          rules.dense = {rank, kRanks, 100};
          rules.experts = {rank / kOwners, kRanks / kOwners, 100};
        }
        store.share(rules);
        store.finalize(context, compute, kRanks * kLineElements, true);
        std::int64_t at = 0;
        for (const auto& [range, group] : store.sections()) {
          CHECK(range.begin == at);
          const int ranks = group == ReduceGroup::expert ? kRanks / kOwners : kRanks;
          CHECK(range.elements() % (ranks * kLineElements) == 0);
          at = range.end;
        }
        CHECK(at == store.trained_elements());
        for (std::int64_t e = 0; e < 2; ++e) {
          const Parameter& expert = *store.find("expert" + std::to_string(e));
          CHECK(expert.elements() == (e == rank % kOwners ? 33 * 8 : 0));
          CHECK(store.held_by(expert) == ReduceGroup::expert);
          if (expert.elements() > 0)
            CHECK(store.section_at(expert.offset()).group == ReduceGroup::expert);
        }
        for (const auto& parameter : store.parameters()) {
          auto& own = owners[parameter->name()];
          own.resize(static_cast<std::size_t>(parameter->spec().shape.elements()));
          for (const OwnRun& run : parameter->own_runs()) {
            CHECK(run.master + run.flat.elements() <= store.master().elements());
            if (parameter->trained())
              CHECK(run.moment + run.flat.elements() <= store.moment1().elements());
            for (std::int64_t i = 0; i < run.flat.elements(); ++i)
              ++own[static_cast<std::size_t>(run.flat.begin + i - parameter->offset())];
          }
        }
      }
      for (const auto& [name, counts] : owners) {
        CAPTURE(name);
        int expected = name.starts_with("expert") ? kRanks / kOwners : kRanks;
        if (sharded && name != "frozen" && name != "bias") expected = 1;
        CHECK(std::ranges::all_of(counts, [&](int count) { return count == expected; }));
      }
    }
}

}  // namespace
}  // namespace sortie::trainer::test

// Tests of Layout: the groups that [topology] describes, for ranks that run and for a planned one.
#include "trainer/parallel/layout.h"

#include <doctest/doctest.h>

#include "tests/trainer/parallel/on_ranks.h"
#include "trainer/parallel/thread_ranks.h"

namespace sortie::trainer {
namespace {

config::TopologyConfig topology(std::int64_t tensor, std::int64_t pipeline) {
  config::TopologyConfig config;
  config.tensor_parallel_size = tensor;
  config.pipeline_parallel_size = pipeline;
  return config;
}

TEST_CASE("without model parallelism all ranks are replicas, and no group is made") {
  run_thread_ranks(3, [](Communicator& world) {
    const Layout layout(topology(1, 1), world);
    REQUIRE(layout.only_data());
    REQUIRE(&layout.replicas() == &world);
    REQUIRE(layout.tensor().size() == 1);
    REQUIRE(layout.model().size() == 1);
    REQUIRE(layout.speaks());
    REQUIRE(layout.coordinate(Axis::data) == world.rank());
  });
}

TEST_CASE("ranks of a tensor-parallel group are neighbours, stages are the farthest apart") {
  run_thread_ranks(8, [](Communicator& world) {
    const Layout layout(topology(2, 2), world);
    const int rank = world.rank();
    REQUIRE_FALSE(layout.only_data());
    REQUIRE(layout.tensor().rank() == rank % 2);
    REQUIRE(layout.replicas().rank() == rank / 2 % 2);
    REQUIRE(layout.pipeline().rank() == rank / 4);
    REQUIRE(layout.model().size() == 4);
    REQUIRE(layout.places().dense.index == rank % 2);
    REQUIRE(layout.places().dense.count == 2);
    // One rank of each replica.
    double speakers = layout.speaks() ? 1.0 : 0.0;
    world.all_reduce_sum({&speakers, 1});
    REQUIRE(speakers == 2.0);
  });
}

TEST_CASE("ranks that share sequences are next to those that share layers, and sum gradients too") {
  run_thread_ranks(8, [](Communicator& world) {
    config::TopologyConfig shared = topology(2, 1);
    shared.context_parallel_size = 2;
    const Layout layout(shared, world);
    const int rank = world.rank();
    REQUIRE_FALSE(layout.only_data());
    REQUIRE(layout.context_group() != nullptr);
    REQUIRE(layout.context_group()->rank() == rank / 2 % 2);
    REQUIRE(layout.context_group()->chunk(0) == rank / 2 % 2);
    REQUIRE(layout.context_group()->chunk(1) == 3 - rank / 2 % 2);
    REQUIRE(layout.coordinate(Axis::data) == rank / 4);
    REQUIRE(layout.replicas().size() == 4);
    REQUIRE(layout.model().size() == 2);
    // One rank for each part of the sequences of each replica.
    double speakers = layout.speaks() ? 1.0 : 0.0;
    world.all_reduce_sum({&speakers, 1});
    REQUIRE(speakers == 4.0);
  });
  run_thread_ranks(2, [](Communicator& world) {
    config::TopologyConfig shared = topology(1, 1);
    shared.context_parallel_size = 2;
    const Layout layout(shared, world);
    REQUIRE(layout.only_data());  // each rank has the whole model
    REQUIRE(layout.size(Axis::data) == 1);
  });
}

TEST_CASE("experts lie in a grid of their own over the ranks of a stage") {
  run_thread_ranks(8, [](Communicator& world) {
    config::TopologyConfig config = topology(2, 1);
    config.expert_parallel_size = 4;
    config.expert_tensor_parallel_size = 1;
    const Layout layout(config, world);
    const int rank = world.rank();
    REQUIRE(layout.experts_apart());
    REQUIRE(layout.expert_group()->rank() == rank % 4);
    REQUIRE(layout.expert_group()->size() == 4);
    REQUIRE(layout.expert_group()->slice == rank % 2);
    REQUIRE(layout.expert_group()->slices == 2);
    REQUIRE(layout.expert_replicas().rank() == rank / 4);
    REQUIRE(layout.expert_replicas().size() == 2);
    REQUIRE(layout.replicas().size() == 4);
    REQUIRE(layout.places().expert.count == 1);
    // Each rank holds two of eight experts.
    for (int expert = 0; expert < 8; ++expert)
      REQUIRE(layout.places().has({expert, 8}) == (expert / 2 == rank % 4));
    const auto [first, count] = layout.expert_group()->own_rows(5);
    REQUIRE(first == (rank % 2 == 0 ? 0 : 2));
    REQUIRE(count == (rank % 2 == 0 ? 2 : 3));
  });
}

TEST_CASE("a planned rank has the same groups, which count what they would send") {
  const Layout layout(topology(2, 4), 5, 16);
  CHECK(layout.tensor().rank() == 1);
  CHECK(layout.replicas().size() == 2);
  CHECK(layout.pipeline().size() == 4);
  double value = 1.0;
  layout.model().all_reduce_sum({&value, 1});
  CHECK(layout.sent().at({"model"}) == doctest::Approx(2.0 * 7.0 / 8.0 * 8.0));
}

}  // namespace
}  // namespace sortie::trainer

#include "trainer/parallel/mesh.h"

#include <algorithm>
#include <set>

#include "tests/trainer/parallel/on_ranks.h"

using namespace sortie::trainer;
using namespace sortie::trainer::test;

namespace {

constexpr Axis kAll[] = {Axis::tensor,        Axis::context, Axis::data,       Axis::pipeline,
                         Axis::expert_tensor, Axis::expert,  Axis::expert_data};

/// Returns all sizes whose products divide the world.
std::vector<MeshSizes> legal_sizes(int world) {
  std::vector<int> divisors;
  for (int size = 1; size <= world; ++size)
    if (world % size == 0) divisors.push_back(size);
  std::vector<MeshSizes> legal;
  for (const int tp : divisors)
    for (const int cp : divisors)
      for (const int pp : divisors)
        for (const int ep : divisors)
          for (const int etp : divisors)
            if (world % (tp * cp * pp) == 0 && world % (etp * ep * pp) == 0)
              legal.push_back({tp, cp, pp, ep, etp});
  return legal;
}

}  // namespace

TEST_CASE("both grids are the whole world, and groups along any axes partition it") {
  for (const int world : {1, 2, 6, 8, 16, 24, 32}) {
    CAPTURE(world);
    for (const MeshSizes& sizes : legal_sizes(world)) {
      const auto mesh = Mesh::make(world, sizes);
      REQUIRE(mesh);
      const int shared = world / sizes.pipeline;
      bool good =
          mesh->size(Axis::tensor) * mesh->size(Axis::context) * mesh->size(Axis::data) == shared &&
          mesh->size(Axis::expert_tensor) * mesh->size(Axis::expert) *
                  mesh->size(Axis::expert_data) ==
              shared;
      std::set<std::array<int, 4>> dense, expert;
      for (int rank = 0; rank < world; ++rank) {
        const auto at = [&](Axis axis) { return mesh->coordinate(rank, axis); };
        dense.insert({at(Axis::tensor), at(Axis::context), at(Axis::data), at(Axis::pipeline)});
        expert.insert(
            {at(Axis::expert_tensor), at(Axis::expert), at(Axis::expert_data), at(Axis::pipeline)});
        // Rank order: tensor is the fastest axis, pipeline the slowest.
        const int formula =
            at(Axis::tensor) +
            sizes.tensor *
                (at(Axis::context) +
                 sizes.context * (at(Axis::data) + mesh->size(Axis::data) * at(Axis::pipeline)));
        good = good && formula == rank && at(Axis::pipeline) == rank / shared;
        for (const Axis axis : kAll) {
          const auto group = mesh->group_of(rank, {axis});
          good = good && static_cast<int>(group.size()) == mesh->size(axis) &&
                 group[static_cast<std::size_t>(at(axis))] == rank;
          for (const int other : group)  // a group is the same for all of its members
            good = good && mesh->group_of(other, {axis}) == group;
          const int next = mesh->neighbour(rank, axis, 1);
          good = good && mesh->coordinate(next, axis) == (at(axis) + 1) % mesh->size(axis) &&
                 mesh->neighbour(next, axis, -1) == rank && std::ranges::binary_search(group, next);
        }
        const auto replicas = mesh->group_of(rank, {Axis::context, Axis::data});
        good = good && static_cast<int>(replicas.size()) ==
                           mesh->size(Axis::context) * mesh->size(Axis::data);
        for (const int other : replicas)
          good = good && mesh->coordinate(other, Axis::tensor) == at(Axis::tensor) &&
                 mesh->coordinate(other, Axis::pipeline) == at(Axis::pipeline);
      }
      // Each place has exactly one rank.
      good = good && static_cast<int>(dense.size()) == world &&
             static_cast<int>(expert.size()) == world;
      REQUIRE(good);
    }
  }
}

TEST_CASE("tensor ranks are neighbours, stages lie far apart: the layout of 16 ranks") {
  const auto mesh = Mesh::make(16, {.tensor = 2, .context = 2, .pipeline = 2, .expert = 4});
  REQUIRE(mesh);
  CHECK(mesh->group_of(5, {Axis::tensor}) == std::vector{4, 5});
  CHECK(mesh->group_of(5, {Axis::context}) == std::vector{5, 7});
  CHECK(mesh->group_of(5, {Axis::data}) == std::vector{1, 5});
  CHECK(mesh->group_of(5, {Axis::pipeline}) == std::vector{5, 13});
  CHECK(mesh->group_of(5, {Axis::expert}) == std::vector{4, 5, 6, 7});
  CHECK(mesh->group_of(5, {Axis::expert_data}) == std::vector{1, 5});
  CHECK(mesh->group_of(5, {Axis::expert_tensor}) == std::vector{5});
  CHECK(mesh->group_of(5, {Axis::tensor, Axis::pipeline}) == std::vector{4, 5, 12, 13});
}

TEST_CASE("sizes that do not fit are errors that name them") {
  const auto error = [](int world, const MeshSizes& sizes) {
    const auto mesh = Mesh::make(world, sizes);
    REQUIRE_FALSE(mesh);
    CHECK(mesh.error().code == sortie::ErrorCode::config);
    return mesh.error().message;
  };
  CHECK(error(8, {.tensor = 0}) == "mesh: the tensor size is 0; it must be 1 or more");
  CHECK(error(8, {.expert = -2}) == "mesh: the expert size is -2; it must be 1 or more");
  CHECK(error(8, {.tensor = 3})
            .find("8 ranks can not be cut into dense layers' tensor 3 x context 1 "
                  "x pipeline 1") != std::string::npos);
  CHECK(error(8, {.tensor = 4, .context = 4}).find("tensor 4 x context 4") != std::string::npos);
  CHECK(error(12, {.tensor = 2, .pipeline = 2, .expert = 4})
            .find("expert layers' expert tensor 1 x expert 4 x pipeline 2") != std::string::npos);
  // A product that overflows int does not fit.
  CHECK(error(8, {.tensor = 1 << 30, .context = 1 << 30}).find("can not be cut") !=
        std::string::npos);
}

TEST_CASE("the groups of a mesh are those of its axes, as communicators") {
  for (const MeshSizes& sizes :
       {MeshSizes{}, MeshSizes{.tensor = 2}, MeshSizes{.tensor = 2, .context = 2, .pipeline = 2},
        MeshSizes{.pipeline = 4, .expert = 2},
        MeshSizes{.context = 2, .expert = 4, .expert_tensor = 2}}) {
    const auto mesh = Mesh::make(8, sizes);
    REQUIRE(mesh);
    Wrongs wrongs;
    run_thread_ranks(
        8,
        [&](Communicator& world) {
          const MeshGroups groups(*mesh, world);
          const auto check = [&](Communicator& group, std::initializer_list<Axis> axes) {
            // Every rank adds 2^rank, so the sum identifies the members of the group.
            double members[] = {static_cast<double>(1 << world.rank())};
            group.all_reduce_sum(members);
            const auto expected = mesh->group_of(world.rank(), axes);
            double sum = 0;
            for (const int rank : expected) sum += static_cast<double>(1 << rank);
            wrongs.check(members[0] == sum && group.size() == static_cast<int>(expected.size()) &&
                             expected[static_cast<std::size_t>(group.rank())] == world.rank(),
                         fmt::format("group {} of rank {}", group.name(), world.rank()));
          };
          check(*groups.tensor, {Axis::tensor});
          check(*groups.context, {Axis::context});
          check(*groups.data, {Axis::data});
          check(*groups.pipeline, {Axis::pipeline});
          check(*groups.expert_tensor, {Axis::expert_tensor});
          check(*groups.expert, {Axis::expert});
          check(*groups.expert_data, {Axis::expert_data});
          check(*groups.replicas, {Axis::context, Axis::data});
          check(*groups.model, {Axis::tensor, Axis::pipeline});
        },
        {std::chrono::microseconds(50), 11});
    CHECK(wrongs.all() == "");
  }
}

// Fence names: equal on all hosts, different for every fence.
#include <doctest/doctest.h>

#include "runner/pmix/job_map.h"

using namespace sortie;
using namespace sortie::runner;

namespace {
JobMap map_of(const std::string& host) {
  wire::PmixSetup setup{"n", host, {"a", "b", "c"}, {"0,1", "2", "4,3"}, 5, {}, "/tmp/x"};
  setup.local_ranks = host == "a"   ? std::vector<std::uint32_t>{0, 1}
                      : host == "b" ? std::vector<std::uint32_t>{2}
                                    : std::vector<std::uint32_t>{4, 3};
  auto job = JobMap::from_setup(setup);
  REQUIRE(job);
  return *job;
}
}  // namespace

TEST_CASE("ranks are folded, in any order and with repetition") {
  CHECK(fold_ranks({}) == "");
  CHECK(fold_ranks({3}) == "3");
  CHECK(fold_ranks({3, 1, 2, 2}) == "1-3");
  CHECK(fold_ranks({7, 0, 1, 3, 6}) == "0-1,3,6-7");
}

TEST_CASE("all hosts give the same fence the same name") {
  const JobMap a = map_of("a");
  const JobMap c = map_of("c");
  FenceNames on_a;
  FenceNames on_c;
  CHECK(on_a.next(a, {0, 1, 2, 3, 4}).key == "0-4#1");
  CHECK(on_c.next(c, {4, 3, 2, 1, 0}).key == "0-4#1");
  CHECK(on_a.next(a, {0, 1}).key == "0-1#1");  // host c takes no part and does not count this fence
  CHECK(on_a.next(a, {0, 1, 2, 3, 4}).key == "0-4#2");
  CHECK(on_c.next(c, {0, 1, 2, 3, 4}).key == "0-4#2");
}

TEST_CASE("a fence waits for the hosts that hold its ranks") {
  const JobMap job = map_of("b");
  FenceNames names;
  CHECK(names.next(job, {0, 1, 2, 3, 4}).node_count == 3);
  CHECK(names.next(job, {0, 1}).node_count == 1);
  CHECK(names.next(job, {1, 3, 4}).node_count == 2);
}

TEST_CASE("a job map knows its own ranks") {
  const JobMap job = map_of("c");
  CHECK(job.world_size() == 5);
  CHECK(job.is_local(3));
  CHECK(job.is_local(4));
  CHECK(!job.is_local(2));
  CHECK(!job.is_local(99));
}

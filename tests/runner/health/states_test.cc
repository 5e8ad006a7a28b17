// Findings derived from successive samples of GPUs, links, clocks and folders. Times are arguments,
// so the tests do not wait.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>

#include "runner/health/gpu_state.h"
#include "runner/health/host_watch.h"
#include "runner/health/links.h"
#include "tests/support/temp_dir.h"

using namespace sortie;
using namespace sortie::runner::health;

namespace {

std::vector<Kind> kinds(const std::vector<Finding>& findings) {
  std::vector<Kind> out;
  for (const Finding& finding : findings) out.push_back(finding.kind);
  return out;
}

GpuSample healthy() {
  GpuSample sample;
  sample.recovery = 0;
  sample.throttle = 0x4;  // at its power limit: normal under load
  sample.uncorrected = 3;
  sample.corrected = 50;
  sample.remap_pending = sample.remap_failed = false;
  sample.links = 0b1111;
  return sample;
}

}  // namespace

TEST_CASE("a healthy GPU says nothing, whatever its history") {
  GpuState state;
  for (int second = 0; second < 100'000; second += 10) {
    GpuSample sample = healthy();
    sample.corrected = 50 + second / 1000;  // a corrected error now and then
    if (second % 60 == 0) sample.uncorrected.reset(), sample.links.reset();  // a quick poll
    REQUIRE(state.look(sample, second).empty());
  }
}

TEST_CASE("what is wrong already when a job begins is said once") {
  GpuState state;
  GpuSample sample = healthy();
  sample.recovery = health::kRecoveryReset;
  sample.remap_pending = true;
  CHECK(kinds(state.look(sample, 0)) == std::vector{Kind::recovery, Kind::remap_pending});
  CHECK(state.look(sample, 10).empty());
}

TEST_CASE("each change of a GPU is one finding") {
  GpuState state;
  GpuSample sample = healthy();
  state.look(sample, 0);
  sample.uncorrected = 5;
  auto found = state.look(sample, 10);
  REQUIRE(kinds(found) == std::vector{Kind::ecc});
  CHECK(found[0].value == 2);
  sample.corrected = 50 + kManyCorrected;
  CHECK(kinds(state.look(sample, 20)) == std::vector{Kind::ecc_corrected});
  sample.remap_failed = true;
  CHECK(kinds(state.look(sample, 30)) == std::vector{Kind::remap_failed});
  sample.links = 0b1011;
  found = state.look(sample, 40);
  REQUIRE(kinds(found) == std::vector{Kind::nvlink_down});
  CHECK(found[0].code == 2);
  sample.recovery = health::kRecoveryReboot;
  found = state.look(sample, 50);
  REQUIRE(kinds(found) == std::vector{Kind::recovery});
  CHECK(found[0].recovery == health::kRecoveryReboot);
  GpuSample lost;
  lost.lost = true;
  CHECK(kinds(state.look(lost, 60)) == std::vector{Kind::gpu_lost});
  CHECK(state.look(lost, 70).empty());
  CHECK(state.look(sample, 80).empty());  // it is back in its earlier state
}

TEST_CASE("throttling counts when it lasts, and only for bad reasons") {
  GpuState state;
  GpuSample sample = healthy();
  for (double second = 0; second < 300; second += 10) CHECK(state.look(sample, second).empty());
  sample.throttle = 0x40;
  for (double second = 300; second < 360; second += 10) CHECK(state.look(sample, second).empty());
  const auto found = state.look(sample, 360);
  REQUIRE(kinds(found) == std::vector{Kind::throttle});
  CHECK(found[0].value == 60);
  for (double second = 370; second < 900; second += 10) CHECK(state.look(sample, second).empty());
  sample.throttle = 0;
  CHECK(state.look(sample, 900).empty());
  sample.throttle = 0x8;
  CHECK(state.look(sample, 910).empty());
  CHECK(kinds(state.look(sample, 970)) == std::vector{Kind::throttle});
}

TEST_CASE("a link: one moment is tolerated, three within five minutes are not") {
  LinkState state;
  CHECK(state.look({true, 700}, 0).empty());  // counted over months, before the job
  CHECK(kinds(state.look({true, 701}, 5)) == std::vector{Kind::link_blip});
  CHECK(state.look({true, 701}, 10).empty());
  CHECK(kinds(state.look({true, 702}, 100)) == std::vector{Kind::link_blip});
  const auto found = state.look({true, 703}, 290);
  REQUIRE(kinds(found) == std::vector{Kind::link_flap});
  CHECK(found[0].value == 3);
  CHECK(state.look({true, 703}, 295).empty());
  // One change every three minutes is never a flap.
  LinkState slow;
  slow.look({true, 0}, 0);
  for (std::uint64_t i = 1; i < 100; ++i)
    REQUIRE(kinds(slow.look({true, i}, 180.0 * static_cast<double>(i))) ==
            std::vector{Kind::link_blip});
}

TEST_CASE("a link that stays down; a port without a cable is none") {
  LinkState state;
  state.look({true, 0}, 0);
  CHECK(state.look({false, 1}, 5).empty());
  const auto found = state.look({false, 1}, 10);
  REQUIRE(kinds(found) == std::vector{Kind::link_down});
  CHECK(found[0].value == 5);
  CHECK(state.look({false, 1}, 500).empty());
  CHECK(state.look({true, 1}, 505).empty());
  // A short loss that a sample sees is a blip, as one between two samples is.
  CHECK(state.look({false, 2}, 1000).empty());
  CHECK(kinds(state.look({true, 2}, 1005)) == std::vector{Kind::link_blip});
  CHECK(state.look({true, 2}, 1010).empty());
  LinkState unused;
  for (double second = 0; second < 1000; second += 5)
    CHECK(unused.look({false, 0}, second).empty());
}

TEST_CASE("the links of a host, as /sys shows them") {
  const test::ScopedTempDir root;
  const auto net = root / "sys/class/net";
  for (const char* adapter : {"eth0", "ib0"}) test::write_text(net / adapter / "device/vendor", "");
  test::write_text(net / "eth0/carrier", "1\n");
  test::write_text(net / "eth0/carrier_down_count", "4\n");
  test::write_text(net / "eth0/carrier_changes", "9\n");
  test::write_text(net / "ib0/carrier", "1\n");
  test::write_text(net / "ib0/carrier_changes", "2\n");  // as on older kernels
  test::write_text(net / "veth9/carrier", "1\n");        // of a container, ignored
  test::write_text(net / "lo/carrier", "1\n");
  std::filesystem::create_directories(net / "down0/device");  // set down: no carrier file
  const auto port = root / "sys/class/infiniband/mlx5_0/ports/1";
  test::write_text(port / "state", "4: ACTIVE\n");
  test::write_text(port / "counters/link_downed", "0\n");
  Links links(root.path().string());
  CHECK(links.look(0).empty());
  CHECK(links.names() == std::vector<std::string>{"eth0", "ib0", "mlx5_0:1"});
  test::write_text(net / "eth0/carrier_down_count", "5\n");
  test::write_text(net / "veth9/carrier", "0\n");
  test::write_text(port / "state", "1: DOWN\n");
  auto found = links.look(5);
  REQUIRE(kinds(found) == std::vector{Kind::link_blip});
  CHECK(found[0].device == "eth0");
  found = links.look(10);
  REQUIRE(kinds(found) == std::vector{Kind::link_down});
  CHECK(found[0].device == "mlx5_0:1");
  test::write_text(net / "ib0/carrier_changes", "8\n");
  found = links.look(15);
  REQUIRE(kinds(found) == std::vector{Kind::link_flap});
  CHECK(found[0].device == "ib0");
  std::filesystem::remove_all(net / "eth0");
  CHECK(links.look(20).empty());
  CHECK(links.names() == std::vector<std::string>{"ib0", "mlx5_0:1"});
}

TEST_CASE("the clock: steps, not the drift that is corrected all the time") {
  ClockWatch watch;
  double wall = 1e9, boot = 100;
  CHECK_FALSE(watch.look(wall, boot));
  for (int i = 0; i < 100'000; ++i) {
    wall += 5 + 0.0025;  // 500 ppm, the most that the kernel slews
    boot += 5;
    REQUIRE_FALSE(watch.look(wall, boot));
  }
  auto step = watch.look(wall + 5 - 2, boot + 5);
  REQUIRE(step);
  CHECK(step->value == doctest::Approx(-2).epsilon(0.01));
  CHECK_FALSE(watch.look(wall + 10 - 2, boot + 10));
  step = watch.look(wall + 15 + 3600, boot + 15);
  REQUIRE(step);
  CHECK(step->kind == Kind::clock_step);
}

TEST_CASE("room in a folder: said once, and again only after it was clearly better") {
  RoomState state;
  constexpr std::uint64_t kMiB = 1 << 20, kFloor = 512 * kMiB, kAll = 100'000 * kMiB;
  const auto look = [&](std::uint64_t mib, std::uint64_t inodes = 1'000'000) {
    return state.look({mib * kMiB, kAll, inodes, 2'000'000}, kFloor);
  };
  CHECK_FALSE(look(600));
  const auto full = look(511);
  REQUIRE(full);
  CHECK(full->value == 511.0 * kMiB);
  CHECK_FALSE(look(400));
  CHECK_FALSE(look(520));
  CHECK_FALSE(look(500));
  CHECK_FALSE(look(600));
  CHECK(look(500));
  CHECK_FALSE(look(600));
  CHECK(look(600, 10)->value == -1);
  // A small file system is not "full" because of its size. One that reports no inodes has no inode
  // limit.
  RoomState small;
  CHECK_FALSE(small.look({64 * kMiB, 64 * kMiB, 0, 0}, kFloor));
  CHECK(small.look({2 * kMiB, 64 * kMiB, 0, 0}, kFloor));
}

TEST_CASE("OOM kills, where only their counters can be read") {
  const test::ScopedTempDir root;
  test::write_text(root / "proc/vmstat", "nr_free_pages 1\noom_kill 7\n");
  test::write_text(root / "proc/self/mountinfo",
                   "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  test::write_text(root / "proc/self/cgroup", "0::/job\n");
  test::write_text(root / "sys/fs/cgroup/job/memory.events", "oom 0\noom_kill 1\n");
  MemoryWatch watch(root.path().string());
  CHECK_FALSE(watch.look());
  test::write_text(root / "proc/vmstat", "oom_kill 8\n");
  auto found = watch.look();
  REQUIRE(found);
  CHECK(found->text == "on this host");
  test::write_text(root / "sys/fs/cgroup/job/memory.events", "oom 1\noom_kill 2\n");
  found = watch.look();
  REQUIRE(found);
  CHECK(found->text.starts_with("in the memory group"));
  CHECK_FALSE(watch.look());
  // With cgroup v1.
  test::write_text(root / "proc/self/mountinfo",
                   "30 23 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
  test::write_text(root / "proc/self/cgroup", "4:memory:/job\n");
  test::write_text(root / "sys/fs/cgroup/memory/job/memory.oom_control", "oom_kill 0\n");
  MemoryWatch old(root.path().string());
  test::write_text(root / "sys/fs/cgroup/memory/job/memory.oom_control", "oom_kill 3\n");
  CHECK(old.look());
}

// Compares Sha256 with the published vectors, MappedFile with the file, and CpuAllowance with the
// clock.
#include <doctest/doctest.h>

#include <chrono>
#include <ctime>
#include <string>
#include <thread>

#include "tests/support/temp_dir.h"
#include "trainer/storage/cpu_allowance.h"
#include "trainer/storage/mapped_file.h"
#include "trainer/storage/sha256.h"

namespace sortie::trainer {

TEST_CASE("SHA-256 of the published vectors") {
  CHECK(sha256_hex(std::string_view("")) ==
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(sha256_hex(std::string_view("abc")) ==
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  Sha256 hash;
  for (int i = 0; i < 1000; ++i) hash.update(std::string(1000, 'a'));
  CHECK(hash.finish_hex() == "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  hash.update("abc");  // finish_hex has reset it
  CHECK(hash.finish_hex() == sha256_hex(std::string_view("abc")));
}

TEST_CASE("a mapped file shows the bytes of the file") {
  test::ScopedTempDir dir;
  const std::string content(10'000, 'q');
  test::write_text(dir.path() / "f", content);
  auto mapped = MappedFile::open(dir.path() / "f");
  REQUIRE(mapped.has_value());
  const MappedFile moved = std::move(*mapped);
  CHECK(std::string_view(reinterpret_cast<const char*>(moved.data()), moved.size()) == content);
  test::write_text(dir.path() / "empty", "");
  CHECK(MappedFile::open(dir.path() / "empty")->size() == 0);
  CHECK(MappedFile::open(dir.path() / "absent").error().message.find("absent") !=
        std::string::npos);
  CHECK_FALSE(MappedFile::open(dir.path()).has_value());
}

namespace {

using std::chrono::milliseconds;
using WallClock = std::chrono::steady_clock;

void compute_for(milliseconds wanted) {
  timespec begin{}, now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
  do ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  while ((now.tv_sec - begin.tv_sec) * 1'000'000'000 + now.tv_nsec - begin.tv_nsec <
         wanted.count() * 1'000'000);
}

void compute_and_rest(CpuAllowance* allowance, int pieces) {
  CpuAllowance::Spender cpu(allowance);
  for (int i = 0; i < pieces; ++i) {
    compute_for(milliseconds(2));
    cpu.rest();
  }
}

}  // namespace

TEST_CASE("threads of one allowance together take no more CPU time than it says") {
  CpuAllowance allowance(0.2);
  const auto begin = WallClock::now();
  std::thread other(compute_and_rest, &allowance, 10);
  compute_and_rest(&allowance, 10);
  other.join();
  // 40 ms of CPU time. The time of the first pieces counts from their beginning.
  CHECK(WallClock::now() - begin >= milliseconds(190));
}

TEST_CASE("a lifted allowance is no limit, also for threads that rest") {
  CpuAllowance allowance(1e-6);
  const auto begin = WallClock::now();
  std::thread work(compute_and_rest, &allowance, 10);
  std::this_thread::sleep_for(milliseconds(10));
  allowance.lift();
  work.join();
  CHECK(WallClock::now() - begin < std::chrono::seconds(60));  // instead of 5.5 hours
  compute_and_rest(nullptr, 1);
}

}  // namespace sortie::trainer

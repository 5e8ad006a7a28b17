// Reporter: which findings it writes, whatever their number and content, and how it groups
// repetitions.
#include "runner/health/reporter.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <string>

#include "common/base/fd.h"
#include "tests/support/text.h"

using namespace sortie;
using namespace sortie::runner::health;
using sortie::health::Finding;
using sortie::health::Kind;
using sortie::test::count_of;
using sortie::test::has;

namespace {

struct Pipe {
  Pipe() {
    int ends[2];
    REQUIRE(::pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0);
    read.reset(ends[0]);
    write.reset(ends[1]);
  }
  /// All bytes in the pipe.
  std::string take() const {
    std::string text;
    std::array<char, 65536> bytes;
    for (ssize_t count; (count = ::read(read.get(), bytes.data(), bytes.size())) > 0;)
      text.append(bytes.data(), static_cast<std::size_t>(count));
    return text;
  }
  Fd read, write;
};

Finding xid(int code, const char* device = "0000:3b:00.0") {
  return {.kind = Kind::xid, .code = code, .device = device};
}

}  // namespace

TEST_CASE("the first of its kind goes out at once, those that repeat it are counted") {
  const Pipe pipe;
  Reporter reporter(pipe.write.get());
  reporter.say(xid(94), 100);
  CHECK(count_of(pipe.take(), "\n") == 1);
  for (int i = 0; i < 5000; ++i) reporter.say(xid(94), 100 + i * 0.01);
  reporter.say(xid(95), 120);
  reporter.say(xid(94, "0000:3c:00.0"), 121);
  const std::string others = pipe.take();
  CHECK(count_of(others, "\n") == 2);
  CHECK(has(others, "\"code\":95"));
  CHECK(has(others, "0000:3c:00.0"));
  CHECK(reporter.due() == 160);
  reporter.tick(159);
  CHECK(pipe.take().empty());
  reporter.tick(160);
  CHECK(has(pipe.take(), "\"count\":5000"));
  CHECK_FALSE(reporter.due());
  reporter.tick(100'000);
  CHECK(pipe.take().empty());
  reporter.say(xid(94), 100'001);
  CHECK(count_of(pipe.take(), "\n") == 1);
}

TEST_CASE("the same error with what the driver asks for is another line") {
  const Pipe pipe;
  Reporter reporter(pipe.write.get());
  reporter.say(xid(95), 1);
  Finding informed = xid(95);
  informed.recovery = 1;
  reporter.say(informed, 1.1);
  CHECK(count_of(pipe.take(), "\n") == 2);
}

TEST_CASE("a storm of different findings is cut, and says so") {
  const Pipe pipe;
  Reporter reporter(pipe.write.get());
  for (int code = 1; code <= 2000; ++code) reporter.say(xid(code), 10);
  CHECK(count_of(pipe.take(), "\n") == static_cast<int>(Reporter::kMostAMinute));
  REQUIRE(reporter.due());
  CHECK(*reporter.due() == 70);
  reporter.tick(30);
  CHECK(pipe.take().empty());
  reporter.tick(70);
  const std::string said = pipe.take();
  CHECK(has(said, "\"kind\":\"dropped\""));
  CHECK(has(said, "\"count\":" + std::to_string(2000 - Reporter::kMostAMinute)));
}

TEST_CASE("a reader that does not read keeps nobody waiting; one that is gone is noticed") {
  std::signal(SIGPIPE, SIG_IGN);
  Pipe pipe;
  REQUIRE(::fcntl(pipe.write.get(), F_SETPIPE_SZ, 4096) > 0);
  Reporter reporter(pipe.write.get());
  Finding wide = xid(1);
  wide.text = std::string(300, 'x');
  int code = 0;
  for (int minute = 0; minute < 5; ++minute)
    for (std::size_t i = 0; i < Reporter::kMostAMinute; ++i) {
      wide.code = ++code;
      reporter.say(wide, minute * 61.0);
    }
  const std::string said = pipe.take();
  CHECK(said.size() <= 4096);
  CHECK(said.ends_with("}\n"));  // no line is cut
  reporter.tick(1000);
  CHECK(has(pipe.take(), "\"kind\":\"dropped\""));
  CHECK_FALSE(reporter.closed());
  pipe.read.reset();
  wide.code = ++code;
  reporter.say(wide, 2000);
  CHECK(reporter.closed());
}

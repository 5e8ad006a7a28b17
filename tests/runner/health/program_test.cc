// sortie-health as a program, with a file as kernel log and a fake NVML driven by a file.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "common/base/fd.h"
#include "tests/support/cpu_time.h"
#include "tests/support/temp_dir.h"
#include "tests/support/text.h"

using namespace sortie;
using sortie::test::contains;
using sortie::test::has;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

namespace {

/// A sortie-health process with its own files. Killed by the destructor.
class Helper {
 public:
  /// `options` follow those that name the files of this test.
  explicit Helper(std::vector<std::string> options = {}, const std::string& nvml = "gpus 2\n") {
    test::write_text(kernel_log(), "");
    test::write_text(folder_ / "nvml", nvml);
    std::vector<std::string> argv = {"sortie-health",  "--kmsg", kernel_log(),           "--nvml",
                                     SORTIE_FAKE_NVML, "--root", folder_.path().string()};
    if (!has_option(options, "--tick-ms")) {
      argv.emplace_back("--tick-ms");
      argv.emplace_back("20");
    }
    argv.insert(argv.end(), options.begin(), options.end());
    int ends[2];
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    out_.reset(ends[0]);
    const Fd its(ends[1]);
    const std::string env = "SORTIE_FAKE_NVML=" + folder_.str("nvml");
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::dup2(its.get(), 1);
      std::vector<char*> words;
      for (std::string& word : argv) words.push_back(word.data());
      words.push_back(nullptr);
      std::array<char*, 2> variables = {const_cast<char*>(env.c_str()), nullptr};
      ::execve(SORTIE_HEALTH, words.data(), variables.data());
      ::_exit(126);
    }
  }
  ~Helper() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Helper(const Helper&) = delete;
  Helper& operator=(const Helper&) = delete;

  /// The next line; nullopt after `limit` or at the end of the stream.
  std::optional<std::string> line(milliseconds limit = milliseconds(30'000)) {
    const auto until = steady_clock::now() + limit;
    for (;;) {
      if (const std::size_t end = text_.find('\n'); end != text_.npos) {
        std::string line = text_.substr(0, end);
        text_.erase(0, end + 1);
        return line;
      }
      const auto left = std::chrono::ceil<milliseconds>(until - steady_clock::now());
      pollfd fd{out_.get(), POLLIN, 0};
      if (left.count() <= 0 || ::poll(&fd, 1, static_cast<int>(left.count())) <= 0)
        return std::nullopt;
      std::array<char, 4096> bytes;
      const ssize_t count = ::read(out_.get(), bytes.data(), bytes.size());
      if (count <= 0) return std::nullopt;
      text_.append(bytes.data(), static_cast<std::size_t>(count));
    }
  }
  /// The next line that contains `words`.
  std::string line_with(const std::string& words) {
    const auto until = steady_clock::now() + std::chrono::seconds(60);
    while (steady_clock::now() < until)
      if (const auto next = line()) {
        if (has(*next, words)) return *next;
      } else {
        break;
      }
    FAIL_CHECK("no line with " << words);
    return {};
  }
  void kernel(const std::string& message) {
    std::ofstream(kernel_log(), std::ios::app)
        << "4," << ++records_ << ",1000,-;" << message << "\n SUBSYSTEM=pci\n";
  }
  void nvml(const std::string& line) { std::ofstream(folder_ / "nvml", std::ios::app) << line; }
  std::string kernel_log() const { return folder_.str("kmsg"); }
  const test::ScopedTempDir& folder() const { return folder_; }
  pid_t pid() const { return pid_; }
  void close_output() { out_.reset(); }
  /// The exit code; nullopt if it still runs after `limit`.
  std::optional<int> ended(milliseconds limit = milliseconds(30'000)) {
    const auto until = steady_clock::now() + limit;
    int status = 0;
    while (::waitpid(pid_, &status, WNOHANG) == 0) {
      if (steady_clock::now() > until) return std::nullopt;
      ::usleep(2000);
    }
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  static bool has_option(const std::vector<std::string>& options, const std::string& name) {
    for (const std::string& option : options)
      if (option == name) return true;
    return false;
  }
  test::ScopedTempDir folder_;
  Fd out_;
  pid_t pid_ = -1;
  std::string text_;
  int records_ = 0;
};

}  // namespace

TEST_CASE("it says what it watches, and then nothing while nothing happens") {
  Helper helper;
  const auto first = helper.line();
  REQUIRE(first);
  CHECK(contains(*first, R"("kind":"sources")"));
  CHECK(contains(*first, "kernel log; NVML 999.1: 2 GPUs; links:"));
  helper.kernel("usb 1-1: new device");
  CHECK_FALSE(helper.line(milliseconds(500)));
}

TEST_CASE("an XID of the kernel's log gets the GPU's number and UUID") {
  Helper helper;
  helper.line_with("sources");
  helper.kernel("NVRM: Xid (PCI:0000:3c:00): 79, pid=1, GPU has fallen off the bus.");
  const std::string line = helper.line_with("\"xid\"");
  CHECK(contains(line, R"("code":79)"));
  CHECK(contains(line, R"("device":"0000:3c:00.0","gpu":1,"uuid":"GPU-0000-1","source":"kmsg")"));
  CHECK(contains(line, "GPU has fallen off the bus"));
}

TEST_CASE("a record that comes in pieces is one record") {
  Helper helper;
  helper.line_with("sources");
  std::ofstream log(helper.kernel_log(), std::ios::app);
  log << "4,1,2,-;NVRM: Xid (PCI:00" << std::flush;
  CHECK_FALSE(helper.line(milliseconds(200)));
  log << "00:3b:00): 31, x\n" << std::flush;
  CHECK(contains(helper.line_with("\"xid\""), R"("code":31)"));
}

TEST_CASE("events of NVML, with what the driver asks for") {
  Helper helper;
  helper.line_with("sources");
  helper.nvml("event 1 31\n");
  CHECK(contains(helper.line_with("\"xid\""),
                 R"("gpu":1,"uuid":"GPU-0000-1","source":"nvml","recovery":0)"));
  helper.nvml("recovery 0 1\nevent 0 95\n");
  CHECK(contains(helper.line_with("\"code\":95"), R"("recovery":1)"));
}

TEST_CASE("the counters of NVML: memory errors, rows, links, a GPU that is lost") {
  Helper helper({}, "gpus 2\necc 0 4\nlinks 0 15\n");
  helper.line_with("sources");
  // Findings compare with the first poll, which may see the file after its first change. So the
  // counter keeps growing.
  std::optional<std::string> ecc;
  for (int errors = 7; !ecc && errors < 100; ++errors) {
    helper.nvml("ecc 0 " + std::to_string(errors) + "\n");
    ecc = helper.line(milliseconds(500));
  }
  REQUIRE(ecc);
  CHECK(contains(*ecc, "\"ecc\""));
  CHECK(contains(*ecc, R"("gpu":0)"));
  helper.nvml("pending 1 1\n");
  CHECK(contains(helper.line_with("remap_pending"), R"("gpu":1)"));
  helper.nvml("links 0 13\n");
  CHECK(contains(helper.line_with("nvlink_down"), R"("code":1)"));
  helper.nvml("lost 1\n");
  CHECK(contains(helper.line_with("gpu_lost"), R"("device":"0000:3c:00.0","gpu":1)"));
}

TEST_CASE("a driver that does not answer keeps nothing else from being seen") {
  Helper helper({}, "gpus 2\nhang 0\n");
  CHECK(contains(helper.line_with("sources"), "NVML does not answer yet"));
  helper.kernel("NVRM: Xid (PCI:0000:3b:00): 119, Timeout after 6s of waiting for RPC");
  CHECK(contains(helper.line_with("\"xid\""), R"("code":119)"));
}

TEST_CASE("a host without NVML, without a readable kernel log") {
  Helper none({}, "");
  CHECK(contains(none.line_with("sources"), "no NVML: Driver Not Loaded"));
  Helper blind({"--kmsg", "/nowhere/kmsg"});
  CHECK(contains(blind.line_with("sources"), "no kernel log: /nowhere/kmsg: No such file"));
}

TEST_CASE("a storm in the kernel's log is a handful of lines") {
  Helper helper;
  helper.line_with("sources");
  {
    std::ofstream log(helper.kernel_log(), std::ios::app);
    for (int i = 0; i < 20'000; ++i)
      log << "4," << i << ",1,-;NVRM: Xid (PCI:0000:3b:00): 94, pid=" << i << ", Contained\n";
  }
  CHECK(contains(helper.line_with("\"xid\""), "\"code\":94"));
  CHECK_FALSE(helper.line(milliseconds(500)));
}

TEST_CASE("it ends with its reader") {
  Helper helper;
  helper.line_with("sources");
  helper.close_output();
  CHECK(helper.ended() == 0);
}

TEST_CASE("words that it does not take, and libraries that others may write") {
  CHECK(Helper({"--nonsense", "x"}).ended() == 2);
  CHECK(Helper({"--tick-ms", "0"}).ended() == 2);
  CHECK(Helper({"--floor"}).ended() == 2);
  CHECK(Helper({"--nvml", "libc.so.6"}).ended() == 2);
  const test::ScopedTempDir folder;
  test::write_text(folder / "lib.so", "x");
  std::filesystem::permissions(folder / "lib.so", std::filesystem::perms(0666));
  CHECK(Helper({"--nvml", folder.str("lib.so")}).ended() == 2);
}

TEST_CASE("it costs next to nothing while nothing happens") {
  // Polls fifty times as often as in production, so that a short run suffices.
  Helper helper({"--tick-ms", "100"});
  helper.line_with("sources");
  ::usleep(300'000);
  // Other load on the machine can only add to the CPU time measured, so the minimum of three
  // windows counts.
  double share = 1;
  for (int window = 0; window < 3; ++window) {
    const double before = test::cpu_seconds(helper.pid());
    const auto began = steady_clock::now();
    CHECK_FALSE(helper.line(milliseconds(1000)));
    const double wall = std::chrono::duration<double>(steady_clock::now() - began).count();
    share = std::min(share, (test::cpu_seconds(helper.pid()) - before) / wall / 50);
  }
  MESSAGE("CPU at a tick of 5 s: " << share * 100 << " % of a core (" << share * 50 * 100
                                   << " % at 100 ms, with a fake NVML that reads files)");
  CHECK(share <= 0.001);
}

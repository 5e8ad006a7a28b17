// A runner with --serve: several conversations, each in a separate process, and every way in which
// it ends.
#include "runner/serve/serve.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "common/base/exit_code.h"
#include "common/wire/serving.h"
#include "tests/support/runner_client.h"

using namespace sortie;
using namespace sortie::test;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

namespace {

/// Acts as the keeper of a runner with --serve, and as the launcher of its conversations.
class ServedRunner {
 public:
  explicit ServedRunner(wire::ServeTerms terms = {60'000, 60'000}) {
    ::signal(SIGPIPE, SIG_IGN);
    int input[2], output[2];
    REQUIRE(::pipe2(input, O_CLOEXEC) == 0);
    REQUIRE(::pipe2(output, O_CLOEXEC) == 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(input[0], 0);
      ::dup2(output[1], 1);
      const char* argv[] = {SORTIE_RUNNER_BINARY, "--stdio", "--serve", nullptr};
      ::execv(argv[0], const_cast<char**>(argv));
      ::_exit(127);
    }
    ::close(input[0]);
    ::close(output[1]);
    to_.reset(input[1]);
    from_.reset(output[0]);
    say(wire::serving_frame(terms));
  }
  ~ServedRunner() {
    to_.reset();
    if (pid_ > 0 && !exit_code(milliseconds(10'000))) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
  }

  void say(const std::string& bytes) {
    if (::write(to_.get(), bytes.data(), bytes.size()) < 0) write_failed_ = true;
  }
  void send(const wire::Message& message) { say(wire::encode(message)); }

  /// The next frame other than a heartbeat; nullopt at the end of the stream or after `limit`.
  std::optional<wire::Frame> next(milliseconds limit = RunnerClient::kPatience) {
    const auto until = steady_clock::now() + limit;
    for (;;) {
      auto frame = decoder_.next();
      REQUIRE(frame);
      if (*frame) {
        if ((*frame)->type == 5) continue;
        return std::move(**frame);
      }
      const auto left = std::chrono::ceil<milliseconds>(until - steady_clock::now()).count();
      pollfd polled{from_.get(), POLLIN, 0};
      if (left <= 0 || ::poll(&polled, 1, static_cast<int>(left)) <= 0) return std::nullopt;
      char bytes[4096];
      const ssize_t count = ::read(from_.get(), bytes, sizeof bytes);
      if (count <= 0) return std::nullopt;
      decoder_.feed({bytes, static_cast<std::size_t>(count)});
    }
  }
  bool hears(wire::Serving type) {
    const auto frame = next();
    return frame && frame->type == static_cast<std::uint8_t>(type);
  }
  /// Skips frames up to the end of the conversation and returns it.
  std::optional<wire::ConversationEnd> end() {
    while (const auto frame = next())
      if (frame->type == static_cast<std::uint8_t>(wire::Serving::ended))
        return wire::read_end(frame->payload).value();
    return std::nullopt;
  }
  /// Begins a conversation and runs the job; returns its output once it contains `until`.
  std::string start(const wire::JobSpec& job, const std::string& until) {
    say(wire::serving_frame(wire::Serving::begin));
    REQUIRE(hears(wire::Serving::begun));
    send(wire::Hello{wire::kProtocolVersion, ""});
    wire::JobSpec spec = job;
    spec.autostart = 1;
    send(spec);
    std::string out;
    while (!out.contains(until)) {
      const auto frame = next();
      REQUIRE_MESSAGE(frame, out);
      const auto message = wire::decode(*frame);
      REQUIRE(message);
      if (const auto* output = std::get_if<wire::Output>(&*message)) out += output->bytes;
    }
    return out;
  }
  /// Ends the input of a waiting_job(), so that it exits.
  void let_end() { send(wire::Input{"", 1}); }
  /// Waits until the job ends by itself, then ends the conversation.
  std::optional<wire::ConversationEnd> finish() {
    while (const auto frame = next()) {
      const auto message = wire::decode(*frame);
      REQUIRE(message);
      if (std::holds_alternative<wire::Finished>(*message)) break;
    }
    send(wire::Goodbye{});
    return end();
  }
  std::optional<int> exit_code(milliseconds limit = RunnerClient::kPatience) {
    const auto until = steady_clock::now() + limit;
    int status = 0;
    while (::waitpid(pid_, &status, WNOHANG) == 0) {
      if (steady_clock::now() > until) return std::nullopt;
      ::usleep(2000);
    }
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  void end_input() { to_.reset(); }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
  Fd to_, from_;
  wire::FrameDecoder decoder_;
  bool write_failed_ = false;
};

wire::JobSpec shell_job(const std::string& script) {
  wire::JobSpec job = make_job({"sh", "-c", script});
  job.heartbeat_timeout_ms = 120'000;  // no heartbeats are sent here
  return job;
}

/// A job with one process, which writes "up" and runs until let_end().
wire::JobSpec waiting_job() {
  wire::JobSpec job = shell_job("echo up; exec cat");
  job.input_window = 4096;
  return job;
}

/// Waits for the process that serves the next conversation. `before`, which served the last one,
/// and a keeper may still run.
pid_t waiting_child(pid_t runner, pid_t before) {
  const auto until = steady_clock::now() + RunnerClient::kPatience;
  while (steady_clock::now() < until) {
    for (const pid_t child : children_of(runner)) {
      const std::string name = read_text(fmt::format("/proc/{}/comm", child));
      const bool gone = name.empty();  // a keeper that was reaped meanwhile
      if (child != before && !gone && !name.starts_with("sortie-keep")) return child;
    }
    ::usleep(5000);
  }
  FAIL("no process waits for a conversation");
  return -1;
}

/// Waits at most half a minute for the process to end. Zombies count as ended.
bool ends(pid_t pid) {
  const auto until = steady_clock::now() + RunnerClient::kPatience;
  while (steady_clock::now() < until) {
    const std::string stat = read_text(fmt::format("/proc/{}/stat", pid));
    if (stat.empty() || stat.contains(") Z") || stat.contains(") X")) return true;
    ::usleep(5000);
  }
  return false;
}

/// Waits until the process has only `count` descriptors.
bool has_descriptors(pid_t pid, std::ptrdiff_t count) {
  const auto until = steady_clock::now() + RunnerClient::kPatience;
  while (steady_clock::now() < until) {
    std::error_code error;
    const std::filesystem::directory_iterator open(fmt::format("/proc/{}/fd", pid), error);
    if (!error && std::distance(open, {}) == count) return true;
    ::usleep(1000);
  }
  return false;
}

/// Processes of the job. Waits for them, because during exec a process has no environment to find
/// it by.
std::vector<pid_t> ranks_of(const wire::JobSpec& job) {
  const auto until = steady_clock::now() + RunnerClient::kPatience;
  for (;;) {
    const auto ranks = processes_with("SORTIE_RUN_ID=" + job.run_id);
    if (!ranks.empty() || steady_clock::now() >= until) return ranks;
    ::usleep(5000);
  }
}

/// The process that serves the conversation: the parent of the keeper of the job's rank.
pid_t conversing(const wire::JobSpec& job) {
  const auto ranks = ranks_of(job);
  REQUIRE_FALSE(ranks.empty());
  return parent_of(parent_of(ranks.front()));
}

}  // namespace

TEST_CASE("a runner that stays holds one conversation after another, and keeps nothing of one") {
  ServedRunner runner;
  wire::JobSpec first = shell_job("echo pid=$PPID secret=$SECRET; echo done");
  first.env.emplace_back("SECRET", "of the first");
  std::string said = runner.start(first, "done");
  CHECK(said.contains("secret=of the first"));
  auto end = runner.finish();
  REQUIRE(end);
  CHECK(end->code == 0);
  CHECK(remains(first) == "");

  runner.say(wire::serving_frame(wire::Serving::ping));
  CHECK(runner.hears(wire::Serving::pong));

  const wire::JobSpec second = shell_job(
      "echo secret=$SECRET; ls /proc/self/fd | wc -l; tr '\\0' '\\n' < "
      "/proc/$PPID/environ | grep -c SECRET; echo done");
  said = runner.start(second, "done");
  CHECK(said.starts_with("secret=\n"));
  CHECK(said.contains("\n0\ndone"));
  end = runner.finish();
  REQUIRE(end);
  CHECK(end->code == 0);
  CHECK(remains(second) == "");

  runner.end_input();
  CHECK(runner.exit_code() == kExitOk);
}

TEST_CASE("the next conversation's process waits already; without it there is a new one") {
  ServedRunner runner;
  const wire::JobSpec first = waiting_job(), second = waiting_job(), third = shell_job("echo done");
  runner.start(first, "up");
  const pid_t begun = conversing(first);
  runner.let_end();
  REQUIRE(runner.finish());
  const pid_t waits = waiting_child(runner.pid(), begun);
  const pid_t keeper = waiting_child(waits, -1), process = waiting_child(keeper, -1);

  runner.start(second, "up");
  CHECK(conversing(second) == waits);
  CHECK(ranks_of(second) == std::vector<pid_t>{process});
  CHECK(parent_of(process) == keeper);
  runner.let_end();
  REQUIRE(runner.finish());

  const pid_t other = waiting_child(runner.pid(), waits);
  const pid_t other_keeper = waiting_child(other, -1);
  ::kill(other, SIGKILL);
  CHECK(ends(other));
  CHECK(ends(other_keeper));
  CHECK(runner.start(third, "done") == "done\n");
  const auto end = runner.finish();
  REQUIRE(end);
  CHECK(end->code == 0);
  runner.end_input();
  CHECK(runner.exit_code() == kExitOk);
}

TEST_CASE("a keeper, or its process, that was killed while it waited is replaced") {
  for (const bool of_keeper : {true, false}) {
    CAPTURE(of_keeper);
    ServedRunner runner;
    const wire::JobSpec first = waiting_job(), second = shell_job("echo done");
    runner.start(first, "up");
    const pid_t begun = conversing(first);
    runner.let_end();
    REQUIRE(runner.finish());
    const pid_t keeper = waiting_child(waiting_child(runner.pid(), begun), -1);
    const pid_t process = waiting_child(keeper, -1);
    // Before that, the process may hold the socket of a keeper that is already dead.
    CHECK(has_descriptors(process, 5));  // orders, errors and the standard ones
    const pid_t killed = of_keeper ? keeper : process;
    ::kill(killed, SIGKILL);
    CHECK(ends(killed));
    CHECK(runner.start(second, "done") == "done\n");
    const auto end = runner.finish();
    REQUIRE(end);
    CHECK(end->code == 0);
    CHECK(remains(second) == "");
    runner.end_input();
    CHECK(runner.exit_code() == kExitOk);
  }
}

TEST_CASE("the process that waits for a conversation ends with the one that serves") {
  for (const bool killed : {true, false}) {
    CAPTURE(killed);
    ServedRunner runner;
    const wire::JobSpec job = waiting_job();
    runner.start(job, "up");
    const pid_t begun = conversing(job);
    runner.let_end();
    REQUIRE(runner.finish());
    const pid_t waits = waiting_child(runner.pid(), begun);
    const pid_t keeper = waiting_child(waits, -1), process = waiting_child(keeper, -1);
    if (killed)
      ::kill(runner.pid(), SIGKILL);
    else
      runner.end_input();
    CHECK(runner.exit_code() == (killed ? 128 + SIGKILL : kExitOk));
    CHECK(ends(waits));
    CHECK(ends(keeper));
    CHECK(ends(process));
  }
}

TEST_CASE("a runner that stays ends with its input; ranks end with it") {
  ServedRunner runner;
  const wire::JobSpec job = shell_job("echo up; setsid sleep 1000 & sleep 1000");
  runner.start(job, "up");
  runner.end_input();
  CHECK(runner.exit_code() == kExitLost);
  CHECK(remains(job) == "");
}

TEST_CASE("Goodbye while ranks run, as whoever keeps a runner says for a lost client, ends them") {
  ServedRunner runner;
  const wire::JobSpec job = shell_job("echo up; sleep 1000");
  runner.start(job, "up");
  runner.send(wire::Goodbye{});
  const auto end = runner.end();
  REQUIRE(end);
  CHECK(end->code == kExitFailed);
  CHECK(runner.exit_code() == kExitFailed);
  CHECK(remains(job) == "");
}

TEST_CASE("killed: the conversation's process, or the one that serves; nothing is left") {
  for (const bool child : {true, false}) {
    CAPTURE(child);
    ServedRunner runner;
    const wire::JobSpec job = shell_job("echo up; setsid sleep 1000 & sleep 1000");
    runner.start(job, "up");
    REQUIRE(parent_of(conversing(job)) == runner.pid());
    ::kill(child ? conversing(job) : runner.pid(), SIGKILL);
    CHECK(runner.exit_code() == 128 + SIGKILL);
    CHECK(remains(job) == "");
  }
}

TEST_CASE("TERM ends the conversation in order, then the runner that stays") {
  ServedRunner runner;
  const wire::JobSpec job = shell_job("echo up; sleep 1000");
  runner.start(job, "up");
  ::kill(runner.pid(), SIGTERM);
  CHECK(runner.end());
  CHECK(runner.exit_code() == 128 + SIGTERM);
  CHECK(remains(job) == "");
}

TEST_CASE("a runner that nobody needs, or that hears nothing, ends by itself") {
  {
    ServedRunner idle({200, 60'000});
    CHECK(idle.exit_code() == kExitOk);
  }
  {
    ServedRunner silent({60'000, 200});
    CHECK(silent.exit_code() == kExitOk);
  }
  // The silence limit does not apply during a conversation.
  ServedRunner busy({60'000, 4000});
  const wire::JobSpec job = shell_job("echo up; sleep 5; echo done");
  busy.start(job, "done");
  REQUIRE(busy.finish());
  CHECK(busy.exit_code() == kExitOk);
}

TEST_CASE("what is no frame of serving ends a runner that stays") {
  for (const std::string& bytes :
       {wire::encode(wire::Goodbye{}), wire::serving_frame(wire::Serving::pong),
        std::string(40, '\xff')}) {
    ServedRunner runner;
    runner.say(bytes);
    CHECK(runner.exit_code() == kExitFailed);
  }
}

// Tests of a rank's progress: marks that training sets, lines that the runner receives, and the
// stacks that a process writes.
#include <doctest/doctest.h>
#include <fmt/core.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <deque>
#include <filesystem>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "common/base/fd.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_training.h"
#include "trainer/metrics/progress_reporter.h"
#include "trainer/parallel/thread_ranks.h"

using namespace sortie;
using namespace sortie::trainer;
using namespace sortie::trainer::test;
using training::Section;

namespace {

/// The runner's end of SORTIE_SOCKET.
class LineListener {
 public:
  explicit LineListener(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
    socket_.reset(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    REQUIRE(::bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    REQUIRE(::listen(socket_.get(), 8) == 0);
  }
  /// Returns the next line. Empty at the end, or after ten seconds without data.
  std::string line() {
    if (!peer_) peer_.reset(::accept(socket_.get(), nullptr, nullptr));
    while (!text_.contains('\n')) {
      pollfd polled{peer_.get(), POLLIN, 0};
      char bytes[4096];
      if (::poll(&polled, 1, 10'000) <= 0) return {};
      const ssize_t count = ::read(peer_.get(), bytes, sizeof bytes);
      if (count <= 0) return {};
      text_.append(bytes, static_cast<std::size_t>(count));
    }
    const std::string line = text_.substr(0, text_.find('\n'));
    text_.erase(0, line.size() + 1);
    return line;
  }

 private:
  Fd socket_, peer_;
  std::string text_;
};

/// Reads marks continuously on another thread.
class Watcher {
 public:
  explicit Watcher(const ProgressMarks& marks)
      : thread_([this, &marks] {
          while (!ending_) {
            const ProgressMarks::Seen seen = marks.look();
            const std::lock_guard lock(mutex_);
            ++seen_[seen.section];
          }
        }) {}
  ~Watcher() {
    ending_ = true;
    thread_.join();
  }
  /// Returns whether it has seen own work of every kind.
  bool saw_all() {
    const std::lock_guard lock(mutex_);
    for (const Section section :
         {Section::data, Section::forward, Section::backward, Section::optimizer})
      if (!seen_.contains(section)) return false;
    return true;
  }

 private:
  std::map<Section, int> seen_;
  std::mutex mutex_;
  std::atomic<bool> ending_{false};
  std::thread thread_;
};

[[gnu::noinline]] void hang_here_for_ever() {
  for (;;) ::pause();
}

}  // namespace

TEST_CASE("a step's marks: its sections in their order, own time, ticks of a validation") {
  const auto communicator = make_single_communicator();
  config::JobConfig job = tiny_job();
  job.trainer.train_iterations = 2000;
  TinyTraining training(std::move(job), *communicator);
  ProgressMarks& marks = *training.rank.marks;
  marks.count_collectives(communicator->begun());
  CHECK(marks.look().section == Section::start);
  std::uint64_t steps = 0;
  {
    // The watcher can miss a section of a tiny model while its thread does not run, but not a
    // thousand times.
    Watcher watcher(marks);
    do REQUIRE(training.trainer->step());
    while (++steps < 2000 && !watcher.saw_all());
    CHECK(watcher.saw_all());
  }
  const ProgressMarks::Seen seen = marks.look();
  CHECK(seen.step == steps);
  CHECK(seen.section == Section::optimizer);
  CHECK(seen.own_us > 0);
  CHECK(seen.sequence > 0);
  CHECK(seen.ticks == 0);
  REQUIRE(training.trainer->evaluate());
  CHECK(marks.look().ticks > 0);
}

TEST_CASE("own time is that of own work, and not of waiting") {
  ProgressMarks marks;
  marks.begin_step(1);
  marks.enter(Section::reduce);
  const std::uint64_t before = marks.look().own_us;
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  marks.enter(Section::forward);
  CHECK(marks.look().own_us == before);
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  marks.enter(Section::save);
  CHECK(marks.look().own_us >= before + 30'000);
  CHECK(marks.look().step == 1);
}

TEST_CASE("marks of a stream: the rank is where the stream is, and its host ahead of it") {
  ProgressMarks marks;
  const auto place = std::make_shared<StreamPlace>();
  std::deque<StreamMark> stream;
  const auto pass = [&] {
    const StreamMark mark = stream.front();
    stream.pop_front();
    place->value = (place->value & mark.kept) | mark.value;
    return mark.timed;
  };
  const auto stands = [&](std::uint64_t step, Section section) {
    const ProgressMarks::Seen seen = marks.look();
    return seen.step == step && seen.section == section;
  };
  marks.follow(place, [&](const StreamMark& mark) { stream.push_back(mark); });
  marks.begin_step(5);
  CHECK(stands(5, Section::data));  // the stream has not begun: its host's
  for (const Section section : {Section::data, Section::forward, Section::backward, Section::reduce,
                                Section::reduce, Section::optimizer})
    marks.enter(section);
  marks.begin_step(6);
  marks.enter(Section::forward);
  marks.enter(Section::forward);  // the next micro-batch, if its passes are a graph
  REQUIRE(stream.size() == 8);    // what follows itself is one mark, except passes
  for (const Section section :
       {Section::data, Section::forward, Section::backward, Section::reduce, Section::optimizer}) {
    CHECK(pass() == training::is_own_work(section));
    CHECK(stands(5, section));
  }
  while (!stream.empty()) CHECK(pass());
  CHECK(stands(6, Section::forward));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  marks.enter(Section::reduce);
  CHECK(marks.look().own_us == 0);  // not the host's time
  place->timed_ns = 7'000'000;
  CHECK(marks.look().own_us == 7000);
  marks.unfollow();
  CHECK(stands(6, Section::reduce));
  marks.enter(Section::optimizer);
  CHECK(stream.size() == 1);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  marks.enter(Section::done);
  CHECK(marks.look().own_us >= 27'000);
}

TEST_CASE("all ranks have begun the same number of collectives after a step") {
  std::mutex mutex;
  std::vector<std::uint64_t> begun;
  run_thread_ranks(3, [&](Communicator& communicator) {
    config::JobConfig job = tiny_job();
    job.topology.global_batch_size = 12;
    TinyTraining training(std::move(job), communicator);
    for (int i = 0; i < 3; ++i) REQUIRE(training.trainer->step());
    const std::lock_guard lock(mutex);
    begun.push_back(communicator.begun()->load());
  });
  REQUIRE(begun.size() == 3);
  CHECK(begun[0] > 3);
  CHECK(begun[0] == begun[1]);
  CHECK(begun[0] == begun[2]);
}

TEST_CASE("the runner is told of what has changed, and once a second of what has not") {
  const sortie::test::ScopedTempDir dir;
  LineListener listener(dir.str("socket"));
  ProgressMarks marks;
  std::atomic<std::uint64_t> files{0};
  const auto begin = std::chrono::steady_clock::now();
  auto reporter = ProgressReporter::start(dir.str("socket"), marks, [&] { return files.load(); });
  REQUIRE(reporter);
  const auto next = [&] { return nlohmann::json::parse(listener.line()); };
  CHECK(next() == nlohmann::json{{"type", "progress"},
                                 {"step", 0},
                                 {"section", "start"},
                                 {"sequence", 0},
                                 {"ticks", 0},
                                 {"own_us", 0}});
  CHECK(next()["section"] == "start");  // repeated, because the process lives
  CHECK(std::chrono::steady_clock::now() - begin > std::chrono::milliseconds(500));
  marks.begin_step(7);
  marks.enter(Section::backward);
  nlohmann::json line;
  do line = next();
  while (line["section"] == "start");
  CHECK(line["section"] == "data");  // reported before training continues
  CHECK(line["step"] == 7);
  do line = next();
  while (line["section"] != "backward");
  CHECK(line["step"] == 7);
  files = 3;  // of a background save
  line = next();
  CHECK(line["section"] == "backward");
  CHECK(line["ticks"] == 0);
  marks.enter(Section::save);
  do line = next();
  while (line["section"] != "save");
  CHECK(line["ticks"] == 3);
  marks.enter(Section::done);
  reporter->reset();
  std::string last;
  for (std::string text = listener.line(); !text.empty(); text = listener.line()) last = text;
  CHECK(nlohmann::json::parse(last)["section"] == "done");
  CHECK_FALSE(ProgressReporter::start(dir.str("none"), marks, {}));
}

TEST_CASE("a process that hangs tells the stacks of all its threads") {
  const sortie::test::ScopedTempDir dir;
  LineListener listener(dir.str("socket"));
  const pid_t child = ::fork();
  if (child == 0) {
    ProgressMarks marks;
    auto reporter = ProgressReporter::start(dir.str("socket"), marks, {});
    if (!reporter) ::_exit(1);
    std::thread other(hang_here_for_ever);
    hang_here_for_ever();
  }
  REQUIRE_FALSE(listener.line().empty());
  // On a busy machine its threads may not have reached the place where they hang.
  const auto hanging = [child] {
    const std::string pause = fmt::format("{} ", SYS_pause);
    std::ptrdiff_t count = 0;
    for (const auto& task :
         std::filesystem::directory_iterator(fmt::format("/proc/{}/task", child)))
      count += sortie::test::read_text(task.path() / "syscall").starts_with(pause);
    return count;
  };
  for (int i = 0; i < 1000 && hanging() < 2; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  ::kill(child, SIGQUIT);
  const std::string path =
      dir.str("socket") + std::string(training::kStacksSuffix) + std::to_string(child);
  std::string text;
  for (int i = 0; i < 1000 && !text.contains(training::kStacksEnd); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    text = sortie::test::read_text(path);
  }
  CHECK(text.ends_with(std::string(training::kStacksEnd) + "\n"));
  std::size_t threads = 0;  // threads in pause(); a sanitizer adds threads and frames
  for (std::size_t at = text.find("thread "), end = 0; at != text.npos; at = end) {
    end = text.find("\nthread ", at + 1);
    threads += text.substr(at, end - at).contains("pause") ? 1 : 0;
  }
  CHECK_MESSAGE(threads == 2, text);
  CHECK(::waitpid(child, nullptr, WNOHANG) == 0);  // still alive
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

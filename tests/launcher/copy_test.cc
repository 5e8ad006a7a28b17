// push and staging: which host fetches from which, how paths are interpreted, progress, and the end
// of a copy command.
#include <doctest/doctest.h>

#include <sys/stat.h>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <csignal>

#include "common/asio/spawn.h"
#include "common/config/load.h"
#include "common/config/stage.h"
#include "launcher/copy/copy_command.h"
#include "launcher/copy/host_crew.h"
#include "launcher/copy/local_tree.h"
#include "launcher/copy/progress.h"
#include "launcher/copy/relay_chains.h"
#include "launcher/copy/semaphore.h"
#include "launcher/copy/stage.h"
#include "launcher/copy/tree_upload.h"
#include "tests/support/scoped_variable.h"
#include "tests/support/temp_dir.h"

using namespace sortie;
using namespace sortie::launcher;
using test::ScopedTempDir;
using test::write_text;
namespace asio = boost::asio;
namespace fs = std::filesystem;

TEST_CASE("relay: hosts line up as they become ready") {
  RelayChains chains;
  CHECK_FALSE(chains.attach(4, true, true));
  CHECK(chains.attach(1, true, true) == 4);
  CHECK(chains.attach(0, true, true) == 1);
  CHECK(chains.attach(2, true, false) == 0);  // not reachable: no host fetches from it
  CHECK(chains.attach(3, true, true) == 0);
  chains.remove(3);
  CHECK_FALSE(chains.attach(5, true, true));  // there was no other chain
}

TEST_CASE("relay: a dead end is passed by, a full chain is followed by another") {
  RelayChains chains(3);
  CHECK_FALSE(chains.attach(0, true, true));
  CHECK(chains.attach(1, true, true) == 0);
  chains.remove(1);
  CHECK_FALSE(chains.attach(2, true, true));
  CHECK(chains.attach(3, true, true) == 2);
  CHECK(chains.attach(4, true, true) == 3);
  CHECK_FALSE(chains.attach(5, true, true));
  CHECK(chains.attach(6, true, true) == 5);
}

TEST_CASE("relay: a host that has all begins a chain that costs nothing") {
  RelayChains chains;
  CHECK_FALSE(chains.attach(0, false, true));
  CHECK(chains.attach(1, true, true) == 0);
  CHECK_FALSE(chains.attach(2, false, false));
  CHECK(chains.attach(3, true, true) == 1);
  chains.remove(3);
  CHECK_FALSE(chains.attach(4, true, true));  // there was no other chain
}

TEST_CASE("relay: by itself where it pays") {
  CHECK_FALSE(relay_pays(RelayMode::automatic, 1, 1u << 30));
  CHECK(relay_pays(RelayMode::automatic, 2, 4u << 20));
  CHECK_FALSE(relay_pays(RelayMode::automatic, 16, (4u << 20) - 1));
  CHECK_FALSE(relay_pays(RelayMode::automatic, 100, 1000));
  CHECK(relay_pays(RelayMode::on, 2, 1));
  CHECK_FALSE(relay_pays(RelayMode::off, 1000, 1u << 30));
}

TEST_CASE("LOCAL... REMOTE: a new name, or a folder to put into") {
  const ScopedTempDir dir;
  write_text(dir / "a", "x");
  write_text(dir / "b/c", "x");
  const auto named = [&](std::vector<std::string> locals, const std::string& remote) {
    for (std::string& local : locals) local = dir.str(local);
    const auto names = push_names(locals, remote);
    if (!names) return std::string(error_code_name(names.error().code));
    std::string text = names->folder + ":";
    for (const files::ScanRoot& root : names->roots) text += " " + root.name;
    return text;
  };
  CHECK(named({"a"}, "/data/x") == "/data: x");
  CHECK(named({"a"}, "/x") == "/: x");
  CHECK(named({"a"}, "x") == "~: x");
  CHECK(named({"a"}, "x/") == "x/: a");
  CHECK(named({"b"}, "/data/") == "/data/: b");
  CHECK(named({"b/"}, "/data/n") == "/data: n");
  CHECK(named({"b/."}, "~") == "~: b");
  CHECK(named({"a", "b"}, "/data") == "/data: a b");
  CHECK(named({"a"}, "~") == "~: a");
  CHECK(named({"a", "b/../a"}, "/data") == "usage");
  CHECK(named({"a"}, "") == "usage");
  CHECK(named({"nothing"}, "/data/") == "not_found");
}

TEST_CASE("staging that ended before its hosts had anything does not say that it is there") {
  const ScopedTempDir dir;
  write_text(dir / "a", "x");
  config::RunnerConfig runner;
  runner.stage = {dir.str("a")};
  asio::io_context io;
  Stager stager(io.get_executor(), runner, 2, [](const std::string&) {});
  bool read = false;
  asio::co_spawn(io, stager.read(),
                 [&](const std::exception_ptr&, const Result<>& done) { read = done.has_value(); });
  io.run();
  CHECK(read);
  CHECK(stager.summary() == "1 file, 1 B, staged on 0 of 2 hosts");
}

TEST_CASE("coroutines that wait for a semaphore cost nothing, and each gets its turn") {
  struct Waiter {
    static asio::awaitable<void> run(Semaphore& semaphore, std::size_t& turns) {
      co_await semaphore.acquire();
      ++turns;
      semaphore.release();
    }
  };
  for (const std::size_t waiters : {2, 4}) {
    CAPTURE(waiters);
    asio::io_context io;
    Semaphore semaphore(io.get_executor(), 0);
    std::size_t turns = 0;
    for (std::size_t i = 0; i < waiters; ++i) spawn(io, Waiter::run(semaphore, turns));
    CHECK(io.run_for(std::chrono::milliseconds(100)) < 10 * waiters);
    CHECK(turns == 0);
    semaphore.release();
    io.restart();
    io.run_for(std::chrono::seconds(10));
    CHECK(turns == waiters);
  }
}

TEST_CASE("a signal after the last host is done ends the goodbye, and the result stays") {
  struct Steps {
    static asio::awaitable<Result<>> first() { co_return Result<>(); }
    static asio::awaitable<Result<wire::FilesDone>> done() { co_return wire::FilesDone(); }
    /// By then all hosts are done, and their runners have not yet had time to end.
    static asio::awaitable<void> raise_later(asio::io_context& io) {
      for (int i = 0; i < 50; ++i) co_await asio::post(io, asio::use_awaitable);
      std::raise(SIGTERM);
    }
  };
  const test::ScopedVariable chosen(
      "SORTIE_RUNNER", (fs::path(SORTIE_BINARY).parent_path() / "sortie-runner").string());
  const config::RunnerConfig runner;
  HostCrew crew(runner, {"localhost"});
  const auto work = [&](std::size_t, std::shared_ptr<HostSession>) {
    spawn(crew.io(), Steps::raise_later(crew.io()));
    return Steps::done();
  };
  const Result<> ran = crew.run(Steps::first, work, [] {});
  REQUIRE_MESSAGE(ran, (ran ? "" : ran.error().message));
  CHECK_FALSE(crew.results().at(0).error);
  CHECK_FALSE(crew.interrupted());
}

namespace {

/// Copies with the runner of this build; `localhost` is the only host.
int copy_here(int (*command)(const CopyOptions&), std::vector<std::string> paths) {
  const test::ScopedVariable chosen(
      "SORTIE_RUNNER", (fs::path(SORTIE_BINARY).parent_path() / "sortie-runner").string());
  CopyOptions options;
  options.job.hosts = "localhost";
  options.paths = std::move(paths);
  return command(options);
}

}  // namespace

TEST_CASE("push and pull: a pipe and a file of /proc are left out with exit code 9") {
  const ScopedTempDir dir;
  write_text(dir / "tree/a", "x");
  write_text(dir / "tree/z", "y");
  REQUIRE(::mkfifo(dir.str("tree/pipe").c_str(), 0600) == 0);
  SUBCASE("push") {
    CHECK(copy_here(push_files, {dir.str("tree"), "/proc/version", dir.str("to/")}) == 9);
    CHECK(test::read_text(dir / "to/tree/a") == "x");
    CHECK(test::read_text(dir / "to/tree/z") == "y");
    CHECK_FALSE(fs::exists(dir / "to/tree/pipe"));
    CHECK_FALSE(fs::exists(dir / "to/version"));
    CHECK(copy_here(push_files, {dir.str("tree/pipe"), dir.str("to/")}) == 9);
  }
  SUBCASE("pull") {
    CHECK(copy_here(pull_files, {dir.str("tree"), "/proc/version", dir.str("in")}) == 9);
    CHECK(test::read_text(dir / "in/localhost/tree/z") == "y");
    CHECK_FALSE(fs::exists(dir / "in/localhost/version"));
  }
}

TEST_CASE("a host that a signal gives up is not called lost") {
  struct Steps {
    static asio::awaitable<Result<>> first() { co_return Result<>(); }
    static asio::awaitable<Result<wire::FilesDone>> wait(std::shared_ptr<HostSession> session) {
      std::raise(SIGINT);
      auto message = co_await session->next();
      co_return std::unexpected(message.error());
    }
  };
  const test::ScopedVariable chosen(
      "SORTIE_RUNNER", (fs::path(SORTIE_BINARY).parent_path() / "sortie-runner").string());
  const config::RunnerConfig runner;
  HostCrew crew(runner, {"localhost"});
  const auto work = [](std::size_t, std::shared_ptr<HostSession> session) {
    return Steps::wait(std::move(session));
  };
  REQUIRE(crew.run(Steps::first, work, [] {}));
  CHECK(crew.interrupted() == 130);
  REQUIRE(crew.results().at(0).error);
  CHECK(crew.results().at(0).error->code == ErrorCode::interrupted);
  CHECK(print_host_errors(crew.results()) == 0);
}

TEST_CASE("byte counts") {
  CHECK(byte_count(0) == "0 B");
  CHECK(byte_count(1536) == "1.5 KiB");
  CHECK(byte_count(256u << 20) == "256.0 MiB");
}

TEST_CASE("progress: the rate of the last ten seconds, and the time that is left at it") {
  TransferRate rate;
  const TransferRate::Clock::time_point begin{};
  const auto at = [&](double seconds) {
    return begin + std::chrono::duration_cast<TransferRate::Clock::duration>(
                       std::chrono::duration<double>(seconds));
  };
  rate.add(at(0), 0);
  CHECK(rate.per_second() == 0);
  for (int i = 1; i <= 300; ++i) rate.add(at(i * 0.1), static_cast<std::uint64_t>(i) * 100);
  CHECK(rate.per_second() == doctest::Approx(1000));
  for (int i = 1; i <= 150; ++i) rate.add(at(30 + i * 0.1), 30000);  // no progress
  CHECK(rate.per_second() == doctest::Approx(0));
  rate.add(at(60), 10);  // another transfer
  CHECK(rate.per_second() == 0);
  CHECK(progress_text("push to 4 hosts", 128u << 20, 512u << 20, 12.0 * (1u << 20)) ==
        "push to 4 hosts: 128.0 MiB of 512.0 MiB, 25 %, 12.0 MiB/s, ETA 32s");
  CHECK(progress_text("saving image", 128u << 20, 0, 1u << 20) ==
        "saving image: 128.0 MiB, 1.0 MiB/s");
  CHECK(progress_text("plan", 30, 90, 2.0, "layouts") == "plan: 30 of 90 layouts, 33 %, ETA 30s");
  CHECK(progress_text("push to 4 hosts", 0, 100, 0) == "push to 4 hosts: 0 B of 100 B, 0 %");
}

TEST_CASE("{stage} names what is staged, at the beginning of a path") {
  const auto broken = [](const std::string& text) {
    const auto job = config::load_job_text(text, "job.toml", {});
    return job ? std::string() : job.error().message;
  };
  const std::string stage =
      "[runner]\nstage = [\"/d/books.bin\", \"/d/books.idx\", \"/e -> dir\"]\n";
  CHECK(broken(stage + "[data]\ndata_prefixes = [\"{stage}/books\", \"{stage}/dir/x\"]\n") == "");
  CHECK(broken(stage + "program = [\"{stage}/dir/p\", \"--in={stage}/books.bin,{stage}/dir\"]\n") ==
        "");
  CHECK(broken(stage + "[data]\ndata_prefixes = [\"{stage}/other\"]\n")
            .find("books.bin, books.idx, dir") != std::string::npos);
  CHECK(broken(stage + "program = [\"{stage}/p\"]\n").find("names nothing") != std::string::npos);
  CHECK(broken(stage + "[data]\ndata_prefixes = [\"/x/{stage}/books\"]\n")
            .find("only at the start") != std::string::npos);
  CHECK(broken(stage + "[trainer]\nsave_dir = \"{stage}/dir\"\n").find("only read") !=
        std::string::npos);
  CHECK(broken("[runner]\nstage = [\"/a/x\", \"/b/x\"]\n").find("two items") != std::string::npos);
  CHECK(broken("[runner]\nstage = [\"/a -> b/c\"]\n").find("one component") != std::string::npos);
  CHECK(broken("[runner]\nprogram = [\"sed\", \"{stage}\"]\n") ==
        "");  // without staging {stage} is plain text
  CHECK(config::with_stage("a{stage}b{stage}", "/s") == "a/sb/s");
}

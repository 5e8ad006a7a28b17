// push, pull and staging: which host fetches from which, how paths are interpreted, and hosts that
// send wrong data.
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <csignal>
#include <optional>
#include <thread>

#include "common/asio/spawn.h"
#include "common/config/load.h"
#include "common/config/stage.h"
#include "common/files/piece.h"
#include "launcher/copy/host_crew.h"
#include "launcher/copy/local_tree.h"
#include "launcher/copy/progress.h"
#include "launcher/copy/relay_chains.h"
#include "launcher/copy/semaphore.h"
#include "launcher/copy/stage.h"
#include "launcher/copy/tree_download.h"
#include "launcher/copy/tree_upload.h"
#include "tests/support/fake_hosts.h"
#include "tests/support/run_within.h"
#include "tests/support/scoped_variable.h"
#include "tests/support/temp_dir.h"

using namespace sortie;
using namespace sortie::launcher;
using test::FakeRunner;
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
  CHECK(chains.chains() == 1);
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
  CHECK(chains.chains() == 2);
}

TEST_CASE("relay: a host that has all begins a chain that costs nothing") {
  RelayChains chains;
  CHECK_FALSE(chains.attach(0, false, true));
  CHECK(chains.attach(1, true, true) == 0);
  CHECK_FALSE(chains.attach(2, false, false));
  CHECK(chains.chains() == 1);
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
  CHECK(stager.summary() == "1 files, 1 B, staged on 0 of 2 hosts");
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
  CHECK(progress_text("reading files", 128u << 20, 0, 1u << 20) ==
        "reading files: 128.0 MiB, 1.0 MiB/s");
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

namespace {

using Script = test::FakeHost::Script;

/// Pulls from one fake host in memory.
Result<wire::FilesDone> pull(
    const fs::path& folder, Script script, std::uint64_t max_list = 1u << 20,
    DownloadProgress* seen = nullptr,
    std::chrono::milliseconds heartbeat_timeout = std::chrono::seconds(10)) {
  const ScopedTempDir dir;
  write_text(dir / "runner", "#!/bin/sh\n");
  auto binary = RunnerBinary::open(dir / "runner");
  REQUIRE(binary);
  asio::io_context io(1);
  test::FakeTransport transport(io.get_executor());
  transport.host("h").script = std::move(script);
  config::RunnerConfig runner;
  runner.startup_timeout = std::chrono::milliseconds(2000);
  runner.heartbeat_timeout = heartbeat_timeout;
  runner.heartbeat_interval = heartbeat_timeout / 5;
  auto session = std::make_shared<HostSession>(io.get_executor(), "h", runner);
  DownloadProgress progress;
  std::optional<Result<wire::FilesDone>> result;
  const auto work = [&]() -> asio::awaitable<void> {
    const auto connected = co_await session->connect(transport, *binary);
    if (!connected) co_return;
    const auto greeted = co_await session->greet("");
    if (!greeted) co_return;
    session->expect_progress(work_patience(runner));
    wire::FilesOpen order;
    order.purpose = wire::FilesPurpose::get;
    result = co_await download_tree(session, order, folder.string(), max_list, progress);
    session->close();
  };
  asio::co_spawn(io, work(), [&](std::exception_ptr) { io.stop(); });
  test::run_within(io, std::chrono::seconds(8));
  REQUIRE(result);
  if (seen != nullptr) *seen = progress;
  return *result;
}

/// A host that sends these messages after Hello and the order.
Script says(std::vector<wire::Message> messages) {
  return [messages = std::move(messages)](FakeRunner& runner) -> asio::awaitable<void> {
    co_await runner.next();
    runner.send(wire::Hello{});
    bool ordered = false;
    while (!ordered) {
      const auto message = co_await runner.next();
      if (!message) co_return;
      ordered = std::holds_alternative<wire::FilesOpen>(*message);
    }
    for (const wire::Message& message : messages) runner.send(message);
    for (bool open = true; open;) {
      const auto message = co_await runner.next();
      open = message.has_value();
    }
  };
}

wire::FileEntry file(const char* path, const std::string& content) {
  return {path, wire::FileKind::file, 0644, content.size(), files::hash_bytes(content), ""};
}

}  // namespace

TEST_CASE("pull: what a host gives is what is written") {
  const ScopedTempDir dir;
  const auto done =
      pull(dir / "in/h",
           says({wire::FilesManifest{{file("a", "text")}, 1}, wire::FilePiece{0, 0, "text"}}));
  REQUIRE(done);
  CHECK(done->files_changed == 1);
  CHECK(test::read_text(dir / "in/h/a") == "text");
}

TEST_CASE("pull: files that change or go while they are copied are named, and the others arrive") {
  const ScopedTempDir dir;
  write_text(dir / "in/h/gone", "old");
  const std::string large((2u << 20) + 5, 'x');
  wire::FileEntry changed = file("changed", large);
  changed.hashes = files::hash_bytes(large.substr(0, 1u << 20)) +
                   files::hash_bytes(large.substr(1u << 20, 1u << 20)) +
                   files::hash_bytes(large.substr(2u << 20));
  DownloadProgress progress;
  const auto done =
      pull(dir / "in/h",
           says({wire::FilesManifest{
                     {file("a", "text"), changed, file("gone", "new"), file("z", "end")}, 1},
                 wire::FilePiece{0, 0, "text"}, wire::FilePiece{1, 0, large.substr(0, 1u << 20)},
                 wire::FilePiece{1, 1, std::string(1u << 20, 'y')},
                 wire::FilePiece{1, 2, "", "changed: became shorter while it was sent"},
                 wire::FilePiece{2, 0, "", "/home/\x1b[2Jgone: No such file or directory"},
                 wire::FilePiece{3, 0, "end"}}),
           1u << 20, &progress);
  REQUIRE_MESSAGE(done, done.error().message);
  CHECK(done->files_changed == 2);
  CHECK(test::read_text(dir / "in/h/a") == "text");
  CHECK(test::read_text(dir / "in/h/z") == "end");
  CHECK(test::read_text(dir / "in/h/gone") == "old");
  CHECK_FALSE(fs::exists(dir / "in/h/changed"));
  CHECK(std::distance(fs::directory_iterator(dir / "in/h"), {}) == 3);  // no parts
  REQUIRE(progress.missing.size() == 2);
  CHECK(progress.missing[0].find("changed: received data does not match the announced hash") !=
        std::string::npos);
  CHECK(progress.missing[1].find("gone: No such file") != std::string::npos);
  CHECK(progress.missing[1].find('\x1b') == std::string::npos);
  CHECK(progress.wanted == 7 + (1u << 20));  // with the piece of the file that then changed
}

TEST_CASE("pull: modes are those of the host less the umask, also of files that are there") {
  const ScopedTempDir dir;
  wire::FileEntry tool = file("d/tool", "text");
  tool.mode = 0777;
  const wire::FileEntry folder = {"d", wire::FileKind::folder, 0777, 0, "", ""};
  const std::vector<wire::Message> tree = {wire::FilesManifest{{folder, tool}, 1},
                                           wire::FilePiece{1, 0, "text"}};
  const auto mode = [&](const char* path) {
    return static_cast<unsigned>(fs::status(dir / path).permissions());
  };
  const mode_t before = ::umask(027);
  const auto done = pull(dir / "in/h", says(tree));
  CHECK(mode("in/h/d") == 0750);
  CHECK(mode("in/h/d/tool") == 0750);
  ::umask(077);
  const auto again = pull(dir / "in/h", says({tree[0]}));
  ::umask(before);
  CHECK(done);
  CHECK(again);
  CHECK(mode("in/h/d") == 0700);
  CHECK(mode("in/h/d/tool") == 0700);
}

TEST_CASE("pull: a symlink that leads out of the copy is left out and named") {
  const ScopedTempDir dir;
  const auto link = [](const char* path, const char* target) {
    return wire::FileEntry{path, wire::FileKind::symlink, 0777, 0, "", target};
  };
  const wire::FileEntry folder = {"d", wire::FileKind::folder, 0755, 0, "", ""};
  DownloadProgress progress;
  const auto done =
      pull(dir / "in/h",
           says({wire::FilesManifest{{folder, link("d/good", "../z"), link("d/up", "../../../x"),
                                      link("d/way", "good/../../x"), link("passwd", "/etc/passwd"),
                                      file("z", "text")},
                                     1},
                 wire::FilePiece{5, 0, "text"}}),
           1u << 20, &progress);
  REQUIRE_MESSAGE(done, done.error().message);
  CHECK(test::read_text(dir / "in/h/d/good") == "text");
  for (const char* name : {"in/h/d/up", "in/h/d/way", "in/h/passwd"})
    CHECK_FALSE(fs::is_symlink(dir / name));
  CHECK(progress.links_left_out == std::vector<std::string>{"d/up -> ../../../x",
                                                            "d/way -> good/../../x",
                                                            "passwd -> /etc/passwd"});
}

TEST_CASE("a host that beats and does nothing else is given up on, one that works is not") {
  const ScopedTempDir dir;
  const auto beats = [](bool works) {
    return [works](FakeRunner& runner) -> asio::awaitable<void> {
      co_await runner.until<wire::Hello>();
      runner.send(wire::Hello{});
      co_await runner.until<wire::FilesOpen>();
      const int count = works ? 70 : 110;  // 4.2 s and 6.6 s: longer than work_patience(), 3 s
      for (int i = 0; i < count; ++i) {
        runner.send(wire::Heartbeat{});
        if (works && i % 10 == 0) runner.send(wire::FilesProgress{1, ""});
        co_await runner.sleep(std::chrono::milliseconds(60));
      }
      runner.send(wire::FilesManifest{{}, 1});
      co_await runner.sleep(std::chrono::milliseconds(500));
    };
  };
  using namespace std::chrono_literals;
  const auto mute = pull(dir / "in/mute", beats(false), 1u << 20, nullptr, 100ms);
  REQUIRE_FALSE(mute);
  CHECK(mute.error().code == ErrorCode::timeout);
  CHECK(mute.error().message.find("alive, but") != std::string::npos);
  const auto busy = pull(dir / "in/busy", beats(true), 1u << 20, nullptr, 100ms);
  CHECK_MESSAGE(busy, busy.error().message);
}

TEST_CASE("time in which this process did not run is none in which a host did nothing") {
  const ScopedTempDir dir;
  const auto stands_still = [](FakeRunner& runner) -> asio::awaitable<void> {
    co_await runner.until<wire::Hello>();
    runner.send(wire::Hello{});
    co_await runner.until<wire::FilesOpen>();
    co_await runner.sleep(std::chrono::milliseconds(50));
    std::this_thread::sleep_for(std::chrono::milliseconds(3200));  // more than work_patience(), 3 s
    for (int i = 0; i < 3; ++i) {
      runner.send(wire::Heartbeat{});
      co_await runner.sleep(std::chrono::milliseconds(60));
    }
    runner.send(wire::FilesManifest{{}, 1});
    co_await runner.sleep(std::chrono::milliseconds(500));
  };
  const auto done =
      pull(dir / "in/h", stands_still, 1u << 20, nullptr, std::chrono::milliseconds(100));
  CHECK_MESSAGE(done, done.error().message);
}

TEST_CASE("pull: a host that lies writes nothing, and nothing outside its folder") {
  const ScopedTempDir dir;
  write_text(dir / "outside", "keep");
  const auto refused = [&](std::vector<wire::Message> messages, std::uint64_t max = 1u << 20) {
    const auto done = pull(dir / "in/h", says(std::move(messages)), max);
    return done ? std::string() : done.error().message;
  };
  using wire::FilesManifest;
  CHECK(refused({FilesManifest{{file("../../outside", "x")}, 1}}).find("..") != std::string::npos);
  CHECK(refused({FilesManifest{{file("/etc/x", "x")}, 1}}) != "");
  const wire::FileEntry link = {"l", wire::FileKind::symlink, 0777, 0, "", dir.str("")};
  CHECK(refused({FilesManifest{{link, file("l/outside", "x")}, 1}})
            .find("folder is not in the list") != std::string::npos);
  CHECK(refused({FilesManifest{{file("a", "text")}, 1}, wire::FilePiece{7, 0, "text"}}) != "");
  CHECK(refused({FilesManifest{{file("a", "text")}, 1}, wire::FilePiece{0, 9, "text"}}) != "");
  CHECK(refused({wire::FilePiece{0, 0, "text"}}).find("sent FilePiece") != std::string::npos);
  CHECK(refused({FilesManifest{{file("a", "text")}, 1}, wire::FilePiece{7, 0, "", "gone"}})
            .find("of which no piece is missing") != std::string::npos);
  CHECK(refused({wire::RunnerError{"not_found", "/x: \x1b[2Jgone", -1}}).find("\x1b") ==
        std::string::npos);
  std::vector<wire::Message> endless;
  for (int i = 0; i < 400; ++i)
    endless.push_back(FilesManifest{{file(("f" + std::to_string(1000 + i)).c_str(), "x")}, 0});
  CHECK(refused(std::move(endless), 16u << 10).find("names and hashes") != std::string::npos);
  CHECK(test::read_text(dir / "outside") == "keep");
  CHECK_FALSE(fs::exists(dir / "in/h/a"));
}

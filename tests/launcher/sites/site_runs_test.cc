// A run over several sites: what its supervisor knows about them, and `sortie sites`.
#include "launcher/sites/site_runs.h"

#include <doctest/doctest.h>

#include <csignal>
#include <future>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>

#include "common/base/exit_code.h"
#include "launcher/run/attempt_folder.h"
#include "launcher/run/run_folder.h"
#include "launcher/trackers/wandb_run.h"
#include "tests/launcher/launch.h"
#include "tests/launcher/scripts.h"
#include "tests/support/run_within.h"

namespace sortie::launcher {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;
using sortie::test::FakeRunner;
using std::chrono::milliseconds;

/// A run over the sites a and b, each on a host of its own in memory.
struct SitesInMemory {
  SitesInMemory() {
    job.runner.program = {"true"};
    job.runner.grace = milliseconds(100);
    sortie::test::write_text(dir / "runner", "#!/bin/sh\n");
    binary.emplace(RunnerBinary::open(dir / "runner").value());
    folder.emplace(RunFolder::create(dir.path(), false).value());
    fs::create_directory(folder->path() / "sites");
    style.out = style.err = out.get();
    console.emplace(style);
  }

  SiteOfRun site(const std::string& name, std::int64_t index) {
    PlannedSite planned;
    planned.place = {name, index, 2};
    planned.hosts = {{"host-" + name, {0}}};
    planned.plan = make_site_plan(job, planned.hosts, {}, planned.place).value();
    RunFolder own =
        RunFolder::open_site(folder->path(), name, run_id_of_site(folder->id(), index), false)
            .value();
    return {std::move(planned), std::move(own)};
  }

  SiteRuns::Parts parts() {
    SiteRuns::Parts parts{io.get_executor(), *console, *folder, job, {}};
    parts.sites.push_back(site("a", 0));
    parts.sites.push_back(site("b", 1));
    parts.loop_parts = [this](Console& of_site, RunFolder& own) {
      return RunLoop::Parts{{io.get_executor(), router, *binary, of_site, own}, file_calls, {}};
    };
    parts.replan = [](const SitePlace&) { return RunLoop::Replan(); };
    parts.plan_site = [this](const std::string& name, const std::string&, std::int64_t index) {
      return Result<SiteOfRun>(site(name, index));
    };
    return parts;
  }

  /// Runs the sites to the end of the run. Returns nullopt if that took too long or has thrown.
  std::optional<Verdict> run_to_end(SiteRuns& runs) {
    std::optional<Verdict> verdict;
    boost::asio::co_spawn(io, runs.run(), [&](std::exception_ptr error, Verdict result) {
      if (!error) verdict = std::move(result);
      io.stop();
    });
    sortie::test::run_within(io, std::chrono::seconds(20));
    return verdict;
  }

  sortie::test::ScopedTempDir dir;
  boost::asio::io_context io{1};
  FileCalls file_calls{io.get_executor()};
  sortie::test::FakeTransport transport{io.get_executor()};
  TransportRouter router{std::make_unique<sortie::test::Borrowed>(transport),
                         std::make_unique<sortie::test::Borrowed>(transport)};
  config::JobConfig job;
  std::optional<RunnerBinary> binary;
  std::optional<RunFolder> folder;
  Fd out{::open(dir.str("console").c_str(), O_CREAT | O_WRONLY | O_APPEND, 0600)};
  Console::Style style;
  std::optional<Console> console;
};

/// Name of each site -> its state in the rounds; "unknown" if the coordinator does not know it.
boost::asio::awaitable<std::map<std::string, std::string>> states_of(SiteRuns& runs) {
  std::map<std::string, std::string> out;
  nlohmann::json order = {{"do", "ls"}};
  const auto answer = co_await runs.sites_order(std::move(order));
  for (const auto& site : answer.value()["sites"])
    out[site["site"]] = site.value("rounds", "unknown");
  co_return out;
}

TEST_CASE("sites: another supervisor knows a site that was added and has not joined yet") {
  SitesInMemory world;
  SiteRuns::Parts parts = world.parts();
  parts.sites.push_back(world.site("c", 2));
  std::string wanted = "down";
  SUBCASE("nothing of it is in the log") {}
  SUBCASE("it has joined and left") {
    sortie::test::write_text(
        world.folder->path() / "outer.log",
        R"({"by":1,"do":"joined","site":"c","attempt":1,"round":0,"leaders":[]})"
        "\n"
        R"({"by":1,"do":"left","site":"c"})"
        "\n");
    wanted = "left";
  }
  SiteRuns runs(std::move(parts));
  REQUIRE(runs.open());
  std::map<std::string, std::string> states;
  boost::asio::co_spawn(world.io, states_of(runs),
                        [&](std::exception_ptr, auto found) { states = std::move(found); });
  world.io.poll();
  CHECK(states.at("a") == "down");
  CHECK(states.at("c") == wanted);
}

TEST_CASE("sites: the plan of a run with one site is that of the site, with its variables") {
  config::JobConfig job;
  job.runner.program = {"true"};
  const auto site = [&](const std::string& name, std::int64_t index, std::int64_t count) {
    PlannedSite planned;
    planned.place = {name, index, count};
    planned.hosts = {{"host-" + name, {0}}};
    planned.plan = make_site_plan(job, planned.hosts, {}, planned.place).value();
    return planned;
  };
  const auto has_site = [](const LaunchPlan& plan) {
    return std::ranges::any_of(plan.env,
                               [](const auto& one) { return one.first == "SORTIE_SITE"; });
  };
  const LaunchPlan one = plan_of_all({site("a", 0, 1)});
  CHECK(has_site(one));
  CHECK(plan_hash(one) == plan_hash(site("a", 0, 1).plan));
  const LaunchPlan two = plan_of_all({site("a", 0, 2), site("b", 1, 2)});
  CHECK_FALSE(has_site(two));
  CHECK(two.world_size == 2);
}

TEST_CASE("sites: without global_batch_size a step has the batch of one site times their number") {
  config::TopologyConfig topology;
  topology.micro_batch_size = 2;
  CHECK(batch_of_sites(topology, 2, 1) == 4);
  topology.gradient_accumulation_steps = 3;
  CHECK(batch_of_sites(topology, 3, 4) == 3 * (2 * 3 * 4));
  topology.tensor_parallel_size = 2;
  CHECK(batch_of_sites(topology, 2, 4) == 2 * (2 * 3 * 2));
  CHECK(batch_of_sites(topology, 2, 3) == 0);  // no whole number of replicas
  topology.global_batch_size = 48;
  CHECK(batch_of_sites(topology, 2, 4) == 48);
}

TEST_CASE("sites: one may be called as the file that lists them in older runs") {
  SitesInMemory world;
  SiteRuns::Parts parts = world.parts();
  parts.sites.push_back(world.site("names", 2));
  SiteRuns runs(std::move(parts));
  REQUIRE(runs.open());
  const fs::path run = world.folder->path();
  CHECK(sites_in(run) == std::vector<std::string>{"a", "b", "names"});
  CHECK(run_of_site(run / "sites/names") == run);
  // An older run.
  const fs::path older = world.dir / "older";
  fs::create_directories(older / "sites/a");
  CHECK(!run_of_site(older / "sites/a"));
  sortie::test::write_text(older / "sites/names", "a\n");
  CHECK(sites_in(older) == std::vector<std::string>{"a"});
  CHECK(run_of_site(older / "sites/a") == older);
}

TEST_CASE("sites: a damaged outer.log is named, with its line") {
  SitesInMemory world;
  const std::string log = (world.folder->path() / "outer.log").string();
  sortie::test::write_text(log,
                           "{\"by\":1,\"do\":\"takes\",\"read\":0}\n{\"by\":\"x\"}\n"
                           "{\"by\":1,\"do\":\"left\",\"site\":\"a\"}\n");
  SiteRuns runs(world.parts());
  const Result<> opened = runs.open();
  REQUIRE_FALSE(opened);
  CHECK(opened.error().message.find(log + ": line 2 is damaged; ") == 0);
}

TEST_CASE("sites: the host lines of one that is added may name no other site") {
  const auto hosts_of = [](const std::string& lines) { return hosts_of_added("oslo", lines, 2); };
  for (const char* lines : {"gpu[01-02] slots=1\n", "gpu[01-02] slots=1 site=oslo\n"}) {
    const auto hosts = hosts_of(lines);
    REQUIRE(hosts);
    REQUIRE(hosts->size() == 2);
    CHECK(hosts->back().site == "oslo");
  }
  const auto other = hosts_of("gpu01 site=rome\n");
  REQUIRE_FALSE(other);
  CHECK(other.error().code == ErrorCode::usage);
  CHECK(other.error().message ==
        "sites add oslo: its host gpu01 has site=rome; leave site= out of the host lines, or use "
        "`sortie sites add rome`");
  CHECK(hosts_of("\n").error().message == "sites add oslo: no host is named");
}

TEST_CASE("sites: one that could not be written to the run folder is not added") {
  SitesInMemory world;
  std::optional<SiteRuns> runs;
  bool asked = false;
  world.transport.host("host-a").script = [&](FakeRunner& runner) -> boost::asio::awaitable<void> {
    const bool started = co_await runner.start();
    if (!started) co_return;
    const fs::path names = world.folder->path() / kSiteNamesFile;
    fs::remove(names);
    fs::create_directory(names);
    nlohmann::json add = {{"do", "add"}, {"site", "c"}, {"hosts", "host-c"}};
    const auto added = co_await runs->sites_order(std::move(add));
    CHECK_FALSE(added);
    const auto states = co_await states_of(*runs);
    CHECK(states.size() == 2);
    nlohmann::json remove = {{"do", "remove"}, {"site", "c"}};
    const auto removed = co_await runs->sites_order(std::move(remove));
    CHECK_FALSE(removed);
    CHECK(removed.error().message == "the run has no site c");
    asked = true;
    runs->stop(false);
    const bool told = co_await runner.until<wire::Stop>();
    if (told) co_await runner.finish(true, SIGTERM);
  };
  world.transport.host("host-b").script = sortie::test::run_until_stopped;
  runs.emplace(world.parts());
  REQUIRE(runs->open());
  const auto verdict = world.run_to_end(*runs);
  CHECK(asked);
  REQUIRE(verdict);
  CHECK(verdict->exit_code == 128 + SIGTERM);
}

TEST_CASE("sites: a run does not begin without a site that was not started") {
  SitesInMemory world;
  world.transport.host("host-a").script = sortie::test::run_until_stopped;
  world.transport.host("host-b").connect_error = Error{ErrorCode::resolve, "no such host"};
  world.transport.host("host-b").connect_delay = milliseconds(300);  // site a runs by then
  SUBCASE("one site is enough to continue") {}
  SUBCASE("all sites are needed to continue") {
    world.job.outer.min_sites = 2;
  }
  bool announced = false;
  SiteRuns::Parts parts = world.parts();
  parts.on_started = [&] { announced = true; };  // on the folder's thread
  SiteRuns runs(std::move(parts));
  REQUIRE(runs.open());
  const auto verdict = world.run_to_end(runs);
  REQUIRE(world.folder->drain(std::chrono::seconds(60)));
  REQUIRE(verdict);
  CHECK(verdict->exit_code == exit_code_for(ErrorCode::resolve));
  CHECK(verdict->text.starts_with("site b: host-b: "));
  CHECK(world.transport.runner("host-a").all<wire::Stop>().size() == 1);
  CHECK_FALSE(announced);
  const std::string journal = sortie::test::read_text(world.folder->path() / "events.jsonl");
  CHECK(journal.contains("stopped by the end of the run: site b was not started"));
  CHECK_FALSE(journal.contains(R"("event":"started")"));
}

TEST_CASE("sites: one that is removed says by which order it ended") {
  SitesInMemory world;
  std::optional<SiteRuns> runs;
  world.transport.host("host-a").script = [&](FakeRunner& runner) -> boost::asio::awaitable<void> {
    const bool started = co_await runner.start();
    if (!started) co_return;
    nlohmann::json remove = {{"do", "remove"}, {"site", "b"}};
    const auto removed = co_await runs->sites_order(std::move(remove));
    CHECK(removed);
    runs->stop(false);
    const bool told = co_await runner.until<wire::Stop>();
    if (told) co_await runner.finish(true, SIGTERM);
  };
  world.transport.host("host-b").script = sortie::test::run_until_stopped;
  runs.emplace(world.parts());
  REQUIRE(runs->open());
  REQUIRE(world.run_to_end(*runs));
  REQUIRE(world.folder->drain(std::chrono::seconds(60)));  // a separate thread writes the journal
  std::map<std::string, std::string> ended;
  std::istringstream journal(sortie::test::read_text(world.folder->path() / "events.jsonl"));
  for (std::string line; std::getline(journal, line);) {
    const auto event = ordered_json::parse(line);
    if (event.value("state", "") == "ended") ended[event["site"]] = event["text"];
  }
  CHECK(ended.at("a").starts_with("stopped by `sortie stop`"));
  CHECK(ended.at("b").starts_with("stopped by `sortie sites remove`"));
}

TEST_CASE("sites: one that has failed and is removed does not count for the exit code") {
  SitesInMemory world;
  std::optional<SiteRuns> runs;
  std::string again;
  bool over = false;
  world.transport.host("host-c").connect_error = Error{ErrorCode::resolve, "no such host"};
  world.transport.host("host-a").script = [&](FakeRunner& runner) -> boost::asio::awaitable<void> {
    const bool started = co_await runner.start();
    if (!started) co_return;
    nlohmann::json add = {{"do", "add"}, {"site", "c"}, {"hosts", "host-c"}};
    const auto added = co_await runs->sites_order(std::move(add));
    CHECK(added);
    for (std::string state; state != "failed";) {
      co_await runner.sleep(milliseconds(10));
      auto states = co_await states_of(*runs);
      state = states.at("c");
    }
    const nlohmann::json remove = {{"do", "remove"}, {"site", "c"}};
    const auto removed = co_await runs->sites_order(remove);
    CHECK(removed);
    const auto twice = co_await runs->sites_order(remove);
    CHECK_FALSE(twice);
    again = twice.error().message;
    over = true;
    co_await runner.finish(false);
  };
  world.transport.host("host-b").script = [&](FakeRunner& runner) -> boost::asio::awaitable<void> {
    const bool started = co_await runner.start();
    while (started && !over) co_await runner.sleep(milliseconds(10));
    if (started) co_await runner.finish(false);
  };
  runs.emplace(world.parts());
  REQUIRE(runs->open());
  const auto verdict = world.run_to_end(*runs);
  CHECK(again == "site c has ended already");
  REQUIRE(verdict);
  CHECK(verdict->exit_code == 0);
  CHECK(verdict->text.empty());
}

TEST_CASE("sites: the I/O thread goes on while the disk stalls under a site that is added") {
  SitesInMemory world;
  std::optional<SiteRuns> runs;
  bool free = false, refused = false;
  world.transport.host("host-a").script = [&](FakeRunner& runner) -> boost::asio::awaitable<void> {
    const bool started = co_await runner.start();
    if (!started) co_return;
    nlohmann::json add = {{"do", "add"}, {"site", "c"}, {"hosts", "host-c"}};
    const auto added = co_await runs->sites_order(std::move(add));
    CHECK(added);
    const auto states = co_await states_of(*runs);
    CHECK(states.contains("c"));
    CHECK(sortie::test::read_text(world.folder->path() / kSiteNamesFile) == "a\nb\nc\n");
    runs->stop(false);
    const bool told = co_await runner.until<wire::Stop>();
    if (told) co_await runner.finish(true, SIGTERM);
  };
  for (const char* const host : {"host-b", "host-c"})
    world.transport.host(host).script = sortie::test::run_until_stopped;
  SiteRuns::Parts parts = world.parts();
  const auto orders_another_site = [&]() -> boost::asio::awaitable<void> {
    nlohmann::json add = {{"do", "add"}, {"site", "d"}, {"hosts", "host-d"}};
    const auto added = co_await runs->sites_order(std::move(add));
    refused = !added;
  };
  parts.plan_site = [&, plan = parts.plan_site](const std::string& name, const std::string& hosts,
                                                std::int64_t index) {
    // Blocks until the I/O thread has refused a second site.
    const auto done = std::make_shared<std::promise<void>>();
    boost::asio::co_spawn(world.io, orders_another_site,
                          [done](std::exception_ptr) { done->set_value(); });
    free = done->get_future().wait_for(std::chrono::seconds(3)) == std::future_status::ready;
    return plan(name, hosts, index);
  };
  runs.emplace(std::move(parts));
  REQUIRE(runs->open());
  REQUIRE(world.run_to_end(*runs));
  CHECK(free);
  CHECK(refused);
}

TEST_CASE("sites: the trackers and logs of a site are finished when it ends") {
  SitesInMemory world;
  world.job.logger.wandb_mode = "offline";
  world.transport.host("host-a").script = [](FakeRunner& runner) -> boost::asio::awaitable<void> {
    const bool started = co_await runner.start();
    if (!started) co_return;
    runner.send(wire::RankEvent{0, R"({"type":"start","step":0})"});
    runner.send(wire::RankEvent{0, R"({"type":"step","step":1,"loss":2.0})"});
    co_await runner.finish(false);
  };
  world.transport.host("host-b").script = sortie::test::succeed;
  SiteRuns::Parts parts = world.parts();
  parts.sites.front().folder.track(world.job);
  int written = 0;
  parts.on_started = [&] {  // on the folder's thread
    for (const char* const site : {"a", "b"})
      if (sortie::test::read_text(world.folder->path() / "sites" / site / "events.jsonl")
              .contains(R"("event":"rank_started")"))
        ++written;
  };
  SiteRuns runs(std::move(parts));
  REQUIRE(runs.open());
  REQUIRE(world.run_to_end(runs));
  REQUIRE(runs.site_folders().size() == 2);
  for (const RunFolder* const folder : runs.site_folders())
    REQUIRE(folder->drain(std::chrono::seconds(60)));
  REQUIRE(world.folder->drain(std::chrono::seconds(60)));
  CHECK(written == 2);
  fs::path file;
  for (const auto& entry : fs::recursive_directory_iterator(world.folder->path() / "sites/a/wandb"))
    if (entry.path().extension() == ".wandb") file = entry.path();
  REQUIRE_FALSE(file.empty());
  std::string last;
  scan_wandb_file(sortie::test::read_text(file),
                  [&](std::uint64_t, std::string_view record) { last = record; });
  CHECK(last.substr(2, 2) == "\x92\x01");  // the exit record, field 18
}

}  // namespace
}  // namespace sortie::launcher

// The check requests of the real runner, on this machine.
#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "common/asio/spawn.h"
#include "common/base/fd.h"
#include "runner/check/path_mtu.h"
#include "tests/runner/checked_runner.h"
#include "tests/support/child.h"
#include "tests/support/patience.h"
#include "tests/support/runner_client.h"
#include "tests/support/temp_dir.h"

using namespace sortie;
using namespace sortie::test;
using Json = nlohmann::json;
using std::chrono::milliseconds;

namespace {

constexpr const char* kToken = "0123456789abcdef0123456789abcdef";

/// The path of a library that the dynamic loader finds for a program.
std::string library_of(const std::string& program, const std::string& name) {
  const testing::Finished listed = testing::run({"/usr/bin/ldd", program});
  const std::size_t arrow = listed.output.find(name + " => ");
  REQUIRE(arrow != std::string::npos);
  const std::size_t begin = arrow + name.size() + 4;
  return listed.output.substr(begin, listed.output.find(' ', begin) - begin);
}

/// A TCP connection to this machine.
Fd connect_to(unsigned port) {
  Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const timeval limit{5, 0};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
    socket.reset();
  return socket;
}

}  // namespace

TEST_CASE("check: clock and the host's facts") {
  CheckedRunner runner;
  const auto now = std::chrono::duration_cast<std::chrono::microseconds>(
                       std::chrono::system_clock::now().time_since_epoch())
                       .count();
  const Json clock = runner.part_of({{"kind", "clock"}}, "clock");
  CHECK(clock["unix_us"].get<std::int64_t>() >= now);
  CHECK(clock["unix_us"].get<std::int64_t>() < now + 10000000);
  const Json host = runner.part_of(look(), "host");
  CHECK(host["cpus"].get<int>() >= 1);
  CHECK(host["available_bytes"].get<std::uint64_t>() > 0);
  CHECK(host["available_bytes"] <= host["memory_bytes"]);
  CHECK(host["kernel"].get<std::string>().starts_with("Linux "));
  CHECK_FALSE(host["run_folders"]["base"].get<std::string>().empty());
  runner.client.send(wire::Goodbye{});
  const auto ended = runner.client.wait_exit();
  REQUIRE(ended);
  CHECK(ended->success());
}

TEST_CASE("check: a folder of runs that can not be used is reported, with the reason of a run") {
  const ScopedTempDir dir;
  ::chmod(dir.path().c_str(), 0700);
  const std::string base = dir.str("sortie-" + std::to_string(::geteuid()));
  std::ofstream(base) << "a file\n";
  CheckedRunner runner({"PATH=/usr/bin:/bin", "XDG_RUNTIME_DIR=" + dir.path().string()});
  const Json folders = runner.part_of(look(), "host")["run_folders"];
  CHECK(folders["base"] == "");
  CHECK(folders["error"] ==
        base + ": not a private folder of this user; remove it or set XDG_RUNTIME_DIR");
}

TEST_CASE("check: folders that are there, to be made, not writable; nothing is left in them") {
  CheckedRunner runner;
  ScopedTempDir dir;
  Json request = look();
  const Json here = {{"role", "a"}, {"path", dir.path().string()}, {"write", true}};
  const Json later = {{"role", "b"}, {"path", dir.str("x/y/z")}, {"write", true}};
  const Json never = {{"role", "c"}, {"path", "/proc/sys/x"}, {"write", true}};
  const Json shm = {{"role", "shm"}, {"path", "/dev/shm"}};
  request["folders"] = Json::array({here, later, never, shm});
  std::vector<Json> folders;
  for (const Json& part : runner.ask(request))
    if (part["part"] == "folder") folders.push_back(part);
  REQUIRE(folders.size() == 4);
  CHECK(folders[0]["writable"] == true);
  CHECK(folders[0]["free_bytes"].get<std::uint64_t>() > 0);
  CHECK(folders[0]["sync_us"].get<std::uint64_t>() > 0);
  CHECK(folders[1]["exists"] == false);
  CHECK(folders[1]["at"] == dir.path().string());
  CHECK(folders[1]["writable"] == true);
  CHECK(folders[2]["writable"] == false);
  CHECK_FALSE(folders[2]["error"].get<std::string>().empty());
  CHECK(folders[3]["tried"] == false);
  CHECK(folders[3]["total_bytes"].get<std::uint64_t>() > 0);
  CHECK(std::filesystem::is_empty(dir.path()));
}

TEST_CASE("check: files by size and hash of head and tail; nothing waits for a pipe") {
  CheckedRunner runner;
  ScopedTempDir dir;
  std::string content(3u << 20, 'a');
  test::write_text(dir / "one", content);
  test::write_text(dir / "same", content);
  content.back() = 'b';
  test::write_text(dir / "tail", content);
  test::write_text(dir / "empty", "");
  REQUIRE(::mkfifo(dir.str("pipe").c_str(), 0600) == 0);
  Json request = look();
  request["files"] = Json::array();
  for (const char* name : {"one", "same", "tail", "empty", "pipe", "missing"})
    request["files"].push_back(dir.str(name));
  std::vector<Json> files;
  for (const Json& part : runner.ask(request))
    if (part["part"] == "file") files.push_back(part);
  REQUIRE(files.size() == 6);
  CHECK(files[0]["size"] == content.size());
  CHECK(files[0]["hash"] == files[1]["hash"]);
  CHECK(files[0]["hash"] != files[2]["hash"]);
  CHECK(files[3]["error"] == "");
  CHECK(files[4]["error"] == "not a regular file");
  CHECK(files[5]["error"] == "No such file or directory");
}

TEST_CASE("check: programs: found, scripts, libraries that are missing, another machine's") {
  CheckedRunner runner;
  ScopedTempDir dir;
  const auto look_at = [&](const std::string& name) {
    Json request = look();
    request["program"] = {{"name", name}, {"work_dir", dir.path().string()}};
    return runner.part_of(request, "program");
  };
  const auto make = [&](const char* name, const std::string& content) {
    test::write_text(dir / name, content);
    std::filesystem::permissions(dir / name, std::filesystem::perms(0755));
  };
  const Json shell = look_at("sh");
  CHECK(shell["found"].get<std::string>().ends_with("/sh"));
  CHECK_FALSE(shell.contains("error"));
  CHECK(shell["missing"].empty());
  make("script", "#!/bin/sh\n");
  CHECK_FALSE(look_at("./script").contains("error"));
  make("script", "#!/usr/bin/env no-such-interpreter\n");
  CHECK(look_at("./script")["error"] ==
        "its interpreter no-such-interpreter: No such file or directory");
  make("script", "neither\n");
  CHECK(look_at("./script").contains("error"));
  std::filesystem::permissions(dir / "script", std::filesystem::perms(0644));
  CHECK(look_at("./script")["error"] == "Permission denied");
  CHECK(look_at("no-such-program")["error"] == "No such file or directory");
  // A real program that needs a library under a name that does not exist.
  std::string binary = test::read_text("/bin/sh");
  const std::size_t name = binary.find("libc.so.6");
  REQUIRE(name != binary.npos);
  binary.replace(name, 9, "libq.so.6");
  make("broken", binary);
  const Json broken = look_at("./broken");
  CAPTURE(broken.dump());
  const bool told = broken.contains("error") || !broken["missing"].empty();
  CHECK(told);
  // The job's variables say where the library is.
  std::filesystem::create_symlink(library_of("/bin/sh", "libc.so.6"), dir / "libq.so.6");
  Json request = look();
  request["program"] = {{"name", "./broken"},
                        {"work_dir", dir.path().string()},
                        {"env", Json::array({"LD_LIBRARY_PATH=" + dir.path().string()})}};
  const Json found = runner.part_of(request, "program");
  CAPTURE(found.dump());
  CHECK(found["missing"].empty());
  // And PATH, where the program is.
  request["program"] = {{"name", "foreign"}, {"env", Json::array({"PATH=" + dir.path().string()})}};
  binary = test::read_text("/bin/sh");
  binary[18] = static_cast<char>(0xf3);  // e_machine: RISC-V
  binary[19] = 0;
  make("foreign", binary);
  CHECK(look_at("./foreign")["error"] == "it was built for another kind of machine");
  CHECK(runner.part_of(request, "program")["error"] == "it was built for another kind of machine");
}

TEST_CASE("check: libpmix and libmpi are loaded to be known; one that is missing is told") {
  CheckedRunner runner;
  Json request = look();
  request["mpi"] = "on";
  const Json mpi = runner.part_of(request, "mpi");
  CAPTURE(mpi.dump());
  CHECK(mpi["pmix"].get<std::string>().find('.') != std::string::npos);
  CHECK(mpi["mpi"].get<std::string>().starts_with("Open MPI"));
  CheckedRunner without(
      {"SORTIE_LIBPMIX=/no/such/libpmix.so", std::string("PATH=") + std::getenv("PATH")});
  CHECK(without.part_of(request, "mpi").contains("pmix-error"));
}

TEST_CASE("check: a port that is free, and one that is taken") {
  CheckedRunner runner;
  const Fd taken(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t length = sizeof address;
  REQUIRE(::bind(taken.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  REQUIRE(::listen(taken.get(), 1) == 0);
  ::getsockname(taken.get(), reinterpret_cast<sockaddr*>(&address), &length);
  Json request = look();
  request["port"] = ntohs(address.sin_port);
  CHECK(runner.part_of(request, "port")["error"] == "Address already in use");
}

TEST_CASE("check: two runners reach each other; without the token there is nothing to get") {
  CheckedRunner one, two;
  const Json listen = {{"kind", "listen"}, {"token", kToken}, {"address", "127.0.0.1"}};
  const unsigned port = two.part_of(listen, "listen")["port"];
  REQUIRE(one.part_of(listen, "listen")["port"].get<unsigned>() > 0);
  const Json peer = {{"name", "two"}, {"address", "127.0.0.1"}, {"port", port}};
  Json reach = {{"kind", "reach"}, {"limit_ms", 20000}};
  const Json dead = {{"name", "dead"}, {"address", "127.0.0.1"}, {"port", 1}};
  reach["peers"] = Json::array({peer, dead});
  const auto parts = one.ask(reach);
  REQUIRE(parts.size() == 2);
  CAPTURE(parts[0].dump());
  CHECK(parts[0]["name"] == "two");
  CHECK(parts[0]["error"] == "");
  CHECK(parts[0]["round_trip_us"].get<int>() > 0);
  CHECK(parts[0]["own_mtu"] == 65535);  // the MTU of the loopback interface, from the kernel
  CHECK(parts[0]["mtu"] == 65535);
  CHECK(parts[1]["error"] == "Connection refused");

  Json bandwidth = peer;
  bandwidth["kind"] = "bandwidth";
  bandwidth["duration_ms"] = 1000;
  const Json sent = one.part_of(bandwidth, "bandwidth");
  CHECK(sent["error"] == "");
  CHECK(sent["bytes"].get<std::uint64_t>() > 1000000);
  CHECK(sent["us"].get<std::uint64_t>() >= 150000);

  for (const std::string& opening :
       std::vector<std::string>{std::string(kToken).replace(5, 1, "x") + "p",
                                "GET / HTTP/1.0\r\n\r\n                "}) {
    const Fd stranger = connect_to(port);
    REQUIRE(stranger);
    REQUIRE(::send(stranger.get(), opening.data(), opening.size(), 0) > 0);
    char byte = 0;
    const auto got = ::recv(stranger.get(), &byte, 1, 0);
    CHECK(got <= 0);
  }
  // UDP checks the token too: the right token is answered with the datagram's size, a wrong one not
  // at all.
  const Fd datagrams(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<std::uint16_t>(port));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(::connect(datagrams.get(), reinterpret_cast<sockaddr*>(&to), sizeof to) == 0);
  for (const bool right : {false, true}) {
    const std::string datagram = right ? kToken : std::string(kToken).replace(31, 1, "x");
    const timeval limit = right ? timeval{20, 0} : timeval{0, 300000};
    ::setsockopt(datagrams.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    REQUIRE(::send(datagrams.get(), datagram.data(), datagram.size(), 0) == 32);
    char size[16] = "";
    const auto got = ::recv(datagrams.get(), size, sizeof size - 1, 0);
    CHECK((got > 0) == right);
    if (right) CHECK(std::string(size) == "32");
  }
  two.client.close_input();
  REQUIRE(two.client.wait_exit());
  CHECK_FALSE(connect_to(port));
}

TEST_CASE("check: no packet vanishes on the way to a peer that was silent for a moment") {
  const Fd peer(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  REQUIRE(::bind(peer.get(), reinterpret_cast<sockaddr*>(&address), length) == 0);
  ::getsockname(peer.get(), reinterpret_cast<sockaddr*>(&address), &length);
  std::jthread answers([&peer] {
    std::vector<char> bytes(65535);
    for (int count = 0;; ++count) {
      sockaddr_in from{};
      socklen_t size = sizeof from;
      const auto got = ::recvfrom(peer.get(), bytes.data(), bytes.size(), 0,
                                  reinterpret_cast<sockaddr*>(&from), &size);
      if (got <= 0) return;
      const std::string text = std::to_string(got);
      if (count >= 3)
        ::sendto(peer.get(), text.data(), text.size(), 0, reinterpret_cast<sockaddr*>(&from), size);
    }
  });
  boost::asio::io_context io;
  runner::check::PathMtu found;
  const auto look = [&]() -> boost::asio::awaitable<void> {
    const boost::asio::ip::udp::endpoint to(boost::asio::ip::address_v4::loopback(),
                                            ntohs(address.sin_port));
    found = co_await runner::check::find_path_mtu(io, to, kToken);
  };
  spawn(io, look());
  io.run();
  // An empty datagram ends the answering thread.
  ::sendto(peer.get(), "", 0, 0, reinterpret_cast<sockaddr*>(&address), length);
  answers.join();
  CHECK(found.own > 576);
  CHECK(found.path == found.own);
}

TEST_CASE("check: the link to another site is measured both ways from one side") {
  CheckedRunner site, other;
  const Json listen = {{"kind", "listen"}, {"token", kToken}, {"address", "127.0.0.1"}};
  const Json there = other.part_of(listen, "listen");
  site.part_of(listen, "listen");  // sets the token that `site` itself uses
  Json link = {{"kind", "link"},        {"name", "o"},       {"address", "127.0.0.1"},
               {"port", there["port"]}, {"limit_ms", 20000}, {"duration_ms", 1000},
               {"streams", 3}};
  const Json measured = site.part_of(link, "link");
  CHECK(measured["name"] == "o");
  CHECK(measured["error"] == "");
  CHECK(measured["rate_error"] == "");
  CHECK(measured["round_trip_us"].get<std::uint64_t>() > 0);
  CHECK(measured["own_mtu"].get<std::uint64_t>() > 1000);
  for (const char* way : {"out", "back"}) {
    CAPTURE(way);
    CHECK(measured[way]["bytes"].get<std::uint64_t>() > 1'000'000);
    CHECK(measured[way]["us"].get<std::uint64_t>() > 50'000);
    CHECK(measured[way]["segments"].get<std::uint64_t>() > 10);
    CHECK(measured[way]["again"].get<std::uint64_t>() <= measured[way]["segments"]);
  }
  link["duration_ms"] = 0;
  const Json reached = site.part_of(link, "link");
  CHECK(reached["error"] == "");
  CHECK(reached["out"]["bytes"] == 0);
  // A configured port, the one that training will use: a second runner can not listen on it.
  Json again = listen;
  again["port"] = there["port"];
  CHECK(site.part_of(again, "listen")["error"] ==
        "listen for the other hosts: Address already in use");
  other.client.send(wire::Goodbye{});
  REQUIRE(other.client.wait_exit());
  const Json mine = site.part_of(again, "listen");
  CHECK(mine["port"] == there["port"]);
  CheckedRunner late;
  late.part_of(listen, "listen");
  link["port"] = 1;
  CHECK(late.part_of(link, "link")["error"] == "Connection refused");
}

TEST_CASE("check: what is no request is answered with nothing but its end; a job can not follow") {
  CheckedRunner runner;
  for (const char* nonsense : {"", "[]", "{", R"({"kind":7})", R"({"kind":"reach","peers":{}})",
                               R"({"kind":"listen","token":3,"address":[]})"}) {
    runner.client.send(wire::CheckRequest{nonsense});
    for (;;) {
      const auto report = runner.client.expect<wire::CheckReport>();
      REQUIRE(report);
      if (Json::parse(report->json)["part"] == "done") break;
    }
  }
  runner.client.send(make_job({"true"}));
  bool ready = false;
  while (const auto message = runner.client.next()) {  // reads to the end of the stream
    ready = ready || std::holds_alternative<wire::JobReady>(*message);
    if (!runner.client.errors.empty()) break;
  }
  CHECK_FALSE(ready);
  REQUIRE_FALSE(runner.client.errors.empty());
  CHECK(runner.client.errors[0].code == "protocol");
}

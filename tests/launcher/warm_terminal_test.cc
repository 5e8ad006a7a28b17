// Interactive sessions on kept connections.
#include "launcher/warm/terminal_words.h"
#include "tests/launcher/warm_world.h"

namespace sortie::launcher::warm {
namespace {

TEST_CASE("a person's session on a kept connection: input, size of the window, outputs, status") {
  WarmWorld world;
  CHECK_FALSE(world.has_terminal("h1"));  // no connection is kept yet, and this call keeps none
  CHECK(world.connected == 0);
  world.warm_up("h1");
  const auto channel = world.terminal("h1");
  REQUIRE(channel != nullptr);
  CHECK(world.connected == 1);
  const std::shared_ptr<FakeTerminal> there = world.counted.terminal;
  CHECK(there->asked.command == "vi x");
  CHECK(there->asked.terminal);
  CHECK(there->asked.term == "vt220");
  CHECK(there->asked.size == WindowSize{97, 31});
  channel->resize({55, 44});
  const std::string typed(300'000, 'x');
  CHECK(world.finish(channel->write(typed)));
  CHECK(world.until([&] { return there->typed.size() == typed.size(); }));
  CHECK(there->size == WindowSize{55, 44});
  const auto rows = world.connections();
  REQUIRE(rows.size() == 2);
  CHECK(rows.at(0)["state"] == "idle");
  CHECK(rows.at(1)["state"] == "terminal");
  CHECK(rows.at(1)["host"] == "h1");
  CHECK(rows.at(1)["bytes"] >= typed.size());
  CHECK(rows.at(1)["idle_s"] >= 0.0);
  channel->end_input();
  CHECK(world.all_of(*channel, TerminalChannel::Output::out) == typed);
  CHECK(world.all_of(*channel, TerminalChannel::Output::err) == "over");
  const auto status = world.finish(channel->wait());
  REQUIRE(status);
  CHECK(status->kind == ProcessStatus::Kind::exited);
  CHECK(status->code == 7);
  CHECK(world.until([&] { return there->closed; }));
  CHECK(world.all_idle(1));
  CHECK_FALSE(world.has_terminal("h2"));
  CHECK(world.connected == 1);
}

TEST_CASE("a person who goes takes the session along, and the connection stays") {
  WarmWorld world;
  world.warm_up("h1");
  auto channel = world.terminal("h1");
  REQUIRE(channel != nullptr);
  channel.reset();
  CHECK(world.until([&] { return world.counted.terminal->closed; }));
  CHECK(world.all_idle(1));
  CHECK(world.has_terminal("h1"));
}

TEST_CASE("a person who goes while the host takes no input takes the session along, too") {
  WarmWorld world;
  world.warm_up("h1");
  auto channel = world.terminal("h1");
  REQUIRE(channel != nullptr);
  const auto there = world.counted.terminal;
  there->stuck = true;
  CHECK(world.finish(channel->write("typed ahead")));
  CHECK(world.until([&] { return !there->typed.empty(); }));
  channel.reset();
  CHECK(world.until([&] { return there->closed; }));
  CHECK(world.all_idle(1));
}

TEST_CASE("a session whose connection breaks says so") {
  WarmWorld world;
  world.warm_up("h1");
  auto channel = world.terminal("h1");
  REQUIRE(channel != nullptr);
  world.counted.terminal->out.fail("the link is down");
  world.counted.terminal->err.fail("the link is down");
  const auto said = world.all_of(*channel, TerminalChannel::Output::out);
  REQUIRE_FALSE(said);
  CHECK(said.error().code == ErrorCode::lost);
  CHECK(said.error().message.contains("the link is down"));
  CHECK_FALSE(world.finish(channel->wait()));
}

TEST_CASE("a connection that carries no further session: the host is signed in to") {
  WarmWorld world;
  world.warm_up("h1");
  world.counted.terminals = false;
  CHECK_FALSE(world.has_terminal("h1"));
  CHECK(world.all_idle(1));
}

TEST_CASE("a connection stays as long as a session on it, when its time is over, too") {
  WarmWorld world;
  world.runner.ssh.persist = milliseconds(1);
  const auto first = world.command();
  const auto client = world.talk(*first, "h1");  // keeps the connection in use
  const auto channel = world.terminal("h1");
  REQUIRE(channel != nullptr);
  client->close();
  CHECK(world.until([&] {
    world.keeper->look();
    const auto rows = world.connections();  // the runner has ended, the session is listed
    return rows.size() == 1 && rows.at(0)["state"] == "terminal";
  }));
  CHECK_FALSE(world.counted.terminal->closed);
  channel->end_input();
  const auto status = world.finish(channel->wait());
  CHECK(status);
  CHECK(world.until([] { return kept_runners().empty(); }));
}

TEST_CASE("words of a session") {
  const std::string frame = resize_word({300, 5});
  CHECK(read_resize(std::string_view(frame).substr(wire::kFrameHeaderBytes)) == WindowSize{300, 5});
  CHECK_FALSE(read_resize("abc"));
  Request request;
  request.kind = Request::Kind::terminal;
  request.want.key = "k";
  request.terminal = {"echo \xff", false, "xterm", {80, 24}};
  const auto back = read_request(request_frame(request).substr(wire::kFrameHeaderBytes));
  REQUIRE(back);
  CHECK(back->kind == Request::Kind::terminal);
  CHECK(back->want.key == "k");
  CHECK(back->terminal.command == "echo \xff");
  CHECK_FALSE(back->terminal.terminal);
  CHECK(back->terminal.size == WindowSize{80, 24});
  CHECK_FALSE(read_request(R"({"op":"terminal"})"));
}

}  // namespace
}  // namespace sortie::launcher::warm

// Commands over a real sshd: data both ways, how they end, what they say on stderr.
#include <doctest/doctest.h>

#include "tests/launcher/ssh/fixture.h"

using namespace sortie;
using namespace sortie::launcher;
using namespace sortie::launcher::testing;

TEST_SUITE("launcher") {
  TEST_CASE("a command's output and exit code come back") {
    World world;
    const Sshd server(world.folder / "sshd", world.public_key);
    world.know(server.known_hosts_line());
    const auto connection = world.connect_to(server);
    CHECK(connection->peer_address() == "127.0.0.1");
    const auto ran = world.run_command(*connection, "echo out; echo err >&2; exit 3");
    REQUIRE(ran);
    CHECK(ran->output == "out\n");
    CHECK(ran->status == ProcessStatus{ProcessStatus::Kind::exited, 3, false});
  }
}

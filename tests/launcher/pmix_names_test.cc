// The published names of an MPI job: found, not found, taken, unpublished, awaited, and bounded.
#include "launcher/mpi/pmix_names.h"

#include <doctest/doctest.h>

namespace sortie::launcher {
namespace {

using wire::PmixNames;
using Action = PmixNames::Action;

wire::PmixNamesDone only(const std::vector<PmixRelay::Outgoing>& out, std::size_t host) {
  REQUIRE(out.size() == 1);
  CHECK(out[0].hosts == std::vector{host});
  return std::get<wire::PmixNamesDone>(out[0].message);
}

TEST_CASE("a name is found from another host, by whoever asks, until its owner takes it back") {
  PmixNameTable table;
  const auto ask = [&](std::size_t host, const PmixNames& question) {
    return only(table.on_question(host, question), host);
  };
  CHECK(ask(1, {7, 5, Action::lookup, 0, {"a"}, {}}).status == -46);
  CHECK(ask(0, {3, 2, Action::publish, 0, {"a", "b"}, {"1", ""}}).status == 0);
  const auto found = ask(1, {8, 5, Action::lookup, 0, {"a", "b"}, {}});
  CHECK(found.id == 8);
  CHECK(found.status == 0);
  CHECK(found.ranks == std::vector<std::uint32_t>{2, 2});
  CHECK(found.values == std::vector<std::string>{"1", ""});
  CHECK(ask(1, {9, 5, Action::lookup, 0, {"a", "c"}, {}}).status == -52);
  CHECK(ask(1, {1, 5, Action::publish, 0, {"c", "a"}, {"x", "x"}}).status == -53);
  CHECK(ask(1, {2, 5, Action::publish, 0, {"c", "c"}, {"x", "x"}}).status == -53);
  CHECK(ask(1, {3, 5, Action::lookup, 0, {"c"}, {}}).status == -46);     // all or nothing
  CHECK(ask(1, {4, 5, Action::unpublish, 0, {"a"}, {}}).status == -46);  // not its own
  CHECK(ask(0, {5, 2, Action::unpublish, 0, {}, {}}).status == 0);
  CHECK(ask(0, {6, 2, Action::lookup, 0, {"a"}, {}}).status == -46);
  CHECK(ask(0, {6, 2, Action::publish, 0, {"a"}, {}}).status == -27);
}

TEST_CASE("a lookup that waits is answered when the last of its names is there") {
  PmixNameTable table;
  CHECK(table.on_question(1, {7, 5, Action::lookup, 1, {"a", "b"}, {}}).empty());
  CHECK(table.on_question(0, {1, 0, Action::publish, 0, {"a"}, {"1"}}).size() == 1);
  const auto out = table.on_question(0, {2, 0, Action::publish, 0, {"b"}, {"2"}});
  REQUIRE(out.size() == 2);
  CHECK(out[1].hosts == std::vector<std::size_t>{1});
  const auto& done = std::get<wire::PmixNamesDone>(out[1].message);
  CHECK(done.id == 7);
  CHECK(done.values == std::vector<std::string>{"1", "2"});
}

TEST_CASE("after an adoption questions wait until every host has restored its names") {
  PmixNameTable table;
  table.await_restored(2);
  CHECK(table.on_question(0, {7, 0, Action::lookup, 0, {"a"}, {}}).empty());
  CHECK(table.on_question(0, {8, 0, Action::publish, 0, {"a"}, {"mine"}}).empty());
  CHECK(table.on_question(0, {0, 0, Action::restore, 0, {}, {}}).empty());
  CHECK(table.on_question(0, {0, 0, Action::restore, 0, {"late"}, {"1"}}).empty());  // too late
  CHECK(table.on_question(0, {0, 0, Action::restore, 0, {}, {}}).empty());
  CHECK(table.on_question(1, {0, 5, Action::restore, 0, {"a"}, {"1"}}).empty());
  const auto out = table.on_question(1, {0, 5, Action::restore, 0, {}, {}});
  REQUIRE(out.size() == 2);
  const auto& found = std::get<wire::PmixNamesDone>(out[0].message);
  CHECK(found.id == 7);
  CHECK(found.ranks == std::vector<std::uint32_t>{5});
  CHECK(found.values == std::vector<std::string>{"1"});
  CHECK(std::get<wire::PmixNamesDone>(out[1].message).status == -53);  // taken, as before
  CHECK(table.on_question(1, {0, 5, Action::restore, 0, {"b"}, {"1"}}).empty());  // ignored
  CHECK(only(table.on_question(1, {9, 5, Action::lookup, 0, {"b"}, {}}), 1).status == -46);
}

TEST_CASE("names have a limit, in number and in bytes; what is given back can be used again") {
  PmixNameTable table;
  const std::string large(1u << 20, 'x');
  std::size_t taken = 0;
  for (int i = 0; i < 100; ++i)
    taken +=
        only(table.on_question(0, {1, 0, Action::publish, 0, {"k" + std::to_string(i)}, {large}}),
             0)
            .status == 0;
  CHECK(taken == 63);
  CHECK(only(table.on_question(0, {1, 0, Action::lookup, 0, std::vector<std::string>(9, "k0"), {}}),
             0)
            .status == -29);  // an answer has its own size limit
  CHECK(only(table.on_question(0, {1, 0, Action::unpublish, 0, {}, {}}), 0).status == 0);
  CHECK(only(table.on_question(0, {1, 0, Action::publish, 0, {"again"}, {large}}), 0).status == 0);
}

TEST_CASE("a question that is asked again over a new connection has its effect once") {
  PmixNameTable table;
  table.keep_answers();
  const wire::PmixNames publish{1, 0, Action::publish, 0, {"a"}, {"1"}};
  CHECK(only(table.on_question(0, publish), 0).status == 0);
  CHECK(only(table.on_question(0, publish), 0).status == 0);  // not a conflict with itself
  CHECK(only(table.on_question(1, {1, 5, Action::publish, 0, {"a"}, {"2"}}), 1).status == -53);
  const wire::PmixNames unpublish{2, 0, Action::unpublish, 0, {"a"}, {}};
  CHECK(only(table.on_question(0, unpublish), 0).status == 0);
  CHECK(only(table.on_question(0, unpublish), 0).status == 0);
  // A waiting lookup is answered once.
  const wire::PmixNames lookup{3, 5, Action::lookup, 1, {"b"}, {}};
  CHECK(table.on_question(1, lookup).empty());
  CHECK(table.on_question(1, lookup).empty());
  CHECK(table.on_question(0, {4, 0, Action::publish, 0, {"b"}, {"3"}}).size() == 2);
}

}  // namespace
}  // namespace sortie::launcher
